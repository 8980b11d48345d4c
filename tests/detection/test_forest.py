"""Forests: compiled trees find the leaves that NumPy finds, impossible trees are refused, folds stay unseen."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fvnce.detection.members import forest as module
from fvnce.detection.members.forest import RatioForest, compiled_trees, grow_forest
from fvnce.io import FileError

RNG = np.random.default_rng(0)


def forest(seed: int = 0, **settings: Any) -> RatioForest:
    rows, noise = RNG.normal(size=(300, 4)), 2 * RNG.normal(size=(300, 4))
    shape: dict[str, Any] = {"n_trees": 9, "min_samples_leaf": 2} | settings
    return grow_forest(rows, np.ones(300), noise, np.ones(300), seed=seed, **shape)


def compiled(made: RatioForest) -> Any:
    return compiled_trees(made.roots, made.right, made.feature, made.threshold)


@pytest.mark.parametrize("settings", [{}, {"min_samples_leaf": 1}, {"n_trees": 1}])
def test_compiled_trees_and_numpy_give_the_same_bits(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = forest(**settings)
    # Rows on the thresholds themselves, a float32 above and below them, and far away.
    edges = made.threshold[made.right != np.arange(len(made.right))][:200, None].repeat(4, 1)
    beside = [np.nextafter(edges, np.float32(way)) for way in (-np.inf, np.inf)]
    X = np.concatenate([RNG.normal(size=(500, 4)), edges, *beside, [[1e30] * 4, [-1e30] * 4]])
    assert made._compiled is not None  # this version of scikit-learn can be told how
    fast = made.anomaly(X)
    monkeypatch.setattr(module, "compiled_trees", lambda *_: None)
    slow = replace(made)
    assert slow._compiled is None
    np.testing.assert_array_equal(slow.anomaly(X), fast)
    np.testing.assert_allclose(made.base + made.contributions(X).sum(1), fast, atol=1e-12)


def test_a_version_of_scikit_learn_with_other_trees_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = forest()
    monkeypatch.setattr("sklearn.tree._tree.NODE_DTYPE", np.dtype([("left_child", np.int64)]))
    assert compiled(made) is None
    assert np.isfinite(made.anomaly(np.zeros((2, 4)))).all()


def test_a_file_whose_trees_lead_out_of_themselves_is_refused() -> None:
    made = forest()
    content, arrays = made.state()
    last = int(made.roots[1])
    for wrong in (last, len(made.right), -1, 0):
        right = made.right.copy()
        right[0] = wrong  # 0 is a leaf, which leaves its children without a parent
        with pytest.raises(FileError, match="a forest"):
            RatioForest.from_state(content, {**arrays, "right": right}, 4, None)
    feature = made.feature.copy()
    feature[0] = -5
    with pytest.raises(FileError, match="-5"):
        RatioForest.from_state(content, {**arrays, "feature": feature}, 4, None)


def test_a_file_whose_trees_lie_between_one_another_is_refused() -> None:
    roots, right = np.array([0, 2], dtype=np.int32), np.array([4, 1, 5, 3, 4, 5], dtype=np.int32)
    zeros = np.zeros(6, dtype=np.float32)
    made = RatioForest(roots, right, np.zeros(6, dtype=np.int32), zeros, zeros)
    content, arrays = made.state()
    with pytest.raises(FileError, match="tree"):
        RatioForest.from_state(content, arrays, 1, None)


def test_trees_of_version_0_2_are_read_as_they_are() -> None:
    made = forest()
    content, arrays = made.state()
    own = np.arange(len(made.right))
    wide = {name: x.astype(np.int64 if x.dtype.kind == "i" else np.float64) for name, x in arrays.items()}
    left = np.where(made.right == own, own, own + 1)
    X = RNG.normal(size=(50, 4))
    np.testing.assert_array_equal(
        RatioForest.from_state(content, wide | {"left": left}, 4, None).anomaly(X), made.anomaly(X)
    )
    left[0] = 0
    with pytest.raises(FileError, match="a forest"):
        RatioForest.from_state(content, wide | {"left": left}, 4, None)


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 40])
def test_few_rows_have_the_bits_of_many(rows: int) -> None:
    made = forest()
    X = RNG.normal(size=(200, 4))
    np.testing.assert_array_equal(made.anomaly(X[:rows]), made.anomaly(X)[:rows])


def test_rows_with_too_few_columns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 4 columns, found 2"):
        forest().anomaly(np.zeros((3, 2)))


def test_a_copy_of_a_forest_holds_its_arrays_alone() -> None:
    made = forest()
    before = len(pickle.dumps(made))
    made.anomaly(np.zeros((1, 4)))
    assert len(pickle.dumps(made)) == before
    again = copy.deepcopy(made)
    assert set(vars(again)) == set(made.arrays())
    np.testing.assert_array_equal(again.anomaly(np.eye(4)), made.anomaly(np.eye(4)))


@pytest.mark.parametrize("jobs", [None, 2, -1])
def test_a_forest_of_folds_is_the_same_for_any_number_of_jobs(jobs: int | None) -> None:
    folds = np.arange(300) % 3
    found = [
        grow_forest(
            np.random.default_rng(1).normal(size=(300, 4)),
            np.ones(300),
            np.random.default_rng(2).normal(size=(300, 4)),
            np.ones(300),
            n_trees=6,
            min_samples_leaf=1,
            seed=3,
            folds=(folds, folds),
            n_jobs=used,
        )
        for used in (1, jobs)
    ]
    for name, values in found[0].arrays().items():
        np.testing.assert_array_equal(values, found[1].arrays()[name])


def test_trees_by_rank_depend_on_the_order_of_values_only() -> None:
    rng = np.random.default_rng(0)
    rows, noise = (rng.integers(-9, 10, size=(n, 3)).astype(float) for n in (200, 20))
    settings: dict[str, Any] = {"n_trees": 12, "min_samples_leaf": 3, "seed": 0}
    weights = rng.integers(1, 4, 200).astype(float)
    plain, by_rank, of_cubes = (
        grow_forest(rows**power, weights, noise**power, np.ones(20), by_rank=ranked, **settings)
        for power, ranked in ((1, False), (1, True), (3, True))
    )
    both = np.concatenate([rows, noise])
    np.testing.assert_array_equal(
        by_rank.anomaly_by(both, slice(1, None, 2)), of_cubes.anomaly_by(both**3, slice(1, None, 2))
    )
    assert len(np.unique(by_rank.anomaly_by(both, slice(1, None, 2)))) > 100
    # The other trees are those of a forest without ranks.
    np.testing.assert_array_equal(
        by_rank.anomaly_by(both, slice(0, None, 2)), plain.anomaly_by(both, slice(0, None, 2))
    )


def test_a_tree_knows_nothing_of_its_fold() -> None:
    # Cells of one sample each remember what they saw: μ is 0 at a row seen, and a row of the other fold is a guess.
    rng = np.random.default_rng(0)
    rows, noise, folds = rng.normal(size=(200, 3)), rng.normal(size=(200, 3)), np.arange(200) % 2
    made = grow_forest(
        rows,
        np.ones(200),
        noise,
        np.ones(200),
        n_trees=40,
        min_samples_leaf=1,
        max_depth=None,
        seed=0,
        folds=(folds, folds),
    )
    seen, unseen = (made.anomaly_by(rows[folds == 0], slice(start, None, 2)) for start in (1, 0))
    assert (seen == 0).all()
    # Rows and noise are alike: the mean of 100 guesses whose deviation is at most ½ is ½ within 0.2 at 4 deviations.
    assert abs(unseen.mean() - 0.5) < 0.2
