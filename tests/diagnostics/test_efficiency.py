"""What noise costs: the asymptotic variance against closed forms, quadrature and the best noise that there can be."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import nn
from torch.distributions import Independent, Normal

from efficiency_problems import covariance, precision_problem
from exact_models import LinearGaussianModel
from fvnce import NCE, Logarithmic, PowerRule, RankingNCE, VariationalNCE
from fvnce.diagnostics import noise_efficiency
from fvnce.models import GaussianEncoder

pytestmark = pytest.mark.usefixtures("double_precision")


def normal(scale=1.0, mean=0.0, width=1):
    return Independent(Normal(torch.full((width,), mean), torch.full((width,), scale)), 1)


def quantiles(n=4000):
    """Points of N(0, 1), each as probable, whose variance is 1."""
    points = Normal(0.0, 1.0).icdf((torch.arange(n) + 0.5) / n)
    return (points / points.square().mean().sqrt()).unsqueeze(1)


class Mean(nn.Module):
    def __init__(self, normalised=True):
        super().__init__()
        self.mean, self.constant = nn.Parameter(torch.zeros(1)), math.log(2 * math.pi) / 2 if normalised else 0.0

    def log_prob(self, x):
        return -((x - self.mean) ** 2).sum(-1) / 2 - self.constant


class Precision(nn.Module):
    def __init__(self):
        super().__init__()
        self.precision = nn.Parameter(torch.ones(1))

    def log_prob(self, x):
        return -self.precision * x[:, 0].square() / 2


@pytest.mark.parametrize("nu", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("rule", [Logarithmic(), PowerRule(0), PowerRule(0.5)], ids=str)
def test_where_the_noise_is_the_data_every_rule_needs_1_plus_1_over_nu_as_much(rule, nu):
    """n·Var = (1 + 1/ν)/I for a normalised model, and the mean of N(0, 1) has I = 1."""
    efficiency = noise_efficiency(NCE(Mean(), normal(), rule, noise_ratio=nu), x=quantiles(), best=False)
    assert efficiency.variance == pytest.approx(1 + 1 / nu, rel=1e-9)
    assert efficiency.likelihood == pytest.approx(1, rel=1e-9)
    assert efficiency.against_likelihood == pytest.approx(nu / (1 + nu), rel=1e-9)
    with pytest.raises(ValueError, match=r"against_best.*best=True"):
        _ = efficiency.against_best


@pytest.mark.parametrize("nu", [1.0, 3.0])
@pytest.mark.parametrize("scale", [1.2, 2.0, 4.0])
def test_it_is_the_variance_by_quadrature(scale, nu):
    """The precision of N(0, 1) with log Z unknown; 40,000 points leave out a millionth of the tails."""
    objective = NCE(Precision(), normal(2.0), noise_ratio=nu, partition="learned")
    efficiency = noise_efficiency(objective, normal(scale), quantiles(40_000), best=False)
    p_d, p_n, g = precision_problem(scale)
    assert efficiency.variance == pytest.approx(covariance(p_d, p_n, g, Logarithmic(), nu)[0, 0], rel=5e-3)
    assert efficiency.likelihood == pytest.approx(2, rel=2e-3)
    # Of the objective's rule and partition, at the other's noise.
    assert efficiency.covariance.shape == (1, 1)


@pytest.mark.parametrize("nu", [0.2, 1.0, 5.0])
def test_the_best_noise_fills_where_the_score_is_large(nu):
    """For the mean with log Z unknown 1 + νw = κ|x| where that is above 1, no noise elsewhere, and E_d[w] = 1."""
    x = quantiles(1000)
    size = x[:, 0].abs().numpy()
    kappa = brentq(lambda k: np.maximum(k * size - 1, 0).mean() - nu, 1e-3, 1e3)
    filled = np.maximum(kappa * size - 1, 0)
    lowest = 1 / (size**2 * filled / (1 + filled)).mean()
    objective = NCE(Mean(normalised=False), normal(2.0), noise_ratio=nu, partition="learned")
    efficiency = noise_efficiency(objective, x=x)
    assert efficiency.best == pytest.approx(lowest, rel=2e-3)
    assert efficiency.best >= lowest * (1 - 1e-9)
    assert 0 < efficiency.against_likelihood < efficiency.best / lowest
    assert 0 < efficiency.against_best < 1
    # Not even the data themselves are as good.
    assert efficiency.best < noise_efficiency(objective, normal(), x, best=False).variance * (1 - 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("nu", "count"), [(20.0, 1.0), (1.0, 5.0)])
def test_noise_samples_count_and_not_only_their_weight(nu, count):
    """The variance of 300 estimates by the objective itself, by Newton's method: known to 8 %, 33 % is four of that.

    With ν = 20 and one sample, ν alone would promise a variance of 1.04 times that of maximum likelihood.
    """
    noise, n, estimates = normal(1.5), 200, []
    model = Mean()
    objective = NCE(model, noise, noise_ratio=nu, noise_samples=count)
    efficiency = noise_efficiency(objective, x=quantiles(), best=False)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        x = torch.randn(n, 1, generator=generator)
        x_noise = 1.5 * torch.randn(round(count * n), 1, generator=generator)
        with torch.no_grad():
            model.mean.zero_()
        for _ in range(3):
            (slope,) = torch.autograd.grad(objective(x, x_noise), model.mean, create_graph=True)
            (curvature,) = torch.autograd.grad(slope, model.mean)
            with torch.no_grad():
                model.mean -= slope / curvature
        estimates.append(model.mean.item())
    assert n * torch.tensor(estimates).var() == pytest.approx(efficiency.variance, rel=0.33)
    assert efficiency.variance > 1 + 0.3 / count


def test_an_estimate_of_log_z_that_few_samples_carry_is_not_hidden():
    """The objective's noise, N(0, 1), hardly reaches a model at 6, whose log Z the variances depend on."""
    model = Mean(normalised=False)
    with torch.no_grad():
        model.mean.fill_(6.0)
    objective = NCE(model, normal(), partition="learned")
    assert noise_efficiency(objective, normal(2.0, mean=6.0), 6 + quantiles(), best=False).effective_samples < 100


def test_it_chooses_among_candidates():
    """The variance of estimates, 300 data sets of 400: the better candidate by the asymptotic one is the better."""
    candidates = [normal(1.3), normal(6.0)]
    x = quantiles(2000)
    objective = NCE(Mean(normalised=False), candidates[0], partition="learned")
    predicted = [noise_efficiency(objective, noise, x, best=False).variance for noise in candidates]
    assert predicted[0] < predicted[1]
    for noise, variance in zip(candidates, predicted, strict=True):
        torch.manual_seed(1)
        data, drawn = torch.randn(300, 400, dtype=torch.float64), noise.sample((300, 400))[..., 0]
        theta = torch.zeros(300, 2)
        for _ in range(30):  # Newton's method on the two parameters of each data set
            gradient, hessian = torch.zeros(300, 2), torch.zeros(300, 2, 2)
            for points, sign in ((data, 1.0), (drawn, -1.0)):
                log_noise = noise.log_prob(points.unsqueeze(-1))
                delta = theta[:, :1] * points - points.square() / 2 - theta[:, 1:] - log_noise
                g = torch.stack([points, -torch.ones_like(points)], -1)
                gradient += sign * (torch.sigmoid(-sign * delta).unsqueeze(-1) * g).mean(1)
                weight = torch.sigmoid(delta) * torch.sigmoid(-delta)
                hessian += torch.einsum("ab,abi,abj->aij", weight, g, g) / 400
            theta = theta + torch.linalg.solve(hessian, gradient)
        # 300 estimates know a variance to 8 %: five deviations, with 5 % for n = 400 not being infinite.
        assert 400 * float(theta[:, 0].var()) == pytest.approx(variance, rel=0.45)


def test_what_cannot_be_answered_is_refused():
    model = LinearGaussianModel(torch.ones(2, 1), torch.zeros(2), 0.5)
    state = torch.get_rng_state()
    efficiency = noise_efficiency(
        NCE(model, normal(2.0, width=2)), samples=500, best=False, generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert 0 < efficiency.against_likelihood < 1
    assert efficiency.effective_samples > 100
    assert efficiency.covariance.shape == (5, 5)
    with pytest.raises(ValueError, match=r"model.*eigenvalues"):
        noise_efficiency(NCE(Doubled(), normal()), x=quantiles(100))
    with pytest.raises(ValueError, match=r"x.*Mean"):
        noise_efficiency(NCE(Mean(), normal()))
    with pytest.raises(TypeError, match=r"objective.*RankingNCE"):
        noise_efficiency(RankingNCE(Mean(), noise=normal()), x=quantiles(100))
    with pytest.raises(TypeError, match=r"objective.*Linear"):
        noise_efficiency(nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"log_prob.*JointOnly"):
        noise_efficiency(VariationalNCE(JointOnly(), GaussianEncoder(nn.Linear(1, 2)), normal()))


class Doubled(Mean):
    def __init__(self):
        super().__init__()
        self.other = nn.Parameter(torch.zeros(1))

    def log_prob(self, x):
        return -((x - self.mean - self.other) ** 2).sum(-1) / 2


class JointOnly(nn.Module):
    def log_joint(self, x, z):
        return -(x - z).square().sum(-1)
