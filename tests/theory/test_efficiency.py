"""The page 'Relatives' on efficiency: what each rule's estimate costs, exactly, on finite spaces and by quadrature.

Notation of Eq. variance with K = ν noise samples for each datum: φ = df1/dΔ at the truth, r = p_d/(ν p_n), g = ∇Δ, and

    n·Cov = H⁻¹ (M − (1 + 1/ν) m mᵀ) H⁻¹,   H = E_d[φ g gᵀ],   M = E_d[(1+r) φ² g gᵀ],   m = E_d[φ g].
"""

import numpy as np
import pytest

from efficiency_problems import covariance, pieces, precision_problem, random_problem, slope, with_log_z
from fvnce import Logarithmic, PowerRule
from fvnce.scoring import from_weight

RULES = {
    "(0, 0)": PowerRule(0, clip=None),
    "(1/4, 0)": PowerRule(0.25, clip=None),
    "(1/2, 0)": PowerRule(0.5, clip=None),
    "(1, 0)": PowerRule(1, clip=None),
    "(0, 1)": PowerRule(0, 1, clip=None),
    "(1/2, 3)": PowerRule(0.5, 3, clip=None),
    "sum": 0.3 * PowerRule(0, clip=None) + 0.7 * PowerRule(1, clip=None),
    "weight": from_weight(lambda r: 1 / (1 + r) ** 0.5),
}


@pytest.mark.parametrize("nu", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("name", ["(0, 0)", "(1/2, 0)", "(0, 1)"])
def test_the_covariance_is_that_of_many_estimates(name, nu):
    """Two free parameters on five states: the covariance of one Newton step from the truth over 4000 data sets.

    The relative error of a variance from 4000 normal draws has a deviation of √(2/4000) = 2.2 %: 10 % is 4.5 of them.
    """
    rng = np.random.default_rng(3)
    p_d, p_n = np.array([0.15, 0.3, 0.25, 0.2, 0.1]), np.array([0.2, 0.2, 0.2, 0.15, 0.25])
    g = with_log_z(np.array([[-1.0], [0.5], [1.0], [-0.5], [2.0]]))
    rule, n = RULES[name], 20_000
    r = p_d / (nu * p_n)
    phi = slope(rule, r)
    curvature, _, _ = pieces(p_d, p_n, g, rule, nu)
    data = rng.multinomial(n, p_d, size=4000) / n
    noise = rng.multinomial(round(nu * n), p_n, size=4000) / round(nu * n)
    # Gradient of E_d f1(r/ν) + ν E_n f0(r/ν) at the truth: df0/dΔ = −r φ.
    score = (data * phi) @ g - nu * (noise * r * phi) @ g
    steps = score @ np.linalg.inv(curvature)
    actual = n * np.cov(steps.T)
    expected = covariance(p_d, p_n, g, rule, nu)
    np.testing.assert_allclose(np.diag(actual), np.diag(expected), rtol=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_of_all_rules_the_logarithmic_is_the_most_efficient_with_log_z(seed):
    """In the order of positive semi-definite matrices."""
    p_d, p_n, g = random_problem(seed, 3)
    best = covariance(p_d, p_n, with_log_z(g), Logarithmic())
    for rule in RULES.values():
        own = covariance(p_d, p_n, with_log_z(g), rule)
        # Rounding is relative to the larger of the two.
        assert np.linalg.eigvalsh((own + own.T) / 2 - best).min() > -1e-9 * np.trace(own)


@pytest.mark.parametrize("nu", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("seed", range(20))
def test_for_one_parameter_00_is_the_most_efficient_rule_that_bounds_both_terms(seed, nu):
    """A parameter of a normalised model, E_d[g] = 0, and log Z alone, g = −1."""
    p_d, p_n, g = random_problem(seed, 1)
    for gradient in (g - p_d @ g, -np.ones_like(g)):
        lowest = covariance(p_d, p_n, gradient, RULES["(0, 0)"], nu)[0, 0]
        for rule in RULES.values():
            assert covariance(p_d, p_n, gradient, rule, nu)[0, 0] >= lowest * (1 - 1e-10)


@pytest.mark.parametrize("seed", range(20))
def test_averaged_over_directions_00_is_the_most_efficient(seed):
    """tr(A M)/(tr A H)² is smallest for (0, 0), whatever the metric A."""
    p_d, p_n, g = random_problem(seed, 3)
    root = np.random.default_rng(100 + seed).normal(size=(4, 4))
    metric = root @ root.T

    def average(rule):
        curvature, second, _ = pieces(p_d, p_n, with_log_z(g), rule, 1.0)
        return np.trace(metric @ second) / np.trace(metric @ curvature) ** 2

    for rule in RULES.values():
        assert average(rule) >= average(RULES["(0, 0)"]) * (1 - 1e-10)


def test_with_log_z_unknown_00_need_not_be_the_most_efficient():
    """The counter-example of the page, on four states."""
    p_d, p_n = np.array([0.1, 0.5, 0.15, 0.25]), np.array([7, 1, 8, 7]) / 23
    g = with_log_z(np.array([[-1.0], [1.0], [-2.0], [2.0]]))
    variances = {name: covariance(p_d, p_n, g, RULES[name])[0, 0] for name in ("(0, 0)", "(1, 0)")}
    assert variances["(0, 0)"] == pytest.approx(1.088, abs=5e-4)
    assert variances["(1, 0)"] == pytest.approx(0.941, abs=5e-4)
    assert covariance(p_d, p_n, g, Logarithmic())[0, 0] == pytest.approx(0.925, abs=5e-4)


def test_with_much_noise_nce_and_00_are_maximum_likelihood_and_no_other_rule_is():
    """ν = 10⁶, the precision of N(0, 1) with log Z, noise N(0, 2²): variances over that of maximum likelihood, 2."""
    p_d, p_n, g = precision_problem(2.0)
    over = {name: covariance(p_d, p_n, g, rule, 1e6)[0, 0] / 2 for name, rule in RULES.items()}
    assert covariance(p_d, p_n, g, Logarithmic(), 1e6)[0, 0] / 2 == pytest.approx(1, abs=1e-4)
    assert over["(0, 0)"] == pytest.approx(1, abs=1e-4)
    assert over["(1/2, 0)"] == pytest.approx(1.26, abs=5e-3)
    assert over["(1, 0)"] == pytest.approx(1.81, abs=5e-3)


@pytest.mark.parametrize("nu", [0.5, 3.0])
def test_where_the_noise_is_the_data_all_rules_agree(nu):
    p_d, _, g = random_problem(0, 2)
    expected = covariance(p_d, p_d, with_log_z(g), Logarithmic(), nu)
    for rule in RULES.values():
        np.testing.assert_allclose(covariance(p_d, p_d, with_log_z(g), rule, nu), expected, rtol=1e-9)


@pytest.mark.slow
def test_the_price_of_the_second_bound_grows_as_the_noise_broadens():
    """Variance of (0, 0) over that of NCE, one noise sample per data sample, σ_n = 1.2 … 10."""
    prices = []
    for noise_scale in (1.2, 2.0, 4.0, 10.0):
        p_d, p_n, g = precision_problem(noise_scale)
        prices.append(covariance(p_d, p_n, g, RULES["(0, 0)"])[0, 0] / covariance(p_d, p_n, g, Logarithmic())[0, 0])
    assert prices == sorted(prices)
    assert prices[0] == pytest.approx(1.03, abs=5e-3)
    assert prices[-1] == pytest.approx(1.55, abs=6e-3)
