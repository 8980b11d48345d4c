"""Density ratios: the concave problem is solved, known ratios are found, bridges add up and say when to use them."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal

from fvnce import KernelDensity, PowerRule, Quadratic, density_ratio, telescope
from fvnce.models import TelescopedRatio
from fvnce.models.ratios import gaussian_kernels
from fvnce.noise import EmpiricalNoise, from_state, to_state
from fvnce.ratio.bridges import waypoints
from fvnce.ratio.concave import fit_coefficients, value_of


def normal(mean, scale, d=1, dtype=torch.float64):
    return Independent(Normal(torch.full((d,), mean, dtype=dtype), torch.full((d,), scale, dtype=dtype)), 1)


def kernels(seed=0):
    generator = torch.Generator().manual_seed(seed)
    num = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    den = 1.5 * torch.randn(300, 2, generator=generator, dtype=torch.float64)
    centres = num[:20]
    return gaussian_kernels(num, centres, 0.8), gaussian_kernels(den, centres, 0.8)


def test_least_squares_is_the_linear_system():
    k_num, k_den = kernels()
    expected = torch.linalg.solve(k_den.T @ k_den / 300 + 0.1 * torch.eye(20, dtype=torch.float64), k_num.mean(0))
    assert torch.equal(fit_coefficients(PowerRule(1), k_num, k_den, 0.1), expected.clamp(min=0))


@pytest.mark.parametrize(
    "rule", [PowerRule(0, clip=None), PowerRule(0.5, clip=None), PowerRule(0, 1, clip=None)], ids=str
)
def test_the_solution_meets_the_conditions_of_the_maximum(rule):
    """Gradient zero where θ > 0 and not positive where θ = 0, to the size of the last barrier."""
    k_num, k_den = kernels()
    theta = fit_coefficients(rule, k_num, k_den, 0.01)
    at = theta.clone().requires_grad_()
    (value_of(rule, k_num @ at, k_den @ at) - 0.005 * at.square().sum()).backward()
    inside = theta > 1e-2
    assert inside.any()
    assert at.grad[inside].abs().max() < 2e-3
    assert not (at.grad[~inside] > 2e-3).any()
    # No other point does better: the problem is concave.
    best = value_of(rule, k_num @ theta, k_den @ theta) - 0.005 * theta.square().sum()
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        other = theta * torch.rand(20, generator=generator, dtype=torch.float64) * 2
        assert value_of(rule, k_num @ other, k_den @ other) - 0.005 * other.square().sum() < best


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_known_ratio_is_found(alpha):
    """N(0, 1)/N(0.5, 1.5²) in one dimension: E_q(r̂ − r)² below 6% of E_q r², and E_q r̂ = 1 to 0.1."""
    generator = torch.Generator().manual_seed(0)
    num = torch.randn(600, 1, generator=generator, dtype=torch.float64)
    den = 0.5 + 1.5 * torch.randn(600, 1, generator=generator, dtype=torch.float64)
    found = density_ratio(num, den, alpha=alpha, penalty=(0.01, 0.1), bandwidth=(0.3, 1.0), centres=40, folds=3)
    x = 0.5 + 1.5 * torch.randn(5000, 1, generator=generator, dtype=torch.float64)
    true = (normal(0.0, 1.0).log_prob(x) - normal(0.5, 1.5).log_prob(x)).exp()
    assert (found(x) - true).square().mean() < 0.06 * true.square().mean()
    assert abs(float(found(x).mean()) - 1) < 0.1
    assert len(found.tried) == 4
    assert found.value == max(row[2] for row in found.tried)
    assert torch.equal(found(x), density_ratio(
        num, den, alpha=alpha, penalty=(0.01, 0.1), bandwidth=(0.3, 1.0), centres=40, folds=3
    )(x))  # fmt: skip


def test_cross_validation_refuses_a_silly_bandwidth():
    generator = torch.Generator().manual_seed(1)
    num, den = torch.randn(300, 1, generator=generator), 1.5 * torch.randn(300, 1, generator=generator)
    assert density_ratio(num, den, bandwidth=(1e-3, 0.8), penalty=0.1).bandwidth == 0.8


def test_kernels_of_held_out_samples_are_left_out():
    """In five dimensions a narrow kernel on a held-out sample makes that sample look likely: here it once won."""
    with torch.random.fork_rng():
        torch.manual_seed(14)
        num = torch.randn(300, 5, dtype=torch.float64)
        den = 0.3 + 1.3 * torch.randn(300, 5, dtype=torch.float64)
    found = density_ratio(num, den, seed=14)
    assert found.bandwidth > 1
    assert found.penalty == 0.1


def test_mistakes_are_named():
    x = torch.randn(20, 2)
    with pytest.raises(ValueError, match="equally many columns, found 2 and 1"):
        density_ratio(x, x[:, :1])
    with pytest.raises(ValueError, match="rule must have the double-ELBO property"):
        density_ratio(x, x, rule=Quadratic())
    with pytest.raises(ValueError, match="x_num must have at least as many rows as folds, 30, found 20"):
        density_ratio(x, x, folds=30)
    with pytest.raises(ValueError, match="noise must have rows of 2 numbers like x"):
        telescope(x, normal(0.0, 1.0))
    with pytest.raises(ValueError, match="log_prob needs the density of the noise"):
        TelescopedRatio([torch.nn.Linear(2, 1)]).log_prob(x)


def test_waypoints_end_at_data_and_noise():
    x, y = torch.randn(5, 2), torch.randn(5, 2)
    assert torch.equal(waypoints(x, y, 0.0), x)
    assert torch.equal(waypoints(x, y, 1.0), y)


def test_rows_stand_for_a_distribution_without_a_density():
    rows = torch.arange(6.0).reshape(3, 2)
    noise = EmpiricalNoise(rows)
    drawn = noise.draw(300, torch.Generator().manual_seed(0))
    assert set(drawn[:, 0].tolist()) == {0.0, 2.0, 4.0}
    assert torch.equal(noise.log_prob(rows), torch.zeros(3))
    assert torch.equal(from_state(*to_state(noise)).samples, rows)


def test_a_distribution_that_is_only_drawn_from_is_saved_with_its_noise():
    noise = EmpiricalNoise(KernelDensity(torch.arange(6.0).reshape(3, 2), 0.5))
    again = from_state(*to_state(noise))
    drawn = [each.draw(20, torch.Generator().manual_seed(0)) for each in (noise, again, noise.samples)]
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(again.log_prob(drawn[0]), torch.zeros(20))
    with pytest.raises(ValueError, match="samples must be one distribution over whole rows"):
        EmpiricalNoise(torch.distributions.Normal(torch.zeros(2), 1.0))


def test_bridges_are_asked_for_where_noise_is_far_and_only_there():
    """Data N(1, 0.05²) under N(0, 1): KL = log 20 − ½ + (1 + 0.0025)/2 = 3.0 nats for each of three dimensions."""
    generator = torch.Generator().manual_seed(0)
    data = 1 + 0.05 * torch.randn(1500, 3, generator=generator)
    noise = normal(0.0, 1.0, 3, torch.float32)
    how = {"epochs": 12, "seed": 0, "copies": 2, "lr": 5e-3}
    one = telescope(data, noise, bridges=1, **how)
    assert one.needed
    assert "too long" in one.advice[0]
    several = telescope(data, noise, **how)
    assert several.needed
    assert len(several.reports) > 1
    truth = normal(1.0, 0.05, 3, torch.float32)
    x = 1 + 0.05 * torch.randn(2000, 3, generator=generator)
    errors = [(t.model.log_prob(x) - truth.log_prob(x)).detach().square().mean().sqrt() for t in (one, several)]
    assert errors[1] < 0.75 * errors[0]
    torch.testing.assert_close(several.model.log_ratio(x), several.model.parts(x).sum(0))
    close = telescope(0.9 * torch.randn(1500, 3, generator=generator), noise, **how)
    assert not close.needed
    assert len(close.reports) == 1
    assert close.advice == []
    gain = 3 * (math.log(1 / 0.9) - 0.5 + 0.81 / 2)
    assert abs(close.reports[0].gain - gain) < 0.1
