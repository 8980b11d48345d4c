"""How many alarms of ``predict(fdr=q)`` are false, and how many outliers it finds, if outliers hide in training too.

    python -m experiments.coverage.alarms --sets 200 --fits 40

A share π of the unlabeled training rows and of 200 new rows are outliers of the known kind.

- *Detector*: 600 rows in three columns, normal or exponential, outliers 4 away in each; default settings and seed.
  Without known outliers p-values have a model of their own, so the rest of the detector is left out.
- *Scores*: p-values that discount hidden outliers, of drawn scores of 300 or 1,000 held-out rows and of new rows.
  Tails heavier than those assumed, of a lognormal distribution and of t₂, show what the assumption is worth.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import typer
from numpy.random import Generator
from numpy.typing import NDArray

from fvnce import NoiseContrastiveDetector
from fvnce.detection.trust.conformal import Conformal, reject

from . import Promise, record
from .conformal import split

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Size = int | tuple[int, int]
RATES, SHARES, NEW = (0.1, 0.2), (0.0, 0.02, 0.05, 0.1), 200
#: Draws of n scores, or of n rows, of normal rows.
SHAPES: dict[str, Callable[[Generator, Size], Array]] = {
    "normal": lambda rng, size: rng.normal(size=size),
    "exponential": lambda rng, size: rng.exponential(size=size),
    "Student's t₄": lambda rng, size: rng.standard_t(4, size=size),
    "lognormal (σ = 1)": lambda rng, size: rng.lognormal(size=size),
    "Student's t₂": lambda rng, size: rng.standard_t(2, size=size),
}
#: Numbers of held-out scores, and how far away outliers are.
SCORES, AWAY = (1000, 300), (3.0, 4.0, 6.0)


def draw(rng: Generator, shape: str, size: Size, share: float, away: float) -> tuple[Array, Flags]:
    """Return scores or rows, of which about a share are outliers, and which."""
    made = SHAPES[shape](rng, size)
    outlier = rng.random(len(made)) < share
    made[outlier] += away
    return made, outlier


def found(p_values: list[Array], outlier: Flags) -> list[float]:
    """Return for each rate the fraction of false alarms and that of outliers found, by the p-values for this rate."""
    numbers = []
    for q, p in zip(RATES, p_values, strict=True):
        flagged = reject(p, q)
        numbers += [
            (flagged & ~outlier).sum() / max(1, flagged.sum()),
            (flagged & outlier).sum() / max(1, outlier.sum()),
        ]
    return numbers


def of_scores(shape: str, n: int, away: float, share: float, seed: int) -> list[float]:
    """Return the rates for one set of scores."""
    rng = np.random.default_rng([seed, n, round(1000 * share), list(SHAPES).index(shape)])
    held_out, _ = draw(rng, shape, n, share, away)
    conformal = Conformal.of(held_out, np.ones(n))
    new, outlier = draw(rng, shape, NEW, share, away)
    return found([conformal.p_value(new, discount=True)] * len(RATES), outlier)


def of_detector(shape: str, known: int, share: float, seed: int) -> list[float]:
    """Return the rates for one fit."""
    rng = np.random.default_rng([seed, known, round(1000 * share), list(SHAPES).index(shape)])
    X, _ = draw(rng, shape, (600, 3), share, 4.0)
    new, outlier = draw(rng, shape, (NEW, 3), share, 4.0)
    if not known:
        return found([split(X, np.zeros(len(X), dtype=np.int64))(new)] * len(RATES), outlier)
    outliers, _ = draw(rng, shape, (known, 3), 1.0, 4.0)
    detector = NoiseContrastiveDetector().fit(np.concatenate([X, outliers]), np.repeat([0, 1], [len(X), known]))
    return found([detector.p_value(new, discount=detector.discounts)] * len(RATES), outlier)


def rows_of(setting: str, share: float, numbers: list[list[float]]) -> list[Promise]:
    """Return the rows of the table of one setting."""
    mean, count = np.mean(numbers, 0), len(numbers)
    error = np.std(numbers, 0, ddof=1) / count**0.5
    made = []
    for i, q in enumerate(RATES):
        note = f"{mean[2 * i + 1]:.0%} of outliers found" if share else "no outliers"
        name = f"predict(fdr={q:g}): false alarms among alarms"
        setting_ = f"{setting}, π = {share:g}"
        false, deviation = float(mean[2 * i]), max(float(error[2 * i]), 1 / count)
        made.append(Promise(name, setting_, q, "at most", false, deviation, count, note))
        typer.echo(f"{setting_}: {name} {false:.3f} ± {deviation:.3f}, {note}")
    return made


def main(sets: int = 200, fits: int = 40) -> None:
    """Count, and write results/coverage/alarms.json after each setting; ``fits`` detectors have known outliers."""
    warnings.simplefilter("ignore", UserWarning)  # that no row is flagged
    started = time.perf_counter()
    promises: list[Promise] = []
    settings: dict[str, object] = {"sets": sets, "fits": fits, "new rows": NEW, "random_state": 0}

    def add(setting: str, count: int, one: Callable[[float, int], list[float]]) -> None:
        for share in SHARES if count else ():
            promises.extend(rows_of(setting, share, [one(share, seed) for seed in range(count)]))
            record("alarms", promises, settings=settings, started=started)

    for n in SCORES:
        for shape in SHAPES:
            for away in AWAY:
                where = f"{n:,} held-out {shape} scores, outliers {away:g} higher"
                add(where, sets, partial(of_scores, shape, n, away))
    for known in (0, 3, 10):
        for shape in ("normal", "exponential"):
            where = f"default detector, 600 × 3 {shape} rows, {known or 'none'} known"
            add(where, fits if known else sets, partial(of_detector, shape, known))


if __name__ == "__main__":
    typer.run(main)
