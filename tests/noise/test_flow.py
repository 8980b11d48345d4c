"""A normalising flow of the real library, trained by hand, plays noise like any other distribution."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import make_moons

from fvnce.noise import KernelDensity, NoiseMixture, NoisePool, draw, log_prob_of_rows, row_flops

zuko = pytest.importorskip("zuko")


@pytest.fixture(scope="module")
def moons() -> torch.Tensor:
    return torch.tensor(make_moons(400, noise=0.1, random_state=0)[0], dtype=torch.float32)


@pytest.fixture(scope="module")
def flow(moons: torch.Tensor) -> torch.distributions.Distribution:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = zuko.flows.NSF(2, transforms=2, hidden_features=(32, 32))
        optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(150):
            optimiser.zero_grad()
            loss = -model().log_prob(moons).mean()
            loss.backward()
            optimiser.step()
    return model.requires_grad_(False)()


@pytest.mark.slow
def test_the_flow_learned_the_data_and_integrates_to_one(flow, moons: torch.Tensor) -> None:
    axis = torch.linspace(-4.0, 5.0, 500)
    points = torch.cartesian_prod(axis, axis)
    assert float(flow.log_prob(points).exp().sum() * (9 / 499) ** 2) == pytest.approx(1.0, abs=0.02)
    gaussian = torch.distributions.MultivariateNormal(moons.mean(0), torch.cov(moons.T))
    assert float(log_prob_of_rows(flow, moons).mean()) > float(gaussian.log_prob(moons).mean()) + 0.3


def test_the_flow_is_drawn_pooled_and_mixed(flow, moons: torch.Tensor) -> None:
    assert torch.equal(*(draw(flow, 20, torch.Generator().manual_seed(1)) for _ in range(2)))
    noise = NoiseMixture([flow, KernelDensity(moons, 0.2)])
    parts = torch.stack([flow.log_prob(moons), KernelDensity(moons, 0.2).log_prob(moons)])
    assert torch.allclose(noise.log_prob(moons), parts.exp().mean(0).log(), atol=1e-5)
    assert row_flops(noise) is None
    pool = NoisePool(noise, 256, torch.Generator().manual_seed(0))
    for _ in range(12):
        x, log_prob = pool.batch(64)
        assert torch.allclose(log_prob, noise.log_prob(x), atol=1e-4)
    assert pool.renewed > 0
