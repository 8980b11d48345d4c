"""Density ratios, compared with the package ``densratio``: error against a known ratio, and processor seconds.

Run with

    PYTHONPATH=<folder with densratio> python benchmarks/density_ratio.py --out results/bench/density_ratio.json

Numerator and denominator are Gaussians, so the ratio is known. The error is E_den[(r̂ − r)²]/E_den[r²] on fresh
samples, mean and median over seeds. Each method chooses bandwidth and penalty by cross-validation from its own grid,
with 100 kernels; the least-squares methods also run on one common grid. densratio is included if it is installed.

Takes about 3 minutes of one core for 10 seeds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from fvnce import density_ratio
from fvnce.paper.cells import made_by, write_json

GRID = {"bandwidth": [0.1, 0.3, 0.6, 1.0, 2.0, 4.0], "penalty": [1e-3, 1e-2, 1e-1, 1.0]}

#: dimensions, mean and scale of the denominator; the numerator is N(0, I).
PROBLEMS = {"1-D": (1, 0.5, 1.5), "2-D": (2, 0.5, 1.5), "5-D": (5, 0.3, 1.3)}

NAMES = {1.0: " (LSIF)", 0.0: " (KL)"}

Ratio = Callable[[Tensor], Tensor]


def normal(d: int, mean: float, scale: float) -> Independent[Normal]:
    """Return an isotropic Gaussian in float64."""
    ones = torch.ones(d, dtype=torch.float64)
    return Independent(Normal(mean * ones, scale * ones), 1)


def ours(alpha: float, **grid: Any) -> Callable[[Tensor, Tensor, int], Ratio]:
    """Return a fit by ``fvnce.density_ratio``."""
    return lambda num, den, seed: density_ratio(num, den, alpha=alpha, seed=seed, **grid)


def peer(method: str, **grid: Any) -> Callable[[Tensor, Tensor, int], Ratio]:
    """Return a fit by the package ``densratio``."""

    def fitted(num: Tensor, den: Tensor, seed: int) -> Ratio:
        from densratio import densratio

        np.random.seed(seed)  # noqa: NPY002  the package draws its centres from the global state
        estimated = densratio(num.numpy(), den.numpy(), method=method, verbose=False, **grid)
        return lambda x: torch.as_tensor(estimated.compute_density_ratio(x.numpy()))

    return fitted


def measured(make: Callable[[Tensor, Tensor, int], Ratio], problem: str, rows: int, seeds: int) -> dict[str, Any]:
    """Return the error of one method on one problem."""
    d, mean, scale = PROBLEMS[problem]
    p, q = normal(d, 0.0, 1.0), normal(d, mean, scale)
    errors, seconds = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        num, den, x = p.sample((rows,)), q.sample((rows,)), q.sample((20_000,))
        start = time.process_time()  # does not depend on the load of the machine
        ratio = make(num, den, seed)
        seconds.append(time.process_time() - start)
        true = (p.log_prob(x) - q.log_prob(x)).exp()
        errors.append(float((ratio(x) - true).square().mean() / true.square().mean()))
    return {
        "error": statistics.fmean(errors),
        "error_of_mean": statistics.stdev(errors) / len(errors) ** 0.5 if len(errors) > 1 else None,
        "median_error": statistics.median(errors),
        "errors": errors,
        "seconds": statistics.median(seconds),
    }


def main() -> None:
    """Measure all methods, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="what is there for the same rows and seeds is not measured again")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--alphas", default="1,0.5,0", help="rules of ours; below 1 each fit takes seconds")
    options = parser.parse_args()
    installed = importlib.util.find_spec("densratio") is not None
    contenders = {}
    for alpha in sorted(map(float, options.alphas.split(",")), reverse=True):
        contenders[f"fvnce, α = {alpha:g}{NAMES.get(alpha, '')}"] = ours(alpha)
        if alpha == 1:
            contenders["fvnce, α = 1, common grid"] = ours(alpha, **GRID)
            if installed:
                contenders |= {
                    "densratio uLSIF": peer("uLSIF"),
                    "densratio uLSIF, common grid": peer("uLSIF", sigma=GRID["bandwidth"], lambda_=GRID["penalty"]),
                    "densratio KLIEP": peer("KLIEP"),
                }
    content: dict[str, Any] = {
        **made_by(" ".join(["python", *sys.argv])),
        "peer": f"densratio {importlib.metadata.version('densratio')}" if installed else None,
        "rows": options.rows,
        "seeds": options.seeds,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "problems": {problem: {} for problem in PROBLEMS},
    }
    if options.out is not None and options.out.exists():
        earlier = json.loads(options.out.read_text())
        if (earlier["rows"], earlier["seeds"]) == (options.rows, options.seeds):
            content["problems"] = earlier["problems"]
    print("N(0, I) over N(m, s² I): " + "; ".join(f"{name}: m, s = {m}, {s}" for name, (_, m, s) in PROBLEMS.items()))
    print(f"{'method':36} {'relative squared error':>24} {'median':>8} {'seconds':>9}")
    for name, make in contenders.items():
        for problem, methods in content["problems"].items():
            if name not in methods:
                methods[name] = measured(make, problem, options.rows, options.seeds)
            row = methods[name]
            print(
                f"{problem}: {name:31} {row['error']:15.4f} ± {row['error_of_mean'] or 0:.4f} "
                f"{row['median_error']:8.4f} {row['seconds']:9.2f}"
            )
            content["cpu_seconds"] = time.process_time()
            if options.out is not None:
                write_json(options.out, content)


if __name__ == "__main__":
    main()
