"""Density ratios: the concave problem is solved, known ratios are found, bridges add up and say when to use them."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from fvnce import KernelDensity, PowerRule, Quadratic, density_ratio, load, save, telescope
from fvnce.io import describe, rebuild
from fvnce.models import TelescopedRatio
from fvnce.models.energy import gaussian_kernels
from fvnce.noise import EmpiricalNoise, draw
from fvnce.ratio.chain import waypoints
from fvnce.ratio.direct import fit_coefficients, value_of
from fvnce.scoring import from_weight


def normal(mean, scale, d=1, dtype=torch.float64):
    return Independent(Normal(torch.full((d,), mean, dtype=dtype), torch.full((d,), scale, dtype=dtype)), 1)


def kernels(seed=0):
    generator = torch.Generator().manual_seed(seed)
    num = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    den = 1.5 * torch.randn(300, 2, generator=generator, dtype=torch.float64)
    centres = num[:20]
    return gaussian_kernels(num, centres, 0.8), gaussian_kernels(den, centres, 0.8)


def far_kernels(seed=0):
    """Narrow kernels of a wide spread, for which most coefficients of the maximum are zero."""
    generator = torch.Generator().manual_seed(seed)
    num = 0.5 + 0.5 * torch.randn(300, 1, generator=generator, dtype=torch.float64)
    den = torch.randn(300, 1, generator=generator, dtype=torch.float64)
    return gaussian_kernels(num, num[:100], 0.2), gaussian_kernels(den, num[:100], 0.2)


def test_least_squares_is_the_linear_system_where_no_constraint_binds():
    k_num, k_den = (k[:, :1] for k in kernels())
    expected = torch.linalg.solve(k_den.T @ k_den / 300 + 0.1 * torch.eye(1, dtype=torch.float64), k_num.mean(0))
    torch.testing.assert_close(fit_coefficients(PowerRule(1), k_num, k_den, 0.1), expected)


@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("make", [kernels, far_kernels])
@pytest.mark.parametrize(
    "rule",
    [
        PowerRule(1, clip=None),
        PowerRule(1 - 1e-6, clip=None),
        PowerRule(0.5, clip=None),
        PowerRule(0, clip=None),
        PowerRule(0, 1, clip=None),
        3 * PowerRule(1, clip=None) + PowerRule(0.3, 0.1, clip=None),
        from_weight(lambda r: 1 / (1 + r).sqrt(), clip=None),
    ],
    ids=repr,
)
def test_the_solution_meets_the_conditions_of_the_maximum(rule, make, penalty):
    """Karush, Kuhn and Tucker: θ ≥ 0, no gradient points up, none is left where θ > 0. J is concave: that is all."""
    k_num, k_den = make()
    theta = fit_coefficients(rule, k_num, k_den, penalty)
    assert (theta >= 0).all()
    at = theta.clone().requires_grad_()
    (value_of(rule, k_num @ at, k_den @ at) - penalty / 2 * at.square().sum()).backward()
    assert at.grad.max() < 1e-7
    assert (at.grad * theta).abs().max() < 1e-7
    warm = fit_coefficients(rule, k_num, k_den, penalty, start=fit_coefficients(rule, k_num, k_den, 10 * penalty))
    torch.testing.assert_close(k_den @ warm, k_den @ theta, rtol=1e-4, atol=1e-6)


def test_least_squares_under_its_constraint_is_a_ratio():
    """E_q r = 1 to 0.02 in the sample, and E_q(r̂ − r)² = 0.155; the clipped linear system has 2.9 and 7.7."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        p = 0.5 * torch.randn(300, 1, dtype=torch.float64) + 0.5
        q = torch.randn(300, 1, dtype=torch.float64)
    ratio = density_ratio(p, q, bandwidth=0.2, penalty=1e-3)
    assert abs(float(ratio(q).mean()) - 1) < 0.02
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64).unsqueeze(1)
    density = normal(0.0, 1.0).log_prob(x).exp()
    true = (normal(0.5, 0.5).log_prob(x) - normal(0.0, 1.0).log_prob(x)).exp()
    assert float(((ratio(x) - true).square() * density).sum() * 16 / 4000) < 0.2
    several = density_ratio(p, q, bandwidth=0.2, penalty=(1e-3, 1e-2))
    # Cross-validation judges the same solutions: on held-out samples each beats r = 1, whose J is −½.
    assert all(value > -0.5 for _, _, value in several.tried)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_known_ratio_is_found(alpha):
    """N(0, 1)/N(0.5, 1.5²) in one dimension: E_q(r̂ − r)² below 6% of E_q r², and E_q r̂ = 1 to 0.1."""
    generator = torch.Generator().manual_seed(0)
    num = torch.randn(600, 1, generator=generator, dtype=torch.float64)
    den = 0.5 + 1.5 * torch.randn(600, 1, generator=generator, dtype=torch.float64)
    ratio = density_ratio(num, den, alpha=alpha, penalty=(0.01, 0.1), bandwidth=(0.3, 1.0), centres=40, folds=3)
    x = 0.5 + 1.5 * torch.randn(5000, 1, generator=generator, dtype=torch.float64)
    true = (normal(0.0, 1.0).log_prob(x) - normal(0.5, 1.5).log_prob(x)).exp()
    assert (ratio(x) - true).square().mean() < 0.06 * true.square().mean()
    assert abs(float(ratio(x).mean()) - 1) < 0.1
    assert len(ratio.tried) == 4
    assert ratio.value == max(row[2] for row in ratio.tried)
    assert torch.equal(ratio(x), density_ratio(
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
    ratio = density_ratio(num, den, seed=14)
    assert ratio.bandwidth > 1
    assert ratio.penalty == 0.1


def test_mistakes_are_named():
    x = torch.randn(20, 2)
    with pytest.raises(ValueError, match=r"x_num.*x_den.*2.*1"):
        density_ratio(x, x[:, :1])
    with pytest.raises(ValueError, match=r"rule.*[Qq]uadratic"):
        density_ratio(x, x, rule=Quadratic())
    with pytest.raises(ValueError, match=r"x_num.*30.*20"):
        density_ratio(x, x, folds=30)
    with pytest.raises(TypeError, match=r"bandwidth.*'auto'"):
        density_ratio(x, x, bandwidth="auto")
    with pytest.raises(ValueError, match=r"noise.*2.*x.*1"):
        telescope(x, normal(0.0, 1.0))
    with pytest.raises(ValueError, match=r"^x .*30.*20"):
        telescope(x, normal(0.0, 1.0, 2), folds=30)
    with pytest.raises(ValueError, match=r"noise.*15.*10"):
        telescope(x, x[:10], folds=15)
    with pytest.raises(ValueError, match=r"log_prob.*log_ratio"):
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
    assert torch.equal(rebuild(*describe(noise), EmpiricalNoise).samples, rows)


def test_noise_that_is_only_drawn_from_is_bridged_by_its_draws():
    generator = torch.Generator().manual_seed(0)
    data, noise = 0.5 * torch.randn(200, 1, generator=generator), normal(0.0, 1.0, 1, torch.float32)
    rows = draw(noise, 200, torch.Generator().manual_seed(1))
    drawn, expected = (telescope(data, q, bridges=2, epochs=1, folds=2) for q in (EmpiricalNoise(noise), rows))
    assert torch.equal(drawn.model.log_ratio(data), expected.model.log_ratio(data))
    with pytest.raises(ValueError, match=r"log_prob.*log_ratio"):
        drawn.model.log_prob(data)


def test_a_distribution_that_is_only_drawn_from_is_saved_with_its_noise():
    noise = EmpiricalNoise(KernelDensity(torch.arange(6.0).reshape(3, 2), 0.5))
    again = rebuild(*describe(noise), EmpiricalNoise)
    drawn = [each.draw(20, torch.Generator().manual_seed(0)) for each in (noise, again, noise.samples)]
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(again.log_prob(drawn[0]), torch.zeros(20))
    with pytest.raises(ValueError, match="samples"):
        EmpiricalNoise(torch.distributions.Normal(torch.zeros(2), 1.0))


@pytest.mark.slow
def test_bridges_are_asked_for_where_noise_is_far_and_only_there():
    """Data N(1, 0.05²) under N(0, 1): KL = log 20 − ½ + (1 + 0.0025)/2 = 3.0 nats for each of three dimensions."""
    generator = torch.Generator().manual_seed(0)
    data = 1 + 0.05 * torch.randn(1500, 3, generator=generator)
    noise = normal(0.0, 1.0, 3, torch.float32)
    how = {"epochs": 12, "seed": 0, "copies": 2, "lr": 5e-3}
    one = telescope(data, noise, bridges=1, **how)
    assert one.needed
    assert "bridges=2" in one.advice[0]
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


class FarMixture:
    """0.3 N((2.5, 3), 0.2²) + 0.7 N((3.5, 3), 0.2²)."""

    distribution = MixtureSameFamily(
        Categorical(torch.tensor([0.3, 0.7])),
        Independent(Normal(torch.tensor([[2.5, 3.0], [3.5, 3.0]]), torch.full((2, 2), 0.2)), 1),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truth", "allowed"),
    [(normal(3.0, 0.2, 2, torch.float32), 0.15), (FarMixture.distribution, 0.25)],
    ids=["Gaussian", "mixture"],
)
@pytest.mark.parametrize("known", [True, False], ids=["density", "samples"])
def test_far_noise_is_bridged_to_a_density(truth, allowed, known):
    """2,000 rows around (3, 3) under N(0, I): nats of error, the integral over the plane, and the error reported."""
    noise = normal(0.0, 1.0, 2, torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        data, fresh, samples = truth.sample((2000,)), truth.sample((4000,)), noise.sample((2000,))
    ratio = telescope(data, noise if known else samples)
    assert ratio.needed
    assert ratio.reports[1].exact
    if truth is FarMixture.distribution:  # of the Gaussian, its own reference leaves nothing to learn
        assert ratio.advice == list(ratio.doubts)
    # Where samples alone show the noise, nothing bounds the error.
    assert math.isnan(ratio.error) == (not known)
    assert bool(ratio.doubts) == (not known)
    with torch.no_grad():
        estimate = ratio.model.log_ratio(fresh) + noise.log_prob(fresh)
        off = float((estimate - truth.log_prob(fresh)).square().mean().sqrt())
        axis = torch.linspace(-1, 7, 401)
        plane = torch.cartesian_prod(axis, axis)
        total = float((ratio.model.log_ratio(plane) + noise.log_prob(plane)).exp().sum() * 0.02**2)
    if known:
        assert off < allowed
        assert abs(total - 1) < 0.1
        assert off < ratio.error < 0.5
    else:
        # Samples tell little of how the noise falls off at 4.2 standard deviations, where the data are.
        assert off < 0.6


@pytest.mark.slow
def test_the_ratio_of_a_distribution_to_itself_is_one():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        data = torch.randn(1000, 2)
    ratio = telescope(data, normal(0.0, 1.0, 2, torch.float32), epochs=10)
    assert not ratio.needed
    off = float(
        ratio.model.log_ratio(torch.randn(2000, 2, generator=torch.Generator().manual_seed(1))).detach().abs().mean()
    )
    assert off < 0.1
    assert off < ratio.error
    assert str(ratio.reports[0].learned) in ratio.advice[0]
    again = telescope(data, normal(0.0, 1.0, 2, torch.float32), epochs=10)
    assert torch.equal(again.model.log_ratio(data), ratio.model.log_ratio(data))
    assert again.error == ratio.error


def test_a_telescope_is_saved_and_loaded(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        data = 3 + 0.1 * torch.randn(100, 2)
    ratio = telescope(data, normal(0.0, 1.0, 2, torch.float32), bridges=3, epochs=1, folds=2)
    assert len(ratio.reports) == 3
    assert ratio.shares == pytest.approx((0.0, math.sqrt(0.5), 1.0))
    save(tmp_path / "ratio.safetensors", ratio.model)
    again = load(tmp_path / "ratio.safetensors")
    torch.testing.assert_close(again.log_prob(data), ratio.model.log_prob(data))


def test_numbers_of_numpy_are_numbers():
    x = torch.randn(20, 2)
    ratio = density_ratio(x, x, bandwidth=np.float32(1.5), penalty=np.array([0.25]))
    assert (ratio.bandwidth, ratio.penalty) == (1.5, 0.25)


@pytest.mark.parametrize("unit", [1e-12, 1e-3, 1e9])
def test_a_density_ratio_does_not_depend_on_the_unit(unit):
    generator = torch.Generator().manual_seed(0)
    num, den = torch.randn(2, 200, 1, generator=generator, dtype=torch.float64)
    at = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    expected = density_ratio(num, den + 1)
    found = density_ratio(num * unit, (den + 1) * unit)
    torch.testing.assert_close(found(at * unit), expected(at))
