"""Ratios by nearest neighbors: their formulas a second time, weights as repeated rows, trimming, images and warps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from fvnce.detection.members.images import Warps, straightened
from fvnce.detection.members.neighbors import IMAGE_LOCAL, LOCAL, SMOOTHING, NeighborMember, Reference
from fvnce.detection.rows import TrainingRows
from fvnce.io import FileError
from member_settings import member_settings


def rows_of(X: Any, weights: Any = None) -> TrainingRows:
    X = np.asarray(X, dtype=np.float64)
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    return TrainingRows(X, weights, X[:0], weights[:0])


def member(X: Any, weights: Any = None, **changes: Any) -> NeighborMember:
    settings = member_settings(**{"n_neighbors": 5, "clean": True, **changes})
    return NeighborMember.fit(rows_of(X, weights), settings, 0)[0]


def test_the_ratio_is_that_of_distances_to_neighbors() -> None:
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(60, 3)), 2 * rng.normal(size=(20, 3))
    among = np.sort(cdist(X, X) + np.diag(np.full(60, np.inf)), axis=1)[:, :5].mean(1)
    epsilon = SMOOTHING * among.mean()
    away = cdist(new, X)
    nearest = np.argsort(away, axis=1)[:, :5]
    distance = np.take_along_axis(away, nearest, 1).mean(1)
    typical = among.mean() + epsilon
    local = np.log((distance + epsilon) / typical) - LOCAL * np.log((among[nearest].mean(1) + epsilon) / typical)
    # Reference rows are moved by a millionth, against ties.
    np.testing.assert_allclose(member(X).anomaly(new), local, atol=1e-4)


def test_a_training_row_is_no_neighbor_of_itself() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(50, 2))
    found = Reference.learn(X, np.ones(50), 4, clean=True, max_rows=100, smoothing=0.3, seed=0)
    left_out = np.sort(cdist(X, X) + np.diag(np.full(50, np.inf)), axis=1)[:, :4].mean(1)
    np.testing.assert_allclose(found.distance(X) - found.smoothing, left_out, atol=1e-4)
    np.testing.assert_allclose(found.distances, found.distance(X), atol=1e-4)


def test_a_row_that_occurs_often_is_its_own_neighbor_as_often() -> None:
    X = np.array([[0.0], [1.0], [3.0], [10.0]])
    # Of four rows that stand for these, three are at 0 and one is at 1.
    found = Reference.learn(X, np.array([6.0, 2.0, 0.01, 0.01]), 2, clean=True, max_rows=100, smoothing=0.3, seed=0)
    np.testing.assert_allclose(found.weights, [3, 1])
    # From 0 to the two others there; from 1 to two of those at 0; from 3 to the one at 1 and to one at 0.
    np.testing.assert_allclose(found.distance(X[:3]) - found.smoothing, [0, 1, 2.5], atol=1e-4)


def test_rows_of_hardly_any_weight_are_no_reference_for_each_other() -> None:
    rng = np.random.default_rng(8)
    X = np.concatenate([rng.normal(-3, 0.5, (150, 2)), rng.normal(3, 0.5, (150, 2))])
    found = member(X, np.repeat([1.0, 0.002], 150), clean=False)
    assert roc_auc_score(np.repeat([0, 1], 150), found.anomaly(X)) > 0.999


def test_only_ratios_of_weights_count() -> None:
    rng = np.random.default_rng(2)
    X, weights = rng.normal(size=(40, 2)), rng.uniform(0.5, 3, 40)
    np.testing.assert_allclose(member(X, weights).anomaly(X), member(X, 7 * weights).anomaly(X), atol=1e-9)


@pytest.mark.parametrize("clean", [True, False])
def test_outliers_that_lie_together_hide_each_other_unless_the_strangest_rows_are_left_out(clean: bool) -> None:
    rng = np.random.default_rng(3)
    good, together = rng.normal(size=(300, 4)), rng.normal(6.0, 0.05, size=(30, 4))
    found = member(np.concatenate([good, together]), clean=clean)
    auroc = roc_auc_score(np.repeat([0, 1], [300, 30]), found.anomaly(np.concatenate([good, together])))
    assert (auroc < 0.5) if clean else (auroc > 0.999)


def test_scores_do_not_depend_on_the_rows_beside_nor_on_ties() -> None:
    rng = np.random.default_rng(4)
    X = np.unique(rng.integers(0, 4, size=(600, 4)), axis=0).astype(float)  # a grid: hardly any distance occurs once
    found = member(X)
    new = rng.integers(-1, 5, size=(700, 4)).astype(float)
    whole = found.anomaly(new)
    for part in (slice(0, 1), slice(3, 10), slice(600, 700)):
        np.testing.assert_array_equal(found.anomaly(new[part]), whole[part])


def test_one_row_and_constant_rows_have_finite_scores() -> None:
    for X in (np.zeros((1, 2)), np.zeros((2, 2)), np.ones((30, 1))):
        for clean in (True, False):
            found = member(X, clean=clean)
            assert np.isfinite(found.anomaly(np.array([[0.0] * X.shape[1], [1e3] * X.shape[1]]))).all()
            assert np.isfinite(found.contributions(X)).all()


def test_the_column_that_is_away_is_the_reason() -> None:
    X = np.random.default_rng(5).normal(size=(200, 6))
    strange = X[:5].copy()
    strange[:, 2] += 8
    parts = member(X).contributions(strange)
    assert (parts.argmax(1) == 2).all()
    assert (parts[:, 2] > 0.8 * parts.sum(1)).all()


def reference_of(X: Any, weights: Any = None) -> Reference:
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    return Reference.learn(np.asarray(X), weights, 5, clean=True, max_rows=10_000, smoothing=0.01, seed=0)


def test_neighbors_explain_the_share_of_the_variance_of_distances_that_goes_with_their_own() -> None:
    rng = np.random.default_rng(9)
    X = np.concatenate([rng.normal(size=(80, 3)), rng.normal(5, 0.3, size=(40, 3))])
    away = cdist(X, X) + np.diag(np.full(120, np.inf))
    nearest = np.argsort(away, axis=1)[:, :5]
    distance = np.take_along_axis(away, nearest, 1).mean(1)
    distance += 0.01 * distance.mean()
    r = np.corrcoef(np.log(distance), np.log(distance[nearest].mean(1)))[0, 1]
    assert reference_of(X).explained() == pytest.approx(r**2, abs=1e-4)


def test_neighbors_explain_much_where_regions_differ_in_density_and_nothing_where_all_is_alike() -> None:
    rng = np.random.default_rng(10)
    even = rng.uniform(size=(600, 2))
    apart = np.concatenate([even[:300], 1 + 0.02 * even[300:]])
    assert reference_of(apart).explained() > 0.9
    assert reference_of(even).explained() < 0.6
    for alike in (np.zeros((1, 2)), np.zeros((30, 2)), np.array([[0.0, 0.0], [1.0, 1.0]])):
        assert 0 <= reference_of(alike).explained() <= 1


def test_what_neighbors_explain_takes_a_weight_for_repeated_rows() -> None:
    rng = np.random.default_rng(11)
    X, often, distances = rng.normal(size=(50, 2)), rng.integers(1, 4, 50), rng.uniform(1, 2, 50)
    weighted = Reference(X, often.astype(float), distances, 5, 0.1)
    repeated = Reference(np.repeat(X, often, 0), np.ones(often.sum()), np.repeat(distances, often), 5, 0.1)
    assert weighted.explained() == pytest.approx(repeated.explained(), abs=1e-9)


def digits(normal: int) -> tuple[Any, Any, Any]:
    """Training images of one digit, flattened; test images of all; 1 for the others."""
    content = load_digits()
    X, digit = content.images.reshape(-1, 64) / 16.0, content.target
    good = np.flatnonzero(digit == normal)
    train = good[: len(good) // 2]
    test = np.setdiff1d(np.arange(len(X)), train)
    return X[train], X[test], (digit[test] != normal).astype(int)


@pytest.mark.parametrize("normal", [0, 1, 8])
def test_other_digits_are_found_without_labels(normal: int) -> None:
    train, test, truth = digits(normal)
    found = member(train, image=(1, 8, 8))
    # Deterministic: .999, .985 and .984 when written; 64 pixels, 90 training images.
    assert roc_auc_score(truth, found.anomaly(test)) > 0.97


def test_the_local_noise_of_images_has_the_exponent_that_the_training_images_vouch_for() -> None:
    one, _, _ = digits(0)
    several = np.concatenate([digits(normal)[0] for normal in (0, 1, 4)])
    members = [member(train, image=(1, 8, 8)) for train in (one, several)]
    for found in members:
        assert found.local == IMAGE_LOCAL * found.reference.explained() ** 2
    # Digits differ in density: among several of them the neighbors tell more.
    assert 0 < members[0].local < members[1].local < IMAGE_LOCAL


def test_warps_are_a_conditional_noise_that_cancels_how_much_there_is_to_see() -> None:
    rng = np.random.default_rng(6)
    train, _, _ = digits(0)
    found = member(train, image=(1, 8, 8))
    assert found.code is not None
    assert found.warps is not None
    z = found.code.encode(train)
    both = [found.warps.log_distance(light * train, found.code.encode(light * train), found.code, 1e-12)
            for light in (1.0, 0.5)]  # fmt: skip
    # A warp is linear in the brightness, and straightening does not see it: half the light, half the distance.
    np.testing.assert_allclose(both[0] - both[1], np.log(2), atol=1e-3)
    noise = rng.permutation(train, axis=1)
    of_noise = found.warps.log_distance(noise, found.code.encode(noise), found.code, 1e-12)
    assert np.isfinite(of_noise).all()
    assert z.shape == (len(train), min(64, len(train)))


def test_slant_and_shift_are_taken_out() -> None:
    plain = np.zeros((1, 16, 16))
    plain[0, 3:13, 7:9] = 1.0
    slanted = np.stack([np.roll(row, 2 - round(0.4 * place)) for place, row in enumerate(plain[0])])[None]
    shapes = [straightened(image.reshape(1, -1), (1, 16, 16)) for image in (plain, slanted)]
    before = np.abs(plain - slanted).sum()
    assert np.abs(shapes[0] - shapes[1]).sum() < 0.4 * before


def test_a_heat_map_lies_where_the_image_is_strange() -> None:
    train, _, _ = digits(0)
    found = member(train, image=(1, 8, 8))
    strange = train[:5].reshape(5, 8, 8).copy()
    strange[:, 3:5, 3:5] = 1.0  # a zero that is filled
    parts = found.contributions(strange.reshape(5, -1)).reshape(5, 8, 8)
    np.testing.assert_allclose(parts.sum((1, 2)), found.anomaly(strange.reshape(5, -1)), atol=1e-9)
    assert (parts[:, 2:6, 2:6].sum((1, 2)) > 0.5 * parts.sum((1, 2))).all()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reference.points", np.zeros((3, 2))),
        ("reference.points", np.full((40, 2), np.nan)),
        ("reference.weights", np.zeros(40)),
        ("reference.distances", -np.ones(40)),
        ("surplus.points", np.zeros(1)),
    ],
)
def test_forged_reference_rows_are_refused(key: str, value: Any) -> None:
    content, arrays = member(np.random.default_rng(0).normal(size=(40, 2))).state()
    with pytest.raises(FileError):
        NeighborMember.from_state(content, {**arrays, key: value}, 2, None)


@pytest.mark.parametrize("change", [{"neighbours": 0}, {"smoothing": 0.0}, {"local": 2.0}, {"warped": "b"}])
def test_forged_numbers_of_neighbors_are_refused(change: Any) -> None:
    content, arrays = member(np.random.default_rng(0).normal(size=(40, 2))).state()
    with pytest.raises(FileError):
        NeighborMember.from_state({**content, **change}, arrays, 2, None)


def test_forged_warps_and_codes_are_refused() -> None:
    train, _, _ = digits(0)
    content, arrays = member(train, image=(1, 8, 8)).state()
    image = (1, 8, 8)
    for key, value in (
        ("warps.grids", Warps.draw((1, 4, 4), 0).grids),
        ("warps.grids", np.full((2, 8, 8, 2), 1e30, dtype=np.float32)),
        ("code.directions", np.zeros((0, 64))),
        ("code.mean", np.zeros(3)),
    ):
        with pytest.raises(FileError):
            NeighborMember.from_state(content, {**arrays, key: value}, 64, image)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-20, 1e30])
@pytest.mark.parametrize("kind", ["normal", "grid", "far from zero", "one-hot"])
def test_neighbors_are_those_of_an_exact_search(kind: str, scale: float) -> None:
    rng = np.random.default_rng(12)
    rows = {
        "normal": rng.normal(size=(1300, 6)),
        "grid": rng.integers(0, 3, size=(1300, 6)) + 0.0,
        "far from zero": 1e6 + rng.normal(size=(1300, 6)),
        "one-hot": np.eye(40)[rng.integers(0, 40, 1300)],
    }[kind]
    points, new = scale * rows[:700], scale * rows[700:]
    reference = Reference(points, np.ones(700), np.ones(700), 5, 0.0)
    exact = np.sqrt(((new[:, None] - points) ** 2).sum(2))
    exact.sort(axis=1)
    itself = exact[:, 0] <= 1e-5 * np.sqrt(new.shape[1])
    expected = np.where(itself, exact[:, 1:6].mean(1), exact[:, :5].mean(1))
    np.testing.assert_allclose(reference.distance(new), expected, rtol=1e-12)
    np.testing.assert_array_equal(reference.distance(new[37:38]), reference.distance(new)[37:38])
