r"""Is a trained objective to be trusted? Four questions about its noise term, its bound, its classifier and its log Z.

>>> import torch
>>> from torch.distributions import Independent, Normal
>>> from fvnce import PowerRule, SNCE
>>> model = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
>>> noise = Independent(Normal(torch.zeros(2), 2 * torch.ones(2)), 1)
>>> report = diagnose(SNCE(model, noise, PowerRule(0)), model.sample((500,)))
>>> report.live_noise > 0.9
True
>>> abs(report.log_partition) < 4 * report.log_partition_error
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from .._estimates import ENOUGH
from .._random import seeded_by
from ..noise import draw_with_log_prob, log_prob_or_minus_inf
from ..objectives import ContrastiveObjective, Profiled
from ..objectives.ratios import Encoder, log_ratio
from .remedies import Remedy, remedies

SHARES = ("live_noise", "zero_noise", "ess_noise", "ess_data", "clipped_noise", "clipped_data")
LATENTS_AT_ONCE = 65_536
#: A live share below which the noise term is called dead.
DEAD_BELOW = 0.01


@dataclass(frozen=True)
class ReliabilityCurve:
    """How the implied classifier σ(Δ) fares at telling data from noise.

    Attributes:
        predicted: mean predicted probability of data in each bin of σ(Δ), NaN where the bin is empty.
        observed: share of data in each bin, noise counted ν times.
        weight: share of all samples in each bin.
        error: the expected calibration error, Σ weight·|predicted − observed|.
        log_loss: the mean negative log-probability of the truth, in nats; comparable across rules.

    >>> found = calibrate(torch.tensor([4.0, 5.0]), torch.tensor([-4.0, -5.0]), bins=2)
    >>> found.observed.tolist(), round(found.error, 3)
    ([0.0, 1.0], 0.012)
    """

    predicted: Tensor
    observed: Tensor
    weight: Tensor
    error: float
    log_loss: float


@dataclass(frozen=True)
class Diagnostics:
    """What :func:`diagnose` found.

    Attributes:
        live_noise: share of noise samples that can be felt in the gradient.
        zero_noise: share whose gradient is exactly zero in the working precision.
        ess_noise: effective share of the noise weights.
        ess_data: effective share of the data weights.
        clipped_noise: share of noise samples above the clip.
        clipped_data: share of data samples above the clip.
        gap_data: by how much the data term grows from one latent draw to many: a measure of the encoder's error.
        gap_noise: the same of the noise term.
        calibration: of the implied classifier.
        log_partition: log Z, the α = 0 estimate.
        log_partition_error: its standard error.
        log_partition_samples: effective samples that carry the two; below 100 neither is to be trusted.
        remedies: for noise that is dead, what each way out would do here, in the order in which to try them.

    >>> from torch.distributions import Independent, Normal
    >>> import fvnce
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = fvnce.EnergyModel(fvnce.mlp([2, 1]), reference=normal)
    >>> objective = fvnce.SNCE(model, normal, fvnce.PowerRule(alpha=0))
    >>> found = diagnose(objective, normal.sample((200,)), samples=2000)  # at least e^-1 of them count
    >>> found.live_noise, found.log_partition_trusted
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
        """Whether enough draws carry log Z for its value and its error to mean something."""
        return self.log_partition_samples >= ENOUGH

    @property
    def advice(self) -> list[str]:
        """What to change, in plain words; empty if nothing stands out."""
        found = []
        if self.live_noise < DEAD_BELOW:
            found.append(f"the noise term is dead: {self.live_noise:.1%} of the noise samples can be felt")
            first = next((remedy for remedy in self.remedies if remedy.helps), None)
            found += [f"{'→' if remedy is first else '·'} {remedy.text}" for remedy in self.remedies]
        elif self.ess_noise < 0.01:
            found.append(
                f"few noise samples carry the noise term (effective share {self.ess_noise:.2%}): use more "
                "noise_samples or noise closer to the model"
            )
        if self.clipped_data > 0.5:
            found.append(
                f"{self.clipped_data:.0%} of the data lie above the clip, where their weights are all alike and α has "
                "no effect: lower alpha or raise clip"
            )
        if self.clipped_noise > 0.05:
            found.append(f"{self.clipped_noise:.0%} of the noise lies above the clip, where J is no bound")
        if not self.log_partition_trusted:
            found.append(
                f"log Z is not to be trusted, nor is its error: {self.log_partition_samples:.1f} effective samples "
                f"carry it, and {ENOUGH} are wanted. Draw more noise samples, or move the noise towards the model"
            )
        elif self.log_partition_error > 0.5:
            found.append(f"log Z is uncertain by {self.log_partition_error:.2f} nats: draw more noise samples")
        return found

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
    """Study an objective on data x, best held-out, with ``samples`` fresh noise samples (as many as data).

    >>> from torch.distributions import Independent, Normal
    >>> import fvnce
    >>> noise = Independent(Normal(torch.zeros(40), torch.ones(40)), 1)
    >>> x = torch.full((50, 40), 9.0)
    >>> far = fvnce.EnergyModel(fvnce.mlp([40, 1]), reference=Independent(Normal(x[0], torch.ones(40)), 1))
    >>> found = diagnose(fvnce.SNCE(far, noise, fvnce.PowerRule(alpha=0)), x)
    >>> found.live_noise  # no noise sample can be felt
    0.0
    """
    if not isinstance(objective, ContrastiveObjective):
        raise TypeError(
            f"objective must have a noise term to be diagnosed, found {type(objective).__name__}, which has none"
        )
    was_training = objective.training
    objective.eval()
    try:
        n = len(x) if samples is None else _checks.count("samples", samples, low=2)
        x_noise, log_noise_noise = draw_with_log_prob(objective.noise, max(n, 2), generator)
        x_noise = x_noise.to(x.dtype)
        log_noise_x = log_prob_or_minus_inf(objective.noise, x) if log_noise_x is None else log_noise_x
        many = _checks.count("latent_samples", latent_samples)
        with seeded_by(generator):
            terms = objective.terms(x, x_noise, log_noise_x=log_noise_x, log_noise_noise=log_noise_noise)
            if terms.delta_data is None or terms.delta_noise is None:
                raise ValueError("objective must draw noise to be diagnosed, found one with variance_reduced=True")
            shift = -terms.statistics["log_scale"] - math.log(objective.noise_ratio)
            # A profiled objective ignores the clip.
            rule = objective.rule.unclipped() if isinstance(objective.partition, Profiled) else objective.rule
            gap = []
            for function, encoder, points, log_noise in (
                (rule.f1, objective.encoder, x, log_noise_x),
                (rule.f0, objective.noise_encoder or objective.encoder, x_noise, log_noise_noise),
            ):
                gap.append(_gap(objective.model, encoder, points, log_noise, function, shift, many))
        log_z = objective.log_partition(x_noise=x_noise, log_noise_noise=log_noise_noise, generator=generator)
        shares = {name: terms.statistics[name] for name in SHARES}
        ways: tuple[Remedy, ...] = ()
        if shares["live_noise"] < DEAD_BELOW:
            ways = tuple(remedies(objective, x, terms.delta_data, terms.delta_noise, generator))
        return Diagnostics(
            **shares,
            gap_data=gap[0],
            gap_noise=gap[1],
            calibration=calibrate(terms.delta_data, terms.delta_noise, objective.noise_ratio, bins=bins),
            log_partition=float(log_z.value),
            log_partition_error=float(log_z.error),
            log_partition_samples=log_z.effective_samples,
            remedies=ways,
        )
    finally:
        objective.train(was_training)


def _gap(
    model: Any,
    encoder: Encoder | None,
    x: Tensor,
    log_noise: Tensor,
    function: Callable[[Tensor], Tensor],
    shift: float,
    many: int,
) -> float:
    """Mean of f at many latent draws, or all, less that at one; a few rows at a time, so that many fit."""
    if encoder is None:
        return 0.0
    total = 0.0
    rows = max(1, LATENTS_AT_ONCE // many)
    for part, log_part in zip(x.split(rows), log_noise.split(rows), strict=True):
        q = encoder(part)
        one = log_ratio(model, q, part, log_part).expectation(function, shift)
        all_of_them = log_ratio(model, q, part, log_part, many, marginal=True).expectation(function, shift)
        total += float((all_of_them - one).sum())
    return total / len(x)


@torch.no_grad()
def calibrate(delta_data: Tensor, delta_noise: Tensor, noise_ratio: float = 1.0, *, bins: int = 10) -> ReliabilityCurve:
    """Calibration of σ(Δ), where Δ = log p_θ/(ν p_n): data weigh 1 in all, noise ν.

    >>> result = calibrate(torch.tensor([2.0, 1.0]), torch.tensor([-2.0, -1.0]), bins=2)
    >>> result.observed
    tensor([0., 1.], dtype=torch.float64)
    """
    bins = _checks.count("bins", bins)
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
