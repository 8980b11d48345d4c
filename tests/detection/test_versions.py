"""Files and settings of version 0.2 work for one more version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from fvnce import NoiseContrastiveDetector, scorer
from fvnce.detection.estimator import EXPERT

FILES = Path(__file__).parent / "files"
X = np.random.default_rng(0).normal(size=(60, 2))


def test_a_detector_saved_by_version_0_2_scores_as_it_did(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    detector = NoiseContrastiveDetector.load(FILES / "detector-0.2.0.safetensors")
    assert detector.ensemble_.names == ["neighbors", "outlier_forest", "network"]
    assert (detector.steps, detector.expert) == (10, {**EXPERT, "batch_size": 16, "hidden": (4,)})
    rows = pd.DataFrame({"amount": [0.5, np.nan, 9.0], "height": [0.0, 5.0, -2.0], "town": ["Bern", "Oslo", "Rome"]})
    again = NoiseContrastiveDetector.load(detector.save(tmp_path / "detector.safetensors"))
    for name, expected in json.loads((FILES / "detector-0.2.0.json").read_text()).items():
        method = {"score": "anomaly_score", "probability": "outlier_probability", "p_value": "p_value"}[name]
        for each in (detector, again, scorer.load(FILES / "detector-0.2.0.safetensors")):
            np.testing.assert_allclose(getattr(each, method)(rows), expected, rtol=1e-9)
    assert again.get_params() == detector.get_params()


@pytest.mark.parametrize(("name", "value"), [("hidden", (4,)), ("batch_size", 9), ("device", "cpu")])
def test_old_parameters_are_expert_settings_today(name: str, value: Any) -> None:
    with pytest.warns(DeprecationWarning, match=f"{name}.*expert"):
        detector = NoiseContrastiveDetector(n_trees=3, expert={"weight_decay": 0.5}, **{name: value})
    assert detector.expert == {"weight_decay": 0.5, name: value}
    assert clone(detector).get_params() == detector.get_params()
    with pytest.warns(DeprecationWarning, match=f"{name}.*expert"):
        changed = NoiseContrastiveDetector(expert={"weight_decay": 0.5}).set_params(**{name: value}, n_trees=3)
    assert changed.get_params() == detector.get_params()


@pytest.mark.parametrize("name", ["latent_dim", "precision", "early_stopping"])
def test_parameters_without_effect_are_named(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=name):
        detector = NoiseContrastiveDetector(**{name: None})
    assert detector.get_params() == NoiseContrastiveDetector().get_params()


def test_the_old_spelling_of_a_member_is_its_alias() -> None:
    with pytest.warns(DeprecationWarning, match="neighbors"):
        detector = NoiseContrastiveDetector(members="neighbours").fit(X)
    expected = NoiseContrastiveDetector(members="neighbors").fit(X)
    np.testing.assert_array_equal(detector.anomaly_score(X), expected.anomaly_score(X))


def test_members_that_are_gone_are_named() -> None:
    with pytest.raises(ValueError, match=r"members.*autoencoder"):
        NoiseContrastiveDetector(members=("autoencoder",)).fit(X)
