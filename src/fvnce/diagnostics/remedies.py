r"""What to do about noise that no gradient feels: each remedy tried on the model and the data at hand.

Noise is dead where its Δ lies so far below the data's that e^Δ is rounded away. Ways out, in the order of their price:

    none       for (0, 0), a normalised model and a stochastic encoder the noise term is a constant: nothing is missing
    noise      draws nearer to what the model can make: kernels of another width, or kernels on the data
    decoder    a wider σ, at which Δ of noise falls more slowly, −|x − E p(x|z)|²/2σ²
    log_scale  Δ + s: with a deterministic encoder by a budget, else by hand
    profiled   log Z maximised out: the largest Δ always counts, and the question is how many others do
    bridges    distributions between noise and data, each near enough to the next

Each is judged by the live share and the effective share of noise that the objective would have with it, as it stands.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from .._random import seeded_by
from ..models import GaussianDecoder, LatentVariableModel
from ..models.distributions import PointMass
from ..noise import KernelDensity, NoiseMixture, draw_with_log_prob, log_prob_or_minus_inf, smoothed
from ..objectives import ContrastiveObjective, Fixed
from ..objectives.base import effective_share, ratio_statistics
from ..objectives.profiled import power_of
from ..objectives.ratios import log_ratio

#: A live share that is worth having.
ENOUGH_LIVE = 0.05
#: Effective noise samples that carry a log-mean-exp.
ENOUGH_EFFECTIVE = 10.0
#: Widths of kernels that are tried, over their own.
WIDTHS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 2.0, 4.0, 8.0)
_ROWS = 512


@dataclass(frozen=True)
class Remedy:
    """A way to bring dead noise to life, and what it would do here.

    Attributes:
        name: ``none``, ``noise``, ``decoder``, ``log_scale``, ``profiled`` or ``bridges``.
        live_noise: the share of noise samples that would be felt; NaN where that is not the question.
        ess_noise: the effective share of their weights; NaN likewise.
        helps: whether that is enough.
        text: what to do, with its numbers.
    """

    name: str
    live_noise: float
    ess_noise: float
    helps: bool
    text: str


@torch.no_grad()
def remedies(
    objective: ContrastiveObjective,
    x: Tensor,
    delta_data: Tensor,
    delta_noise: Tensor,
    generator: torch.Generator | None = None,
) -> list[Remedy]:
    """All remedies that apply, in the order in which to try them.

    Args:
        objective: in evaluation mode.
        x: data, of which the first 512 rows are used.
        delta_data: their Δ, shape (B,).
        delta_noise: Δ of noise samples, shape (N,).
        generator: seeds draws of other noises.
    """
    some = x[:_ROWS]
    point = objective.encoder is not None and isinstance(objective.encoder(some[:1]), PointMass)
    found = [*_none(objective, point), *_noise(objective, some, generator), *_decoder(objective, some, generator)]
    found.append(_log_scale(objective, delta_data, delta_noise, point))
    return [*found, _profiled(delta_noise), _bridges(delta_data, delta_noise)]


def _shares(objective: ContrastiveObjective, data: Tensor, noise: Tensor) -> tuple[float, float]:
    found = ratio_statistics(objective.rule, data[None], noise[None])
    return found["live_noise"][0], found["ess_noise"][0]


def _none(objective: ContrastiveObjective, point: bool) -> Iterator[Remedy]:
    power = power_of(objective.rule)
    normalised = getattr(objective.model, "normalised", True)
    if power is None or power[1] != 0 or not normalised or point or not isinstance(objective.partition, Fixed):
        return
    text = (
        "nothing need be done: for (0, 0), a normalised model and a stochastic encoder the noise term is a constant, "
        "and the objective is the evidence lower bound (variance_reduced=True, or fvnce.VAE, spares the noise)"
    )
    yield Remedy("none", math.nan, math.nan, True, text)


def _noise(objective: ContrastiveObjective, x: Tensor, generator: torch.Generator | None) -> Iterator[Remedy]:
    kernels = _kernels(objective.noise)
    tried: list[tuple[float, float, str]] = []
    if kernels is not None:
        widest = float(kernels.bandwidth.max())
        for factor in WIDTHS:
            noise = KernelDensity(kernels.centres, kernels.bandwidth * factor, kernels.given_weights)
            name = f"the same kernels with a bandwidth of {widest * factor:.3g} instead of {widest:.3g}"
            tried.append((*_with_noise(objective, noise, x, generator), name))
    # A residual is a width where x is real, and a Gaussian decoder says that it is.
    width = None
    if isinstance(getattr(objective.model, "decoder", None), GaussianDecoder):
        with seeded_by(generator):
            width = _residual(objective, x)
    if width:
        noise = smoothed(x, width)
        name = f"smoothed(data, {width:.3g}), kernels as wide as the model's own residual, as a part of a mixture"
        tried.append((*_with_noise(objective, noise, x, generator), name))
    if tried:
        live, ess, name = max(tried)
        text = f"move the noise: with {name} {live:.1%} of the samples would be felt"
        yield Remedy("noise", live, ess, live >= ENOUGH_LIVE, text)


def _kernels(noise: Distribution) -> KernelDensity | None:
    parts = noise.components if isinstance(noise, NoiseMixture) else (noise,)
    return next((part for part in parts if isinstance(part, KernelDensity)), None)


def _with_noise(
    objective: ContrastiveObjective, noise: Distribution, x: Tensor, generator: torch.Generator | None
) -> tuple[float, float]:
    drawn, log_noise = draw_with_log_prob(noise, len(x), generator)
    shift = -objective.fitted_log_partition().to(x) - math.log(objective.noise_ratio)
    with seeded_by(generator):
        own = objective.noise_log_ratio(drawn.to(x.dtype), log_noise).mean + shift
        data = objective.data_log_ratio(x, noise.log_prob(x)).mean + shift
    return _shares(objective, data, own)


def _rebuilt(objective: ContrastiveObjective, x: Tensor) -> Tensor | None:
    """|x − E p(x|z)|² at a draw of the latent, or None where there is no such thing."""
    model: Any = objective.model
    if objective.encoder is None or not isinstance(model, LatentVariableModel) or not model.normalised:
        return None
    q = objective.encoder(x)
    if not q.has_rsample:
        return None
    rebuilt: Tensor = model.decoder(q.rsample()).mean
    return (x - rebuilt).flatten(1).square().sum(1)


def _residual(objective: ContrastiveObjective, x: Tensor) -> float | None:
    error = _rebuilt(objective, x)
    return None if error is None else math.sqrt(float(error.median()) / x[0].numel())


def _decoder(objective: ContrastiveObjective, x: Tensor, generator: torch.Generator | None) -> Iterator[Remedy]:
    decoder = getattr(objective.model, "decoder", None)
    if not isinstance(decoder, GaussianDecoder) or decoder.log_scale.numel() != 1:
        return
    drawn, log_noise = draw_with_log_prob(objective.noise, len(x), generator)
    drawn = drawn.to(x.dtype)
    with seeded_by(generator):
        error = _rebuilt(objective, drawn)
    if error is None or objective.encoder is None:
        return
    # The σ of greatest likelihood for noise as it is rebuilt now.
    own, wider = float(decoder.scale), math.sqrt(float(error.median()) / x[0].numel())
    if wider <= own:
        return
    model = copy.deepcopy(objective.model)
    model.decoder.log_scale.fill_(math.log(wider))
    shift = -float(objective.fitted_log_partition()) - math.log(objective.noise_ratio)
    draws, encoder = objective.latent_samples, objective.noise_encoder or objective.encoder
    with seeded_by(generator):
        data = log_ratio(model, objective.encoder(x), x, log_prob_or_minus_inf(objective.noise, x), draws).mean + shift
        noise = log_ratio(model, encoder(drawn), drawn, log_noise, draws).mean + shift
    live, ess = _shares(objective, data, noise)
    text = (
        f"widen the decoder: at σ = {wider:.3g} instead of {own:.3g}, as wide as noise is rebuilt, {live:.1%} of the "
        'samples would be felt (GaussianDecoder(learned="shared") finds σ)'
    )
    yield Remedy("decoder", live, ess, live >= ENOUGH_LIVE, text)


def _log_scale(objective: ContrastiveObjective, data: Tensor, noise: Tensor, point: bool) -> Remedy:
    needed = -float(noise.median())
    live, ess = _shares(objective, data + needed, noise + needed)
    if point and getattr(objective.model, "normalised", True):
        text = (
            f'scale the noise: half of it lies {needed:.0f} nats or more below Δ = 0. log_scale="auto" with '
            "PowerRule(0, clip=0) finds how many of them to lift it by, from a budget on the data's error"
        )
        return Remedy("log_scale", live, ess, True, text)
    text = (
        f"scale the noise: log_scale={needed:.0f} would lift half of it above Δ = 0, and {live:.1%} would be felt; "
        "with a clip of 0 to 2, since the rest may then lie as far above"
    )
    return Remedy("log_scale", live, ess, needed < 50, text)


def _profiled(noise: Tensor) -> Remedy:
    ess = effective_share(noise)
    carried = ess * len(noise)
    text = (
        f"profile log Z out (partition='profiled'): {carried:.1f} of {len(noise)} samples would carry the noise term"
        f"{'' if carried >= ENOUGH_EFFECTIVE else ', too few'}"
    )
    return Remedy("profiled", 1.0, ess, carried >= ENOUGH_EFFECTIVE, text)


def _bridges(data: Tensor, noise: Tensor) -> Remedy:
    gap = float(data.median() - noise.median())
    text = (
        f"build bridges: {gap:.0f} nats lie between a typical row and a typical noise sample; for the ratio of the two "
        "fvnce.telescope(x, noise) splits them until each bridge is alive"
    )
    return Remedy("bridges", math.nan, math.nan, True, text)
