r"""Gradient descent that goes a given length at every step, whatever the gradient's:

    θ ← θ − lr · g/‖g‖

The gradient of a contrastive objective vanishes exponentially in the distance of data and noise, and plain descent
stands still there. Its direction is still right. With the exponential rule, whose curvature is then moderate, the
number of steps is polynomial in the distance (Liu et al. 2021). As every step is as long as the last, a schedule that
decays is what makes it converge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .. import _checks


class NormalisedSGD(Optimizer):
    """Steps of length ``lr`` against the gradient; ``fvnce.fit(…, optimizer="normalised-sgd")``.

    The norm is over all parameters, in float64, so that no gradient is too small for it. Groups with a rate of their
    own go their rate's share of the common direction.

    Args:
        params: parameters or groups of them.
        lr: the length of a step.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> (1e-30 * weight.square().sum()).backward()
    >>> NormalisedSGD([weight], lr=5.0).step()
    >>> weight.detach()
    tensor([0., 0.])
    """

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": _checks.number("lr", lr, low=0.0), "weight_decay": 0.0})
        for group in self.param_groups:
            if group["weight_decay"]:
                raise ValueError(f"weight_decay must be 0 for normalised steps, found {group['weight_decay']}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; a gradient that is exactly 0 moves nothing."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients: list[Tensor] = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not gradients:
            return loss
        norm = torch.stack([gradient.double().norm() for gradient in gradients]).norm()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    unit = torch.where(norm > 0, parameter.grad.double() / norm, torch.zeros_like(norm))
                    parameter.sub_((group["lr"] * unit).to(parameter.dtype))
        return loss
