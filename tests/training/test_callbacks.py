"""Early stopping, functions of the user and the progress bar."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fvnce.objectives import Batch
from fvnce.training import Callback, EarlyStopping, fit
from fvnce.training.callbacks import Progress
from training_runs import WIDTH, contrastive, digest, kernels, rows, vae

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "seed": 1}


# Ending a run


def test_early_stopping_keeps_the_best_weights() -> None:
    best: dict[float, str] = {}

    def note(run: Any) -> None:
        best[run.history["val_loss"][-1]] = digest(run.objective)

    objective = vae()
    stopping = EarlyStopping(3)
    history = fit(
        objective,
        rows(64),
        validation=rows(64, seed=3),
        epochs=200,
        batch_size=16,
        lr=0.1,
        seed=1,
        early_stopping=stopping,
        callbacks=[note],
    )
    assert len(history.epochs) < 200
    assert len(history.epochs) - 1 - stopping.best_epoch == 3
    assert digest(objective) == best[min(best)]


def test_early_stopping_without_validation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"monitor must be .*found 'val_loss'"):
        fit(vae(), rows(20), early_stopping=2, **SETTINGS)


def test_it_is_quiet_without_a_terminal_and_shows_a_bar_when_asked(capfd: Any) -> None:
    fit(contrastive(), rows(40), **SETTINGS)
    assert capfd.readouterr() == ("", "")
    fit(contrastive(noise=kernels()), rows(400), epochs=3, batch_size=4, seed=1, progress=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    for word in ("epoch 3/3", "loss", "live noise", "samples/s"):
        assert word in shown.err


def test_the_bar_ends_with_the_last_step_however_fast_it_came(capfd: Any) -> None:
    fit(vae(), rows(40), progress=True, **SETTINGS)
    assert "epoch 2/2" in capfd.readouterr().err


@pytest.mark.parametrize("wrong", [{"schedule": "sine"}, {"resume": "nowhere.safetensors"}], ids=str)
def test_a_run_that_is_refused_leaves_no_bar_behind(wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that still runs redraws itself from a thread and hides the cursor."""
    closed, close = [], Progress.close

    def noted(bar: Progress) -> None:
        closed.append(bar)
        close(bar)

    monkeypatch.setattr(Progress, "close", noted)
    with pytest.raises((ValueError, FileNotFoundError)):
        fit(contrastive(noise=kernels()), rows(20), epochs=1, seed=1, progress=True, **wrong)
    assert len(closed) == 1


def test_a_log_that_a_function_writes_has_no_row_twice_after_a_resume(tmp_path: Path) -> None:
    log = tmp_path / "epochs.csv"
    settings: dict[str, Any] = {"batch_size": 10, "seed": 1, "checkpoint_dir": tmp_path / "run"}
    settings["callbacks"] = [lambda trainer: trainer.history.to_csv(log)]
    fit(vae(), rows(20), epochs=2, **settings)
    history = fit(vae(), rows(20), epochs=4, resume=True, **settings)
    with log.open() as file:
        assert [float(row["loss"]) for row in csv.DictReader(file)] == history["loss"]


def test_hooks_are_called_around_steps_and_epochs_in_order() -> None:
    calls: list[str] = []

    class Note(Callback):
        def start(self, trainer: Any) -> None:
            calls.append("start")

        def before_epoch(self, trainer: Any) -> None:
            calls.append(f"before epoch {trainer.epoch}")

        def before_step(self, trainer: Any, batch: Batch) -> Batch:
            calls.append(f"before step {trainer.step}")
            return dataclasses.replace(batch, x=batch.x + 1)

        def after_step(self, trainer: Any, batch: Batch) -> None:
            calls.append(f"after step {trainer.step}, mean {float(batch.x.mean()):g}")

        def epoch(self, trainer: Any) -> None:
            calls.append(f"epoch {trainer.epoch}")

        def end(self, trainer: Any) -> None:
            calls.append("end")

    fit(vae(), torch.zeros(20, WIDTH), epochs=2, batch_size=20, seed=1, callbacks=[Note()])
    assert calls == [
        *("start", "before epoch 0", "before step 0", "after step 1, mean 1", "epoch 0"),
        *("before epoch 1", "before step 1", "after step 2, mean 1", "epoch 1", "end"),
    ]


def test_a_batch_that_is_refused_undoes_what_a_callback_did_to_buffers() -> None:
    objective = nn.Sequential(nn.BatchNorm1d(WIDTH), Refuses())

    class Shift(Callback):
        def before_step(self, trainer: Any, batch: Batch) -> Batch:
            trainer.objective[0].running_mean += 1
            return batch

        def after_step(self, trainer: Any, batch: Batch) -> None:
            raise AssertionError("called after a batch that was refused")

    with pytest.raises(ValueError, match="refused"):
        fit(objective, rows(20), epochs=1, seed=1, callbacks=[Shift()])
    assert torch.equal(objective[0].running_mean, torch.zeros(WIDTH))  # type: ignore[arg-type]


class Refuses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("refused")
