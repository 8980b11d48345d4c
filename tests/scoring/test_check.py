"""The checker against rules made to deceive it: jumps, kinks, steps and bumps are refused, and right rules are not."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import DOUBLE, FAMILY
from fvnce import Logarithmic, PowerRule
from fvnce.scoring import ScoringRule, check_double_elbo, from_pair, from_weight


def bump(delta, centre, width):
    return torch.exp(-(((delta - centre) / width) ** 2))


def above(delta, at):
    return (delta > at).to(delta.dtype)


def piecewise(slopes, knots):
    """w(r) = φ/r, where log φ is continuous in Δ with the given slope between knots."""

    def weight(r):
        delta = r.log()
        log_phi = slopes[0] * delta.clamp(max=knots[0])
        for slope, low, high in zip(slopes[1:], knots, [*knots[1:], math.inf], strict=True):
            log_phi = log_phi + slope * (delta.clamp(low, high) - low)
        return torch.exp(log_phi - delta)

    return weight


CAPPED = from_pair(lambda d: d.exp().clamp(max=1), lambda d: -0.5 * d.exp().clamp(max=1) ** 2)

WRONG: dict[str, ScoringRule] = {
    "both constant above r = 1": CAPPED,
    "a part that is constant above r = 1": 0.1 * CAPPED + PowerRule(0.5),
    "both constant below r = e^-2": from_pair(lambda d: d.clamp(min=-2), lambda d: -d.clamp(min=-2).exp()),
    "a weight that steps down": from_weight(lambda r: torch.where(r < 1.3, 1.0, 0.5).to(r)),
    "a weight that steps up": from_weight(lambda r: torch.where(r < 1.3, 0.5, 1.0).to(r)),
    "a weight that steps down by a millionth": from_weight(lambda r: 1 - 1e-6 * above(r, 1.3)),
    "a weight that steps up by a millionth": from_weight(lambda r: (1 + 1e-6 * above(r, 1.3)) / r),
    "a weight with a narrow bump": from_weight(lambda r: (1 + 0.01 * bump(r.log(), 0.0125, 0.003)) / (1 + r).sqrt()),
    "a weight with a narrow dent": from_weight(lambda r: (1 - 0.01 * bump(r.log(), 7.0125, 0.003)) / (1 + r).sqrt()),
    "a weight that falls faster than 1/r": from_weight(lambda r: 1 / (1 + r) ** 2),
    "f1 jumps up": from_pair(lambda d: d + 0.1 * above(d, 0.3), lambda d: -d.exp()),
    "f1 jumps down": from_pair(lambda d: d - 1e-6 * above(d, 0.3), lambda d: -d.exp()),
    "f0 jumps up": from_pair(lambda d: d, lambda d: 1e-6 * above(d, 0.3) - d.exp()),
    "f0 jumps down": from_pair(lambda d: d, lambda d: -0.1 * above(d, 0.3) - d.exp()),
    "both jump, compatibly": from_pair(
        lambda d: d + 0.01 * above(d, 0.3), lambda d: -d.exp() - 0.01 * math.exp(0.3) * above(d, 0.3)
    ),
    "f1 with a concave kink": from_pair(
        lambda d: torch.where(d < 0, 2, 1) * torch.expm1(d), lambda d: torch.where(d < 0, -1, -0.5) * torch.expm1(2 * d)
    ),
    "f1 with a convex kink": from_pair(
        lambda d: torch.where(d < 0, 1, 2) * d, lambda d: torch.where(d < 0, -1, -2) * torch.expm1(d)
    ),
    "values in stairs": from_pair(lambda d: (1000 * d).round() / 1000, lambda d: -(1000 * d.exp()).round() / 1000),
    "no derivative": from_pair(lambda d: d.detach() + 0 * d, lambda d: -d.detach().exp() + 0 * d),
    "values with a narrow bump": from_pair(lambda d: d + 1e-4 * bump(d, 0.0125, 0.003), lambda d: -d.exp()),
    "the logarithmic rule, nearly outweighed": Logarithmic() + 0.01 * PowerRule(1),
}

RIGHT: dict[str, ScoringRule] = {
    "1, then 1/r": from_weight(lambda r: torch.minimum(torch.ones_like(r), 1.5 / r)),
    "1/r, then 1": from_weight(lambda r: torch.maximum(torch.full_like(r, 0.7), 1 / r)),
    "1, then 1/r, from a pair": from_pair(
        lambda d: torch.where(d < 0, d.exp() - 1, d),
        lambda d: torch.where(d < 0, (1 - (2 * d).exp()) / 2, 1 - d.exp()),
    ),
    "many kinks": from_weight(piecewise([0.0, 1.0, 0.2, 1.0, 0.0, 0.9], [-7.0, -1.234, 0.0, 0.777, 12.0])),
    "between the two": from_weight(lambda r: 1 / (0.5 + r).sqrt()),
    "the sum of the two": from_weight(lambda r: 0.5 + 1 / r),
    "the first extreme": from_pair(lambda d: d, lambda d: -d.exp()),
    "the second extreme": from_pair(lambda d: d.exp(), lambda d: -(2 * d).exp() / 2),
    "a square root": from_pair(lambda d: 2 * (d / 2).exp(), lambda d: -(1.5 * d).exp() / 1.5),
    "nothing": from_pair(lambda d: 0 * d, lambda d: 0 * d),
    "the logarithmic rule, outweighed": 0.01 * Logarithmic() + PowerRule(1),
    "a sum with one's own": 0.5 * from_weight(lambda r: (2 + r) ** -0.3) + PowerRule(0.1, 2.0),
    "scaled": from_weight(lambda r: 1e6 / (1 + r).sqrt()).normalized(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_refused(name):
    rule = WRONG[name]
    report = check_double_elbo(rule)
    assert not report.holds, str(report)
    assert report.valid_below == -math.inf
    assert not rule.variational


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_right_rules_are_accepted(name):
    report = check_double_elbo(RIGHT[name])
    assert report.holds, str(report)
    assert report.proper
    assert RIGHT[name].variational


def test_jensen_fails_for_the_rule_that_is_constant_above_one():
    """E f0 over r = 0.5 and 3 is −0.3125, above f0 of the mean, −0.5: what the checker must not miss."""
    delta = torch.tensor([0.5, 3.0], dtype=DOUBLE).log()
    assert CAPPED.f0(delta).mean().item() == pytest.approx(-0.3125)
    assert CAPPED.f0(torch.tensor(1.75, dtype=DOUBLE).log()).item() == pytest.approx(-0.5)
    report = check_double_elbo(CAPPED)
    assert not report.f0_concave.holds
    assert report.f0_concave.at == pytest.approx(0, abs=1e-2)


def test_the_law_that_fails_is_named():
    """A weight's jump is a kink: downwards f0 alone is not concave, upwards f1 alone; the rule stays proper."""
    down = check_double_elbo(WRONG["a weight that steps down"])
    assert [law.holds for law in down.laws] == [True, False, True, True]
    assert down.f0_concave.at == pytest.approx(math.log(1.3), abs=1e-4)
    up = check_double_elbo(WRONG["a weight that steps up"])
    assert [law.holds for law in up.laws] == [False, True, True, True]
    jump = check_double_elbo(WRONG["f0 jumps up"])
    assert not jump.compatible.holds
    assert not jump.proper


def test_the_report_says_what_was_examined():
    report = check_double_elbo(PowerRule(0.5), reach=10.0, points=1001)
    assert (report.reach, round(report.spacing, 3)) == (10, 0.01)
    assert "10" in str(report)
    assert "0.01" in str(report)
    beyond = from_weight(lambda r: 1 / (1 + r / math.exp(40)) ** 2)
    assert check_double_elbo(beyond, reach=5.0).f1_concave.holds
    assert str(check_double_elbo(CAPPED)) == str(check_double_elbo(CAPPED))


slopes = st.lists(st.floats(0, 1), min_size=5, max_size=5)
gaps = st.lists(st.floats(0.05, 3), min_size=4, max_size=4)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(slopes, gaps)
def test_any_weight_between_the_extremes_is_accepted(slopes, gaps):
    """0 ≤ (log φ)' ≤ 1 piece by piece is the whole of the property."""
    knots = [sum(gaps[: k + 1]) - 4 for k in range(4)]
    assert from_weight(piecewise(slopes, knots)).variational


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(slopes, gaps, st.integers(0, 4), st.sampled_from([-0.01, 1.01]))
def test_any_weight_outside_them_is_refused(slopes, gaps, where, wrong):
    knots = [sum(gaps[: k + 1]) - 4 for k in range(4)]
    slopes[where] = wrong
    assert not from_weight(piecewise(slopes, knots)).variational


@pytest.mark.parametrize("kink", [1.0, 1.5, 7.0])
def test_a_weight_with_a_kink_is_integrated_to_rounding(kink):
    """w = min(1, k/r): f1 = r − 1 up to k, then k − 1 + k log(r/k), for both with their gradients."""
    rule = from_weight(lambda r: torch.minimum(torch.ones_like(r), kink / r), clip=None)
    delta = torch.linspace(-6, 6, 401, dtype=DOUBLE)
    r = delta.exp()
    f1 = torch.where(r < kink, r - 1, kink - 1 + kink * (r / kink).log())
    f0 = torch.where(r < kink, (1 - r**2) / 2, (1 - kink**2) / 2 - kink * (r - kink))
    torch.testing.assert_close(rule.f1(delta), f1, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(rule.f0(delta), f0, rtol=1e-13, atol=1e-13)


def test_the_family_has_the_property_by_its_formula():
    """No examination: log φ = Δ + (α − 1) log(r + β) has slope 1 − (1 − α) r/(r + β), in [α, 1]."""
    delta = torch.linspace(-300, 300, 6001, dtype=DOUBLE)
    for rule in FAMILY:
        assert type(rule).variational.fget(rule) is True
        _, rate = rule.log_slope(delta)
        assert ((rate >= rule.alpha - 1e-15) & (rate <= 1)).all()


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"reach": -1.0}, ValueError, "reach.*found -1"),
        ({"reach": 0}, ValueError, "reach.*found 0"),
        ({"reach": math.nan}, ValueError, "reach.*found nan"),
        ({"points": 2}, ValueError, "points.*found 2"),
        ({"rule": "power(0)"}, TypeError, r"rule.*found 'power\(0\)'"),
    ],
)
def test_an_examination_of_nothing_is_refused(how, error, words):
    """Its report would say that every law holds."""
    with pytest.raises(error, match=words):
        check_double_elbo(how.pop("rule", Logarithmic()), **how)


def test_a_generator_is_asked_about_probabilities_alone():
    with pytest.raises(ValueError, match=r"mu.*1.5"):
        Logarithmic().generator(torch.tensor(1.5))
