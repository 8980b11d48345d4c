r"""Proper scoring rules of categorical outcomes, from a convex function G on the probability simplex.

A forecaster gives the outcomes 0, …, d−1 the probabilities q. If outcome x occurs, the forecaster earns (Eq. PSR)

    S(x, q) = ∂G/∂q_x + G(q) − Σ_k q_k ∂G/∂q_k.

If the outcomes have the probabilities p, an honest forecast earns more than q by (Eq. simplex_bregman)

    E_p S(x, p) − E_p S(x, q) = D_G(p‖q) = G(p) − G(q) − (p − q)·∇G(q) ≥ 0.

Binary rules are the case d = 2: with q = (1−μ, μ), S(1, q) = f1 and S(0, q) = f0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions.constraints import simplex

from .. import _checks
from ._autograd import slope_of


@dataclass(frozen=True)
class CategoricalRule:
    """Proper scoring rule of categorical outcomes with generator G.

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
            q: forecasts (..., d), all probabilities > 0: at 0 a generator may have no slope.
        """
        q = _distribution("q", q)
        if bool((q == 0).any()):
            raise ValueError("q must hold probabilities > 0, found 0")
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
        scores, found = self.scores(q), torch.as_tensor(outcome, device=q.device)
        if found.is_floating_point() or bool(((found < 0) | (found >= q.shape[-1])).any()):
            raise ValueError(f"outcome must hold integers from 0 to {q.shape[-1] - 1}, found {outcome!r}")
        shape = torch.broadcast_shapes(found.shape, q.shape[:-1])
        index = found.long().expand(shape).unsqueeze(-1)
        return scores.expand(*shape, q.shape[-1]).gather(-1, index).squeeze(-1)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """Return D_G(p‖q), what the forecast q loses on average if the truth is p.

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
    found = _checks.floating(name, value)
    if found.ndim == 0 or not bool(simplex.check(found).all()):
        raise ValueError(
            f"{name} must hold probabilities that sum to 1 over the last dimension, found {found.detach()!r}"
        )
    return found
