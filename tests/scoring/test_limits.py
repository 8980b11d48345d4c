"""Rules at Δ = ±∞, where noise lies that the model gives no probability, and a model that has all of it."""

import math

import pytest
import torch

from contracts import DOUBLE, EVERY_RULE, rules
from fvnce import Logarithmic, PowerRule, Quadratic
from fvnce.scoring import Exponential, ScoringRule, from_weight

CLIPPED: list[ScoringRule] = [
    *(PowerRule(a, b, clip=c) for a in (0.0, 1e-8, 0.5, 1.0) for b in (0.0, 0.3, 20.0) for c in (0.0, 10.0, 75.0)),
    Exponential(),
    Exponential(5.0),
    from_weight(lambda r: 1 / torch.sqrt(1 + r)),
    from_weight(lambda r: 1 / r),
    0.5 * PowerRule(0) + PowerRule(1),
    PowerRule(0) + Logarithmic(),
    PowerRule(0.5, 2.0).normalized(),
    0 * PowerRule(0),
]
FAR = [-math.inf, -1e4, -800.0, 800.0, 1e4, math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
@rules(EVERY_RULE + CLIPPED)
def test_no_value_and_no_slope_is_nan(rule, dtype):
    """However far out Δ lies, with a clip and without, with gradients and without."""
    for function, direction in ((rule.f1, 1), (rule.f0, -1)):
        delta = torch.tensor(FAR, dtype=dtype, requires_grad=True)
        value = function(delta)
        assert not value.isnan().any(), value
        torch.testing.assert_close(function(delta.detach()), value.detach(), rtol=0, atol=0)
        ordered = direction * value.detach()
        assert (ordered[1:] >= ordered[:-1]).all(), value  # data earns more, noise less, as r grows
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value.sum(), delta)
            assert not slope.isnan().any(), slope
    log_slope, rate = rule.log_slope(torch.tensor(FAR, dtype=dtype))
    assert not log_slope.isnan().any()
    assert not rate.isnan().any()


@pytest.mark.parametrize(
    ("rule", "limits"),
    [  # f1(−∞), f0(−∞), f1(∞), f0(∞) by hand
        (PowerRule(0), (-math.inf, 0.0, math.inf, -math.inf)),
        (PowerRule(0, clip=None), (-math.inf, 0.0, math.inf, -math.inf)),
        (PowerRule(0.5), (-2.0, 0.0, math.inf, -math.inf)),
        (PowerRule(0, 2.0), (math.log(2), 2 * math.log(2), math.inf, -math.inf)),
        (PowerRule(1, 2.0, clip=None), (1.0, 2.0 - (4 - 2) / 2, math.inf, -math.inf)),
        (Logarithmic(), (-math.inf, 0.0, 0.0, -math.inf)),
        (Quadratic(), (-1.0, 0.0, 0.0, -1.0)),
        (Exponential(), (-math.inf, 0.0, 0.0, -math.inf)),
        (Exponential(None), (-math.inf, 0.0, 0.0, -math.inf)),
        # ∫₀¹ dr/√(1+r) = 2(√2 − 1) and ∫₀¹ r dr/√(1+r) = (4 − 2√2)/3
        (from_weight(lambda r: 1 / torch.sqrt(1 + r)), (-0.8284271, 0.3905243, math.inf, -math.inf)),
    ],
    ids=repr,
)
def test_limits(rule, limits):
    ends = torch.tensor([-math.inf, math.inf])
    actual = torch.cat([rule.f1(ends[:1]), rule.f0(ends[:1]), rule.f1(ends[1:]), rule.f0(ends[1:])])
    torch.testing.assert_close(actual, torch.tensor(limits))
