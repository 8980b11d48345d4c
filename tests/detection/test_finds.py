"""Expected numbers of outliers in the two lists, and intervals that hold the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fvnce.detection import Finds, NoiseContrastiveDetector

QUICK: dict[str, Any] = {"n_trees": 30, "n_networks": 1, "steps": 60}


def mixed(rng: np.random.Generator, rows: int, share: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return normal rows, a share of one kind of outlier and as many of another, and the kind of each."""
    kind = rng.choice(3, rows, p=[1 - 2 * share, share, share])
    X = rng.normal(size=(rows, 4))
    X[kind == 1, 0] += 4.5
    X[kind == 2] -= 6.0
    return X, kind


@pytest.fixture(scope="module")
def fitted() -> tuple[NoiseContrastiveDetector, NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    X, kind = mixed(rng, 600, 0.04)
    known = (kind == 1) & (rng.random(600) < 0.4)
    return NoiseContrastiveDetector(**QUICK).fit(X, known), mixed(rng, 400, 0.04)[0]


def test_a_flagged_row_is_in_one_list_and_numbers_agree(
    fitted: tuple[NoiseContrastiveDetector, NDArray[np.float64]],
) -> None:
    detector, X = fitted
    scores = detector.scores(X)
    lists = detector.expected_finds(scores)
    assert list(lists) == ["known", "novel"]
    times = np.bincount(np.concatenate([each.rows for each in lists.values()]), minlength=len(X))
    np.testing.assert_array_equal(times, np.where(scores.flagged, 1, 2))
    for name, each in lists.items():
        np.testing.assert_array_equal(each.alarms, np.arange(1, len(each.rows) + 1))
        assert (each.low <= each.finds).all()
        assert (each.finds <= each.high + 1e-9).all()
        assert (each.high <= each.alarms).all()
        assert each.flagged == (scores.kind == name).sum() > 0
        assert set(scores.kind[each.rows[: each.flagged]]) == {name}  # the flagged ones come first
    known = lists["known"]
    np.testing.assert_allclose(known.finds, np.cumsum(detector.outlier_probability(X)[known.rows]))
    assert (np.diff(known.finds, 2) <= 1e-12).all()  # each alarm more finds less than the one before
    assert (np.diff(scores.novelty[lists["novel"].rows]) <= 0).all()


def test_without_known_outliers_there_is_one_list(fitted: tuple[NoiseContrastiveDetector, Any]) -> None:
    detector = NoiseContrastiveDetector(**QUICK).fit(fitted[1])
    (only,) = detector.expected_finds(detector.scores(fitted[1])).items()
    assert only[0] == "novel"
    assert len(only[1].rows) == len(fitted[1])


def test_every_flagged_row_is_in_a_list_whatever_the_settings(
    fitted: tuple[NoiseContrastiveDetector, NDArray[np.float64]],
) -> None:
    X = fitted[1]
    for known, settings in ((1, {"contamination": 0.05}), (4, {"contamination": 0.05, "calibration_folds": 0})):
        y = np.argsort(np.argsort(X[:, 0])) >= len(X) - known
        detector = NoiseContrastiveDetector(**{**QUICK, **settings}).fit(X, y)
        scores = detector.scores(X)
        flagged = sum(each.flagged for each in detector.expected_finds(scores).values())
        assert flagged == scores.flagged.sum() > 0


def test_a_list_may_be_empty(fitted: tuple[NoiseContrastiveDetector, Any]) -> None:
    detector = fitted[0]
    scores = detector.scores(np.array([[4.5, 0, 0, 0]]))
    assert scores.kind.tolist() == ["known"]
    empty = detector.expected_finds(scores)["novel"]
    assert (len(empty.finds), len(empty.alarms), empty.flagged) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("known", [3, 5, 10])
def test_intervals_of_finds_hold_the_truth(known: int) -> None:
    covered, expected, true = [], [], []
    for i in range(12):
        rng = np.random.default_rng([7, known, i])
        X, kind = mixed(rng, 500, 0.04)
        y = np.zeros(500, dtype=int)
        y[np.flatnonzero(kind == 1)[:known]] = 1
        detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
        new, kind = mixed(rng, 500, 0.04)
        for name, each in detector.expected_finds(detector.scores(new)).items():
            truth = np.cumsum(kind[each.rows] > 0)
            at = [k - 1 for k in (each.flagged, 2 * each.flagged, 50) if 0 < k <= len(truth)]
            covered += [each.low[k] <= truth[k] <= each.high[k] for k in at]
            if name == "known":
                expected.append(each.finds[49])
                true.append(truth[49])
    assert np.mean(covered) >= 0.85  # 0.9 is promised; some 70 cases, three of each fit
    assert 0.75 < np.mean(expected) / np.mean(true) < 1.33


def test_more_alarms_never_lower_an_end_of_the_interval() -> None:
    p = np.linspace(0.99, 0.001, 400) ** 3
    finds = Finds.of(np.full(400, ""), "known", p, p, p / 3, np.minimum(3 * p, 1.0))
    for values in (finds.low, finds.finds, finds.high):
        assert (np.diff(values) >= 0).all()
    assert (finds.low <= finds.finds).all()
