"""The paper's instances, verified on trained models: what is equal in theory is equal in numbers.

    fvnce reproduce instances --out out

A VAE with a Gaussian encoder and a latent that is small enough for a long importance-sampling estimate, and an
autoencoder with a deterministic one, both trained; then each identity and inequality is evaluated on test images. The
paper proves these and measures none of them; its numbers here are the signs, and 0 for the differences of equals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .._random import seeded
from ..models import GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder, mlp
from ..noise import draw_with_log_prob, fit_gaussian
from ..objectives import SNCE, VAE, Autoencoder, FullyVariationalNCE, log_marginal
from ..pages.page import Section, Table
from ..scoring import PowerRule, ScoringRule
from ..training import fit
from .cells import made_by, write_json
from .setting import Options, load, setting_for, standard_normal

TITLE = "The instances of the family, on trained models"
READING = (
    "Equalities should hold to rounding, and inequalities have the sign that theory demands. The gap of the bound is "
    "measured against log p(x) from a long importance-sampling run."
)


@dataclass(frozen=True)
class Settings:
    """Small models, so that the truth can be estimated."""

    latent: int = 4
    """Latent dimensions."""
    hidden: int = 64
    """Hidden units."""
    epochs: int = 60
    """Passes over the training data."""
    rows: int = 5000
    """Training images at most."""
    points: int = 200
    """Test images and noise samples on which everything is evaluated."""
    importance_samples: int = 5000
    """Draws of the long importance-sampling estimate."""
    decoder_scale: float = 1 / 4
    """σ_dec: wide enough for noise and data to overlap."""


def run(out: Path, options: Options) -> Section:
    """Train and compare."""
    start = time.perf_counter()
    settings = Settings(epochs=options.epochs or Settings.epochs)
    if options.quick:
        settings = replace(settings, epochs=2, points=32, importance_samples=200)
    images = load(replace(setting_for(options), rows=settings.rows, pixels="unit"))
    with seeded(0):
        table = _compare(settings, images.train, images.test[: settings.points])
    seconds = time.perf_counter() - start
    record = made_by(f"fvnce reproduce instances --data {options.data}") | {
        "seed": 0,
        "seconds": seconds,
        "settings": asdict(settings),
        "caption": table.caption,
        "header": table.header,
        "rows": table.rows,
    }
    return Section(
        TITLE,
        [READING],
        tables=[table],
        settings=asdict(settings) | {"data": options.data},
        seconds=seconds,
        files=[write_json(out / f"instances-{options.data}.json", record)],
    )


def _compare(settings: Settings, train: Tensor, x: Tensor) -> Table:
    size = train.shape[1]
    noise = fit_gaussian(train, covariance="diagonal", shrinkage=0.2)
    y, log_y = draw_with_log_prob(noise, settings.points)
    log_x: Tensor = noise.log_prob(x)  # type: ignore[no-untyped-call]
    cached = {"log_noise_x": log_x, "log_noise_noise": log_y}

    def model() -> LatentVariableModel:
        network = mlp([settings.latent, settings.hidden, size])
        return LatentVariableModel(standard_normal(settings.latent), GaussianDecoder(network, settings.decoder_scale))

    vae = VAE(model(), GaussianEncoder(mlp([size, settings.hidden, 2 * settings.latent])))
    fit(vae, train, epochs=settings.epochs, seed=0)
    reduced = FullyVariationalNCE(vae.model, vae.encoder, noise, PowerRule(0), variance_reduced=True)
    rows = [
        _equal(
            "(0, 0), its noise term in closed form = VAE − E log p_n − 1",
            _seeded(lambda: -reduced(x, y, **cached)),
            _seeded(lambda: -vae(x)) - log_x.mean() - 1,
        )
    ]
    terms = FullyVariationalNCE(vae.model, vae.encoder, noise, PowerRule(0, 1, clip=None)).terms(x, y, **cached)
    assert terms.delta_data is not None
    assert terms.delta_noise is not None
    delta = terms.delta_data.double(), terms.delta_noise.double()
    soft = softplus(delta[0]).mean() + (softplus(delta[1]) - delta[1].exp()).mean()
    rows.append(_equal("(0, 1) = soft-plus form", -terms.loss, soft))
    point = Autoencoder(model(), PointEncoder(mlp([size, settings.hidden, settings.latent])))
    fit(point, train, epochs=settings.epochs, seed=0)
    penalised = FullyVariationalNCE(point.model, point.encoder, noise, PowerRule(0)).terms(x, y, **cached)
    assert penalised.noise is not None
    chain = [
        -point(x),
        -VAE(point.model, point.encoder)(x),
        penalised.evidence.mean() + penalised.noise.mean(),
    ]
    rows.append(_ordered("J_AE ≥ J_VAE, deterministic encoder", chain[0], chain[1]))
    rows.append(_ordered("J_VAE ≥ J_fvNCE, deterministic encoder", chain[1], chain[2]))
    truth = _Marginal(vae, settings.importance_samples)
    for rule in (PowerRule(0, clip=None), PowerRule(0.01, clip=None), PowerRule(0, 1, clip=None)):
        rows.append(
            _ordered(f"S-NCE ≥ fvNCE, data term of {rule}", *_data_terms(rule, truth, vae, noise, x, y, cached))
        )
    return Table(
        "Left and right side on test images, in nats", ["statement", "left", "right", "difference", "holds"], rows
    )


class _Marginal(torch.nn.Module):
    """log p(x) by importance sampling."""

    def __init__(self, vae: VAE, samples: int) -> None:
        super().__init__()
        self.vae, self.samples = vae, samples

    def log_prob(self, x: Tensor) -> Tensor:
        return log_marginal(self.vae.model, self.vae.encoder, x, latent_samples=self.samples)


def _data_terms(
    rule: ScoringRule, truth: _Marginal, vae: VAE, noise: object, x: Tensor, y: Tensor, cached: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    exact = SNCE(truth, noise, rule).terms(x, y, **cached)  # type: ignore[arg-type]
    bound = FullyVariationalNCE(vae.model, vae.encoder, noise, rule).terms(x, y, **cached)  # type: ignore[arg-type]
    return exact.data.mean(), bound.data.mean()


def _seeded(make: Callable[[], Tensor]) -> Tensor:
    torch.manual_seed(7)
    return make().detach()


def _equal(name: str, left: Tensor, right: Tensor) -> list[str]:
    a, b = float(left.detach()), float(right.detach())
    return [name, f"{a:.4f}", f"{b:.4f}", f"{a - b:.1e}", "yes" if abs(a - b) <= 1e-5 * (1 + abs(a)) else "NO"]


def _ordered(name: str, left: Tensor, right: Tensor) -> list[str]:
    a, b = float(left.detach()), float(right.detach())
    return [name, f"{a:.4f}", f"{b:.4f}", f"{a - b:.4f}", "yes" if a >= b else "NO"]
