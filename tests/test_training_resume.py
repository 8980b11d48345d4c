"""A run that is killed and resumed ends with the bits of one that never was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fvnce.objectives import VAE
from fvnce.training import fit
from training_runs import KILLED, contrastive, digest, kernels, rows, vae

HERE = Path(__file__).parent


class Crash(Exception):
    """What ends a run in the middle."""


def crashing(objective: VAE, calls: int) -> VAE:
    """The objective, which fails at its ``calls``-th evaluation."""
    left = [calls]

    def count(*_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash

    objective.encoder.register_forward_pre_hook(count)  # type: ignore[union-attr]
    return objective


@pytest.mark.slow
def test_killed_wherever_it_is(tmp_path: Path) -> None:
    """Lives end at an evaluation, between two files and inside a write; which, follows from the seed, not the clock."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, HERE / "killed_runs.py", tmp_path, "6", "0"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [run["name"] for run in found] == list(KILLED)
    for run in found:
        assert len(run["ends"]) == 6
        assert run["resumed"] == run["never"], run["name"]
    ends = [end for run in found for end in run["ends"]]
    assert {end["at"] for end in ends} == {"evaluation", "file", "write"}
    assert {end["signal"] for end in ends} == {signal.SIGKILL, signal.SIGXFSZ}
    assert sum(end["saved"] > 0 for end in ends) > 6


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_resumes_in_the_middle_of_an_epoch(tmp_path: Path, workers: int) -> None:
    """torch's own sampler and workers draw from the global generator, whose state at the start of the epoch is kept."""

    def loader() -> DataLoader[tuple[Tensor, ...]]:
        context = None if workers == 0 else "fork"
        return DataLoader(
            TensorDataset(rows(40)), batch_size=8, shuffle=True, num_workers=workers, multiprocessing_context=context
        )

    settings: dict[str, Any] = {"epochs": 3, "seed": 3, "checkpoint_every": 2}
    never = vae()
    fit(never, loader(), **settings)
    with pytest.raises(Crash):
        fit(crashing(vae(), 8), loader(), checkpoint_dir=tmp_path, **settings)
    resumed = vae(seed=1)
    fit(resumed, loader(), checkpoint_dir=tmp_path, resume=True, **settings)
    assert digest(resumed) == digest(never)


def test_a_data_loader_with_its_own_generator_resumes_between_epochs(tmp_path: Path) -> None:
    """The generator that a new loader brings is at its beginning, and must be where the loader before it had come."""

    def loader() -> DataLoader[tuple[Tensor, ...]]:
        own = torch.Generator().manual_seed(5)
        return DataLoader(TensorDataset(rows(40)), batch_size=8, shuffle=True, generator=own)

    never, resumed = vae(), vae(seed=1)
    fit(never, loader(), epochs=3, seed=3)
    fit(vae(), loader(), epochs=2, seed=3, checkpoint_dir=tmp_path)
    fit(resumed, loader(), epochs=3, seed=3, checkpoint_dir=tmp_path, resume=True)
    assert digest(resumed) == digest(never)


def test_more_epochs_are_a_continuation(tmp_path: Path) -> None:
    never = contrastive(noise=kernels())
    whole = fit(never, rows(60), epochs=4, batch_size=16, seed=1)
    fit(contrastive(noise=kernels()), rows(60), epochs=2, batch_size=16, seed=1, checkpoint_dir=tmp_path)
    resumed = contrastive(seed=8, noise=kernels())
    history = fit(resumed, rows(60), epochs=4, batch_size=16, seed=1, checkpoint_dir=tmp_path, resume=True)
    assert digest(resumed) == digest(never)
    assert history.steps["loss"] == whole.steps["loss"]
    assert history["loss"] == whole["loss"]
    assert history["seconds"] == sorted(history["seconds"])


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = vae()
    settings: dict[str, Any] = {
        "validation": rows(20, seed=2),
        "epochs": 30,
        "batch_size": 16,
        "lr": 0.3,
        "early_stopping": 2,
        "seed": 1,
    }
    history = fit(first, rows(60), checkpoint_dir=tmp_path, **settings)
    again = vae(seed=4)
    same = fit(again, rows(60), checkpoint_dir=tmp_path, resume=True, **settings)
    assert len(history.epochs) < 30
    assert same.to_dict() == history.to_dict()
    assert digest(again) == digest(first)


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    fit(vae(), rows(20), epochs=1, seed=1, checkpoint_dir=tmp_path)
    with pytest.raises(FileExistsError, match=r"checkpoint_dir must be without checkpoints.*resume=True"):
        fit(vae(), rows(20), epochs=1, seed=1, checkpoint_dir=tmp_path)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"lr": 0.1}, "lr"),
        ({"batch_size": 5}, "batch_size"),
        ({"seed": 2}, "seed"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"data": rows(21)}, "data"),
        ({"objective": contrastive()}, "objective"),
    ],
)
def test_a_resumed_run_must_be_the_same_run(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    settings: dict[str, Any] = {"epochs": 1, "seed": 1, "batch_size": 10}
    fit(vae(), rows(20), checkpoint_dir=tmp_path, **settings)
    chosen = {"objective": vae(), "data": rows(20), **settings, "epochs": 2, **changed}
    with pytest.raises(ValueError, match=rf"step-\d+\.safetensors is of another run: {named} was .*, is "):
        fit(**chosen, checkpoint_dir=tmp_path, resume=True)


def test_resume_from_a_named_checkpoint(tmp_path: Path) -> None:
    never = vae()
    fit(never, rows(40), epochs=4, batch_size=10, seed=1, checkpoint_dir=tmp_path / "a", keep_last=9)
    branch = vae(seed=5)
    fit(branch, rows(40), epochs=4, batch_size=10, seed=1, resume=tmp_path / "a" / "step-000000008.safetensors")
    assert digest(branch) == digest(never)


def test_resume_without_any_checkpoint_starts(tmp_path: Path) -> None:
    one, other = vae(), vae()
    fit(one, rows(20), epochs=1, seed=1, checkpoint_dir=tmp_path, resume=True)
    fit(other, rows(20), epochs=1, seed=1)
    assert digest(one) == digest(other)
    with pytest.raises(ValueError, match="checkpoint_dir must be given"):
        fit(vae(), rows(20), resume=True)


def test_other_versions_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(vae(), rows(20), epochs=1, seed=1, checkpoint_dir=tmp_path)
    monkeypatch.setattr("fvnce.training.checkpoint.version", lambda name: "99")
    with pytest.warns(UserWarning, match=r"written with other versions \(.*torch .* → 99"):
        fit(vae(), rows(20), epochs=2, seed=1, checkpoint_dir=tmp_path, resume=True)


def test_random_states_of_the_caller_are_left_alone() -> None:
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    fit(vae(), rows(20), epochs=1, seed=1)
    torch.manual_seed(7)
    objective = vae()
    torch.manual_seed(7)
    fit(objective, rows(20), epochs=1, seed=1)
    assert torch.equal(torch.rand(3), wanted)
