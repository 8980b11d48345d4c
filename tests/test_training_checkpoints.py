"""What is on the disk can be trusted, or is refused with a clear word."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fvnce
from fvnce.serialization import flatten, read_record, unflatten, write_record
from fvnce.training import RecordError, fit, load
from fvnce.training.checkpoint import Checkpoints
from training_runs import digest, rows, vae

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
nests = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
)


@pytest.mark.slow
@given(nests)
def test_any_nest_survives(nest: object) -> None:
    content, tensors = flatten(nest)
    assert unflatten(content, tensors) == nest


def test_tensors_survive_in_any_nest() -> None:
    nest = {"a.b": torch.ones(2), "a": {"b": torch.zeros(3, dtype=torch.int64)}, 3: [(torch.tensor(1.5),)]}
    found = unflatten(*flatten(nest))
    assert torch.equal(found["a.b"], torch.ones(2))
    assert torch.equal(found["a"]["b"], torch.zeros(3, dtype=torch.int64))
    assert found[3][0][0] == 1.5


def test_what_cannot_be_stored_is_named() -> None:
    with pytest.raises(TypeError, match=r"optimizer.hook must be made of numbers, .* found function"):
        flatten({"hook": test_any_nest_survives}, "optimizer")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    fit(vae(), rows(40), epochs=3, batch_size=20, seed=1, checkpoint_dir=tmp_path, keep_last=2)
    return tmp_path


def resumed(folder: Path) -> Any:
    objective = vae(seed=3)
    fit(objective, rows(40), epochs=4, batch_size=20, seed=1, checkpoint_dir=folder, resume=True)
    return objective


def test_the_newest_are_kept(run: Path) -> None:
    assert Checkpoints(run).steps() == [4, 6]
    assert sorted(path.name for path in run.iterdir()) == [
        "objective.safetensors",
        "step-000000004.safetensors",
        "step-000000006.safetensors",
    ]


@pytest.fixture(scope="module")
def never() -> str:
    """The weights of the run that nothing happened to."""
    objective = vae()
    fit(objective, rows(40), epochs=4, batch_size=20, seed=1)
    return digest(objective)


def refused_and_passed_over(run: Path, never: str, words: str) -> None:
    """Named, the file is refused; else the run goes on from the one before, says so, and ends with the same bits."""
    path = Checkpoints(run).path(6)
    damaged = path.read_bytes()
    with pytest.raises(RecordError, match=words):
        fit(vae(), rows(40), epochs=4, batch_size=20, seed=1, resume=path)
    with pytest.warns(UserWarning, match=rf"{words}.* goes on from step-000000004.safetensors") as told:
        assert digest(resumed(run)) == never
    assert len(told) == 1
    assert Checkpoints(run).steps() == [6, 8]
    assert path.with_name(f"{path.name}.unreadable").read_bytes() == damaged
    assert digest(fvnce.load(run).objective) == never


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_checkpoint_is_refused(run: Path, never: str, share: float) -> None:
    path = Checkpoints(run).path(6)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused_and_passed_over(run, never, r"step-000000006.safetensors is damaged")


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 0.9999])
def test_one_changed_bit_is_noticed(run: Path, never: str, share: float) -> None:
    path = Checkpoints(run).path(6)
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)
    refused_and_passed_over(run, never, r"step-000000006.safetensors")


def test_without_a_good_checkpoint_nothing_is_begun_anew(run: Path) -> None:
    for step in (4, 6):
        Checkpoints(run).path(step).write_bytes(b"torn")
    before = sorted(path.name for path in run.iterdir())
    with pytest.raises(RecordError, match=r"step-000000006.safetensors is damaged"):
        resumed(run)
    assert sorted(path.name for path in run.iterdir()) == before


def test_a_checkpoint_that_was_just_written_is_kept_beside_later_ones(run: Path) -> None:
    """A run is taken up at an earlier step in the folder that holds later ones."""
    early = Checkpoints(run).path(4)
    fit(vae(), rows(40), epochs=2, batch_size=20, seed=1, checkpoint_dir=run, keep_last=1, resume=early)
    fit(
        vae(),
        rows(40),
        epochs=5,
        batch_size=20,
        seed=1,
        checkpoint_dir=run,
        keep_last=1,
        checkpoint_every=5,
        resume=early,
    )
    assert Checkpoints(run).steps() == [10]


@pytest.mark.parametrize("kind", ["text", "pickle", "safetensors", "an objective of ours", "a later version"])
def test_a_foreign_file_is_refused(run: Path, never: str, kind: str) -> None:
    path = Checkpoints(run).path(6)
    if kind == "text":
        path.write_text("not a checkpoint")
    elif kind == "pickle":
        torch.save({"step": 6}, path)
    elif kind == "safetensors":
        safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
    elif kind == "a later version":
        content = path.read_bytes().replace(b'\\"version\\":2', b'\\"version\\":9')
        path.write_bytes(content)
    else:
        write_record(path, "objective", {}, {"weight": torch.zeros(2)})
    refused_and_passed_over(run, never, r"step-000000006.safetensors")


def test_an_earlier_checkpoint_serves_when_the_last_is_lost(run: Path) -> None:
    never = vae()
    fit(never, rows(40), epochs=4, batch_size=20, seed=1)
    Checkpoints(run).path(6).unlink()
    assert digest(resumed(run)) == digest(never)


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """The kernel refuses to write further into a file than that, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_half_way_loses_nothing_earlier(run: Path) -> None:
    path = Checkpoints(run).path(6)
    before = {name.name: name.read_bytes() for name in run.iterdir()}
    with no_file_above(1000), pytest.raises(OSError, match="File too large"):
        write_record(path, "checkpoint", {}, {"big": torch.zeros(10_000)})
    assert {name.name: name.read_bytes() for name in run.iterdir()} == before


def test_a_run_goes_on_while_the_disk_is_full_and_saves_when_it_is_not(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first checkpoint of the continued run meets a full disk, the second does not."""
    never = vae()
    fit(never, rows(40), epochs=5, batch_size=20, seed=1)
    real, calls = os.fsync, [0]

    def full(handle: int) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr("fvnce.serialization.files.os.fsync", full)
    objective = vae(seed=3)
    with pytest.warns(UserWarning, match=r"step 8: nothing could be saved .*No space left.*earlier files are intact"):
        fit(objective, rows(40), epochs=5, batch_size=20, seed=1, checkpoint_dir=run, resume=True)
    assert digest(objective) == digest(never)
    assert Checkpoints(run).steps() == [6, 10]
    assert not list(run.glob(".*"))


def test_a_full_disk_at_the_end_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fvnce.serialization.files.os.fsync", full)
    with pytest.warns(UserWarning, match="nothing could be saved"), pytest.raises(OSError, match="No space left"):
        resumed(run)
    assert Checkpoints(run).steps() == [4, 6]
    monkeypatch.undo()
    assert digest(load(Checkpoints(run).path(6))) == digest(fvnce.load(run).objective)


def test_what_a_killed_process_left_is_swept_away(run: Path) -> None:
    (run / ".fvnce-0123456789abcdef.incomplete").write_bytes(b"half")
    resumed(run)
    assert not list(run.glob(".*"))


def test_a_record_is_checked_against_the_one_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    first = write_record(path, "part", {"n": 1}, {"x": torch.zeros(1)})
    assert read_record(path, "part", first)[0] == {"n": 1}
    write_record(path, "part", {"n": 2}, {"x": torch.zeros(1)})
    with pytest.raises(RecordError, match="does not belong"):
        read_record(path, "part", first)


def test_optimisers_with_nested_state_resume(tmp_path: Path) -> None:
    """LBFGS keeps lists of tensors; any optimiser whose state is a nest of tensors and numbers can be stored."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return _Quadratic()

    def momentum(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)

    never = make()
    fit(never, rows(20), epochs=4, batch_size=5, optimizer=momentum, seed=1)
    fit(make(), rows(20), epochs=2, batch_size=5, optimizer=momentum, seed=1, checkpoint_dir=tmp_path)
    again = make()
    fit(again, rows(20), epochs=4, batch_size=5, optimizer=momentum, seed=1, checkpoint_dir=tmp_path, resume=True)
    assert digest(again) == digest(never)


class _Quadratic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) - 1).square().mean()


def test_best_weights_without_a_checkpoint_are_of_a_run_that_died(tmp_path: Path) -> None:
    fit(vae(), rows(40), validation=rows(10, seed=2), epochs=1, seed=1, checkpoint_dir=tmp_path)
    for path in tmp_path.glob("step-*"):
        path.unlink()
    trained = vae(seed=2)
    fit(trained, rows(40), epochs=1, seed=2, checkpoint_dir=tmp_path)
    assert digest(fvnce.load(tmp_path).objective) == digest(trained)
