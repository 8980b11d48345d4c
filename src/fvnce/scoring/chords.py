r"""The laws of a rule between points: what no derivative at a point can see.

At a jump or a kink autograd reports the derivative of one side, as if nothing were there. So each law is also examined
as an inequality between points a < b of Δ, with r = e^Δ, D_k = f_k(b) − f_k(a) and φ_k = df_k/dΔ:

    f_k concave in r      the chord D_k/(r_b − r_a) does not rise from one interval to the next, nor does the slope
                          φ_k/r from one point to the next, and the chord lies between the slopes at its ends
    compatible            −D_0 lies between r_a D_1 and r_b D_1: it is the integral of r df1
    G convex              r_a D_1 ≤ −D_0 ≤ r_b D_1: no forecast earns more than the true one
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._autograd import slope_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rule import ScoringRule

#: Rounding of a value, relative to the largest values around: a chord is known to this over its length.
ROUNDING = 1e-14
#: How many of the intervals in which values, slopes and curvatures disagree most are divided, and how often.
SUSPECTS, HALVINGS = 16, 24
#: Violations, and where they are.
Group = tuple[Tensor, Tensor]
#: Triples and pairs of points that are far apart.
FAR_APART = 20_000


@dataclass(frozen=True)
class Sampled:
    """Both functions at sorted points: values, first and second derivatives in Δ, each of shape (2, points).

    ``rounding`` is the relative error of value and slope that the rule owns up to, shape (points,).
    """

    delta: Tensor
    value: Tensor
    slope: Tensor
    curvature: Tensor
    rounding: Tensor

    def at(self, index: Tensor) -> Sampled:
        """Some of the points."""
        return Sampled(*(tensor[..., index] for tensor in self.tensors))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its fields."""
        return self.delta, self.value, self.slope, self.curvature, self.rounding


def sample(rule: ScoringRule, delta: Tensor) -> Sampled:
    """f1 and f0 with their derivatives at the given Δ."""
    both = [derivatives(function, delta) for function in (rule.f1, rule.f0)]
    value, slope, curvature = (torch.stack(kind) for kind in zip(*both, strict=True))
    return Sampled(delta, value, slope, curvature, ROUNDING * rule.condition(delta))


def derivatives(function: Callable[[Tensor], Tensor], grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, first and second derivative in Δ."""
    with torch.enable_grad():
        delta = grid.clone().requires_grad_()
        value = function(delta)
        first = slope_of(value, delta)
        second = slope_of(first, delta)
    return value.detach(), first.detach(), second.detach()


def examined(rule: ScoringRule, grid: Tensor) -> Sampled:
    """A grid of Δ, as many points between at random, and more where the functions are not smooth."""
    generator = torch.Generator().manual_seed(0)
    random = torch.rand(len(grid) - 1, dtype=torch.float64, generator=generator)
    between = grid[0] + (grid[-1] - grid[0]) * random
    found = sample(rule, torch.cat([grid, between]).unique())
    rough = _roughness(found, torch.arange(len(found.delta) - 1), torch.arange(1, len(found.delta)))
    suspects = torch.cat([kind.topk(min(SUSPECTS, len(kind))).indices for kind in rough]).unique()
    met = _closed_in(rule, found.at(suspects), found.at(suspects + 1))
    every = _together(found, *met)
    order = every.delta.argsort(stable=True)
    new = torch.cat([torch.ones(1, dtype=torch.bool), every.delta[order].diff() > 0])
    return every.at(order[new])


def _together(*parts: Sampled) -> Sampled:
    return Sampled(*(torch.cat(tensors, -1) for tensors in zip(*(part.tensors for part in parts), strict=True)))


def _roughness(found: Sampled, left: Tensor, right: Tensor) -> Tensor:
    """How far value and slope of each function are from what one derivative more predicts, shape (4, intervals)."""
    a, b = found.at(left), found.at(right)
    h = b.delta - a.delta
    rows = []
    for low, high, low_rate, high_rate, size in (
        (a.value, b.value, a.slope, b.slope, h * (a.slope.abs() + b.slope.abs())),
        (a.slope, b.slope, a.curvature, b.curvature, a.slope.abs() + b.slope.abs()),
    ):
        surprise = (high - low - h * (low_rate + high_rate) / 2).abs()
        rows.append(torch.where(surprise > 0, surprise / size, 0.0).nan_to_num(nan=math.inf))
    return torch.cat(rows)


def _closed_in(rule: ScoringRule, a: Sampled, b: Sampled) -> list[Sampled]:
    """Halve intervals again and again, keeping the rougher half; the points on the way."""
    met = []
    for _ in range(HALVINGS):
        middle = sample(rule, (a.delta + b.delta) / 2)
        met.append(middle)
        count = len(middle.delta)
        joined = _together(a, middle, b)
        index = torch.arange(count)
        first = _roughness(joined, index, index + count)
        second = _roughness(joined, index + count, index + 2 * count)
        # The slope's surprise does not shrink at a kink while h does; the value's, over h, grows at a jump.
        leftwards = first.max(0).values >= second.max(0).values
        a = joined.at(torch.where(leftwards, index, index + count))
        b = joined.at(torch.where(leftwards, index + count, index + 2 * count))
    return met


def chord_violations(found: Sampled) -> dict[str, list[Group]]:
    """For each law, by how much it fails relative to its terms (at most 0 where it holds) and at which Δ.

    First between neighbours, then between points far apart.
    """
    index = torch.arange(len(found.delta))
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(len(found.delta), (3, FAR_APART), generator=generator).sort(0).values
    far = drawn[:, (drawn[0] < drawn[1]) & (drawn[1] < drawn[2])]
    near = torch.stack([index[:-2], index[1:-1], index[2:]])
    pairs = [(index[:-1], index[1:]), (far[0], far[2])]
    noise = _rounding(found)
    laws = {
        f"f{k} concave": [
            _join(_chords(found, noise, 1 - k, triple), _slopes(found, noise, 1 - k, *pair))
            for triple, pair in zip((near, far), pairs, strict=True)
        ]
        for k in (1, 0)
    }
    integrated = [_integrated(found, noise, *pair) for pair in pairs]
    return laws | {name: [group[name] for group in integrated] for name in ("compatible", "G convex")}


def _join(*parts: Group) -> Group:
    violations, where = zip(*parts, strict=True)
    return torch.cat(violations), torch.cat(where)


def _rounding(found: Sampled) -> Tensor:
    """What each value may be off by, shape (2, points): by the largest one below it or at r ≤ e, which may cancel."""
    largest = found.value.abs().cummax(1).values
    around_one = int((found.delta <= 1).sum()) - 1
    return found.rounding * torch.maximum(largest, largest[:, around_one : around_one + 1])


def _chords(found: Sampled, noise: Tensor, k: int, triple: Tensor) -> Group:
    """The chord from b to c against the chord from a to b, both times r_b."""
    delta, value = found.delta[triple], found.value[k][triple]
    before, after = -torch.expm1(delta[0] - delta[1]), torch.expm1(delta[2] - delta[1])
    first, second = (value[1] - value[0]) / before, (value[2] - value[1]) / after
    slack = 2 * noise[k][triple[1:]].max(0).values * (1 / before + 1 / after)
    return _relative(second - first, slack, first.abs() + second.abs()), delta[1]


def _slopes(found: Sampled, noise: Tensor, k: int, left: Tensor, right: Tensor) -> Group:
    """The slope in r at b against that at a, and the chord between them."""
    a, b = found.at(left), found.at(right)
    up = torch.expm1(b.delta - a.delta)
    chord = (b.value[k] - a.value[k]) / up
    at_a, at_b = a.slope[k], b.slope[k] * (a.delta - b.delta).exp()  # all of them times r_a
    size = at_a.abs() + at_b.abs()
    slack = 2 * noise[k][right] / up + b.rounding * size
    return _join(
        (_relative(at_b - at_a, b.rounding * size, size), b.delta),
        (_relative(chord - at_a, slack, size + chord.abs()), a.delta),
        (_relative(at_b - chord, slack, size + chord.abs()), b.delta),
    )


def _integrated(found: Sampled, noise: Tensor, left: Tensor, right: Tensor) -> dict[str, Group]:
    """−D_0 against r_a D_1 and r_b D_1, all over r_b."""
    a, b = found.at(left), found.at(right)
    h = b.delta - a.delta
    d1 = b.value[0] - a.value[0]
    d0 = (b.value[1] - a.value[1]) * (-b.delta).exp()
    low, high = d1 * (-h).exp(), d1
    slack = 2 * (noise[0][right] + noise[1][right] * (-b.delta).exp())
    size = d1.abs() + d0.abs()
    # Where f1 turns within the interval, its change is less than what it went through.
    turning = -torch.expm1(-h) * h * torch.maximum(a.slope[0].abs(), b.slope[0].abs())
    turning = torch.where(a.slope[0] * b.slope[0] < 0, turning, 0.0)
    outside = torch.maximum(torch.minimum(low, high) + d0, -d0 - torch.maximum(low, high))
    improper = torch.maximum(low + d0, -d0 - high)
    return {
        "compatible": (_relative(outside, slack + turning, size + turning), b.delta),
        "G convex": (_relative(improper, slack, size), b.delta),
    }


def _relative(excess: Tensor, slack: Tensor, size: Tensor) -> Tensor:
    """(excess − slack)/size; not a number, where the functions are not, is infinitely wrong."""
    ratio = torch.where(size > 0, (excess - slack) / size, torch.zeros_like(size))
    return ratio.nan_to_num(nan=math.inf)
