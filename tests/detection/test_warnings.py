"""What a detector warns of: labels that seem the wrong way round, and a rate at which no alarm can be raised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fvnce.detection import LatentDetector, NoiseContrastiveDetector

Array = NDArray[np.float64]
DETECTORS: dict[str, Callable[[], Any]] = {
    "ensemble": lambda: NoiseContrastiveDetector(n_trees=3, members="isolation_forest"),
    "latent": lambda: LatentDetector(latent=1, hidden=(4,), epochs=1),
}


def rows(n: int) -> Array:
    return np.random.default_rng(0).normal(size=(n, 2))


@pytest.mark.parametrize("make", DETECTORS.values(), ids=DETECTORS)
@pytest.mark.parametrize("words", [False, True])
def test_labels_that_mark_most_rows_are_refused(make: Callable[[], Any], *, words: bool) -> None:
    y: Any = np.repeat([1, 0], [194, 6])
    labels = np.where(y == 1, "fraud", "ok") if words else y
    with pytest.raises(ValueError, match=r"y .*found 1 in 194 of 200 rows \(97 %\).*1 - y.*mostly_outliers"):
        make().fit(rows(200), labels)
    assert make().fit(rows(200), labels, mostly_outliers=True).n_known_ == 194


@pytest.mark.parametrize("make", DETECTORS.values(), ids=DETECTORS)
@pytest.mark.parametrize("values", [(1, 2), (1, 0, 2), (0.5, 0), (7, 0), (np.inf, 0)])
def test_labels_other_than_0_and_1_are_refused(make: Callable[[], Any], values: tuple[float, ...]) -> None:
    y = np.resize(values, 40)
    with pytest.raises(ValueError, match=rf"y .*found {max(values):g}.*y == "):
        make().fit(rows(40), y)


@pytest.mark.parametrize("make", DETECTORS.values(), ids=DETECTORS)
def test_a_missing_label_is_that_of_an_unlabelled_row(make: Callable[[], Any]) -> None:
    pd, marked = pytest.importorskip("pandas"), np.array([1, 0, 0, 0])
    expected = make().fit(rows(40), np.resize(marked, 40)).anomaly_score(rows(9))
    for gap, kind in ((np.nan, float), (None, object), (pd.NA, object), (np.nan, object)):
        y = np.resize(np.array([1, gap, 0, gap], dtype=kind), 40)
        np.testing.assert_array_equal(make().fit(rows(40), y).anomaly_score(rows(9)), expected)
    for series in (pd.Series([1, None, 0, 0] * 10, dtype="Int64"), pd.Series(["yes", None, "no", None] * 10)):
        np.testing.assert_array_equal(make().fit(rows(40), series).anomaly_score(rows(9)), expected)


def test_labels_of_whom_none_is_given_are_no_labels() -> None:
    expected = DETECTORS["ensemble"]().fit(rows(40)).anomaly_score(rows(9))
    found = DETECTORS["ensemble"]().fit(rows(40), np.full(40, np.nan)).anomaly_score(rows(9))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("make", DETECTORS.values(), ids=DETECTORS)
def test_labels_that_mark_half_of_the_rows_are_not(make: Callable[[], Any]) -> None:
    make().fit(rows(20), np.repeat([1, 0], [10, 10]))  # warnings are errors in tests


def test_who_says_so_on_the_command_line_is_not_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fvnce.app.cli import main

    path = tmp_path / "rows.csv"
    lines = [f"{a:.4f},{b:.4f},{int(i >= 6)}" for i, (a, b) in enumerate(rows(60))]
    path.write_text("\n".join(["a,b,fraud", *lines]))
    options = ["--set", "members=isolation_forest", "--set", "n_trees=3", "--set", "calibration_folds=0"]
    command = ["fit", str(path), "--label", "fraud", "--mostly-outliers", "--out", str(tmp_path / "run"), *options]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 0
    assert "1 for known outliers" not in capsys.readouterr().err


@pytest.mark.parametrize("make", DETECTORS.values(), ids=DETECTORS)
def test_rows_above_the_threshold_without_an_alarm_are_warned_of(make: Callable[[], Any]) -> None:
    detector = make().fit(rows(100))
    least = 1 / (len(detector.conformal_.scores) + 1)
    with pytest.warns(UserWarning, match=rf"fdr below {least:.2g}, found fdr .*5 of 5 rows") as told:
        found = detector.predict(rows(5) + 50, fdr=0.99 * least)
    assert (found == 1).all()
    assert len(told) == 1
    assert (detector.predict(rows(5) + 50, fdr=1.01 * least) == -1).all()


def test_a_rate_at_which_nothing_is_found_is_not() -> None:
    detector = DETECTORS["ensemble"]().fit(rows(100))
    least = 1 / (len(detector.conformal_.scores) + 1)
    usual = np.zeros((5, 2))
    assert (detector.predict(usual, fdr=least) == 1).all()  # warnings are errors in tests
