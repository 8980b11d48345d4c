"""Files of a run: trusted or refused in one sentence, written whole, by one writer at a time."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
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
from fvnce.io import flatten, unflatten, write_record
from fvnce.io.files import locked
from fvnce.training import Callback, FileError, FitOptions, FolderInUse, fit, load_module
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
    actual = unflatten(*flatten(nest))
    assert torch.equal(actual["a.b"], torch.ones(2))
    assert torch.equal(actual["a"]["b"], torch.zeros(3, dtype=torch.int64))
    assert actual[3][0][0] == 1.5


def test_what_cannot_be_stored_is_named() -> None:
    with pytest.raises(TypeError, match=r"optimizer.hook .*function"):
        flatten({"hook": test_any_nest_survives}, "optimizer")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    fit(vae(), rows(40), epochs=3, batch_size=20, seed=1, checkpoint_dir=tmp_path)
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
    with pytest.raises(FileError, match=words):
        fit(vae(), rows(40), epochs=4, batch_size=20, seed=1, resume=path)
    with pytest.warns(UserWarning, match=rf"{words}.*step-000000004.safetensors") as told:
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
    refused_and_passed_over(run, never, r"step-000000006.safetensors")


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
    with pytest.raises(FileError, match=r"step-000000006.safetensors"):
        resumed(run)
    assert sorted(path.name for path in run.iterdir()) == before


def test_a_checkpoint_that_was_just_written_is_kept_beside_later_ones(run: Path) -> None:
    """A run is taken up at an earlier step in the folder that holds later ones."""
    early = Checkpoints(run).path(4)
    fit(
        vae(),
        rows(40),
        epochs=2,
        batch_size=20,
        seed=1,
        checkpoint_dir=run,
        resume=early,
        options=FitOptions(keep_last=1),
    )
    fit(
        vae(),
        rows(40),
        epochs=5,
        batch_size=20,
        seed=1,
        checkpoint_dir=run,
        resume=early,
        options=FitOptions(keep_last=1, checkpoint_every=5),
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

    monkeypatch.setattr("fvnce.io.files.os.fsync", full)
    objective = vae(seed=3)
    with pytest.warns(UserWarning, match=r"step 8: .*No space left"):
        fit(objective, rows(40), epochs=5, batch_size=20, seed=1, checkpoint_dir=run, resume=True)
    assert digest(objective) == digest(never)
    assert Checkpoints(run).steps() == [6, 10]
    assert not list(run.glob(".*"))


def test_a_full_disk_at_the_end_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fvnce.io.files.os.fsync", full)
    with pytest.warns(UserWarning, match="No space left"), pytest.raises(OSError, match="No space left"):
        resumed(run)
    assert Checkpoints(run).steps() == [4, 6]
    monkeypatch.undo()
    assert digest(load_module(Checkpoints(run).path(6))) == digest(fvnce.load(run).objective)


def test_what_a_killed_process_left_is_swept_away(run: Path) -> None:
    (run / ".fvnce-0123456789abcdef.incomplete").write_bytes(b"half")
    resumed(run)
    assert not list(run.glob(".*"))


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


HERE = Path(__file__).parents[1] / "support"
SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 10}

#: A run that tells when it has its folder and then waits for a word.
WRITER = """
import sys
from fvnce.training import fit
from training_runs import rows, vae
told = []
def wait(run):
    if not told:
        told.append(print("writing", flush=True))
        sys.stdin.readline()
fit(vae(), rows(20), seed=1, epochs=2, batch_size=10, checkpoint_dir=sys.argv[1], callbacks=[wait])
"""


def writer(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


@pytest.mark.slow
def test_a_second_writer_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    first = writer(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    for resume in (False, True):
        with pytest.raises(FolderInUse, match=rf"process {first.pid} on {socket.gethostname()}"):
            fit(vae(), rows(20), seed=2, checkpoint_dir=tmp_path, resume=resume, **SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    first.communicate("go on\n")
    assert first.returncode == 0
    assert Checkpoints(tmp_path).steps() == [2, 4]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_a_dead_writer_locks_nobody_out(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert (tmp_path / ".lock").exists()
    objective, never = vae(), vae()
    fit(objective, rows(20), seed=1, checkpoint_dir=tmp_path, resume=True, **SETTINGS)
    fit(never, rows(20), seed=1, **SETTINGS)
    assert digest(objective) == digest(never)
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_fails_leaves_no_lock(tmp_path: Path) -> None:
    class Fails(Callback):
        def epoch(self, run: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(vae(), rows(20), seed=1, checkpoint_dir=tmp_path, callbacks=[Fails()], **SETTINGS)
    assert not (tmp_path / ".lock").exists()


def test_a_lock_holds_against_the_same_process_too(tmp_path: Path) -> None:
    with locked(tmp_path / ".lock", tmp_path):
        with pytest.raises(FolderInUse, match=f"process {os.getpid()} "), locked(tmp_path / ".lock", tmp_path):
            pass
        with pytest.raises(FolderInUse):
            fit(vae(), rows(20), seed=1, checkpoint_dir=tmp_path, **SETTINGS)
    with locked(tmp_path / ".lock", tmp_path):
        pass


def test_many_that_come_and_go_are_never_two(tmp_path: Path) -> None:
    """Holders remove the file; whoever locked a removed one must notice that it locks nothing."""
    inside: list[int] = []
    most: list[int] = []

    def come_and_go() -> None:
        done = 0
        while done < 100:
            try:
                with locked(tmp_path / ".lock", tmp_path):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
                    done += 1
            except FolderInUse:
                continue

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 400


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"\.lock"), locked(tmp_path / ".lock", tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "mine"
