r"""Does noise that follows the data or the model earn its keep? Fixed and refitted noise where log Z is known.

    python -m experiments.adaptive_noise --json results/forgetting/adaptive-noise.json

The problems of ``adaptive_problems``, trained by the profiled (0, 0) with four noise samples a row. Fixed noise: a
Gaussian of the data; a kernel density of 500 rows; a coupling flow fitted first. Noise that is refitted after every
other epoch, starting from the Gaussian: the same flow, trained on; and for a model with latents what its decoder makes
of codes, drawn from a kernel density or from a Gaussian of the codes of data. After an epoch: steps, seconds of the
processor (fits of noise included), the error of the parameters, or in the plane of the density, and log Z as estimated
from 5,000 noise samples less its truth at the model reached.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fvnce import SNCE, FullyVariationalNCE, PowerRule, fit
from fvnce.noise import KernelDensity, NoiseMixture, fit_gaussian
from fvnce.objectives import ContrastiveObjective
from fvnce.paper.cells import made_by, write_json
from fvnce.training import DecodedNoise, FlowRefit, RefitNoise, fit_flow

from .adaptive_problems import Problem, components, factors, plane
from .toys import TOYS


@dataclass(frozen=True)
class Task:
    """What is the same for all noises."""

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
    """The noise to start from, and callbacks."""
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


def cell(task: Task, name: str, dimensions: int, noise_name: str, seed: int) -> dict[str, Any]:
    """The course of one run: the first, the second and every fourth epoch, to five digits."""
    problem = make_problem(task, name, dimensions, seed)
    course: list[dict[str, float]] = []
    began = time.process_time()
    noise, callbacks = make_noise(noise_name, task, problem.x, seed)
    options: dict[str, Any] = {"noise_samples": task.noise_samples, "partition": "profiled"}
    objective: ContrastiveObjective = (
        SNCE(problem.model, noise, PowerRule(0), **options)
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
    found: dict[str, Any] = {"problem": name, "dimensions": dimensions, "noise": noise_name, "seed": seed}
    if problem.likelihood_error is not None:
        found["likelihood_error"] = float(f"{problem.likelihood_error:.5g}")
    return found | {"course": course}


def cases(dimensions: list[int]) -> Iterator[tuple[str, int, str]]:
    """(problem, dimensions, noise)."""
    for name in TOYS:
        yield from ((name, 2, noise) for noise in NOISES)
    for count in dimensions:
        yield from (("components", count, noise) for noise in NOISES)
    for count in dimensions:
        yield from (("factors", count, noise) for noise in (*NOISES, *DECODED))


def main() -> None:
    """All problems and noises; the file is written after every run."""
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
