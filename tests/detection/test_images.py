"""Principal components of images: what they are by definition."""

import math

import numpy as np
import pytest

from fvnce.detection.members.forest import MixtureForest, grow_forest
from fvnce.detection.members.images import COMPONENTS, OnComponents, PrincipalComponents
from fvnce.detection.rows import TrainingRows


def learn_components(X, weights, seed):
    return PrincipalComponents.learn(TrainingRows(X, weights, X[:0], weights[:0]), seed)


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 5)) @ rng.normal(size=(5, 64)) + 0.01 * rng.normal(size=(300, 64))


def test_codes_are_standardized_over_the_weighted_training_images(images):
    weights = np.random.default_rng(1).uniform(0.5, 2.0, size=300)
    codes = learn_components(images, weights, 0)
    z = codes.transform(images)
    assert z.shape == (300, COMPONENTS + 1)
    share = weights / weights.sum()
    np.testing.assert_allclose(share @ z, 0, atol=1e-9)
    np.testing.assert_allclose(share @ z**2, 1, atol=1e-9)
    np.testing.assert_allclose(codes.directions @ codes.directions.T, np.eye(COMPONENTS), atol=1e-9)


def test_a_weight_of_two_is_two_images(images):
    doubled = learn_components(np.concatenate([images, images[:50]]), np.ones(350), 0)
    weighted = learn_components(images, np.repeat([2.0, 1.0], [50, 250]), 0)
    a, b = doubled.transform(images), weighted.transform(images)
    np.testing.assert_allclose(np.abs(a[:, :5]), np.abs(b[:, :5]), rtol=1e-5, atol=1e-7)  # a direction has no sign


def test_what_no_direction_holds_is_in_the_last_code(images):
    codes = learn_components(images, np.ones(300), 0)
    outside = np.linalg.svd(codes.directions)[2][-1]  # orthogonal to every direction
    z = codes.transform(np.stack([codes.mean + 100 * outside, codes.mean]))
    left = z[:, -1] * codes.scale[-1] + codes.center[-1]
    np.testing.assert_allclose(left, [math.log(1e4 + codes.floor), math.log(codes.floor)], rtol=1e-9)
    np.testing.assert_allclose(z[0, :-1], z[1, :-1], atol=1e-9)


def test_contributions_of_codes_reach_the_pixels_whole(images):
    codes = learn_components(images, np.ones(300), 0)
    parts = np.random.default_rng(2).normal(size=(4, COMPONENTS + 1))
    at = np.concatenate([images[:3], codes.mean[None]])  # at the mean no pixel is to blame more than another
    np.testing.assert_allclose(codes.at_pixels(parts, at).sum(1), parts.sum(1), rtol=1e-9, atol=1e-9)


def test_a_member_on_codes_explains_all_of_its_anomaly(images):
    codes = learn_components(images, np.ones(300), 0)
    z = codes.transform(images)
    forest = grow_forest(z, np.ones(300), -z, np.ones(300), n_trees=5, min_samples_leaf=5, seed=0)
    member = OnComponents(codes, MixtureForest(**vars(forest)))
    parts = member.contributions(images[:7])
    np.testing.assert_allclose(parts.sum(1) + member.base, member.anomaly(images[:7]), rtol=1e-9)


def test_codes_survive_a_file(images):
    codes = learn_components(images, np.ones(300), 0)
    np.testing.assert_array_equal(
        PrincipalComponents.from_state(codes.arrays(), 64).transform(images), codes.transform(images)
    )
