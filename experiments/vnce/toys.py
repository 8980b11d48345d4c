r"""Energy-based density estimation in the plane, with and without latents, without a Markov chain in training.

    python -m experiments.vnce.toys --out out

Without latents log p⁰(x) = −E_θ(x) + log p_ref(x); with latents log p⁰(x, z) = log p_Z(z) − E_θ(x, z) + log p_ref(x),
an energy of x and z under a Gaussian prior with a Gaussian encoder. log Z is known by quadrature over the plane (and
z), estimated from noise samples, and estimated once more by annealed importance sampling. Divergences KL(p*‖p_θ) are
averages over fresh data of the known log p* less the log p_θ that quadrature normalizes. Trained models are kept on
disk and not trained again; the seconds they took are part of those reported.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from fvnce.models import EnergyModel, GaussianEncoder, mlp
from fvnce.noise import NoiseMixture, fit_gaussian, smoothed
from fvnce.objectives import NCE, ContrastiveObjective, FullyVariationalNCE, Profiled
from fvnce.paper.cells import Cells
from fvnce.paper.figures import new_figure, save
from fvnce.paper.setting import Options, Result, ResultFigure, ResultTable
from fvnce.sampling import annealed_log_partition, langevin
from fvnce.scoring import PowerRule
from fvnce.training import fit, load_module
from fvnce.training import save as save_objective

from . import main, write_results
from .densities import TOYS

METHODS = ("NCE", "fvNCE (0, 0)", "fvNCE (0, 0), latents")
#: Columns of the figure.
TITLES = {
    "truth": "truth",
    "NCE": "energy\nNCE",
    "fvNCE (0, 0)": "energy\nfvNCE (0, 0)",
    "fvNCE (0, 0), latents": "energy decoder\nfvNCE (0, 0)",
    "draws": "energy decoder\nLangevin draws",
}


@dataclass(frozen=True)
class Settings:
    """Settings of data, networks and training."""

    toys: tuple[str, ...] = ("rings", "pinwheel", "checkerboard", "moons")
    """Which densities."""
    rows: int = 20_000
    """Training samples."""
    hidden: int = 128
    """Hidden units of each of the three layers of the energy."""
    sharpness: float = 4.0
    """Factor on the first layer's initial weights: at torch's own scale a network starts too smooth for edges."""
    epochs: int = 40
    """Passes over the data."""
    batch_size: int = 256
    """Rows of a step, and as many noise samples."""
    lr: float = 2e-3
    """Learning rate, falling as a cosine."""
    latent_samples: int = 4
    """K of the model with latents."""
    noise_width: float = 0.3
    """Bandwidth of the smoothed-data half of the noise."""
    test_rows: int = 10_000
    """Fresh samples for the divergence."""
    partition_samples: int = 50_000
    """Noise samples for log Z."""
    temperatures: int = 80
    """Of annealed importance sampling."""
    cells: int = 160
    """Grid cells along each axis."""
    seed: int = 0
    """For everything."""


def run(out: Path, options: Options) -> Result:
    """Train, measure, and draw the figure."""
    start = time.perf_counter()
    settings = Settings(epochs=options.epochs or Settings.epochs)
    if options.quick:
        settings = replace(
            settings, toys=("moons",), hidden=48, rows=2000, epochs=4, test_rows=2000, temperatures=20, cells=80,
            partition_samples=20_000,
        )  # fmt: skip
    measured: dict[str, Any] = {}
    pictures: dict[str, list[tuple[str, Tensor]]] = {}
    kept = 0.0
    for name in settings.toys:
        measured[name], pictures[name], earlier = _one_toy(out, settings, name)
        kept += earlier
    figures = _figure(out, settings, measured, pictures)
    seconds = kept + time.perf_counter() - start
    return Result(
        "Energy-based densities in the plane",
        _reading(measured),
        figures=[
            ResultFigure(
                figures[0],
                "The truth, the learned densities, and draws of the model with latents by Langevin steps. Each row "
                "has one colour scale; below each panel is KL(p*‖p_θ) in nats.",
                "Rows of heat maps: rings, pinwheel, checkerboard and moons beside their estimates.",
            )
        ],
        tables=[_table(measured)],
        settings=asdict(settings),
        seconds=seconds,
        files=[*figures, write_results(out, "vnce-toys", options, asdict(settings), seconds, measured)],
    )


def _one_toy(out: Path, settings: Settings, name: str) -> tuple[dict[str, Any], list[tuple[str, Tensor]], float]:
    """What was measured, the panels, and the seconds that models found on disk had taken."""
    toy = TOYS[name]
    generator = torch.Generator().manual_seed(settings.seed)
    x = toy.sample(settings.rows, generator)
    test = toy.sample(settings.test_rows, generator)
    wide = _widened(x)
    noise = NoiseMixture([wide, smoothed(x, settings.noise_width, max_centres=1000, generator=generator)])
    grid = _Grid(settings)
    rows: dict[str, Any] = {}
    panels = [("truth", toy.log_prob(grid.points).exp())]
    cells = Cells(out / "cells" / "vnce-toys", asdict(settings))
    kept = 0.0
    for index, method in enumerate(METHODS):
        place = cells.path(f"{name}-{index}", ".safetensors")

        def train(method: str = method, place: Path = place) -> dict[str, Any]:
            start = time.perf_counter()
            with torch.random.fork_rng():
                torch.manual_seed(settings.seed)
                objective = _objective(method, settings, wide, noise)
            fit(
                objective, x, epochs=settings.epochs, batch_size=settings.batch_size, lr=settings.lr,
                schedule="cosine", seed=settings.seed,
            )  # fmt: skip
            save_objective(place, objective)
            return {"seconds": time.perf_counter() - start}

        on_disk = cells.path(f"{name}-{index}").exists()
        cell = cells.get(f"{name}-{index}", train)
        kept += cell["seconds"] if on_disk else 0.0
        objective: Any = load_module(place)
        rows[method] = _measure(settings, toy.log_prob(test), test, objective, wide, grid)
        rows[method]["seconds"] = cell["seconds"]
        panels.append((method, rows[method].pop("density")))
    panels.append(("draws", _draws(objective, noise, settings)))
    return rows, panels, kept


def _widened(x: Tensor) -> MultivariateNormal:
    """A Gaussian with twice the covariance of the data: reference of the energies and half of the noise."""
    fitted = fit_gaussian(x, "full")
    assert isinstance(fitted, MultivariateNormal)
    return MultivariateNormal(fitted.loc, covariance_matrix=2 * fitted.covariance_matrix)


def _objective(method: str, settings: Settings, reference: Distribution, noise: Distribution) -> ContrastiveObjective:
    size = settings.hidden
    if "latents" in method:
        prior = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
        encoder = GaussianEncoder(mlp([2, size, 2], nn.SiLU))
        model = EnergyModel(_network(3, settings), reference=reference, latent_reference=prior)
        return FullyVariationalNCE(
            model, encoder, noise, PowerRule(0), partition=Profiled(momentum=0), latent_samples=settings.latent_samples
        )
    energy = EnergyModel(_network(2, settings), reference=reference)
    if method == "NCE":
        return NCE(energy, noise, partition="learned")
    return FullyVariationalNCE(energy, None, noise, PowerRule(0), partition=Profiled(momentum=0))


def _network(inputs: int, settings: Settings) -> nn.Sequential:
    size = settings.hidden
    network = mlp([inputs, size, size, size, 1], nn.SiLU)
    first = network[0]
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.mul_(settings.sharpness)
    return network


class _Grid:
    """Midpoints of square cells over [−5, 5]², and nodes for a Gaussian latent."""

    def __init__(self, settings: Settings) -> None:
        edge = 5.0
        self.cell = 2 * edge / settings.cells
        axis = -edge + self.cell * (torch.arange(settings.cells) + 0.5)
        self.points = torch.cartesian_prod(axis, axis)
        nodes, weights = np.polynomial.hermite_e.hermegauss(32)
        self.nodes = torch.tensor(nodes, dtype=torch.float32)[:, None]
        self.log_weights = torch.tensor(np.log(weights / weights.sum()), dtype=torch.float32)

    @torch.no_grad()
    def log_unnormalised(self, model: Any, x: Tensor) -> Tensor:
        """log p⁰(x), the latent integrated out by Gauss–Hermite quadrature."""
        if model.latent_reference is None:
            return torch.cat([model.log_prob(part) for part in x.split(8000)])
        parts = []
        for part in x.split(250):  # small enough for the cache
            z = self.nodes[:, None].expand(-1, len(part), -1)
            log_likelihood = model.log_joint(part, z) - model.latent_reference.log_prob(z)
            parts.append((log_likelihood + self.log_weights[:, None]).logsumexp(0))
        return torch.cat(parts)

    def log_partition(self, values: Tensor) -> float:
        """log Z by the midpoint rule, from log p⁰ at ``points``."""
        return float(values.double().logsumexp(0)) + 2 * math.log(self.cell)


def _measure(
    settings: Settings, log_truth: Tensor, test: Tensor, objective: Any, wide: Distribution, grid: _Grid
) -> dict[str, Any]:
    model = objective.model
    on_grid = grid.log_unnormalised(model, grid.points)
    exact = grid.log_partition(on_grid)
    generator = torch.Generator().manual_seed(settings.seed + 1)
    value, error = objective.log_partition(settings.partition_samples, generator=generator)
    prior = model.latent_reference
    annealed, annealed_error = annealed_log_partition(
        model, wide, prior, chains=1000, temperatures=settings.temperatures, step_size=0.2, generator=generator
    )
    at_test = grid.log_unnormalised(model, test)
    gaps = log_truth - at_test + exact
    row = {
        "kl": float(gaps.mean()),
        "kl_error": float(gaps.std() / math.sqrt(len(gaps))),
        "log_partition": float(value),
        "log_partition_error": float(error),
        "quadrature": exact,
        "annealed": float(annealed),
        "annealed_error": float(annealed_error),
        "fitted_log_scale": float(objective.fitted_log_partition()),
        "density": (on_grid - exact).exp(),
    }
    if prior is not None:
        row |= _latents(objective, test[:2000], at_test[:2000], generator)
    return row


@torch.no_grad()
def _latents(objective: Any, x: Tensor, log_marginal: Tensor, generator: torch.Generator) -> dict[str, float]:
    """How far q(z|x) is from the posterior, and from the prior: means over x of two divergences."""
    model = objective.model
    q = objective.encoder(x)
    z = q.mean + q.stddev * torch.randn(16, *q.mean.shape, generator=generator)
    log_q, log_prior = q.log_prob(z), model.latent_reference.log_prob(z)
    bound = model.log_joint(x, z) - log_q
    return {
        "kl_encoder_posterior": float((log_marginal - bound.mean(0)).mean()),
        "kl_encoder_prior": float((log_q - log_prior).mean()),
    }


def _draws(objective: Any, noise: Distribution, settings: Settings) -> Tensor:
    """Draws of x by Langevin steps in x and z, from starting points of the noise."""
    generator = torch.Generator().manual_seed(settings.seed)
    assert isinstance(noise, NoiseMixture)
    x = noise.draw(1500, generator)
    z = torch.randn(1500, 1, generator=generator)
    steps = 2 * settings.temperatures
    return langevin(objective.model, x, z, steps=steps, step_size=0.12, generator=generator).x


def _figure(
    out: Path, settings: Settings, measured: dict[str, Any], pictures: dict[str, list[tuple[str, Tensor]]]
) -> list[Path]:
    figure, _ = new_figure(1, width=1.7 * len(TITLES), height=1.95 * len(pictures) + 0.3)
    figure.clear()
    grid = figure.subplots(len(pictures), len(TITLES), squeeze=False)
    for row, (name, panels) in zip(grid, pictures.items(), strict=True):
        top = max(float(content.max()) for _, content in panels if content.dim() == 1)
        for axis, (method, content) in zip(row, panels, strict=True):
            if content.dim() == 1:
                image = content.reshape(settings.cells, settings.cells).T.numpy()
                axis.imshow(image, origin="lower", extent=(-5, 5, -5, 5), cmap="magma", vmin=0, vmax=top)
            else:
                axis.plot(content[:, 0].numpy(), content[:, 1].numpy(), ".", markersize=0.8, color="#0b2e59")
                axis.set_aspect("equal")
            axis.set(xlim=(-3.6, 3.6), ylim=(-3.6, 3.6), xticks=[], yticks=[])
            if method in measured[name]:
                axis.set_xlabel(f"KL {measured[name][method]['kl']:.3f}", fontsize=8)
            if name == next(iter(pictures)):
                axis.set_title(TITLES[method], fontsize=9)
        row[0].set_ylabel(name)
    return save(figure, out, "vnce-toys")


def _table(measured: dict[str, Any]) -> ResultTable:
    rows = []
    for toy, methods in measured.items():
        for method, row in methods.items():
            rows.append(
                [
                    f"{toy}: {method}",
                    f"{row['kl']:.3f} ± {row['kl_error']:.3f}",
                    f"{row['quadrature']:.3f}",
                    f"{row['log_partition']:.3f} ± {row['log_partition_error']:.3f}",
                    f"{row['log_partition'] - row['quadrature']:+.4f}",
                    f"{row['annealed']:.3f} ± {row['annealed_error']:.3f}",
                    f"{row['seconds']:.0f}",
                ]
            )
    header = ["density: method", "KL(p*‖p_θ)", "log Z, quadrature", "from noise", "error", "annealed", "seconds"]
    return ResultTable("Divergence and log Z, nats", header, rows)


def _reading(measured: dict[str, Any]) -> list[str]:
    rows = [row for methods in measured.values() for row in methods.values()]
    gaps = [abs(row["log_partition"] - row["quadrature"]) for row in rows]
    scores = [gap / row["log_partition_error"] for gap, row in zip(gaps, rows, strict=True)]
    annealed = [abs(row["annealed"] - row["quadrature"]) for row in rows]
    sentences = [
        f"log Z from noise samples is off by at most {max(gaps):.3f} nats and {max(scores):.1f} standard errors over "
        f"all models; annealed importance sampling, with its Markov chains, by at most {max(annealed):.3f}."
    ]
    for toy, methods in measured.items():
        order = sorted(methods, key=lambda m: methods[m]["kl"])
        listed = ", ".join(f"{m} {methods[m]['kl']:.3f}" for m in order)
        sentences.append(f"{toy.capitalize()}: KL(p*‖p_θ) in nats, best first: {listed}.")
    return sentences


if __name__ == "__main__":
    main(run, __doc__)
