"""Labels that mark nothing in particular: they must not make a third of the rows outliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fvnce import NoiseContrastiveDetector
from fvnce.detection.trust.calibration import calibrate_with_outliers, labels_tell
from fvnce.detection.trust.evidence import REASONS

SMALL: dict[str, Any] = {"n_trees": 30, "n_networks": 3, "steps": 60}


@pytest.mark.parametrize("count", [20, 50, 100])
def test_labels_drawn_by_lot_do_not_move_the_threshold(count: int) -> None:
    rng = np.random.default_rng(count)
    X, y = rng.normal(size=(1000, 6)), np.zeros(1000, dtype=int)
    y[rng.choice(1000, count, replace=False)] = 1
    detector = NoiseContrastiveDetector(**SMALL).fit(X, y)
    evidence = detector.evidence_
    assert evidence.flagged < 0.05 * evidence.rows
    assert evidence.prior is None
    assert len(detector.doubtful_labels_) == 0
    assert evidence.threshold_reason.startswith(REASONS["uninformative"].format(otherwise=""))


def test_labels_that_tell_still_do() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(500, 4)), rng.normal(3, 1, size=(10, 4))])
    detector = NoiseContrastiveDetector(**SMALL).fit(X, np.repeat([0, 1], [500, 10]))
    assert detector.evidence_.prior == detector.prior_
    assert detector.calibration_.known


def test_by_chance_labels_tell_once_in_twenty_times() -> None:
    rng = np.random.default_rng(0)
    told = [labels_tell(rng.normal(size=300), np.ones(300), rng.normal(size=8), np.ones(8)) for _ in range(2000)]
    # A share of 0.05 has the deviation 0.005 over 2,000 draws: four of them (false alarm: 1e-4).
    assert np.mean(told) == pytest.approx(0.05, abs=0.02)


def test_only_the_proportions_of_weights_count() -> None:
    rng = np.random.default_rng(1)
    rows, known = rng.normal(size=60), rng.normal(size=6)
    for shift in np.linspace(-1, 2, 31):
        plain = labels_tell(rows, np.ones(60), known + shift, np.ones(6))
        assert labels_tell(rows, np.full(60, 0.3), known + shift, np.full(6, 7.0)) is plain


def _scores(rng: np.random.Generator, share: float, known: int, shift: float = 5.0) -> tuple[Any, Any, Any, Any]:
    hidden = rng.binomial(2000, share)
    unlabelled = np.concatenate([rng.normal(size=2000 - hidden), rng.normal(shift, 1, size=hidden)])
    return unlabelled, np.ones(2000), rng.normal(shift, 1, size=known), np.ones(known)


def test_a_few_wrong_labels_do_not_move_the_threshold() -> None:
    rng = np.random.default_rng(0)
    rows, ones, known, _ = _scores(rng, 0.02, 97, 8.0)
    right, _ = calibrate_with_outliers(rows, ones, known, np.ones(97), None)
    mixed = np.concatenate([known, rng.normal(size=6)])
    found, trusted = calibrate_with_outliers(rows, ones, mixed, np.ones(103), None)
    assert (trusted[:97] > 0.9).all()
    assert (trusted[97:] < 0.5).sum() >= 4
    outliers = rows[rows > 5]
    for calibration in (right, found):
        assert (outliers > calibration.threshold).mean() > 0.9
        assert (rows > calibration.threshold).mean() < 0.025


@pytest.mark.parametrize("shift", [3.0, 5.0])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.15])
@pytest.mark.parametrize("known", [3, 10, 100])
def test_the_interval_of_the_share_covers(known: int, share: float, shift: float) -> None:
    rng = np.random.default_rng([known, int(100 * share), int(shift)])
    sets = [calibrate_with_outliers(*_scores(rng, share, known, shift), None)[0] for _ in range(100)]
    # 90 % is promised; the deviation over 100 data sets is .03.
    assert np.mean([each.low <= share <= each.high for each in sets]) >= 0.84
    inside = [each.low <= each.prior <= each.high for each in sets]
    assert all(inside)


def test_probabilities_average_to_the_share() -> None:
    rng = np.random.default_rng(1)
    for known in (3, 30):
        scores = _scores(rng, 0.05, known, 3.0)
        found, _ = calibrate_with_outliers(*scores, None)
        assert found.probability(scores[0]).mean() == pytest.approx(found.prior, rel=1e-6)
