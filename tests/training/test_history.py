"""The record of a run adds up, and survives every form it is written in."""

from __future__ import annotations

import csv
import errno
import math
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

from fvnce.training import FitOptions, History, HistoryTable, fit
from training_runs import contrastive, kernels, rows


@pytest.fixture(scope="module")
def history() -> History:
    objective = contrastive(noise=kernels())
    return fit(
        objective,
        rows(50),
        validation=rows(20, seed=2),
        epochs=3,
        batch_size=16,
        seed=1,
        options=FitOptions(log_every=3),
    )


def test_there_is_a_row_for_every_step_and_epoch(history: History) -> None:
    assert history.steps["step"] == list(range(12))
    assert history.steps["epoch"] == [0] * 4 + [1] * 4 + [2] * 4
    assert history.steps["rows"] == [16, 16, 16, 2] * 3
    assert history["epoch"] == [1, 2, 3]
    assert not any(math.isnan(loss) for loss in history.steps["loss"])


def test_an_epoch_is_the_mean_over_its_rows(history: History) -> None:
    losses, weights = history.steps["loss"], history.steps["rows"]
    for epoch in range(3):
        here = slice(4 * epoch, 4 * epoch + 4)
        mean = sum(v * w for v, w in zip(losses[here], weights[here], strict=True)) / 50
        assert history["loss"][epoch] == pytest.approx(mean, rel=1e-12)


def test_the_statistics_are_there_where_a_step_is_logged(history: History) -> None:
    logged = [step for step, value in enumerate(history.steps["live_noise"]) if not math.isnan(value)]
    assert logged == [0, 3, 6, 7, 9, 11]
    for name in ("data_term", "noise_term", "zero_noise", "ess_noise", "evidence", "seconds", "samples_per_second"):
        assert [s for s, v in enumerate(history.steps[name]) if not math.isnan(v)] == logged
    for step in logged:
        value = history.steps["data_term"][step] + history.steps["noise_term"][step]
        assert history.steps["loss"][step] == pytest.approx(-value, rel=1e-5)


def test_what_costs_time_before_training_is_reported_apart(history: History) -> None:
    assert {"seconds_tabulating_data", "seconds_tabulating_validation", "seconds_filling_pool"} <= set(history.notes)


def test_csv_holds_the_same_numbers(history: History, tmp_path: Path) -> None:
    history.to_csv(tmp_path / "steps.csv", of="steps")
    with (tmp_path / "steps.csv").open() as file:
        actual = list(csv.DictReader(file))
    for name, column in history.steps.to_dict().items():
        read = [float(row[name]) if row[name] else math.nan for row in actual]
        assert read == pytest.approx(column, rel=0, abs=0, nan_ok=True)
    with pytest.raises(ValueError, match=r"of must be .* found 'runs'"):
        history.to_csv(tmp_path / "x.csv", of="runs")


def test_a_table_is_written_whole_or_not_at_all(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves the earlier file as it was, and a link is replaced, not written through."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    elsewhere = tmp_path / "elsewhere"
    for name, write in (("epochs.csv", history.to_csv), ("steps.csv", history.steps.to_csv)):
        path = tmp_path / name
        path.write_text("earlier")
        with monkeypatch.context() as patch:
            patch.setattr("fvnce.io.files.os.fsync", full)
            patch.setattr(csv, "writer", full)
            with pytest.raises(OSError, match="No space left"):
                write(path)
        assert path.read_text() == "earlier"
        elsewhere.write_text("another's")
        path.unlink()
        path.symlink_to(elsewhere)
        write(path)
        assert elsewhere.read_text() == "another's"
        assert not path.is_symlink()


def test_a_table_survives_its_state() -> None:
    table = HistoryTable()
    table.add(a=1.0)
    table.add(b=2.0)
    table.add(a=3.0, b=math.inf)
    other = HistoryTable()
    other.load_state_dict(table.state_dict())
    other.add(a=4.0)
    assert other["a"] == pytest.approx([1.0, math.nan, 3.0, 4.0], nan_ok=True)
    assert other["b"] == pytest.approx([math.nan, 2.0, math.inf, math.nan], nan_ok=True)
    assert len(other) == 4
    assert [row["a"] for row in other][2:] == [3.0, 4.0]
    with pytest.raises(KeyError, match=r"'c'.* a, b"):
        other["c"]


def test_a_million_steps_stay_small() -> None:
    """Statistics at every hundredth step cost a hundredth of the room."""
    table = HistoryTable()
    for step in range(10_000):
        table.add(loss=0.5, **({"live": 1.0} if step % 100 == 0 else {}))
    stored = [tensor for pair in table.state_dict()["columns"].values() for tensor in pair if tensor is not None]
    assert sum(tensor.numel() * tensor.element_size() for tensor in stored) == 8 * (10_000 + 2 * 100)


def test_it_can_be_drawn(history: History) -> None:
    mpl.use("Agg")
    ax = history.plot()
    assert [line.get_label() for line in ax.lines] == ["loss", "val loss"]
    assert list(ax.lines[1].get_ydata()) == history["val_loss"]
    assert "12 steps, 3 epochs" in repr(history)


def test_seconds_are_those_of_training(history: History) -> None:
    seconds = [s for s in history.steps["seconds"] if not math.isnan(s)]
    assert seconds == sorted(seconds)
    assert 0 < seconds[-1] <= history["seconds"][-1]
    assert torch.tensor(history["samples_per_second"]).gt(0).all()
