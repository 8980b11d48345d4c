"""One contract for every member of the detector: it fits, explains its score, survives a file, keeps to its seed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from fvnce.detection.ensemble import Ensemble
from fvnce.detection.members import MODULES, NAMES, member_class
from fvnce.detection.members.base import Member, Scorer
from fvnce.detection.members.images import OnComponents, PrincipalComponents
from fvnce.detection.rows import TrainingRows
from fvnce.io import FileError
from member_settings import member_settings

IMAGE = (1, 4, 4)
#: Every member on a table, and on images: as they are, or by their principal components.
CASES = [(name, image) for name in NAMES for image in (None, IMAGE)]


def rows(image: tuple[int, int, int] | None) -> TrainingRows:
    rng = np.random.default_rng(0)
    width = 3 if image is None else 16
    outliers = rng.normal(3.0, 0.5, size=(6, width))
    return TrainingRows(rng.normal(size=(80, width)), rng.uniform(0.5, 2.0, 80), outliers, np.ones(6))


def fitted(name: str, image: tuple[int, int, int] | None, seed: int = 0) -> Scorer:
    data, kind = rows(image), member_class(name)
    if image is None or kind.sees_pixels:
        return kind.fit(data, member_settings(image=image), seed)[0]
    return OnComponents.fit(kind, PrincipalComponents.learn(data, 0), data, member_settings(), seed)[0]


def again(name: str, member: Scorer, image: tuple[int, int, int] | None, **forged: Any) -> Scorer:
    content, arrays = member.state()
    width = rows(image).X.shape[1]
    if isinstance(member, OnComponents):
        return OnComponents.from_state(member_class(name), {**content, **forged}, arrays, width)
    return member_class(name).from_state({**content, **forged}, arrays, width, image)


@pytest.mark.parametrize(("name", "image"), CASES)
def test_the_parts_of_an_anomaly_sum_to_it(name: str, image: Any) -> None:
    member = fitted(name, image)
    X = rows(image).X[:9]
    parts = member.contributions(X)
    assert parts.shape == X.shape
    # Integrated gradients are a quadrature, whose path crosses the kink where networks cut their inputs.
    exact = 1e-9 if name != "network" else 0.1
    assert member.exact is (name != "network")
    np.testing.assert_allclose(member.base + parts.sum(1), member.anomaly(X), atol=exact)
    assert np.isfinite(member.anomaly(X)).all()
    assert (member.history is not None) is (name == "network")


@pytest.mark.parametrize(("name", "image"), CASES)
def test_a_state_gives_back_every_bit_and_refuses_what_does_not_belong(name: str, image: Any) -> None:
    member = fitted(name, image)
    X = rows(image).X
    loaded = again(name, member, image)
    np.testing.assert_array_equal(loaded.anomaly(X), member.anomaly(X))
    np.testing.assert_array_equal(loaded.contributions(X), member.contributions(X))
    assert loaded.base == member.base
    with pytest.raises(FileError):
        again(name, member, image, surplus=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_the_state_of_one_kind_is_not_taken_for_another(name: str, other: str) -> None:
    # Forests differ in what they were told apart from, which a tree does not show.
    if name == other or (name.endswith("forest") and other.endswith("forest")):
        return
    content, arrays = fitted(name, None).state()
    with pytest.raises(FileError):
        member_class(other).from_state(content, arrays, 3, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_members_in_threads_have_the_bits_of_their_seed(name: str) -> None:
    X = rows(None).X
    alone = fitted(name, None).anomaly(X)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: fitted(name, None).anomaly(X), range(4)))
    for anomaly in found:
        np.testing.assert_array_equal(anomaly, alone)
    assert torch.equal(torch.get_rng_state(), state)
    assert not np.array_equal(fitted(name, None, seed=1).anomaly(X), alone)


def test_every_member_is_listed_by_its_own_name() -> None:
    def leaves(kind: type[Member]) -> set[type[Member]]:
        below = {leaf for child in kind.__subclasses__() for leaf in leaves(child)}
        return below or {kind}

    assert leaves(Member) == {member_class(name) for name in MODULES}  # type: ignore[type-abstract]
    assert all(member_class(name).name == name for name in MODULES)


def test_an_ensemble_is_the_mean_of_its_standardized_members() -> None:
    data = rows(None)
    ensemble, _ = Ensemble.fit(data, member_settings(members=("outlier_forest", "network")), 0)
    ensemble.learn_means(data, 0)
    for member, (center, scale) in zip(ensemble.members, ensemble.units, strict=True):
        standard = (member.anomaly(data.X) - center) / scale
        assert np.average(standard, weights=data.weights) == pytest.approx(0, abs=1e-9)
        assert np.average(standard**2, weights=data.weights) == pytest.approx(1)
    parts = ensemble.explain(data.X, lambda values: values)
    np.testing.assert_allclose(parts.anomaly, ensemble.anomaly(data.X), atol=1e-9)
