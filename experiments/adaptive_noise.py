r"""Fixed and refitted noise, compared on problems with known log Z.

    python -m experiments.adaptive_noise --json results/forgetting/adaptive-noise.json

Three kinds of problem (below), trained by the profiled (0, 0) with four noise samples per row. Fixed noise: a
Gaussian of the data; a kernel density of 500 rows; a coupling flow fitted first. Noise that is refitted after every
other epoch, starting from the Gaussian: the same flow, trained on; and for a model with latents what its decoder makes
of codes, drawn from a kernel density or from a Gaussian of the codes of data. After an epoch: steps, seconds of the
processor (fits of noise included), the error of the parameters, or in the plane of the density, and log Z as estimated
from 5,000 noise samples less its truth at the model reached.

The problems, each with a log Z that is known for every model:

components  p⁰(x) = Π_k sech(b_k·x) in D dimensions:  log Z = D log π − log |det B|. Data from a B* with correlated
            columns, training from a B that is off by 30 %. Error: |B − B*|/|B*|.
factors     z ~ N(0, I), x|z ~ N(Wz + b, σ²I) with D/4 factors, probabilistic PCA, with the exact posterior for an
            encoder: log Z = 0, and log p(x) is known. Training from W, b and σ that are off. Error: |Σ − Σ*|/|Σ*| of
            the covariance Σ = WWᵀ + σ²I, which is what W, known up to a rotation, is good for.
plane       an energy network for one of four densities in the plane: log Z by a grid. Error: KL(truth‖model) in nats.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from fvnce import NCE, EnergyModel, FullyVariationalNCE, GaussianDecoder, LatentVariableModel, PowerRule, fit, mlp
from fvnce.noise import FlowNoise, KernelDensity, NoiseMixture, fit_gaussian
from fvnce.objectives import ContrastiveObjective
from fvnce.paper.cells import made_by, write_json
from fvnce.paper.setting import standard_normal
from fvnce.training import DecodedNoise, RefitNoise, fit_flow

from .vnce.densities import TOYS


@dataclass(frozen=True)
class Problem:
    """Data, the model to start from, its encoder if it has latents, and what is known.

    Attributes:
        x: data.
        model: trained in place.
        encoder: q(z|x) or None.
        error: how far the model is from the truth.
        log_partition: log Z of the model as it is.
        lr: learning rate over that of the task.
        likelihood_error: the error of maximum likelihood, where that is known in closed form.
    """

    x: Tensor
    model: Any
    encoder: Callable[[Tensor], Any] | None
    error: Callable[[], float]
    log_partition: Callable[[], float]
    lr: float
    likelihood_error: float | None = None


class Components(nn.Module):
    """log p⁰(x) = −Σ_k log cosh(b_k·x)."""

    def __init__(self, b: Tensor) -> None:
        super().__init__()
        self.b = nn.Parameter(b.clone())

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the unnormalized log-density, shape (B,)."""
        y = (x @ self.b.T).abs()
        return -(y + nn.functional.softplus(-2 * y) - math.log(2)).sum(1)

    def log_partition(self) -> float:
        """Return log Z in closed form."""
        return len(self.b) * math.log(math.pi) - float(torch.linalg.slogdet(self.b.detach())[1])


def components(dimensions: int, rows: int, off: float, seed: int) -> Problem:
    """Make the problem of components; the quantile of sech(y)/π is log tan(πu/2)."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(dimensions, dimensions, generator=generator)

    truth = torch.eye(dimensions) + 0.5 * normal() / math.sqrt(dimensions)
    start = truth + off * truth.norm() * (noise := normal()) / noise.norm()
    u = torch.rand(rows, dimensions, generator=generator, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    x = torch.linalg.solve(truth.double(), (math.pi * u / 2).tan().log().T).T.float()
    model = Components(start)

    def error() -> float:
        return float((model.b.detach() - truth).norm() / truth.norm())

    # Entries of B are of the order of 1/√D.
    return Problem(x, model, None, error, model.log_partition, math.sqrt(2 / dimensions))


class Factors(LatentVariableModel):
    """Probabilistic PCA as a latent-variable model with a Gaussian decoder, and its exact posterior."""

    def __init__(self, weight: Tensor, bias: Tensor, scale: float) -> None:
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        super().__init__(standard_normal(weight.shape[1]), GaussianDecoder(linear, scale=scale, learned="shared"))

    def posterior(self, x: Tensor) -> MultivariateNormal:
        """Return p(z|x) = N(M⁻¹Wᵀ(x − b), σ²M⁻¹), M = WᵀW + σ²I."""
        weight, bias, variance = self._parts()
        m = weight.T @ weight + variance * torch.eye(weight.shape[1])
        mean = torch.linalg.solve(m, weight.T @ (x - bias).unsqueeze(-1)).squeeze(-1)
        return MultivariateNormal(mean, precision_matrix=m / variance, validate_args=False)

    @torch.no_grad()
    def covariance(self) -> Tensor:
        """Return the covariance WWᵀ + σ²I."""
        weight, _, variance = self._parts()
        return weight @ weight.T + variance * torch.eye(len(weight))

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        decoder: Any = self.decoder
        return decoder.network.weight, decoder.network.bias, decoder.scale.square()


def factors(dimensions: int, rows: int, off: float, seed: int) -> Problem:
    """A quarter as many factors as columns, each as strong as to explain a variance of 1 in a column, and σ = 1/2."""
    generator = torch.Generator().manual_seed(seed)
    count = max(1, dimensions // 4)
    weight = torch.randn(dimensions, count, generator=generator) / math.sqrt(count)
    bias = torch.randn(dimensions, generator=generator)
    z, noise = (torch.randn(rows, width, generator=generator) for width in (count, dimensions))
    x = z @ weight.T + bias + 0.5 * noise
    away = torch.randn(dimensions, count, generator=generator)
    model = Factors(weight + off * weight.norm() * away / away.norm(), bias + off, 0.5 * (1 + off))
    target = Factors(weight, bias, 0.5).covariance()

    def error() -> float:
        return float((model.covariance() - target).norm() / target.norm())

    best = float((most_likely_covariance(x, count) - target).norm() / target.norm())
    return Problem(x, model, model.posterior, error, lambda: 0.0, 1.0, best)


def most_likely_covariance(x: Tensor, count: int) -> Tensor:
    """Σ of probabilistic PCA by maximum likelihood: all but the largest eigenvalues are their mean."""
    values, vectors = torch.linalg.eigh(x.T.cov(correction=0))
    kept = values.clone()
    kept[:-count] = values[:-count].mean()
    covariance: Tensor = vectors * kept @ vectors.T
    return covariance


def plane(name: str, rows: int, seed: int) -> Problem:
    """An energy network with a wide Gaussian for its reference, which makes it integrable."""
    generator = torch.Generator().manual_seed(seed)
    x, test = TOYS[name].sample(rows, generator), TOYS[name].sample(10_000, generator)
    truth = float(TOYS[name].log_prob(test).mean())
    torch.manual_seed(seed)
    wide = Independent(Normal(torch.zeros(2), 3 * torch.ones(2)), 1)
    model = EnergyModel(mlp([2, 64, 64, 1], nn.SiLU), reference=wide)
    # The reference has 1.5 % of its mass outside, and cells are a third as wide as the narrowest ring or moon.
    points = torch.linspace(-8, 8, 401)
    grid, area = torch.cartesian_prod(points, points), float(points[1] - points[0]) ** 2

    @torch.no_grad()
    def log_partition() -> float:
        return float(model.log_prob(grid).double().logsumexp(0)) + math.log(area)

    @torch.no_grad()
    def error() -> float:
        return truth - float(model.log_prob(test).mean()) + log_partition()

    return Problem(x, model, None, error, log_partition, 0.5)


@dataclass(frozen=True)
class Task:
    """Settings shared by all noises."""

    rows: int = 1000
    rows_in_the_plane: int = 2000
    batch_size: int = 100
    epochs: int = 20
    lr: float = 2e-2
    noise_samples: float = 4.0
    off: float = 0.3
    centres: int = 500
    flow_epochs: int = 10
    refit_epochs: int = 1
    refit_every: int = 2
    transforms: int = 3
    hidden: tuple[int, ...] = (64, 64)


NOISES = ("gaussian", "kernel density", "flow", "flow, refitted")
DECODED = {"decoded, kernels of codes": "kde", "decoded, Gaussian of codes": "gaussian"}


def make_problem(task: Task, name: str, dimensions: int, seed: int) -> Problem:
    """By name: ``components``, ``factors``, or a density in the plane."""
    if name == "components":
        return components(dimensions, task.rows, task.off, seed)
    if name == "factors":
        return factors(dimensions, task.rows, task.off, seed)
    return plane(name, task.rows_in_the_plane, seed)


def make_noise(name: str, task: Task, x: Tensor, seed: int) -> tuple[Distribution, list[Any]]:
    """Return the initial noise and the callbacks."""
    gaussian = fit_gaussian(x, "full")
    if name == "gaussian":
        return gaussian, []
    if name == "kernel density":
        return KernelDensity.from_data(x[: task.centres], "scott"), []
    if name in DECODED:
        decoded = DecodedNoise(task.centres, codes=DECODED[name])  # type: ignore[arg-type]
        return gaussian, [RefitNoise(decoded, every=task.refit_every)]
    options: dict[str, Any] = {"kind": "NICE", "transforms": task.transforms, "hidden": task.hidden}
    if name == "flow":
        flow = fit_flow(x, epochs=task.flow_epochs, seed=seed, **options)
        return NoiseMixture([flow, fit_gaussian(x, "diagonal")], [0.9, 0.1]), []
    return gaussian, [RefitNoise(FlowRefit(task.refit_epochs, **options), every=task.refit_every)]


class FlowRefit:
    """A flow, fitted first and then trained on from where it was, mixed with a Gaussian that covers all rows."""

    def __init__(self, epochs: int, **options: Any) -> None:
        self.epochs, self.options = epochs, options

    def __call__(self, objective: Any, rows: Tensor, generator: torch.Generator) -> NoiseMixture:
        """Return the flow after some more epochs."""
        parts = objective.noise.components if isinstance(objective.noise, NoiseMixture) else (objective.noise,)
        start = next((part for part in parts if isinstance(part, FlowNoise)), None)
        seed, x = int(torch.randint(2**31 - 1, (), generator=generator)), rows.cpu()
        flow = fit_flow(x, epochs=self.epochs, seed=seed, start=start, **self.options)
        return NoiseMixture([flow, fit_gaussian(x, "diagonal")], [0.9, 0.1])


def cell(task: Task, name: str, dimensions: int, noise_name: str, seed: int) -> dict[str, Any]:
    """The course of one run: the first, the second and every fourth epoch, to five digits."""
    problem = make_problem(task, name, dimensions, seed)
    course: list[dict[str, float]] = []
    began = time.process_time()
    noise, callbacks = make_noise(noise_name, task, problem.x, seed)
    options: dict[str, Any] = {"noise_samples": task.noise_samples, "partition": "profiled"}
    objective: ContrastiveObjective = (
        NCE(problem.model, noise, PowerRule(0), **options)
        if problem.encoder is None
        else FullyVariationalNCE(problem.model, problem.encoder, noise, PowerRule(0), **options)
    )
    looked = 0.0

    def look(run: Any) -> None:
        nonlocal looked
        now = time.process_time()
        epoch = run.epoch + 1
        if epoch <= 2 or epoch % 4 == 0 or epoch == task.epochs:
            log_z = objective.log_partition(5000, generator=torch.Generator().manual_seed(seed))
            point = {
                "steps": run.step,
                "seconds": now - began - looked,
                "parameter_error": problem.error(),
                "log_z_error": float(log_z.value) - problem.log_partition(),
                "log_z_standard_error": float(log_z.error),
                "effective_samples": log_z.effective_samples,
            }
            course.append({key: float(f"{value:.5g}") for key, value in point.items()})
        looked += time.process_time() - now

    training: dict[str, Any] = {
        "epochs": task.epochs,
        "batch_size": task.batch_size,
        "lr": task.lr * problem.lr,
        "seed": seed,
    }
    fit(objective, problem.x, schedule="cosine", callbacks=[*callbacks, look], progress=False, **training)
    numbers: dict[str, Any] = {"problem": name, "dimensions": dimensions, "noise": noise_name, "seed": seed}
    if problem.likelihood_error is not None:
        numbers["likelihood_error"] = float(f"{problem.likelihood_error:.5g}")
    return numbers | {"course": course}


def cases(dimensions: list[int]) -> Iterator[tuple[str, int, str]]:
    """Yield (problem, dimensions, noise) of every run."""
    for name in TOYS:
        yield from ((name, 2, noise) for noise in NOISES)
    for count in dimensions:
        yield from (("components", count, noise) for noise in NOISES)
    for count in dimensions:
        yield from (("factors", count, noise) for noise in (*NOISES, *DECODED))


def main() -> None:
    """Run all problems and noises, and write the file after every run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, default=Path("results/forgetting/adaptive-noise.json"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[2, 8, 16, 32, 64])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task, cells = Task(), []
    small = replace(task, rows=200, epochs=3, flow_epochs=1)
    for name, noise in (("components", NOISES[-1]), ("factors", next(iter(DECODED)))):
        cell(small, name, 2, noise, 0)  # whose seconds are those of starting up
    for seed in range(arguments.seeds):
        for name, dimensions, noise in cases(arguments.dimensions):
            cells.append(cell(task, name, dimensions, noise, seed))
            record = made_by(f"python -m experiments.adaptive_noise --seeds {arguments.seeds}")
            write_json(arguments.json, record | {"settings": asdict(task), "cells": cells})
            last = cells[-1]["course"][-1]
            shown = {key: round(value, 3) for key, value in last.items()}
            print(name, dimensions, noise, seed, shown, flush=True)


if __name__ == "__main__":
    main()
