r"""What the objectives that tell data from noise share: p_n, a scoring rule (f1, f0), a treatment of log Z, and

    J = E_data f1(Δ) + ν E_noise f0(Δ),
    Δ = Δ⁰ − c − log ν,      Δ⁰ = log p⁰_θ(x, z) − log p_n(x) − log q(z|x),

with ν the noise ratio and c the log Z that the partition gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks
from .._estimates import LogPartition, estimate_log_mean
from .._random import seeded_by
from ..models.fixed import FixedDistribution
from ..noise import draw, log_prob_or_minus_inf
from ..scoring import ScoringRule
from .base import Batch, ContrastInfo, Objective, Terms, check_log_noise, mean_over_data, mean_over_noise
from .budget import Budgeted
from .log_partition import Fixed, Learned, LogScale, Partition, first_order_only, with_gradient_of
from .profiled import Profiled, with_curvature
from .ratios import LOWEST, BatchRatios, Encoder, LogRatio, check_finite, check_model, log_ratio, prior_constant

#: Where at most this share of the last noise batch counted, samples that do not count are not differentiated.
SKIP_BELOW = 0.5
#: Layers under which a second pass over some of the rows would be another function.
_OF_WHOLE_BATCHES = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d),
    *(nn.SyncBatchNorm, nn.AlphaDropout, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout),
)

_NONE = torch.empty((0, 1), dtype=torch.long)

PartitionName = Literal["fixed", "learned", "profiled"]
LogScaleLike = float | Literal["auto"]


@dataclass(frozen=True)
class ObjectiveValue:
    """J of a batch with its graph; what each sample earns, and the shift −c − log ν, without.

    Attributes:
        value: J, a scalar.
        data: f1(Δ) of each data sample, shape (B,).
        noise: f0(Δ) of each noise sample, shape (N,).
        shift: Δ − Δ⁰.
    """

    value: Tensor
    data: Tensor
    noise: Tensor
    shift: Tensor | float


def contrast(rule: ScoringRule, ratios: BatchRatios, shift: Tensor | float, noise_ratio: float) -> ObjectiveValue:
    """J = E_data f1(Δ) + ν E_noise f0(Δ) at Δ = Δ⁰ + shift."""
    f1, f0 = ratios.earned(rule, shift)
    value = torch.add(mean_over_data(f1, ratios.share), mean_over_noise(f0, ratios.share), alpha=noise_ratio)
    return ObjectiveValue(value, f1.detach(), f0.detach(), shift.detach() if isinstance(shift, Tensor) else shift)


def contrast_at_best(rule: ScoringRule, ratios: BatchRatios, scale: LogScale, noise_ratio: float) -> Tensor:
    """J at the c that is best for the batch of all processes, with the gradient that the partition asks for.

    For (α, 0) it has a closed form, up to a monotone map: (1/α) log A − log B/(1+α). Otherwise J at its best c has the
    gradient of J at c held fixed (envelope theorem), but other second derivatives.
    """
    found = scale.moments
    if found is not None:
        value = found.weight * (found.data - found.noise / (1 + found.alpha))
        return value if found.counts == 1 else with_gradient_of(found.counts * value, value)
    data, noise = ratios.whole.data, ratios.whole.noise

    def means_at(c: Tensor | float) -> tuple[Tensor, Tensor]:
        """E_data f1 and ν E_noise f0, apart, because their gradients may be weighed apart."""
        shift = -c - math.log(noise_ratio)
        return data.expectation(rule.f1, shift).mean(), noise_ratio * noise.expectation(rule.f0, shift).mean()

    first, second = means_at(scale.c)
    value = first + second
    if scale.weights is None:
        return with_curvature(value, rule, data, noise, torch.as_tensor(scale.c), noise_ratio)
    first, second = means_at(scale.weights.at)
    towards = scale.weights.batch * (scale.weights.data * first + scale.weights.noise * second)
    return with_gradient_of(first_order_only(towards), value)


class ContrastiveObjective(Objective):
    """What NCE, VNCE and fvNCE share: noise, rule, log Z, and the two sums.

    Args:
        model: p_θ, possibly unnormalised: ``log_joint(x, z)``, or ``log_prob(x)`` where ``encoder`` is None.
        encoder: q1(z|x), and q0 as well unless ``noise_encoder`` is given; None for a model without latents.
        noise: p_n, a torch distribution over single rows of x.
        rule: a scoring rule.
        noise_encoder: q0(z|x), which must cover p_θ(z|x) of noise.
        latent_samples: draws of each latent. A discrete latent with few values is summed over instead.
        noise_ratio: ν, the weight of the noise term.
        noise_samples: noise samples drawn for each data sample, by default ν of them.
        partition: ``"fixed"``, ``"learned"``, ``"profiled"``, or a :class:`~fvnce.objectives.Partition`.
        log_scale: s of Δ = Δ⁰ + s, for the fixed partition; "auto" finds it from a budget on the data's error, see
            :class:`~fvnce.objectives.Budgeted`.

    >>> import fvnce
    >>> issubclass(fvnce.FullyVariationalNCE, ContrastiveObjective), issubclass(fvnce.VAE, ContrastiveObjective)
    (True, False)
    """

    def __init__(
        self,
        model: Any,
        encoder: Encoder | None,
        noise: Distribution,
        rule: ScoringRule,
        *,
        noise_encoder: Encoder | None = None,
        latent_samples: int = 1,
        noise_ratio: float = 1.0,
        noise_samples: float | None = None,
        partition: PartitionName | Partition = "fixed",
        log_scale: LogScaleLike = 0.0,
    ) -> None:
        super().__init__()
        _checks.distribution("noise", noise)
        if not isinstance(rule, ScoringRule):
            raise TypeError(f"rule must be a scoring rule such as PowerRule(alpha=0), found {rule!r}")
        if encoder is None and noise_encoder is not None:
            raise ValueError("noise_encoder must be None for a model without latents (encoder=None), found one")
        check_model(model, encoder)
        self.model = model
        self.encoder = encoder
        self.noise_encoder = noise_encoder
        self._noise = FixedDistribution(noise)
        self.rule = rule
        self.latent_samples = _checks.count("latent_samples", latent_samples)
        self.noise_ratio = _checks.number("noise_ratio", noise_ratio, low=0.0, open_low=True)
        self.noise_samples = self.noise_ratio
        if noise_samples is not None:
            self.noise_samples = _checks.number("noise_samples", noise_samples, low=0.0, open_low=True)
        self.partition = _partition(partition, log_scale)
        self.partition.check(rule)
        self.partition.attach(model, encoder)
        self._can_skip = not any(isinstance(module, _OF_WHOLE_BATCHES) for module in self.modules())
        # Part of the state: what the last batch showed decides how the next one is computed, to the last bit.
        self.register_buffer("live_share", torch.ones(()))

    @property
    def noise(self) -> Distribution:  # type: ignore[override]
        """p_n."""
        return self._noise.distribution

    def replace_noise(self, noise: Distribution) -> None:
        """Go on with another p_n over the same rows; log Z, which is the model's, stays."""
        _checks.distribution("noise", noise)
        if noise.event_shape != self.noise.event_shape:
            found = f"{tuple(self.noise.event_shape)}, found {tuple(noise.event_shape)}"
            raise ValueError(f"noise must have rows of the shape of the noise it replaces, {found}")
        self._noise = FixedDistribution(noise).to(self.live_share.device)  # type: ignore[arg-type]
        self.live_share.fill_(1.0)  # type: ignore[operator]

    def terms_of(self, batch: Batch) -> Terms:
        """J on a batch of B rows, without ``x_noise`` against round(``noise_samples``·B) draws."""
        batch = self._with_noise(batch)
        batch, loss = self.partition.prepare(self.model, self.encoder, self.noise, self.rule, batch)
        terms = self.terms_of_ratios(self._log_ratios(batch))
        # Its value is none of J's, its gradient reaches the partition's own parts only.
        return terms if loss is None else replace(terms, loss=with_gradient_of(terms.loss + loss, terms.loss))

    def _log_ratios(self, batch: Batch) -> BatchRatios:
        """Δ⁰ of a batch that has its noise; densities of data that it does not bring are evaluated."""
        x, x_noise, log_noise_noise = batch.x, batch.x_noise, batch.log_noise_noise
        assert x_noise is not None
        assert log_noise_noise is not None
        log_noise_x = self._log_noise("log_noise_x", batch.log_noise_x, x)
        data = check_finite("x", x, self.data_log_ratio(x, log_noise_x), log_noise_x, may_be_zero=False)
        noise = self._sparse_noise_log_ratio(data, x_noise, log_noise_noise)
        return BatchRatios(data, noise, self.evidence_offset(data, log_noise_x), batch.share)

    def _with_noise(self, batch: Batch) -> Batch:
        """The batch with noise samples and their densities."""
        x, x_noise = batch.x, batch.x_noise
        self._check_rows("x", x)
        if x_noise is None:
            x_noise = draw(self.noise, max(1, round(self.noise_samples * len(x)))).to(x.dtype)
        self._check_rows("x_noise", x_noise)
        log_noise_noise = self._log_noise("log_noise_noise", batch.log_noise_noise, x_noise)
        return replace(batch, x_noise=x_noise, log_noise_noise=log_noise_noise)

    def terms_of_ratios(self, ratios: BatchRatios) -> Terms:
        """J of log-ratios that are already computed."""
        found = self.value_of(ratios)
        maximised = isinstance(self.partition, Profiled)
        profiled = maximised and ratios.noise.values.shape[1] > 1  # one sample cannot be held out from itself

        def evidence() -> Tensor:
            return ratios.data.detach().expectation(lambda delta: delta) + ratios.evidence_offset

        def deltas() -> tuple[Tensor, Tensor]:
            return ratios.data.mean.detach() + found.shift, ratios.noise.mean.detach() + found.shift

        def held_out_value() -> float:
            return _held_out_value(self.rule.unclipped(), ratios, self.noise_ratio).item()

        info = ContrastInfo(
            self.rule.unclipped() if maximised else self.rule,
            self.noise_ratio,
            found.shift,
            profiled,
            held_out_value if profiled else None,
        )
        return Terms(-found.value, found.data, found.noise, evidence, deltas, info)

    def value_of(self, ratios: BatchRatios) -> ObjectiveValue:
        """J at the c of the partition, or its maximum over c."""
        scale = self.partition.log_scale_of(self.rule, ratios, self.noise_ratio)
        shift = -scale.c - math.log(self.noise_ratio)
        if not scale.maximised:
            return contrast(self.rule, ratios, shift, self.noise_ratio)
        rule = self.rule.unclipped()
        value = contrast_at_best(rule, ratios, scale, self.noise_ratio)
        with torch.no_grad():
            return ObjectiveValue(value, *ratios.earned(rule, shift), shift)

    def data_log_ratio(self, x: Tensor, log_noise: Tensor) -> LogRatio:
        """Δ⁰ of data, whose log p_n is ``log_noise``."""
        q = None if self.encoder is None else self.encoder(x)
        return log_ratio(
            self.model, q, x, log_noise, self.latent_samples, averaged_outside=self._data_is_averaged_outside
        )

    def noise_log_ratio(self, x: Tensor, log_noise: Tensor, at: Tensor | None = None) -> LogRatio:
        """Δ⁰ of noise samples, whose log p_n is ``log_noise``; ``at`` gives the base samples of their latents."""
        encoder = self.encoder if self.noise_encoder is None else self.noise_encoder
        q = None if encoder is None else encoder(x)
        ratio = log_ratio(
            self.model, q, x, log_noise, self.noise_latent_samples, at=at, marginal=self._noise_is_marginal
        )
        return check_finite("x_noise", x, ratio, log_noise, may_be_zero=True)

    def evidence_offset(self, data: LogRatio, log_noise: Tensor) -> Tensor:
        """What turns Δ⁰ of data into the evidence: log p_n − γ."""
        gamma = prior_constant(self.model, data.point)
        return log_noise - gamma if gamma else log_noise

    def _sparse_noise_log_ratio(self, data: LogRatio, x: Tensor, log_noise: Tensor) -> LogRatio:
        """Δ⁰ of the noise batch, without a graph where its gradient is exactly zero.

        In high dimension e^Δ of most noise samples is 0 in the working precision. Where the last batch was like that,
        this one is first evaluated without a graph; the samples that count are then taken again with one. An encoder of
        the noise alone always gets one sample, so that its parameters have a gradient, if only of zeros. An accelerator
        would have to wait to know which samples count, and differentiates all of them.
        """
        hidden = _checks.values_are_hidden() or x.device.type != "cpu"
        if hidden or not torch.is_grad_enabled() or not self._can_skip:
            return self.noise_log_ratio(x, log_noise)
        if float(self.live_share) > SKIP_BELOW:  # type: ignore[arg-type]
            ratio = self.noise_log_ratio(x, log_noise)
            if not ratio.drawn or ratio.base_sample is not None:  # else no draw can be taken again, now or later
                self._update_live_share(self._weights(data, ratio))
            return ratio
        with torch.no_grad():
            ratio = self.noise_log_ratio(x, log_noise)
        chosen = self._update_live_share(self._weights(data, ratio)).squeeze(1)
        if len(chosen) == 0:
            if self.noise_encoder is None:
                return ratio
            chosen = ratio.mean.argmax().unsqueeze(0)
        at = None
        if ratio.base_sample is not None:
            at = ratio.base_sample.index_select(0 if self.noise_latent_samples == 1 else 1, chosen)
        again = self.noise_log_ratio(x[chosen], log_noise[chosen], at)
        values = ratio.values.index_copy(1, chosen, again.values)
        if ratio.log_weights is None or again.log_weights is None:
            return LogRatio(values)
        return LogRatio(values, ratio.log_weights.index_copy(1, chosen, again.log_weights))

    #: Whether a discrete latent is summed inside f0, for a rule whose noise term is no bound.
    _noise_is_marginal = False

    #: Whether draws of a data latent are averaged outside f1, for a rule whose f1 need not be concave in r.
    _data_is_averaged_outside = False

    @property
    def noise_latent_samples(self) -> int:
        """Draws of the latent for each noise sample."""
        return self.latent_samples

    @torch.no_grad()
    def _weights(self, data: LogRatio, noise: LogRatio) -> Tensor:
        """The weight of each noise sample, which is exactly zero where its gradient is."""
        return self.partition.log_noise_weights(self.rule, data.detach(), noise.detach(), self.noise_ratio).exp()

    def _update_live_share(self, weights: Tensor) -> Tensor:
        """Indices of the samples that count, shape (n, 1); their share decides how the next batch is computed."""
        chosen = weights.nonzero() if weights.any() else _NONE  # which costs less to see, and is the usual case here
        share = len(chosen) / len(weights)
        if share != float(self.live_share):  # type: ignore[arg-type]
            self.live_share.fill_(share)  # type: ignore[operator]
        return chosen

    def _check_rows(self, name: str, x: Tensor) -> None:
        _checks.rows(name, x, tuple(self.noise.event_shape))

    def _log_noise(self, name: str, given: Tensor | None, x: Tensor) -> Tensor:
        if given is None:
            x = x.float() if _checks.is_half(x) else x
            with torch.no_grad():
                return self.noise.log_prob(x) if _checks.values_are_hidden() else log_prob_or_minus_inf(self.noise, x)
        check_log_noise(name, given, x)
        return given

    def fitted_log_partition(self) -> Tensor:
        """c, the log-scale the objective works with: given, learned, or c* of the last training batch.

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
    ) -> LogPartition:
        """log Z of the model as it stands, log E_noise[e^Δ⁰], and its standard error, from noise samples.

        This is the α = 0 estimate whatever the rule: it is consistent for every model whose support the noise and the
        noise encoder cover. The standard error is that of the delta method. Beside ``value, error = …`` the pair has
        ``effective_samples``, (Σw)²/Σw² for w = e^Δ⁰, and ``trusted``, which is False if they are fewer than 100: then
        few draws carry the mean, and value and error may both be far too small.
        """
        if x_noise is None and log_noise_noise is not None:
            raise ValueError("log_noise_noise must come with x_noise, found it alone")
        if x_noise is None:
            x_noise = draw(self.noise, _checks.count("samples", samples, low=2), generator)
            x_noise = x_noise.to(next((p.dtype for p in self.parameters()), x_noise.dtype))
        self._check_rows("x_noise", x_noise)
        if len(x_noise) < 2:
            raise ValueError("x_noise must hold at least 2 rows for a standard error, found 1")
        log_noise_noise = self._log_noise("log_noise_noise", log_noise_noise, x_noise)
        parts = zip(x_noise.split(batch_size), log_noise_noise.split(batch_size), strict=True)
        with seeded_by(generator):
            log_w = torch.cat([self.noise_log_ratio(x, log_noise).mean for x, log_noise in parts])
        return estimate_log_mean(log_w.masked_fill(log_w <= LOWEST / 2, -math.inf))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """All parameters at ``lr``, but those of the partition at their own rate."""
        own = {id(p) for p in self.partition.parameters()}
        rest = [p for p in self.parameters() if id(p) not in own]
        return [{"params": rest, "lr": lr}, *self.partition.parameter_groups(lr)]


def _partition(partition: str | Partition, log_scale: LogScaleLike) -> Partition:
    if isinstance(partition, Partition):
        return partition
    _checks.choice("partition", partition, ("fixed", "learned", "profiled"))
    if partition != "fixed":
        if log_scale != 0:
            raise ValueError(f"log_scale must be 0 unless partition is 'fixed', found {log_scale} with {partition!r}")
        return Learned() if partition == "learned" else Profiled()
    if not isinstance(log_scale, str):
        return Fixed(log_scale)
    if log_scale != "auto":
        raise ValueError(f"log_scale must be a number or 'auto', found {log_scale!r}")
    return Budgeted()


@torch.no_grad()
def _held_out_value(rule: ScoringRule, ratios: BatchRatios, noise_ratio: float) -> Tensor:
    """J at a c from other samples: each half of the batch is judged at the c* of the other half.

    On its own samples the profiled value is too high, because c* is chosen on them; at an independent c it is not. In
    float64, and without the clip, as the profiled form itself.
    """
    halves = [ratios.every_other(start) for start in (0, 1)]
    values = []
    for judged, other in zip(halves, halves[::-1], strict=True):
        shift = -Profiled(momentum=0).log_scale_of(rule, other, noise_ratio).c - math.log(noise_ratio)
        values.append(contrast(rule, judged, shift, noise_ratio).value)
    return (values[0] + values[1]) / 2
