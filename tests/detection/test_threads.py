"""A fit depends on its data, its settings and its seed: not on other threads, and not on any global generator."""

from __future__ import annotations

import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fvnce import NCE, EnergyModel, fit
from fvnce.detection import MEMBERS, NoiseContrastiveDetector
from fvnce.training import FitOptions

QUICK: dict[str, Any] = {
    "n_trees": 8,
    "n_networks": 1,
    "steps": 10,
    "calibration_folds": 2,
    "expert": {"batch_size": 32},
}
#: Everything that draws: each member, and images.
CASES: dict[str, dict[str, Any]] = {
    **{name: {"members": (name,)} for name in MEMBERS},
    "images": {"members": ("mixture_forest", "network", "neighbors")},
}


def rows(case: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8, 8)) if case == "images" else rng.normal(size=(120, 3))
    X[:6] += 4
    return X, (np.arange(len(X)) < 6).astype(np.int64)


def result(case: str) -> NDArray[np.float64]:
    X, y = rows(case)
    detector = NoiseContrastiveDetector(**QUICK, **CASES[case]).fit(X, y)
    return np.concatenate([detector.score_samples(X), detector.explain(X[:3]).total.ravel(), [detector.offset_]])


def global_states() -> tuple[Any, ...]:
    _, keys, *rest = np.random.get_state()  # noqa: NPY002 (the global generator is the one in question)
    return torch.get_rng_state().tolist(), keys.tolist(), rest, random.getstate()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_global_generator_is_read_seeded_or_left_changed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = result(case)
    torch.manual_seed(5)
    before = global_states()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a global generator was asked for or seeded")

    with monkeypatch.context() as patched:
        for owner, names in (
            (torch, ("manual_seed", "get_rng_state", "set_rng_state")),
            (torch.random, ("fork_rng", "manual_seed", "get_rng_state", "set_rng_state")),
            (np.random, ("seed", "get_state", "set_state", "rand", "randn", "randint", "choice")),
            (random, ("seed", "getstate", "setstate")),
        ):
            for name in names:
                patched.setattr(owner, name, refuse)
        found = result(case)
    assert global_states() == before
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_fits_in_threads_have_the_bits_of_a_fit_alone() -> None:
    names = ["network", "mixture_forest", "images", "isolation_forest"] * 3
    alone = {name: result(name) for name in set(names)}
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    undisturbed = [float(torch.rand(())) for _ in range(2000)], np.random.rand(2000).tolist()  # noqa: NPY002
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(result, name) for name in names]
        drawn = [float(torch.rand(())) for _ in range(2000)], np.random.rand(2000).tolist()  # noqa: NPY002
        found = [one.result() for one in running]
    for name, scores in zip(names, found, strict=True):
        np.testing.assert_array_equal(scores, alone[name], err_msg=name)
    assert drawn == undisturbed


@pytest.mark.slow
def test_threads_leave_the_filters_of_warnings_alone() -> None:
    before = list(warnings.filters)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(result, ["network"] * 6))
    assert list(warnings.filters) == before


def test_no_random_state_asks_the_operating_system() -> None:
    X, y = rows("isolation_forest")
    before = global_states()
    first, second = (NoiseContrastiveDetector(**QUICK, random_state=None).fit(X, y).score_samples(X) for _ in range(2))
    assert global_states() == before
    assert not np.array_equal(first, second)
    drawn = [
        NoiseContrastiveDetector(**QUICK, random_state=np.random.RandomState(3)).fit(X, y).score_samples(X)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*drawn)


def test_training_can_leave_the_global_generators_alone() -> None:
    def trained() -> dict[str, torch.Tensor]:
        energy = torch.nn.Linear(1, 1)
        with torch.no_grad():
            energy.weight.fill_(0.5), energy.bias.zero_()
        noise = torch.distributions.MultivariateNormal(torch.zeros(1), torch.eye(1))
        objective = NCE(EnergyModel(energy), noise)
        x = torch.linspace(-1, 1, 64)[:, None]
        options = FitOptions(seed_globals=False, noise_pool=64)
        fit(objective, x, epochs=2, batch_size=16, seed=0, accelerator="cpu", options=options)
        return objective.state_dict()

    first, second = trained(), trained()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"seed": None}, "seed must be given"),
        ({"seed": 0, "checkpoint_dir": "run"}, "checkpoint_dir must be None"),
        ({"seed": 0, "loader": True}, "data must be rows"),
    ],
)
def test_what_needs_the_global_generators_is_refused_without_them(
    arguments: dict[str, Any], match: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = torch.zeros(8, 1)
    data: Any = torch.utils.data.DataLoader(x) if arguments.pop("loader", False) else x  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=match):
        fit(torch.nn.Linear(1, 1), data, accelerator="cpu", options=FitOptions(seed_globals=False), **arguments)
