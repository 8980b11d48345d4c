r"""log Z maximised out.

J is unimodal in c for every double-ELBO rule; its maximum is where E_data[df1/dΔ] = ν E_noise[−df0/dΔ]. For (α, 0),
with A = E_data[e^(αΔ⁰)] and B = E_noise[e^((1+α)Δ⁰)],

    c* = log B − log A,    J = (1/α) log A − log B/(1+α),    α → 0:  E_data[Δ⁰] − log E_noise[e^Δ⁰],

up to a monotone map. This is the γ-divergence; both terms are log-mean-exps, so it needs no clip. For other rules c is
found by a safeguarded Newton iteration (``_root``).

The log of a mean over a batch is biased, and so is its gradient, however many batches are averaged. ``_moving`` makes
the gradient that of the population on average: a batch counts in proportion to P = A·B. For other rules, c̄ is a moving
average of e^c*, and with Ĝ1 = E_data[df1/dΔ], Ĝ0 = ν E_noise[−df0/dΔ] of the batch at c̄

    Ĝ0 ∇E_data[f1] + Ĝ1 ∇ν E_noise[f0]      (f1, f0 at Δ⁰ − c̄ − log ν)

is unbiased, because data and noise are independent and c̄ is of earlier batches. At the truth e^Δ p_n ∝ p_d, so that
both terms cancel on average whatever c̄ is. It is P = Ĝ1 Ĝ0 times ∇E_data[f1]/Ĝ1 + ∇ν E_noise[f0]/Ĝ0, a difference of
two weighted means of ∇Δ⁰, as for (α, 0).
"""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from ..scoring import PowerRule, ScoringRule
from ..scoring.rule import Combination, Normalised
from ._distributed import gather
from ._moving import Moving
from ._root import best_log_scale, first_order_only, log_pulls, with_curvature
from .partition import Contrast, Partition, log_noise_slopes
from .ratios import LogRatio

#: The momentum of rules (α, 0) unless another is given.
MOMENTUM = 0.9
#: How far c̄ may be from c* of a batch: e^(2·30) is still a number in float32.
FARTHEST = 30.0


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
        self.register_buffer("moving", _fresh())

    def check(self, rule: ScoringRule) -> None:
        """The rule needs one best c."""
        if not rule.variational:
            raise ValueError(
                f"partition='profiled' needs a rule with the double-ELBO property, found {rule!r}: for others J may "
                "have several maxima in log Z; use partition='learned'"
            )

    def contrast(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Contrast:
        """J at its best c."""
        power = power_of(rule)
        rule = rule.unclipped()
        if power is None:
            c, value = self._by_root(rule, data, noise, noise_ratio)
        else:
            c, value = self._in_closed_form(*power, data, noise)
        shift = -c - math.log(noise_ratio)
        with torch.no_grad():
            if not _checks.values_are_hidden() and self.training:
                self.last.copy_(c)  # type: ignore[operator]
            return Contrast(value, data.expectation(rule.f1, shift), noise.expectation(rule.f0, shift), shift)

    def _in_closed_form(self, weight: float, alpha: float, data: LogRatio, noise: LogRatio) -> tuple[Tensor, Tensor]:
        log_b = _log_mean_exp(gather(noise.log_moment(1 + alpha)))
        if alpha == 0:
            first = gather(data.expectation(_identity)).mean()
            c = log_p = log_b.detach()
        else:
            log_a = _log_mean_exp(gather(data.log_moment(alpha)))
            first = log_a / alpha
            c = (log_b - log_a).detach()
            log_p = (log_b + log_a).detach()
        value = weight * (first - log_b / (1 + alpha))
        momentum = self._momentum_in_use(MOMENTUM)
        if not momentum:
            return c, value
        moving = self._moving()
        counts = moving.weight(float(log_p), momentum)
        self._keep(moving, float(log_p), float(c), momentum)
        return c, value if counts == 1 else _valued(value, counts * value)

    def _by_root(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> tuple[Tensor, Tensor]:
        data, noise = _gathered(data), _gathered(noise)
        c = best_log_scale(rule, data.detach(), noise.detach(), noise_ratio)
        value = _at(rule, data, noise, c, noise_ratio)
        momentum = self._momentum_in_use(0.0)
        if not momentum:
            return c, with_curvature(value[0] + value[1], rule, data, noise, c, noise_ratio)
        moving = self._moving()
        own = float(c)
        centre = own if moving.count == 0 else min(max(moving.centre, own - FARTHEST), own + FARTHEST)
        log1, log0 = log_pulls(rule, data, noise, centre, noise_ratio)
        log_p = log1 + log0
        usual = math.exp((log_p if moving.count == 0 else moving.log_mean) / 2)
        counts = usual * moving.weight(log_p, momentum)
        self._keep(moving, log_p, own, momentum)
        there = _at(rule, data, noise, centre, noise_ratio)
        towards = counts * (math.exp(-log1) * there[0] + math.exp(-log0) * there[1])
        return c, _valued(value[0] + value[1], first_order_only(towards))

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

    def _moving(self) -> Moving:
        assert isinstance(self.moving, Tensor)
        return Moving(*self.moving.tolist())

    @torch.no_grad()
    def _keep(self, moving: Moving, log_p: float, c: float, momentum: float) -> None:
        moving.add(log_p, c, momentum)
        self.moving.copy_(torch.tensor(astuple(moving), dtype=torch.float64))  # type: ignore[operator]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Files of earlier versions hold another average, which starts anew.
        if state_dict.pop(prefix + "average", None) is not None:
            state_dict[prefix + "moving"] = _fresh()
        super()._load_from_state_dict(state_dict, prefix, *args)

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


def _fresh() -> Tensor:
    """The moving averages before the first batch."""
    return torch.tensor(astuple(Moving()))


def _at(
    rule: ScoringRule, data: LogRatio, noise: LogRatio, c: Tensor | float, noise_ratio: float
) -> tuple[Tensor, Tensor]:
    """The two terms of J at c."""
    shift = -c - math.log(noise_ratio)
    return data.expectation(rule.f1, shift).mean(), noise_ratio * noise.expectation(rule.f0, shift).mean()


def _valued(value: Tensor, towards: Tensor) -> Tensor:
    """The number ``value`` with the gradient of ``towards``."""
    return value.detach() + (towards - towards.detach())


def _gathered(ratio: LogRatio) -> LogRatio:
    if ratio.log_weights is None:
        mean = gather(ratio.mean)
        return LogRatio(mean.unsqueeze(0), known_mean=mean)
    return LogRatio(gather(ratio.values.T).T, gather(ratio.log_weights.T).T)


def _log_mean_exp(values: Tensor) -> Tensor:
    return values.logsumexp(0) - math.log(len(values))


def _identity(values: Tensor) -> Tensor:
    return values
