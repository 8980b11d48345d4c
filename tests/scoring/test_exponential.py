"""The exponential rule beyond the laws of every rule: its closed form, its clip on both sides, its text."""

import math

import pytest
import torch

from contracts import DOUBLE, derivatives
from fvnce.scoring import Exponential, check_double_elbo, parse


def test_it_is_the_rule_of_boosting():
    mu = torch.linspace(0.01, 0.99, 99, dtype=DOUBLE)
    rule = Exponential(clip=None)
    torch.testing.assert_close(rule.score(1, mu), -((1 - mu) / mu).sqrt())
    torch.testing.assert_close(rule.score(0, mu), -(mu / (1 - mu)).sqrt())
    torch.testing.assert_close(rule.generator(mu), -2 * (mu * (1 - mu)).sqrt())


def test_it_bounds_the_data_term_alone():
    """f0 = −√r is convex: by compatibility f0'' = −f1' − r f1'' = r^(−3/2)/4 > 0."""
    report = check_double_elbo(Exponential(clip=None))
    assert [law.holds for law in report.laws] == [True, False, True, True]
    assert report.proper
    assert not Exponential().variational


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_clipped_it_is_finite_and_follows_its_tangents(dtype):
    delta = torch.tensor([-1e4, -100, -1, 0, 1, 100, 1e4], dtype=dtype)
    for function in (Exponential().f1, Exponential().f0):
        for tensor in derivatives(function, delta):
            assert tensor.isfinite().all()
    rule, exact = Exponential(clip=6.0), Exponential(clip=None)
    inside = torch.linspace(-6, 6, 13, dtype=DOUBLE)
    for name in ("f1", "f0"):
        torch.testing.assert_close(getattr(rule, name)(inside), getattr(exact, name)(inside), rtol=1e-14, atol=0)
    value, slope, _ = derivatives(rule.f1, torch.tensor([-10.0], dtype=DOUBLE))
    torch.testing.assert_close(value, torch.tensor([-math.exp(3) * (1 + 2)], dtype=DOUBLE))
    torch.testing.assert_close(slope, torch.tensor([math.exp(3) / 2], dtype=DOUBLE))
    value, slope, _ = derivatives(rule.f0, torch.tensor([10.0], dtype=DOUBLE))
    torch.testing.assert_close(value, torch.tensor([-math.exp(3) * (1 + 2)], dtype=DOUBLE))
    torch.testing.assert_close(slope, torch.tensor([-math.exp(3) / 2], dtype=DOUBLE))


@pytest.mark.parametrize("rule", [Exponential(), Exponential(7.5), Exponential(None), 2 * Exponential()])
def test_its_text_is_read_back(rule):
    assert parse(str(rule)) == rule


def test_a_clip_must_be_positive():
    with pytest.raises(ValueError, match=r"clip.*found 0"):
        Exponential(0)
