"""Labels that mark nothing in particular: they must not make a third of the rows outliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fvnce import NoiseContrastiveDetector
from fvnce.detection.trust.calibration import labels_tell
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
