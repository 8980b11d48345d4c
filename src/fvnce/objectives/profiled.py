r"""log Z maximised out.

J is unimodal in c for every double-ELBO rule; its maximum is where E_data[df1/dΔ] = ν E_noise[−df0/dΔ]. For (α, 0),
with A = E_data[e^(αΔ⁰)] and B = E_noise[e^((1+α)Δ⁰)],

    c* = log B − log A,    J = (1/α) log A − log B/(1+α),    α → 0:  E_data[Δ⁰] − log E_noise[e^Δ⁰],

up to a monotone map. This is the γ-divergence; both terms are log-mean-exps, so it needs no clip. For other rules c* is
the root of the balance, found by a safeguarded Newton iteration:

    F(c) = E_data[φ(Δ)] − ν E_noise[ψ(Δ)] = 0,      φ = df1/dΔ,  ψ = −df0/dΔ,  Δ = Δ⁰ − c − log ν.

J at its best c has the gradient of J at a fixed c (envelope theorem), but not its second derivatives: c* moves. With
J_c = −F, and everything taken at c*, implicit differentiation gives

    ∇²[J(c*)] = ∇²J − ∇F ∇Fᵀ / J_cc,

which are the second derivatives of J(c) − F²/(2 J_cc) at c = c* held fixed; the added term is zero, and so is its
gradient.

The log of a mean over a batch is biased, and so is its gradient, however many batches are averaged: it divides by a
mean over few noise samples, ∇B̂/B̂, and E[∇B̂/B̂] ≠ ∇B/B. But E[B̂ · ∇B̂/B̂] = ∇B: a batch that counts in proportion to its
own B̂ is unbiased. With P = A·B the product of what a batch divides by (for α = 0 only B; data and noise are
independent),

    E[ P/P̄ · (gradient of the batch) ]  =  E[P]/P̄ · (gradient of the population),       P̄ from earlier batches,

for *any* P̄ that knows nothing of this batch: it sets the length of a step, never its direction. P̄ is a moving average,
of all batches at first and then with weight 1 − momentum for the newest. Two things keep steps tame:

* P/P̄ is at most 1/(1 − momentum);
* where fewer than two batches carry P̄ (effective number (ΣP)²/ΣP²), because P is too uneven for its mean to be known or
  because the model moves fast, P/P̄ is mixed with 1, the more so the fewer they are.

For other rules, c̄ is a moving average of e^c*, and with Â = E_data[df1/dΔ], B̂ = ν E_noise[−df0/dΔ] of the batch at c̄

    B̂ ∇E_data[f1] + Â ∇ν E_noise[f0]      (f1, f0 at Δ⁰ − c̄ − log ν)

is unbiased, because data and noise are independent and c̄ is of earlier batches. At the truth e^Δ p_n ∝ p_d, so that
both terms cancel on average whatever c̄ is. It is P = Â B̂ times ∇E_data[f1]/Â + ∇ν E_noise[f0]/B̂, a difference of
two weighted means of ∇Δ⁰, as for (α, 0).
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from .._estimates import log_mean_exp, log_power_mean
from ..scoring import PowerRule, ScoringRule
from ..scoring.rule import Combination, Normalised
from .base import gather
from .log_partition import GradientWeights, LogScale, Moments, Partition, log_noise_slopes
from .ratios import BatchRatios, LogRatio

#: The momentum of rules (α, 0) unless another is given.
MOMENTUM = 0.9
#: How far c̄ may be from c* of a batch: e^(2·30) is still a number in float32.
FARTHEST = 30.0
#: Batches that must carry the average for it to be followed fully.
ENOUGH = 2.0
#: An α below which log A, near 0, is not divided by α, and one that no precision tells from 0.
SMALL, NEGLIGIBLE = 1 / 64, 1e-30


@dataclass
class Moving:
    """A moving average of P in the log domain.

    Attributes:
        count: batches seen.
        log_mean: log P̄.
        log_square: the log of the average of P².
        centre: the log of the average of e^c*, for the rules whose c* has no closed form.
    """

    count: float = 0.0
    log_mean: float = -math.inf
    log_square: float = -math.inf
    centre: float = -math.inf

    def weight(self, log_p: float, momentum: float) -> float:
        """How much a batch counts, before it is added.

        >>> moving = Moving()
        >>> moving.weight(3.0, 0.9)  # nothing to compare with
        1.0
        >>> for _ in range(5):
        ...     moving.add(0.0, 0.0, 0.9)
        >>> round(moving.weight(math.log(2.0), 0.9), 6), round(moving.weight(50.0, 0.9), 6)
        (2.0, 10.0)
        """
        if self.count == 0:
            return 1.0
        highest = 1 / (1 - momentum)
        ratio = math.exp(min(log_p - self.log_mean, math.log(highest)))
        carried = math.exp(2 * self.log_mean - self.log_square) * min(self.count, highest)
        plain = max(0.0, 1 - carried / ENOUGH)
        return ratio + plain * (1 - ratio)

    def add(self, log_p: float, c: float, momentum: float) -> None:
        """Take a batch into the averages."""
        new = max(1 - momentum, 1 / (self.count + 1))
        self.log_mean = _mix(self.log_mean, log_p, new)
        self.log_square = _mix(self.log_square, 2 * log_p, new)
        self.centre = _mix(self.centre, c, new)
        self.count += 1


class Profiled(Partition):
    """log Z is maximised out on every batch; the rule's clip is ignored.

    Args:
        momentum: of the moving average by which batches are weighed in training, so that few noise samples in a batch
            make its gradient noisy but not wrong on average. 0 treats all batches alike, which is biased: −log of a
            mean is too large on average (+0.8 nats with 64 noise samples and a Δ of standard deviation 3), and its
            gradient leads away from the truth. By default 0.9 for rules (α, 0) and 0 for others, and 0 wherever no
            state can be kept: inside of torch.compile and of function transforms. The value of J is that of the batch
            in any case, and so, for (α, 0), is the direction of its gradient.

    >>> import torch
    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import PowerRule, SNCE
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> objective = SNCE(normal, normal, PowerRule(0), partition=Profiled(momentum=0.99))
    >>> objective(torch.zeros(4, 2), torch.ones(4, 2))  # r = 1 everywhere
    tensor(-0.)
    """

    def __init__(self, momentum: float | None = None) -> None:
        super().__init__()
        self.momentum = None if momentum is None else _checks.number("momentum", momentum, low=0.0, high=1.0)
        if self.momentum == 1:
            raise ValueError("momentum must be below 1, found 1.0: the average would never move")
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("moving", torch.tensor(astuple(Moving())))

    def check(self, rule: ScoringRule) -> None:
        """The rule needs one best c."""
        if not rule.variational:
            raise ValueError(
                f"partition='profiled' needs a rule with the double-ELBO property, found {rule!r}: for others J may "
                "have several maxima in log Z; use partition='learned'"
            )

    def log_scale_of(self, rule: ScoringRule, ratios: BatchRatios, noise_ratio: float) -> LogScale:
        """c* of the batch."""
        power = power_of(rule)
        if power is None:
            found = self._by_root(rule.unclipped(), ratios, noise_ratio)
        else:
            found = self._in_closed_form(*power, ratios)
        if self.training and not _checks.values_are_hidden():
            with torch.no_grad():
                self.last.copy_(torch.as_tensor(found.c))  # type: ignore[operator]
        return found

    def _in_closed_form(self, weight: float, alpha: float, ratios: BatchRatios) -> LogScale:
        log_b = log_mean_exp(gather(ratios.noise.log_moment(1 + alpha), ratios.share))
        if alpha < NEGLIGIBLE:
            first = gather(ratios.data.expectation(lambda delta: delta), ratios.share).mean()
            c = log_p = log_b.detach()
        else:
            if alpha < SMALL:
                first = log_power_mean(gather(ratios.data.log_power_mean(alpha), ratios.share), alpha)
                log_a = alpha * first
            else:
                log_a = log_mean_exp(gather(ratios.data.log_moment(alpha), ratios.share))
                first = log_a / alpha
            c = (log_b - log_a).detach()
            log_p = (log_b + log_a).detach()
        counts, momentum = 1.0, self._momentum_in_use(MOMENTUM)
        if momentum:
            assert isinstance(self.moving, Tensor)
            # One question to the device: it waits once.
            *averages, now, own = torch.cat([self.moving, torch.stack([log_p, c])]).tolist()
            moving = Moving(*averages)
            counts = moving.weight(now, momentum)
            self._keep(moving, now, own, momentum)
        return LogScale(c, maximised=True, moments=Moments(weight, alpha, first, log_b, counts))

    def _by_root(self, rule: ScoringRule, ratios: BatchRatios, noise_ratio: float) -> LogScale:
        assert isinstance(self.moving, Tensor)
        data, noise, averages = on_host(ratios.whole.data, ratios.whole.noise, self.moving)
        found = best_log_scale(rule, data, noise, noise_ratio)
        c = found.to(ratios.data.values.device, non_blocking=True)
        momentum = self._momentum_in_use(0.0)
        if not momentum:
            return LogScale(c, maximised=True)
        moving, own = Moving(*averages.tolist()), float(found)
        centre = own if moving.count == 0 else min(max(moving.centre, own - FARTHEST), own + FARTHEST)
        log1, log0 = log_pulls(rule, data, noise, centre, noise_ratio)
        log_p = log1 + log0
        usual = math.exp((log_p if moving.count == 0 else moving.log_mean) / 2)
        counts = usual * moving.weight(log_p, momentum)
        self._keep(moving, log_p, own, momentum)
        return LogScale(c, maximised=True, weights=GradientWeights(centre, counts, math.exp(-log1), math.exp(-log0)))

    def _momentum_in_use(self, default: float) -> float:
        """0 where nothing is learned, so that no average moves."""
        if not self.training or not torch.is_grad_enabled():
            return 0.0
        if not _checks.values_are_hidden():
            return default if self.momentum is None else self.momentum
        if self.momentum:
            raise RuntimeError(
                "momentum must be 0 where the objective is compiled or transformed: its moving average changes with "
                "every call"
            )
        return 0.0

    @torch.no_grad()
    def _keep(self, moving: Moving, log_p: float, c: float, momentum: float) -> None:
        moving.add(log_p, c, momentum)
        now = torch.tensor(astuple(moving), dtype=torch.float64)
        self.moving.copy_(now, non_blocking=True)  # type: ignore[operator]

    def log_noise_weights(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
        """The log of the normalised weights, times their number."""
        power = power_of(rule)
        if power is not None:
            logs = noise.log_moment(1 + power[1])
            return logs - logs.max()
        c = best_log_scale(rule.unclipped(), data.detach(), noise.detach(), noise_ratio)
        return log_noise_slopes(rule, noise, -c - math.log(noise_ratio))

    def fitted_log_partition(self) -> Tensor:
        """c* of the last training batch."""
        assert isinstance(self.last, Tensor)
        return self.last

    def extra_repr(self) -> str:
        """The momentum."""
        return "" if self.momentum is None else f"momentum={self.momentum}"


def power_of(rule: ScoringRule) -> tuple[float, float] | None:
    """(weight, α) if the rule is a multiple of (α, 0), else None."""
    if isinstance(rule, PowerRule):
        return (1.0, rule.alpha) if rule.beta == 0 else None
    if isinstance(rule, Normalised):
        inner = power_of(rule.rule)
        return None if inner is None else (1.0, inner[1])
    if isinstance(rule, Combination) and len(rule.parts) == 1:
        weight, part = rule.parts[0]
        inner = power_of(part)
        return None if inner is None else (weight * inner[0], inner[1])
    return None


def _mix(old: float, new: float, weight: float) -> float:
    """log((1 − weight) e^old + weight e^new)."""
    if weight == 1:
        return new
    one, other = old + math.log1p(-weight), new + math.log(weight)
    high = max(one, other)
    return high + math.log1p(math.exp(min(one, other) - high))


def on_host(data: LogRatio, noise: LogRatio, averages: Tensor) -> tuple[LogRatio, LogRatio, Tensor]:
    """The same numbers without their graph, on the CPU, in one copy: a root is found by looking at values."""
    given = (data.averaged, data.log_weights, noise.averaged, noise.log_weights, averages)
    tensors: list[Tensor | None] = [None if t is None else t.detach() for t in given]
    device = data.values.device
    if device.type != "cpu":
        some = [t.to(device) for t in tensors if t is not None]
        parts = iter(torch.cat([t.flatten() for t in some]).cpu().split([t.numel() for t in some]))
        tensors = [None if t is None else next(parts).reshape(t.shape).to(t.dtype) for t in tensors]
    x, weights_x, y, weights_y, moved = tensors
    assert x is not None
    assert y is not None
    assert moved is not None
    return LogRatio(x, weights_x), LogRatio(y, weights_y), moved


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


Sides = tuple[Tensor | None, ...]


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
