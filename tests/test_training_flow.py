"""A fitted flow is noise: it integrates to one, is near the data, and trains an objective."""

from __future__ import annotations

import sys

import pytest
import torch
from sklearn.datasets import make_moons
from torch.distributions import Distribution, MultivariateNormal, Normal

from fvnce.noise import draw
from fvnce.training import fit
from fvnce.training.flow import fit_flow
from training_runs import contrastive, rows

pytest.importorskip("zuko")


@pytest.fixture(scope="module")
def moons() -> torch.Tensor:
    return torch.tensor(make_moons(600, noise=0.1, random_state=0)[0], dtype=torch.float32) * 3 + 5


@pytest.fixture(scope="module")
def flow(moons: torch.Tensor) -> Distribution:
    return fit_flow(moons, transforms=2, hidden=(32, 32), epochs=25, batch_size=100, lr=5e-3, seed=0)


@pytest.mark.slow
def test_it_integrates_to_one_and_beats_a_gaussian(flow: Distribution, moons: torch.Tensor) -> None:
    """A Riemann sum over a box that holds all but a millionth; held-out gain of half a nat."""
    axis = torch.linspace(-7.0, 20.0, 600)
    points = torch.cartesian_prod(axis, axis)
    assert float(flow.log_prob(points).exp().sum() * (27 / 599) ** 2) == pytest.approx(1.0, abs=0.02)
    held_out = torch.tensor(make_moons(400, noise=0.1, random_state=1)[0], dtype=torch.float32) * 3 + 5
    gaussian = MultivariateNormal(moons.mean(0), torch.cov(moons.T))
    assert float(flow.log_prob(held_out).mean()) > float(gaussian.log_prob(held_out).mean()) + 0.3


@pytest.mark.slow
def test_its_draws_follow_its_density(flow: Distribution, moons: torch.Tensor) -> None:
    """Shares of half-planes among 20,000 draws and by quadrature; five standard errors (0.018) and the grid's own."""
    x = draw(flow, 20_000, torch.Generator().manual_seed(0))
    axis = torch.linspace(-7.0, 20.0, 600)
    points = torch.cartesian_prod(axis, axis)
    mass = flow.log_prob(points).exp() * (27 / 599) ** 2
    for column, edge in ((0, 4.0), (0, 8.0), (1, 5.0), (1, 7.0)):
        share = float((x[:, column] < edge).float().mean())
        assert share == pytest.approx(float(mass[points[:, column] < edge].sum()), abs=0.03)
    assert not x.requires_grad


def test_the_seed_decides_it(moons: torch.Tensor) -> None:
    one, two, other = (fit_flow(moons, epochs=1, transforms=1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.log_prob(moons), two.log_prob(moons))
    assert not torch.equal(one.log_prob(moons), other.log_prob(moons))


def test_it_trains_an_objective() -> None:
    noise = fit_flow(rows(200), epochs=5, transforms=1, seed=0)
    history = fit(contrastive(noise=noise, partition="profiled"), rows(200), epochs=2, batch_size=50, seed=0)
    assert history["live_noise"][-1] > 0.5


def test_checks_of_other_distributions_stay_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "zuko"]:
        monkeypatch.delitem(sys.modules, name)  # so that it is imported here, which is when it turns them off
    monkeypatch.setattr(Distribution, "_validate_args", True)  # and afterwards as it was
    fit_flow(rows(20), epochs=1, transforms=1, seed=0)
    with pytest.raises(ValueError, match="scale"):
        Normal(0.0, -1.0)
    with pytest.raises(ValueError, match="kind must be one of"):
        fit_flow(rows(20), kind="RNVP")  # type: ignore[arg-type]
