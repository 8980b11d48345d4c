"""Detection without known outliers, trained on contaminated rows or on clean rows.

Run with

    FVNCE_DATA=... python benchmarks/detection_novelty.py --out results/bench/detection_novelty.json

FVNCE_DATA names a folder whose ``adbench`` holds tables as npz files with X and y. ``--protocols`` names some of

* ``contaminated``: 70 % of the rows for training, outliers among them, 30 % for testing, both stratified.
* ``random-half``: a random half of the inliers for training, known to be clean; the other half and all outliers for
  testing. A protocol of our own.
* ``first-half``: the protocol of DTE (Livernoche et al., ICLR 2024, setting "semi" of its code): the first half of the
  inliers in file order for training, the others and all outliers for testing. Tables of fewer than 1,000 rows are drawn
  anew, 1,000 rows with replacement, so that a row may be both in training and in the test. Many files are sorted, so
  that the two halves differ: on letter the fifth neighbor has AUROC .354, and .850 on a random half (seed 0).

The first two use at most 10,000 rows of a table and DTE's 50,000, drawn with the seed. Columns are standardized by
training statistics and not cut. AUROC and average precision on the test rows. Everyone has the defaults of its library
and the same rows and seeds in the same run: isolation forest, LOF, one-class SVM and robust covariance are
scikit-learn's; nearest neighbors is the distance to the fifth, as PyOD has it, and the mean of five; ECOD and COPOD
are a few lines each, with tails taken over training rows alone.

Takes about 3 minutes of one core for three seeds of the first two protocols.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import MinCovDet
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.svm import OneClassSVM

from fvnce import NoiseContrastiveDetector
from fvnce.paper.cells import made_by

MOST_ROWS, FEWEST_ANOMALIES = 10_000, 30
#: The sizes to which DTE brings smaller and larger tables.
DTE_ROWS = 1_000, 50_000
#: Columns beyond which a robust covariance is not tried: it has no more rows than unknowns.
MOST_COLUMNS = 100
PROTOCOLS = ("contaminated", "random-half", "first-half")
#: What is done to columns, in the file: rows that were measured otherwise are not added to.
INPUTS = "standardised by training rows"

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Score = Callable[[Array], Array]


def rows_of(path: Path, protocol: str, seed: int) -> tuple[Array, Array, Labels]:
    """Return training rows, test rows and the truth of the test rows."""
    with np.load(path, allow_pickle=False) as table:
        X, truth = table["X"].astype(float), table["y"].astype(int).ravel()
    chosen = _dte_rows(len(truth), seed) if protocol == "first-half" else _our_rows(truth, seed)
    X, truth = X[chosen], truth[chosen]
    if protocol == "contaminated":
        train, test, _, truth = train_test_split(X, truth, test_size=0.3, stratify=truth, random_state=seed)
    else:
        good = np.flatnonzero(truth == 0)
        if protocol == "random-half":
            half = np.sort(np.random.default_rng([seed, 3]).permutation(good)[: len(good) // 2])
        else:
            half = good[: round(len(good) / 2)]
        rest = np.setdiff1d(np.arange(len(X)), half)
        train, test, truth = X[half], X[rest], truth[rest]
    mean, deviation = train.mean(0), train.std(0)
    deviation[deviation < 1e-12] = 1.0
    return (train - mean) / deviation, (test - mean) / deviation, truth


def _our_rows(truth: Labels, seed: int) -> NDArray[np.int64]:
    """Return at most MOST_ROWS rows, in file order, stratified."""
    if len(truth) <= MOST_ROWS:
        return np.arange(len(truth))
    rng = np.random.default_rng([seed, 1])
    bad, good = np.flatnonzero(truth == 1), np.flatnonzero(truth == 0)
    kept = max(round(MOST_ROWS * len(bad) / len(truth)), min(len(bad), FEWEST_ANOMALIES))
    return np.sort(np.concatenate([rng.choice(bad, kept, replace=False), rng.choice(good, MOST_ROWS - kept, False)]))


def _dte_rows(count: int, seed: int) -> NDArray[np.int64]:
    """Return the rows that DTE uses: all in file order, or a random selection if there are too few or too many."""
    fewest, most = DTE_ROWS
    if fewest <= count <= most:
        return np.arange(count)
    # Its code seeds numpy's global generator.
    return np.random.RandomState(seed).choice(count, min(max(count, fewest), most), replace=count < fewest)


def ours(train: Array, protocol: str, seed: int, settings: dict[str, Any]) -> Score:
    """Fit the detector with its defaults, and with clean=True on clean rows."""
    detector = NoiseContrastiveDetector(clean=protocol != "contaminated", random_state=seed, **settings)
    return detector.fit(train).anomaly_score


def tails(train: Array, X: Array) -> tuple[Array, Array, Array]:
    """Return −log P(column ≤ x), −log P(column ≥ x) by training rows, and the one on the side of the column's skew."""
    ordered, count = np.sort(train, axis=0), len(train) + 1
    below = np.stack([np.searchsorted(c, x, "right") for c, x in zip(ordered.T, X.T, strict=True)], 1)
    above = len(train) - np.stack([np.searchsorted(c, x, "left") for c, x in zip(ordered.T, X.T, strict=True)], 1)
    left, right = -np.log((below + 1) / count), -np.log((above + 1) / count)
    skew = ((train - train.mean(0)) ** 3).mean(0)
    return left, right, np.where(skew < 0, left, right)


def ecod(train: Array, seed: int) -> Score:
    """Fit ECOD (Li et al. 2022): the sum of the more extreme tail of each column."""

    def score(X: Array) -> Array:
        left, right, _ = tails(train, X)
        return np.asarray(np.maximum(left, right).sum(1))

    return score


def copod(train: Array, seed: int) -> Score:
    """Fit COPOD (Li et al. 2020): the sum of the skewed tail, or of the mean of both."""

    def score(X: Array) -> Array:
        left, right, skewed = tails(train, X)
        return np.asarray(np.maximum(skewed, (left + right) / 2).sum(1))

    return score


def neighbours(train: Array, seed: int) -> Score:
    """Return the distance to the fifth neighbor."""
    search = NearestNeighbors(n_neighbors=5).fit(train)
    return lambda X: np.asarray(search.kneighbors(X)[0][:, -1])


def mean_neighbours(train: Array, seed: int) -> Score:
    """Return the mean distance to five neighbors."""
    search = NearestNeighbors(n_neighbors=5).fit(train)
    return lambda X: np.asarray(search.kneighbors(X)[0].mean(1))


def isolation_forest(train: Array, seed: int) -> Score:
    """Fit an isolation forest of 100 trees of 256 rows."""
    model = IsolationForest(random_state=seed).fit(train)
    return lambda X: np.asarray(-model.score_samples(X))


def lof(train: Array, seed: int) -> Score:
    """Fit the local outlier factor with 20 neighbors."""
    model = LocalOutlierFactor(novelty=True).fit(train)
    return lambda X: np.asarray(-model.score_samples(X))


def ocsvm(train: Array, seed: int) -> Score:
    """Fit a one-class SVM with a radial basis, ν = ½."""
    model = OneClassSVM().fit(train)
    return lambda X: np.asarray(-model.decision_function(X))


def mcd(train: Array, seed: int) -> Score:
    """Fit a robust covariance, or for wide tables the plain one with a ridge."""
    if train.shape[1] > MOST_COLUMNS:
        mean, matrix = train.mean(0), np.linalg.inv(np.cov(train.T) + 0.1 * np.eye(train.shape[1]))
        return lambda X: np.asarray((((X - mean) @ matrix) * (X - mean)).sum(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of covariances that are not of full rank
        model = MinCovDet(random_state=seed).fit(train)
    return lambda X: np.asarray(model.mahalanobis(X))


PEERS: dict[str, Callable[[Array, int], Score]] = {
    "iforest": isolation_forest,
    "knn": neighbours,
    "knn (mean)": mean_neighbours,
    "lof": lof,
    "ocsvm": ocsvm,
    "mcd": mcd,
    "ecod": ecod,
    "copod": copod,
}


def judge(path: Path, protocol: str, seed: int, settings: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
    """Return one row of numbers for each named detector."""
    train, test, truth = rows_of(path, protocol, seed)
    makers: dict[str, Callable[[], Score]] = {"fvnce": lambda: ours(train, protocol, seed, settings)}
    for name, peer in PEERS.items():
        makers[name] = lambda peer=peer: peer(train, seed)  # type: ignore[misc]
    rows = []
    for name in names:
        start = time.process_time()
        score = makers[name]()
        fitted = time.process_time()
        scores = score(test)
        rows.append(
            {
                "dataset": path.stem,
                "protocol": protocol,
                "seed": seed,
                "detector": name,
                "auroc": round(float(roc_auc_score(truth, scores)), 6),
                "ap": round(float(average_precision_score(truth, scores)), 6),
                "fit cpu seconds": round(fitted - start, 3),
                "score cpu seconds": round(time.process_time() - fitted, 3),
            }
        )
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return means over tables and seeds for each protocol, sorted by average precision."""
    rankings: dict[str, list[dict[str, Any]]] = {}
    for protocol in PROTOCOLS:
        mine = [row for row in rows if row["protocol"] == protocol]
        lines = []
        for name in dict.fromkeys(row["detector"] for row in mine):
            group = [row for row in mine if row["detector"] == name]
            line: dict[str, Any] = {
                "detector": name,
                "tables": len({row["dataset"] for row in group}),
                "seeds": sorted({row["seed"] for row in group}),
            }
            for key in ("auroc", "ap"):
                line[key] = round(float(np.mean([row[key] for row in group])), 4)
            line["median fit cpu seconds"] = round(float(np.median([row["fit cpu seconds"] for row in group])), 3)
            lines.append(line)
        if lines:
            rankings[protocol] = sorted(lines, key=lambda line: -line["ap"])
    return rankings


def main() -> None:
    """Run all tables, print a summary for each protocol, and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocols", default=",".join(PROTOCOLS[:2]), help=f"some of {', '.join(PROTOCOLS)}")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--datasets", help="names of tables, by default all")
    parser.add_argument("--detectors", default=",".join(["fvnce", *PEERS]))
    parser.add_argument("--settings", default="{}", help="settings of the detector that differ from its defaults, JSON")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="one table, one seed: to see that everything runs")
    args = parser.parse_args()
    folder = Path(os.environ.get("FVNCE_DATA", "")) / "adbench"
    paths = sorted(folder.glob("*.npz"))
    if args.datasets:
        paths = [path for path in paths if path.stem in args.datasets.split(",")]
    if not paths:
        sys.exit(f"FVNCE_DATA must name a folder that holds adbench/*.npz, found none in {folder}")
    protocols = args.protocols.split(",")
    if unknown := set(protocols) - set(PROTOCOLS):
        sys.exit(f"--protocols must name some of {', '.join(PROTOCOLS)}, found {', '.join(sorted(unknown))}")
    seeds = [int(seed) for seed in args.seeds.split(",")]
    if args.quick:
        paths, seeds = paths[:1], seeds[:1]
    settings, chosen = json.loads(args.settings), args.detectors.split(",")
    # Runs add up: what the file holds is not run again unless settings, inputs or, for the detector, the code differ.
    before = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    same = before.get("settings") == settings and before.get("inputs") == INPUTS
    rows = before["rows"] if same else []
    if before.get("commit") != made_by("").get("commit"):
        rows = [row for row in rows if row["detector"] != "fvnce"]
    done = {(row["dataset"], row["protocol"], row["seed"], row["detector"]) for row in rows}
    for seed in seeds:
        for protocol in protocols:
            for path in paths:
                names = [name for name in chosen if (path.stem, protocol, seed, name) not in done]
                if names:
                    rows += judge(path, protocol, seed, settings, names)
                    print(path.stem, protocol, seed, flush=True)
                    _write(args.out, rows, settings)
    for protocol, lines in summary(rows).items():
        print(f"\n{protocol}")
        for line in lines:
            print(f"  {line['detector']:12s} AUROC {line['auroc']:.4f}  AP {line['ap']:.4f}  seeds {line['seeds']}")


def _write(out: Path | None, rows: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    if out is None:
        return
    content = {
        **made_by("python benchmarks/detection_novelty.py --out results/bench/detection_novelty.json"),
        "settings": settings,
        "inputs": INPUTS,
        "summary": summary(rows),
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = out.with_suffix(".part")
    hidden.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    hidden.replace(out)


if __name__ == "__main__":
    main()
