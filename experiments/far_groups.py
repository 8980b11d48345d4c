"""Far groups: how many of them the detector finds without labels, and how many clean rows it flags without one.

Run with

    python -m experiments.far_groups --out results/bench/far_groups.json

A table has a bulk of one of six shapes and a group of 0.5 to 10 % of the rows whose center is eight deviations of the
bulk away in each of up to four columns, or as far as that in all columns together. Its rows are identical, or have a
twentieth of the bulk's deviations. A group is found if AUROC is at least .99 and at least 99 % of its rows are
flagged. Clean tables have the same bulks, and Student's t with three degrees of freedom, and no group. Shapes: normal;
skewed (log-normal, σ = 0.7); whole numbers (Poisson, mean 4); modes (three equal groups, some 12 deviations apart);
normal with two columns of texts, of 4 and 12 equally likely values, of which a group has one each or any. Clean
tables of texts have values as frequent as 1, 1/2, 1/3, … instead.

Takes about 5 minutes of one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from fvnce import NoiseContrastiveDetector
from fvnce.paper.cells import made_by

#: Rows, and seeds of each cell with as many.
SIZES = {1000: 2, 4000: 1, 20_000: 1, 60_000: 1}
WIDTHS, SHARES = (1, 2, 5, 20), (0.005, 0.02, 0.05, 0.1)
SHAPES = ("normal", "skewed", "whole", "modes", "texts", "any texts")
CLEAN = (*SHAPES[:5], "heavy")
#: Every how many of all cells a large table is measured.
EVERY = {1000: 1, 4000: 2, 20_000: 12, 60_000: 16}

Array = NDArray[np.float64]


def bulk(shape: str, rng: np.random.Generator, n: int, width: int) -> Array:
    """Draw the columns of numbers of normal rows."""
    if shape == "skewed":
        return rng.lognormal(0, 0.7, size=(n, width))
    if shape == "whole":
        return rng.poisson(4, size=(n, width)).astype(float)
    if shape == "heavy":
        return rng.standard_t(3, size=(n, width))
    if shape == "modes":
        return 6 * rng.normal(size=(3, width))[rng.integers(3, size=n)] + rng.normal(size=(n, width))
    return rng.normal(size=(n, width))


def table(shape: str, n: int, width: int, share: float, spread: float, seed: int) -> tuple[Any, NDArray[np.int64]]:
    """Return the rows, the group last, and 1 for those of the group."""
    rng = np.random.default_rng([seed, n, width, round(1000 * share), round(100 * spread), len(shape)])
    m = round(n * share)
    normal = bulk(shape, rng, n - m, width)
    deviation = normal.std(0)
    away = 8 * deviation * rng.choice([-1, 1], width) / np.sqrt(max(1, width / 4))
    group = normal.mean(0) + away + spread * deviation * rng.normal(size=(m, width))
    if shape == "whole":
        group = np.round(group)
    X, y = np.concatenate([normal, group]), np.repeat([0, 1], [n - m, m])
    if "texts" not in shape:
        return X, y
    columns: dict[str, Any] = {f"c{i}": column for i, column in enumerate(X.T)}
    for name, count in (("town", 4), ("kind", 12)):
        share_of = 1 / np.arange(1, count + 1) if m == 0 else np.ones(count)
        place = rng.choice(count, size=n, p=share_of / share_of.sum())
        if shape == "texts":
            place[n - m :] = 0
        columns[name] = [f"{name} {'abcdefghijkl'[i]}" for i in place]
    return pa.table(columns), y


def measure(shape: str, n: int, width: int, share: float, spread: float, seed: int) -> dict[str, Any]:
    """Fit the detector to one table; return what it finds."""
    X, y = table(shape, n, width, share, spread, seed)
    cpu = time.process_time()
    scores = NoiseContrastiveDetector(calibration_folds=0).fit(X).scores(X)
    cell: dict[str, Any] = {"shape": shape, "rows": n, "columns": width, "share": share, "spread": spread, "seed": seed}
    cell["false alarms"] = round(float(scores.flagged[y == 0].mean()), 4)
    if share:
        cell["auroc"] = round(float(roc_auc_score(y, scores.anomaly)), 4)
        cell["flagged"] = round(float(scores.flagged[y == 1].mean()), 4)
    return cell | {"cpu seconds": round(time.process_time() - cpu, 2)}


def cells() -> list[tuple[str, int, int, float, float, int]]:
    """Return the parameters of all tables."""
    result: list[tuple[str, int, int, float, float, int]] = []
    for n, seeds in SIZES.items():
        grid = itertools.product(SHAPES, WIDTHS, SHARES, (0.0, 0.05), range(seeds))
        some = [(shape, n, width, share, spread, seed) for shape, width, share, spread, seed in grid]
        # A step that has no factor in common with the sides of the grid, so that it meets all of them.
        result += some if EVERY[n] == 1 else [some[i * 7 % len(some)] for i in range(len(some) // EVERY[n])]
        seeds = 2 * seeds if n <= 4000 else 1
        clean = itertools.product(CLEAN, WIDTHS if n <= 4000 else (2,), range(seeds))
        result += [(shape, n, width, 0.0, 0.0, seed) for shape, width, seed in clean]
    return result


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many groups are found, by each property of a table, and what is flagged of clean rows."""
    result: dict[str, Any] = {}
    for name in ("shape", "rows", "columns", "share", "spread"):
        found, alarms, clean = defaultdict(list), defaultdict(list), defaultdict(list)
        for row in rows:
            if row["share"]:
                found[row[name]].append(row["auroc"] >= 0.99 and row["flagged"] >= 0.99)
                alarms[row[name]].append(row["false alarms"])
            else:
                clean[row[name]].append(row["false alarms"])
        result[name] = {
            str(key): {
                "groups": len(found[key]),
                "found": int(np.sum(found[key])),
                "false alarms": round(float(np.mean(alarms[key])), 4) if key in alarms else None,
                "false alarms without a group": round(float(np.mean(clean[key])), 4) if key in clean else None,
                "most without a group": max(clean[key]) if key in clean else None,
            }
            for key in {**dict.fromkeys(found), **dict.fromkeys(clean)}
        }
    return result


def main() -> None:
    """Measure all tables, write one file and print its summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="tables of 1,000 rows, one seed")
    args = parser.parse_args()
    chosen = [cell for cell in cells() if not args.quick or (cell[1] == 1000 and cell[-1] == 0)]
    rows = [measure(*cell) for cell in chosen]
    for name, of_values in summary(rows).items():
        for value, numbers in of_values.items():
            print(name, value, *numbers.values())
    record = {
        **made_by("python -m experiments.far_groups " + " ".join(sys.argv[1:])),
        "settings": {"calibration_folds": 0},
        "cpu minutes": round(sum(row["cpu seconds"] for row in rows) / 60, 1),
        "summary": summary(rows),
        "not found": [row for row in rows if row["share"] and (row["auroc"] < 0.99 or row["flagged"] < 0.99)],
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
