"""Annealed NCE on Gaussians with known log Z: the error of log Z against the distance of noise and model.

Run with

    python benchmarks/annealing.py --out results/bench/annealing.json

Noise N(0, 1), model N(R, 1) without its constant (Chehab et al. 2023). The total number of draws N = 20,000 is used for
one step of NCE, or for the 21 levels of a path: the geometric one, N(tR, 1), or the arithmetic one, with draws of
cos²(πt/2) p_n + sin²(πt/2) p at the true Z (an oracle). Draws are exact, so only the path is measured. As users rarely
have exact draws, the last column has the default settings: 1,000 weighted Langevin chains on the geometric path of 10
levels, hence N = 11,000. The table shows N times the mean squared error of log Z over repetitions (a quarter of them
for chains); for a continuous path, theory gives R² (geometric) and at most π² (arithmetic).

Takes about 2 minutes of one core.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from fvnce.paper.cells import made_by, write_json
from fvnce.sampling import annealed_nce

BUDGET, LEVELS = 20_000, 20
#: Draws of the levels with default settings, and the fraction of repetitions used for chains.
DEFAULT_BUDGET, CHAIN_SHARE = 11_000, 4
LOG_Z = 0.5 * math.log(2 * math.pi)


class Bell(nn.Module):
    """φ = e^(−(x − R)²/2)."""

    def __init__(self, distance: float) -> None:
        super().__init__()
        self.distance = distance

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log φ, the unnormalized log-density."""
        return -((x - self.distance) ** 2).sum(-1) / 2


def geometric(distance: float) -> Callable[[float, int], Tensor]:
    """Return a sampler of the geometric path, N(tR, 1)."""
    return lambda t, n: t * distance + torch.randn(n, 1)


def arithmetic(distance: float) -> Callable[[float, int], Tensor]:
    """Return a sampler of the arithmetic path, a mixture."""
    return lambda t, n: torch.randn(n, 1) + distance * (torch.rand(n, 1) < math.sin(math.pi / 2 * t) ** 2)


def measured(distance: float, repetitions: int) -> dict[str, Any]:
    """Return N·MSE of each path with its standard error."""
    noise = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    ways: dict[str, dict[str, Any]] = {
        "one step": {"levels": 1, "draws": geometric(distance)},
        "geometric": {"levels": LEVELS, "draws": geometric(distance)},
        "arithmetic, oracle": {
            "levels": LEVELS,
            "path": "arithmetic",
            "draws": arithmetic(distance),
            "pilot": LOG_Z,
        },
        "geometric, default chains": {},
    }
    numbers: dict[str, Any] = {"distance": distance}
    for number, (name, way) in enumerate(ways.items()):
        torch.manual_seed(100 * number)
        budget, times = (BUDGET, repetitions) if way else (DEFAULT_BUDGET, max(2, repetitions // CHAIN_SHARE))
        settings = {"samples": BUDGET // (way["levels"] + 1), **way} if way else {}
        estimates = [annealed_nce(Bell(distance), noise, **settings) for _ in range(times)]
        squares = budget * (torch.tensor([float(each.value) for each in estimates]) - LOG_Z).square()
        numbers[name] = {
            "mse": float(squares.mean()),
            "error": float(squares.std() / math.sqrt(times)),
            "predicted": budget * float(torch.tensor([float(each.error) for each in estimates]).square().mean()),
            "trusted": sum(each.trusted for each in estimates) / times,
        }
    return numbers


def main() -> None:
    """Measure all paths, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--distances", default="1,2,3,4,5,6,8")
    parser.add_argument("--repetitions", type=int, default=80)
    parser.add_argument("--quick", action="store_true", help="two distances, few repetitions")
    options = parser.parse_args()
    distances = [1.0, 4.0] if options.quick else [float(value) for value in options.distances.split(",")]
    repetitions = 5 if options.quick else options.repetitions
    torch.set_default_dtype(torch.float64)
    begun = time.process_time()
    rows = []
    for distance in distances:
        rows.append(measured(distance, repetitions))
        print(rows[-1], flush=True)
    torch.set_default_dtype(torch.float32)
    record = {
        **made_by(" ".join(["python", *sys.argv])),
        "budget": BUDGET,
        "levels": LEVELS,
        "repetitions": repetitions,
        "default_budget": DEFAULT_BUDGET,
        "chain_repetitions": max(2, repetitions // CHAIN_SHARE),
        "seed": 0,
        "cpu_seconds": time.process_time() - begun,
        "rows": rows,
    }
    if options.out is not None:
        write_json(options.out, record)


if __name__ == "__main__":
    main()
