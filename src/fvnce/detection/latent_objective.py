"""The objective of a latent-variable detector: its settings, checked and completed, its networks and its noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from ..models import GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder
from ..noise import KernelDensity, NoiseMixture, fit_gaussian, smoothed
from ..objectives import VAE, Autoencoder, FullyVariationalNCE, Objective
from ..scoring.text import parse
from .networks import initialised, table_pair

NOISES = ("auto", "outliers", "data", "mixture", "gaussian", "none")
PARTITIONS = ("auto", "fixed", "learned", "profiled")
ENCODERS = ("gaussian", "point")
SCORES = ("auto", "ratio", "density")
#: Centres of a kernel density.
CENTRES = 5000
#: Deviations of a column, or of the range of images, that a kernel spans unless told.
TABLE_BANDWIDTHS = {"outliers": 0.5, "data": 1.0}
IMAGE_BANDWIDTH = 0.25


@dataclass(frozen=True)
class LatentSettings:
    """The parameters of :class:`fvnce.detection.LatentDetector`, checked; ``score`` is what it calls ``anomaly``.

    >>> LatentSettings().completed(12, image=False, known=3).noise
    'mixture'
    """

    rule: str = "power(0)"
    noise: str = "auto"
    bandwidth: float = 0.0
    outlier_share: float = 0.5
    partition: str = "auto"
    log_scale: float = 0.0
    noise_ratio: float = 1.0
    latent: int = 0
    hidden: tuple[int, ...] = (64, 64)
    encoder: str = "gaussian"
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    validation: float = 0.1
    score: str = "auto"
    contamination: float = 0.01

    def __post_init__(self) -> None:
        for name, allowed in (("noise", NOISES), ("partition", PARTITIONS), ("encoder", ENCODERS), ("score", SCORES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, found {getattr(self, name)!r:.60}")
        for name, low, high in (
            ("bandwidth", 0.0, 1e6),
            ("outlier_share", 0.0, 1.0),
            ("noise_ratio", 1e-3, 1e3),
            ("learning_rate", 0.0, 1e3),
            ("validation", 0.0, 0.5),
            ("contamination", 0.0, 0.5),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be in [{low:g}, {high:g}], found {getattr(self, name)}")
        if self.latent < 0 or any(size < 1 for size in self.hidden):
            raise ValueError(f"latent and hidden must be positive, found {self.latent} and {self.hidden}")
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch_size must be positive, found {self.epochs} and {self.batch_size}")

    def completed(self, width: int, *, image: bool, known: int) -> LatentSettings:
        """What "auto" stands for on rows of ``width`` columns with so many known outliers."""
        noise = self.noise
        if noise == "auto":
            noise = "mixture" if known else "data"
        if noise in ("outliers", "mixture") and not known:
            raise ValueError(
                f"noise {noise!r} needs known outliers, found none; give --outliers or --label, or use data"
            )
        score = self.score
        if score == "auto":
            score = "ratio" if known and noise != "none" else "density"
        if score == "ratio" and noise == "none":
            raise ValueError("score 'ratio' needs a noise, found noise 'none'; use density")
        return replace(
            self,
            noise=noise,
            score=score,
            partition=("fixed" if image else "profiled") if self.partition == "auto" else self.partition,
            latent=self.latent or (32 if image else max(2, width // 4)),
        )

    @property
    def stochastic(self) -> bool:
        """Whether codes are drawn in training."""
        return self.encoder == "gaussian"


def make_networks(width: int, settings: LatentSettings, seed: int) -> list[nn.Module]:
    """The networks of encoder and decoder, with weights that follow from the seed."""
    outputs = settings.latent * (2 if settings.stochastic else 1)
    return initialised(lambda: table_pair(width, settings.hidden, settings.latent, outputs, cut=False), seed)


def make_objective(
    encoder: GaussianEncoder | PointEncoder,
    decoder: GaussianDecoder,
    noise: Distribution | None,
    settings: LatentSettings,
) -> Objective:
    """The objective that completed settings ask for."""
    prior = Independent(Normal(torch.zeros(settings.latent), torch.ones(settings.latent)), 1)
    model = LatentVariableModel(prior, decoder)
    if noise is None:
        return VAE(model, encoder) if settings.stochastic else Autoencoder(model, encoder)
    partition: Any = settings.partition
    return FullyVariationalNCE(
        model,
        encoder,
        noise,
        parse(settings.rule),
        partition=partition,
        log_scale=settings.log_scale,
        noise_ratio=settings.noise_ratio,
    )


def make_noise(
    x: Tensor, outliers: Tensor, settings: LatentSettings, generator: torch.Generator, *, image: bool
) -> Distribution | None:
    """p_n of completed settings, or None."""

    def bandwidth(of: str) -> float:
        return settings.bandwidth or (IMAGE_BANDWIDTH if image else TABLE_BANDWIDTHS[of])

    def cover() -> KernelDensity:
        return smoothed(x, bandwidth("data"), max_centres=CENTRES, generator=generator)

    if settings.noise == "none":
        return None
    if settings.noise == "gaussian":
        return fit_gaussian(x, "diagonal", shrinkage=0.01)
    if settings.noise == "data":
        return cover()
    near = smoothed(outliers, bandwidth("outliers"), max_centres=CENTRES, generator=generator)
    if settings.noise == "outliers":
        return near
    share = settings.outlier_share
    return NoiseMixture([near, cover()], [share, 1 - share])
