"""Which rows are flagged by a budget: a number of alarms, a threshold, or a rate of false alarms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_predict

from fvnce.detection import NoiseContrastiveDetector

QUICK: dict[str, Any] = {"n_trees": 20, "n_networks": 1, "steps": 40, "expert": {"batch_size": 64}}


def problem(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return 300 normal rows and 30 outliers, of which 10 are known."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(size=(300, 3)), rng.normal(4, 0.5, size=(30, 3))]), np.repeat([0, 1], [320, 10])


@pytest.fixture(scope="module")
def detector() -> NoiseContrastiveDetector:
    return NoiseContrastiveDetector(**QUICK).fit(*problem())


@pytest.mark.parametrize("alarms", [1, 7, 50, 329, 330, 10**9])
def test_a_number_of_alarms_flags_the_highest_rows(detector: NoiseContrastiveDetector, alarms: int) -> None:
    X, _ = problem(1)
    flagged, score = detector.predict(X, alarms=alarms) == -1, detector.anomaly_score(X)
    assert flagged.sum() == min(alarms, len(X))
    if not flagged.all():
        assert score[flagged].min() >= score[~flagged].max()


def test_of_equal_rows_the_first_are_flagged(detector: NoiseContrastiveDetector) -> None:
    assert np.flatnonzero(detector.predict(np.zeros((9, 3)), alarms=4) == -1).tolist() == [0, 1, 2, 3]


def test_a_threshold_takes_the_place_of_the_learned_one(detector: NoiseContrastiveDetector) -> None:
    X, _ = problem(1)
    alone = detector.scores(X).kind == "novel"
    of_learned = detector.predict(X, threshold=detector.threshold_)
    np.testing.assert_array_equal(of_learned[~alone], detector.predict(X)[~alone])
    for threshold in (-1e9, 0.0, 3.0, 1e9):
        expected = np.where(detector.anomaly_score(X) > threshold, -1, 1)
        np.testing.assert_array_equal(detector.predict(X, threshold=threshold), expected)


def test_budgets_rank_by_the_score_where_rows_are_flagged_for_their_novelty_alone(
    detector: NoiseContrastiveDetector,
) -> None:
    """A row of a far group without labels is flagged by default, and scores lower than known kinds of outliers."""
    X = np.concatenate([problem(1)[0], np.random.default_rng(2).normal([-7, 7, -7], 0.5, size=(5, 3))])
    scores = detector.scores(X)
    alone = scores.flagged & (scores.anomaly <= scores.threshold)
    assert alone.any()
    highest = np.argsort(-scores.anomaly, kind="stable")
    for alarms in range(1, 40):
        assert set(np.flatnonzero(detector.predict(X, alarms=alarms) == -1)) == set(highest[:alarms])
    assert (detector.predict(X, threshold=detector.threshold_)[alone] == 1).all()


@pytest.mark.parametrize(
    "budget",
    [
        {"alarms": 3, "fdr": 0.1},
        {"alarms": 3, "threshold": 1.0},
        {"alarms": 0},
        {"alarms": 2.5},
        {"threshold": np.nan},
        {"fdr": 0.0},
        {"fdr": 1.1},
        {"alarms": 1, "discount": True},
    ],
)
def test_what_is_no_budget_is_refused(detector: NoiseContrastiveDetector, budget: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"alarms|threshold|fdr|discount"):
        detector.predict(problem()[0], **budget)


def test_the_columns_of_probabilities_have_classes() -> None:
    X, y = problem()
    estimator = NoiseContrastiveDetector(**QUICK)
    with pytest.raises(NotFittedError):
        _ = estimator.classes_
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    probability = cross_val_predict(estimator, X, y, method="predict_proba", cv=3)
    assert probability.shape == (330, 2)
    np.testing.assert_allclose(probability.sum(1), 1)
    assert probability[y == 1, 1].min() > 0.5
    assert np.median(probability[y == 0, 1]) < 0.1
    calibrated = CalibratedClassifierCV(estimator, cv=3).fit(X, y).predict_proba(X)[:, 1]
    assert calibrated[y == 1].mean() > 5 * np.median(calibrated[y == 0])
    assert estimator.fit(X, y).classes_.tolist() == [0, 1]
