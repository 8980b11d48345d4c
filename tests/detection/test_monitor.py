"""New rows of the same source seldom cause an alarm; changed columns, gaps, texts and scores are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fvnce._validation import FileError
from fvnce.detection import LatentDetector, NoiseContrastiveDetector
from fvnce.detection.trust.monitor import Cells

QUICK: dict[str, Any] = {"n_trees": 9, "n_networks": 1, "steps": 20}


def table(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "amount": rng.exponential(size=rows),
            "length": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows)),
            "town": [f"town {k}" for k in rng.zipf(1.6, rows).clip(max=300)],
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D"),
        }
    )


@pytest.fixture(scope="module", name="detector")
def fitted() -> NoiseContrastiveDetector:
    return NoiseContrastiveDetector(**QUICK).fit(table(np.random.default_rng(0), 600))


@pytest.mark.slow
def test_alarms_without_a_change_are_at_most_alpha() -> None:
    """A fast part of experiments/coverage/monitor.py, at the default seed: 40 tables, 5 batches of each."""
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(40):
        detector = NoiseContrastiveDetector(members="neighbors").fit(rng.normal(size=(60, 3)))
        alarms += sum([detector.monitor(rng.normal(size=(50, 3)), alpha=0.05).alarm for _ in range(5)])
    assert alarms <= 20  # 10 expected at most; batches of one table depend on each other


def test_the_same_source_causes_no_alarm(detector: NoiseContrastiveDetector) -> None:
    changes = detector.monitor(table(np.random.default_rng(1), 400))
    assert not changes.alarm
    assert changes.flagged_low <= changes.flagged <= changes.flagged_high
    assert [column.name for column in changes.columns] == ["amount", "length", "town", "day"]


def test_each_change_is_named_with_its_column(detector: NoiseContrastiveDetector) -> None:
    rng = np.random.default_rng(1)
    new = table(rng, 400)
    new["amount"] *= 2
    new.loc[:150, "length"] = np.nan
    new.loc[:80, "town"] = "TOWN"
    new["day"] += pd.Timedelta(days=5000)  # new rows are later
    changes = detector.monitor(new)
    assert changes.alarm
    for name in ("amount", "length", "town"):
        assert any(repr(name) in sentence for sentence in changes.sentences)
    assert not any("'day'" in sentence for sentence in changes.sentences)
    assert changes.columns[2].unseen == pytest.approx((new["town"] == "TOWN").mean(), abs=0.1)
    assert json.loads(json.dumps(changes.as_dict()))["alarm"] is True
    assert "length" in str(changes)


def test_p_values_that_are_not_valid_any_more_are_named() -> None:
    rng = np.random.default_rng(0)
    detector = NoiseContrastiveDetector(**QUICK).fit(rng.normal(size=(400, 5)))
    new = rng.normal(size=(400, 5))
    new[:60] = 4 * np.sign(new[:60])  # no column moves much
    changes = detector.monitor(new)
    assert changes.p_p_values is not None
    assert changes.p_p_values < 0.01
    assert any("p-values are no longer valid" in sentence for sentence in changes.sentences)


@pytest.mark.slow
def test_known_outliers_among_new_rows_are_no_change() -> None:
    rng = np.random.default_rng(0)
    outliers = rng.normal(5, 1, size=(40, 3))
    X = np.concatenate([rng.normal(size=(400, 3)), outliers[:20]])
    detector = NoiseContrastiveDetector(**QUICK).fit(X, np.repeat([0, 1], [400, 20]))
    assert not detector.monitor(np.concatenate([rng.normal(size=(400, 3)), outliers[20:]])).alarm
    assert not detector.monitor(rng.normal(size=(400, 3))).alarm


def test_parts_count_as_the_whole(detector: NoiseContrastiveDetector) -> None:
    new = table(np.random.default_rng(2), 300)
    watch = detector.new_watch()
    for start in range(0, 300, 70):
        detector.watch(watch, new.iloc[start : start + 70])
    assert watch.changes() == detector.monitor(new)


def test_a_saved_detector_finds_the_same(detector: NoiseContrastiveDetector, tmp_path: Path) -> None:
    new = table(np.random.default_rng(2), 300)
    loaded = NoiseContrastiveDetector.load(detector.save(tmp_path / "detector.safetensors"))
    assert loaded.monitor(new) == detector.monitor(new)


@pytest.mark.parametrize("value", [0.0, 1.5, None])
def test_alpha_is_a_probability(detector: NoiseContrastiveDetector, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="alpha"):
        detector.monitor(table(np.random.default_rng(1), 30), alpha=value)


def test_images_and_latent_models_are_compared_by_scores() -> None:
    rng = np.random.default_rng(0)
    latent = LatentDetector(latent=1, hidden=(8,), epochs=2).fit(rng.normal(size=(300, 2)))
    assert not latent.monitor(rng.normal(size=(200, 2))).alarm
    assert latent.monitor(rng.normal(size=(200, 2)) + 2).alarm
    images = NoiseContrastiveDetector(members="neighbors").fit(rng.random((120, 8, 8)))
    assert images.monitor(rng.random((60, 8, 8))).columns == []
    assert images.monitor(rng.random((60, 8, 8)) ** 4).alarm


def test_a_detector_without_held_out_rows_compares_columns_only() -> None:
    rng = np.random.default_rng(0)
    changes = (
        NoiseContrastiveDetector(calibration_folds=0, **QUICK)
        .fit(rng.normal(size=(200, 2)))
        .monitor(rng.normal(size=(200, 2)) + np.array([1, 0]))
    )
    assert changes.alarm
    assert changes.p_scores is None
    assert changes.p_p_values is None


@pytest.mark.parametrize("what", ["counts", "edges", "sizes", "text"])
def test_forged_cells_are_refused(detector: NoiseContrastiveDetector, what: str) -> None:
    cells = detector.findings_.cells
    assert cells is not None
    content, arrays = cells.state()
    forged: dict[str, Any] = {"sizes": [-1, 0, 0, 0], "text": [True] * 3}
    if what in forged:
        content = {**content, what: forged[what]}
    else:
        arrays = {**arrays, what: -arrays[what]}
    with pytest.raises((FileError, ValueError, TypeError)):
        Cells.from_state(content, arrays, 4)
