r"""Does noise that follows the data earn its keep? Fixed and refitted noise on a density whose log Z is known.

    python -m experiments.adaptive_noise --json results/forgetting/adaptive-noise.json

The model is that of independent components, p⁰_B(x) = Π_k sech(b_k·x), in D dimensions, with

    log Z(B) = D log π − log |det B|

in closed form. Data are drawn from it at a B* with correlated columns; training starts from a B that is off by 30 % and
uses the profiled (0, 0) with four noise samples a row. Noise: a Gaussian of the data; a kernel density of 500 rows; a
coupling flow fitted first; and the same flow refitted after every other epoch, starting from the Gaussian. After an
epoch: steps, seconds of the processor (fits of noise included), |B − B*|/|B*|, and log Z as estimated from noise less
its truth at the B reached.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fvnce import SNCE, PowerRule, fit
from fvnce.noise import KernelDensity, NoiseMixture, fit_gaussian
from fvnce.paper.cells import made_by, write_json
from fvnce.training import FlowRefit, RefitNoise, fit_flow


@dataclass(frozen=True)
class Task:
    """What is the same for all noises."""

    rows: int = 1000
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


class Components(nn.Module):
    """log p⁰(x) = −Σ_k log cosh(b_k·x)."""

    def __init__(self, b: Tensor) -> None:
        super().__init__()
        self.b = nn.Parameter(b.clone())

    def log_prob(self, x: Tensor) -> Tensor:
        """The unnormalised log-density, shape (B,)."""
        y = (x @ self.b.T).abs()
        return -(y + nn.functional.softplus(-2 * y) - math.log(2)).sum(1)

    def log_partition(self) -> float:
        """log Z in closed form."""
        return len(self.b) * math.log(math.pi) - float(torch.linalg.slogdet(self.b.detach())[1])


def problem(task: Task, dimensions: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """B*, where training starts, and data: the quantile of sech(y)/π is log tan(πu/2)."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(dimensions, dimensions, generator=generator)

    truth = torch.eye(dimensions) + 0.5 * normal() / math.sqrt(dimensions)
    start = truth + task.off * truth.norm() * (noise := normal()) / noise.norm()
    u = torch.rand(task.rows, dimensions, generator=generator, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    components = (math.pi * u / 2).tan().log()
    return truth, start, torch.linalg.solve(truth.double(), components.T).T.float()


def make_noise(name: str, task: Task, x: Tensor, seed: int) -> tuple[Distribution, list[Any]]:
    """The noise to start from, and callbacks."""
    gaussian = fit_gaussian(x, "full")
    if name == "gaussian":
        return gaussian, []
    if name == "kernel density":
        return KernelDensity.from_data(x[: task.centres], "scott"), []
    options: dict[str, Any] = {"kind": "NICE", "transforms": task.transforms, "hidden": task.hidden}
    if name == "flow":
        flow = fit_flow(x, epochs=task.flow_epochs, seed=seed, **options)
        return NoiseMixture([flow, fit_gaussian(x, "diagonal")], [0.9, 0.1]), []
    return gaussian, [RefitNoise(FlowRefit(task.refit_epochs, **options), every=task.refit_every)]


NOISES = ("gaussian", "kernel density", "flow", "flow, refitted")


def cell(task: Task, dimensions: int, name: str, seed: int) -> dict[str, Any]:
    """The course of one run."""
    truth, start, x = problem(task, dimensions, seed)
    course: list[dict[str, float]] = []
    began = time.process_time()
    noise, callbacks = make_noise(name, task, x, seed)
    model = Components(start)
    objective = SNCE(model, noise, PowerRule(0), noise_samples=task.noise_samples, partition="profiled")
    looked = 0.0

    def look(run: Any) -> None:
        nonlocal looked
        now = time.process_time()
        log_z = objective.log_partition(5000, generator=torch.Generator().manual_seed(seed))
        course.append(
            {
                "steps": run.step,
                "seconds": now - began - looked,
                "parameter_error": float((model.b.detach() - truth).norm() / truth.norm()),
                "log_z_error": float(log_z.value) - model.log_partition(),
                "log_z_standard_error": float(log_z.error),
                "effective_samples": log_z.effective_samples,
            }
        )
        looked += time.process_time() - now

    # Entries of B are of the order of 1/√D.
    lr = task.lr * math.sqrt(2 / dimensions)
    options: dict[str, Any] = {"epochs": task.epochs, "batch_size": task.batch_size, "lr": lr, "seed": seed}
    fit(objective, x, schedule="cosine", callbacks=[*callbacks, look], progress=False, **options)
    return {"dimensions": dimensions, "noise": name, "seed": seed, "course": thinned(course)}


def thinned(course: list[dict[str, float]]) -> list[dict[str, float]]:
    """The first, the second and every fourth epoch, to five digits."""
    kept = [point for epoch, point in enumerate(course, 1) if epoch <= 2 or epoch % 4 == 0 or epoch == len(course)]
    return [{name: float(f"{value:.5g}") for name, value in point.items()} for point in kept]


def main() -> None:
    """All dimensions and noises; the file is written after every run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, default=Path("results/forgetting/adaptive-noise.json"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[2, 8, 16, 32, 64])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task, cells = Task(), []
    cell(replace(task, rows=200, epochs=2, flow_epochs=1), 2, NOISES[-1], 0)  # whose seconds are those of starting up
    for seed in range(arguments.seeds):
        for dimensions in arguments.dimensions:
            for name in NOISES:
                cells.append(cell(task, dimensions, name, seed))
                record = made_by(f"python -m experiments.adaptive_noise --seeds {arguments.seeds}")
                write_json(arguments.json, record | {"settings": asdict(task), "cells": cells})
                last = cells[-1]["course"][-1]
                print(dimensions, name, seed, {key: round(value, 3) for key, value in last.items()}, flush=True)


if __name__ == "__main__":
    main()
