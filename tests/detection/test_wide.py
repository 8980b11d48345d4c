"""Wide tables: networks see components, and nothing else about the detector changes."""

import numpy as np
import pytest

from fvnce import NoiseContrastiveDetector
from fvnce.detection.ensemble import WIDE
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
def test_networks_of_wide_tables_are_linear_in_components(width):
    detector, _, _ = fitted(width)
    networks = dict(zip(detector.ensemble_.names, detector.ensemble_.members, strict=True))["network"]
    assert isinstance(networks, OnComponents) == (width >= WIDE)
    layers = networks.member.weights if width >= WIDE else networks.weights
    assert len(layers) == (1 if width >= WIDE else 3)
    assert ("isolation_forest" in detector.ensemble_.names) == (width < WIDE)


def test_hidden_layers_that_are_set_are_kept():
    detector, _, _ = fitted(WIDE, expert={"hidden": (8,)})
    networks = detector.ensemble_.members[-1]
    assert [layer.shape[-1] for layer in networks.member.weights] == [8, 1]


def test_a_wide_detector_is_saved_explained_and_finds_its_outliers(tmp_path):
    detector, X, _ = fitted(WIDE + 50)
    again = NoiseContrastiveDetector.load(detector.save(tmp_path / "wide.safetensors"))
    np.testing.assert_array_equal(again.score_samples(X), detector.score_samples(X))
    np.testing.assert_allclose(detector.explain(X[:9]).anomaly, detector.anomaly_score(X[:9]), atol=1e-9)
    new, truth = embedded(WIDE + 50)
    assert detector.score(new, truth) > 0.9


def test_labels_do_not_lower_the_auroc_of_wide_tables():
    with_labels, X, outlier = fitted(WIDE + 50)
    without = NoiseContrastiveDetector(**SMALL).fit(X)
    hidden = np.r_[np.arange(395)]
    assert with_labels.score(X[hidden], outlier[hidden]) >= without.score(X[hidden], outlier[hidden])
