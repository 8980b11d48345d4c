"""The laws of proper scoring rules, for every rule."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from torch.autograd import forward_ad

from contracts import CLASSICAL, DOUBLE, EVERY_RULE, FAMILY, VARIATIONAL, derivatives, rules
from fvnce import Logarithmic, PowerRule, _validation
from fvnce.scoring import check_double_elbo, from_pair, from_weight

GRID = torch.linspace(-30, 30, 601, dtype=DOUBLE)


@rules(EVERY_RULE)
def test_compatible(rule):
    """f0' = −r f1', to 1e-10 relative, over the whole range."""
    delta = torch.linspace(-30, 30, 601, dtype=DOUBLE)
    _, phi1, _ = derivatives(rule.f1, delta)
    _, phi0, _ = derivatives(rule.f0, delta)
    torch.testing.assert_close(phi0, -delta.exp() * phi1, rtol=1e-10, atol=0)


@settings(max_examples=400)
@given(st.floats(0, 1), st.floats(0, 1e3))
def test_compatible_anywhere_in_the_family(alpha, beta):
    rule = PowerRule(alpha, beta, clip=None)
    _, phi1, psi1 = derivatives(rule.f1, GRID)
    _, phi0, psi0 = derivatives(rule.f0, GRID)
    torch.testing.assert_close(phi0, -GRID.exp() * phi1, rtol=1e-10, atol=0)
    # and one derivative further: (−e^Δ φ1)' = −e^Δ (φ1 + φ1')
    torch.testing.assert_close(psi0, -GRID.exp() * (phi1 + psi1), rtol=1e-9, atol=0)
    slack = 1e-12 * phi1
    assert (psi1 >= -slack).all()  # 0 ≤ (log φ)'
    assert (psi1 <= phi1 + slack).all()  # (log φ)' ≤ 1


@rules(EVERY_RULE)
def test_proper(rule):
    """For random μ*, the expected score μ* S(1, μ) + (1−μ*) S(0, μ) is largest at μ = μ*."""
    rng = np.random.default_rng(0)
    for truth in rng.uniform(0.02, 0.98, size=20):
        mu = torch.from_numpy(np.sort(np.r_[np.linspace(0.001, 0.999, 997), truth]))
        expected = truth * rule.score(1, mu) + (1 - truth) * rule.score(0, mu)
        assert mu[expected.argmax()].item() == pytest.approx(truth, abs=1e-12)


@rules(EVERY_RULE)
def test_generator_gives_the_scores_back(rule):
    """S(1, μ) = G + (1−μ)G' and S(0, μ) = G − μG', with G' by finite differences."""
    mu = torch.linspace(0.05, 0.95, 19, dtype=DOUBLE)
    h = 1e-5
    slope = (rule.generator(mu + h) - rule.generator(mu - h)) / (2 * h)
    generator = rule.generator(mu)
    torch.testing.assert_close(rule.score(1, mu), generator + (1 - mu) * slope, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rule.score(0, mu), generator - mu * slope, rtol=1e-6, atol=1e-6)


@rules(EVERY_RULE)
def test_gradients_match_finite_differences(rule):
    delta = torch.linspace(-6, 6, 25, dtype=DOUBLE, requires_grad=True)
    for function in (rule.f1, rule.f0):
        assert torch.autograd.gradcheck(function, delta)
        assert torch.autograd.gradgradcheck(function, delta)


@pytest.mark.slow
@rules(VARIATIONAL)
def test_double_elbo_holds(rule):
    report = check_double_elbo(rule)
    assert report.holds, str(report)
    assert report.valid_below == math.inf
    assert rule.variational


@rules(EVERY_RULE)
def test_log_slope(rule):
    delta = torch.linspace(-10, 10, 101, dtype=DOUBLE)
    _, phi, psi = derivatives(rule.f1, delta)
    log, rate = rule.log_slope(delta)
    torch.testing.assert_close(log, phi.log(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rate, psi / phi, rtol=1e-9, atol=1e-9)


@rules(CLASSICAL)
def test_classical_rules_fail_in_f0_alone(rule):
    report = check_double_elbo(rule)
    assert [law.holds for law in report.laws] == [True, False, True, True]
    assert report.f0_concave.worst > 0.5
    assert report.proper
    assert not rule.variational
    assert "f0 concave     fails" in str(report)


@rules(
    [PowerRule(a, b) for a in (0.0, 1 / 16, 1.0) for b in (0.0, 1.0)]
    + [
        PowerRule(0.1) + PowerRule(0, 2),
        PowerRule(0.5).normalized(),
        from_weight(lambda r: (1 + r) ** -0.5),
        *CLASSICAL,
    ]
)
def test_log_slope_at_the_extremes(rule):
    """Finite in float32 for |Δ| ≤ 1e4, and the float64 value: what decides which noise samples are dead."""
    reach = 340.0 if "from_weight" in repr(rule) else 1e4
    delta = torch.tensor([-reach, -200.0, -50.0, 0.0, 50.0, 200.0, reach])
    log, rate = rule.log_slope(delta)
    assert log.isfinite().all()
    assert rate.isfinite().all()
    torch.testing.assert_close(log.double(), rule.log_slope(delta.double())[0], rtol=1e-5, atol=1e-4)


def test_a_weight_goes_on_along_its_tangent_beyond_float64():
    rule = from_weight(lambda r: 1 / r, clip=None)
    delta = torch.tensor([-5000.0, -701.0, 351.0, 5000.0], dtype=DOUBLE)
    torch.testing.assert_close(rule.f1(delta), delta)


@rules(VARIATIONAL)
def test_jensen(rule):
    """f_k(E r) ≥ E f_k(r) for both k: what the double bound rests on."""
    generator = torch.Generator().manual_seed(1)
    delta = 2 * torch.randn(2000, 7, dtype=DOUBLE, generator=generator)
    log_mean = delta.logsumexp(1) - math.log(7)
    for function in (rule.f1, rule.f0):
        value = function(log_mean)
        assert (value >= function(delta).mean(1) - 1e-9 * (1 + value.abs())).all()


@rules(CLASSICAL)
def test_jensen_fails_for_the_noise_term_of_classical_rules(rule):
    delta = torch.tensor([-2.0, 3.0], dtype=DOUBLE)
    assert rule.f0(delta.logsumexp(0) - math.log(2)) < rule.f0(delta).mean()


@rules([*CLASSICAL, *VARIATIONAL])
def test_recovers_a_known_density_ratio(rule):
    """Maximising E_data f1(Δ) + E_noise f0(Δ) over Δ = ax² + bx + c finds the log-ratio of two Gaussians.

    Expectations are Gauss–Hermite sums, so the maximum is the truth itself, not an estimate.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    nodes, weights = torch.from_numpy(nodes), torch.from_numpy(weights / math.sqrt(2 * math.pi))
    mean, scale = 0.3, 0.8
    truth = torch.tensor([0.5 - 0.5 / scale**2, mean / scale**2, -(mean**2) / (2 * scale**2) - math.log(scale)])
    coefficients = torch.zeros(3, dtype=DOUBLE, requires_grad=True)

    def log_ratio(x):
        return coefficients[0] * x**2 + coefficients[1] * x + coefficients[2]

    data, noise = mean + scale * nodes, nodes
    optimiser = torch.optim.LBFGS(
        [coefficients], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = -(weights * rule.f1(log_ratio(data))).sum() - (weights * rule.f0(log_ratio(noise))).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    torch.testing.assert_close(coefficients.detach(), truth.double(), rtol=0, atol=2e-5)


def test_the_uncorrected_f0_is_refused():
    """f0 = −(r+β)^(α+1)/(α+1), as printed in the paper, is not compatible for β > 0."""
    alpha, beta = 0.5, 1.0
    printed = from_pair(
        lambda d: (d.exp() + beta) ** alpha / alpha,
        lambda d: -((d.exp() + beta) ** (alpha + 1)) / (alpha + 1),
    )
    report = check_double_elbo(printed)
    assert not report.holds
    assert not report.compatible.holds
    assert report.compatible.worst > 0.1


def test_a_clip_keeps_the_laws_below_its_threshold():
    for alpha, beta, clip in [(0, 0, 10), (0.25, 0, 10), (1, 0, 4), (1 / 16, 3, 2), (0, 1, 0)]:
        rule = PowerRule(alpha, beta, clip=clip)
        report = check_double_elbo(rule)
        assert report.holds
        assert rule.variational
        assert report.valid_below == pytest.approx(clip / (1 + alpha), abs=1e-6)
    cone = 0.9 * PowerRule(1 / 64) + 0.1 * PowerRule(0)
    assert check_double_elbo(cone).valid_below == pytest.approx(10 / (1 + 1 / 64), abs=1e-6)


def test_above_the_clip_f0_is_convex_in_r():
    rule = PowerRule(0.0, clip=2.0)
    delta = torch.tensor([3.0, 5.0], dtype=DOUBLE)
    assert rule.f0(delta.logsumexp(0) - math.log(2)) < rule.f0(delta).mean()


@pytest.mark.parametrize("alpha", [0.0, 1e-3, 0.25, 1.0])
def test_the_clip_is_the_papers_clipped_exponential(alpha):
    """At β = 0: e^u becomes e^T (u − T + 1) above T, for u = αΔ in f1 and u = (1+α)Δ in f0."""
    T = 3.0

    def clipped_exp(u):
        return torch.where(u <= T, u.clamp(max=T).exp(), math.exp(T) * (u - T + 1))

    rule, delta = PowerRule(alpha, clip=T), torch.linspace(-40, 40, 321, dtype=DOUBLE)
    f1 = delta if alpha == 0 else (clipped_exp(alpha * delta) - 1) / alpha
    torch.testing.assert_close(rule.f1(delta), f1, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rule.f0(delta), -clipped_exp((1 + alpha) * delta) / (1 + alpha))


@pytest.mark.parametrize("beta", [0.0, 0.5, 50.0])
@pytest.mark.parametrize("alpha", [0.0, 1 / 256, 0.5, 1.0])
def test_the_clip_joins_with_its_slope_and_never_rewards_noise(alpha, beta):
    rule = PowerRule(alpha, beta, clip=2.0)
    for at, function in zip(rule.tangent_above, (rule.f1, rule.f0), strict=True):
        if math.isfinite(at):
            value, slope, _ = derivatives(function, torch.tensor([at - 1e-9, at + 1e-9], dtype=DOUBLE))
            assert value[0].item() == pytest.approx(value[1].item(), rel=1e-6)
            assert slope[0].item() == pytest.approx(slope[1].item(), rel=1e-6)
    delta = torch.linspace(-50, 1000, 2001, dtype=DOUBLE)
    assert (derivatives(rule.f0, delta)[1] <= 0).all()
    assert (derivatives(rule.f1, delta)[1] >= 0).all()


CLIPPED = [
    PowerRule(alpha, beta, clip)
    for alpha in (0.0, 1e-8, 1 / 16, 1.0)
    for beta in (0.0, 1e-6, 1.0, 100.0)
    for clip in (0.0, 10.0, 75.0)
]
CLIPPED += [0.9 * PowerRule(1 / 64) + 0.1 * PowerRule(0), from_weight(lambda r: (1 + r) ** -0.5, clip=35.0)]
#: The gradient of a float16 input is a float16, which ends at e^11.
IN_HALF = [rule for rule in CLIPPED if min(rule.tangent_above) <= 10]


@pytest.mark.parametrize(
    ("rule", "dtype"),
    [(rule, dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16) for rule in CLIPPED + CLASSICAL]
    + [(rule, torch.float16) for rule in IN_HALF + CLASSICAL],
    ids=repr,
)
def test_finite_at_the_extremes(rule, dtype):
    delta = torch.tensor([-1e4, -100, -1, 0, 1, 100, 1e4], dtype=dtype)
    for function in (rule.f1, rule.f0):
        value, first, second = derivatives(function, delta)
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        for tensor in (value, first, second):
            assert tensor.isfinite().all()


@rules(FAMILY)
def test_values_match_quadrature(rule):
    """f1(r) − f1(1) = ∫₁ʳ w and f0(r) − f0(1) = −∫₁ʳ s w, with w = (s+β)^(α−1)."""

    def weight(s):
        return (s + rule.beta) ** (rule.alpha - 1)

    one = torch.zeros((), dtype=DOUBLE)
    for r in (0.01, 0.4, 3.0, 30.0):
        delta = torch.tensor(math.log(r), dtype=DOUBLE)
        first = quad(weight, 1, r, epsabs=1e-13, epsrel=1e-13)[0]
        second = -quad(lambda s: s * weight(s), 1, r, epsabs=1e-13, epsrel=1e-13)[0]
        assert (rule.f1(delta) - rule.f1(one)).item() == pytest.approx(first, rel=1e-9, abs=1e-9)
        assert (rule.f0(delta) - rule.f0(one)).item() == pytest.approx(second, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("beta", [0.0, 0.7, 3.0])
def test_continuous_as_alpha_vanishes(beta):
    """|f(α) − f(0)| = O(α): neither 0/0 nor cancellation near α = 1e-8, value and slope."""
    delta = torch.linspace(-30, 8, 301, dtype=DOUBLE)
    limit = PowerRule(0.0, beta, clip=None)
    for alpha in (1e-6, 1e-8, 1e-10, 1e-15):
        near = PowerRule(alpha, beta, clip=None)
        for f, g in ((near.f1, limit.f1), (near.f0, limit.f0)):
            value, slope, _ = derivatives(f, delta)
            value0, slope0, _ = derivatives(g, delta)
            assert (value - value0).abs().max() <= alpha * 1e5 + 1e-11
            torch.testing.assert_close(slope, slope0, rtol=40 * alpha + 1e-13, atol=0)


def test_beta_zero_is_the_limit_of_small_beta():
    delta = torch.linspace(-5, 5, 101, dtype=DOUBLE)
    for alpha in (0.0, 0.5):
        exact, near = PowerRule(alpha, clip=None), PowerRule(alpha, 1e-12, clip=None)
        torch.testing.assert_close(near.f1(delta), exact.f1(delta), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(near.f0(delta), exact.f0(delta), rtol=1e-8, atol=1e-8)


def test_every_normalised_rule_lies_between_the_extremes():
    """log r ≤ f1 ≤ r − 1 for every normalized double-ELBO rule: (0,0) and (1,0) are the two ends."""
    delta = torch.linspace(-10, 10, 401, dtype=DOUBLE)
    for rule in VARIATIONAL:
        f1 = rule.normalized().f1(delta)
        assert (f1 >= delta - 1e-6).all(), rule
        assert (f1 <= torch.expm1(delta) * (1 + 1e-6) + 1e-6).all(), rule


def test_the_papers_normalised_form():
    delta = torch.linspace(-5, 5, 101, dtype=DOUBLE)
    r = delta.exp()
    for alpha, beta in [(0.5, 0.0), (0.25, 2.0), (1.0, 1.0)]:
        c = (1 + beta) ** (1 - alpha)
        f1 = c / alpha * ((r + beta) ** alpha - (1 + beta) ** alpha)
        f0 = (
            -c
            / (alpha * (alpha + 1))
            * ((alpha * r - beta) * (r + beta) ** alpha - (alpha - beta) * (1 + beta) ** alpha)
        )
        rule = PowerRule(alpha, beta, clip=None).normalized()
        torch.testing.assert_close(rule.f1(delta), f1)
        torch.testing.assert_close(rule.f0(delta), f0)


@pytest.mark.parametrize("alpha", [0.0, 1 / 16, 0.5, 1.0])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_weight_rebuilds_the_family(alpha, beta):
    """Two routes to one rule: the closed form, and the integral of its weight."""
    exact = PowerRule(alpha, beta, clip=None).f1, PowerRule(alpha, beta, clip=None).f0
    built = from_weight(lambda r: (r + beta) ** (alpha - 1), clip=None)
    delta = torch.cat([torch.linspace(-40, 40, 333, dtype=DOUBLE), torch.tensor([-600.0, -90.0])])
    zero = torch.zeros((), dtype=DOUBLE)
    for function, reference in zip((built.f1, built.f0), exact, strict=True):
        expected = reference(delta) - reference(zero)
        torch.testing.assert_close(function(delta), expected, rtol=1e-12, atol=1e-11)


def test_the_weight_of_a_generator_rebuilds_the_logarithmic_rule():
    """w(r) = (1−μ)³ G''(μ) with G'' = 1/μ(1−μ) is 1/r(1+r), up to the constants of f1 and f0."""
    built = from_weight(lambda r: 1 / (r * (1 + r)), clip=None)
    delta, zero = torch.linspace(-10, 10, 101, dtype=DOUBLE), torch.zeros((), dtype=DOUBLE)
    for function, exact in ((built.f1, Logarithmic().f1), (built.f0, Logarithmic().f0)):
        torch.testing.assert_close(function(delta), exact(delta) - exact(zero), rtol=1e-8, atol=1e-10)
    assert not built.variational


def test_a_weight_that_falls_too_fast_or_rises_is_not_variational():
    too_fast = from_weight(lambda r: (1 + r) ** -2)
    report = check_double_elbo(too_fast)
    assert report.proper
    assert report.f1_concave.holds
    assert not report.f0_concave.holds
    rising = check_double_elbo(from_weight(lambda r: 1 + r / (1 + r)))
    assert rising.proper
    assert not rising.f1_concave.holds
    assert rising.f0_concave.holds


def test_a_classical_part_can_be_outweighed():
    """w = ε/(r(1+r)) + 1 obeys both monotonicities for small ε although the first part alone does not."""
    assert (0.01 * Logarithmic() + PowerRule(1.0)).variational
    assert not (Logarithmic() + 0.01 * PowerRule(1.0)).variational


@pytest.mark.parametrize("rule", [PowerRule(0.25, 1.0), Logarithmic(), 0.5 * PowerRule(0.1) + PowerRule(0)], ids=repr)
def test_works_under_function_transforms(rule):
    delta = torch.linspace(-3, 3, 7, dtype=DOUBLE)
    for function in (rule.f1, rule.f0):
        value, first, second = derivatives(function, delta)
        torch.testing.assert_close(torch.func.vmap(function)(delta), value)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(function))(delta), first)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(torch.func.grad(function)))(delta), second)


def test_transforms_are_noticed():
    def noticed(x):
        seen.append(_validation.values_are_hidden())
        return x * x

    seen = []
    noticed(torch.ones(()))
    for transform in (torch.func.vmap, torch.func.grad, torch.func.jacrev):
        transform(noticed)(torch.ones(2 if transform is torch.func.vmap else ()))
    assert seen == [False, True, True, True]


# torch itself calls what it deprecates when forward mode is first used.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@rules(EVERY_RULE)
def test_forward_mode(rule):
    """Dual numbers, torch.func.jvp and its jacobians give the derivative that backward gives, lost tails included."""
    delta = torch.tensor([-30.0, -12.0, -3.0, 0.0, 2.0, 9.0], dtype=DOUBLE)
    ones = torch.ones_like(delta)
    for function in (rule.f1, rule.f0):
        value, first, second = derivatives(function, delta)
        for point in (delta, delta.clone().requires_grad_()):
            with forward_ad.dual_level():
                dual = forward_ad.unpack_dual(function(forward_ad.make_dual(point, ones)))
                torch.testing.assert_close(dual.primal, value, rtol=1e-12, atol=0)
                torch.testing.assert_close(dual.tangent, first, rtol=1e-9, atol=0)
        primal, tangent = torch.func.jvp(function, (delta,), (ones,))
        torch.testing.assert_close(primal, value, rtol=1e-12, atol=0)
        torch.testing.assert_close(tangent, first, rtol=1e-9, atol=0)
        torch.testing.assert_close(torch.func.jacfwd(function)(delta).diagonal(), first, rtol=1e-9, atol=0)
        torch.testing.assert_close(torch.func.vmap(torch.func.hessian(function))(delta), second, rtol=1e-9, atol=1e-9)
