r"""The best log-scale of a rule without a closed form: the root c* of the balance, and its derivatives.

    F(c) = E_data[φ(Δ)] − ν E_noise[ψ(Δ)] = 0,      φ = df1/dΔ,  ψ = −df0/dΔ,  Δ = Δ⁰ − c − log ν.

J at its best c has the gradient of J at a fixed c (envelope theorem), but not its second derivatives: c* moves. With
J_c = −F, and everything taken at c*, implicit differentiation gives

    ∇²[J(c*)] = ∇²J − ∇F ∇Fᵀ / J_cc,

which are the second derivatives of J(c) − F²/(2 J_cc) at c = c* held fixed; the added term is zero, and so is its
gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from ..scoring import ScoringRule
from .ratios import LogRatio


def best_log_scale(rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
    """The root c of g(c) = log E_data[φ] − log(ν E_noise[ψ]).

    The log-slopes grow in Δ at rates within [0, 1] and [1, 2], so g increases, at a rate that Newton's method knows;
    a bracket catches the steps that leave it. In float64: the sums are small and the root is worth its digits.
    """
    x, y = data.averaged.double() - math.log(noise_ratio), noise.averaged.double() - math.log(noise_ratio)
    weights_x, weights_y = _log_average_weights(data), _log_average_weights(noise)

    def residual(c: Tensor) -> tuple[Tensor, Tensor]:
        log1, rate1 = rule.log_slope(x - c)
        log0, rate0 = rule.log_slope(y - c)
        log1, log0 = log1 + weights_x, log0 + weights_y + (y - c)
        total1, total0 = log1.flatten().logsumexp(0), log0.flatten().logsumexp(0)
        mean_rate1 = ((log1 - total1).exp() * rate1).sum()
        mean_rate0 = ((log0 - total0).exp() * (1 + rate0)).sum()
        return total1 - total0 - math.log(noise_ratio), mean_rate0 - mean_rate1

    low = 2 * y.min() - torch.maximum(x.max(), y.max()) + math.log(noise_ratio) - 1
    high = 2 * y.max() - torch.minimum(x.min(), y.min()) + math.log(noise_ratio) + 1
    c = noise.mean.double().logsumexp(0) - math.log(noise.values.shape[1]) - math.log(noise_ratio)
    c = c.clamp(low, high)
    for _ in range(60):
        value, rate = residual(c)
        low, high = torch.where(value < 0, c, low), torch.where(value < 0, high, c)
        newton = c - value / rate
        inside = (newton > low) & (newton < high)
        step = torch.where(inside, newton, (low + high) / 2) - c
        c = c + step
        if not _checks.values_are_hidden() and step.abs() < 1e-12 * (1 + c.abs()):
            break
    return c.to(data.values.dtype)


@torch.no_grad()
def log_pulls(
    rule: ScoringRule, data: LogRatio, noise: LogRatio, c: Tensor | float, noise_ratio: float
) -> tuple[float, float]:
    """log E_data[φ] and log(ν E_noise[ψ]) at any c."""
    shift = -c - math.log(noise_ratio)
    x, y = data.averaged.double() + shift, noise.averaged.double() + shift
    log1 = rule.log_slope(x)[0] + _log_average_weights(data)
    log0 = rule.log_slope(y)[0] + y + _log_average_weights(noise)
    return float(log1.flatten().logsumexp(0)), float(log0.flatten().logsumexp(0)) + math.log(noise_ratio)


def with_curvature(
    value: Tensor, rule: ScoringRule, data: LogRatio, noise: LogRatio, c: Tensor, noise_ratio: float
) -> Tensor:
    """J at c* held fixed, with the second derivatives of J at a c* that moves."""
    tensors = (data.averaged, data.log_weights, noise.averaged, noise.log_weights)
    if _checks.values_are_hidden():
        slopes, curvature = _slopes(rule, tensors, c, noise_ratio)
        return value - _residual(tensors, slopes).square() / (2 * curvature)
    if not value.requires_grad:
        return value
    result: Tensor = _AtItsBest.apply(value, rule, c, noise_ratio, *tensors)  # type: ignore[no-untyped-call]
    return result


Sides = tuple[Tensor | None, ...]


class _AtItsBest(torch.autograd.Function):
    """The identity; its gradient has the graph of the second derivatives if, and only if, a graph is asked for."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, rule: ScoringRule, c: Tensor, noise_ratio: float, *tensors: Tensor | None
    ) -> Tensor:
        ctx.rule, ctx.noise_ratio = rule, noise_ratio
        ctx.save_for_backward(c, *tensors)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        c, *tensors = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return gradient, None, None, None, *(None for _ in tensors)
        slopes, curvature = _slopes(ctx.rule, tuple(tensors), c, ctx.noise_ratio)
        scale = -gradient * _residual(tuple(tensors), slopes) / curvature
        return gradient, None, None, None, *(None if slope is None else scale * slope for slope in slopes)


class _FirstOrderOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "momentum must be 0 for second derivatives of a profiled rule without a closed form: a gradient that "
                "follows an average of earlier batches is that of no function; use Profiled(momentum=0), or eval()"
            )
        return gradients[0]


def first_order_only(value: Tensor) -> Tensor:
    """The value, which refuses to be differentiated with a graph of the gradient."""
    result: Tensor = _FirstOrderOnly.apply(value)  # type: ignore[no-untyped-call]
    return result


def with_gradient_of(towards: Tensor, value: Tensor) -> Tensor:
    """The number ``value`` with the gradient of ``towards``."""
    return value.detach() + (towards - towards.detach())


@torch.no_grad()
def _slopes(rule: ScoringRule, tensors: Sides, c: Tensor, noise_ratio: float) -> tuple[Sides, Tensor]:
    """∂F of Δ⁰ and of the log-weights of both sides, and J_cc."""
    found: list[Tensor | None] = []
    curvature = torch.zeros_like(c)
    for is_noise, (values, log_weights) in enumerate((tensors[:2], tensors[2:])):
        assert values is not None
        delta = values.detach() - c - math.log(noise_ratio)
        log, rate = rule.log_slope(delta)
        if is_noise:  # −ν ψ = −ν e^Δ φ
            log, rate = log + delta + math.log(noise_ratio), 1 + rate
        logs = log if log_weights is None else log + log_weights.detach()
        pull = (logs - math.log(values.shape[1])).exp() * (-1 if is_noise else 1)
        found += [pull * rate, None if log_weights is None else pull]
        curvature = curvature + (pull * rate).sum()
    return tuple(found), curvature


def _residual(tensors: Sides, slopes: Sides) -> Tensor:
    """F as a function of its arguments near where it is 0."""
    parts = [
        (slope * (tensor - tensor.detach())).sum()
        for tensor, slope in zip(tensors, slopes, strict=True)
        if tensor is not None and slope is not None
    ]
    return torch.stack(parts).sum()


def _log_average_weights(ratio: LogRatio) -> Tensor | float:
    """Log-weights that average over latents and points."""
    points = math.log(ratio.values.shape[1])
    return -points if ratio.log_weights is None else ratio.log_weights.double() - points
