"""How often conformal p-values and alarms keep their promise, at the default settings and the default seed.

    python -m experiments.coverage.conformal            # about 6 minutes of one core
    python -m experiments.coverage.conformal --sets 40  # fewer data sets

Each data set is drawn anew; the detector's seed is the default one every time. Rows to be tested are drawn like the
unlabeled training rows: P(p ≤ t) must be at most t. For alarms a tenth of them are outliers, and the share of false
alarms among the alarms of ``predict(fdr=q)`` must be at most 0.9 q on average.

p-values have a model of their own, so the detector itself, which takes most of the time of a fit, is left out: `split`
makes the p-values alone, and the study begins by comparing them with those of ``fit``, bit by bit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fvnce import NoiseContrastiveDetector
from fvnce.detection import Conformal, LatentDetector
from fvnce.detection.contract import seed_of
from fvnce.detection.rows import merge
from fvnce.detection.trust.conformal import fit_split, reject
from fvnce.tables.frame import Frame

from . import Promise, record

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Any]

#: t of p-values, and q of alarms.
LEVELS, ALLOWED = np.array([0.05, 0.1, 0.2]), np.array([0.1, 0.2])
#: New rows of each data set; a ninth as many outliers are added for alarms.
NEW = 180


def normal(rng: np.random.Generator, rows: int, columns: int = 2) -> Array:
    """Return rows of independent normal columns."""
    return rng.normal(size=(rows, columns))


def counts(rng: np.random.Generator, rows: int) -> Array:
    """Return rows of small whole numbers, most of which occur several times."""
    return rng.poisson(0.7, size=(rows, 2)).astype(np.float64)


def exponential(rng: np.random.Generator, rows: int) -> Array:
    """Return rows of skewed columns."""
    return rng.exponential(size=(rows, 3))


def frame(rng: np.random.Generator, rows: int) -> Frame:
    """Return a data frame of amounts, towns of which many are rare, and dates, all of them as text."""
    days = [date(2024, 1, 1) + timedelta(days=int(day)) for day in rng.integers(0, 700, rows)]
    columns = {
        "amount": [f"{value:,.2f}" for value in rng.lognormal(6, 1, rows)],
        "town": [f"town {value}" for value in rng.zipf(1.6, rows).clip(max=500)],
        "date": [f"{day:%d/%m/%Y}" for day in days],
    }
    return Frame({name: np.array(values, dtype=object) for name, values in columns.items()})


def money(rng: np.random.Generator, rows: int) -> Frame:
    """Return a data frame of nothing but amounts of money as text, all of them different."""
    return Frame({"amount": np.array([f"${value:09.2f}" for value in rng.normal(5000, 1000, rows)], dtype=object)})


def outliers(rng: np.random.Generator, rows: int) -> Array:
    """Return rows away from those of `exponential` and, in two columns, of `normal`."""
    return rng.normal(5, 1, size=(rows, 3))


#: Setting, unlabeled rows, how they are drawn, known outliers.
SETTINGS: list[tuple[str, int, Draw, int]] = [
    ("200 × 2 normal, none known", 200, normal, 0),
    ("60 × 1 normal, none known", 60, partial(normal, columns=1), 0),
    ("30 × 2 normal, none known", 30, normal, 0),
    ("60 × 2 whole numbers with ties, none known", 60, counts, 0),
    ("120 rows of a data frame with texts and dates, none known", 120, frame, 0),
    ("72 rows of a data frame with money as text, none known", 72, money, 0),
    ("510 × 3 exponential, 10 known", 510, exponential, 10),
    ("60 × 3 exponential, 3 known", 60, exponential, 3),
    ("200 × 3 exponential, 5 known", 200, exponential, 5),
]


def split(X: Array, y: NDArray[np.int64]) -> Callable[[Array], Array]:
    """Return the p-values that a detector with default settings gives after ``fit(X, y)``, without the rest of it."""
    detector = NoiseContrastiveDetector()
    raw, known, weights, _ = merge(X, y == 1, np.ones(len(X)))
    conformal = fit_split(raw, known, weights, None, detector._member_settings(), seed_of(detector.random_state))
    assert isinstance(conformal, Conformal)
    assert conformal.model is not None
    model = conformal.model
    return lambda new: conformal.p_value(model.anomaly(new))


def p_values(X: Any, known: Array) -> Callable[[Any], Array]:
    """Return the p-values of new rows after a fit to rows without a label and known outliers."""
    if not len(known):
        return NoiseContrastiveDetector().fit(X).p_value
    return split(np.concatenate([X, known]), np.repeat([0, 1], [len(X), len(known)]))


def check_split() -> None:
    """Compare `split` with ``fit``, bit by bit."""
    rng = np.random.default_rng(0)
    X = np.concatenate([exponential(rng, 60), outliers(rng, 5)])
    y = np.repeat([0, 1], [60, 5])
    new = exponential(rng, NEW)
    np.testing.assert_array_equal(split(X, y)(new), NoiseContrastiveDetector().fit(X, y).p_value(new))


def promises_of(measured: Array, nominal: Array, names: list[str], setting: str) -> list[Promise]:
    """Return one row of the table for each column of what was measured on each data set."""
    error = measured.std(0, ddof=1) / np.sqrt(len(measured))
    columns = zip(names, nominal.tolist(), measured.mean(0).tolist(), error.tolist(), strict=True)
    return [Promise(name, setting, want, "at most", mean, sd, len(measured)) for name, want, mean, sd in columns]


def study(setting: str, n: int, draw: Draw, m: int, sets: int) -> list[Promise]:
    """Return the rows of one setting: of p-values and, with known outliers, of alarms."""
    below, shares = [], []
    for seed in range(sets):
        rng = np.random.default_rng([1, seed])
        p_value = p_values(draw(rng, n), outliers(rng, m))
        p = p_value(draw(rng, NEW))
        below.append((p[:, None] <= LEVELS + 1e-12).mean(0))
        if m:
            p = np.concatenate([p, p_value(outliers(rng, NEW // 9))])
            shares.append([flagged[:NEW].sum() / max(1, flagged.sum()) for flagged in (reject(p, q) for q in ALLOWED)])
    promises = promises_of(np.array(below), LEVELS, [f"p_value: P(p ≤ {t:g})" for t in LEVELS], setting)
    if m:
        names = [f"predict(fdr={q:g}): false alarms among alarms" for q in ALLOWED]
        setting = f"{setting}; {NEW} new rows, {NEW // 9} outliers"
        promises += promises_of(np.array(shares), 0.9 * ALLOWED, names, setting)
    return promises


def latent(sets: int) -> list[Promise]:
    """Return the rows of the latent-variable model, which holds out a tenth of the rows."""
    below = []
    for seed in range(sets):
        rng = np.random.default_rng([1, seed])
        p = LatentDetector(epochs=5).fit(normal(rng, 200)).p_value(normal(rng, NEW))
        below.append((p[:, None] <= LEVELS + 1e-12).mean(0))
    names = [f"LatentDetector.p_value: P(p ≤ {t:g})" for t in LEVELS]
    return promises_of(np.array(below), LEVELS, names, "200 × 2 normal, none known, epochs=5")


def main() -> None:
    """Run the study, and write what there is after each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=300, help="Data sets of each setting.")
    options = parser.parse_args()
    started = time.perf_counter()
    check_split()
    rows = latent(options.sets)
    settings = {"sets": options.sets, "new rows": NEW, "seed": 0}
    for setting in SETTINGS:
        rows += study(*setting, options.sets)
        record("conformal", rows, settings=settings, started=started)
        print(f"{setting[0]}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
