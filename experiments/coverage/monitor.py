"""How often ``monitor`` raises an alarm where nothing has changed, and where something has, at the default seed.

    python -m experiments.coverage.monitor            # about 10 minutes of one core
    python -m experiments.coverage.monitor --sets 40  # fewer data sets

Each data set is drawn anew and has a detector of its own. Alarms on new rows of the same source must be at most
``alpha``; those on rows that were changed are the power, which is not promised. The share flagged of rows of the same
source, known from many more rows, must lie in its interval 95 times out of 100. Forests are small (``n_trees=20``), and
with known outliers the neighbors are the only member, which takes a tenth of the time: no
test depends on how good the detector is.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fvnce import NoiseContrastiveDetector
from fvnce.tables.frame import Frame

from . import Promise, record
from .conformal import Draw, counts, exponential, frame, normal, outliers

#: Rates of alarms.
ALPHAS = (0.01, 0.05)
#: New rows of each data set, and those from which the share flagged is known.
NEW, MANY = 300, 4000
Change = Callable[[Any, np.random.Generator], Any]


def gaps(rng: np.random.Generator, rows: int) -> Any:
    """Return rows of 20 normal columns, of which a tenth of the values are missing."""
    return np.where(rng.random((rows, 20)) < 0.1, np.nan, rng.normal(size=(rows, 20)))


def mixed(rng: np.random.Generator, rows: int) -> Any:
    """Return rows of which 2 % are outliers like the known ones."""
    return np.where(rng.random((rows, 1)) < 0.02, outliers(rng, rows), rng.exponential(size=(rows, 3)))


def move(X: Any, rng: np.random.Generator) -> Any:
    """Add half a deviation to the first column."""
    X = X.copy()
    X[:, 0] += 0.5
    return X


def remove(X: Any, rng: np.random.Generator) -> Any:
    """Remove a tenth of the values of the first column."""
    X = X.copy()
    X[rng.random(len(X)) < 0.1, 0] = np.nan
    return X


def rename(X: Frame, rng: np.random.Generator) -> Frame:
    """Replace a tenth of the towns by unseen names."""
    columns = {name: X[name].copy() for name in X.columns}
    columns["town"][rng.random(len(X)) < 0.1] = "TOWN"
    return Frame(columns)


def stranger(X: Any, rng: np.random.Generator) -> Any:
    """Exchange a twentieth of the rows for outliers."""
    return np.where(rng.random((len(X), 1)) < 0.05, rng.normal(5, 1, X.shape), X)


#: Setting, unlabeled rows, how they are drawn, known outliers, and changes whose power is measured.
SETTINGS: list[tuple[str, int, Draw, int, list[Change]]] = [
    ("400 × 2 normal, none known", 400, normal, 0, [move, remove, stranger]),
    ("60 × 2 normal, none known", 60, normal, 0, [move]),
    ("400 × 20 normal, a tenth missing, none known", 400, gaps, 0, [move, remove]),
    ("200 × 2 whole numbers with ties, none known", 200, counts, 0, [move]),
    ("400 rows of a data frame with texts and dates, none known", 400, frame, 0, [rename]),
    ("400 × 3 exponential with 10 known; new rows hold none", 400, exponential, 10, [move]),
    ("400 × 3 exponential with 10 known; 2 % of new rows are like these", 400, mixed, 10, [move]),
]


def study(
    setting: str, n: int, draw: Draw, m: int, changes: list[Change], sets: int
) -> tuple[list[Promise], dict[str, float]]:
    """Return the promises of one setting, and the share of alarms at 0.01 for each change."""
    alarms, covered, power = [], [], np.zeros(len(changes))
    for seed in range(sets):
        rng = np.random.default_rng([2, seed])
        X, y = (exponential if m else draw)(rng, n), None
        if m:
            X, y = np.concatenate([X, outliers(rng, m)]), np.repeat([0, 1], [n, m])
        detector = NoiseContrastiveDetector(members="neighbors" if m else "auto", n_trees=20).fit(X, y)
        new = draw(rng, NEW)
        same = detector.monitor(new)
        alarms.append([detector.monitor(new, alpha=alpha).alarm for alpha in ALPHAS])
        share = float(detector.scores(draw(rng, MANY)).flagged.mean())
        covered.append(same.flagged_low <= share <= same.flagged_high)
        power += [detector.monitor(change(draw(rng, NEW), rng)).alarm for change in changes]
    rates, error = np.mean(alarms, 0), np.sqrt(np.array(ALPHAS) * (1 - np.array(ALPHAS)) / sets)
    promises = [
        Promise(f"monitor(alpha={a:g}): alarms without a change", setting, a, "at most", float(r), float(e), sets)
        for a, r, e in zip(ALPHAS, rates, error, strict=True)
    ]
    inside = float(np.mean(covered))
    error_inside = float(np.sqrt(0.95 * 0.05 / sets))
    promises.append(
        Promise("monitor: share flagged in its 95 % interval", setting, 0.95, "at least", inside, error_inside, sets)
    )
    names = [str(change.__doc__).rstrip(".") for change in changes]
    return promises, dict(zip(names, (power / sets).tolist(), strict=True))


def main() -> None:
    """Run the study, and write what there is after each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=300, help="Data sets of each setting.")
    options = parser.parse_args()
    started, rows, power = time.perf_counter(), [], {}
    for setting in SETTINGS:
        promises, power[setting[0]] = study(*setting, options.sets)
        rows += promises
        settings = {"sets": options.sets, "new rows": NEW, "seed": 0, "alarms at 0.01 after a change": power}
        record("monitor", rows, settings=settings, started=started)
        print(f"{setting[0]}: {time.perf_counter() - started:.0f} s {[p.measured for p in promises]}", flush=True)
        print(json.dumps(power[setting[0]]), flush=True)


if __name__ == "__main__":
    main()
