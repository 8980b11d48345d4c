"""How often the errors of log Z hold, on problems where the truth is known.

Run with

    python -m experiments.coverage.sampling

Each problem is an unnormalized density and a noise, fixed; what is drawn anew is the noise and the chains, by
generators of the seeds 0, 1, … (these functions have no seed of their own). A row counts how often the truth lies
within two reported errors, among the results that are ``trusted``, and says what share of them is. An error far below
rounding counts as 10⁻⁵. Takes about 3 minutes of one core.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from fvnce import NCE
from fvnce.objectives import LogPartition
from fvnce.sampling import annealed_log_partition, annealed_nce

from . import Promise, record

LOG_ROOT = 0.5 * math.log(2 * math.pi)
ROUNDING = 1e-5


class Model(nn.Module):
    """Model with a given log-density up to a constant."""

    def __init__(self, log_density: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.log_prob = log_density


def normal(width: int, scale: float = 1.0) -> Distribution:
    """Return isotropic Gaussian noise around 0."""
    return Independent(Normal(torch.zeros(width), torch.full((width,), scale)), 1)


def bell(width: int, mean: float, scale: float) -> tuple[Model, float]:
    """Return a Gaussian without its constant, and log Z."""
    return Model(lambda x: -((x - mean) / scale).square().sum(-1) / 2), width * (LOG_ROOT + math.log(scale))


def _banana(x: Tensor) -> Tensor:
    return -x[:, 0].square() / 2 - ((x[:, 1] - x[:, 0].square()) / 0.3).square() / 2


def _modes(x: Tensor) -> Tensor:
    parts = [-((x - m) / 0.7).square().sum(-1) / 2 + math.log(p) for m, p in ((3.0, 0.3), (-3.0, 0.7))]
    return torch.logaddexp(*parts)


def _student(x: Tensor) -> Tensor:
    return -2 * (1 + x.square() / 3).log().sum(-1)


LOG_STUDENT = 3 * (math.lgamma(1.5) + 0.5 * math.log(3 * math.pi) - math.lgamma(2.0))
LOG_QUARTIC = 3 * math.log(2 * math.gamma(1.25) * 4**0.25)
#: By name: the model, its log Z, the noise.
PROBLEMS: dict[str, tuple[Model, float, Distribution]] = {
    "N(3, .5²)³ from N(0, 2²)³": (*bell(3, 3.0, 0.5), normal(3, 2.0)),
    "N(4, 1)² from N(0, 1)²": (*bell(2, 4.0, 1.0), normal(2)),
    "N(0, 3²)² from N(0, 1)²": (*bell(2, 0.0, 3.0), normal(2)),
    "N(0, .3²)⁵ from N(0, 1)⁵": (*bell(5, 0.0, 0.3), normal(5)),
    "N(3, 1)⁵ from N(0, 1)⁵": (*bell(5, 3.0, 1.0), normal(5)),
    "banana from N(0, 2²)²": (Model(_banana), 2 * LOG_ROOT + math.log(0.3), normal(2, 2.0)),
    "two modes, .3 and .7, from N(0, 3²)²": (Model(_modes), 2 * (LOG_ROOT + math.log(0.7)), normal(2, 3.0)),
    "Student t₃³ from N(0, 2²)³": (Model(_student), LOG_STUDENT, normal(3, 2.0)),
    "quartic³ from N(0, 3²)³": (Model(lambda x: -x.pow(4).sum(-1) / 4), LOG_QUARTIC, normal(3, 3.0)),
}


UNSEEN = "mass lies where no draw came, and no check of the draws can see it"
#: Where `trusted` is known to fail, by name: the model, its log Z, the noise, and why.
HARD: dict[str, tuple[Model, float, Distribution, str]] = {
    "Cauchy from N(0, 3²)": (Model(lambda x: -x.square().log1p().sum(-1)), math.log(math.pi), normal(1, 3.0), UNSEEN),
    "modes at 0 and 6 from N(0, 1)": (
        Model(lambda x: torch.logaddexp(-x.square() / 2, -(x - 6).square() / 2).sum(-1)),
        LOG_ROOT + math.log(2),
        normal(1),
        UNSEEN,
    ),
    "Gaussian¹⁰, variance 4, correlation .5, from N(0, 1)¹⁰": (
        Model(lambda x: -(x.square().sum(-1) - x.sum(-1).square() / 11) / 4),
        10 * (LOG_ROOT + math.log(2) / 2) + math.log(11) / 2,
        normal(10),
        "runs without the rare large weight are the ones that are trusted",
    ),
}


def counted(name: str, setting: str, truth: float, results: Iterable[LogPartition], why: str = "") -> Promise | None:
    """Count how often the truth is within two errors of trusted results; None for fewer than five of them."""
    estimates = list(results)
    trusted = [each for each in estimates if each.trusted]
    share = len(trusted) / len(estimates)
    errors = [abs(float(each.value) - truth) for each in trusted]
    print(f"{name}, {setting}: trusted {share:.0%}", flush=True)
    if len(trusted) < 5:
        return None
    held = sum(off <= max(2 * float(each.error), ROUNDING) for off, each in zip(errors, trusted, strict=True))
    measured = held / len(trusted)
    spread = math.sqrt(max(measured * (1 - measured), 0.25 / len(trusted)) / len(trusted))
    text = f"{setting}; {share:.0%} of {len(estimates)} trusted"
    note = why if measured < 0.95 - 2 * spread else ""
    return Promise(f"{name}: truth within 2 errors", text, 0.95, "at least", measured, spread, len(trusted), note)


def main() -> None:
    """Count coverage and record the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=30)
    options = parser.parse_args()
    begun, repetitions = time.perf_counter(), options.repetitions
    rows: list[Promise | None] = []
    problems = {name: (*problem, "") for name, problem in PROBLEMS.items()} | HARD
    for setting, (model, truth, noise, why) in problems.items():
        for name, estimator in (("annealed_nce", annealed_nce), ("annealed_log_partition", annealed_log_partition)):
            seeded = (torch.Generator().manual_seed(seed) for seed in range(repetitions))
            estimates = (estimator(model, noise, generator=generator) for generator in seeded)
            rows.append(counted(name, setting, truth, estimates, why))
    for scale in (0.3, 0.7, 1.3, 1.7, 2.0, 3.0):
        model, truth = bell(3, 0.0, scale)
        objective = NCE(model, normal(3), partition="learned")
        seeded = (torch.Generator().manual_seed(seed) for seed in range(10 * repetitions))
        estimates = (objective.log_partition(generator=generator) for generator in seeded)
        rows.append(counted("log_partition", f"N(0, {scale:g}²)³ from N(0, 1)³", truth, estimates))
    for setting, (model, truth, noise, why) in HARD.items():
        objective = NCE(model, noise, partition="learned")
        seeded = (torch.Generator().manual_seed(seed) for seed in range(10 * repetitions))
        estimates = (objective.log_partition(generator=generator) for generator in seeded)
        rows.append(counted("log_partition", setting, truth, estimates, why))
    settings: dict[str, object] = {"repetitions": repetitions, "seeds": f"0 to {repetitions - 1}"}
    print(record("sampling", [row for row in rows if row is not None], settings=settings, started=begun))


if __name__ == "__main__":
    main()
