"""Steps that descent needs where data and noise lie far apart: plain or normalized, logarithmic or exponential rule.

Run with

    python benchmarks/flat_landscape.py --out results/bench/flat_landscape.json

The example of Liu et al. (2021): data N(R, 1), noise N(0, 1), the model log φ = bx − x²/2 with its log Z unknown,
started at the noise. Gradients are those of the population, by quadrature, so that nothing but the landscape is
measured. Every method has its best rate of a grid, powers of 2; normalized steps shrink linearly to 0 over a length
that doubles until it suffices, and must end near. Reached is an error of at most 0.1 in (b, log Z), from R and R²/2.

Takes about 2 minutes of one core.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fvnce import Logarithmic
from fvnce.paper.cells import made_by, write_json
from fvnce.scoring import Exponential, ScoringRule

Array = NDArray[np.float64]

RULES: dict[str, ScoringRule] = {"NCE": Logarithmic(), "eNCE": Exponential(clip=None)}
NEAR = 0.1


class Landscape:
    """Gradient of the population objective for many points (b, c) at once, with c = log Z without its constant."""

    def __init__(self, distance: float, rule: ScoringRule) -> None:
        nodes, weights = np.polynomial.legendre.leggauss(400)
        low, high = -8.0, distance + 8.0
        self.x = (high - low) / 2 * nodes + (high + low) / 2
        cell = (high - low) / 2 * weights / math.sqrt(2 * math.pi)
        self.data, self.noise = (np.exp(-((self.x - mean) ** 2) / 2) * cell for mean in (distance, 0.0))
        self.rule = rule
        self.truth = np.array([distance, distance**2 / 2])

    def gradient(self, at: Array) -> Array:
        """Return ∇(−J), shape (m, 2), at points of shape (m, 2); infinite where it overflows."""
        delta = at[:, :1] * self.x - at[:, 1:]
        with np.errstate(over="ignore", invalid="ignore"):
            slope = np.exp(self.rule.log_slope(torch.from_numpy(delta))[0].numpy())
            pull = slope * self.data - np.exp(delta) * slope * self.noise
        return -np.stack([(pull * self.x).sum(1), -pull.sum(1)], 1)

    def hessian(self) -> Array:
        """Return the Hessian at the truth, E_d[φ g gᵀ]."""
        delta = self.truth[0] * self.x - self.truth[1]
        weight = np.exp(self.rule.log_slope(torch.from_numpy(delta))[0].numpy()) * self.data
        g = np.stack([self.x, -np.ones_like(self.x)], 1)
        return (g.T * weight) @ g


def plain(landscape: Landscape, most: int) -> int | None:
    """Return the number of steps with the best constant rate of a grid; None if none converges."""
    rates = 2.0 ** np.arange(-30, 16)
    at = np.zeros((len(rates), 2))
    for step in range(1, most + 1):
        at = at - rates[:, None] * landscape.gradient(at)
        alive = np.isfinite(at).all(1) & (np.abs(at) < 1e6).all(1)
        at, rates = at[alive], rates[alive]
        if not len(at):
            return None
        if (np.linalg.norm(at - landscape.truth, axis=1) <= NEAR).any():
            return step
    return None


def normalised(landscape: Landscape, most: int) -> int | None:
    """Return the number of normalized steps, which shrink linearly to 0; the total doubles until one converges."""
    total = 8
    while total <= most:
        lengths = 2.0 ** np.arange(-12, 8)
        at = np.zeros((len(lengths), 2))
        for step in range(total):
            gradient = landscape.gradient(at)
            norm = np.linalg.norm(gradient, axis=1, keepdims=True)
            good = np.isfinite(norm) & (norm > 0)
            unit = np.where(good, gradient, 0.0) / np.where(good, norm, 1.0)
            at = at - (lengths * (1 - step / total))[:, None] * unit
        if (np.linalg.norm(at - landscape.truth, axis=1) <= NEAR).any():
            return total
        total *= 2
    return None


def main() -> None:
    """Measure all methods, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--distances", default="1,2,3,4,5,6,7")
    parser.add_argument("--most", type=int, default=30_000, help="steps after which a method has not arrived")
    parser.add_argument("--quick", action="store_true", help="two distances, few steps")
    options = parser.parse_args()
    distances = [1.0, 3.0] if options.quick else [float(value) for value in options.distances.split(",")]
    most = 200 if options.quick else options.most
    start = time.process_time()
    rows = []
    for distance in distances:
        row: dict[str, Any] = {"distance": distance, "steps": {}, "condition": {}}
        for name, rule in RULES.items():
            landscape = Landscape(distance, rule)
            values = np.linalg.eigvalsh(landscape.hessian())
            row["condition"][name] = float(values[-1] / values[0])
            row["steps"][f"{name}, plain"] = plain(landscape, most)
            row["steps"][f"{name}, normalised"] = normalised(landscape, most)
        print(row, flush=True)
        rows.append(row)
    record = {
        **made_by(" ".join(["python", *sys.argv])),
        "most": most,
        "near": NEAR,
        "seed": None,
        "cpu_seconds": time.process_time() - start,
        "rows": rows,
    }
    if options.out is not None:
        write_json(options.out, record)


if __name__ == "__main__":
    main()
