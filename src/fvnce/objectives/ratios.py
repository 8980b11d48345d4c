r"""Log-ratios Δ⁰ = log p_θ(x, z) − log p_n(x) − log q(z|x), and expectations over the latent.

For a point x and draws z_1 … z_K ~ q(z|x), a function f that is concave in r has

    f(E_q[r]) ≥ E f((r_1 + … + r_K)/K) ≥ E f(r_1),

so K draws enter through the log of their mean ratio. A discrete latent with few values is not drawn but summed over,
Σ_z q(z|x) f(r(x, z)), which is the one-draw bound without its variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution

from .. import _checks
from .._estimates import log_mean_exp, log_power_mean
from ..models import LatentVariableModel
from ..models.distributions import PointMass, all_values, number_of_values, rsample_with_log_ratio
from ..models.fixed import wide
from ..scoring import ScoringRule
from .base import BatchShare, gather

#: A discrete latent with at most this many values is summed over.
MOST_VALUES = 4096
#: Δ⁰ of a noise sample to which the model gives no probability.
LOWEST = -1e30

Encoder = Callable[[Tensor], Distribution]


@dataclass
class LogRatio:
    """Δ⁰ of B points at S latents each.

    Attributes:
        values: Δ⁰, shape (S, B).
        log_weights: None for S draws that are averaged inside f, or log-weights over S, shape (S, B), that sum to
            one, for latents that are averaged outside f.
        base_sample: what the latents were drawn from, if a later pass can draw them again with gradients.
        drawn: whether latents were drawn, and not summed over or absent.
        point: whether q is a point mass.
        known_mean: the mean, where it was computed together with the values and so shares their graph.
    """

    values: Tensor
    log_weights: Tensor | None = None
    base_sample: Tensor | None = None
    drawn: bool = False
    point: bool = False
    known_mean: Tensor | None = field(default=None, repr=False)

    @property
    def mean(self) -> Tensor:
        """log of the mean ratio over the latents, shape (B,): the estimate of log p_θ(x)/p_n(x).

        Nothing is kept that was not given: the mean of values with a graph has one, wherever it was first asked for.
        """
        if self.known_mean is not None:
            return self.known_mean
        if self.log_weights is not None:
            return (self.values + self.log_weights).logsumexp(0)
        return self.values[0] if len(self.values) == 1 else log_mean_exp(self.values)

    @property
    def averaged(self) -> Tensor:
        """What f is applied to: the log of the mean ratio, shape (1, B), or every weighted Δ⁰, shape (S, B)."""
        return self.mean.unsqueeze(0) if self.log_weights is None else self.values

    def expectation(self, function: Callable[[Tensor], Tensor], shift: Tensor | float = 0.0) -> Tensor:
        """The bound on f(log E_q r + shift) for each point, shape (B,)."""
        if self.log_weights is None:
            return function(self.mean if is_nothing(shift) else self.mean + shift)
        return (self.log_weights.exp() * function(self.values + shift)).sum(0)

    def log_moment(self, power: float) -> Tensor:
        """The bound's log E_q[r^power] for each point, shape (B,)."""
        if self.log_weights is None:
            return power * self.mean
        return (power * self.values + self.log_weights).logsumexp(0)

    def log_power_mean(self, power: float) -> Tensor:
        """The same moment's (1/power) log E_q[r^power], for powers near 0, where it tends to E_q[Δ⁰]; shape (B,)."""
        return self.mean if self.log_weights is None else log_power_mean(self.values, power, self.log_weights)

    def detach(self) -> LogRatio:
        """The same numbers without their graph."""
        weights = None if self.log_weights is None else self.log_weights.detach()
        mean = None if self.known_mean is None else self.known_mean.detach()
        return LogRatio(self.values.detach(), weights, self.base_sample, self.drawn, self.point, mean)

    def gathered(self, share: BatchShare | None) -> LogRatio:
        """One log-ratio of all processes; draws that are averaged inside f are averaged first."""
        if self.log_weights is None:
            mean = gather(self.mean, share)
            return LogRatio(mean.unsqueeze(0), known_mean=mean)
        return LogRatio(gather(self.values.T, share).T, gather(self.log_weights.T, share).T)


@dataclass(frozen=True)
class BatchRatios:
    """Δ⁰ of a data batch and of a noise batch.

    Attributes:
        data: of B data samples.
        noise: of N noise samples.
        evidence_offset: what turns a data Δ⁰ into the evidence, log p_n − γ, shape (B,).
        share: the part that this is of a batch over several processes, or None for a batch of its own.
    """

    data: LogRatio
    noise: LogRatio
    evidence_offset: Tensor
    share: BatchShare | None = None

    @cached_property
    def whole(self) -> BatchRatios:
        """Those of all processes; gathered once, however often they are asked for."""
        data, noise = self.data.gathered(self.share), self.noise.gathered(self.share)
        return BatchRatios(data, noise, self.evidence_offset)

    def earned(self, rule: ScoringRule, shift: Tensor | float) -> tuple[Tensor, Tensor]:
        """f1(Δ) of each data sample and f0(Δ) of each noise sample, Δ = Δ⁰ + shift, shapes (B,) and (N,)."""
        return self.data.expectation(rule.f1, shift), self.noise.expectation(rule.f0, shift)

    def every_other(self, start: int) -> BatchRatios:
        """Every other sample, from ``start``, in float64; a single data sample is in both halves."""

        def half(ratio: LogRatio, start: int) -> LogRatio:
            weights = None if ratio.log_weights is None else ratio.log_weights[:, start::2].double()
            return LogRatio(ratio.averaged[:, start::2].double(), weights)

        data = half(self.data, start if self.data.values.shape[1] > 1 else 0)
        return BatchRatios(data, half(self.noise, start), self.evidence_offset)


def log_ratio(
    model: Any,
    q: Distribution | None,
    x: Tensor,
    log_noise: Tensor,
    draws: int = 1,
    *,
    averaged_outside: bool = False,
    marginal: bool = False,
    at: Tensor | None = None,
) -> LogRatio:
    """Δ⁰ at the points x, whose log p_n is ``log_noise``.

    Args:
        model: has ``log_joint(x, z)``, or ``log_prob(x)`` where ``q`` is None.
        q: q(z|x) of these points, or None for a model without latents.
        x: points, shape (B, …).
        log_noise: log p_n of the points, shape (B,).
        draws: K, how many latents to draw for each point.
        averaged_outside: average f over the draws instead of averaging the ratios inside f.
        marginal: sum a discrete latent inside f, which gives log p_θ(x)/p_n(x) itself, whatever ``draws`` says.
        at: the base sample of an earlier pass, to draw the same latents again with gradients.
    """
    if q is None:
        value = wide(_checked(model.log_prob(x), (len(x),), "log_prob")) - log_noise
        return LogRatio(value.unsqueeze(0), known_mean=value)
    values_of_q = number_of_values(q)
    summed_over = values_of_q is not None and values_of_q <= MOST_VALUES
    if summed_over and draws > 1 and not marginal:
        raise ValueError(
            f"latent_samples must be 1 for an encoder whose {type(q).__name__} latent is summed over, found {draws}"
        )
    prior = check_encoded(q, x, model)
    if summed_over:
        z = all_values(q)
        log_q = q.log_prob(z)
        joint = wide(_checked(model.log_joint(x, narrowed(z, x)), tuple(log_q.shape), "log_joint"))
        summed = LogRatio(joint - log_noise - log_q, wide(log_q))
        return LogRatio(summed.mean.unsqueeze(0)) if marginal else summed
    if at is None and not q.has_rsample:
        raise ValueError(
            f"encoder must return a distribution that is reparameterised or has at most {MOST_VALUES} values, "
            f"found {type(q).__name__}" + ("" if values_of_q is None else f" with {values_of_q:,} values")
        )
    drawn = () if draws == 1 else (draws,)
    shape = (*drawn, len(x))
    base_sample = at
    if at is None and hasattr(q, "rsample_from"):  # a distribution that tells apart what is random about a draw
        base_sample = q.base_sample(drawn)  # type: ignore[attr-defined]
    if base_sample is not None and prior is not None and type(model).log_joint is LatentVariableModel.log_joint:
        z, gained = rsample_with_log_ratio(q, prior, base_sample)
        fit = _checked(model.log_likelihood(x, narrowed(z, x)), shape, "log_likelihood")
        values = wide(fit) - log_noise + wide(gained)
    else:
        if base_sample is not None:
            z, log_q = q.rsample_from(base_sample)  # type: ignore[attr-defined]
        else:
            z = q.rsample(drawn)
            log_q = q.log_prob(z)
        values = wide(_checked(model.log_joint(x, narrowed(z, x)), shape, "log_joint")) - log_noise - wide(log_q)
    weights = torch.full_like(values, -math.log(draws)) if averaged_outside and draws > 1 else None
    mean = None
    if weights is None:
        mean = values if draws == 1 else log_mean_exp(values)
    values = values.unsqueeze(0) if draws == 1 else values
    return LogRatio(values, weights, base_sample, drawn=True, point=isinstance(q, PointMass), known_mean=mean)


def is_nothing(shift: Tensor | float) -> bool:
    """Whether a shift need not be added."""
    return isinstance(shift, float) and shift == 0


def _checked(value: Tensor, shape: tuple[int, ...], method: str) -> Tensor:
    """What a model returned, if it is one number for each point."""
    if value.shape != shape:
        raise ValueError(
            f"model.{method} must return one number for each point, shape {shape}, found shape {tuple(value.shape)}; "
            "squeeze a last dimension of 1, and sum over all dimensions of one x"
        )
    return value


def check_encoded(q: object, x: Tensor, model: Any) -> Distribution | None:
    """Refuse what an encoder gave unless it is one distribution for each row of x, over latents of the prior's shape.

    Returns:
        The prior of a latent-variable model, None of another.
    """
    if not isinstance(q, Distribution):
        raise TypeError(f"encoder must return a torch distribution, found {type(q).__name__}")
    if q.batch_shape != x.shape[:1]:
        raise ValueError(
            f"encoder must give one distribution for each row of x of shape {tuple(x.shape)}, found batch shape "
            f"{tuple(q.batch_shape)} and event shape {tuple(q.event_shape)}; its network must map a whole row, "
            "(B, …), to (B, outputs)"
        )
    if not isinstance(model, LatentVariableModel):
        return None
    prior = model.prior
    _checks.latents(q, prior)
    return prior


def narrowed(z: Tensor, x: Tensor) -> Tensor:
    """The latents as a network in half precision takes them; log q and the prior see them as they were drawn."""
    return z.to(x.dtype) if _checks.is_half(x) and z.is_floating_point() else z


def check_model(model: Any, encoder: Encoder | None) -> None:
    """The model must have what Δ⁰ is made of: its joint with an encoder, else its density."""
    needed, how = ("log_prob", "without an encoder") if encoder is None else ("log_joint", "with an encoder")
    if not hasattr(model, needed):
        raise TypeError(f"model must have {needed} {how}, found {type(model).__name__} without it")


def prior_constant(model: Any, point: bool) -> float:
    """γ = max log p_Z for a deterministic encoder on a latent-variable model, else 0."""
    return model.highest_log_prior() if point and isinstance(model, LatentVariableModel) else 0.0


def check_finite(
    name: str, x: Tensor, ratio: LogRatio, log_noise: Tensor | None = None, *, may_be_zero: bool
) -> LogRatio:
    """The log-ratios, all finite; those that must be and are not are traced to where they come from.

    A ratio of zero, Δ⁰ = −∞, is legitimate where the model gives a noise sample no probability, and becomes a number
    whose multiples and sums have gradients. Where checks are deferred, one bad ratio makes all of them NaN, since some
    rules have a finite loss at Δ = −∞.
    """
    later = _checks.are_deferred()
    if not later and not _checks.values_are_hidden():
        values = ratio.values.detach()
        if math.isfinite(float(values.sum())):  # one pass in the good case; a sum that overflows is looked at below
            return ratio
        good = (~values.isnan() & (values < torch.inf) if may_be_zero else values.isfinite()).all(0)
        if not good.all():
            _refuse(name, x, values, good, log_noise)
    if may_be_zero:
        ratio = replace(ratio, values=ratio.values.clamp(min=LOWEST), known_mean=None)
    if later:
        ratio = replace(ratio, values=ratio.values + (ratio.values.detach() * 0).sum(), known_mean=None)
    return ratio


def _refuse(name: str, x: Tensor, values: Tensor, good: Tensor, log_noise: Tensor | None) -> NoReturn:
    _checks.finite_rows(name, x)
    if log_noise is not None:
        _checks.finite_log_noise(name, log_noise)
    row = int((~good).nonzero()[0])
    raise ValueError(
        f"log p_θ(x, z) − log q(z|x) must be finite, found {float(values[:, row].max())} at row {row} of {name}: the "
        "model or the encoder has diverged, or the row lies outside the model's support"
    )
