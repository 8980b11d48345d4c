r"""J, which contrasts data with noise, and the base class of the objectives built on it:

    J = E_data f1(Δ) + ν E_noise f0(Δ),      Δ = Δ⁰ − c − log ν,      Δ⁰ = log p⁰_θ(x, z) − log p_n(x) − log q(z|x),

with (f1, f0) a scoring rule, ν the noise ratio and c the log Z of the partition (docs/theory: Eq. noise_ratio). With a
context, data and noise are pairs: p⁰_θ(x, z|u), q(z|x, u), p_n(x) or p_n(x|u), and noise has the contexts of the data.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution

from .. import _validation
from .._random import seeded_by
from .._stats import LogPartition, estimate_log_mean, log_mean_exp
from ..models.distributions import log_prob_inside, wide
from ..models.fixed import FixedDistribution
from ..models.networks import given, takes_context
from ..noise import draw, log_prob_or_minus_inf
from ..scoring import Logarithmic, ScoringRule
from .batch import Batch, BatchPart, LogRatio, Scalar, Terms
from .partition import (
    Amortized,
    LogScaleLike,
    Partition,
    PartitionName,
    Profiled,
    best_log_scale,
    log_noise_weights,
    make_partition,
)
from .ratios import (
    LOWEST_RATIO,
    OF_WHOLE_BATCHES,
    Encoder,
    ModelObjective,
    all_finite,
    check_finite,
    check_model,
    log_ratio,
    prior_constant,
    treats_by_rows,
)

#: p_n, or a function of contexts u, shape (B, …), that gives p_n(·|u) with batch shape (B,).
NoiseLike = Distribution | Callable[[Tensor], Distribution]

#: If at most this fraction of the last noise batch had a weight above 0, samples of weight 0 are not differentiated.
SKIP_BELOW = 0.5
#: A Δ above which the weight of a noise sample is above 0 in float32, unless the rule has a tiny factor.
FELT_ABOVE = -30.0
#: Rows, their log p_n, and their contexts.
_Side = tuple[Tensor, Tensor, Tensor | None]

_NONE = torch.empty(0, dtype=torch.long)


def contrast(
    rule: ScoringRule, data: LogRatio, noise: LogRatio, c: Scalar, noise_ratio: float, part: BatchPart | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return J = E_data f1(Δ) + ν E_noise f0(Δ) at Δ = Δ⁰ − c − log ν, and f1 and f0 of each sample.

    Args:
        rule: (f1, f0).
        data: Δ⁰ of B data samples.
        noise: Δ⁰ of N noise samples.
        c: the log-scale.
        noise_ratio: ν.
        part: the part of this process, by which its means are weighted.
    """
    shift = -c - math.log(noise_ratio)
    nothing = isinstance(shift, float) and shift == 0  # adding it would cost as much as a layer of a small network
    f1 = data.average(rule.f1(data.values if nothing else data.values + shift))
    f0 = noise.average(rule.f0(noise.values if nothing else noise.values + shift))
    mean1, mean0 = f1.mean(), f0.mean()
    if part is not None:
        mean1, mean0 = mean1 * part.data, mean0 * part.noise
    return torch.add(mean1, mean0, alpha=noise_ratio), f1, f0


class ContrastiveObjective(ModelObjective):
    """Base class of NCE, VNCE and fvNCE: noise, rule, log Z, and J.

    Args:
        model: p_θ, possibly unnormalized: ``log_joint(x, z)``, or ``log_prob(x)`` where ``encoder`` is None.
        encoder: q1(z|x), and q0 as well unless ``noise_encoder`` is given; None for a model without latents.
        noise: p_n, a torch distribution over single rows of x; or p_n(·|u), a function or a module from contexts of
            shape (B, …) to a distribution of batch shape (B,), which is drawn from and not trained.
        rule: a scoring rule.
        noise_ratio: ν, the weight of the noise term.
        noise_samples: noise samples drawn for each data sample, by default ν of them.
        partition: ``"fixed"``, ``"learned"``, ``"profiled"``, or a :class:`~fvnce.objectives.Partition`.
        log_scale: s of Δ = Δ⁰ + s, for the fixed partition. With "auto", :func:`fvnce.fit` finds it from a budget on
            the data's error (:class:`~fvnce.training.ErrorBudget`); before that, calling the objective is an error.
        noise_encoder: q0(z|x), which must cover p_θ(z|x) of noise.
        latent_samples: draws of each latent. A discrete latent with few values is summed over instead.

    Data and noise go through the networks in one pass if each row is known to be processed independently: data and
    noise have one encoder, and all modules are fvnce's or row-wise modules of ``torch.nn``. Batch normalization,
    dropout, attention, recurrent layers, layers along the first dimension and modules with forward hooks need two
    passes. So does a module of your own unless it has an attribute ``by_rows = True``. Both ways give the same J. Only
    where rows are independent are noise samples of weight 0 left out of the gradient's pass. What the modules are is
    looked up once, when the objective is made.

    With a context, the fixed, learned and profiled partitions have one c for all contexts. This is right where
    log Z(u) is the same for all of them: for a normalized p_θ(x|u), and for a network that is free to add a function of
    u to log p⁰(x|u), which then learns to absorb log Z(u). Otherwise use :class:`~fvnce.objectives.Amortized`, or
    :class:`~fvnce.objectives.RankingNCE`, which needs no log Z.

    >>> import fvnce
    >>> issubclass(fvnce.FullyVariationalNCE, ContrastiveObjective), issubclass(fvnce.VAE, ContrastiveObjective)
    (True, False)
    """

    live_fraction: Tensor
    #: Whether a discrete latent is summed inside f0, for a rule whose noise term is no bound.
    _noise_is_marginal = False
    #: Whether draws of a data latent are averaged outside f1, for a rule whose f1 need not be concave in r.
    _data_is_averaged_outside = False
    #: Draws of the latent of a noise sample, where they are not ``latent_samples``.
    importance_samples: int | None = None
    #: Whether the noise term is known in closed form, so that only z is drawn.
    variance_reduced = False

    def __init__(
        self,
        model: Any,
        encoder: Encoder | None,
        noise: NoiseLike,
        rule: ScoringRule,
        noise_ratio: float = 1.0,
        noise_samples: float | None = None,
        partition: PartitionName | Partition = "fixed",
        log_scale: LogScaleLike = 0.0,
        noise_encoder: Encoder | None = None,
        latent_samples: int = 1,
    ) -> None:
        super().__init__(model, encoder)
        conditional = callable(noise) and not isinstance(noise, Distribution)
        if not conditional:
            _validation.distribution("noise", noise)
        if not isinstance(rule, ScoringRule):
            raise TypeError(f"rule must be a scoring rule such as PowerRule(alpha=0), found {rule!r}")
        if encoder is None and noise_encoder is not None:
            raise ValueError("noise_encoder must be None for a model without latents (encoder=None), found one")
        check_model(model, encoder)
        self.noise_encoder = noise_encoder
        self._noise, self.rule = FixedDistribution(cast("Distribution", noise)), rule
        self.latent_samples = _validation.count("latent_samples", latent_samples)
        self.noise_ratio = _validation.number("noise_ratio", noise_ratio, low=0.0, open_low=True)
        noise_samples = noise_ratio if noise_samples is None else noise_samples
        self.noise_samples = _validation.number("noise_samples", noise_samples, low=0.0, open_low=True)
        self.partition = make_partition(partition, log_scale, rule)
        takes = {"noise": conditional, "partition": isinstance(self.partition, Amortized)}
        takes["noise_encoder"] = noise_encoder is not None and takes_context(noise_encoder)
        self._context_parts |= {part for part, it_does in takes.items() if it_does}
        self._can_skip = not any(isinstance(module, OF_WHOLE_BATCHES) for module in self.modules())
        one_kind = not (self._noise_is_marginal or self._data_is_averaged_outside)
        same_encoder = encoder is None or (noise_encoder is None and one_kind)
        same_methods = all(
            getattr(type(self), name) is getattr(ContrastiveObjective, name)
            for name in ("data_log_ratio", "noise_log_ratio")
        )
        parts = [part for part in (model, encoder, noise_encoder, self.partition) if part is not None]
        self._by_rows = all(map(treats_by_rows, parts))
        self._joins = same_encoder and same_methods and self._by_rows
        # Part of the state: what the last batch showed decides how the next one is computed, to the last bit.
        self.register_buffer("live_fraction", torch.ones(()))

    @property
    def noise(self) -> Distribution:  # type: ignore[override]
        """The noise distribution p_n, or the function that gives p_n(·|u), which moves with the objective."""
        return self._noise.distribution

    def noise_given(self, context: Tensor | None) -> Distribution:
        """Return p_n, or p_n(·|u) with one distribution for each row of the context."""
        noise: Any = self._noise.distribution
        if isinstance(noise, Distribution):
            return noise
        if context is None:
            raise ValueError("context must be given where the noise is a function of it, found None")
        made: Distribution = noise(context)
        if getattr(made, "batch_shape", None) != context.shape[:1]:
            expected = f"batch shape ({len(context)},), one for each row of the context"
            raise ValueError(f"noise must give a torch distribution of {expected}, found {made!r}")
        return made

    def context_rows(self, noise_rows: int, rows: int) -> Tensor:
        """Return which row of data each noise sample has its context from: 0, 1, …, and from the first again."""
        return torch.arange(noise_rows) % rows

    @torch.no_grad()
    def draw_noise(self, n: int, context: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Return n noise samples, one of p_n(·|u) for each of the n rows of a context if the noise depends on it."""
        noise = self.noise_given(context)
        if not noise.batch_shape:
            return draw(noise, n, generator)
        with seeded_by(generator):
            drawn: Tensor = noise.sample()
        return drawn

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        if prefix + "live_share" in state_dict:  # its name in files of 0.2
            state_dict[prefix + "live_fraction"] = state_dict.pop(prefix + "live_share")
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def replace_noise(self, noise: Distribution) -> None:
        """Replace p_n by another distribution over the same rows; log Z belongs to the model and is kept."""
        _validation.distribution("noise", noise)
        if "noise" in self._context_parts:
            raise ValueError("noise must be a distribution to be replaced, found a function of the context")
        if noise.event_shape != self.noise.event_shape:
            shapes = f"{tuple(self.noise.event_shape)}, found {tuple(noise.event_shape)}"
            raise ValueError(f"noise must have rows of the shape of the noise it replaces, {shapes}")
        self._noise = FixedDistribution(noise).to(self.live_fraction.device)
        self.live_fraction.fill_(1.0)

    def terms_of(self, batch: Batch) -> Terms:
        """Return the terms of J on B rows of data; without ``x_noise``, draw round(``noise_samples``·B) samples."""
        context = noise_context = batch.context
        event_shape = self.noise_given(context).event_shape
        x, x_noise = _validation.rows("x", batch.x, event_shape), batch.x_noise
        if self.variance_reduced:
            return self._variance_reduced_terms(batch)
        samples = max(1, round(self.noise_samples * len(x))) if x_noise is None else len(x_noise)
        if context is not None:
            noise_context = context.index_select(0, self.context_rows(samples, len(x)).to(context.device))
        if x_noise is None:
            x_noise = self.draw_noise(samples, noise_context).to(x.dtype)
        else:
            _validation.rows("x_noise", x_noise, event_shape)
        log_noise_noise = batch.log_noise_noise
        log_noise_noise = self.log_noise(x_noise, noise_context) if log_noise_noise is None else log_noise_noise
        log_noise_x = self.log_noise(x, context) if batch.log_noise_x is None else batch.log_noise_x
        # In high dimension e^Δ of most noise samples is 0 in the working precision. Where the last batch was like that,
        # this one is first evaluated without a graph. An accelerator would have to wait to know which samples count.
        watched = self._can_skip and torch.is_grad_enabled() and x.device.type == "cpu"
        watched = watched and not _validation.values_are_hidden()
        skips = watched and self._by_rows and float(self.live_fraction) <= SKIP_BELOW
        sides = (x, log_noise_x, context), (x_noise, log_noise_noise, noise_context)
        same_kind = x.dtype == x_noise.dtype and log_noise_x.dtype == log_noise_noise.dtype
        same_kind = same_kind and x.device == x_noise.device and log_noise_x.device == log_noise_noise.device
        joint = None
        if self._joins and not skips and same_kind:
            with contextlib.suppress(ValueError):  # two passes name the rows of x and of x_noise as they are
                joint = self._joint_log_ratios(*sides)
        if joint is not None:
            data, noise_ratios = joint
        else:
            data = check_finite("x", x, self.data_log_ratio(*sides[0]), log_noise_x, may_be_zero=False)
            noise_ratios = self._live_noise_log_ratio(data, *sides[1]) if skips else self.noise_log_ratio(*sides[1])
        # Without a base sample no draw could be repeated in the next batch.
        if watched and not skips and (not noise_ratios.drawn or noise_ratios.base_sample is not None):
            self._live_samples(data, noise_ratios)
        return self.terms_of_ratios(data, noise_ratios, self.evidence_offset(data, log_noise_x), batch.part)

    def terms_of_ratios(
        self, data: LogRatio, noise: LogRatio, evidence_offset: Scalar, part: BatchPart | None = None
    ) -> Terms:
        """Return J of log-ratios Δ⁰, at the c of the partition or at its maximum over c.

        Args:
            data: Δ⁰ of B data samples.
            noise: Δ⁰ of N noise samples.
            evidence_offset: log p_n − γ, from :meth:`evidence_offset`.
            part: the part of a batch over several processes.
        """
        c: Scalar
        rule, nu, held_out_value = self.rule, self.noise_ratio, None
        if isinstance(self.partition, Profiled):
            rule = rule.unclipped()
            whole = data.gathered(part), noise.gathered(part)
            value, c = self.partition.maximum(contrast, rule, *whole, nu)
            with torch.no_grad():
                _, f1, f0 = contrast(rule, data, noise, c, nu)
            if noise.values.shape[-1] > 1:  # one sample cannot be held out from itself
                held_out_value = partial(_held_out_value, rule, data, noise, nu)
        else:
            c = self.partition.log_scale_of(data, noise, part)
            value, f1, f0 = contrast(rule, data, noise, c, nu, part)
        shift = -(c.detach() if isinstance(c, Tensor) else c) - math.log(nu)
        f1, f0 = f1.detach(), f0.detach()
        return Terms(-value, f1, f0, (data, noise), shift, evidence_offset, rule, nu, held_out_value)

    def _variance_reduced_terms(self, batch: Batch) -> Terms:
        raise NotImplementedError(f"{type(self).__name__} has a noise term that is estimated from draws")

    def data_log_ratio(
        self, x: Tensor, log_noise: Tensor, context: Tensor | None = None, sides: tuple[int, ...] = ()
    ) -> LogRatio:
        """Return Δ⁰ of data, whose log p_n is ``log_noise``, or of rows of both ``sides``, data and noise."""
        q, log_noise = self._encode(x, context), self._with_log_partition(log_noise, context)
        how: Any = {"averaged_outside": self._data_is_averaged_outside, "sides": sides}
        return log_ratio(
            self.model, q, x, log_noise, self.latent_samples, context=self._context_of("model", context), **how
        )

    def noise_log_ratio(
        self, x: Tensor, log_noise: Tensor, context: Tensor | None = None, base_sample: Tensor | None = None
    ) -> LogRatio:
        """Return Δ⁰ of noise samples, whose log p_n is ``log_noise``, at latents of ``base_sample`` if it is given."""
        q = self._encode(x, context, "encoder" if self.noise_encoder is None else "noise_encoder")
        how: Any = {"base_sample": base_sample, "marginal": self._noise_is_marginal}
        draws, shift = self.importance_samples or self.latent_samples, self._with_log_partition(log_noise, context)
        ratio = log_ratio(self.model, q, x, shift, draws, context=self._context_of("model", context), **how)
        return check_finite("x_noise", x, ratio, log_noise, may_be_zero=True)

    def _with_log_partition(self, log_noise: Tensor, context: Tensor | None) -> Tensor:
        """Return log p_n + log Z(u), by which Δ⁰ is that of the normalized model where log Z depends on the context."""
        if not isinstance(self.partition, Amortized):
            return log_noise
        log_z: Tensor = self.partition(context)
        return log_noise + log_z

    def _joint_log_ratios(self, data: _Side, noise: _Side) -> tuple[LogRatio, LogRatio]:
        """Return Δ⁰ of data and of noise by one pass of the networks over the rows of both."""
        context = None if data[2] is None or noise[2] is None else torch.cat([data[2], noise[2]])
        sides = len(data[0]), len(noise[0])
        both = self.data_log_ratio(torch.cat([data[0], noise[0]]), torch.cat([data[1], noise[1]]), context, sides)
        of_data, of_noise = both.split(*sides)
        if all_finite(both):
            return of_data, of_noise
        return (
            check_finite("x", data[0], of_data, data[1], may_be_zero=False),
            check_finite("x_noise", noise[0], of_noise, noise[1], may_be_zero=True),
        )

    def evidence_offset(self, data: LogRatio, log_noise: Tensor) -> Tensor:
        """Return log p_n − γ, which is added to Δ⁰ of data to obtain the evidence."""
        return log_noise - prior_constant(self.model, True) if data.point else log_noise

    def _live_noise_log_ratio(self, data: LogRatio, x: Tensor, log_noise: Tensor, context: Tensor | None) -> LogRatio:
        """Return Δ⁰ of the noise batch, with a graph only for the samples whose gradient is not exactly zero.

        An encoder of the noise alone always gets one sample, so that its parameters have a gradient, if only of zeros.
        """
        with torch.no_grad():
            ratio = self.noise_log_ratio(x, log_noise, context)
        chosen = self._live_samples(data, ratio)
        if len(chosen) == 0:
            if self.noise_encoder is None:
                return ratio
            chosen = ratio.mean.argmax().unsqueeze(0)
        lead = 0 if ratio.draws is None else 1
        same = None if ratio.base_sample is None else ratio.base_sample.index_select(lead, chosen)
        context = None if context is None else context[chosen]
        again = self.noise_log_ratio(x[chosen], log_noise[chosen], context, same)
        if ratio.draws is not None and again.draws is not None:
            return LogRatio(log_mean_exp(ratio.draws.index_copy(1, chosen, again.draws)))
        values = ratio.values.index_copy(-1, chosen, again.values)
        if ratio.log_weights is None or again.log_weights is None:
            return LogRatio(values)
        return LogRatio(values, ratio.log_weights.index_copy(1, chosen, again.log_weights))

    def _live_samples(self, data: LogRatio, noise: LogRatio) -> Tensor:
        """Return the indices of the noise samples that count; their fraction decides how the next batch is computed."""
        if self._all_count(noise):
            if float(self.live_fraction) != 1.0:
                self.live_fraction.fill_(1.0)
            return torch.arange(noise.values.shape[-1])
        weights = log_noise_weights(self.partition, self.rule, data, noise, self.noise_ratio).exp()
        chosen = weights.nonzero()[:, 0] if weights.any() else _NONE  # any() is the cheaper test
        live = len(chosen) / len(weights)
        if live != float(self.live_fraction):
            self.live_fraction.fill_(live)
        return chosen

    def _all_count(self, noise: LogRatio) -> bool:
        """Return whether one look at the lowest Δ shows that the weights of all noise samples are above 0.

        With the double-ELBO property −df0/dΔ = r²w(r) is at least w(1)r² where r < 1, for w does not increase; with the
        logarithmic rule it is r/(1 + r).
        """
        if isinstance(self.partition, Profiled) or not (self.rule.variational or isinstance(self.rule, Logarithmic)):
            return False
        c = torch.as_tensor(self.partition.c).detach()
        lowest = float(noise.values.detach().min()) - float(c) - math.log(self.noise_ratio)
        return lowest > FELT_ABOVE

    @torch.no_grad()
    def log_noise(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Return log p_n of rows, shape (B,), with p_n(·|u) at the context of each row if the noise depends on it."""
        noise = self.noise_given(context)
        if noise.batch_shape:
            return log_prob_inside(noise, wide(x))
        return noise.log_prob(wide(x)) if _validation.values_are_hidden() else log_prob_or_minus_inf(noise, x)

    def fitted_log_partition(self) -> Tensor:
        """Return c, the log-scale in use: given, learned, or c* of the last training batch.

        For α > 0 it estimates log Z only where p_θ = p_d; :meth:`log_partition` always does.
        """
        return self.partition.fitted_log_partition().detach()

    @torch.no_grad()
    def log_partition(
        self,
        samples: int = 10_000,
        *,
        x_noise: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = 1000,
        context: Tensor | None = None,
    ) -> LogPartition:
        """Return log Z of the model, log E_noise[e^Δ⁰] (Eq. log_Z), and its standard error, from noise samples.

        This is the α = 0 estimate whatever the rule: it is consistent for every model whose support the noise and the
        noise encoder cover. The standard error is that of the delta method. Besides ``value, error = …`` the result
        has ``effective_samples``, (Σw)²/Σw² for w = e^Δ⁰, and ``trusted``, which is False if they are fewer than 100:
        then few draws carry the mean, and value and error may both be far too small. With a deterministic encoder g it
        is not log Z but the log of ∫ p⁰_θ(x, g(x)) dx where there is noise (Eq. rVAE).

        With a ``context``, one row without a first dimension, it is log Z(u) of that context.
        """
        self.check_context(context)
        if x_noise is None and log_noise_noise is not None:
            raise ValueError("log_noise_noise must come with x_noise, found it alone")
        samples = _validation.count("samples", samples, low=2) if x_noise is None else len(x_noise)
        context = None if context is None else context.expand(samples, *context.shape)
        if x_noise is None:
            x_noise = self.draw_noise(samples, context, generator)
            x_noise = x_noise.to(next((p.dtype for p in self.parameters()), x_noise.dtype))
        event_shape = self.noise_given(context).event_shape
        _validation.rows("x_noise", Batch(x_noise, x_noise, None, log_noise_noise).x, event_shape)
        if len(x_noise) < 2:
            raise ValueError("x_noise must hold at least 2 rows for a standard error, found 1")
        log_noise_noise = self.log_noise(x_noise, context) if log_noise_noise is None else log_noise_noise
        rows = [x_noise, log_noise_noise, *given(context)]
        with seeded_by(generator):
            parts = zip(*(each.split(batch_size) for each in rows), strict=True)
            log_w = torch.cat([self.noise_log_ratio(*part).mean for part in parts])
        log_w = log_w + self._with_log_partition(torch.zeros_like(log_w), context)
        return estimate_log_mean(log_w.masked_fill(log_w <= LOWEST_RATIO / 2, -math.inf))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return groups for an optimizer: all parameters at ``lr``, those of the partition at their own rate."""
        partition = {id(p) for p in self.partition.parameters()}
        rest = [p for p in self.parameters() if id(p) not in partition]
        return [{"params": rest, "lr": lr}, *self.partition.parameter_groups(lr)]


@torch.no_grad()
def _held_out_value(rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> float:
    """Return J at a c from other samples: each half of the batch at the c* of the other half (Eq. held_out).

    On its own samples the profiled value is too high, because c* is chosen on them. In float64, and without a clip.
    """
    halves = [(data.every_other(start), noise.every_other(start)) for start in (0, 1)]
    values = []
    for judged, other in zip(halves, halves[::-1], strict=True):
        c = best_log_scale(rule, *other, noise_ratio)
        values.append(contrast(rule, *judged, c, noise_ratio)[0])
    return float((values[0] + values[1]) / 2)
