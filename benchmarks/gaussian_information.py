"""Mutual information of Gaussians in up to 320 dimensions, plain and warped (after Rhodes et al. 2020).

    OMP_NUM_THREADS=1 python benchmarks/gaussian_information.py --out results/bench/gaussian_information.json

Of D columns one half is x and the other y; pairs of columns have a correlation such that I(x; y) = D/4 nats. Warped,
every column is sign(z)·|z|^1.5, which leaves I as it is and makes no Gaussian fit. ``mutual_information`` has the rows;
``telescope`` has them and the density of independent columns, and its estimate is the mean log-ratio of as many fresh
rows. Both have default settings.

Takes about 20 minutes of one core.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal, TransformedDistribution
from torch.distributions.constraints import real
from torch.distributions.transforms import Transform

from fvnce import telescope
from fvnce.paper.cells import made_by, write_json
from fvnce.ratio import mutual_information

CORRELATION = math.sqrt(1 - math.exp(-1))
POWER = 1.5


class Warp(Transform):
    """Map every column z to sign(z)·|z|^1.5."""

    domain = codomain = real
    bijective = True
    sign = 1

    def _call(self, z: Tensor) -> Tensor:
        return z.sign() * z.abs() ** POWER

    def _inverse(self, x: Tensor) -> Tensor:
        return x.sign() * x.abs() ** (1 / POWER)

    def log_abs_det_jacobian(self, z: Tensor, x: Tensor) -> Tensor:
        """Return log POWER·|z|^(POWER − 1)."""
        return math.log(POWER) + (POWER - 1) * z.abs().clamp(min=1e-30).log()


def rows_of(count: int, columns: int, seed: int) -> Tensor:
    """Return x and y side by side."""
    generator = torch.Generator().manual_seed(seed)
    x, e = torch.randn(2, count, columns // 2, generator=generator)
    return torch.cat([x, CORRELATION * x + math.sqrt(1 - CORRELATION**2) * e], 1)


def independent(columns: int, warped: bool) -> Distribution:
    """Return the density of independent columns."""
    plain = Normal(torch.zeros(columns), torch.ones(columns))
    return Independent(TransformedDistribution(plain, [Warp()]) if warped else plain, 1)


def by_copula(rows: Tensor, warped: bool) -> dict[str, Any]:
    """Return the estimate of ``mutual_information`` and its error."""
    x, y = (Warp()(rows) if warped else rows).chunk(2, 1)
    found = mutual_information(x, y)
    error = found.error if math.isfinite(found.error) else None
    return {"value": found.value, "error": error, "model": found.model, "reason": found.reason}


def by_telescope(rows: Tensor, warped: bool) -> dict[str, Any]:
    """Return the mean log-ratio of fresh rows, its standard error, and what ``telescope`` says of itself."""
    fresh = rows_of(len(rows), rows.shape[1], 1_000_003)
    rows, fresh = (Warp()(each) if warped else each for each in (rows, fresh))
    ratio = telescope(rows, independent(rows.shape[1], warped), progress=False)
    with torch.no_grad():
        log_ratio = ratio.model.log_ratio(fresh)
    error = ratio.error if math.isfinite(ratio.error) else None
    scatter = float(log_ratio.std()) / math.sqrt(len(fresh))
    return {"value": float(log_ratio.mean()), "standard_error": scatter, "error": error, "advice": list(ratio.advice)}


def main() -> None:
    """Measure, print and write after each estimate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--columns", type=int, nargs="*", default=[40, 80, 160, 320])
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = made_by(" ".join(["python", *sys.argv]))
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    records: list[dict[str, Any]] = []
    for columns in options.columns:
        for warped in (False, True):
            for seed in range(options.seeds):
                rows = rows_of(options.rows, columns, seed)
                for name, estimate in (("mutual_information", by_copula), ("telescope", by_telescope)):
                    at = time.process_time()
                    case = {"columns": columns, "warped": warped, "seed": seed, "truth": columns / 4, "by": name}
                    records.append({**case, **estimate(rows, warped), "cpu_seconds": time.process_time() - at})
                    print(records[-1], flush=True)
                    if options.out is not None:
                        took = {"cpu_seconds": time.process_time(), "settings": settings}
                        write_json(options.out, {**start, **took, "records": records})


if __name__ == "__main__":
    main()
