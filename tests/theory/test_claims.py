"""Statements of docs/theory that no other test is about, on problems with known answers."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

from fvnce import FullyVariationalNCE, Logarithmic, PowerRule
from fvnce.objectives import NCE, Profiled
from fvnce.scoring import from_weight

DOUBLE_ELBO = [
    PowerRule(0, clip=None),
    PowerRule(0.3, clip=None),
    PowerRule(1, clip=None),
    PowerRule(0.5, 2, clip=None),
    from_weight(lambda r: 1 / (1 + r) ** 0.5),
]


@pytest.fixture(autouse=True)
def _double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def simplex(seed, states=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(states, generator=generator).add(0.1).log().softmax(0)


def value(rule, p_d, p_n, p_model, nu=1.0):
    """J on a finite space."""
    delta = (p_model / p_n).log() - math.log(nu)
    return p_d @ rule.f1(delta) + nu * (p_n @ rule.f0(delta))


def test_every_claim_names_tests_that_exist():
    """The list of claims, claims.md: each row has a test, a proof or a result of its own."""
    root = Path(__file__).resolve().parents[2]
    page = Path(__file__).with_name("claims.md").read_text("utf-8")
    sources = "".join(path.read_text("utf-8") for path in root.glob("tests/**/test_*.py"))
    existing = set(re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE))
    rows = [row for row in re.findall(r"^\| (.+) \| (.+) \|$", page, re.MULTILINE) if row[1] != "shown by"]
    assert len(rows) > 40
    for claim, shown in rows:
        functions = re.findall(r"`(test_\w+)`", shown)
        results = re.findall(r"`(results/[\w./-]+)`", shown)
        assert functions or results, claim
        assert existing.issuperset(functions), claim
        for result in results:
            assert (root / result).is_file(), result


# Scoring rules


@pytest.mark.parametrize("rule", DOUBLE_ELBO, ids=repr)
def test_f0_falls_at_least_linearly_in_r(rule):
    """f0' = −r w(r), and r w(r) does not decrease: beyond r = 1 the fall is at least w(1) per unit of r."""
    r = torch.linspace(1.0, 400.0, 2000)
    weight = rule.log_slope(torch.zeros(1))[0].exp()
    fall = rule.f0(torch.zeros(1)) - rule.f0(r.log())
    assert (fall >= weight * (r - 1) - 1e-9 * fall.abs()).all()


def test_float32_has_no_e_to_the_minus_104():
    assert torch.tensor(-104.0, dtype=torch.float32).exp() == 0
    assert torch.tensor(-103.0, dtype=torch.float32).exp() > 0


# Objectives


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_noise_ratio_only_rescales_the_power_rules(alpha):
    """J_ν = ν^(−α) J_1 + const, Eq. noise_ratio."""
    rule, p_d, p_n = PowerRule(alpha, clip=None), simplex(0), simplex(1)
    models = [simplex(seed) for seed in range(2, 6)]
    for nu in (0.25, 5.0):
        of_one = torch.stack([value(rule, p_d, p_n, p) for p in models])
        of_nu = torch.stack([value(rule, p_d, p_n, p, nu) for p in models])
        torch.testing.assert_close(of_nu - of_nu[0], nu**-alpha * (of_one - of_one[0]))


def test_the_logarithmic_rule_against_ever_more_noise_becomes_00():
    """Eq. noisier, with an error that falls as 1/M."""
    p_d, p_n, model = simplex(0), simplex(1), simplex(2)
    limit = value(PowerRule(0, clip=None), p_d, p_n, model)
    errors = [float(value(Logarithmic(), p_d, p_n, model, m) + math.log(m) - limit) for m in (1e2, 1e3, 1e4)]
    assert abs(errors[0]) < 0.05
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.01)


def test_the_encoder_of_data_cancels_in_least_squares():
    """E_{d, q1}[r] at (1, 0) is the same number for every q1 of full support, Eq. J10."""
    generator = torch.Generator().manual_seed(0)
    joint = torch.rand(6, 3, generator=generator)
    p_d, p_n = simplex(0), simplex(1)
    actual = []
    for _ in range(3):
        q = torch.rand(6, 3, generator=generator).add(0.05)
        q = q / q.sum(1, keepdim=True)
        actual.append((p_d[:, None] * q * joint / (p_n[:, None] * q)).sum())
    torch.testing.assert_close(torch.stack(actual), actual[0].expand(3))


def test_a_deterministic_encoder_makes_an_unnormalised_density():
    """E_n[p(x, g(x))/p_n(x)] = ∫ p(x, g(x)) dx, which is not 1 and moves with g, Eq. rVAE."""
    x = torch.linspace(-12, 12, 20_001)
    normal = Normal(0.0, 1.0)
    integrals = []
    for a in (0.0, 0.3, 0.8):
        density = (Normal(a * x, 0.5).log_prob(x) + normal.log_prob(a * x)).exp()
        p_n = Normal(0.0, 2.0).log_prob(x).exp()
        as_a_mean = torch.trapezoid(p_n * (density / p_n), x)
        torch.testing.assert_close(as_a_mean, torch.trapezoid(density, x))
        # ∫ N(x; ax, s²) N(ax; 0, 1) dx with x-precision P = (1−a)²/s² + a² is √(2π/P)/(2πs).
        precision = (1 - a) ** 2 / 0.25 + a**2
        assert float(as_a_mean) == pytest.approx(math.sqrt(2 * math.pi / precision) / (2 * math.pi * 0.5), rel=1e-6)
        integrals.append(float(as_a_mean))
    assert max(integrals) - min(integrals) > 0.1


# Unnormalised models


class Bell(nn.Module):
    """log p⁰ = −a x²/2."""

    def __init__(self, a=1.0):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a))

    def log_prob(self, x):
        return -self.a * x[:, 0] ** 2 / 2


def test_a_log_scale_weighs_the_noise_term_of_00():
    """Without a clip, Δ = Δ⁰ + s gives s + E_d[Δ⁰] − e^s E_n[e^Δ⁰]."""
    torch.manual_seed(0)
    noise = Independent(Normal(torch.zeros(1), torch.full((1,), 2.0)), 1)
    x, y = torch.randn(40, 1), noise.sample((60,))
    s = 1.7
    objective = NCE(Bell(), noise, PowerRule(0, clip=None), log_scale=s)
    data = Bell().log_prob(x) - noise.log_prob(x)
    fake = Bell().log_prob(y) - noise.log_prob(y)
    torch.testing.assert_close(-objective(x, y), s + data.mean() - math.exp(s) * fake.exp().mean())


def test_the_held_out_bound_holds_for_any_c_and_is_best_at_log_z():
    """E_d[Δ⁰] − c − e^(−c) Z + 1 ≤ E_d[log p_θ/p_n], Eq. held_out."""
    p_d, p_n = simplex(0), simplex(1)
    unnormalised = 7 * simplex(2)
    log_z = unnormalised.sum().log()
    delta0 = (unnormalised / p_n).log()
    truth = p_d @ (delta0 - log_z)
    c = torch.linspace(-4, 8, 601)
    bound = p_d @ delta0 - c - (-c).exp() * (p_n @ delta0.exp()) + 1
    assert (bound <= truth + 1e-12).all()
    torch.testing.assert_close(p_d @ delta0 - log_z - (-log_z).exp() * (p_n @ delta0.exp()) + 1, truth)


def fitted_scale(alpha, p_d, p_n, unnormalised, q=None):
    """c* = log B − log A of exact sums, with an encoder q(z|x) over the second dimension or none."""
    if q is None:
        unnormalised, q = unnormalised[:, None], torch.ones(len(p_d), 1)
    delta0 = (unnormalised / (p_n[:, None] * q)).log()
    log_a = (p_d[:, None] * q * (alpha * delta0).exp()).sum().log()
    log_b = (p_n[:, None] * q * ((1 + alpha) * delta0).exp()).sum().log()
    return log_b - log_a


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_fitted_scale_is_log_z_if_alpha_is_0_or_the_model_well_specified(alpha):
    p_d, p_n = simplex(0), simplex(1)
    log_z = math.log(7.0)
    torch.testing.assert_close(fitted_scale(alpha, p_d, p_n, 7 * p_d), torch.tensor(log_z))
    misspecified = float(fitted_scale(alpha, p_d, p_n, 7 * simplex(2)))
    assert (abs(misspecified - log_z) < 1e-12) == (alpha == 0)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_an_encoder_that_is_not_the_posterior_raises_the_fitted_scale(alpha):
    """Only for α > 0, and for a well-specified model: B grows by Jensen's inequality, A falls."""
    generator = torch.Generator().manual_seed(0)
    p_d, p_n = simplex(0), simplex(1)
    posterior = torch.rand(6, 3, generator=generator).add(0.1)
    posterior = posterior / posterior.sum(1, keepdim=True)
    joint = p_d[:, None] * posterior
    torch.testing.assert_close(fitted_scale(alpha, p_d, p_n, joint, posterior), torch.tensor(0.0), atol=1e-12, rtol=0)
    other = (posterior.log() + 0.7 * torch.randn(6, 3, generator=generator)).softmax(1)
    if alpha == 0:
        torch.testing.assert_close(fitted_scale(alpha, p_d, p_n, joint, other), torch.tensor(0.0), atol=1e-12, rtol=0)
    else:
        assert fitted_scale(alpha, p_d, p_n, joint, other) > 1e-3


def profiled_value(alpha, p_d, p_n, model):
    delta = (model / p_n).log()
    log_b = torch.log(p_n @ ((1 + alpha) * delta).exp()) / (1 + alpha)
    return p_d @ delta - log_b if alpha == 0 else torch.log(p_d @ (alpha * delta).exp()) / alpha - log_b


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_the_supremum_of_the_profiled_form(alpha):
    """KL(p_d‖p_n) at α = 0, Rényi's D_(1+α)(p_d‖p_n)/(1+α) else, reached at p_θ = p_d alone, Eq. supremum."""
    p_d, p_n = simplex(0), simplex(1)
    if alpha == 0:
        divergence = p_d @ (p_d / p_n).log()
    else:
        divergence = (p_d ** (1 + alpha) @ p_n**-alpha).log() / alpha / (1 + alpha)
    torch.testing.assert_close(profiled_value(alpha, p_d, p_n, p_d), divergence)
    for seed in range(2, 40):
        assert profiled_value(alpha, p_d, p_n, simplex(seed)) < divergence


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_where_no_noise_is_the_objective_has_no_bound(alpha):
    """A state that data visit and a finite pool of noise never does: mass put there raises J without end."""
    p_d = torch.tensor([0.5, 0.3, 0.2])
    visited = torch.tensor([0.6, 0.4])
    values = []
    for height in (1.0, 1e3, 1e6, 1e9):
        delta = torch.tensor([0.0, 0.0, height]).log().clamp(min=0)
        log_b = torch.log(visited @ ((1 + alpha) * delta[:2]).exp()) / (1 + alpha)
        values.append(
            float(p_d @ delta - log_b if alpha == 0 else torch.log(p_d @ (alpha * delta).exp()) / alpha - log_b)
        )
    gains = np.diff(values)
    assert (gains > 0.19 * math.log(1e3)).all()


class Tilt(nn.Module):
    """log p⁰ = t x, relative to a standard normal: ratios are log-normal with standard deviation t."""

    def __init__(self, t):
        super().__init__()
        self.t = nn.Parameter(torch.tensor(t))

    def log_prob(self, x):
        return self.t * x[:, 0]


@pytest.mark.slow
def test_some_of_the_bias_is_left_where_ratios_span_many_nats():
    """Standard deviation 2, 8 noise samples: .87 at momentum 0 and .16 at .9, each within .05, over four errors."""
    noise = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    x, actual = torch.full((2, 1), 2.0), {}  # the mean of the tilted normal is its tilt
    for momentum in (0.0, 0.9):
        model, generator = Tilt(2.0), torch.Generator().manual_seed(1)
        objective = NCE(model, noise, PowerRule(0), partition=Profiled(momentum=momentum))
        slopes = []
        for _ in range(10_000):
            model.t.grad = None
            y = torch.randn(8, 1, generator=generator)
            objective(x, y, log_noise_x=torch.zeros(2), log_noise_noise=torch.zeros(8)).backward()
            slopes.append(-float(model.t.grad))
        actual[momentum] = np.mean(slopes[1000:])
    assert actual[0.0] == pytest.approx(0.87, abs=0.05)
    assert actual[0.9] == pytest.approx(0.16, abs=0.05)


def test_intervals_of_log_z_cover_by_effective_samples():
    """Log-normal weights of many spreads, 1.96 standard errors: the shares of the page, each within 4 %."""
    rng = np.random.default_rng(0)
    effective, covered = [], []
    for spread in np.linspace(0.3, 5.0, 40):
        log_w = spread * rng.normal(size=(400, 1000))
        w = np.exp(log_w - spread**2 / 2)  # of mean 1
        n_eff = w.sum(1) ** 2 / (w**2).sum(1)
        error = np.sqrt((1000 / n_eff - 1) / 999)
        effective.append(n_eff)
        covered.append(np.abs(np.log(w.mean(1))) <= 1.96 * error)
    effective, covered = np.concatenate(effective), np.concatenate(covered)
    for low, high, share in ((500, 1001, 0.95), (100, 500, 0.91), (50, 100, 0.78), (20, 50, 0.64), (5, 20, 0.44)):
        inside = (effective >= low) & (effective < high)
        assert covered[inside].mean() == pytest.approx(share, abs=0.04)


# Relatives


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0])
def test_the_power_rules_are_density_power_divergences(alpha):
    """J = −d_α(p_d, p_θ)/(1+α) + const with densities relative to p_n, Eq. is_density_power."""
    p_d, p_n, rule = simplex(0), simplex(1), PowerRule(alpha, clip=None)
    g = p_d / p_n

    def divergence(model):
        r = model / p_n
        return p_n @ (r ** (1 + alpha) - (1 + 1 / alpha) * g * r**alpha + g ** (1 + alpha) / alpha)

    models = [simplex(seed) for seed in range(2, 6)]
    shifted = torch.stack([value(rule, p_d, p_n, p) + divergence(p) / (1 + alpha) for p in models])
    torch.testing.assert_close(shifted, shifted[0].expand(4))
    torch.testing.assert_close(divergence(p_d), torch.tensor(0.0), atol=1e-12, rtol=0)


def test_far_contamination_hardly_moves_the_profiled_form_with_positive_alpha():
    """20 % of the data at 8: the mean of a unit normal moves by 1.6 at α = 0 and by less than .01 at α = 1/2."""
    x = torch.linspace(-20, 20, 8001)
    cell = x[1] - x[0]
    p_n = Normal(0.0, 5.0).log_prob(x).exp() * cell
    clean, far = Normal(0.0, 1.0).log_prob(x).exp(), Normal(8.0, 0.5).log_prob(x).exp()
    p_d = (0.8 * clean + 0.2 * far) * cell
    means = torch.linspace(-1.0, 3.0, 801)
    best = {}
    for alpha in (0.0, 0.5):
        values = [profiled_value(alpha, p_d, p_n, Normal(m, 1.0).log_prob(x).exp() * cell) for m in means]
        best[alpha] = float(means[torch.stack(values).argmax()])
    assert best[0.0] == pytest.approx(1.6, abs=0.01)
    assert abs(best[0.5]) <= 0.01


# One-class methods


def test_the_best_threshold_of_the_one_class_svm_is_a_conditional_value_at_risk():
    """max_ρ ρ − E[(ρ − f)₊]/ν is the mean of the lowest share ν of f."""
    f = np.sort(np.random.default_rng(0).normal(size=200))
    for count in (10, 50, 200):
        nu = count / 200
        best = max(rho - np.maximum(rho - f, 0).mean() / nu for rho in f)
        assert best == pytest.approx(f[:count].mean(), rel=1e-12)


def test_least_squares_with_the_identity_as_metric_is_the_kernel_mean():
    """w* = M⁻¹ μ, and with M = I the ratio is (1/n) Σ k(x, x_i)."""
    generator = torch.Generator().manual_seed(0)
    data, noise = torch.randn(30, 4, generator=generator), torch.randn(50, 4, generator=generator)
    mean, metric = data.mean(0), noise.T @ noise / len(noise)
    objective = lambda w, m: w @ mean - w @ m @ w / 2  # noqa: E731
    for m in (metric, torch.eye(4)):
        best = torch.linalg.solve(m, mean)
        for _ in range(20):
            assert objective(best + 0.1 * torch.randn(4, generator=generator), m) < objective(best, m)
    points = torch.randn(5, 4, generator=generator)
    torch.testing.assert_close(points @ torch.linalg.solve(torch.eye(4), mean), (points @ data.T).mean(1))


def test_the_limits_of_the_noise_term_of_deep_svdd():
    """Large σ: the mean squared distance of noise; small σ: that of the nearest; collapse earns 0."""
    squares = torch.tensor([0.5, 2.0, 3.0, 9.0])
    term = lambda sigma: -((-squares / (2 * sigma**2)).exp().mean().log()) * 2 * sigma**2  # noqa: E731
    assert float(term(1e3)) == pytest.approx(float(squares.mean()), rel=1e-4)
    nearest = float(term(0.05)) - 2 * 0.05**2 * math.log(4)
    assert nearest == pytest.approx(0.5, rel=1e-6)
    standard = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)

    class Collapsed(nn.Module):
        """Every point has squared distance 0, relative to the noise."""

        def log_prob(self, x):
            return standard.log_prob(x)

    objective = FullyVariationalNCE(Collapsed(), None, standard, PowerRule(0), partition="profiled")
    torch.testing.assert_close(objective(torch.randn(8, 1), torch.randn(9, 1)), torch.tensor(0.0))


def test_the_only_maximiser_needs_noise_that_covers_the_data():
    """J sees p_θ only where noise is: elsewhere mass can be divided in any way, Eq. S_NCE."""
    p_d = torch.tensor([0.4, 0.3, 0.2, 0.1])
    other = torch.tensor([0.4, 0.3, 0.05, 0.25])

    def value(p_theta, p_n):
        """Of the logarithmic rule, in p_θ and p_n themselves, because r may be infinite."""
        mu = p_theta / (p_theta + p_n)
        return float(p_d @ mu.log() + torch.special.xlogy(p_n, 1 - mu).sum())

    covers, misses = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.5, 0.5, 0.0, 0.0])
    assert value(other, covers) < value(p_d, covers) - 1e-3
    assert value(other, misses) == pytest.approx(value(p_d, misses), abs=1e-7)
    for seed in range(20):
        assert value(simplex(seed, 4), covers) < value(p_d, covers)


def test_the_log_scale_is_the_multiplier_of_the_data_term_and_not_of_the_error():
    """E_d[Δ⁰] = −u² − h v², noise term e^(−u−v), ε = u² + v² = 1: both agree if h = 1, and differ at h = 3.

    At a given s training ends where ∇(e^s e^(−u−v) + u² + h v²) = 0, hence at u = h v; the budget fixes v and so s.
    Eq. budget itself has the solution u = v, whatever h is.
    """
    least = math.exp(-math.sqrt(2))
    for h, reached in ((1.0, least), (3.0, math.exp(-4 / math.sqrt(10)))):
        v = 1 / math.sqrt(1 + h * h)
        u = h * v
        s = math.log(2 * u) + u + v
        # a minimum of −J at this s, by moving about it
        points = np.array([u, v]) + 0.01 * np.random.default_rng(0).normal(size=(200, 2))
        loss = np.exp(s - points.sum(1)) + points[:, 0] ** 2 + h * points[:, 1] ** 2
        assert (loss > math.exp(s - u - v) + u * u + h * v * v).all()
        assert math.exp(-u - v) == pytest.approx(reached)
    assert reached > 1.15 * least
