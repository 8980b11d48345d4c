r"""The treatment of log Z: how Δ⁰ = log p⁰_θ(x, z) − log p_n(x) − log q(z|x) becomes Δ = Δ⁰ + shift.

Write p_θ = e^(−c) p⁰_θ, so that the shift is −c.

* :class:`Fixed`: c is given. c = 0 for a normalised model.
* :class:`Learned`: c is a parameter, as in the original NCE.
* :class:`Profiled`: c is maximised out. J is unimodal in c for every double-ELBO rule; its maximum is where
  E_data[df1/dΔ] = ν E_noise[−df0/dΔ]. For (α, 0), with A = E_data[e^(αΔ⁰)] and B = E_noise[e^((1+α)Δ⁰)],

      c* = log B − log A,    J = (1/α) log A − log B/(1+α),    α → 0:  E_data[Δ⁰] − log E_noise[e^Δ⁰],

  up to a monotone map. This is the γ-divergence; both terms are log-mean-exps, so it needs no clip. For other rules c
  is found by a safeguarded Newton iteration and held fixed while J is differentiated (envelope theorem).

With ν noise samples per data sample the classifier compares p_θ with ν p_n, so the rule sees Δ − log ν.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import _checks
from ..scoring import PowerRule, ScoringRule
from ..scoring.rule import Combination, Normalised
from ._distributed import gather, mean_over_data, mean_over_noise
from .ratios import LogRatio, is_nothing


@dataclass(frozen=True)
class Contrast:
    """J of a batch with its graph; what each sample earns, and the shift, without."""

    value: Tensor
    data: Tensor
    noise: Tensor
    shift: Tensor | float


class Partition(nn.Module):
    """A treatment of log Z."""

    @abstractmethod
    def contrast(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Contrast:
        """J of a batch."""

    @abstractmethod
    def log_noise_weights(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
        """log of the weights with which noise samples enter the gradient, up to a constant near 0, shape (N,)."""

    @abstractmethod
    def fitted_log_partition(self) -> Tensor:
        """c, the log-scale that the objective uses: given, learned, or of the last batch."""

    def check(self, rule: ScoringRule) -> None:
        """Raise an error if it does not go with the rule."""

    def parameter_groups(self, lr: float) -> list[dict[str, object]]:
        """Optimiser groups of its own parameters."""
        return []


class _Shifted(Partition):
    """Δ = Δ⁰ + shift with a shift that does not depend on the batch."""

    def contrast(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Contrast:
        """E_data f1 + ν E_noise f0."""
        shift = self._shift(noise_ratio)
        earned_data = data.expectation(rule.f1, shift)
        earned_noise = noise.expectation(rule.f0, shift)
        value = torch.add(mean_over_data(earned_data), mean_over_noise(earned_noise), alpha=noise_ratio)
        return Contrast(
            value, earned_data.detach(), earned_noise.detach(), shift.detach() if isinstance(shift, Tensor) else shift
        )

    def log_noise_weights(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
        """log(−df0/dΔ)."""
        return _log_noise_slopes(rule, noise, self._shift(noise_ratio))

    def _shift(self, noise_ratio: float) -> Tensor | float:
        """−c − log ν."""
        return -self.fitted_log_partition() - math.log(noise_ratio)


class Fixed(_Shifted):
    """log Z is known: 0 for a normalised model, shifted by ``log_scale`` s, Δ = Δ⁰ + s.

    Without a clip, s for (0, 0) is just a weight e^s on the noise term.
    """

    def __init__(self, log_scale: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("log_scale", torch.tensor(_checks.number("log_scale", log_scale)))

    def fitted_log_partition(self) -> Tensor:
        """−s."""
        assert isinstance(self.log_scale, Tensor)
        return -self.log_scale

    def _shift(self, noise_ratio: float) -> Tensor | float:
        # As a number where that makes no accelerator wait: adding 0.0 then costs nothing at all.
        if _checks.values_are_hidden() or self.log_scale.device.type != "cpu":
            return super()._shift(noise_ratio)
        return float(self.log_scale) - math.log(noise_ratio)

    def extra_repr(self) -> str:
        """The scale."""
        return f"log_scale={self.log_scale}"


class Learned(_Shifted):
    """log Z is a parameter with its own learning rate, started at its estimate on the first batch.

    Args:
        lr_factor: its learning rate over that of the other parameters.
    """

    def __init__(self, lr_factor: float = 10.0) -> None:
        super().__init__()
        self.lr_factor = _checks.number("lr_factor", lr_factor, low=0.0, open_low=True)
        self.log_z = nn.Parameter(torch.zeros(()))
        self.register_buffer("started", torch.tensor(False))
        self._known_to_have_started = False

    def contrast(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Contrast:
        """As with a fixed c, which on the first batch is set to log E_noise[e^Δ⁰]."""
        self._start(noise)
        return super().contrast(rule, data, noise, noise_ratio)

    @torch.no_grad()
    def _start(self, noise: LogRatio) -> None:
        if not self.training:
            return
        if _checks.values_are_hidden():
            if not self._known_to_have_started:
                raise RuntimeError(
                    "a learned log Z starts at its estimate on the first batch, which a traced call cannot do: call "
                    "the objective once on a batch before compiling or transforming it"
                )
            return
        if self.started:
            self._known_to_have_started = True
            return
        values = gather(noise.mean)
        self.log_z.copy_(values.logsumexp(0) - math.log(len(values)))
        self.started.fill_(True)  # type: ignore[operator]
        self._known_to_have_started = True

    def fitted_log_partition(self) -> Tensor:
        """The parameter."""
        return self.log_z

    def parameter_groups(self, lr: float) -> list[dict[str, object]]:
        """log Z with its own rate, and never decayed towards 0."""
        return [{"params": [self.log_z], "lr": lr * self.lr_factor, "weight_decay": 0.0}]


class Profiled(Partition):
    """log Z is maximised out on every batch; the rule's clip is ignored.

    Args:
        momentum: 0 takes the normaliser B from the batch alone, whose log is biased (−log of a mean is too large on
            average: +0.8 nats with 64 noise samples and a Δ of standard deviation 3). With 0 < momentum < 1 the
            gradient of log B is ∇B over a moving average of B, which removes most of the bias in training. It is
            defined for (α, 0); a larger noise batch serves every rule.
    """

    def __init__(self, momentum: float = 0.0) -> None:
        super().__init__()
        self.momentum = _checks.number("momentum", momentum, low=0.0, high=1.0)
        if self.momentum == 1:
            raise ValueError("momentum must be below 1, found 1.0: the average would never move")
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("average", torch.tensor(-math.inf))

    def check(self, rule: ScoringRule) -> None:
        """The rule needs one best c, and for a moving average the closed form."""
        if not rule.variational:
            raise ValueError(
                f"partition='profiled' needs a rule with the double-ELBO property, found {rule!r}: for others J may "
                "have several maxima in log Z; use partition='learned'"
            )
        if self.momentum and power_of(rule) is None:
            raise ValueError(
                f"momentum must be 0 for {rule!r}, found {self.momentum}: a moving average is defined for rules (α, 0)"
            )

    def contrast(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Contrast:
        """J at its best c."""
        power = power_of(rule)
        if power is None:
            c, value = self._by_root(rule.unclipped(), data, noise, noise_ratio)
        else:
            c, value = self._in_closed_form(*power, data, noise)
        shift = -c - math.log(noise_ratio)
        with torch.no_grad():
            if not _checks.values_are_hidden() and self.training:
                self.last.copy_(c)  # type: ignore[operator]
            rule = rule.unclipped()
            return Contrast(value, data.expectation(rule.f1, shift), noise.expectation(rule.f0, shift), shift)

    def _in_closed_form(self, weight: float, alpha: float, data: LogRatio, noise: LogRatio) -> tuple[Tensor, Tensor]:
        log_b = _log_mean_exp(gather(noise.log_moment(1 + alpha)))
        if alpha == 0:
            first = gather(data.expectation(_identity)).mean()
            c = log_b.detach()
        else:
            log_a = _log_mean_exp(gather(data.log_moment(alpha)))
            first = log_a / alpha
            c = (log_b - log_a).detach()
        return c, weight * (first - self._debiased(log_b) / (1 + alpha))

    def _debiased(self, log_b: Tensor) -> Tensor:
        """log B, or with momentum its tangent at the moving average: log B̄ + B/B̄ − 1."""
        if self.momentum == 0 or not self.training:
            return log_b
        if _checks.values_are_hidden():
            raise RuntimeError(
                "momentum must be 0 where the objective is compiled or transformed: its moving average changes with "
                "every call"
            )
        assert isinstance(self.average, Tensor)
        with torch.no_grad():
            new = log_b + math.log1p(-self.momentum)
            old = self.average + math.log(self.momentum)
            average = log_b if self.average == -math.inf else torch.logaddexp(old, new)
            self.average.copy_(average)
        # B/B̄ ≤ 1/(1 − momentum) because the average contains this batch: the exponential is safe.
        return average + torch.expm1(log_b - average)

    def _by_root(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> tuple[Tensor, Tensor]:
        data, noise = _gathered(data), _gathered(noise)
        c = _best_log_scale(rule, data.detach(), noise.detach(), noise_ratio)
        shift = -c - math.log(noise_ratio)
        earned = data.expectation(rule.f1, shift).mean(), noise.expectation(rule.f0, shift).mean()
        return c, earned[0] + noise_ratio * earned[1]

    def log_noise_weights(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
        """The log of the normalised weights, times their number."""
        power = power_of(rule)
        if power is not None:
            logs = noise.log_moment(1 + power[1])
            return logs - logs.max()
        c = _best_log_scale(rule.unclipped(), data.detach(), noise.detach(), noise_ratio)
        return _log_noise_slopes(rule, noise, -c - math.log(noise_ratio))

    def fitted_log_partition(self) -> Tensor:
        """c* of the last training batch."""
        assert isinstance(self.last, Tensor)
        return self.last

    def extra_repr(self) -> str:
        """The momentum."""
        return f"momentum={self.momentum}"


def _log_noise_slopes(rule: ScoringRule, noise: LogRatio, shift: Tensor | float) -> Tensor:
    """log E_q[−df0/dΔ] of each noise sample."""
    delta = noise.averaged if is_nothing(shift) else noise.averaged + shift
    logs = delta + rule.log_slope(delta)[0]
    return logs[0] if noise.log_weights is None else (logs + noise.log_weights).logsumexp(0)


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


def _best_log_scale(rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
    """The root c of g(c) = log E_data[df1/dΔ] − log(ν E_noise[−df0/dΔ]), Δ = Δ⁰ − c − log ν.

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


def _log_average_weights(ratio: LogRatio) -> Tensor | float:
    """Log-weights that average over latents and points."""
    points = math.log(ratio.values.shape[1])
    return -points if ratio.log_weights is None else ratio.log_weights.double() - points


def _gathered(ratio: LogRatio) -> LogRatio:
    if ratio.log_weights is None:
        return LogRatio(gather(ratio.mean).unsqueeze(0))
    return LogRatio(gather(ratio.values.T).T, gather(ratio.log_weights.T).T)


def _log_mean_exp(values: Tensor) -> Tensor:
    return values.logsumexp(0) - math.log(len(values))


def _identity(values: Tensor) -> Tensor:
    return values
