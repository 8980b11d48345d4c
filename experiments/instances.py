"""Numerical verification of the paper's identities and inequalities on trained models.

    python -m experiments.instances --data mnist --out results/paper-mnist/instances.json

Trains a VAE with a Gaussian encoder and a latent small enough for a long importance-sampling estimate, and an
autoencoder with a deterministic encoder, and evaluates each identity and inequality on test images. The paper proves
them without measurements; the expected values are the signs, and 0 for identities.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fvnce import fit
from fvnce.models import GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder, mlp
from fvnce.noise import draw_with_log_prob, fit_gaussian
from fvnce.objectives import NCE, VAE, Autoencoder, FullyVariationalNCE, log_marginal
from fvnce.paper.cells import made_by, write_json
from fvnce.paper.setting import ResultTable, Setting, load, standard_normal
from fvnce.scoring import PowerRule

TITLE = "The instances of the family, on trained models"
READING = (
    "Equalities should hold to rounding, and inequalities have the sign that theory demands. The gap of the bound is "
    "measured against log p(x) from a long importance-sampling run."
)
CAPTION = "Left and right side on test images, in nats"
HEADER = ["statement", "left", "right", "difference", "holds"]


@dataclass(frozen=True)
class InstanceSettings:
    """Settings of the models, which are small enough to estimate the truth.

    Attributes:
        latent: latent dimensions.
        hidden: hidden units.
        epochs: passes over the training data.
        rows: maximum number of training images.
        points: number of test images and of noise samples for the evaluation.
        importance_samples: draws of the long importance-sampling estimate.
        decoder_scale: σ_dec, wide enough for noise and data to overlap.
    """

    latent: int = 4
    hidden: int = 64
    epochs: int = 60
    rows: int = 5000
    points: int = 200
    importance_samples: int = 5000
    decoder_scale: float = 1 / 4


def compare(settings: InstanceSettings, train: Tensor, x: Tensor) -> list[list[str]]:
    """Train the two models and return both sides of every statement."""
    torch.manual_seed(0)
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
    left = _seeded(lambda: -reduced(x, y, **cached))
    right = _seeded(lambda: -vae(x)) - log_x.mean() - 1
    rows = [_line("(0, 0), its noise term in closed form = VAE − E log p_n − 1", left, right, equal=True)]
    terms = FullyVariationalNCE(vae.model, vae.encoder, noise, PowerRule(0, 1, clip=None)).terms(x, y, **cached)
    assert terms.delta_data is not None
    assert terms.delta_noise is not None
    data, other = terms.delta_data.double(), terms.delta_noise.double()
    soft = softplus(data).mean() + (softplus(other) - other.exp()).mean()
    rows.append(_line("(0, 1) = soft-plus form", -terms.loss, soft, equal=True))
    point = Autoencoder(model(), PointEncoder(mlp([size, settings.hidden, settings.latent])))
    fit(point, train, epochs=settings.epochs, seed=0)
    penalised = FullyVariationalNCE(point.model, point.encoder, noise, PowerRule(0)).terms(x, y, **cached)
    assert penalised.noise is not None
    elbo = -VAE(point.model, point.encoder)(x)
    rows.append(_line("J_AE ≥ J_VAE, deterministic encoder", -point(x), elbo))
    lower = penalised.evidence.mean() + penalised.noise.mean()
    rows.append(_line("J_VAE ≥ J_fvNCE, deterministic encoder", elbo, lower))
    truth = _Marginal(vae, settings.importance_samples)
    for rule in (PowerRule(0, clip=None), PowerRule(0.01, clip=None), PowerRule(0, 1, clip=None)):
        exact = NCE(truth, noise, rule).terms(x, y, **cached)
        bound = FullyVariationalNCE(vae.model, vae.encoder, noise, rule).terms(x, y, **cached)
        rows.append(_line(f"S-NCE ≥ fvNCE, data term of {rule}", exact.data.mean(), bound.data.mean()))
    return rows


class _Marginal(torch.nn.Module):
    """Estimate of log p(x) by importance sampling."""

    def __init__(self, vae: VAE, samples: int) -> None:
        super().__init__()
        self.vae, self.samples = vae, samples

    def log_prob(self, x: Tensor) -> Tensor:
        return log_marginal(self.vae.model, self.vae.encoder, x, latent_samples=self.samples)


def _seeded(make: Callable[[], Tensor]) -> Tensor:
    torch.manual_seed(7)
    return make().detach()


def _line(name: str, left: Tensor, right: Tensor, *, equal: bool = False) -> list[str]:
    """Return a row of the table: both sides, their difference, and whether the statement holds."""
    a, b = float(left.detach()), float(right.detach())
    holds = abs(a - b) <= 1e-5 * (1 + abs(a)) if equal else a >= b
    return [name, f"{a:.4f}", f"{b:.4f}", f"{a - b:.1e}" if equal else f"{a - b:.4f}", "yes" if holds else "NO"]


def main() -> None:
    """Compare both sides of every statement and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("digits", "mnist"), default="mnist")
    parser.add_argument("--out", type=Path, default=Path("results/paper-mnist/instances.json"))
    options = parser.parse_args()
    settings = InstanceSettings()
    images = load(Setting(data=options.data, rows=settings.rows))
    rows = compare(settings, images.train, images.test[: settings.points])
    print(ResultTable(CAPTION, HEADER, rows).markdown())
    made = made_by(f"python -m experiments.instances --data {options.data}")
    record = {"seed": 0, "settings": asdict(settings), "caption": CAPTION, "header": HEADER, "rows": rows}
    write_json(options.out, made | record)


if __name__ == "__main__":
    main()
