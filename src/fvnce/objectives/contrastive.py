r"""What the objectives that tell data from noise share: p_n, a scoring rule, a treatment of log Z, and the two sums

J = E_data f1(Δ) + ν E_noise f0(Δ),      Δ = log p_θ(x, z) − log p_n(x) − log q(z|x) + shift − log ν.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from .. import _checks
from .._estimates import LogPartition, log_mean_exp
from ..models.latent import FixedDistribution
from ..noise import draw, log_prob_or_minus_inf
from ..scoring import ScoringRule
from .base import Objective, check_finite, prior_constant
from .partition import Fixed, Learned, Partition
from .profiled import Profiled
from .ratios import Encoder, LogRatio, log_ratio
from .terms import Contrasted, Terms

#: Δ⁰ of a noise sample to which the model gives no probability.
LOWEST = -1e30
#: Noise samples are looked at before they are differentiated when at most this share of the last batch counted.
WORTH_LOOKING = 0.5

_NONE = torch.empty((0, 1), dtype=torch.long)

PartitionName = Literal["fixed", "learned", "profiled"]


@dataclass(frozen=True)
class BatchRatios:
    """Δ⁰ of a data batch and of a noise batch, and what turns a data Δ⁰ into the evidence: log p_n − γ."""

    data: LogRatio
    noise: LogRatio
    evidence_offset: Tensor


class ContrastiveObjective(Objective):
    """What NCE, VNCE and fvNCE share: noise, rule, log Z, and the two sums."""

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
        log_scale: float = 0.0,
    ) -> None:
        super().__init__()
        _checks.distribution("noise", noise)
        if not isinstance(rule, ScoringRule):
            raise TypeError(f"rule must be a scoring rule such as PowerRule(alpha=0), found {rule!r}")
        if encoder is None and noise_encoder is not None:
            raise ValueError("noise_encoder must be None for a model without latents (encoder=None), found one")
        needed = "log_prob" if encoder is None else "log_joint"
        if not hasattr(model, needed):
            with_or_without = "without an encoder" if encoder is None else "with an encoder"
            raise TypeError(f"model must have {needed} {with_or_without}, found {type(model).__name__} without it")
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
        # A second pass over some of the rows would be another function under these.
        self._can_look_first = not any(isinstance(m, (_BatchNorm, _DropoutNd)) for m in self.modules())
        # Part of the state: what the last batch showed decides how the next one is computed, to the last bit.
        self.register_buffer("_live_share", torch.ones(()))

    @property
    def noise(self) -> Distribution:  # type: ignore[override]
        """p_n."""
        return self._noise.distribution

    def terms(
        self,
        x: Tensor,
        x_noise: Tensor | None = None,
        *,
        log_noise_x: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
    ) -> Terms:
        """J on a batch of B rows, without ``x_noise`` against round(``noise_samples``·B) draws."""
        return self.terms_of(self.log_ratios(x, x_noise, log_noise_x=log_noise_x, log_noise_noise=log_noise_noise))

    def log_ratios(
        self,
        x: Tensor,
        x_noise: Tensor | None = None,
        *,
        log_noise_x: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
        latent_samples: int | None = None,
    ) -> BatchRatios:
        """Δ⁰ of a data batch and a noise batch; ``latent_samples`` overrides the objective's own."""
        self._check_rows("x", x)
        if x_noise is None and log_noise_noise is not None:
            raise ValueError("log_noise_noise must come with x_noise, found it alone")
        if x_noise is None:
            x_noise = draw(self.noise, max(1, round(self.noise_samples * len(x)))).to(x.dtype)
        self._check_rows("x_noise", x_noise)
        log_noise_x = self._log_noise("log_noise_x", log_noise_x, x)
        log_noise_noise = self._log_noise("log_noise_noise", log_noise_noise, x_noise)
        data = self._data_ratio(x, log_noise_x, latent_samples or self.latent_samples)
        check_finite("x", x, data, log_noise_x, may_be_zero=False)
        noise = self._noise_ratio(data, x_noise, log_noise_noise, latent_samples or self._noise_draws)
        gamma = prior_constant(self.model, data.point)
        return BatchRatios(data, noise, log_noise_x - gamma if gamma else log_noise_x)

    def terms_of(self, ratios: BatchRatios) -> Terms:
        """J of log-ratios that are already computed."""
        contrast = self.partition.contrast(self.rule, ratios.data, ratios.noise, self.noise_ratio)
        chosen_here = isinstance(self.partition, Profiled)
        profiled = chosen_here and ratios.noise.values.shape[1] > 1  # one sample cannot be held out from itself

        def evidence() -> Tensor:
            return ratios.data.detach().expectation(lambda delta: delta) + ratios.evidence_offset

        def deltas() -> tuple[Tensor, Tensor]:
            return ratios.data.mean.detach() + contrast.shift, ratios.noise.mean.detach() + contrast.shift

        def held_out_value() -> float:
            return _held_out_value(self.rule, ratios.data.detach(), ratios.noise.detach(), self.noise_ratio).item()

        contrasted = Contrasted(
            self.rule.unclipped() if chosen_here else self.rule,
            self.noise_ratio,
            contrast.shift,
            profiled,
            held_out_value if profiled else None,
        )
        return Terms(-contrast.value, contrast.data, contrast.noise, evidence, deltas, contrasted)

    def _data_ratio(self, x: Tensor, log_noise: Tensor, draws: int) -> LogRatio:
        q = None if self.encoder is None else self.encoder(x)
        return log_ratio(self.model, q, x, log_noise, draws)

    def _noise_ratio(self, data: LogRatio, x: Tensor, log_noise: Tensor, draws: int) -> LogRatio:
        """Δ⁰ of the noise batch, without a graph where its gradient is exactly zero.

        In high dimension e^Δ of most noise samples is 0 in the working precision. Where the last batch was like that,
        this one is first evaluated without a graph; the samples that count are then taken again with one. An encoder of
        the noise alone always gets one sample, so that its parameters have a gradient, if only of zeros.
        """
        if _checks.values_are_hidden() or not torch.is_grad_enabled() or not self._can_look_first:
            return self._graph(x, log_noise, draws)
        if float(self._live_share) > WORTH_LOOKING:  # type: ignore[arg-type]
            ratio = self._graph(x, log_noise, draws)
            if not ratio.drawn or ratio.source is not None:  # else no draw can be taken again, now or later
                self._remember(self._weights(data, ratio))
            return ratio
        with torch.no_grad():
            ratio = self._graph(x, log_noise, draws)
        chosen = self._remember(self._weights(data, ratio)).squeeze(1)
        if len(chosen) == 0:
            if self.noise_encoder is None:
                return ratio
            chosen = ratio.mean.argmax().unsqueeze(0)
        at = None
        if ratio.source is not None:
            at = ratio.source.index_select(0 if draws == 1 else 1, chosen)
        again = self._graph(x[chosen], log_noise[chosen], draws, at)
        values = ratio.values.index_copy(1, chosen, again.values)
        if ratio.log_weights is None or again.log_weights is None:
            return LogRatio(values)
        return LogRatio(values, ratio.log_weights.index_copy(1, chosen, again.log_weights))

    def _graph(self, x: Tensor, log_noise: Tensor, draws: int, at: Tensor | None = None) -> LogRatio:
        q = None if self.encoder is None else self._encoder_of_noise(x)
        ratio = log_ratio(self.model, q, x, log_noise, draws, at=at, marginal=self._noise_is_marginal)
        if check_finite("x_noise", x, ratio, log_noise, may_be_zero=True):
            return ratio
        # A ratio of exactly zero stays one, as a number whose multiples and sums have gradients.
        return replace(ratio, values=ratio.values.clamp(min=LOWEST), known_mean=None)

    #: Whether a discrete latent is summed inside f0, for a rule whose noise term is no bound.
    _noise_is_marginal = False

    @property
    def _noise_draws(self) -> int:
        return self.latent_samples

    @property
    def _encoder_of_noise(self) -> Encoder:
        encoder = self.encoder if self.noise_encoder is None else self.noise_encoder
        assert encoder is not None
        return encoder

    @torch.no_grad()
    def _weights(self, data: LogRatio, noise: LogRatio) -> Tensor:
        """The weight of each noise sample, which is exactly zero where its gradient is."""
        return self.partition.log_noise_weights(self.rule, data.detach(), noise.detach(), self.noise_ratio).exp()

    def _remember(self, weights: Tensor) -> Tensor:
        """Indices of the samples that count, shape (n, 1); their share decides how the next batch is computed."""
        chosen = weights.nonzero() if weights.any() else _NONE  # which costs less to see, and is the usual case here
        share = len(chosen) / len(weights)
        if share != float(self._live_share):  # type: ignore[arg-type]
            self._live_share.fill_(share)  # type: ignore[operator]
        return chosen

    def _check_rows(self, name: str, x: Tensor) -> None:
        _checks.rows(name, x, tuple(self.noise.event_shape))

    def _log_noise(self, name: str, given: Tensor | None, x: Tensor) -> Tensor:
        if given is None:
            x = x.float() if _checks.is_half(x) else x
            with torch.no_grad():
                return self.noise.log_prob(x) if _checks.values_are_hidden() else log_prob_or_minus_inf(self.noise, x)
        if given.shape != x.shape[:1]:
            raise ValueError(
                f"{name} must hold one log-density for each of the {len(x)} rows, found shape {tuple(given.shape)}"
            )
        return given

    def fitted_log_partition(self) -> Tensor:
        """c, the log-scale the objective works with: given, learned, or c* of the last training batch.

        For α > 0 it estimates log Z only if the model is well specified; :meth:`log_partition` always does.
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
        with seeded(generator):
            log_w = torch.cat([self._graph(x, log_noise, self._noise_draws).mean for x, log_noise in parts])
        return log_mean_exp(log_w)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """All parameters at ``lr``, but those of the partition at their own rate."""
        own = {id(p) for p in self.partition.parameters()}
        rest = [p for p in self.parameters() if id(p) not in own]
        return [{"params": rest, "lr": lr}, *self.partition.parameter_groups(lr)]


def _partition(partition: str | Partition, log_scale: float) -> Partition:
    if isinstance(partition, Partition):
        return partition
    _checks.choice("partition", partition, ("fixed", "learned", "profiled"))
    if partition == "fixed":
        return Fixed(log_scale)
    if log_scale != 0:
        raise ValueError(f"log_scale must be 0 unless partition is 'fixed', found {log_scale} with {partition!r}")
    return Learned() if partition == "learned" else Profiled()


@contextmanager
def seeded(generator: torch.Generator | None) -> Iterator[None]:
    """Draws of latents inside follow the generator, if there is one, and leave the global random state alone."""
    if generator is None:
        yield
        return
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def _held_out_value(rule: ScoringRule, data: LogRatio, noise: LogRatio, noise_ratio: float) -> Tensor:
    """J at a c from other samples: each half of the batch is judged at the c* of the other half.

    On its own samples the profiled value is too high, because c* is chosen on them; at an independent c it is not. In
    float64, and without the clip, as the profiled form itself.
    """
    rule = rule.unclipped()
    profiled = Profiled(momentum=0)
    halves = [_rows(data, noise, start) for start in (0, 1)]
    values = []
    for (data_judged, noise_judged), other in zip(halves, halves[::-1], strict=True):
        shift = profiled.contrast(rule, *other, noise_ratio).shift
        earned = noise_judged.expectation(rule.f0, shift).mean()
        values.append(data_judged.expectation(rule.f1, shift).mean() + noise_ratio * earned)
    return (values[0] + values[1]) / 2


def _rows(data: LogRatio, noise: LogRatio, start: int) -> tuple[LogRatio, LogRatio]:
    """Every other sample, from ``start``; a single data sample is in both halves."""
    return _every_other(data, start if data.values.shape[1] > 1 else 0), _every_other(noise, start)


def _every_other(ratio: LogRatio, start: int) -> LogRatio:
    weights = None if ratio.log_weights is None else ratio.log_weights[:, start::2].double()
    return LogRatio(ratio.averaged[:, start::2].double(), weights)
