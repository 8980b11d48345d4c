"""Wide tables: networks see components, and nothing else about the detector changes."""

import numpy as np
import pytest

from fvnce import NoiseContrastiveDetector
from fvnce.detection.ensemble import WIDE_COMPONENTS
from fvnce.detection.members.base import WIDE
from fvnce.detection.members.images import OnComponents

SMALL = {"n_trees": 12, "n_networks": 1, "steps": 60}


def embedded(width, seed=0):
    """Return rows near a plane of ten dimensions, the last 30 of them outliers of one kind."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(400, 10)) @ rng.normal(size=(10, width)) + 0.3 * rng.normal(size=(400, width))
    X[-30:] += rng.normal(size=width)
    return X, np.arange(400) >= 370


def fitted(width, **settings):
    X, outlier = embedded(width)
    y = np.zeros(400)
    y[-5:] = 1
    return NoiseContrastiveDetector(**SMALL, **settings).fit(X, y), X, outlier


@pytest.mark.parametrize("width", [WIDE - 1, WIDE])
def test_networks_of_wide_tables_see_components(width):
    detector, _, _ = fitted(width)
    networks = dict(zip(detector.ensemble_.names, detector.ensemble_.members, strict=True))["network"]
    assert isinstance(networks, OnComponents) == (width >= WIDE)
    layers = networks.member.weights if width >= WIDE else networks.weights
    # The components, and what none of them holds.
    assert layers[0].shape[1] == (WIDE_COMPONENTS + 1 if width >= WIDE else width)
    assert ("isolation_forest" in detector.ensemble_.names) == (width < WIDE)


def test_a_wide_detector_is_saved_explained_and_finds_its_outliers(tmp_path):
    detector, X, _ = fitted(WIDE + 50)
    again = NoiseContrastiveDetector.load(detector.save(tmp_path / "wide.safetensors"))
    np.testing.assert_array_equal(again.score_samples(X), detector.score_samples(X))
    np.testing.assert_allclose(detector.explain(X[:9]).anomaly, detector.anomaly_score(X[:9]), atol=1e-9)
    new, truth = embedded(WIDE + 50)
    assert detector.score(new, truth) > 0.9


@pytest.mark.parametrize("kind", ["shift", "noise", "scale"])
def test_labels_do_not_lower_the_auroc_of_wide_tables(kind):
    rng = np.random.default_rng(5)
    width, plane, away = WIDE + 10, rng.normal(size=(12, WIDE + 10)), 0.8 * rng.normal(size=WIDE + 10)

    def rows(n, outliers):
        X = rng.normal(size=(n, 12)) @ plane + 0.5 * rng.normal(size=(n, width))
        changed = {"shift": away, "noise": 1.5 * rng.normal(size=(outliers, width)), "scale": 0.6 * X[:outliers]}
        X[:outliers] += changed[kind]
        return X

    X, new = rows(600, 30), rows(1000, 100)
    with_labels, without = NoiseContrastiveDetector(calibration_folds=0), NoiseContrastiveDetector(calibration_folds=0)
    truth = np.arange(1000) < 100
    assert with_labels.fit(X, np.arange(600) < 8).score(new, truth) >= without.fit(X).score(new, truth)
