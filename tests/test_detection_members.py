"""One contract for every member of the detector: it fits, explains its score, survives a file, keeps to its seed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fvnce.detection.ensemble import Ensemble
from fvnce.detection.members import CLASSES, NAMES, PCAMember
from fvnce.detection.members.base import Member, Scorer
from fvnce.detection.members.pca import learn_components
from fvnce.detection.plan import Plan, TrainConfig, TrainingRows
from fvnce.training import RecordError

IMAGE = (1, 4, 4)
TRAINING = TrainConfig(10, 16, 3e-3, 0.0, 0.3, None, "cpu", None, False)
PLAN = Plan(NAMES, 5, 3, 2, (8,), 2, None, 0.8, 0.5, 1.0, TRAINING)
#: Every member on a table, and on images: as they are, or by their principal components.
CASES = [(name, image) for name in NAMES for image in (None, IMAGE)]


def rows(image: tuple[int, int, int] | None) -> TrainingRows:
    rng = np.random.default_rng(0)
    width = 3 if image is None else 16
    outliers = rng.normal(3.0, 0.5, size=(6, width))
    return TrainingRows(rng.normal(size=(80, width)), rng.uniform(0.5, 2.0, 80), outliers, np.ones(6))


def fitted(name: str, image: tuple[int, int, int] | None, seed: int = 0) -> Any:
    data, kind = rows(image), CLASSES[name]
    if image is None or kind.sees_pixels:
        return kind.fit(data, replace(PLAN, image=image), seed)
    return PCAMember.fit(kind, learn_components(data.X, data.weights, 0), data, PLAN, seed)


def again(name: str, member: Scorer, image: tuple[int, int, int] | None, **forged: Any) -> Scorer:
    content, tensors = member.state()
    width = rows(image).X.shape[1]
    if isinstance(member, PCAMember):
        return PCAMember.from_state(CLASSES[name], {**content, **forged}, tensors, width)
    return CLASSES[name].from_state({**content, **forged}, tensors, width, image)


@pytest.mark.parametrize(("name", "image"), CASES)
def test_the_parts_of_an_anomaly_sum_to_it(name: str, image: Any) -> None:
    member, histories = fitted(name, image)
    X = rows(image).X[:9]
    parts = member.contributions(X)
    assert parts.shape == X.shape
    # Integrated gradients are a quadrature, whose path crosses the kink where networks cut their inputs.
    exact = 1e-9 if name != "network" else 0.1
    np.testing.assert_allclose(member.base + parts.sum(1) + member.rest(X), member.anomaly(X), atol=exact)
    assert np.isfinite(member.anomaly(X)).all()
    # Networks are trained together.
    assert len(histories) == (0 if name.endswith(("forest", "neighbours")) else 1)


@pytest.mark.parametrize(("name", "image"), CASES)
def test_a_state_gives_back_every_bit_and_refuses_what_does_not_belong(name: str, image: Any) -> None:
    member, _ = fitted(name, image)
    X = rows(image).X
    loaded = again(name, member, image)
    np.testing.assert_array_equal(loaded.anomaly(X), member.anomaly(X))
    np.testing.assert_array_equal(loaded.contributions(X), member.contributions(X))
    np.testing.assert_array_equal(loaded.rest(X), member.rest(X))
    assert loaded.base == member.base
    with pytest.raises(RecordError):
        again(name, member, image, surplus=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_the_state_of_one_kind_is_not_taken_for_another(name: str, other: str) -> None:
    # Forests differ in what they were told apart from, which a tree does not show.
    if name == other or (name.endswith("forest") and other.endswith("forest")):
        return
    content, tensors = fitted(name, None)[0].state()
    with pytest.raises(RecordError):
        CLASSES[other].from_state(content, tensors, 3, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_members_in_threads_have_the_bits_of_their_seed(name: str) -> None:
    X = rows(None).X
    alone = fitted(name, None)[0].anomaly(X)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: fitted(name, None)[0].anomaly(X), range(4)))
    for anomaly in found:
        np.testing.assert_array_equal(anomaly, alone)
    assert torch.equal(torch.get_rng_state(), state)
    assert not np.array_equal(fitted(name, None, seed=1)[0].anomaly(X), alone)


def test_every_member_is_listed_by_its_own_name() -> None:
    def leaves(kind: type[Member]) -> set[type[Member]]:
        below = {leaf for child in kind.__subclasses__() for leaf in leaves(child)}
        return below or {kind}

    assert leaves(Member) == set(CLASSES.values())  # type: ignore[type-abstract]
    assert all(kind.name == name for name, kind in CLASSES.items())


def test_an_ensemble_is_the_mean_of_its_standardised_members() -> None:
    data = rows(None)
    ensemble, _, _ = Ensemble.fit(data, replace(PLAN, members=("outlier_forest", "autoencoder")), 0)
    for member, centre, scale in zip(ensemble.members, ensemble.centres, ensemble.scales, strict=True):
        standard = (member.anomaly(data.X) - centre) / scale
        assert np.average(standard, weights=data.weights) == pytest.approx(0, abs=1e-9)
        assert np.average(standard**2, weights=data.weights) == pytest.approx(1)
    parts = ensemble.explain(data.X, lambda values: values)
    np.testing.assert_allclose(parts.anomaly, ensemble.anomaly(data.X), atol=1e-9)
