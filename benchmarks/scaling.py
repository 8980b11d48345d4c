"""Scaling of the cost of training, measured and fitted by a cost model.

Run on an idle machine with

    python benchmarks/scaling.py --out results/bench/scaling.json

Measured: the seconds of an epoch against the number of rows n, and the seconds of a step against the width d, the noise
ratio ν, the latent draws K, the number of kernel centers N and the number of processes. Fitted, by least squares on
relative errors, with b rows a batch, P parameters and F = 6 P b (1 + ν) K floating-point operations a step:

    step      = overhead + F / speed + P / updates
    table row = N d · pair          epoch = ⌈n / (W b)⌉ (step + W > 1: P · exchange + latency)

Takes about a minute on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from fvnce import KernelDensity, PowerRule
from fvnce.models import GaussianDecoder, GaussianEncoder, LatentVariableModel, mlp
from fvnce.noise import log_prob_of_rows
from fvnce.objectives import FullyVariationalNCE
from fvnce.paper.cells import made_by, write_json
from fvnce.paper.setting import standard_normal
from fvnce.training import FitOptions, fit

BATCH, HIDDEN, CODE = 128, 128, 16


def objective(width: int, ratio: float, draws: int) -> FullyVariationalNCE:
    """Make a small model of rows of this width."""
    torch.manual_seed(0)
    model = LatentVariableModel(standard_normal(CODE), GaussianDecoder(mlp([CODE, HIDDEN, width])))
    encoder = GaussianEncoder(mlp([width, HIDDEN, 2 * CODE]))
    return FullyVariationalNCE(
        model,
        encoder,
        standard_normal(width),
        PowerRule(0),
        noise_ratio=ratio,
        latent_samples=draws,
        partition="profiled",
    )


def step_seconds(width: int, ratio: float = 1.0, draws: int = 1, rows: int = 2048, **options: Any) -> dict[str, float]:
    """Return the seconds of a step, best of four epochs, and the inputs of the cost model."""
    chosen = objective(width, ratio, draws)
    how = FitOptions(noise_pool=4096, **options)
    history = fit(chosen, torch.randn(rows, width), epochs=4, batch_size=BATCH, lr=0.0, seed=0, options=how)
    parameters = sum(p.numel() for p in chosen.parameters())
    return {
        "width": width,
        "noise_ratio": ratio,
        "latent_samples": draws,
        "rows": rows,
        "parameters": parameters,
        "flops": 6.0 * parameters * BATCH * (1 + ratio) * draws,
        "seconds": BATCH / max(history["samples_per_second"]),
    }


def best_of(rounds: int, sizes: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the best of several rounds through all sizes, so that load affects all sizes equally."""
    measured = [[step_seconds(**size) for size in sizes] for _ in range(rounds)]
    return [min(points, key=lambda point: point["seconds"]) for points in zip(*measured, strict=True)]


def fitted(points: list[dict[str, float]]) -> dict[str, Any]:
    """Fit the three constants of a step; return them with the error of the model."""
    design = np.array([[1.0, p["flops"], p["parameters"]] for p in points])
    seconds = np.array([p["seconds"] for p in points])
    scale = design.max(0)
    constants, _ = nnls(design / scale / seconds[:, None], np.ones(len(seconds)))
    constants = constants / scale
    errors = design @ constants / seconds - 1
    return {
        "overhead_seconds": float(constants[0]),
        "flops_per_second": float(1 / constants[1]) if constants[1] else math.inf,
        "updates_per_second": float(1 / constants[2]) if constants[2] else math.inf,
        "largest_relative_error": float(np.abs(errors).max()),
    }


def table_seconds(centres: int, width: int) -> dict[str, float]:
    """Return the seconds of log p_n of a row, best of three."""
    noise = KernelDensity(torch.randn(centres, width), 1.0)
    x = torch.randn(1024, width)
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        log_prob_of_rows(noise, x)
        best = min(best, time.perf_counter() - start)
    return {"centres": centres, "width": width, "seconds_per_row": best / len(x)}


def two_processes(width: int) -> list[dict[str, float]]:
    """Return the seconds of a step with one process and with two, of one thread each."""
    steps = []
    for count in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder, "result.json")
            command = [sys.executable, __file__, "--child", str(result), str(count), str(width)]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            steps.append({"processes": count, **json.loads(result.read_text())})
    return steps


def child(path: str, count: int, width: int) -> None:
    """Train in one of several processes."""
    torch.set_num_threads(1)
    how: dict[str, Any] = {"devices": count, "strategy": "ddp"} if count > 1 else {}
    measured = step_seconds(width, **how)
    measured["seconds"] *= count  # samples per second are those of all processes
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        Path(path).write_text(json.dumps(measured))


def main() -> None:
    """Measure, fit the cost model, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="times that every size is measured; the best counts")
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]), int(options.child[2]))
        return
    begun = time.perf_counter()
    sizes: list[dict[str, Any]] = [
        *({"width": width} for width in (64, 256, 1024)),
        *({"width": 256, "ratio": ratio} for ratio in (0.5, 2.0, 4.0)),
        *({"width": 256, "draws": draws} for draws in (2, 4, 8)),
    ]
    lengths = [{"width": 64, "rows": rows} for rows in (1024, 4096, 16384)]
    points = best_of(options.rounds, sizes + lengths)
    steps, rows = points[: len(sizes)], points[len(sizes) :]
    model = fitted(steps)
    table = [table_seconds(centres, width) for centres in (1000, 10_000, 40_000) for width in (64, 784)]
    pair = min(point["seconds_per_row"] / point["centres"] / point["width"] for point in table)
    processes = two_processes(784)
    growth = rows[-1]["seconds"] / rows[0]["seconds"]
    print(f"{'d':>5} {'nu':>5} {'K':>3} {'rows':>6} {'ms a step':>10}")
    for p in points:
        size = f"{p['width']:5} {p['noise_ratio']:5} {p['latent_samples']:3} {p['rows']:6}"
        print(f"{size} {1e3 * p['seconds']:10.3f}")
    print("fitted:", json.dumps(model))
    print(f"16 times the rows: {growth:.2f} times the seconds of a step; an epoch is linear in n if that is 1")
    print(f"log p_n: {pair * 1e12:.2f} ps a centre and dimension at best")
    print("processes:", [(p["processes"], round(1e3 * p["seconds"], 2)) for p in processes], "ms a step")
    if options.out is not None:
        record = {
            **made_by(" ".join(["python", *sys.argv])),
            "seed": 0,
            "duration": time.perf_counter() - begun,
            "steps": points,
            "rounds": options.rounds,
            "model": model,
            "seconds_of_a_step_at_16_times_the_rows": growth,
            "table": table,
            "seconds_per_centre_and_dimension": pair,
            "processes": processes,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.processor() or platform.machine(),
        }
        write_json(options.out, record)


if __name__ == "__main__":
    main()
