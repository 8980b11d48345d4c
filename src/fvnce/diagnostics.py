r"""Diagnose a trained objective: its noise term, its bound, its classifier and its log Z.

``diagnose`` also tries remedies where the noise is dead, that is where its Δ lies so far below the data's that e^Δ is
rounded away. The remedies, cheapest first:

    none       for (0, 0), a normalized model and a stochastic encoder the noise term is constant and not needed
    noise      draws nearer to what the model can make: kernels of another width, or kernels on the data
    decoder    a wider σ, at which Δ of noise falls more slowly, −|x − E p(x|z)|²/2σ²
    log_scale  Δ + s: with a deterministic encoder by a budget, else by hand
    profiled   log Z maximized out: the largest Δ always counts, and the question is how many others do
    bridges    distributions between noise and data, each near enough to the next

Each is evaluated by the live and the effective fraction of noise that the objective would have with it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from . import _validation
from ._random import seeded_by
from ._stats import ENOUGH_SAMPLES
from .models import GaussianDecoder, is_normalized
from .models.distributions import PointMass
from .noise import KernelDensity, NoiseMixture, draw_with_log_prob, log_prob_or_minus_inf, smoothed
from .objectives import ContrastiveObjective, Fixed, Profiled
from .objectives.batch import effective_fraction, ratio_statistics
from .objectives.partition import power_of
from .objectives.ratios import Encoder, log_ratio

__all__ = ["Diagnostics", "ReliabilityCurve", "calibrate", "diagnose"]

FRACTIONS = ("live_noise", "zero_noise", "ess_noise", "ess_data", "clipped_noise", "clipped_data")
LATENTS_AT_ONCE = 65_536
#: A live fraction below which the noise term is called dead.
DEAD_BELOW = 0.01
#: A calibration error above which the classifier is compared with chance.
MISCALIBRATED = 0.05
#: A live fraction that is worth having, and effective noise samples that carry a log-mean-exp.
ENOUGH_LIVE, ENOUGH_EFFECTIVE = 0.05, 10.0
#: Widths of kernels that are tried, over their own.
WIDTHS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 2.0, 4.0, 8.0)
#: Rows of data that are used.
ROWS = 512


@dataclass(frozen=True)
class ReliabilityCurve:
    """Calibration of the implied classifier σ(Δ) of data against noise.

    Attributes:
        predicted: mean predicted probability of data in each bin of σ(Δ), NaN where the bin is empty.
        observed: fraction of data in each bin, noise counted ν times.
        weight: fraction of all samples in each bin.
        error: the expected calibration error, Σ weight·|predicted − observed|.
        log_loss: the mean negative log-probability of the truth, in nats; comparable across rules.

    >>> curve = calibrate(torch.tensor([4.0, 5.0]), torch.tensor([-4.0, -5.0]), bins=2)
    >>> curve.observed.tolist(), round(curve.error, 3)
    ([0.0, 1.0], 0.012)
    """

    predicted: Tensor
    observed: Tensor
    weight: Tensor
    error: float
    log_loss: float


@dataclass(frozen=True)
class Remedy:
    """Remedy for a dead noise term, and its measured effect.

    Attributes:
        name: ``none``, ``noise``, ``decoder``, ``log_scale``, ``profiled`` or ``bridges``.
        live_noise: fraction of noise samples that would contribute to the gradient; NaN where it does not apply.
        ess_noise: effective fraction of their weights; NaN where it does not apply.
        helps: whether these are large enough.
        text: what to do, with its numbers.
    """

    name: str
    live_noise: float
    ess_noise: float
    helps: bool
    text: str


@dataclass(frozen=True)
class Diagnostics:
    """Results of :func:`diagnose`, with advice.

    Attributes:
        live_noise: fraction of noise samples that contribute to the gradient.
        zero_noise: fraction whose gradient is exactly zero in the working precision.
        ess_noise: effective fraction of the noise weights.
        ess_data: effective fraction of the data weights.
        clipped_noise: fraction of noise samples above the clip.
        clipped_data: fraction of data samples above the clip.
        gap_data: by how much the data term grows from one latent draw to many: a measure of the encoder's error.
        gap_noise: the same for the noise term.
        calibration: of the implied classifier.
        log_partition: log Z, the α = 0 estimate.
        log_partition_error: its standard error.
        log_partition_samples: effective samples that carry the two; below 100 trust neither.
        remedies: for dead noise, the remedies with their measured effects, in the order in which to try them.

    >>> from torch.distributions import Independent, Normal
    >>> import fvnce
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = fvnce.EnergyModel(fvnce.mlp([2, 1]), reference=normal)
    >>> objective = fvnce.NCE(model, normal, fvnce.PowerRule(alpha=0))
    >>> report = diagnose(objective, normal.sample((200,)), samples=2000)  # at least e^-1 of them count
    >>> report.live_noise, report.log_partition_trusted
    (1.0, True)
    """

    live_noise: float
    zero_noise: float
    ess_noise: float
    ess_data: float
    clipped_noise: float
    clipped_data: float
    gap_data: float
    gap_noise: float
    calibration: ReliabilityCurve = field(repr=False)
    log_partition: float
    log_partition_error: float
    log_partition_samples: float
    remedies: tuple[Remedy, ...] = field(default=(), repr=False)

    @property
    def log_partition_trusted(self) -> bool:
        """Whether enough draws carry log Z for its value and error to be reliable."""
        return self.log_partition_samples >= ENOUGH_SAMPLES

    @property
    def advice(self) -> list[str]:
        """Suggested changes; empty if no number is unusual."""
        dead, trusted = self.live_noise < DEAD_BELOW, self.log_partition_trusted
        curve = self.calibration
        share = float((curve.weight * curve.observed).nansum())
        chance = float(torch.special.entr(torch.tensor([share, 1 - share])).sum())
        many_clipped, uncertain = self.clipped_noise > 0.05, trusted and self.log_partition_error > 0.5
        first = next((remedy for remedy in self.remedies if remedy.helps), None)
        advice = {
            f"the noise term is dead: {self.live_noise:.1%} of the noise samples contribute to the gradient": dead,
            **{f"{'→' if remedy is first else '·'} {remedy.text}": dead for remedy in self.remedies},
            f"few noise samples carry the noise term (effective fraction {self.ess_noise:.2%}): use more noise_samples "
            "or noise closer to the model": not dead and self.ess_noise < 0.01,
            f"the classifier is worse than chance (log loss {curve.log_loss:.3g} nats, by chance {chance:.3g}): the "
            "model or its log Z is wrong, or a log_scale lifts the noise on purpose": (
                not dead and curve.error > MISCALIBRATED and curve.log_loss > chance
            ),
            f"{self.clipped_data:.0%} of the data lie above the clip, where their weights are equal and α has no "
            "effect: lower alpha or raise clip": self.clipped_data > 0.5,
            f"{self.clipped_noise:.0%} of the noise lies above the clip, where J is not a bound": many_clipped,
            f"log Z and its error are not to be trusted: {self.log_partition_samples:.1f} effective samples carry it, "
            f"and {ENOUGH_SAMPLES} must. Draw more noise samples, or move the noise toward the model": not trusted,
            f"log Z is uncertain by {self.log_partition_error:.2f} nats: draw more noise samples": uncertain,
        }
        return [text for text, applies in advice.items() if applies]

    def __str__(self) -> str:
        lines = [
            f"noise     live {self.live_noise:.1%}, exactly zero {self.zero_noise:.1%}, "
            f"effective {self.ess_noise:.1%}, clipped {self.clipped_noise:.1%}",
            f"data      effective {self.ess_data:.1%}, clipped {self.clipped_data:.1%}",
            f"bound     one draw to many: data {self.gap_data:+.3g}, noise {self.gap_noise:+.3g}",
            f"classify  log loss {self.calibration.log_loss:.3g} nats, calibration error {self.calibration.error:.3g}",
            f"log Z     {self.log_partition:.3f} ± {self.log_partition_error:.3f}"
            + ("" if self.log_partition_trusted else ", not to be trusted"),
        ]
        return "\n".join(lines + [f"! {advice}" for advice in self.advice])


@torch.no_grad()
def diagnose(
    objective: ContrastiveObjective,
    x: Tensor,
    *,
    samples: int | None = None,
    latent_samples: int = 128,
    bins: int = 10,
    log_noise_x: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Diagnostics:
    """Diagnose an objective on data, if possible held out, and on fresh noise.

    Args:
        objective: contrastive, trained or not.
        x: data, shape (n, …).
        samples: noise samples to draw; by default as many as rows of data.
        latent_samples: draws of the latent for the gap of the bound.
        bins: of the calibration.
        log_noise_x: log p_n of the data, if already computed.
        generator: seeds everything.

    Raises:
        TypeError: the objective has no noise term.
        ValueError: it takes a context.

    >>> from torch.distributions import Independent, Normal
    >>> import fvnce
    >>> noise = Independent(Normal(torch.zeros(40), torch.ones(40)), 1)
    >>> x = torch.full((50, 40), 9.0)
    >>> far = fvnce.EnergyModel(fvnce.mlp([40, 1]), reference=Independent(Normal(x[0], torch.ones(40)), 1))
    >>> report = diagnose(fvnce.NCE(far, noise, fvnce.PowerRule(alpha=0)), x)
    >>> report.live_noise  # no noise sample contributes to the gradient
    0.0
    """
    if not isinstance(objective, ContrastiveObjective):
        raise TypeError(f"objective must have a noise term, found {type(objective).__name__} without one")
    if objective.takes_context:
        raise ValueError(
            f"objective must be one of p(x), found a {type(objective).__name__} that takes a context; look at "
            "objective.terms(x, context=…).statistics"
        )
    x = _validation.finite_rows("x", _validation.rows("x", x, objective.noise.event_shape))
    was_training = objective.training
    objective.eval()
    try:
        n = len(x) if samples is None else _validation.count("samples", samples, low=2)
        x_noise, log_noise_noise = draw_with_log_prob(objective.noise, max(n, 2), generator)
        x_noise = x_noise.to(x.dtype)
        log_noise_x = log_prob_or_minus_inf(objective.noise, x) if log_noise_x is None else log_noise_x
        many = _validation.count("latent_samples", latent_samples)
        with seeded_by(generator):
            terms = objective.terms(x, x_noise, log_noise_x=log_noise_x, log_noise_noise=log_noise_noise)
            if terms.delta_data is None or terms.delta_noise is None:
                raise ValueError("objective must draw noise to be diagnosed, found one with variance_reduced=True")
            shift = -terms.statistics["log_scale"] - math.log(objective.noise_ratio)
            # A profiled objective ignores the clip.
            rule = objective.rule.unclipped() if isinstance(objective.partition, Profiled) else objective.rule
            model, encoder = objective.model, objective.noise_encoder or objective.encoder
            gap_data = _gap(model, objective.encoder, x, log_noise_x, lambda at: rule.f1(at + shift), many)
            gap_noise = _gap(model, encoder, x_noise, log_noise_noise, lambda at: rule.f0(at + shift), many)
        log_z = objective.log_partition(x_noise=x_noise, log_noise_noise=log_noise_noise, generator=generator)
        fractions = {name: terms.statistics[name] for name in FRACTIONS}
        remedies: tuple[Remedy, ...] = ()
        if fractions["live_noise"] < DEAD_BELOW:
            remedies = tuple(_remedies(objective, x, terms.delta_data, terms.delta_noise, generator))
        return Diagnostics(
            **fractions,
            gap_data=gap_data,
            gap_noise=gap_noise,
            calibration=calibrate(terms.delta_data, terms.delta_noise, objective.noise_ratio, bins=bins),
            log_partition=float(log_z.value),
            log_partition_error=float(log_z.error),
            log_partition_samples=log_z.effective_samples,
            remedies=remedies,
        )
    finally:
        objective.train(was_training)


def _gap(
    model: Any, encoder: Encoder | None, x: Tensor, log_noise: Tensor, f: Callable[[Tensor], Tensor], many: int
) -> float:
    """Return the mean of f(Δ⁰) at many latent draws, or all, less that at one; a few rows at a time, to save memory."""
    if encoder is None:
        return 0.0
    total = 0.0
    rows = max(1, LATENTS_AT_ONCE // many)
    for part, log_part in zip(x.split(rows), log_noise.split(rows), strict=True):
        q = encoder(part)
        ratio = log_ratio(model, q, part, log_part)
        one = ratio.average(f(ratio.values))
        all_of_them = f(log_ratio(model, q, part, log_part, many, marginal=True).mean)
        total += float((all_of_them - one).sum())
    return total / len(x)


@torch.no_grad()
def calibrate(delta_data: Tensor, delta_noise: Tensor, noise_ratio: float = 1.0, *, bins: int = 10) -> ReliabilityCurve:
    """Compute the calibration of σ(Δ), where Δ = log p_θ/(ν p_n): data weigh 1 in all, noise ν.

    Args:
        delta_data: Δ of data, shape (B,).
        delta_noise: Δ of noise samples, shape (N,).
        noise_ratio: ν.
        bins: of equal width in σ(Δ).

    >>> result = calibrate(torch.tensor([2.0, 1.0]), torch.tensor([-2.0, -1.0]), bins=2)
    >>> result.observed
    tensor([0., 1.], dtype=torch.float64)
    """
    bins = _validation.count("bins", bins)
    delta = torch.cat([delta_data, delta_noise]).double()
    label = torch.cat([torch.ones_like(delta_data), torch.zeros_like(delta_noise)]).double()
    weight = (label / len(delta_data) + (1 - label) * noise_ratio / len(delta_noise)) / (1 + noise_ratio)
    probability = delta.sigmoid()
    index = (probability * bins).long().clamp(max=bins - 1)
    total = delta.new_zeros(bins).index_add(0, index, weight)
    predicted = delta.new_zeros(bins).index_add(0, index, weight * probability) / total
    observed = delta.new_zeros(bins).index_add(0, index, weight * label) / total
    error = (total * (predicted - observed).abs()).nansum()
    signed = torch.where(label == 1, delta, -delta)
    log_loss = -(weight * torch.nn.functional.logsigmoid(signed)).sum()
    return ReliabilityCurve(predicted, observed, total, float(error), float(log_loss))


# Remedies.


def _remedies(
    objective: ContrastiveObjective,
    x: Tensor,
    delta_data: Tensor,
    delta_noise: Tensor,
    generator: torch.Generator | None,
) -> Iterator[Remedy]:
    """Yield all remedies that apply to data x and the given Δ of data and noise, in the order in which to try them."""
    x = x[:ROWS]
    normalized = is_normalized(objective.model)
    point = objective.encoder is not None and isinstance(objective.encoder(x[:1]), PointMass)
    power = power_of(objective.rule)
    if power is not None and power[1] == 0 and normalized and not point and isinstance(objective.partition, Fixed):
        text = "nothing need be done: the noise term is a constant here (use variance_reduced=True or fvnce.VAE)"
        yield Remedy("none", math.nan, math.nan, True, text)
    yield from _noise(objective, x, generator)
    yield from _decoder(objective, x, generator)
    needed = -float(delta_noise.median())
    live, ess = _live_and_ess(objective, delta_data + needed, delta_noise + needed)
    by_hand = f"log_scale={needed:.0f} lifts half of it above Δ = 0, {live:.1%} would be live; use a clip of 0 to 2"
    by_budget = (
        f'half of it lies {needed:.0f} nats below Δ = 0, and log_scale="auto" with PowerRule(0, clip=0) lifts it'
    )
    budget = point and normalized
    text = f"scale the noise: {by_budget if budget else by_hand}"
    yield Remedy("log_scale", live, ess, budget or needed < 50, text)
    ess = effective_fraction(delta_noise)
    carried = ess * len(delta_noise)
    enough = carried >= ENOUGH_EFFECTIVE
    text = (
        f"profile log Z out (partition='profiled'): {carried:.1f} of {len(delta_noise)} samples would carry the noise"
    )
    yield Remedy("profiled", 1.0, ess, enough, text if enough else f"{text}, too few")
    nats = float(delta_data.median() - delta_noise.median())
    text = f"build bridges: fvnce.telescope(x, noise) splits the {nats:.0f} nats between typical data and typical noise"
    yield Remedy("bridges", math.nan, math.nan, True, text)


def _live_and_ess(objective: ContrastiveObjective, data: Tensor, noise: Tensor) -> tuple[float, float]:
    fractions = ratio_statistics(objective.rule, data, noise)
    return fractions["live_noise"], fractions["ess_noise"]


def _noise(objective: ContrastiveObjective, x: Tensor, generator: torch.Generator | None) -> Iterator[Remedy]:
    """Try kernels of other widths, and kernels on the data."""
    parts = objective.noise.components if isinstance(objective.noise, NoiseMixture) else (objective.noise,)
    kernels = next((part for part in parts if isinstance(part, KernelDensity)), None)
    tried: list[tuple[float, float, str]] = []
    if kernels is not None:
        widest = float(kernels.bandwidth.max())
        for factor in WIDTHS:
            noise = KernelDensity(kernels.centres, kernels.bandwidth * factor, kernels.given_weights)
            name = f"kernels of bandwidth {widest * factor:.3g} instead of {widest:.3g}"
            tried.append((*_with_noise(objective, noise, x, generator), name))
    width = _residual(objective, x, generator)
    if width:
        name = f"smoothed(data, {width:.3g}), kernels as wide as the model's own residual, as a part of a mixture"
        tried.append((*_with_noise(objective, smoothed(x, width), x, generator), name))
    if tried:
        live, ess, name = max(tried)
        text = f"move the noise: with {name}, {live:.1%} of the samples would be live"
        yield Remedy("noise", live, ess, live >= ENOUGH_LIVE, text)


def _with_noise(
    objective: ContrastiveObjective, noise: Distribution, x: Tensor, generator: torch.Generator | None
) -> tuple[float, float]:
    drawn, log_noise = draw_with_log_prob(noise, len(x), generator)
    shift = -objective.fitted_log_partition().to(x) - math.log(objective.noise_ratio)
    with seeded_by(generator):
        at_noise = objective.noise_log_ratio(drawn.to(x.dtype), log_noise).mean + shift
        at_data = objective.data_log_ratio(x, noise.log_prob(x)).mean + shift
    return _live_and_ess(objective, at_data, at_noise)


def _residual(objective: ContrastiveObjective, x: Tensor, generator: torch.Generator | None) -> float | None:
    """Return the median of |x − E p(x|z)| per coordinate at a draw of the latent, or None where it is not a width.

    It is a width only where x is real, which a Gaussian decoder implies.
    """
    decoder = getattr(objective.model, "decoder", None)
    if objective.encoder is None or not isinstance(decoder, GaussianDecoder):
        return None
    with seeded_by(generator):
        q = objective.encoder(x)
        if not q.has_rsample:
            return None
        error = (x - decoder(q.rsample()).mean).flatten(1).square().sum(1)
    return math.sqrt(float(error.median()) / x[0].numel())


def _decoder(objective: ContrastiveObjective, x: Tensor, generator: torch.Generator | None) -> Iterator[Remedy]:
    """Try the σ of greatest likelihood for the current reconstruction of noise."""
    decoder = getattr(objective.model, "decoder", None)
    if not isinstance(decoder, GaussianDecoder) or decoder.log_scale.numel() != 1:
        return
    drawn, log_noise = draw_with_log_prob(objective.noise, len(x), generator)
    drawn, narrow = drawn.to(x.dtype), float(decoder.scale)
    wider = _residual(objective, drawn, generator)
    if wider is None or objective.encoder is None or wider <= narrow:
        return
    model = copy.deepcopy(objective.model)
    model.decoder.log_scale.fill_(math.log(wider))
    shift = -float(objective.fitted_log_partition()) - math.log(objective.noise_ratio)
    draws, encoder = objective.latent_samples, objective.noise_encoder or objective.encoder
    with seeded_by(generator):
        data = log_ratio(model, objective.encoder(x), x, log_prob_or_minus_inf(objective.noise, x), draws).mean + shift
        noise = log_ratio(model, encoder(drawn), drawn, log_noise, draws).mean + shift
    live, ess = _live_and_ess(objective, data, noise)
    text = f"widen the decoder: at σ = {wider:.3g} instead of {narrow:.3g}, {live:.1%} of the samples would be live"
    yield Remedy("decoder", live, ess, live >= ENOUGH_LIVE, f'{text} (GaussianDecoder(learned="shared") finds σ)')
