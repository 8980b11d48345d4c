"""Numbers at the ends of what a float can hold, missing values in every guise, and more rows than fit in memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from fvnce.detection import NoiseContrastiveDetector
from fvnce.detection.preprocessing import TablePreprocessor
from fvnce.detection.rows import check_labels, merge

QUICK: dict[str, Any] = {
    "n_trees": 10,
    "n_networks": 1,
    "steps": 10,
    "calibration_folds": 2,
    "expert": {"batch_size": 32},
}
HUGE = np.finfo(float).max
TINY = 5e-324
Array = NDArray[np.float64]


def normal(rows: int = 60, columns: int = 2) -> Array:
    return np.random.default_rng(0).normal(size=(rows, columns))


def test_a_value_that_is_repeated_counts_as_often_as_it_occurs() -> None:
    # 950 equal rows are one row of weight 950: a forest that draws rows evenly takes the 50 others for the usual ones.
    X = np.r_[np.zeros((950, 2)), np.random.default_rng(0).normal(4, 0.3, size=(50, 2))]
    detector = NoiseContrastiveDetector(n_trees=50).fit(X)
    assert detector.score(X, np.repeat([0, 1], [950, 50])) == 1.0


def test_the_largest_float_is_a_number_and_a_missing_value_is_none() -> None:
    X = np.array([[HUGE], [np.nan], [-HUGE], [1.0], [np.nan], [-0.0], [0.0]])
    rows, known, weights, place = merge(X, np.zeros(7, dtype=bool), np.ones(7))
    np.testing.assert_array_equal(rows[:, 0], [-HUGE, 0.0, 1.0, HUGE, np.nan])
    np.testing.assert_array_equal(weights, [1, 2, 1, 1, 2])
    np.testing.assert_array_equal(rows[place], X)
    assert not known.any()


@pytest.mark.parametrize("value", [HUGE, -HUGE, 1e200])
def test_one_huge_value_is_strange_and_leaves_its_column_as_it_was(value: float) -> None:
    X = normal(200)
    (plain, _), (column, _) = (
        TablePreprocessor.learn(table, np.ones(200), None).columns for table in (X, np.r_[X[:-1], [[value, 0]]])
    )
    assert column.scale == pytest.approx(plain.scale, rel=0.05)
    X[7, 0] = value
    anomaly = NoiseContrastiveDetector(n_trees=100).fit(X).anomaly_score(X)
    assert np.isfinite(anomaly).all()
    assert anomaly.argmax() == 7


@pytest.mark.parametrize(
    "table",
    [
        TINY * np.arange(40.0)[:, None],
        np.repeat([0.0, TINY], [39, 1])[:, None],
        np.repeat([-HUGE, HUGE], 20)[:, None],
        np.linspace(-1, 1, 40)[:, None] * 1e-310,
        np.c_[np.full(40, HUGE), np.full(40, -HUGE), np.arange(40) * 1e305],
    ],
    ids=["denormal", "one denormal", "both ends", "small range", "constant and huge"],
)
@pytest.mark.parametrize("labelled", [False, True])
def test_columns_at_the_ends_of_the_exponent_give_finite_scores(table: Array, labelled: bool) -> None:
    y = np.zeros(40, dtype=int)
    y[-3:] = labelled
    detector = NoiseContrastiveDetector(**QUICK).fit(table, y)
    strange = np.full((2, table.shape[1]), [[HUGE], [-HUGE]])
    for X in (table, strange):
        assert np.isfinite(detector.decision_function(X)).all()
        assert np.isfinite(detector.explain(X).total).all()


def test_a_denormal_column_is_scaled_like_any_other() -> None:
    whole = np.arange(100.0)[:, None]
    found, expected = (TablePreprocessor.learn(X, np.ones(100), None).encode(X) for X in (whole * 1e-320, whole))
    np.testing.assert_allclose(found, expected, atol=0.02)  # a denormal has few digits


@pytest.mark.parametrize("low", [-HUGE, 0.0, TINY])
def test_images_at_the_ends_of_the_exponent_give_finite_scores(low: float) -> None:
    images = np.where(np.random.default_rng(0).random((12, 4, 4)) < 0.5, low, 2 * TINY if low == TINY else HUGE)
    detector = NoiseContrastiveDetector(**QUICK).fit(images)
    for X in (images, np.full((1, 4, 4), -HUGE), np.full((1, 4, 4), HUGE)):
        assert np.isfinite(detector.score_samples(X)).all()


@pytest.mark.parametrize("unit", [2.0**1023, 2.0**1020, 2.0**-1060, TINY])
@pytest.mark.parametrize("labelled", [False, True])
def test_only_ratios_of_weights_count(unit: float, labelled: bool) -> None:
    X, weights = normal(), np.repeat([1.0, 0.5, 1.0], 20) if unit > 1 else np.repeat([1.0, 2.0, 1.0], 20)
    y = (np.arange(60) < 5).astype(int) * labelled
    found, expected = (
        NoiseContrastiveDetector(**QUICK, contamination=0.1).fit(X, y, sample_weight=w)
        for w in (weights * unit, weights)
    )
    np.testing.assert_array_equal(found.decision_function(X), expected.decision_function(X))
    assert np.isfinite(expected.decision_function(X)).all()


def test_an_image_of_weight_zero_is_as_good_as_none() -> None:
    images = np.random.default_rng(0).random((40, 4, 4))
    found = NoiseContrastiveDetector(**QUICK).fit(
        np.concatenate([images, 9 * np.ones((1, 4, 4))]), sample_weight=np.repeat([1.0, 0.0], [40, 1])
    )
    expected = NoiseContrastiveDetector(**QUICK).fit(images)
    np.testing.assert_array_equal(found.score_samples(images), expected.score_samples(images))


def test_nullable_columns_of_data_frames() -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    n = 80
    plain = pd.DataFrame({"a": rng.normal(size=n), "b": rng.integers(0, 9, n).astype(float), "c": rng.random(n) < 0.5})
    plain.loc[::7, "a"] = np.nan
    plain.loc[::5, "b"] = np.nan
    nullable = pd.DataFrame(
        {
            "a": plain["a"].astype("Float64"),
            "b": plain["b"].astype("Int64"),
            "c": plain["c"].astype("boolean"),
        }
    )
    found, expected = (NoiseContrastiveDetector(**QUICK).fit(X).score_samples(X) for X in (nullable, plain))
    np.testing.assert_array_equal(found, expected)
    text = pd.DataFrame(
        {"t": pd.array(["x", "y", None, "x"] * 20, dtype="string"), "d": pd.to_datetime(["2020", None] * 40)}
    )
    text["flag"] = pd.array([True, False, None, True] * 20, dtype="boolean")
    detector = NoiseContrastiveDetector(**QUICK).fit(text)
    assert np.isfinite(detector.score_samples(text)).all()


def test_labels_of_data_frames_may_be_missing() -> None:
    pd = pytest.importorskip("pandas")
    for labels in (
        pd.Series([0, 1, 0], dtype="Int64"),
        pd.Series([False, True, False], dtype="boolean"),
        np.array([0, 1.0, np.False_], dtype=object),
    ):
        np.testing.assert_array_equal(check_labels(labels, 3), [False, True, False])
    for missing in (pd.Series([0, 1, None], dtype="Int64"), [0, 1, None], np.array([0, 1, np.nan], dtype=object)):
        np.testing.assert_array_equal(check_labels(missing, 3), [False, True, False])  # not labelled


def test_masked_values_are_refused() -> None:
    X = np.ma.masked_greater(normal(), 1.0)
    with pytest.raises(ValueError, match="must not be masked"):
        NoiseContrastiveDetector(**QUICK).fit(X)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(200_000, 512), (6400, 1, 125, 128)])
def test_a_memory_map_is_read_in_parts(shape: tuple[int, ...], tmp_path: Path) -> None:
    # 102 MB on disk, which would be 819 MB as floats: neither a fit on 200 rows nor scoring takes a quarter of that.
    mapped = np.memmap(tmp_path / "rows.bin", dtype=np.uint8, mode="w+", shape=shape)
    mapped[::97] = np.random.default_rng(0).integers(0, 255, shape[-1])
    members = ("broad_forest",)
    detector = NoiseContrastiveDetector(members=members, n_trees=2, max_rows=200)
    tracemalloc.start()
    try:
        detector.fit(mapped)
        assert np.isfinite(detector.score_samples(mapped[: len(mapped) // 4])).all()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200e6


def test_a_bad_value_late_in_a_large_matrix_is_found() -> None:
    X = np.zeros((5000, 2), dtype=np.float32)
    X[:, 1] = np.arange(5000)
    detector = NoiseContrastiveDetector(members=("broad_forest",), n_trees=2, max_rows=100).fit(X)
    X[4999, 0] = np.inf
    for method in (detector.score_samples, detector.fit):
        with pytest.raises(ValueError, match="X contains infinity"):
            method(X)
    with pytest.raises(NotFittedError):  # a fit that failed leaves nothing behind
        detector.score_samples(X[:-1])
