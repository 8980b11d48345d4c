r"""Treatments of log Z: c of Δ = Δ⁰ − c − log ν, for p_θ = e^(−c) p⁰_θ, and its gradients (docs/theory: log_scale).

* :class:`Fixed`: c is given, 0 for a normalized model.
* :class:`Learned`: c is a parameter, as in the original NCE.
* :class:`Amortized`: log Z is a function of the context, in Δ⁰ itself, and c is 0.
* :class:`Profiled`: c maximizes J on every batch. For (α, 0), with A = E_data[e^(αΔ⁰)] and B = E_noise[e^((1+α)Δ⁰)],

      c* = log B − log A,    max J = (1/α) log A − log B/(1+α)    up to a monotone map (Eq. profiled).

  For other rules c* is the root of the balance (Eq. balance), found by a safeguarded Newton iteration,

      F(c) = E_data[φ(Δ)] − ν E_noise[ψ(Δ)] = 0,      φ = df1/dΔ,  ψ = −df0/dΔ.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import _validation
from .._stats import log_mean_exp, log_power_mean
from ..models.distributions import run
from ..scoring import PowerRule, ScoringRule
from ..scoring.rule import Combination, Normalized
from .batch import BatchPart, LogRatio, Scalar

PartitionName = Literal["fixed", "learned", "profiled"]
LogScaleLike = float | Literal["auto"]
#: J, and f1 and f0 of each sample, from a rule, Δ⁰ of data and noise, c, and ν.
Contrast = Callable[[ScoringRule, LogRatio, LogRatio, Scalar, float], tuple[Tensor, Tensor, Tensor]]

#: The momentum of rules (α, 0) unless another is given.
MOMENTUM = 0.9
#: Batches that must carry the average for it to be followed fully.
ENOUGH_BATCHES = 2.0
#: Below the first, log A is near 0 and not divided by α; below the second, α is treated as 0.
SMALL, NEGLIGIBLE = 1 / 64, 1e-30


class Partition(nn.Module):
    """Base class of treatments of log Z; a custom one defines ``c``.

    >>> class Halved(Partition):
    ...     c = math.log(2)
    >>> from fvnce import NCE, EnergyModel, fit_gaussian, mlp
    >>> noise = fit_gaussian(torch.randn(64, 2))
    >>> NCE(EnergyModel(mlp([2, 1]), reference=noise), noise, partition=Halved()).fitted_log_partition()
    tensor(0.6931)
    """

    @property
    @abstractmethod
    def c(self) -> Scalar:
        """The log-scale in use: given, learned, or that of the last batch."""

    def log_scale_of(self, data: LogRatio, noise: LogRatio, part: BatchPart | None) -> Scalar:
        """Return the c at which J is evaluated on a batch."""
        return self.c

    def fitted_log_partition(self) -> Tensor:
        """Return ``c``, the log-scale in use, as a tensor."""
        return torch.as_tensor(self.c)

    def parameter_groups(self, lr: float) -> list[dict[str, object]]:
        """Return optimizer groups of its own parameters."""
        parameters = list(self.parameters())
        return [{"params": parameters, "lr": lr}] if parameters else []


class Fixed(Partition):
    """Known log Z: 0 for a normalized model, shifted by ``log_scale`` s, Δ = Δ⁰ + s.

    Without a clip, s for (0, 0) is just a weight e^s on the noise term.

    Args:
        log_scale: s, or "auto" to let :class:`fvnce.training.ErrorBudget` find it during :func:`fvnce.fit`. Until then
            calling the objective is an error.

    >>> Fixed(2.0).fitted_log_partition()
    tensor(-2.)
    """

    log_scale: Tensor

    def __init__(self, log_scale: LogScaleLike = 0.0) -> None:
        super().__init__()
        if isinstance(log_scale, str) and log_scale != "auto":
            raise ValueError(f"log_scale must be a number or 'auto', found {log_scale!r}")
        self.automatic = log_scale == "auto"
        value = math.nan if self.automatic else _validation.number("log_scale", log_scale)
        self.register_buffer("log_scale", torch.tensor(value))

    @property
    def c(self) -> Scalar:
        """−s, as a number where reading it does not wait for an accelerator: adding 0.0 then costs nothing."""
        if self.log_scale.device.type != "cpu" or _validation.values_are_hidden():
            return -self.log_scale
        c = -float(self.log_scale)
        if math.isnan(c):
            raise RuntimeError(
                "log_scale must be a number when the objective is called, found 'auto', which fvnce.fit finds; train "
                "the objective with fvnce.fit, or pass a number"
            )
        return c

    def fitted_log_partition(self) -> Tensor:
        """Return −s, in the dtype of the objective."""
        return -self.log_scale

    def extra_repr(self) -> str:
        """Return the log-scale s for the representation."""
        return f"log_scale={self.log_scale}"


class Learned(Partition):
    """Learned log Z: a parameter with its own learning rate.

    Args:
        lr_factor: its learning rate divided by that of the other parameters.
        start: its initial value, by default the estimate on the first batch, unless ``log_z`` has been set to a value
            other than 0 before.

    >>> Learned(lr_factor=5.0).parameter_groups(lr=0.25)[0]["lr"]
    1.25
    """

    started: Tensor

    def __init__(self, lr_factor: float = 10.0, start: float | None = None) -> None:
        super().__init__()
        self.lr_factor = _validation.number("lr_factor", lr_factor, low=0.0, open_low=True)
        self.start = None if start is None else _validation.number("start", start)
        self.log_z = nn.Parameter(torch.tensor(self.start or 0.0))
        self.register_buffer("started", torch.tensor(start is not None))
        self._known_to_have_started = start is not None

    @property
    def c(self) -> Tensor:
        """The parameter ``log_z``, which the optimizer moves."""
        return self.log_z

    def log_scale_of(self, data: LogRatio, noise: LogRatio, part: BatchPart | None) -> Tensor:
        """Return the parameter, which on the first batch is set to log E_noise[e^Δ⁰] unless it has been set before."""
        if self.training and not self._known_to_have_started:
            self._start(noise, part)
        return self.log_z

    @torch.no_grad()
    def _start(self, noise: LogRatio, part: BatchPart | None) -> None:
        if _validation.values_are_hidden():
            raise RuntimeError(
                "a learned log Z starts at its estimate on the first batch, which a traced call cannot do: call the "
                "objective once on a batch before compiling or transforming it"
            )
        if not self.started and self.log_z == 0:
            self.log_z.copy_(log_mean_exp(noise.gathered(part).mean))
        self.started.fill_(True)
        self._known_to_have_started = True

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._known_to_have_started = bool(self.started)

    def parameter_groups(self, lr: float) -> list[dict[str, object]]:
        """Return an optimizer group of log Z with its own rate and no weight decay."""
        return [{"params": [self.log_z], "lr": lr * self.lr_factor, "weight_decay": 0.0}]


class Amortized(Partition):
    """Learned log Z(u) as a function of the context u, for an unnormalized p⁰(x|u) (Eq. amortized).

    Args:
        network: a module from contexts, shape (B, …), to log Z, shape (B,) or (B, 1).

    >>> from fvnce import mlp
    >>> Amortized(mlp([2, 16, 1]))(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    c = 0.0  # because Δ⁰ is already that of e^(−log Z(u)) p⁰(x|u)

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, context: Tensor | None) -> Tensor:
        """Return log Z(u) of each row of a context, shape (B,)."""
        if context is None:
            raise ValueError("context must be given where log Z is a function of it, found None")
        log_z = run(self.network, context)
        log_z = log_z.squeeze(-1) if log_z.dim() == 2 else log_z
        if log_z.shape != context.shape[:1]:
            each = f"one log Z for each of {len(context)} contexts"
            raise ValueError(f"network of Amortized must give {each}, found shape {tuple(log_z.shape)}")
        return log_z

    def fitted_log_partition(self) -> Tensor:
        """Raise an error: there is one for each context, ``objective.partition(context)``."""
        raise RuntimeError("log Z depends on the context; call objective.partition(context)")


@dataclass
class MovingAverage:
    """Moving average of P = Â B̂, by which a batch's gradient is divided, in the log domain.

    See docs/theory, Few noise samples in a batch.

    Attributes:
        count: batches seen.
        log_mean: log P̄.
        log_square: the log of the average of P².
    """

    count: float = 0.0
    log_mean: float = -math.inf
    log_square: float = -math.inf

    def weight(self, log_p: float, momentum: float) -> float:
        """Return the weight of a batch, before it is added.

        >>> moving = MovingAverage()
        >>> moving.weight(3.0, 0.9)  # nothing to compare with
        1.0
        >>> for _ in range(5):
        ...     moving.add(0.0, 0.9)
        >>> round(moving.weight(math.log(2.0), 0.9), 6), round(moving.weight(50.0, 0.9), 6)
        (2.0, 10.0)
        """
        if self.count == 0:
            return 1.0
        highest = 1 / (1 - momentum)
        ratio = math.exp(min(log_p - self.log_mean, math.log(highest)))
        carried = math.exp(2 * self.log_mean - self.log_square) * min(self.count, highest)
        plain = max(0.0, 1 - carried / ENOUGH_BATCHES)
        return ratio + plain * (1 - ratio)

    def add(self, log_p: float, momentum: float) -> None:
        """Add a batch to the averages."""
        new = max(1 - momentum, 1 / (self.count + 1))
        self.log_mean = _mix(self.log_mean, log_p, new)
        self.log_square = _mix(self.log_square, 2 * log_p, new)
        self.count += 1


class Profiled(Partition):
    """Profiled log Z: maximized out on every batch; the rule's clip is ignored.

    Args:
        momentum: for rules (α, 0), of the moving average that weights batches in training, so that few noise samples in
            a batch make its gradient noisy but not biased. 0 gives all batches the same weight, as for other rules,
            which biases the gradient: −log of a mean is too large on average (+0.8 nats with 64 noise samples and a Δ
            of standard deviation 3), and its gradient leads away from the truth. By default 0.9, and 0 wherever no
            state can be kept: inside torch.compile and function transforms. The value of J and the direction of its
            gradient are those of the batch in any case.

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import NCE, PowerRule
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> objective = NCE(normal, normal, PowerRule(0), partition=Profiled(momentum=0.99))
    >>> objective(torch.zeros(4, 2), torch.ones(4, 2))  # r = 1 everywhere
    tensor(-0.)
    """

    last: Tensor
    moving: Tensor

    def __init__(self, momentum: float | None = None) -> None:
        super().__init__()
        self.momentum = None if momentum is None else _validation.number("momentum", momentum, low=0.0, high=1.0)
        if self.momentum == 1:
            raise ValueError("momentum must be below 1, found 1.0: the average would never move")
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("moving", torch.tensor(astuple(MovingAverage())))

    @property
    def c(self) -> Tensor:
        """c* of the last training batch."""
        return self.last

    def maximum(
        self, contrast: Contrast, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float
    ) -> tuple[Tensor, Tensor]:
        """Return the maximum of J over c, with its graph, and c*.

        J at its best c has the gradient of J at c* held fixed (envelope theorem).
        """
        power = power_of(rule)
        if power is None:
            c = _balance_root(rule, *_on_host(data, noise), noise_ratio).to(data.values.device, non_blocking=True)
            value = with_curvature(contrast(rule, data, noise, c, noise_ratio)[0], rule, data, noise, c, noise_ratio)
        else:
            value, c = self._in_closed_form(*power, data, noise)
        if self.training and not _validation.values_are_hidden():
            with torch.no_grad():
                self.last.copy_(c)
        return value, c

    def _in_closed_form(self, weight: float, alpha: float, data: LogRatio, noise: LogRatio) -> tuple[Tensor, Tensor]:
        first, log_a, log_b = _log_moments(alpha, data, noise)
        value = weight * (first - log_b / (1 + alpha))
        c = (log_b - log_a).detach()
        momentum = self._momentum_in_use()
        if momentum:
            log_p = (log_b + log_a).detach()
            # In one transfer, so that an accelerator is waited for once.
            *averages, now = torch.cat([self.moving, log_p[None]]).tolist()
            moving = MovingAverage(*averages)
            batch_weight = moving.weight(now, momentum)
            moving.add(now, momentum)
            with torch.no_grad():
                self.moving.copy_(torch.tensor(astuple(moving), dtype=torch.float64), non_blocking=True)
            if batch_weight != 1:
                value = with_gradient_of(batch_weight * value, value)
        return value, c

    def _momentum_in_use(self) -> float:
        """Return the momentum, or 0 outside of training, so that averages do not change."""
        if not self.training or not torch.is_grad_enabled():
            return 0.0
        if not _validation.values_are_hidden():
            return MOMENTUM if self.momentum is None else self.momentum
        if self.momentum:
            raise RuntimeError(
                f"momentum must be 0 where the objective is compiled or transformed, found {self.momentum}: its moving "
                "average changes with every call"
            )
        return 0.0

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        if prefix + "moving" in state_dict:  # files of 0.2 hold a fourth number, for other rules
            state_dict[prefix + "moving"] = state_dict[prefix + "moving"][:3]
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        """Return the momentum for the representation, if it was given."""
        return "" if self.momentum is None else f"momentum={self.momentum}"


def make_partition(partition: PartitionName | Partition, log_scale: LogScaleLike, rule: ScoringRule) -> Partition:
    """Return the partition of an objective with this rule, from its name or as given."""
    if isinstance(partition, Partition):
        made = partition
    else:
        _validation.choice("partition", partition, ("fixed", "learned", "profiled"))
        if partition != "fixed" and log_scale != 0:
            raise ValueError(f"log_scale must be 0 unless partition is 'fixed', found {log_scale} with {partition!r}")
        made = Fixed(log_scale) if partition == "fixed" else Learned() if partition == "learned" else Profiled()
    if isinstance(made, Profiled) and not rule.variational:
        raise ValueError(
            f"rule must have the double-ELBO property for partition='profiled', found {rule!r}: for others J may have "
            "several maxima in log Z; use partition='learned'"
        )
    if isinstance(made, Profiled) and made.momentum and power_of(rule) is None:
        raise ValueError(f"momentum must be 0 for a rule that is not a multiple of (α, 0), found {made.momentum}")
    return made


def power_of(rule: ScoringRule) -> tuple[float, float] | None:
    """Return (weight, α) if the rule is a multiple of (α, 0), else None."""
    if isinstance(rule, PowerRule):
        return (1.0, rule.alpha) if rule.beta == 0 else None
    if isinstance(rule, Normalized):
        inner = power_of(rule.rule)
        return None if inner is None else (1.0, inner[1])
    if isinstance(rule, Combination) and len(rule.parts) == 1:
        weight, part = rule.parts[0]
        inner = power_of(part)
        return None if inner is None else (weight * inner[0], inner[1])
    return None


def _mix(old: float, new: float, weight: float) -> float:
    """Return log((1 − weight) e^old + weight e^new)."""
    if weight == 1:
        return new
    low, high = sorted((old + math.log1p(-weight), new + math.log(weight)))
    return high + math.log1p(math.exp(low - high))


def best_log_scale(rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
    """Return c*, the maximizer of J without a clip."""
    power = power_of(rule)
    if power is None:
        return _balance_root(rule, data, noise, noise_ratio)
    _, log_a, log_b = _log_moments(power[1], data, noise)
    return log_b - log_a


def _log_moments(alpha: float, data: LogRatio, noise: LogRatio) -> tuple[Tensor, Scalar, Tensor]:
    """Return (1/α) log A, log A and log B; for α → 0 the first is E_data[Δ⁰]."""
    log_b = log_mean_exp(noise.log_moment(1 + alpha))
    if alpha < NEGLIGIBLE:
        return data.average(data.values).mean(), 0.0, log_b
    if alpha < SMALL:
        first = log_power_mean(data.log_power_mean(alpha), alpha)
        return first, alpha * first, log_b
    log_a = log_mean_exp(data.log_moment(alpha))
    return log_a / alpha, log_a, log_b


def _on_host(data: LogRatio, noise: LogRatio) -> tuple[LogRatio, LogRatio]:
    """Return the numbers without their graph, on the CPU, by one transfer: a root is found by looking at values."""
    data, noise, device = data.detach(), noise.detach(), data.values.device
    tensors: list[Any] = [data.values, data.log_weights, noise.values, noise.log_weights]
    if device.type != "cpu":
        given = [t.to(device) for t in tensors if t is not None]
        parts = iter(torch.cat([t.flatten() for t in given]).cpu().split([t.numel() for t in given]))
        tensors = [None if t is None else next(parts).reshape(t.shape).to(t.dtype) for t in tensors]
    return LogRatio(*tensors[:2]), LogRatio(*tensors[2:])


def _balance_root(rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
    """Return the root c of g(c) = log E_data[φ] − log(ν E_noise[ψ]).

    The log-slopes grow in Δ at rates within [0, 1] and [1, 2], so g increases, at a rate that Newton's method uses; a
    step that leaves the bracket is replaced by bisection. Computed in float64, because the sums are small.
    """
    x, y = data.values.double() - math.log(noise_ratio), noise.values.double() - math.log(noise_ratio)
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
    c = noise.mean.double().logsumexp(0) - math.log(noise.values.shape[-1]) - math.log(noise_ratio)
    c = c.clamp(low, high)
    for _ in range(60):
        value, rate = residual(c)
        low, high = torch.where(value < 0, c, low), torch.where(value < 0, high, c)
        newton = c - value / rate
        inside = (newton > low) & (newton < high)
        step = torch.where(inside, newton, (low + high) / 2) - c
        c = c + step
        if not _validation.values_are_hidden() and step.abs() < 1e-12 * (1 + c.abs()):
            break
    return c.to(data.values.dtype)


def _log_average_weights(ratio: LogRatio) -> Scalar:
    """Return log-weights that average over latents and points."""
    points = math.log(ratio.values.shape[-1])
    return -points if ratio.log_weights is None else ratio.log_weights.double() - points


@torch.no_grad()
def log_noise_weights(
    partition: Partition, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float
) -> Tensor:
    """Return the log of the weights E_q[−df0/dΔ] of noise samples in the gradient, up to a constant, shape (N,)."""
    if not isinstance(partition, Profiled):
        c = partition.c
    elif (power := power_of(rule)) is None:
        c = _balance_root(rule.unclipped(), data, noise, noise_ratio)
    else:
        logs = noise.log_moment(1 + power[1])
        return logs - logs.max()
    shift = -c - math.log(noise_ratio)
    delta = noise.values if isinstance(shift, float) and shift == 0 else noise.values + shift
    logs = delta + rule.log_slope(delta)[0]
    return logs if noise.log_weights is None else (logs + noise.log_weights).logsumexp(0)


def with_gradient_of(towards: Tensor, value: Tensor) -> Tensor:
    """Return the number ``value`` with the gradient of ``towards``."""
    return value.detach() + (towards - towards.detach())


def with_curvature(
    value: Tensor, rule: ScoringRule, data: LogRatio, noise: LogRatio, c: Tensor, noise_ratio: float
) -> Tensor:
    """Return J at c* held fixed, with the second derivatives of J(c*), in which c* varies (Eq. curvature)."""
    tensors = (data.values, data.log_weights, noise.values, noise.log_weights)
    if _validation.values_are_hidden():
        residual, curvature, _ = _balance(rule, tensors, c, noise_ratio)
        return value - residual.square() / (2 * curvature)
    if not value.requires_grad:
        return value
    result: Tensor = _AtItsBest.apply(value, rule, c, noise_ratio, *tensors)  # type: ignore[no-untyped-call]
    return result


class _AtItsBest(torch.autograd.Function):
    """Identity whose gradient has the graph of the second derivatives only if a graph is requested."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, rule: ScoringRule, c: Tensor, noise_ratio: float, *tensors: Tensor | None
    ) -> Tensor:
        ctx.rule, ctx.noise_ratio = rule, noise_ratio
        ctx.save_for_backward(c, *tensors)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        c, *tensors = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return gradients[0], None, None, None, *(None for _ in tensors)
        residual, curvature, slopes = _balance(ctx.rule, tensors, c, ctx.noise_ratio)
        scale = -gradients[0] * residual / curvature
        inner = (None if t is None else scale * slope for t, slope in zip(tensors, slopes, strict=True))
        return gradients[0], None, None, None, *inner


def _balance(
    rule: ScoringRule, tensors: Sequence[Tensor | None], c: Tensor, noise_ratio: float
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return F as a function of ``tensors`` near c*, where it is 0, and J_cc and ∂F as numbers.

    ``tensors`` are Δ⁰ and its log-weights, or None, of data and of noise.
    """
    slopes: list[Tensor] = []
    with torch.no_grad():
        for is_noise, (values, log_weights) in enumerate((tensors[:2], tensors[2:])):
            assert values is not None
            delta = values - c - math.log(noise_ratio)
            log, rate = rule.log_slope(delta)
            if is_noise:  # −ν ψ = −ν e^Δ φ
                log, rate = log + delta + math.log(noise_ratio), 1 + rate
            logs = log if log_weights is None else log + log_weights
            pull = (logs - math.log(values.shape[-1])).exp() * (-1 if is_noise else 1)
            slopes += [pull * rate, pull]
        curvature = slopes[0].sum() + slopes[2].sum()
    parts = [(slope * (t - t.detach())).sum() for t, slope in zip(tensors, slopes, strict=True) if t is not None]
    return torch.stack(parts).sum(), curvature, slopes
