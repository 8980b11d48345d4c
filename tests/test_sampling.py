"""Langevin chains leave their target alone; annealed importance sampling finds known constants."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal

from fvnce import annealed_log_partition, langevin


def normal(d, scale=1.0):
    return Independent(Normal(torch.zeros(d), torch.full((d,), scale)), 1)


class Joint(nn.Module):
    """log p⁰(x, z) = −|z|²/2 − (x − z)²/2·4: x has variance 1 + 1/4, and Z = 2π/2."""

    def log_joint(self, x, z):
        return -z.square().sum(-1) / 2 - 2 * (x - z).square().sum(-1)


def generator():
    return torch.Generator().manual_seed(0)


def test_adjusted_chains_stay_in_their_distribution():
    """4000 chains started in the target: means and covariance within 5 standard errors, whatever the step."""
    covariance = torch.tensor([[1.0, 0.6], [0.6, 0.5]])
    target = MultivariateNormal(torch.tensor([1.0, -1.0]), covariance)
    torch.manual_seed(0)
    chain = langevin(target, target.sample((4000,)), steps=30, step_size=0.6, generator=generator())
    assert 0.2 < chain.accepted < 0.99
    assert ((chain.x.mean(0) - target.loc) / (covariance.diagonal() / 4000).sqrt()).abs().max() < 5
    assert (chain.x.T.cov() - covariance).abs().max() < 5 * math.sqrt(2 / 4000)


def test_adjustment_matters():
    """A step so large that unadjusted chains have the wrong variance, s²/(s² − ε²/4) of it."""
    target, start = normal(1), torch.randn(4000, 1, generator=generator())
    loose = langevin(target, start, steps=50, step_size=1.2, adjusted=False, generator=generator())
    exact = langevin(target, start, steps=50, step_size=1.2, generator=generator())
    assert abs(float(exact.x.var()) - 1) < 0.12
    assert abs(float(loose.x.var()) - 1 / (1 - 1.2**2 / 4)) < 0.25
    assert float(loose.x.var()) > 1.3


def test_chains_in_x_and_z_together():
    zeros = torch.zeros(3000, 1)
    chain = langevin(Joint(), zeros, zeros, steps=200, step_size=0.5, generator=generator())
    assert abs(float(chain.x.var()) - 1.25) < 5 * 1.25 * math.sqrt(2 / 3000)
    assert abs(float((chain.x * chain.z).mean()) - 1.0) < 0.15
    again = langevin(Joint(), zeros, zeros, steps=200, step_size=0.5, generator=generator())
    assert torch.equal(again.x, chain.x)


def test_one_temperature_is_importance_sampling():
    class Bell(nn.Module):
        def log_prob(self, x):
            return -x.square().sum(-1)

    value, _ = annealed_log_partition(Bell(), normal(2), chains=500, temperatures=1, generator=generator())
    from fvnce.noise import draw

    x = draw(normal(2), 500, generator())
    expected = (Bell().log_prob(x) - normal(2).log_prob(x)).logsumexp(0) - math.log(500)
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("latent", ["fixed", "encoder"])
def test_annealed_log_partition_with_latents(latent):
    base = normal(1, 2.0) if latent == "fixed" else lambda x: Independent(Normal(0.5 * x, torch.ones_like(x)), 1)
    value, error = annealed_log_partition(Joint(), normal(1, 2.0), base, temperatures=60, generator=generator())
    assert abs(float(value) - math.log(math.pi)) < 3 * float(error)
    assert float(error) < 0.05


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="model must have log_joint, found Linear without it"):
        langevin(nn.Linear(1, 1), torch.zeros(2, 1), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="step_size must be a finite number > 0, found 0"):
        langevin(normal(1), torch.zeros(2, 1), step_size=0)
