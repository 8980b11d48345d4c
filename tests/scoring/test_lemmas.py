"""The paper's lemmas on scoring rules and the corrections to them, proved with sympy."""

import pytest
import sympy as sp

r, mu, truth = sp.symbols("r mu truth", positive=True)
beta = sp.symbols("beta", nonnegative=True)
beta_positive = sp.symbols("beta", positive=True)
alpha = sp.symbols("alpha", positive=True)


def zero(expression) -> bool:
    """Whether an expression is brought to 0 by algebra alone."""
    return sp.simplify(sp.powsimp(sp.expand(expression), force=True)) == 0


def differs(expression) -> bool:
    """Whether an expression is not identically 0: a point where it is not, in exact arithmetic to 60 digits."""
    points = [sp.Rational(1, 3), sp.Rational(2, 7), sp.Rational(5, 8), sp.Rational(7, 11)]
    symbols = sorted(expression.free_symbols, key=str)
    at = {s: points[i % len(points)] for i, s in enumerate(symbols)}
    return bool(abs(sp.N(expression.subs(at), 60)) > sp.Float("1e-50"))


def pair(a, b):
    """The family with the constants that have limits."""
    return (
        ((r + b) ** a - 1) / a,
        b * ((r + b) ** a - 1) / a - ((r + b) ** (1 + a) - b) / (1 + a),
    )


def generator(f1, f0):
    odds = mu / (1 - mu)
    return mu * f1.subs(r, odds) + (1 - mu) * f0.subs(r, odds)


def second(expression, variable):
    return sp.diff(expression, variable, 2)


def test_zero_can_fail():
    assert differs(r + alpha - r)
    assert differs(sp.sqrt(r) - r)


# The binary rule of a generator, and back.


def test_scores_of_a_generator_are_proper_and_give_it_back():
    G = sp.Function("G")
    S1 = G(mu) + (1 - mu) * sp.diff(G(mu), mu)
    S0 = G(mu) - mu * sp.diff(G(mu), mu)
    assert zero(mu * S1 + (1 - mu) * S0 - G(mu))  # Eq. G_from_S: over the forecast, not over the truth
    expected = truth * S1 + (1 - truth) * S0
    assert zero(sp.diff(expected, mu) - (truth - mu) * sp.diff(G(mu), mu, 2))  # peaks at μ = μ* iff G'' ≥ 0
    bregman = G(truth) - G(mu) - (truth - mu) * sp.diff(G(mu), mu)
    assert zero(bregman - (G(truth) - expected))


def test_with_ber_mu_the_printed_equation_is_wrong():
    G = mu**2
    S1, S0 = G + (1 - mu) * sp.diff(G, mu), G - mu * sp.diff(G, mu)
    assert differs(truth * S1 + (1 - truth) * S0 - G)


def test_sign_of_the_bregman_expansion():
    """D_G(p‖q) = G(p) − G(q) − E_p[∂G] + E_q[∂G] on the simplex; the printed signs are the other way."""
    p, q = sp.symbols("p1:4", positive=True), sp.symbols("q1:4", positive=True)

    def G(x):
        return sum(a * sp.log(a) for a in x)

    gradient = [sp.diff(G(q), a) for a in q]
    definition = G(p) - G(q) - sum((a - b) * g for a, b, g in zip(p, q, gradient, strict=True))
    e_p = sum(a * g for a, g in zip(p, gradient, strict=True))
    e_q = sum(b * g for b, g in zip(q, gradient, strict=True))
    assert zero(sp.expand_log(definition - (G(p) - G(q) - e_p + e_q)))
    printed = G(p) - G(q) + e_p - e_q
    at = dict(zip([*p, *q], [0.2, 0.3, 0.5, 0.4, 0.4, 0.2], strict=True))
    assert abs(sp.N((definition - printed).subs(at))) > 0.1


# Lemma 1: compatibility, and what it implies.


def test_compatibility_is_what_a_generator_implies():
    G = sp.Function("G")
    u = r / (1 + r)
    m = sp.Symbol("m")
    first, curvature = sp.diff(G(m), m), sp.diff(G(m), m, 2)
    # d/dr through m = r/(1+r)
    f1_slope = sp.diff(G(m) + (1 - m) * first, m).doit().subs(m, u) * sp.diff(u, r)
    f0_slope = sp.diff(G(m) - m * first, m).doit().subs(m, u) * sp.diff(u, r)
    assert zero(sp.simplify(f0_slope + r * f1_slope))
    # and G''(μ) = (1+r)³ f1'(r)
    assert zero(sp.simplify(curvature.subs(m, u) - (1 + r) ** 3 * f1_slope))


def test_second_derivative_of_f0():
    w = sp.Function("w")
    assert zero(sp.diff(-r * w(r), r) - (-w(r) - r * sp.diff(w(r), r)))
    # f0 concave ⟺ (r w)' ≥ 0
    assert zero(sp.diff(-r * w(r), r) + sp.diff(r * w(r), r))


def test_symmetry_is_not_excluded_by_compatibility():
    """The logarithmic rule is compatible and symmetric."""
    f1, f0 = sp.log(r / (1 + r)), -sp.log(1 + r)
    assert zero(sp.diff(f0, r) + r * sp.diff(f1, r))
    assert zero(sp.expand_log(f0.subs(r, 1 / r) - f1, force=True).simplify())


def test_two_concave_functions_cannot_be_symmetric():
    """Symmetry, f0(r) = f1(1/r), and compatibility give w(1/r) = r³ w(r), so r·w at 1/r is r²·w(r) = r·(r·w(r)).

    If r·w is non-decreasing, its value at 1/r ≤ 1 is at most that at r ≥ 1: r·(r·w(r)) ≤ r·w(r), hence w(r) = 0 for
    every r > 1, and by symmetry everywhere: only the zero rule is symmetric and has both functions concave.
    """
    w = sp.Function("w")
    f1_prime = w(r)
    # f0(r) = f1(1/r) gives f0' = −w(1/r)/r²; compatibility gives f0' = −r w(r)
    relation = sp.solve(sp.Eq(-w(1 / r) / r**2, -r * f1_prime), w(1 / r))[0]
    assert zero(relation - r**3 * w(r))
    at_inverse = (1 / r) * relation  # r·w at 1/r
    assert zero(at_inverse - r * (r * w(r)))
    # r·v ≤ v with r = 1 + excess > 1 leaves no v > 0
    value, excess = sp.symbols("value excess", positive=True)
    assert sp.expand((1 + excess) * value - value).is_positive


def test_f1_slope_falls_no_faster_than_1_over_r():
    """The condition −w − r w' ≤ 0 is d log w / d log r ≥ −1."""
    w = sp.Function("w")
    assert zero((w(r) + r * sp.diff(w(r), r)) / w(r) - (1 + r * sp.diff(sp.log(w(r)), r)))


# Lemma 2 and 3: the families.


def test_first_example():
    f1, f0 = sp.log(r), -r
    G = generator(f1, f0)
    assert zero(sp.expand_log(G - mu * (sp.log(mu / (1 - mu)) - 1), force=True))
    assert zero(second(G, mu) - 1 / (mu * (1 - mu) ** 2))


@pytest.mark.slow
def test_one_parameter_family():
    f1, f0 = sp.log(r + beta), beta * sp.log(r + beta) - r
    assert zero(sp.diff(f0, r) + r * sp.diff(f1, r))
    assert sp.simplify(second(f1, r)).is_negative or zero(second(f1, r) + 1 / (r + beta) ** 2)
    assert zero(second(f0, r) + beta / (r + beta) ** 2)
    assert zero(second(generator(f1, f0), mu) - 1 / ((1 - mu) ** 2 * (mu + beta * (1 - mu))))


@pytest.mark.slow
def test_two_parameter_family_corrected():
    """f1' = w, f0' = −r w, f1'' = (α−1)(r+β)^(α−2) ≤ 0 for α ≤ 1, f0'' = −(r+β)^(α−2)(αr + β) ≤ 0, G'' > 0.

    Written in t = r + β and divided by t^α, every power becomes rational.
    """
    t = sp.symbols("t", positive=True)
    b = beta_positive
    f1, f0 = pair(alpha, b)
    w = (r + b) ** (alpha - 1)
    claims = [
        sp.diff(f1, r) - w,
        sp.diff(f0, r) + r * w,
        second(f1, r) - (alpha - 1) * (r + b) ** (alpha - 2),
        second(f0, r) + (r + b) ** (alpha - 2) * (alpha * r + b),
    ]
    for claim in claims:
        assert zero(sp.expand(claim.subs(r, t - b)) / t**alpha)
    odds = mu / (1 - mu)
    curvature = second(generator(f1, f0), mu) - (odds + b) ** (alpha - 1) / (1 - mu) ** 3
    assert zero(sp.expand(curvature.subs(b, t - odds)) / t**alpha)


def test_printed_f0_breaks_compatibility_by_a_known_amount():
    f1 = (r + beta_positive) ** alpha / alpha
    printed = -((r + beta_positive) ** (alpha + 1)) / (alpha + 1)
    defect = sp.diff(printed, r) + r * sp.diff(f1, r)
    assert zero(defect + beta_positive * (r + beta_positive) ** (alpha - 1))


def test_printed_curvature_is_wrong_for_positive_beta():
    printed = (
        ((mu + beta_positive * (1 - mu)) / (1 - mu)) ** alpha
        * (mu + beta_positive * (2 - alpha) * (1 - mu))
        / ((1 - mu) ** 2 * (mu + beta_positive * (1 - mu)) ** 2)
    )
    true = (mu / (1 - mu) + beta_positive) ** (alpha - 1) / (1 - mu) ** 3
    assert differs(printed - true)
    assert zero((printed - true).subs(beta_positive, 0))


@pytest.mark.parametrize("b", [0, sp.Rational(1, 2), 3])
def test_limits_at_alpha_zero(b):
    f1, f0 = pair(alpha, sp.S(b))
    assert zero(sp.limit(f1, alpha, 0, "+") - sp.log(r + b))
    assert zero(sp.limit(f0, alpha, 0, "+") - (b * sp.log(r + b) - r))
    # the limit of f0' is −r/(r+β): −1 only for β = 0
    assert zero(sp.limit(sp.diff(f0, r), alpha, 0, "+") + r / (r + b))


def test_value_at_beta_zero():
    assert zero(pair(alpha, sp.S(0))[1] + r ** (1 + alpha) / (1 + alpha))


def test_the_papers_normalised_form_agrees():
    f1, f0 = pair(alpha, beta_positive)
    b = beta_positive
    slope = sp.diff(f1, r).subs(r, 1)
    ours = (f1 - f1.subs(r, 1)) / slope, (f0 - f0.subs(r, 1)) / slope
    c = (1 + b) ** (1 - alpha)
    theirs = (
        c / alpha * ((r + b) ** alpha - (1 + b) ** alpha),
        -c / (alpha * (alpha + 1)) * ((alpha * r - b) * (r + b) ** alpha - (alpha - b) * (1 + b) ** alpha),
    )
    assert zero(ours[0] - theirs[0])
    assert zero(ours[1] - theirs[1])


def test_cone():
    """Compatibility, both second derivatives and G'' are linear in the pair: non-negative weights keep their signs."""
    a, b = sp.symbols("a b", nonnegative=True)
    f1, f0, g1, g0 = (sp.Function(name)(r) for name in ("f1", "f0", "g1", "g0"))

    def laws(first, second):
        slope = sp.diff(first, r)
        curvature = sp.diff(mu * first.subs(r, mu / (1 - mu)) + (1 - mu) * second.subs(r, mu / (1 - mu)), mu, 2)
        return [sp.diff(second, r) + r * slope, sp.diff(first, r, 2), sp.diff(second, r, 2), curvature.doit()]

    for of_sum, of_f, of_g in zip(laws(a * f1 + b * g1, a * f0 + b * g0), laws(f1, f0), laws(g1, g0), strict=True):
        assert sp.simplify(of_sum - a * of_f - b * of_g) == 0


def test_extremes_of_the_family():
    """With w(1) = 1: w non-increasing and r·w non-decreasing give 1/r ≤ w ≤ 1 for r ≥ 1 and 1 ≤ w ≤ 1/r for r ≤ 1.

    Integrated from 1, both ways: log r ≤ f1 ≤ r − 1. The ends are (0, 0) and (1, 0), one monotonicity an equality.
    """
    t = sp.symbols("t", positive=True)
    assert zero(sp.integrate(1 / t, (t, 1, r)) - sp.log(r))
    assert zero(sp.integrate(1, (t, 1, r)) - (r - 1))
    assert sp.diff(r * (1 / r), r) == 0  # r·w is constant at (0, 0)
    assert sp.diff(sp.S(1), r) == 0  # w is constant at (1, 0)
    for a in (sp.Rational(1, 3), sp.Rational(2, 3)):  # strictly between for 0 < α < 1
        inside = r ** (a - 1)
        assert sp.diff(inside, r).is_negative
        assert sp.simplify(sp.diff(r * inside, r)).is_positive


def test_clipped_f0_is_convex_in_r():
    """Beyond the clip f0 is a − b Δ = a − b log r with b > 0, whose second derivative in r is +b/r²."""
    b = sp.symbols("b", positive=True)
    assert second(-b * sp.log(r), r).is_positive


# The classification-loss view.


def test_losses_in_delta():
    delta = sp.symbols("Delta", real=True)
    mu_of_delta = 1 / (1 + sp.exp(-delta))
    assert zero(sp.simplify(-sp.log(mu_of_delta) - sp.log(1 + sp.exp(-delta))))
    b = beta_positive
    softmin = -sp.log(sp.exp(delta) + sp.exp(sp.log(b)))
    assert zero(-sp.log(sp.exp(delta) + b) - softmin)
    f0 = b * sp.log(r + b) - r
    assert zero(-f0.subs(r, sp.exp(delta)) - (sp.exp(delta) + b * softmin))


# Log-ratio bookkeeping of the weighted squared distance, (α, β) = (1, 0).


def test_weighted_squared_distance_has_a_negative_sign():
    """E_d[r] − ½E_n[r²] = −½ Σ (p_θ − p_d)²/p_n + ½ Σ p_d²/p_n on a finite space with q1 = q0."""
    n = 3
    p, d, q = (sp.symbols(f"{name}1:{n + 1}", positive=True) for name in "pdq")
    J = sum(di * pi / qi for pi, di, qi in zip(p, d, q, strict=True)) - sp.Rational(1, 2) * sum(
        qi * (pi / qi) ** 2 for pi, qi in zip(p, q, strict=True)
    )
    distance = sum((pi - di) ** 2 / qi for pi, di, qi in zip(p, d, q, strict=True))
    constant = sum(di**2 / qi for di, qi in zip(d, q, strict=True))
    assert zero(J + distance / 2 - constant / 2)


def test_last_term_is_one_plus_pearson():
    n = 2
    p, q = ((sp.Symbol(f"{name}"), 1 - sp.Symbol(f"{name}")) for name in "pq")
    term = sum(qi * (pi / qi) ** 2 for pi, qi in zip(p, q, strict=True))
    pearson = sum((pi - qi) ** 2 / qi for pi, qi in zip(p, q, strict=True))
    assert n == len(p)
    assert zero(sp.simplify(term - 1 - pearson))
