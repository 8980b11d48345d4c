"""Expected numbers of outliers in the two lists: sums of probabilities, and near the truth on average."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fvnce.detection import NoiseContrastiveDetector

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


def test_each_row_is_in_one_list_and_its_numbers_are_sums_of_probabilities(
    fitted: tuple[NoiseContrastiveDetector, NDArray[np.float64]],
) -> None:
    detector, X = fitted
    scores, probability = detector.scores(X), detector.outlier_probability(X)
    lists = detector.expected_finds(scores)
    assert list(lists) == ["known", "novel"]
    np.testing.assert_array_equal(np.sort(np.concatenate([each.rows for each in lists.values()])), np.arange(len(X)))
    for name, each in lists.items():
        np.testing.assert_array_equal(each.alarms, np.arange(1, len(each.rows) + 1))
        np.testing.assert_allclose(each.finds, np.cumsum(probability[each.rows]))
        assert (np.diff(each.finds, 2) <= 1e-12).all()  # each alarm more finds less than the one before
        assert each.flagged == (scores.kind == name).sum() > 0
        assert set(scores.kind[each.rows[: each.flagged]]) == {name}  # the flagged ones come first


def test_without_known_outliers_there_is_one_list(fitted: tuple[NoiseContrastiveDetector, Any]) -> None:
    detector = NoiseContrastiveDetector(**QUICK).fit(fitted[1])
    (only,) = detector.expected_finds(detector.scores(fitted[1])).items()
    assert only[0] == "novel"
    assert len(only[1].rows) == len(fitted[1])


def test_a_list_may_be_empty(fitted: tuple[NoiseContrastiveDetector, Any]) -> None:
    detector = fitted[0]
    empty = detector.expected_finds(detector.scores(np.array([[4.5, 0, 0, 0]])))["novel"]
    assert (len(empty.finds), len(empty.alarms), empty.flagged) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("known", [3, 10])
def test_expected_finds_are_near_the_truth(known: int) -> None:
    expected, true = np.zeros((2, 2, 10))
    for i in range(10):
        rng = np.random.default_rng([7, known, i])
        X, kind = mixed(rng, 500, 0.04)
        y = np.zeros(500, dtype=int)
        y[np.flatnonzero(kind == 1)[:known]] = 1
        detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
        new, kind = mixed(rng, 500, 0.04)
        for j, each in enumerate(detector.expected_finds(detector.scores(new)).values()):
            expected[j, i], true[j, i] = each.finds[-1], (kind[each.rows] > 0).sum()
    ratio = expected.mean(1) / true.mean(1)
    assert 0.7 < ratio[0] < 1.4
    assert 0.7 < ratio[1] < 2.0  # by a convention, which calls some normal rows outliers
