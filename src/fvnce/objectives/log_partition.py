r"""The treatment of log Z: which c makes p_θ = e^(−c) p⁰_θ of an unnormalised p⁰_θ.

* :class:`Fixed`: c is given. c = 0 for a normalised model.
* :class:`~fvnce.objectives.budget.Budgeted`: c follows from how much worse the data may fare.
* :class:`Learned`: c is a parameter, as in the original NCE.
* :class:`~fvnce.objectives.profiled.Profiled`: c is maximised out on every batch.

With noise ν times as frequent as data the classifier compares p_θ with ν p_n, so that the rule sees

    Δ = Δ⁰ − c − log ν,      Δ⁰ = log p⁰_θ(x, z) − log p_n(x) − log q(z|x).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks
from .._estimates import log_mean_exp
from ..scoring import ScoringRule
from .base import Batch, gather
from .ratios import BatchRatios, Encoder, LogRatio, is_nothing


@dataclass(frozen=True)
class GradientWeights:
    """How a batch trains the model where earlier ones count too: by the gradient of

    batch · (data · E_data f1 + noise · ν E_noise f0)      at the log-scale ``at``.
    """

    at: float
    batch: float
    data: float
    noise: float


@dataclass(frozen=True)
class Moments:
    """What J at its best c is made of for a rule w·(α, 0), with the graph that trains the model.

    Attributes:
        weight: w.
        alpha: α.
        data: (1/α) log E_data[e^(αΔ⁰)], which for α → 0 is E_data[Δ⁰].
        noise: log E_noise[e^((1+α)Δ⁰)].
        counts: how much the batch counts in training, where earlier ones count too.
    """

    weight: float
    alpha: float
    data: Tensor
    noise: Tensor
    counts: float


@dataclass(frozen=True)
class LogScale:
    """c, and where it was chosen on the batch, how the batch trains the model.

    Attributes:
        c: the log-scale.
        maximised: whether c is the best one for this batch.
        moments: where J at its best c has a closed form.
        weights: of the gradient, where there is no closed form; None for the gradient of J at its best c.
    """

    c: Tensor | float
    maximised: bool = False
    moments: Moments | None = None
    weights: GradientWeights | None = None


class Partition(nn.Module):
    """A treatment of log Z: it says what c is, and the objective computes J there.

    >>> class Halved(Fixed):
    ...     def log_scale_of(self, rule, ratios, noise_ratio):
    ...         return LogScale(math.log(2))
    >>> from fvnce import SNCE, EnergyModel, PowerRule, fit_gaussian, mlp
    >>> noise = fit_gaussian(torch.randn(64, 2))
    >>> SNCE(EnergyModel(mlp([2, 1]), reference=noise), noise, PowerRule(alpha=0), partition=Halved()).partition
    Halved(log_scale=0.0)
    """

    @abstractmethod
    def log_scale_of(self, rule: ScoringRule, ratios: BatchRatios, noise_ratio: float) -> LogScale:
        """c for a batch."""

    @abstractmethod
    def log_noise_weights(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
        """log of the weights with which noise samples enter the gradient, up to a constant near 0, shape (N,)."""

    @abstractmethod
    def fitted_log_partition(self) -> Tensor:
        """c, the log-scale that the objective uses: given, learned, or of the last batch."""

    def check(self, rule: ScoringRule) -> None:
        """Raise an error if it does not go with the rule."""

    def attach(self, model: Any, encoder: Encoder | None) -> None:
        """Learn whose log Z this is, once, when the objective is made."""

    def prepare(
        self, model: Any, encoder: Encoder | None, noise: Distribution, rule: ScoringRule, batch: Batch
    ) -> tuple[Batch, Tensor | None]:
        """The batch that the objective is to be evaluated on, and a loss by which parts of its own learn, if any."""
        return batch, None

    def parameter_groups(self, lr: float) -> list[dict[str, object]]:
        """Optimiser groups of its own parameters."""
        return []


class Fixed(Partition):
    """log Z is known: 0 for a normalised model, shifted by ``log_scale`` s, Δ = Δ⁰ + s.

    Without a clip, s for (0, 0) is just a weight e^s on the noise term.

    >>> Fixed(2.0).fitted_log_partition()
    tensor(-2.)
    """

    def __init__(self, log_scale: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("log_scale", torch.tensor(_checks.number("log_scale", log_scale)))

    def fitted_log_partition(self) -> Tensor:
        """−s."""
        assert isinstance(self.log_scale, Tensor)
        return -self.log_scale

    def log_scale_of(self, rule: ScoringRule, ratios: BatchRatios, noise_ratio: float) -> LogScale:
        """−s."""
        return LogScale(self._c())

    def log_noise_weights(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
        """log(−df0/dΔ)."""
        return log_noise_slopes(rule, noise, -self._c() - math.log(noise_ratio))

    def _c(self) -> Tensor | float:
        # As a number where that makes no accelerator wait: adding 0.0 then costs nothing at all.
        if _checks.values_are_hidden() or self.log_scale.device.type != "cpu":
            return self.fitted_log_partition()
        return -float(self.log_scale)

    def extra_repr(self) -> str:
        """The log-scale s."""
        return f"log_scale={self.log_scale}"


class Learned(Partition):
    """log Z is a parameter with its own learning rate.

    Args:
        lr_factor: its learning rate over that of the other parameters.
        start: where it starts. By default that is its estimate on the first batch, unless ``log_z`` has been set to
            anything but 0 by then.

    >>> Learned(lr_factor=5.0).parameter_groups(lr=0.25)[0]["lr"]
    1.25
    """

    def __init__(self, lr_factor: float = 10.0, start: float | None = None) -> None:
        super().__init__()
        self.lr_factor = _checks.number("lr_factor", lr_factor, low=0.0, open_low=True)
        self.start = None if start is None else _checks.number("start", start)
        self.log_z = nn.Parameter(torch.tensor(self.start or 0.0))
        self.register_buffer("started", torch.tensor(start is not None))
        self._known_to_have_started = start is not None

    def log_scale_of(self, rule: ScoringRule, ratios: BatchRatios, noise_ratio: float) -> LogScale:
        """The parameter, which on the first batch is set to log E_noise[e^Δ⁰] unless it has been set before."""
        self._start(ratios)
        return LogScale(self.log_z)

    def log_noise_weights(self, rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
        """log(−df0/dΔ)."""
        return log_noise_slopes(rule, noise, -self.log_z - math.log(noise_ratio))

    @torch.no_grad()
    def _start(self, ratios: BatchRatios) -> None:
        if not self.training:
            return
        if _checks.values_are_hidden():
            if not self._known_to_have_started:
                raise RuntimeError(
                    "a learned log Z starts at its estimate on the first batch, which a traced call cannot do: call "
                    "the objective once on a batch before compiling or transforming it"
                )
            return
        if _checks.are_deferred() and self._known_to_have_started:
            return
        self._known_to_have_started = True
        if self.started:
            return
        if self.log_z == 0:
            self.log_z.copy_(log_mean_exp(gather(ratios.noise.mean, ratios.share)))
        self.started.fill_(True)  # type: ignore[operator]

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._known_to_have_started = bool(self.started)

    def fitted_log_partition(self) -> Tensor:
        """The parameter."""
        return self.log_z

    def parameter_groups(self, lr: float) -> list[dict[str, object]]:
        """log Z with its own rate, and never decayed towards 0."""
        return [{"params": [self.log_z], "lr": lr * self.lr_factor, "weight_decay": 0.0}]


def log_noise_slopes(rule: ScoringRule, noise: LogRatio, shift: Tensor | float) -> Tensor:
    """log E_q[−df0/dΔ] of each noise sample."""
    delta = noise.averaged if is_nothing(shift) else noise.averaged + shift
    logs = delta + rule.log_slope(delta)[0]
    return logs[0] if noise.log_weights is None else (logs + noise.log_weights).logsumexp(0)


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
