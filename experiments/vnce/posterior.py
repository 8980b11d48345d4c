r"""Stars and moons: posteriors of a two-dimensional latent, learned with an unnormalized model, against the truth.

    python -m experiments.vnce.posterior --out out

log p⁰(x, z) = −|z|²/2 − (x − a g(z))²/2s² with one observed number x, a two-dimensional z, and a and log Z unknown;
Z = (2π)^{3/2} s. Two forms of g give posteriors that no Gaussian follows:

    moons   g = z_2 + z_1²/2      a crescent
    stars   g = z_1 z_2           a four-pointed star at x = 0, two arms elsewhere

The encoder is a chain of affine couplings, and a diagonal Gaussian to compare with. The truth p(z|x) is evaluated on a
grid, so both divergences between it and q(z|x) are integrals. fvNCE trains *two* encoders: q_1 by the data term, which
prefers q inside p; q_0 by the noise term, E_q[r^(1+α)], which for α > 0 prefers q that covers p. The latents of noise
samples come half from the encoder and half from the prior: an encoder alone learns to miss the mass it should bound.
What was learned is kept on disk and not learned again; the seconds it took are part of those reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as packed
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from fvnce.io import atomic_write
from fvnce.models import CoveringEncoder, GaussianEncoder, mlp
from fvnce.objectives import ContrastiveObjective, FullyVariationalNCE, Profiled, VariationalNCE
from fvnce.paper.cells import Cells
from fvnce.paper.figures import new_figure, save
from fvnce.paper.setting import Options, Result, ResultFigure, ResultTable, standard_normal
from fvnce.scoring import PowerRule
from fvnce.training import fit

from . import main, write_results
from .couplings import CouplingEncoder

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "moons": lambda z: z[..., 1] + z[..., 0].square() / 2,
    "stars": lambda z: z[..., 0] * z[..., 1],
}
#: Where posteriors are compared.
POINTS = {"moons": (-0.5, 0.5, 2.0), "stars": (0.0, 0.8, -1.5)}
METHODS = ("fvNCE (0, 0), Gaussian", "VNCE", "fvNCE (0, 0)", "fvNCE (1/2, 0)")


@dataclass(frozen=True)
class Settings:
    """Settings of data and training."""

    spread: float = 0.3
    """s."""
    rows: int = 10_000
    """Data samples."""
    epochs: int = 40
    """Passes over the data."""
    batch_size: int = 200
    """Rows of a step, and as many noise samples."""
    lr: float = 2e-3
    """Learning rate, falling as a cosine."""
    layers: int = 6
    """Couplings of the encoder."""
    hidden: int = 24
    """Hidden units of each."""
    draws: int = 4
    """K of the multi-sample bounds, and importance samples of VNCE."""
    partition_samples: int = 200_000
    """Noise samples for log Z."""
    cells: int = 160
    """Grid cells along each axis of z."""
    seed: int = 0
    """For everything."""


class ShapedModel(nn.Module):
    """log p⁰(x, z) = −|z|²/2 − (x − a g(z))²/2s², with a to be learned."""

    def __init__(self, shape: Callable[[Tensor], Tensor], spread: float, start: float) -> None:
        super().__init__()
        self.shape, self.spread = shape, spread
        self.a = nn.Parameter(torch.tensor(start))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the unnormalized log-density log p⁰(x, z)."""
        residual = (x[..., 0] - self.a * self.shape(z)) / self.spread
        return -z.square().sum(-1) / 2 - residual.square() / 2


def true_log_partition(settings: Settings) -> float:
    """Return log Z = log (2π)^{3/2} s, which does not depend on a."""
    return 1.5 * math.log(2 * math.pi) + math.log(settings.spread)


def run(out: Path, options: Options) -> Result:
    """Train, compare on a grid, draw."""
    start = time.perf_counter()
    settings = Settings(epochs=options.epochs or Settings.epochs)
    if options.quick:
        settings = replace(settings, rows=1000, epochs=4, cells=80, partition_samples=20_000)
    measured: dict[str, Any] = {}
    pictures: dict[str, list[tuple[str, list[Tensor]]]] = {}
    cells, kept = Cells(out / "cells" / "vnce-posterior", asdict(settings)), 0.0
    for name in SHAPES:
        measured[name], pictures[name], earlier = _one_shape(cells, settings, name)
        kept += earlier
    figures = _figure(out, settings, pictures)
    seconds = kept + time.perf_counter() - start
    return Result(
        "Stars and moons: learned posteriors",
        _reading(measured),
        figures=[
            ResultFigure(
                figures[0],
                "p(z|x) and the learned q(z|x) at three x for both shapes. q_0 is the encoder of the noise term.",
                "Rows of small density maps: crescents and stars, the truth in the first column.",
            )
        ],
        tables=[_table(measured)],
        settings=asdict(settings),
        seconds=seconds,
        files=[*figures, write_results(out, "vnce-posterior", options, asdict(settings), seconds, measured)],
    )


def _one_shape(
    cells: Cells, settings: Settings, name: str
) -> tuple[dict[str, Any], list[tuple[str, list[Tensor]]], float]:
    """What was measured, the panels, and the seconds of what was found on disk."""
    shape = SHAPES[name]
    generator = torch.Generator().manual_seed(settings.seed)
    z = torch.randn(settings.rows, 2, generator=generator)
    x = (shape(z) + settings.spread * torch.randn(settings.rows, generator=generator))[:, None]
    noise = Independent(Normal(x.mean(0), 1.5 * x.std(0)), 1)
    grid = _grid(settings)
    truth = [_posterior(shape, settings, grid, point) for point in POINTS[name]]
    rows: dict[str, Any] = {}
    panels = [("truth", [t.exp() for t in truth])]
    kept = 0.0
    for index, method in enumerate(METHODS):
        place = cells.path(f"{name}-{index}", ".safetensors")

        def learn(method: str = method, place: Path = place) -> dict[str, Any]:
            start = time.perf_counter()
            with torch.random.fork_rng():
                torch.manual_seed(settings.seed)
                objective = _objective(settings, method, shape, noise)
            fit(
                objective, x, epochs=settings.epochs, batch_size=settings.batch_size, lr=settings.lr,
                schedule="cosine", seed=settings.seed, grad_clip=10.0,
            )  # fmt: skip
            objective.eval()
            row, pictures = _measure(settings, objective, grid, truth, POINTS[name])
            place.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(place) as file:
                file.write(packed({f"q{mark}": torch.stack(densities) for mark, densities in pictures}))
            return {"row": row | {"seconds": time.perf_counter() - start}}

        on_disk = cells.path(f"{name}-{index}").exists()
        rows[method] = cells.get(f"{name}-{index}", learn)["row"]
        kept += rows[method]["seconds"] if on_disk else 0.0
        densities = load_file(place)
        panels += [(method + key[1:], list(densities[key])) for key in sorted(densities, reverse=True)]
    return rows, panels, kept


def _objective(
    settings: Settings, method: str, shape: Callable[[Tensor], Tensor], noise: Distribution
) -> ContrastiveObjective:
    model = ShapedModel(shape, settings.spread, start=0.7)

    def couplings() -> CouplingEncoder:
        return CouplingEncoder(1, 2, layers=settings.layers, hidden=settings.hidden)

    first = couplings()
    if method == "VNCE":
        return VariationalNCE(
            model,
            first,
            noise,
            importance_samples=settings.draws,
            partition="learned",
            noise_encoder=CoveringEncoder(first, standard_normal(2)),
        )
    rule = PowerRule(0.5 if "1/2" in method else 0)
    how: dict[str, Any] = {"partition": Profiled(momentum=0)}
    if "Gaussian" in method:
        gaussian = GaussianEncoder(mlp([1, 32, 4], nn.Tanh))
        covering = CoveringEncoder(gaussian, standard_normal(2))
        return FullyVariationalNCE(model, gaussian, noise, rule, noise_encoder=covering, **how)
    # At α = 0 the noise term is the same for every q_0 that covers, so it learns nothing and follows q_1.
    second = CoveringEncoder(couplings() if rule.alpha > 0 else first, standard_normal(2))
    return FullyVariationalNCE(model, first, noise, rule, noise_encoder=second, **how)


def _grid(settings: Settings) -> Tensor:
    """Midpoints over [−4, 4]², shape (cells², 2)."""
    axis = -4 + 8 / settings.cells * (torch.arange(settings.cells) + 0.5)
    return torch.cartesian_prod(axis, axis)


def _posterior(shape: Callable[[Tensor], Tensor], settings: Settings, grid: Tensor, point: float) -> Tensor:
    """log p(z|x) on the grid, normalized over it."""
    joint = ShapedModel(shape, settings.spread, 1.0).log_joint(torch.full((len(grid), 1), point), grid).detach()
    return joint - joint.logsumexp(0) - 2 * math.log(8 / settings.cells)


@torch.no_grad()
def _measure(
    settings: Settings, objective: Any, grid: Tensor, truth: list[Tensor], points: tuple[float, ...]
) -> tuple[dict[str, Any], list[tuple[str, list[Tensor]]]]:
    """Divergences between p(z|x) and each encoder, the parameter, and log Z."""
    cell = (8 / settings.cells) ** 2
    encoders = [("", objective.encoder)]
    second = getattr(objective.noise_encoder, "encoder", None)
    if second is not None and second is not objective.encoder:
        encoders = [(", q_1", objective.encoder), (", q_0", second)]
    row: dict[str, Any] = {"a": float(objective.model.a)}
    pictures = []
    for mark, encoder in encoders:
        forward, backward, densities = [], [], []
        for point, log_p in zip(points, truth, strict=True):
            log_q = encoder(torch.full((1, 1), point)).log_prob(grid[:, None])[:, 0]
            forward.append(float((log_p.exp() * (log_p - log_q)).sum() * cell))
            backward.append(float((log_q.exp() * (log_q - log_p)).sum() * cell))
            densities.append(log_q.exp())
        row[f"kl_p_q{mark}"], row[f"kl_q_p{mark}"] = forward, backward
        pictures.append((mark, densities))
    generator = torch.Generator().manual_seed(settings.seed)
    objective.noise_encoder = CoveringEncoder(objective.encoder, standard_normal(2))
    value, error = objective.log_partition(settings.partition_samples, generator=generator, batch_size=20_000)
    row |= {
        "log_partition": float(value),
        "log_partition_error": float(error),
        "true_log_partition": true_log_partition(settings),
    }
    return row, pictures


def _figure(out: Path, settings: Settings, pictures: dict[str, list[tuple[str, list[Tensor]]]]) -> list[Path]:
    columns, height = len(next(iter(pictures.values()))), sum(len(POINTS[name]) for name in pictures)
    figure, _ = new_figure(1, width=1.5 * columns, height=1.5 * height + 0.4)
    figure.clear()
    axes = figure.subplots(height, columns, squeeze=False)
    line = 0
    for name, panels in pictures.items():
        for index, point in enumerate(POINTS[name]):
            top = float(panels[0][1][index].max())
            for axis, (title, densities) in zip(axes[line], panels, strict=True):
                image = densities[index].reshape(settings.cells, settings.cells).T.numpy()
                axis.imshow(image, origin="lower", extent=(-4, 4, -4, 4), cmap="magma", vmin=0, vmax=top)
                axis.set(xlim=(-3, 3), ylim=(-3, 3), xticks=[], yticks=[])
                if line == 0:
                    axis.set_title(_title(title), fontsize=8)
            axes[line, 0].set_ylabel(f"{name}, x = {point:g}", fontsize=7)
            line += 1
    return save(figure, out, "vnce-posterior")


def _title(method: str) -> str:
    """Two lines: the rule, and the encoder."""
    rule, comma, encoder = method.partition("), ")
    if not comma:
        return method
    names = {"q_1": "encoder of data, $q_1$", "q_0": "encoder of noise, $q_0$"}
    return f"{rule})\n{names.get(encoder, f'{encoder} encoder')}"


def _table(measured: dict[str, Any]) -> ResultTable:
    rows = []
    for shape, methods in measured.items():
        for method, row in methods.items():
            for mark in ("", ", q_1", ", q_0"):
                if f"kl_p_q{mark}" not in row:
                    continue
                rows.append(
                    [
                        f"{shape}: {method}{mark}",
                        " ".join(f"{v:.2f}" for v in row[f"kl_p_q{mark}"]),
                        " ".join(f"{v:.2f}" for v in row[f"kl_q_p{mark}"]),
                        f"{row['a']:.3f}",
                        f"{row['log_partition'] - row['true_log_partition']:+.4f} ± {row['log_partition_error']:.4f}",
                        f"{row['seconds']:.0f}",
                    ]
                )
    header = ["shape: method", "KL(p‖q) at three x", "KL(q‖p)", "a (truth 1)", "log Z from noise − exact", "seconds"]
    return ResultTable("Learned posteriors against the truth, nats", header, rows)


def _reading(measured: dict[str, Any]) -> list[str]:
    def mean(shape: str, method: str, key: str) -> float:
        values = measured[shape][method][key]
        return float(sum(values) / len(values))

    sentences = []
    for shape in measured:
        sentences.append(
            f"{shape.capitalize()}: mean KL(p‖q) over three x is {mean(shape, METHODS[0], 'kl_p_q'):.2f} nats for a "
            f"Gaussian encoder, {mean(shape, 'VNCE', 'kl_p_q'):.2f} for VNCE and "
            f"{mean(shape, 'fvNCE (0, 0)', 'kl_p_q'):.2f} for fvNCE (0, 0) with couplings; with α = 1/2 the data "
            f"term's q_1 has {mean(shape, METHODS[3], 'kl_p_q, q_1'):.2f} and the noise term's q_0 "
            f"{mean(shape, METHODS[3], 'kl_p_q, q_0'):.2f}."
        )
    rows = [row for methods in measured.values() for row in methods.values()]
    gaps = [abs(row["log_partition"] - row["true_log_partition"]) / row["log_partition_error"] for row in rows]
    sentences.append(f"log Z from noise samples is within {max(gaps):.1f} standard errors of the exact value.")
    return sentences


if __name__ == "__main__":
    main(run, __doc__)
