"""The detector and its peers on real tables with few known anomalies.

Run with

    FVNCE_DATA=... python benchmarks/detection.py --peers peers.csv --out results/bench/detection.json

FVNCE_DATA names a folder whose ``adbench`` holds tables as npz files with X and y. The protocol, for each table and
seed: at most 10,000 rows, drawn with the seed and stratified; 70 % for training, 30 % for testing, stratified; columns
standardized by training statistics; of the n training anomalies max(3, round(share · n)) are labeled, the same ones
for everyone, and the others stay among the unlabeled rows. AUROC and average precision on the test rows. Peers'
numbers are read from a csv with the columns dataset, detector, la, seed, auroc, ap, fit_s, measured on the same splits.
If columns were cut for the peers, ``--cut`` cuts them for the detector as well: all numbers of the committed file, ours
and the peers', are of columns cut at ±10 (``--cut 10``).

Takes about 20 seconds of one core for a table, a share and a seed: 35 minutes for all 120 of them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import train_test_split

from fvnce import NoiseContrastiveDetector
from fvnce.paper.cells import made_by

MOST_ROWS, FEWEST_ANOMALIES, FEWEST_KNOWN = 10_000, 30, 3
OURS = "fvnce"
#: Tables added after version 0.1.0: integers, flags and mostly zeros.
LATER = ("17_InternetAds", "35_SpamBase", "4_breastw")
#: Peers that use no labels, so that their numbers at any share are compared with ours at 0.
UNSUPERVISED = ("iforest", "ecod", "copod", "knn", "lof", "ocsvm", "pyod_ae", "pyod_vae", "deepsvdd")

PARTS = {"tables of 0.1.0": False, "integers, flags and zeros": True}

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


def split(path: Path, share: float, seed: int, cut: float = np.inf) -> tuple[Array, Labels, Array, Labels]:
    """Return training rows, 1 for the known outliers among them, test rows and truth; clip columns at ±``cut``."""
    with np.load(path, allow_pickle=False) as table:
        X, truth = table["X"].astype(float), table["y"].astype(int).ravel()
    if len(truth) > MOST_ROWS:
        rng = np.random.default_rng([seed, 1])
        bad, good = np.flatnonzero(truth == 1), np.flatnonzero(truth == 0)
        kept = max(round(MOST_ROWS * len(bad) / len(truth)), min(len(bad), FEWEST_ANOMALIES))
        chosen = rng.choice(bad, kept, replace=False), rng.choice(good, MOST_ROWS - kept, replace=False)
        keep = np.sort(np.concatenate(chosen))
        X, truth = X[keep], truth[keep]
    train, test, truth_train, truth_test = train_test_split(X, truth, test_size=0.3, stratify=truth, random_state=seed)
    mean, deviation = train.mean(0), train.std(0)
    deviation[deviation < 1e-12] = 1.0
    train, test = (np.clip((part - mean) / deviation, -cut, cut) for part in (train, test))
    order = np.random.default_rng([seed, 2]).permutation(np.flatnonzero(truth_train == 1))
    known = np.zeros(len(train), dtype=np.int64)
    if share > 0:
        known[order[: max(FEWEST_KNOWN, round(share * len(order)))]] = 1
    return train, known, test, truth_test


def judge(path: Path, share: float, seed: int, settings: dict[str, Any], cut: float = np.inf) -> dict[str, Any]:
    """Fit one detector and return its numbers."""
    train, known, test, truth = split(path, share, seed, cut)
    start, cpu = time.perf_counter(), time.process_time()
    detector = NoiseContrastiveDetector(random_state=seed, **settings).fit(train, known)
    fit_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    start = time.perf_counter()
    anomaly = detector.anomaly_score(test)
    flagged = detector.predict(test) == -1
    return {
        "dataset": path.stem,
        "share": share,
        "seed": seed,
        "rows": len(train),
        "columns": train.shape[1],
        "known": int(known.sum()),
        "auroc": round(float(roc_auc_score(truth, anomaly)), 6),
        "ap": round(float(average_precision_score(truth, anomaly)), 6),
        "prior": round(detector.prior_, 5),
        "true share": round(float(truth.mean()), 5),
        "flagged": round(float(flagged.mean()), 5),
        "precision": round(float(truth[flagged].mean()) if flagged.any() else 1.0, 5),
        "recall": round(float(flagged[truth == 1].mean()), 5),
        "fit seconds": round(fit_s, 2),
        "fit cpu seconds": round(cpu_s, 2),
        "score seconds": round((time.perf_counter() - start) / 2, 3),
    }


def read_peers(path: Path, share: float, seeds: list[int]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Read (AUROC, AP) of each seed by detector and data set."""
    scores: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            fits = float(row["la"]) == share if share else row["detector"] in UNSUPERVISED
            if fits and int(row["seed"]) in seeds and row["auroc"] not in ("", "nan"):
                scores[row["detector"]][row["dataset"]].append((float(row["auroc"]), float(row["ap"])))
    return scores


def compare(rows: list[dict[str, Any]], peers: Path | None, share: float, seeds: list[int]) -> list[dict[str, Any]]:
    """Return means, medians and mean ranks by average precision of all detectors with all seeds."""
    everyone: dict[str, dict[str, list[tuple[float, float]]]] = {OURS: defaultdict(list)}
    for row in rows:
        everyone[OURS][row["dataset"]].append((row["auroc"], row["ap"]))
    tables = sorted(everyone[OURS])
    if peers is not None:
        everyone |= read_peers(peers, share, seeds)
    complete = {
        name: np.array([np.mean(scores[table], axis=0) for table in tables])
        for name, scores in everyone.items()
        if set(tables) <= set(scores) and min(len(scores[table]) for table in tables) == len(seeds)
    }
    stacked = np.stack([values[:, 1] for values in complete.values()])
    ranks = 1 + (stacked[None, :, :] > stacked[:, None, :]).sum(1)
    result = [
        {
            "detector": name,
            "seeds": min(len(everyone[name][table]) for table in tables),
            "auroc": round(float(values[:, 0].mean()), 4),
            "median auroc": round(float(np.median(values[:, 0])), 4),
            "ap": round(float(values[:, 1].mean()), 4),
            "median ap": round(float(np.median(values[:, 1])), 4),
            "mean rank": round(float(rank.mean()), 2),
        }
        for (name, values), rank in zip(complete.items(), ranks, strict=True)
    ]
    return sorted(result, key=lambda row: -row["ap"])


def main() -> None:
    """Run all tables, print a summary for each share, and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shares", default="0.1,0.01,0", help="shares of the training anomalies that are known")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--datasets", help="names of tables, by default all")
    parser.add_argument("--settings", default="{}", help="settings of the detector that differ from its defaults, JSON")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--cut", type=float, default=np.inf, help="cut standardised columns at ±CUT, by default not")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="one table, a small detector: to see that everything runs")
    args = parser.parse_args()
    folder = Path(os.environ.get("FVNCE_DATA", "")) / "adbench"
    paths = sorted(folder.glob("*.npz"))
    if args.datasets:
        paths = [path for path in paths if path.stem in args.datasets.split(",")]
    if not paths:
        sys.exit(f"FVNCE_DATA must name a folder that holds adbench/*.npz, found none in {folder}")
    settings = json.loads(args.settings)
    if args.quick:
        paths, settings = paths[:1], {"n_trees": 20, "n_networks": 1, "steps": 30, **settings}
    seeds = [int(seed) for seed in args.seeds.split(",")]
    inputs = "standardised by training rows" + (f" and cut at ±{args.cut:g}" if np.isfinite(args.cut) else "")
    # Runs add up: a share and seed that the file holds already is not run again unless the code, settings or inputs
    # differ.
    before = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    now = {"settings": settings, "inputs": inputs, "commit": made_by("").get("commit")}
    same = {name: before.get(name) for name in now} == now
    rows = before["rows"] if same else []
    done = {(row["dataset"], row["share"], row["seed"]) for row in rows}
    commands = (
        [*before.get("commands", []), "python " + " ".join(sys.argv)] if rows else ["python " + " ".join(sys.argv)]
    )
    for share in map(float, args.shares.split(",")):
        for seed in seeds:
            for path in paths:
                if (path.stem, share, seed) in done:
                    continue
                row = judge(path, share, seed, settings, args.cut)
                rows.append(row)
                print(*(row[name] for name in ("dataset", "share", "seed", "auroc", "ap", "fit seconds")), flush=True)
                if args.out:
                    write(args.out, rows, commands, settings, inputs, args.peers)
    write(args.out, rows, commands, settings, inputs, args.peers, show=True)


def write(
    out: Path | None,
    rows: list[dict[str, Any]],
    commands: list[str],
    settings: dict[str, Any],
    inputs: str,
    peers: Path | None,
    show: bool = False,
) -> None:
    """Write all numbers to one file, if given, and print the tables."""
    summary, of_parts = {}, {}
    for share in sorted({row["share"] for row in rows}, reverse=True):
        mine = [row for row in rows if row["share"] == share]
        tables = {row["dataset"] for row in mine}
        # A seed that is still running has some tables only.
        seeds = sorted(
            seed
            for seed in {row["seed"] for row in mine}
            if {row["dataset"] for row in mine if row["seed"] == seed} == tables
        )
        several = {"seed 0": [0]} | ({f"seeds {','.join(map(str, seeds))}": seeds} if len(seeds) > 1 else {})
        for name, chosen in several.items():
            some = [row for row in mine if row["seed"] in chosen]
            if not some:
                continue
            summary[f"{share:g}, {name}"] = table = compare(some, peers, share, chosen)
            parts = {part: [row for row in some if (row["dataset"] in LATER) == later] for part, later in PARTS.items()}
            if all(parts.values()):
                of_parts[f"{share:g}, {name}"] = {
                    part: compare(part_rows, peers, share, chosen) for part, part_rows in parts.items()
                }
            if show:
                print(
                    f"\n{share:g} of the anomalies known, {name}, {len({r['dataset'] for r in some})} tables; "
                    f"median fit {np.median([r['fit seconds'] for r in some]):.1f} s"
                )
                for line in table:
                    auroc, ap, rank = line["auroc"], line["ap"], line["mean rank"]
                    print(f"  {line['detector']:16s} AUROC {auroc:.4f}  AP {ap:.4f}  rank {rank:.2f}")
    if out is None:
        return
    content = {
        **made_by(commands[-1]),
        "commands": commands,
        "settings": settings,
        "inputs": inputs,
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        "versions": {"torch": torch.__version__, "scikit-learn": sklearn.__version__, "numpy": np.__version__},
        "fit seconds": "wall clock on a shared machine; cpu seconds beside them are of this process alone",
        "summary": summary,
        "parts": of_parts,
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = out.with_suffix(".part")
    hidden.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    hidden.replace(out)


if __name__ == "__main__":
    main()
