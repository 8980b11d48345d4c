"""Langevin chains leave their target alone; annealed importance sampling finds known constants."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal

from fvnce import NCE
from fvnce.sampling import annealed_log_partition, annealed_nce, langevin

ANNEALED = (annealed_log_partition, annealed_nce)


def normal(d, scale=1.0):
    return Independent(Normal(torch.zeros(d), torch.full((d,), scale)), 1)


class Joint(nn.Module):
    """log p⁰(x, z) = −|z|²/2 − (x − z)²/2·4: x has variance 1 + 1/4, and Z = 2π/2."""

    def log_joint(self, x, z):
        return -z.square().sum(-1) / 2 - 2 * (x - z).square().sum(-1)


class Given(nn.Module):
    """A log-density."""

    def __init__(self, log_density):
        super().__init__()
        self.log_prob = log_density


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


class Quartic(nn.Module):
    def log_prob(self, x):
        return -x.pow(4).sum(-1) / 4


def test_chains_that_stick_in_the_tails_are_seen():
    """E x⁴ = 1 for e^(−x⁴/4). From broad starts a step of 0.6 leaves chains in the tails, with 0.4 to 0.8 accepted."""
    start = 2 * torch.randn(500, 3, generator=generator())
    chain = langevin(Quartic(), start, step_size=0.6, generator=generator())
    assert 0.4 < chain.accepted < 0.8
    assert float(chain.x.pow(4).mean()) > 3
    assert chain.stuck > 0.05
    assert chain.r_hat > 1.5
    assert not chain.mixed
    # The same step from where the model is.
    near = langevin(Quartic(), start / 10, step_size=0.6, generator=generator())
    assert abs(float(near.x.pow(4).mean()) - 1) < 0.25
    assert near.mixed


def test_chains_that_remember_their_start_are_seen():
    """Steps too short to arrive, all of which are taken; and too few steps to say anything."""
    far = langevin(normal(2), torch.full((200, 2), 5.0), step_size=0.05, generator=generator())
    assert far.accepted > 0.99
    assert far.stuck == 0
    assert not far.mixed
    assert not langevin(normal(2), torch.zeros(200, 2), steps=7, generator=generator()).mixed


def test_r_hat_is_its_formula():
    states = []

    class Watched(nn.Module):
        def log_prob(self, x):
            return normal(2).log_prob(x)

    start = 3 * torch.randn(20, 2, generator=generator(), dtype=torch.float64)
    for steps in range(1, 42):
        states.append(langevin(Watched(), start, steps=steps, step_size=0.7, generator=generator()).x)
    chain = langevin(Watched(), start, steps=41, step_size=0.7, generator=generator())
    split = torch.stack([torch.stack(states[21:31]), torch.stack(states[31:41])])
    r_hats = []
    for values in (split, (split - states[20].median(0).values).abs()):
        within, between = values.var(1).mean((0, 1)), values.mean(1).flatten(0, 1).var(0)
        r_hats.append(float((0.9 + between / within).sqrt().max()))
    assert chain.r_hat == pytest.approx(max(r_hats), rel=1e-9)


def test_chains_that_differ_in_spread_alone_are_seen():
    """½ N(0, .3²) + ½ N(0, 1) in 20 dimensions: nothing moves between the parts, and both have one mean."""
    parts = normal(20, 0.3), normal(20)
    model = Given(lambda x: torch.logaddexp(*(part.log_prob(x) for part in parts)))
    scale = torch.where(torch.arange(60) < 54, 0.3, 1.0).unsqueeze(1)
    start = scale * torch.randn(60, 20, generator=generator())
    assert not langevin(model, start, steps=1000, step_size=0.35, generator=generator()).mixed
    assert langevin(parts[0], start[:54], steps=1000, step_size=0.35, generator=generator()).mixed


def test_a_heavy_tail_of_the_weights_is_not_trusted():
    """A normal of scale 2 or 3 from noise of scale 1: weights of infinite variance, whose mean most samples miss."""

    class Wide(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(scale))

        def log_prob(self, x):
            return normal(3).log_prob(x / self.scale) - 3 * self.scale.log()

    for scale in (2.0, 3.0, 1e3):
        objective = NCE(Wide(scale), normal(3))
        estimates = [objective.log_partition(1000, generator=torch.Generator().manual_seed(seed)) for seed in range(40)]
        assert sum(each.trusted for each in estimates) <= 2, scale
    estimates = [
        NCE(Wide(0.6), normal(3)).log_partition(1000, generator=torch.Generator().manual_seed(s)) for s in range(40)
    ]
    assert all(each.trusted for each in estimates)
    assert sum(abs(float(each.value)) < 2 * float(each.error) for each in estimates) >= 34


@pytest.mark.slow
def test_what_is_trusted_covers_where_few_are():
    """Correlation ½ and scale 2 in 10 dimensions: runs without a rare large weight look better than they are."""
    covariance = 4 * (0.5 + 0.5 * torch.eye(10))
    model = MultivariateNormal(torch.zeros(10), covariance)
    estimates = [annealed_nce(model, normal(10), generator=torch.Generator().manual_seed(seed)) for seed in range(20)]
    wrong = [each for each in estimates if each.trusted and abs(float(each.value)) > 2 * float(each.error)]
    assert len(wrong) <= 1
    easy = Given(lambda x: -2 * (x - 3).square().sum(-1))
    estimates = [annealed_nce(easy, normal(3, 2.0), generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    assert sum(each.trusted for each in estimates) >= 3


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
    with pytest.raises(TypeError, match=r"log_joint.*Linear"):
        langevin(nn.Linear(1, 1), torch.zeros(2, 1), torch.zeros(2, 1))
    unsummed = Given(lambda x: -x.square())
    for work in (langevin, annealed_log_partition, annealed_nce):
        with pytest.raises(ValueError, match=r"log_prob.*found \("):
            work(unsummed, torch.zeros(5, 2) if work is langevin else normal(2))
    with pytest.raises(ValueError, match=r"step_size.*0"):
        langevin(normal(1), torch.zeros(2, 1), step_size=0)


def test_a_model_that_is_zero_at_every_draw_is_not_trusted():
    """No weight, no estimate: a box far from the noise, a model that is zero everywhere, one that is NaN."""
    box = Given(lambda x: torch.where(((x > 20) & (x < 21)).all(-1), 0.0, -math.inf))
    estimates = [NCE(box, normal(2), partition="learned").log_partition(generator=generator())]
    for constant in (-math.inf, math.nan):
        model = Given(lambda x, constant=constant: x.sum(-1) * 0 + constant)
        estimates += [estimator(model, normal(2), generator=generator()) for estimator in ANNEALED]
    for estimate in estimates:
        assert not estimate.trusted
        assert estimate.effective_samples == 0
        assert not math.isfinite(estimate.value)
        assert math.isnan(estimate.error)
    # Zero at half of the draws is fine.
    half = Given(lambda x: torch.where(x[:, 0] > 0, normal(2).log_prob(x), -math.inf))
    value, error = estimate = NCE(half, normal(2), partition="learned").log_partition(generator=generator())
    assert estimate.trusted
    assert abs(float(value) + math.log(2)) < 3 * float(error)
