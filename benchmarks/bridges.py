"""Ratios of distant distributions: one softmax over K + 1 levels, K binary ratios, and a Gaussian as intermediate.

Run with

    python benchmarks/bridges.py --out results/bench/bridges.json

The log-ratio of data and noise is known. The error is the root mean square of log r̂ − log r over 5,000 new rows of the
data, and of the noise, in nats, mean over seeds. "Softmax" and "binary" have the same levels between data
and noise, the same rows and networks of the same width; "reference" is ``fvnce.telescope`` with as many bridges, which
goes by way of a Gaussian with the data's mean and covariance; "one step" is a softmax of two.

Takes about 4 minutes of one core.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MixtureSameFamily, Normal

from fvnce import PowerRule, telescope
from fvnce.paper.cells import made_by, write_json
from fvnce.ratio import multinomial_bridges
from fvnce.ratio.chain import BridgeTrainer, equal_steps

ROWS, FRESH, LEVELS = 1000, 5000, 6
TRAINING = {"epochs": 15, "batch_size": 256, "lr": 5e-3}
COPIES = 2


def normal(width: int, mean: float = 0.0, scale: float = 1.0) -> Distribution:
    """Return an isotropic Gaussian distribution."""
    return Independent(Normal(torch.full((width,), mean), torch.full((width,), scale)), 1)


def modes() -> Distribution:
    """Return four narrow modes in the plane."""
    centres = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    parts = Independent(Normal(centres, 0.3 * torch.ones_like(centres)), 1)
    return MixtureSameFamily(torch.distributions.Categorical(torch.ones(4)), parts)


#: The data; noise is N(0, I).
PROBLEMS: dict[str, Callable[[], Distribution]] = {
    "shifted by 2, 2-D": lambda: normal(2, math.sqrt(2.0)),
    "shifted by 6, 2-D": lambda: normal(2, 6 / math.sqrt(2)),
    "narrow, σ = 0.1, 2-D": lambda: normal(2, 0.0, 0.1),
    "narrow, σ = 0.3, 8-D": lambda: normal(8, 0.0, 0.3),
    "four modes, 2-D": modes,
}


def one_step(x: Tensor, noise: Distribution, seed: int) -> Callable[[Tensor], Tensor]:
    """Fit a classifier of data and noise."""
    return multinomial_bridges(x, noise, levels=1, copies=COPIES, seed=seed, **TRAINING).model.log_ratio  # type: ignore[arg-type]


def softmax(x: Tensor, noise: Distribution, seed: int) -> Callable[[Tensor], Tensor]:
    """Fit multinomial bridges, one softmax over all levels."""
    return multinomial_bridges(x, noise, levels=LEVELS, copies=COPIES, seed=seed, **TRAINING).model.log_ratio  # type: ignore[arg-type]


def binary(x: Tensor, noise: Distribution, seed: int) -> Callable[[Tensor], Tensor]:
    """Fit a binary ratio between each two neighbors of the same levels."""
    builder = BridgeTrainer(None, PowerRule(0), COPIES, seed, dict(TRAINING))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    cut = len(x) // 4
    bridges = [builder.bridge(x[order[cut:]], x[order[:cut]], noise, pair) for pair in pairwise(equal_steps(LEVELS))]
    return lambda rows: torch.stack([bridge.log_ratio(rows) for bridge in bridges]).sum(0)


def reference(x: Tensor, noise: Distribution, seed: int) -> Callable[[Tensor], Tensor]:
    """Fit ``telescope`` by way of the data's Gaussian, in two folds."""
    return telescope(
        x,
        noise,
        bridges=LEVELS,
        copies=COPIES,
        folds=2,
        seed=seed,
        **TRAINING,  # type: ignore[arg-type]
    ).model.log_ratio


WAYS = {"one step": one_step, "softmax": softmax, "binary": binary, "reference": reference}


def measured(problem: str, way: str, seeds: int) -> dict[str, Any]:
    """Return the errors of one method on one problem."""
    noise = normal(PROBLEMS[problem]().event_shape[0])
    data = PROBLEMS[problem]()
    numbers: dict[str, list[float]] = {"on data": [], "on noise": [], "seconds": []}
    for seed in range(seeds):
        torch.manual_seed(seed)
        x, fresh = data.sample((ROWS,)), {"on data": data.sample((FRESH,)), "on noise": noise.sample((FRESH,))}
        begun = time.process_time()
        log_ratio = WAYS[way](x, noise, seed)
        numbers["seconds"].append(time.process_time() - begun)
        with torch.no_grad():
            for name, rows in fresh.items():
                error = log_ratio(rows) - data.log_prob(rows) + noise.log_prob(rows)
                numbers[name].append(float(error.square().mean().sqrt()))
    return {
        name: {
            "mean": statistics.fmean(values),
            "error": statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None,
        }
        for name, values in numbers.items()
    }


def main() -> None:
    """Measure all methods, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one problem, one epoch")
    options = parser.parse_args()
    seeds = 1 if options.quick else options.seeds
    if options.quick:
        TRAINING["epochs"] = 1
    one_step(torch.randn(20, 2), normal(2), 0)  # warm-up: the first training imports modules
    begun = time.process_time()
    record: dict[str, Any] = {
        **made_by(" ".join(["python", *sys.argv])),
        "rows": ROWS,
        "levels": LEVELS,
        "copies": COPIES,
        "training": TRAINING,
        "seeds": list(range(seeds)),
        "problems": {},
    }
    for problem in list(PROBLEMS)[: 1 if options.quick else None]:
        record["problems"][problem] = {}
        for way in WAYS:
            numbers = record["problems"][problem][way] = measured(problem, way, seeds)
            means = "  ".join(f"{name} {each['mean']:.2f}" for name, each in numbers.items())
            print(f"{problem:24} {way:10} {means}", flush=True)
        record["cpu_seconds"] = time.process_time() - begun
        if options.out is not None:
            write_json(options.out, record)


if __name__ == "__main__":
    main()
