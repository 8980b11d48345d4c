r"""Variational NCE, problem 4: a truncated normal graphical model, estimated from rows with missing entries.

    python -m experiments.vnce.missing --out out

log p⁰(u) = −½ uᵀKu on u ≥ 0, K a precision matrix of a ring. Entries are missing completely at random; the missing ones
are the latents, and the mask goes through model, noise and encoder (`truncated_normal`).

Since p⁰ is an exponential family, ∇ log p⁰(x) = −E_posterior[uuᵀ], which importance samples of the encoder estimate;
with it the sandwich formula gives every entry of K a standard error. Compared are VNCE, fvNCE, and NCE after the
missing entries were filled in with column means.

Z does not depend on the mask, so log Z of the model that was found is estimated from fresh noise rows without missing
entries, and compared with the integral over the orthant. The noise samples of training, with latents drawn for their
missing entries, give a second estimate, which is the worse the more is missing.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fvnce.objectives import ContrastiveObjective, FullyVariationalNCE, VariationalNCE
from fvnce.paper.figures import new_figure, save
from fvnce.paper.setting import Options, Result, ResultFigure, ResultTable
from fvnce.scoring import PowerRule, ScoringRule

from . import lbfgs, main, name_curves, write_results
from .estimation import Side, covariance, coverage
from .truncated_normal import (
    MaskedEncoder,
    MaskedHalfNormal,
    TruncatedNormal,
    log_orthant_partition,
    ring,
    sample,
    split,
)

METHODS = ("VNCE", "fvNCE (0, 0)", "fvNCE (1/4, 0)", "mean imputation, NCE")


@dataclass(frozen=True)
class Settings:
    """The graph, the data, the training."""

    dimensions: int = 6
    """d, nodes of the ring."""
    diagonal: float = 1.0
    """Diagonal of K."""
    coupling: float = -0.3
    """K of neighbors: negative, so that neighbors correlate positively."""
    rows: int = 2000
    """Data rows."""
    noise_ratio: float = 2.0
    """ν; the noise samples are drawn once."""
    fractions: tuple[float, ...] = (0.0, 0.25, 0.5)
    """Shares of missing entries."""
    seeds: int = 2
    """Data sets for each."""
    steps: int = 150
    """Adam steps on all rows, with fresh latents at each."""
    lr: float = 0.02
    """Its learning rate."""
    polish: int = 80
    """L-BFGS steps that follow, with the random numbers of the latents held fixed."""
    draws: int = 4
    """K, latent draws for each row: of the multi-sample bound, and of VNCE's importance sampling."""
    hidden: int = 32
    """Hidden units of the encoder."""
    importance_samples: int = 200
    """Draws for the standard errors."""
    partition_samples: int = 50_000
    """Fresh noise rows for log Z."""

    @property
    def precision(self) -> Tensor:
        """The true precision matrix K."""
        return ring(self.dimensions, self.diagonal, self.coupling)


def run(out: Path, options: Options) -> Result:
    """Estimate at every fraction, compare, draw."""
    start = time.perf_counter()
    settings = Settings()
    if options.quick:
        settings = replace(
            settings, rows=600, fractions=(0.0, 0.3), seeds=1, steps=40, polish=40, importance_samples=50
        )
    measured = {
        str(fraction): {
            method: [_one(settings, fraction, method, seed) for seed in range(settings.seeds)] for method in METHODS
        }
        for fraction in settings.fractions
    }
    figures = _figure(out, settings, measured)
    seconds = time.perf_counter() - start
    return Result(
        "A truncated normal graphical model with missing values",
        _reading(settings, measured),
        figures=[
            ResultFigure(
                figures[0],
                "Error of the precision matrix against the share of missing entries, and matrices of one data set.",
                "A panel of error curves, and three small matrices: truth, fvNCE and mean imputation.",
            )
        ],
        tables=[_table(settings, measured)],
        settings=asdict(settings),
        seconds=seconds,
        files=[*figures, write_results(out, "vnce-missing", options, asdict(settings), seconds, measured)],
    )


def _one(settings: Settings, fraction: float, method: str, seed: int) -> dict[str, Any]:
    """One data set by one method."""
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    u = sample(settings.precision, settings.rows, generator)
    mask = (torch.rand(u.shape, generator=generator) >= fraction).float()
    values = u * mask
    scale = (values.square().sum(0) / mask.sum(0)).sqrt() * 1.2
    if method.startswith("mean"):
        values = torch.where(mask > 0, values, values.sum(0) / mask.sum(0))
        mask = torch.ones_like(mask)
    x = torch.cat([values, mask], -1)
    noise = MaskedHalfNormal(scale, mask)
    y = noise.draw(round(settings.noise_ratio * len(x)), generator)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = TruncatedNormal(torch.diag(1 / scale.square()))
        # Without latents all draws are the same.
        draws = settings.draws if bool((mask == 0).any()) else 1
        objective = _objective(settings, method, model, noise, draws)
        _train(settings, objective, x, y)
        errors = _standard_errors(settings, objective, x, y)
        from_training_noise = [float(v) for v in objective.log_partition(x_noise=y)]
    truth = settings.precision[model.index[0], model.index[1]]
    entries = model.entries.detach()
    gap = model.matrix.detach() - settings.precision
    return {
        "relative_error": float(gap.norm() / settings.precision.norm()),
        "expected_error": float(_frobenius(errors, model) / settings.precision.norm()),
        "coverage": coverage(entries, truth, errors),
        "largest_in_errors": float(((entries - truth).abs() / errors).max()),
        "matrix": model.matrix.detach().tolist(),
        **log_partitions(settings, objective, seed),
        "log_partition_training_noise": from_training_noise,
        "fitted_log_scale": float(objective.fitted_log_partition()),
        "seconds": time.perf_counter() - start,
    }


def log_partitions(settings: Settings, objective: Any, seed: int) -> dict[str, Any]:
    """Return log Z of the current model: from fresh complete noise rows, with its standard error, and exactly."""
    generator = torch.Generator().manual_seed(1000 + seed)
    complete = MaskedHalfNormal(objective.noise.scale, torch.ones(1, settings.dimensions))
    rows = complete.draw(settings.partition_samples, generator)
    return {
        "log_partition": [float(v) for v in objective.log_partition(x_noise=rows, generator=generator)],
        "exact_log_partition": log_orthant_partition(objective.model.matrix.detach()),
    }


def _frobenius(errors: Tensor, model: TruncatedNormal) -> Tensor:
    """The norm of the error of K to be expected from the standard errors."""
    i, j = model.index
    return (errors.square() * torch.where(i == j, 1.0, 2.0)).sum().sqrt()


def _objective(
    settings: Settings, method: str, model: TruncatedNormal, noise: Distribution, draws: int
) -> ContrastiveObjective:
    encoder = MaskedEncoder(settings.dimensions, settings.hidden)
    how: dict[str, Any] = {"noise_ratio": settings.noise_ratio, "partition": "learned"}
    if method in ("VNCE", "mean imputation, NCE"):
        return VariationalNCE(model, encoder, noise, importance_samples=draws, **how)
    rule = PowerRule(0.25 if "1/4" in method else 0, clip=None)
    return FullyVariationalNCE(model, encoder, noise, rule, latent_samples=draws, **how)


def _train(settings: Settings, objective: ContrastiveObjective, x: Tensor, y: Tensor) -> None:
    """Adam brings the encoder near; L-BFGS then finds the maximum of one fixed sample of everything."""
    log_x, log_y = objective.noise.log_prob(x), objective.noise.log_prob(y)
    optimiser = torch.optim.Adam(objective.parameters(), lr=settings.lr)
    for _ in range(settings.steps):
        loss = objective(x, y, log_noise_x=log_x, log_noise_noise=log_y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    state = torch.get_rng_state()

    def fixed() -> Tensor:
        torch.set_rng_state(state)
        loss: Tensor = objective(x, y, log_noise_x=log_x, log_noise_noise=log_y)
        return loss

    lbfgs(fixed, list(objective.parameters()), settings.polish)


@torch.no_grad()
def _standard_errors(settings: Settings, objective: Any, x: Tensor, y: Tensor) -> Tensor:
    """Of the entries of K, by the sandwich formula with posterior means from weighted draws of the encoder."""
    sides = [_side(settings, objective, rows) for rows in (x, y)]
    rule: ScoringRule = objective.rule
    variance = covariance(rule, sides[0], sides[1], settings.noise_ratio, len(x))
    return variance[0].diagonal()[:-1].clamp(min=0).sqrt().float()


def _side(settings: Settings, objective: Any, rows: Tensor) -> Side:
    model: TruncatedNormal = objective.model
    deltas, gradients = [], []
    shift = float(objective.fitted_log_partition()) + math.log(settings.noise_ratio)
    for part in rows.split(1000):
        values, mask = split(part)
        q = objective.encoder(part)
        z = q.rsample((settings.importance_samples,))
        log_w = model.log_joint(part, z) - q.log_prob(z)
        deltas.append(log_w.logsumexp(0) - math.log(len(z)) - objective.noise.log_prob(part) - shift)
        weights = log_w.softmax(0)
        u = torch.where(mask > 0, values, z)
        gradients.append(torch.einsum("sb,sbk->bk", weights, model.gradient(u)))
    delta, gradient = torch.cat(deltas).double(), torch.cat(gradients).double()
    gradient = torch.cat([gradient, -torch.ones_like(gradient[:, :1])], 1)
    return Side(delta[None], gradient[None], torch.full_like(delta, 1 / len(delta))[None])


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


def _figure(out: Path, settings: Settings, measured: dict[str, Any]) -> list[Path]:
    figure, axes = new_figure(4, width=9.0, height=2.4)
    colours = {"VNCE": "#555555", "fvNCE (0, 0)": "#0b2e59", "fvNCE (1/4, 0)": "#2f7f9e", METHODS[3]: "#e8a33d"}
    dashes = dict(zip(colours, ("--", "-", "-.", ":"), strict=True))
    for method, colour in colours.items():
        means = [_mean(measured[str(f)][method], "relative_error") for f in settings.fractions]
        axes[0].plot(
            settings.fractions, means, marker="o", linestyle=dashes[method], color=colour, markersize=3, label=method
        )
        for fraction in settings.fractions:
            points = [row["relative_error"] for row in measured[str(fraction)][method]]
            axes[0].plot([fraction] * len(points), points, ".", color=colour, alpha=0.35, markersize=4)
    axes[0].set(xlabel="share missing", ylabel="relative error of K", ylim=(0, None))
    axes[0].set_title("dots: single runs", fontsize=8)
    last = measured[str(settings.fractions[-1])]
    shown = [
        ("truth", settings.precision),
        *((m, torch.tensor(last[m][0]["matrix"])) for m in (METHODS[1], METHODS[3])),
    ]
    for axis, (title, matrix) in zip(axes[1:], shown, strict=True):
        image = axis.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-1.2, vmax=1.2)
        axis.set_title(title if title == "truth" else f"{title}\n{settings.fractions[-1]:.0%} missing", fontsize=8)
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
    figure.colorbar(image, ax=axes[1:], label="entry of K", shrink=0.85)
    name_curves(axes[0])
    return save(figure, out, "vnce-missing")


def _table(settings: Settings, measured: dict[str, Any]) -> ResultTable:
    rows = []
    for fraction in settings.fractions:
        for method in METHODS:
            cells = measured[str(fraction)][method]
            rows.append(
                [
                    f"{fraction:.0%} missing: {method}",
                    f"{_mean(cells, 'relative_error'):.3f}",
                    f"{_mean(cells, 'expected_error'):.3f}",
                    f"{_mean(cells, 'coverage'):.0%}",
                    " ".join(f"{row['log_partition'][0] - row['exact_log_partition']:+.4f}" for row in cells),
                    f"{_mean(cells, 'seconds'):.0f}",
                ]
            )
    header = ["share and method", "relative error", "expected from s.e.", "coverage of 95% intervals"]
    header += ["log Z from noise − exact", "seconds"]
    return ResultTable(f"Precision matrix, mean over {settings.seeds} data sets of {settings.rows} rows", header, rows)


def _reading(settings: Settings, measured: dict[str, Any]) -> list[str]:
    last = measured[str(settings.fractions[-1])]
    fv = [row["coverage"] for cells in measured.values() for row in cells["fvNCE (0, 0)"]]
    listed = ", ".join(f"{_mean(last[m], 'relative_error'):.3f} ({m})" for m in METHODS)
    rows = [row for methods in measured.values() for cells in methods.values() for row in cells]
    # An estimate that is not positive definite has no exact value.
    rows = [row for row in rows if math.isfinite(row["exact_log_partition"])]
    gaps = [abs(row["log_partition"][0] - row["exact_log_partition"]) for row in rows]
    scores = [gap / row["log_partition"][1] for gap, row in zip(gaps, rows, strict=True)]
    return [
        f"With {settings.fractions[-1]:.0%} of the entries missing the relative error of K is {listed}.",
        f"The 95% intervals of fvNCE (0, 0) contain {sum(fv) / len(fv):.0%} of the true entries over all fractions.",
        f"log Z from fresh complete noise rows is off by at most {max(gaps):.4f} nats and {max(scores):.1f} standard "
        f"errors over the {len(rows)} models whose matrix is positive definite.",
        "With nothing missing there is no latent and VNCE, fvNCE and NCE differ by their rule alone; the error then "
        "grows with the share missing as information is lost, while filling in means biases K at any sample size.",
    ]


if __name__ == "__main__":
    main(run, __doc__)
