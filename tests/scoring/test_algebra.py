"""Rules as values: the cone, text, identity, and what is refused."""

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts import CLASSICAL, CONE, DOUBLE, FAMILY, rules
from fvnce import Logarithmic, PowerRule, Quadratic
from fvnce.scoring import ScoringRule, from_pair, from_weight, parse

weights = st.floats(1e-6, 1e6)
power_rules = st.builds(PowerRule, st.floats(0, 1), st.floats(0, 1e4), st.one_of(st.none(), st.floats(0, 75)))
cone = st.lists(st.tuples(weights, st.one_of(power_rules, st.sampled_from(CLASSICAL))), min_size=1, max_size=4).map(
    lambda parts: sum(w * rule for w, rule in parts)
)


@given(cone)
def test_text_reads_back(rule):
    assert parse(str(rule)) == rule
    assert hash(parse(str(rule))) == hash(rule)
    assert parse(str(rule.normalized())) == rule.normalized()


@given(cone)
def test_pickle_and_repr_read_back(rule):
    assert pickle.loads(pickle.dumps(rule)) == rule  # noqa: S301  our own bytes
    names = {"PowerRule": PowerRule} | {type(r).__name__: type(r) for r in CLASSICAL}
    assert eval(repr(rule), names) == rule  # noqa: S307


@given(power_rules, power_rules, weights, weights)
def test_combinations_are_linear(first, second, a, b):
    delta = torch.linspace(-3, 3, 13, dtype=DOUBLE)
    combined = a * first + second * b
    torch.testing.assert_close(combined.f1(delta), a * first.f1(delta) + b * second.f1(delta))
    torch.testing.assert_close(combined.f0(delta), a * first.f0(delta) + b * second.f0(delta))


def test_the_simplest_form():
    rule = PowerRule(0.5)
    assert 1 * rule is rule
    assert 0.5 * rule + 0.5 * rule == rule
    assert 2 * (3 * rule) == 6 * rule
    assert rule + 0 * Logarithmic() == rule
    assert rule + Logarithmic() == Logarithmic() + rule
    assert hash(rule + Logarithmic()) == hash(Logarithmic() + rule)
    assert sum([rule, Logarithmic()]) == rule + Logarithmic()
    assert str(0.9 * PowerRule(1 / 64) + 0.1 * PowerRule(0)) == "0.9*power(1/64)+0.1*power(0)"


def test_the_old_name_of_normalized_warns():
    with pytest.warns(DeprecationWarning, match="normalized"):
        assert PowerRule(0.5).normalised() == PowerRule(0.5).normalized()
    assert parse("normalised(power(1/2))") == PowerRule(0.5).normalized()


def test_the_zero_rule():
    zero = 0 * PowerRule(0.5)
    delta = torch.tensor([-2.0, 5.0])
    assert torch.equal(zero.f1(delta), torch.zeros(2))
    assert parse(str(zero)) == zero
    assert zero.variational
    with pytest.raises(ValueError, match=r"f1'\(1\) = 0"):
        zero.normalized()


@rules([*FAMILY, *CLASSICAL, *CONE])
def test_normalised(rule):
    normalized = rule.normalized()
    one = torch.zeros((), dtype=DOUBLE, requires_grad=True)
    f1 = normalized.f1(one)
    (slope,) = torch.autograd.grad(f1, one)
    assert f1.item() == pytest.approx(0, abs=1e-14)
    assert slope.item() == pytest.approx(1, rel=1e-14)
    assert normalized.f0(one).item() == pytest.approx(0, abs=1e-14)
    assert normalized.normalized() is normalized
    assert normalized.variational == rule.variational


def test_variational_is_derived():
    assert (0.9 * PowerRule(1 / 64) + 0.1 * PowerRule(0)).variational
    assert not (PowerRule(0) + Logarithmic()).variational
    assert not (Logarithmic() + Quadratic()).variational


def test_rules_are_immutable():
    with pytest.raises(AttributeError):
        PowerRule(0.5).alpha = 0.2
    assert {PowerRule(0.5), PowerRule(0.5), PowerRule(0.25)} == {PowerRule(0.5), PowerRule(0.25)}


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: PowerRule(1.5), ValueError, r"alpha must be a number in \[0, 1\], found 1.5"),
        (lambda: PowerRule(-0.1), ValueError, "alpha"),
        (lambda: PowerRule(math.nan), ValueError, "alpha.*nan"),
        (lambda: PowerRule(0, -1), ValueError, "beta.*found -1"),
        (lambda: PowerRule(0, math.inf), ValueError, "beta.*inf"),
        (lambda: PowerRule("1/2"), TypeError, "alpha.*'1/2' of type str"),
        (lambda: PowerRule(True), TypeError, "alpha.*bool"),
        (lambda: PowerRule(0, clip=1000), ValueError, "clip.*75.*found 1000"),
        (lambda: PowerRule(0, clip=math.nan), ValueError, "clip"),
        (lambda: -1 * PowerRule(0), ValueError, "weight.*found -1"),
        (lambda: PowerRule(0) * math.nan, ValueError, "weight of a rule"),
        (lambda: PowerRule(0) * PowerRule(1), TypeError, "weight of a rule"),
        (lambda: PowerRule(0) + 1, TypeError, "unsupported operand"),
        (lambda: PowerRule(0).f1(torch.arange(3)), TypeError, "delta.*int64"),
        (lambda: PowerRule(0).f0([0.0]), TypeError, "delta.*list"),
        (lambda: PowerRule(0).score(2, torch.tensor(0.5)), ValueError, "outcome.*found 2"),
        (lambda: from_weight(lambda r: r - 2), ValueError, "weight.*found -"),
        (lambda: from_weight(lambda r: 1.0), ValueError, "weight.*found 1.0"),
        (lambda: from_weight(lambda r: 1 / r.sum()), ValueError, r"weight.*found torch.Size\(\[\]\)"),
        (lambda: from_weight(lambda r: 1 / r, clip=99), ValueError, r"clip.*\[0, 35\]"),
        (lambda: str(from_weight(lambda r: 1 / r)), ValueError, "text form"),
        (lambda: parse("power(2)"), ValueError, r"rule 'power\(2\)': alpha.*found 2"),
        (lambda: parse("-1*power(0)"), ValueError, "weight.*found -1"),
        (lambda: parse("pwer(0)"), ValueError, "'pwer'.*power, log"),
        (lambda: parse("power(0"), ValueError, r"'power\(0'.*write it like"),
        (lambda: parse(""), ValueError, "rule must be a sum"),
        (lambda: parse("power(1/0)"), ValueError, "zero"),
        (lambda: parse(f"power({'9' * 400})"), ValueError, "too large"),
        (lambda: parse("power(1e400)"), ValueError, "alpha.*found inf"),
        (lambda: parse("power(1e400/1e400)"), ValueError, "alpha.*found nan"),
        (lambda: parse("none*power(0)"), ValueError, "weight.*None"),
        (lambda: parse("power(gamma=1)"), ValueError, "alpha, beta, clip.*'gamma'"),
        (lambda: parse("power(0, alpha=1)"), ValueError, "alpha, beta, clip.*'alpha'"),
        (lambda: parse("power(0, 0, 1, 2)"), ValueError, "alpha, beta, clip"),
        (lambda: parse("3"), ValueError, "'3'"),
        (lambda: parse("__import__('os').system('true')"), ValueError, "rule"),
        (lambda: parse("(" * 900 + "power(0)" + ")" * 900), ValueError, "rule must be a sum"),
        (lambda: parse("power(0)+" * 2000 + "power(0)"), ValueError, "2000.*found 18008"),
        (lambda: parse("-" * 1500 + "1*power(0)"), ValueError, "rule must be a sum"),
        (lambda: PowerRule(0).score(1, torch.tensor(1.5)), ValueError, "mu.*found 1.5"),
        (lambda: Quadratic().generator(torch.tensor(0.0)), ValueError, "mu.*found 0"),
        (lambda: parse(3), TypeError, "rule.*int"),
    ],
)
def test_what_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_losses_are_the_papers():
    """−f1, −f0 in Δ: soft-plus for the logarithmic rule, soft-min for (0, β), exponentials for (α, 0)."""
    delta = torch.linspace(-5, 5, 41, dtype=DOUBLE)
    softplus = torch.nn.functional.softplus
    torch.testing.assert_close(Logarithmic().loss(1, delta), softplus(-delta))
    torch.testing.assert_close(Logarithmic().loss(0, delta), softplus(delta))
    beta = 2.0
    softmin = -torch.logaddexp(delta, torch.tensor(math.log(beta), dtype=DOUBLE))
    rule = PowerRule(0, beta, clip=None)
    torch.testing.assert_close(rule.loss(1, delta), softmin)
    torch.testing.assert_close(rule.loss(0, delta), delta.exp() + beta * softmin)
    alpha = 0.25
    rule = PowerRule(alpha, clip=None)
    torch.testing.assert_close(rule.loss(1, delta), -((alpha * delta).exp() - 1) / alpha)
    torch.testing.assert_close(rule.loss(0, delta), ((1 + alpha) * delta).exp() / (1 + alpha))


def test_any_shape_and_no_gradient_where_none_is_asked():
    for rule in (PowerRule(0.5, 1.0), Quadratic(), from_weight(lambda r: 1 / r)):
        for shape in ((), (0,), (2, 3, 4)):
            value = rule.f0(torch.zeros(shape))
            assert value.shape == shape
            assert not value.requires_grad


def test_a_rule_of_ones_own():
    rule = from_pair(lambda d: d, lambda d: -d.exp())
    assert isinstance(rule, ScoringRule)
    assert rule == rule
    combined = 0.5 * rule + PowerRule(0.5)
    assert combined.variational
    delta = torch.linspace(-2, 2, 5)
    torch.testing.assert_close(combined.f1(delta), 0.5 * delta + PowerRule(0.5).f1(delta))
