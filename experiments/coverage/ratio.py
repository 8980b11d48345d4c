"""How often the error of ``telescope`` holds, and whether a ratio that learned nothing says so.

Run with

    python -m experiments.coverage.ratio

Data and noise are known, so that the log-ratio is. Each data set is 1,000 rows of p; the error of the estimate is the
root mean square of log r̂ − log r over 5,000 fresh rows of p. ``telescope`` has its default settings and default seed.
The first row of the table leaves out data sets for which it reports no error (NaN, with the reason in ``advice``); the
others show on how many it reports one.

Takes about 8 minutes of one core.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Exponential,
    Gumbel,
    Independent,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
)

from fvnce import telescope
from fvnce._random import seeded

from . import Promise, record

ROWS, FRESH = 1000, 5000


def normal(width: int, mean: float = 0.0, scale: float = 1.0) -> Distribution:
    """Return an isotropic Gaussian distribution."""
    return Independent(Normal(torch.full((width,), mean), torch.full((width,), scale)), 1)


@dataclass(frozen=True)
class Problem:
    """Problem: data with known density, and noise."""

    sample: Callable[[int], Tensor]
    log_prob: Callable[[Tensor], Tensor]
    noise: Distribution


def of(data: Distribution, noise: Distribution) -> Problem:
    """Make a problem from a distribution and noise."""
    return Problem(lambda n: data.sample((n,)), data.log_prob, noise)


def signed_pairs() -> Problem:
    """Five pairs (a, ±(0.9a + √0.19 e)), uncorrelated: KL = 2.04 nats from N(0, I), none of it in the covariance."""
    spread = math.sqrt(0.19)

    def sample(n: int) -> Tensor:
        a, e, sign = torch.randn(n, 5), torch.randn(n, 5), torch.randint(0, 2, (n, 5)) * 2.0 - 1
        return torch.stack([a, sign * (0.9 * a + spread * e)], -1).reshape(n, 10)

    def log_prob(x: Tensor) -> Tensor:
        a, b = x[:, ::2], x[:, 1::2]
        both = [Normal(sign * 0.9 * a, spread).log_prob(b) for sign in (1, -1)]
        total: Tensor = (Normal(0.0, 1.0).log_prob(a) + torch.logaddexp(*both) - math.log(2)).sum(-1)
        return total

    return Problem(sample, log_prob, normal(10))


def gumbel_banana(scale: float) -> Problem:
    """A Gumbel column, and a Laplace column around the square of a Gaussian one."""
    gumbel = Gumbel(0.0, 1.0)

    def sample(n: int) -> Tensor:
        a = torch.randn(n)
        return torch.stack([gumbel.sample((n,)), a, a.square() - 1 + Laplace(0.0, 0.3).sample((n,))], -1)

    def log_prob(x: Tensor) -> Tensor:
        bent = Laplace(x[:, 1].square() - 1, 0.3).log_prob(x[:, 2])
        total: Tensor = gumbel.log_prob(x[:, 0]) + Normal(0.0, 1.0).log_prob(x[:, 1]) + bent
        return total

    return Problem(sample, log_prob, normal(3, 0.0, scale))


def mixture(width: int) -> Distribution:
    """Return two modes with weights 0.3 and 0.7."""
    means = torch.zeros(2, width)
    means[:, 0] = torch.tensor([1.5, -1.5])
    parts = Independent(Normal(means, torch.full_like(means, 0.6)), 1)
    return MixtureSameFamily(Categorical(torch.tensor([0.3, 0.7])), parts)


def correlated(width: int, correlation: float) -> Distribution:
    """Return pairs of columns with one correlation."""
    covariance = torch.block_diag(*[torch.tensor([[1.0, correlation], [correlation, 1.0]])] * (width // 2))
    return MultivariateNormal(torch.zeros(width), covariance)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "signed pairs, 10-D": signed_pairs,
    "Gumbel × banana-Laplace, 3-D, noise N(0, 2²)": lambda: gumbel_banana(2.0),
    "Gumbel × banana-Laplace, 3-D, noise N(0, 1)": lambda: gumbel_banana(1.0),
    "N(1, ½²), 1-D": lambda: of(normal(1, 1.0, 0.5), normal(1)),
    "N(2, 0.3²), far, 3-D": lambda: of(normal(3, 2.0, 0.3), normal(3)),
    "pairs of correlation 0.6, 6-D": lambda: of(correlated(6, 0.6), normal(6)),
    "pairs of correlation 0.8, 20-D": lambda: of(correlated(20, 0.8), normal(20)),
    "two modes, 2-D": lambda: of(mixture(2), normal(2, 0.0, 2.0)),
    "two modes, 8-D": lambda: of(mixture(8), normal(8, 0.0, 1.5)),
    "Laplace, 5-D": lambda: of(Independent(Laplace(torch.zeros(5), 1.0), 1), normal(5, 0.0, 1.5)),
    "exponential, 3-D": lambda: of(Independent(Exponential(torch.ones(3)), 1), normal(3, 1.0, 2.0)),
    "Student t, 3 degrees, 5-D": lambda: of(Independent(StudentT(torch.full((5,), 3.0)), 1), normal(5, 0.0, 2.0)),
    "the noise itself, 2-D": lambda: of(normal(2), normal(2)),
}


def measured(problem: Problem, data_set: int) -> tuple[float, float, bool]:
    """Return the true error, the reported one, and whether the estimate reports that nothing was learned."""
    with seeded(data_set):
        x, fresh = problem.sample(ROWS), problem.sample(FRESH)
    ratio = telescope(x, problem.noise)
    with torch.no_grad():
        off = ratio.model.log_ratio(fresh) + problem.noise.log_prob(fresh) - problem.log_prob(fresh)
    return float(off.square().mean().sqrt()), ratio.error, any("nothing was learned" in line for line in ratio.advice)


def share(promise: str, setting: str, nominal: float, held: list[bool], note: str = "") -> Promise:
    """Return a frequency, with a success and a failure added to its standard error, so that it is never 0."""
    count, hits = len(held), sum(held)
    smooth = (hits + 1) / (count + 2)
    error = math.sqrt(smooth * (1 - smooth) / (count + 2))
    return Promise(promise, setting, nominal, "at least", hits / count, error, count, note)


def rows_of(results: dict[str, list[tuple[float, float, bool]]]) -> list[Promise]:
    """Return the rows of the table."""
    reported = [error >= off for cases in results.values() for off, error, _ in cases if not math.isnan(error)]
    promise = "`telescope`: RMS error on fresh rows ≤ `error`"
    rows = [share(f"{promise}, where one is reported", f"all problems below, {ROWS:,} rows", 0.9, reported)]
    for name, cases in results.items():
        errors = [error for _, error, _ in cases if not math.isnan(error)]
        note = f"RMS {sum(off for off, *_ in cases) / len(cases):.2f}, reported on {len(errors)} of {len(cases)}"
        if errors:
            note += f", mean {sum(errors) / len(errors):.2f}"
        held = [math.isnan(error) or error >= off for off, error, _ in cases]
        rows.append(share(f"{promise}, or none is reported", name, 0.9, held, note))
    for name in ("signed pairs, 10-D", "the noise itself, 2-D"):
        if name in results:
            said = [nothing for *_, nothing in results[name]]
            rows.append(share('`telescope`: `advice` says "nothing was learned"', name, 0.9, said))
    return rows


def main() -> None:
    """Measure, print and write after each problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-sets", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    results: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in PROBLEMS}
    for data_set in range(options.data_sets):
        for name, make in PROBLEMS.items():
            results[name].append(measured(make(), data_set))
            off, error, nothing = results[name][-1]
            print(f"{data_set} {name:48} RMS {off:.2f} error {error:.2f} nothing learned {nothing}", flush=True)
        settings: dict[str, object] = {"rows": ROWS, "fresh": FRESH, "data_sets": data_set + 1, "seed": 0}
        record("ratio", rows_of(results), settings=settings, started=started)


if __name__ == "__main__":
    main()
