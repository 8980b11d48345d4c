"""A caller's modes of torch change no bit: no_grad, inference_mode and autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch

from fvnce.detection import LatentDetector, NoiseContrastiveDetector

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
QUICK: dict[str, Any] = {"n_trees": 9, "n_networks": 1, "steps": 20}
DETECTORS: dict[str, Callable[[], Any]] = {
    "ensemble": lambda: NoiseContrastiveDetector(**QUICK),
    "latent": lambda: LatentDetector(latent=1, hidden=(8,), epochs=2),
}


def problem() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(size=(80, 3)), rng.normal(4, 0.5, size=(8, 3))]), np.repeat([0, 1], [80, 8])


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("make", DETECTORS.values(), ids=DETECTORS)
def test_a_detector_has_the_same_bits_in_every_mode(make: Callable[[], Any], mode: Any) -> None:
    X, y = problem()
    expected = make().fit(X, y)
    with mode():
        detector = make().fit(X, y)
        scores, parts, p = detector.anomaly_score(X), detector.explain(X).total, detector.p_value(X)
    np.testing.assert_array_equal(scores, expected.anomaly_score(X))
    np.testing.assert_array_equal(detector.anomaly_score(X), scores)
    np.testing.assert_array_equal(parts, expected.explain(X).total)
    np.testing.assert_array_equal(p, expected.p_value(X))
    assert detector.offset_ == expected.offset_


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_images_have_the_same_bits_in_every_mode(mode: Any) -> None:
    images, y = np.random.default_rng(0).uniform(size=(40, 8, 8)), np.repeat([1, 0], [4, 36])
    expected = NoiseContrastiveDetector(**QUICK).fit(images, y)
    with mode():
        detector = NoiseContrastiveDetector(**QUICK).fit(images, y)
        scores = detector.anomaly_score(images)
    np.testing.assert_array_equal(scores, expected.anomaly_score(images))
