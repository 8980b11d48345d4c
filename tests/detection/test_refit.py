"""A detector that is fitted anew keeps nothing of the rows before, and an error names the row that it means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from fvnce.detection import LatentDetector, NoiseContrastiveDetector

RNG = np.random.default_rng(0)
DETECTORS: list[Any] = [
    NoiseContrastiveDetector(n_trees=3, members="isolation_forest"),
    LatentDetector(latent=1, hidden=(4,), epochs=1),
]


@pytest.mark.parametrize("detector", DETECTORS, ids=["ensemble", "latent"])
def test_names_of_columns_do_not_outlive_their_table(detector: Any, tmp_path: Path) -> None:
    frame, images = pandas.DataFrame(RNG.normal(size=(40, 2)), columns=["a", "b"]), RNG.random((30, 4, 4))
    detector.fit(frame).fit(images)
    assert not hasattr(detector, "feature_names_in_")
    assert detector.explain(images[:1]).columns[0] == "pixel (0, 0)"
    loaded = type(detector).load(detector.save(tmp_path / "detector.safetensors"))
    np.testing.assert_array_equal(loaded.anomaly_score(images), detector.anomaly_score(images))


@pytest.mark.parametrize("odd", ["1x", " 1x "])
def test_a_value_of_another_kind_is_named_with_its_row(odd: str) -> None:
    frame = pandas.DataFrame({"a": RNG.normal(size=41), "b": ["1"] * 38 + [odd] + ["2"] * 2})
    with pytest.raises(ValueError, match=r"column 'b' .*numbers.* found '1x' in row 38"):
        NoiseContrastiveDetector(n_trees=3).fit(frame)
