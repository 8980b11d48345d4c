"""A normalising flow, fitted to data by maximum likelihood, as noise: near the data and cheap, with a known density.

Its cost does not grow with the data, which is why it replaces a kernel density on large sets. Needs zuko, the ``flows``
extra.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import _checks
from .._random import seeded
from ..noise.flow import FlowNoise, make_flow
from .batches import Rows
from .fitting import fit


class _Likelihood(nn.Module):
    """−log p of standardised rows under a flow."""

    shift: Tensor
    scale: Tensor

    def __init__(self, flow: nn.Module, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.flow = flow
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """The mean over a batch."""
        loss: Tensor = -self.flow().log_prob((x - self.shift) / self.scale).mean()
        return loss


def fit_flow(
    X: Any,
    *,
    kind: Literal["NSF", "MAF", "NICE"] = "NSF",
    transforms: int = 3,
    hidden: tuple[int, ...] = (64, 64),
    epochs: int = 50,
    seed: int | None = None,
    start: FlowNoise | None = None,
    **options: Any,
) -> FlowNoise:
    """A flow fitted to the rows of X, as a distribution over rows.

    Args:
        X: rows, shape (n, D).
        kind: the family of zuko: neural splines, masked autoregressive, or coupling.
        transforms: how many.
        hidden: hidden layers of each.
        epochs: passes over the data.
        seed: of initial weights and of training; by default drawn from torch's global generator.
        start: a flow to go on from, whose family, layers and standardisation are kept; it is not changed itself.
        **options: whatever :func:`fvnce.fit` takes, such as ``validation`` and ``early_stopping``.

    Returns:
        Noise whose parameters are no longer trained; it moves and is saved with the objective that has it. Mix it with
        a kernel density of the data if it must cover every row.
    """
    rows = Rows(X, torch.get_default_dtype(), name="X")
    data = rows.slice(0, len(rows))
    _checks.table("X", data, rows=2)
    seed = int(torch.randint(2**31 - 1, ())) if seed is None else _checks.count("seed", seed, low=0)
    if start is None:
        with seeded(seed):
            flow = make_flow(kind, data.shape[1], transforms, tuple(hidden))
        # A constant column has no scale of its own.
        objective = _Likelihood(flow, data.mean(0), data.std(0).clamp(min=1e-6))
    else:
        kind, transforms, hidden = start.kind, start.transforms, start.hidden  # type: ignore[assignment]
        flow = copy.deepcopy(start.flow).requires_grad_(True).train()
        objective = _Likelihood(flow, start.shift.to(data), start.scale.to(data))
    fit(objective, data, epochs=epochs, seed=seed, **options)
    objective.cpu()
    shift, scale = objective.shift, objective.scale
    return FlowNoise(kind, shift, scale, transforms=transforms, hidden=tuple(hidden), flow=objective.flow)
