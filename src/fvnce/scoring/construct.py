r"""Custom scoring rules: from a weight w = f1', from the two functions, or from a generator G.

With w(r) = f1'(r) ≥ 0, the rule

    f1(r) = ∫₁ʳ w(s) ds,      f0(r) = −∫₁ʳ s·w(s) ds,

is proper, and has the double-ELBO property exactly if w is non-increasing and r·w(r) is non-decreasing. The rule with
generator G on (0, 1) (Eq. bin_PSR) has the weight w(r) = (1−μ)³ G''(μ), μ = r/(1+r), up to constants.

A convex G on the probability simplex generates a rule for any number of outcomes (Eq. PSR): if outcome x occurs, the
forecast q scores S(x, q) = ∂G/∂q_x + G(q) − Σ_k q_k ∂G/∂q_k. If the truth is p, the mean score of q is lower than that
of p by D_G(p‖q) ≥ 0 (Eq. simplex_bregman). Binary rules are the case q = (1−μ, μ) with S(1, q) = f1 and S(0, q) = f0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.polynomial import legendre
from torch import Tensor
from torch.distributions.constraints import simplex

from .. import _validation
from .check import slope_of
from .rule import ScoringRule, SmoothRule, along_tangent

Function = Callable[[Tensor], Tensor]

#: f0 grows at most like r², and e^(2·35) · 1e4 is within the range of float32.
MAX_WEIGHT_CLIP = 35.0
#: The Δ between which r, and r² at the upper end, can still be represented in float64.
LOWEST_DELTA, HIGHEST_DELTA = -700.0, 350.0
SMALLEST_SLOPE = 1e-300
#: Gauss–Legendre quadrature on [−1, 1], and the polynomial through its nodes at −1, 0 and 1.
ENDS = np.array([-1.0, 0.0, 1.0])
NODES, WEIGHTS = legendre.leggauss(16)
PREDICTOR = np.linalg.solve(legendre.legvander(NODES, 15).T, legendre.legvander(ENDS, 15).T)
#: Halvings of a panel of half a unit of Δ: its width is then 7e-15, where even a jump of the weight is below rounding.
MOST_HALVINGS, MOST_PANELS = 46, 10_000


def from_weight(weight: Function, *, clip: float | None = 10.0) -> ScoringRule:
    r"""Return the scoring rule with weight f1'(r) = w(r) and f1 = f0 = 0 at r = 1.

    Args:
        weight: w, an element-wise, differentiable torch function of r > 0 with w ≥ 0.
        clip: the Δ above which f1 and f0 continue along their tangents, ``None`` for no clip.

    Integrals are evaluated in float64 by Gauss–Legendre quadrature between tabulated knots, which are dense around a
    kink of w. Below Δ = −700 and above 350, where r or r² leaves the range of float64, f1 continues along its tangent.
    The rule holds a Python function, so it has no text form and is hashed by identity.

    ``variational`` checks the rule by :func:`~fvnce.scoring.check_double_elbo`. A kink of w is allowed, a jump is not:
    at a jump down r·w would decrease.

    >>> rule = from_weight(lambda r: 1 / (1 + r) ** 0.5)
    >>> rule.variational
    True
    >>> from_weight(lambda r: 1 / (1 + r) ** 2).variational  # falls faster than 1/r
    False
    """
    return _WeightRule(weight, clip=clip)


def from_pair(f1: Function, f0: Function) -> ScoringRule:
    """Return the scoring rule of two functions of Δ, differentiated by autograd.

    Args:
        f1: the score of a data sample at Δ.
        f0: the score of a noise sample at Δ.

    >>> from_pair(lambda d: d, lambda d: -d.exp()).variational
    True
    """
    return _PairRule(f1, f0)


class _UserRule(ScoringRule):
    """A rule made of Python functions, which has no text form."""

    _form: ClassVar[str]

    def __init__(self, *functions: Function, clip: float | None = None) -> None:
        self._functions = functions
        self._clip = (
            None if clip is None else _validation.number("clip, if not None,", clip, low=0, high=MAX_WEIGHT_CLIP)
        )
        threshold = math.inf if self._clip is None else self._clip
        self.tangent_above = threshold, threshold

    def unclipped(self) -> ScoringRule:
        """Return the rule of the same functions without a clip."""
        return self if self._clip is None else type(self)(*self._functions)

    def __repr__(self) -> str:
        names = [getattr(function, "__qualname__", repr(function)) for function in self._functions]
        return self._form.format(*names, clip=self._clip)

    def __str__(self) -> str:
        raise ValueError(
            f"rule must be a built-in rule or a sum of them to have a text form, found {self!r}, which is made of "
            "Python functions; use built-in rules and their sums"
        )


class _PairRule(_UserRule):
    _form = "from_pair({}, {})"

    def _evaluate(self, outcome: int, delta: Tensor) -> Tensor:
        return self._functions[1 - outcome](delta)


class _WeightRule(_UserRule, SmoothRule):
    _form = "from_weight({}, clip={clip})"

    def __init__(self, *functions: Function, clip: float | None = None) -> None:
        super().__init__(*functions, clip=clip)
        self._knots, self._integrals = self._tabulate()

    def _tabulate(self) -> tuple[Tensor, Tensor]:
        """Return knots in Δ, and (∫₁ʳ w, −∫₁ʳ s·w) at each."""
        near = np.arange(0.0, 40.5, 0.5)
        far = np.geomspace(40.5, -LOWEST_DELTA, 60)
        positive = np.concatenate([near, far[far < HIGHEST_DELTA], [HIGHEST_DELTA]])
        knots = torch.tensor(np.concatenate([-np.concatenate([near[1:], far])[::-1], positive]))
        weights = self._functions[0](knots.exp())
        if not isinstance(weights, Tensor) or weights.shape != knots.shape:
            found = getattr(weights, "shape", weights)
            raise ValueError(
                f"weight must be element-wise, one number for each r, found {found} for {len(knots)} of them"
            )
        # Far out, the user's formula may overflow; check w only in the range where rules are compared.
        bad = ~(weights.isfinite() & (weights >= 0)) & (knots.abs() <= 40)
        if bad.any():
            at = int(bad.nonzero()[0])
            raise ValueError(
                "weight must be finite and >= 0 for every r > 0, "
                f"found {weights[at].item():g} at r = {math.exp(knots[at]):g}"
            )
        knots = self._refined(knots)
        panels = self._integrate(knots[:-1], knots[1:])
        zero = int((knots == 0).nonzero())
        # Sum outwards from Δ = 0, so that the small integrals are not differences of large ones.
        right = torch.cat([panels.new_zeros(2, 1), panels[:, zero:].cumsum(1)], dim=1)
        left = -panels[:, :zero].flip(1).cumsum(1).flip(1)
        return knots, torch.cat([left, right], dim=1)

    def _refined(self, knots: Tensor) -> Tensor:
        """Add knots where φ at the ends and middle of a panel is not what its nodes predict: at kinks and jumps."""
        all_knots, left, right = [knots], knots[:-1], knots[1:]
        for _ in range(MOST_HALVINGS):
            middle = (left + right) / 2
            (_, at_nodes), (_, at_ends) = (self._phi(left, right, points) for points in (NODES, ENDS))
            surprise = (at_nodes @ torch.from_numpy(PREDICTOR) - at_ends).abs().amax(-1)
            # Δ itself is rounded, which e^Δ multiplies.
            rough = surprise > 1e-13 * (1 + left.abs()) * at_nodes.abs().amax(-1)
            all_knots.append(middle[rough])
            left, right = torch.cat([left[rough], middle[rough]]), torch.cat([middle[rough], right[rough]])
            if len(left) == 0 or len(left) > MOST_PANELS:
                break
        return torch.cat(all_knots).unique()  # type: ignore[no-any-return]

    def _phi(self, start: Tensor, stop: Tensor, points: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return r and φ = r·w(r) at the given points of [−1, 1] in each panel, shape (panels, points)."""
        at = torch.from_numpy(points).to(start.device)
        r = (((start + stop) / 2).unsqueeze(-1) + ((stop - start) / 2).unsqueeze(-1) * at).exp()
        return r, r * self._functions[0](r)

    def _integrate(self, start: Tensor, stop: Tensor) -> Tensor:
        """Return ∫ φ dΔ and −∫ e^Δ φ dΔ from start to stop, by 16-point Gauss–Legendre."""
        half, weights = (stop - start) / 2, torch.from_numpy(WEIGHTS).to(start.device)
        r, phi = self._phi(start, stop, NODES)
        return torch.stack([half * (phi * weights).sum(-1), -half * (r * phi * weights).sum(-1)])

    def _value(self, outcome: int, delta: Tensor) -> Tensor:
        knots, integrals = self._knots.to(delta.device), self._integrals[1 - outcome].to(delta.device)
        x = delta.double().clamp(LOWEST_DELTA, HIGHEST_DELTA)
        nearest = (torch.bucketize(x, knots[:-1], right=True) - 1).clamp(min=0).reshape(-1)
        # gather, as indexing by a single number needs its value, which vmap does not have
        start, known = (values.gather(0, nearest).reshape(x.shape) for values in (knots, integrals))
        value = known + self._integrate(start, x)[1 - outcome]
        slope = self._slope(outcome, x)
        # A slope of e^-700 contributes nothing at finite Δ, but would make the finite limit at −∞ infinite.
        slope = torch.where(slope.abs() < SMALLEST_SLOPE, 0.0, slope)
        return along_tangent(value, slope, delta.double() - x).to(delta.dtype)

    def _slope(self, outcome: int, delta: Tensor) -> Tensor:
        r = delta.double().clamp(LOWEST_DELTA, HIGHEST_DELTA).exp()
        slope = r * self._functions[0](r)
        # Beyond the ends the weight is continued as const/r, so f0 goes on as const·r there.
        return (slope if outcome == 1 else -(delta.double().exp() * slope)).to(delta.dtype)


@dataclass(frozen=True)
class CategoricalRule:
    """A proper scoring rule of categorical outcomes with generator G.

    Args:
        generator: G, a torch function of probabilities (..., d) with values (...), twice differentiable by
            autograd. The rule is proper if G is convex on the simplex, and strictly proper if it is strictly
            convex; neither is checked. How G continues outside the simplex does not matter.

    >>> brier = CategoricalRule(lambda q: q.square().sum(-1) - 1)
    >>> q = torch.tensor([0.2, 0.3, 0.5])
    >>> brier.scores(q)  # −Σ_k (δ_xk − q_k)²
    tensor([-0.9800, -0.7800, -0.3800])
    >>> logarithmic = CategoricalRule(lambda q: (q * q.log()).sum(-1))
    >>> logarithmic.score(torch.tensor([0, 2]), q)  # log q_x
    tensor([-1.6094, -0.6931])
    >>> brier.divergence(torch.tensor([0.1, 0.1, 0.8]), q)  # |p − q|²
    tensor(0.1400)
    """

    generator: Callable[[Tensor], Tensor]

    def scores(self, q: Tensor) -> Tensor:
        """Return S(x, q) for every outcome x in the last dimension, differentiable in q.

        Args:
            q: forecasts (..., d), all probabilities > 0, as a generator may have no slope at 0.
        """
        q = _distribution("q", q)
        if bool((q == 0).any()):
            raise ValueError("q must hold probabilities > 0, found 0; clamp it from below")
        differentiated = q.requires_grad and torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            point = q if differentiated else q.detach().clone().requires_grad_()
            value = self._value(point)
            if not value.requires_grad:
                raise ValueError("generator must be differentiable by autograd, found a result without gradient")
            gradient = slope_of(value, point)
            scores = gradient + (value - (point * gradient).sum(-1)).unsqueeze(-1)
        return scores if differentiated else scores.detach()

    def score(self, outcome: int | Tensor, q: Tensor) -> Tensor:
        """Return S(outcome, q); outcomes 0, …, d−1 broadcast against the forecasts (..., d)."""
        scores, outcomes = self.scores(q), torch.as_tensor(outcome, device=q.device)
        if outcomes.is_floating_point() or bool(((outcomes < 0) | (outcomes >= q.shape[-1])).any()):
            raise ValueError(f"outcome must hold integers from 0 to {q.shape[-1] - 1}, found {outcome!r}")
        shape = torch.broadcast_shapes(outcomes.shape, q.shape[:-1])
        index = outcomes.long().expand(shape).unsqueeze(-1)
        return scores.expand(*shape, q.shape[-1]).gather(-1, index).squeeze(-1)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """Return D_G(p‖q), by which the mean score of q is below that of p if the truth is p.

        Args:
            p: true probabilities (..., d), zeros included if G is finite there.
            q: forecasts (..., d), all probabilities > 0.
        """
        p = _distribution("p", p)
        return self._value(p) - (p * self.scores(q)).sum(-1)

    def _value(self, q: Tensor) -> Tensor:
        value = self.generator(q)
        if value.shape != q.shape[:-1]:
            raise ValueError(
                f"generator must map shape {tuple(q.shape)} to {tuple(q.shape[:-1])}, found {tuple(value.shape)}"
            )
        return value


def _distribution(name: str, value: object) -> Tensor:
    tensor = _validation.floating(name, value)
    if tensor.ndim == 0 or not bool(simplex.check(tensor).all()):
        raise ValueError(
            f"{name} must hold probabilities that sum to 1 over the last dimension, found {tensor.detach()!r}"
        )
    return tensor
