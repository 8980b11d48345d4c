"""A function given by its value and its derivative, differentiable as often as the derivative is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _checks


class _WithSlope(torch.autograd.Function):
    """Forward returns ``value``; backward multiplies by ``slope``, which carries its own graph.

    For torch.compile, which cannot trace a function that has a forward-mode rule.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(delta: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grad_outputs[0] * slope, None, None


class _WithSlopeTransformed(_WithSlope):
    """The same for function transforms, forward mode among them."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])
        ctx.save_for_forward(inputs[2])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (slope,) = ctx.saved_tensors
        tangent = tangents[0]
        return torch.zeros_like(slope) if tangent is None else tangent * slope


class _WithSlopeEager(torch.autograd.Function):
    """The same in the older form, which costs a fraction of the call but knows no function transforms."""

    @staticmethod
    def forward(ctx: Any, delta: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        ctx.save_for_forward(slope)
        return value.clone()

    jvp = _WithSlopeTransformed.jvp

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grad_outputs[0] * slope, None, None


def slope_of(value: Tensor, delta: Tensor) -> Tensor:
    """d value / dΔ element-wise, differentiable again; zero where value does not depend on Δ."""
    if not value.requires_grad:
        return torch.zeros_like(delta)
    (slope,) = torch.autograd.grad(value.sum(), delta, create_graph=True, materialize_grads=True)
    return slope


def with_slope(delta: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """The tensor ``value``, whose derivative with respect to ``delta`` is declared to be ``slope``.

    Autograd differentiates the formula it was given, and a formula that is accurate in value can lose its
    derivative to cancellation (expm1 far below zero, a difference of powers). Here the derivative is its own
    formula; second derivatives come from differentiating it.
    """
    function: type[torch.autograd.Function] = _WithSlopeEager
    if torch.compiler.is_compiling():
        function = _WithSlope
    elif _checks.is_transformed():
        function = _WithSlopeTransformed
    result: Tensor = function.apply(delta, value.detach(), slope)
    return result
