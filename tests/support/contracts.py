"""Laws that every member of a family must obey. A new member is tested by being listed."""

from __future__ import annotations

import pytest
import torch

from fvnce import Logarithmic, PowerRule, Quadratic
from fvnce.scoring import Exponential, ScoringRule, Spherical, from_weight

DOUBLE = torch.float64

CLASSICAL: list[ScoringRule] = [Logarithmic(), Quadratic(), Spherical()]

#: The paper's family: corners, edges, the table's rows, the limits α → 0 and β → 0, and points between.
FAMILY: list[ScoringRule] = [
    PowerRule(alpha, beta, clip=None)
    for alpha in (0.0, 1e-8, 1 / 256, 1 / 64, 1 / 16, 0.5, 1.0)
    for beta in (0.0, 1e-6, 0.3, 1.0, 20.0)
]

CONE: list[ScoringRule] = [
    0.9 * PowerRule(1 / 64, clip=None) + 0.1 * PowerRule(0, clip=None),
    2.5 * PowerRule(0, 1, clip=None) + PowerRule(1, clip=None),
    PowerRule(0.5, 2.0, clip=None).normalized(),
    3 * (PowerRule(0.2, clip=None) + PowerRule(0.3, 0.1, clip=None)).normalized(),
]

CONSTRUCTED: list[ScoringRule] = [
    from_weight(lambda r: 1 / torch.sqrt(1 + r), clip=None),
    from_weight(lambda r: 1 / r + 0.5, clip=None),
]

VARIATIONAL = FAMILY + CONE + CONSTRUCTED
EVERY_RULE = [*VARIATIONAL, *CLASSICAL, Exponential(clip=None)]


def rules(members: list[ScoringRule]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rule", members, ids=repr)


def derivatives(function, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value, first and second derivative in Δ by autograd."""
    delta = delta.clone().requires_grad_()
    value = function(delta)
    (first,) = torch.autograd.grad(value.sum(), delta, create_graph=True)
    if not first.requires_grad:
        return value.detach(), first.detach(), torch.zeros_like(delta)
    (second,) = torch.autograd.grad(first.sum(), delta)
    return value.detach(), first.detach(), second
