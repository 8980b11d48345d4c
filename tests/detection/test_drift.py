"""Batches that are far from training are named with their numbers; ordinary ones, small ones among them, are not."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fvnce._validation import FileError
from fvnce.detection import LatentDetector, NoiseContrastiveDetector
from fvnce.detection.trust.drift import UnlikeTrainingWarning

Array = NDArray[np.float64]
QUICK: dict[str, Any] = {"n_trees": 9, "n_networks": 1, "steps": 20}
DETECTORS: dict[str, Any] = {
    "ensemble": lambda: NoiseContrastiveDetector(**QUICK),
    "latent": lambda: LatentDetector(latent=1, hidden=(8,), epochs=2),
}


def rows(n: int, seed: int = 0, width: int = 4) -> Array:
    return np.random.default_rng(seed).normal(size=(n, width))


@pytest.fixture(scope="module", params=DETECTORS, name="detector")
def fitted(request: pytest.FixtureRequest) -> Any:
    return DETECTORS[request.param]().fit(rows(300))


@pytest.mark.parametrize("method", ["predict", "decision_function"])
def test_a_batch_of_which_most_is_flagged_is_named_once(detector: Any, method: str) -> None:
    with pytest.warns(UnlikeTrainingWarning, match=r"500 of 500 rows \(100 %\) are above the threshold") as told:
        getattr(detector, method)(rows(500, 1) + 30)
    assert len(told) == 1
    assert told[0].filename == __file__


def test_the_probability_warns_too() -> None:
    with pytest.warns(UnlikeTrainingWarning, match="above the threshold"):
        DETECTORS["ensemble"]().fit(rows(300)).outlier_probability(rows(50, 1) + 30)


def test_a_batch_that_lacks_values_is_named(detector: Any) -> None:
    new = rows(400, 1)
    new[:300, 0] = np.nan
    with pytest.warns(UnlikeTrainingWarning, match=r"300 of 400 rows \(75 %\) miss more values than usual"):
        detector.predict(new)


def test_a_batch_of_other_scores_is_named(detector: Any) -> None:
    with pytest.warns(UnlikeTrainingWarning, match=r"of 400 rows score at most"):
        detector.predict(0.1 * rows(400, 1))


def test_few_rows_are_not_compared(detector: Any) -> None:
    assert (detector.predict(rows(19, 1) + 30) == -1).all()  # warnings are errors in tests


def test_training_rows_are_like_themselves_with_many_known_outliers() -> None:
    X, y = np.concatenate([rows(100), rows(90, 1) + 5]), np.repeat([0, 1], [100, 90])
    detector = NoiseContrastiveDetector(**QUICK).fit(X, y)
    assert (detector.predict(X)[100:] == -1).mean() > 0.9
    detector.predict(X[:100])


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [0.0, 0.2])
@pytest.mark.parametrize("known", [0, 5])
def test_ordinary_batches_are_not_named(gaps: float, known: int) -> None:
    # Built for at most 3 alarms in 10,000 batches: here are 12 tables of 5 sizes, with and without outliers.
    for seed in range(12):
        table = np.concatenate([rows(1900, seed, 6), 3 * rows(100, 50 + seed, 6)])
        rng = np.random.default_rng(seed)
        table[rng.uniform(size=table.shape) < gaps] = np.nan
        table = table[rng.permutation(len(table))]
        y = np.repeat([1, 0], [known, 200 - known])
        table[:known, :2] = 4
        detector = NoiseContrastiveDetector(**QUICK).fit(table[:200], y if known else None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for size in (1, 5, 20, 50, 1500):
                detector.predict(table[200 : 200 + size])
            detector.predict(table[:200])


def test_what_batches_are_compared_with_is_saved(detector: Any, tmp_path: Path) -> None:
    loaded = type(detector).load(detector.save(tmp_path / "detector.safetensors"))
    with pytest.warns(UnlikeTrainingWarning, match="50 of 50"):
        loaded.predict(rows(50, 1) + 30)


def test_a_detector_of_version_0_2_compares_nothing() -> None:
    pd = pytest.importorskip("pandas")
    detector = NoiseContrastiveDetector.load(Path(__file__).parent / "files" / "detector-0.2.0.safetensors")
    detector.predict(pd.DataFrame({"amount": [9e9] * 50, "height": [9e9] * 50, "town": ["Rome"] * 50}))


@pytest.mark.parametrize(
    "forge",
    [
        {"rows": -1.0},
        {"flagged": 2.0},
        {"scores": np.array([1.0, 0.0])},
        {"below": np.array([2.0])},
        {"scores": np.empty(0), "below": np.empty(0)},
    ],
)
def test_a_forged_baseline_is_refused(forge: dict[str, Any], tmp_path: Path) -> None:
    detector = NoiseContrastiveDetector(**QUICK).fit(rows(60))
    findings = detector.findings_
    assert findings.baseline is not None
    detector.findings_ = replace(findings, baseline=replace(findings.baseline, **forge))
    with pytest.raises(FileError):
        NoiseContrastiveDetector.load(detector.save(tmp_path / "forged.safetensors"))
