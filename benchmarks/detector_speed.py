"""Time to fit and to score of the detector, compared with common detectors and classifiers.

Run with

    FVNCE_DATA=... python benchmarks/detector_speed.py --out results/bench/detector-speed.json

All methods use their defaults and one thread. A pair is this detector and a peer on the same rows, one after the other
in one process. Times are processor times, so other programs do not matter; reported is the median over pairs of the
ratio ours / theirs. Three comparisons:

* fit on the tables of ``adbench`` in the folder FVNCE_DATA, 10 % of the training anomalies known: splits as in
  ``benchmarks/detection.py``, one pair for each table. Classifiers take unlabeled rows for normal ones.
* the same with none known, compared with detectors without labels.
* score 100,000 × 20 synthetic rows, fitted on 20,000 of which a twentieth are outliers and a tenth of these known.

Also of the detector of the last comparison: the size of its file, what one row costs, and CPU seconds and memory of a
process that imports ``fvnce.scorer`` and of one that scores two rows of a csv file by the command line.

catboost, xgboost, lightgbm, pyod and deepod are needed only for their rows; what is not installed is left out.

Takes about ten minutes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detection import split
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest
from sklearn.neighbors import NearestNeighbors

from fvnce import NoiseContrastiveDetector, scorer
from fvnce.paper.cells import made_by, write_json

Array = NDArray[np.float64]
Score = Callable[[Array], Any]
Fit = Callable[[Array, NDArray[np.int64], int], Score]
OURS = "fvnce"
#: What runs a command line and goes on.
COMMAND = (
    "from fvnce.app.cli import main\ntry:\n    main({!r}.split())\nexcept SystemExit as stop:\n    assert not stop.code"
)
SEED = 0


def fvnce(X: Array, y: NDArray[np.int64], seed: int) -> Score:
    """Fit the detector with its defaults."""
    return NoiseContrastiveDetector(random_state=seed).fit(X, y).anomaly_score


def _classifier(make: Callable[[int], Any]) -> Fit:
    def fit(X: Array, y: NDArray[np.int64], seed: int) -> Score:
        model = make(seed).fit(X, y)
        return lambda rows: model.predict_proba(rows)[:, 1]

    return fit


def _catboost(seed: int) -> Any:
    from catboost import CatBoostClassifier

    return CatBoostClassifier(random_seed=seed, thread_count=1, verbose=0, allow_writing_files=False)


def _xgboost(seed: int) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(random_state=seed, n_jobs=1)


def _lightgbm(seed: int) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(random_state=seed, n_jobs=1, verbose=-1)


def isolation_forest(X: Array, y: NDArray[np.int64], seed: int) -> Score:
    """Fit scikit-learn's isolation forest with its defaults."""
    return IsolationForest(random_state=seed).fit(X).score_samples


def ecod(X: Array, y: NDArray[np.int64], seed: int) -> Score:
    """Fit PyOD's ECOD with its defaults."""
    from pyod.models.ecod import ECOD

    return ECOD().fit(X).decision_function


def neighbours(X: Array, y: NDArray[np.int64], seed: int) -> Score:
    """Fit nearest neighbors: the distance to the fifth training row, the default of PyOD's KNN."""
    model = NearestNeighbors(n_neighbors=5).fit(X)
    model.kneighbors(X)  # its threshold needs the scores of the training rows
    return lambda rows: model.kneighbors(rows)[0][:, -1]


def devnet(X: Array, y: NDArray[np.int64], seed: int) -> Score:
    """Fit DevNet as implemented in DeepOD."""
    from deepod.models.tabular import DevNet

    return DevNet(random_state=seed, device="cpu", verbose=0).fit(X, y).decision_function


WITH_LABELS: dict[str, Fit] = {
    "catboost": _classifier(_catboost),
    "xgboost": _classifier(_xgboost),
    "lightgbm": _classifier(_lightgbm),
    "hist gradient boosting": _classifier(lambda seed: HistGradientBoostingClassifier(random_state=seed)),
    "devnet": devnet,
}
WITHOUT: dict[str, Fit] = {"isolation forest": isolation_forest, "ecod": ecod, "knn": neighbours}


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor seconds and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def fit_pairs(paths: list[Path], share: float, peers: dict[str, Fit]) -> list[dict[str, Any]]:
    """Return the seconds of every fit, one row for each table."""
    rows = []
    for path in paths:
        X, y, _, _ = split(path, share, SEED)
        row: dict[str, Any] = {"table": path.stem, "rows": len(X), "columns": X.shape[1], "known": int(y.sum())}
        for name, fit in {OURS: fvnce, **peers}.items():
            row[name] = round(seconds(partial(fit, X, y, SEED))[0], 4)
        rows.append(row)
        print(row, flush=True)
    return rows


def rows_like(n: int, seed: int) -> tuple[Array, NDArray[np.bool_]]:
    """Return three clusters in 20 columns, with a twentieth of the rows further out."""
    rng = np.random.default_rng(seed)
    centres = 2 * np.random.default_rng(SEED).normal(size=(3, 20))
    outlying = rng.random(n) < 0.05
    X = centres[rng.integers(3, size=n)] + rng.normal(size=(n, 20))
    X[outlying] += 2 * rng.normal(size=(int(outlying.sum()), 20))
    return X, outlying


def score_pairs(train: int, test: int, repeats: int, peers: dict[str, Fit], *, known: bool) -> list[dict[str, Any]]:
    """Return the seconds of scoring ``test`` rows for each repetition, and those of the fit."""
    X, outlying = rows_like(train, 1)
    y = (outlying & (np.arange(train) % 10 == 0)).astype(np.int64) if known else np.zeros(train, dtype=np.int64)
    fitted = {name: seconds(partial(fit, X, y, SEED)) for name, fit in {OURS: fvnce, **peers}.items()}
    new, _ = rows_like(test, 2)
    rows = [{"what": f"fit {train:,} × 20", **{name: round(spent, 4) for name, (spent, _) in fitted.items()}}]
    for _ in range(repeats):
        row: dict[str, Any] = {"what": f"score {test:,} × 20"}
        for name, (_, score) in fitted.items():
            row[name] = round(seconds(partial(score, new))[0], 4)
        rows.append(row)
        print(row, flush=True)
    return rows


def costs(train: int, repeats: int) -> dict[str, float]:
    """Return what a saved detector costs: medians over repeats, and over 100 rows."""
    X, outlying = rows_like(train, 1)
    table = np.column_stack([X, outlying & (np.arange(train) % 10 == 0)])
    header = ",".join([*(f"c{i}" for i in range(X.shape[1])), "y"])
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (("train", table), ("two", table[:2])):
            np.savetxt(f"{folder}/{name}.csv", rows, "%.6g", ",", header=header, comments="")
        process(COMMAND.format("fit train.csv --label y --out run -q"), folder)
        detector = scorer.load(f"{folder}/run")
        one = [seconds(partial(detector.anomaly_score, X[i : i + 1]))[0] for i in range(100)]
        size = os.path.getsize(f"{folder}/run/model.safetensors")
        found = {"file, MB": round(size / 1e6, 2), "one row, ms": round(1000 * float(np.median(one)), 2)}
        calls = {"import": "import fvnce.scorer", "two rows": COMMAND.format("score run two.csv -q")}
        for name, call in calls.items():
            spent, peak = np.median([process(call, folder) for _ in range(repeats)], axis=0)
            found |= {f"{name}, CPU s": round(float(spent), 2), f"{name}, MB": round(float(peak))}
    return found


def process(code: str, folder: str) -> tuple[float, float]:
    """Run Python code, and return its CPU seconds and its peak memory in MB."""
    # As the system counts it, the peak of a child would include that of this process.
    told = f"{code}\nprint([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen([sys.executable, "-c", told], cwd=folder, stdout=out)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{code} ended with {child.returncode}")
        out.seek(0)
        return used.ru_utime + used.ru_stime, int(out.read().split()[-1]) / 1024


def ratios(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return median and quartiles over pairs of ours / theirs."""
    peers = [name for name in rows[0] if name in WITH_LABELS or name in WITHOUT]
    by_peer = {}
    for name in peers:
        values = [row[OURS] / row[name] for row in rows if row[name] > 0]
        low, middle, high = (round(float(value), 3) for value in np.quantile(values, (0.25, 0.5, 0.75)))
        theirs = round(float(np.median([row[name] for row in rows])), 4)
        by_peer[name] = {"ratio": middle, "quartiles": [low, high], "seconds": theirs, "pairs": len(values)}
    return by_peer


def installed(peers: dict[str, Fit]) -> dict[str, Fit]:
    """Return the peers that can be imported, after a warm-up on a few rows."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), (np.arange(60) < 6).astype(np.int64)
    here = {}
    for name, fit in peers.items():
        try:
            fit(X, y, SEED)(X)
        except ImportError as error:
            print(f"without {name}: {error}")
        else:
            here[name] = fit
    return here


def versions() -> dict[str, str]:
    """Return the versions of all installed packages."""
    versions = {}
    for name in ("torch", "numpy", "scikit-learn", "catboost", "xgboost", "lightgbm", "pyod", "deepod"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def main() -> None:
    """Measure all pairs, print and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of scoring")
    parser.add_argument("--tables", help="names of tables, by default all")
    parser.add_argument("--peers", help="names of peers, by default all that are installed")
    parser.add_argument("--only", choices=("fit", "score"), help="one half of the comparisons")
    parser.add_argument("--quick", action="store_true", help="two tables, few rows, the peers of scikit-learn")
    args = parser.parse_args()
    folder = Path(os.environ.get("FVNCE_DATA", "")) / "adbench"
    paths = sorted(folder.glob("*.npz"))[: 2 if args.quick else None]
    if args.tables:
        paths = [path for path in paths if path.stem in args.tables.split(",")]
    if not paths:
        sys.exit(f"FVNCE_DATA must name a folder that holds adbench/*.npz, found none in {folder}")
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    begun = time.perf_counter(), time.process_time()
    chosen = {"hist gradient boosting", "isolation forest"} if args.quick else {*WITH_LABELS, *WITHOUT}
    chosen = set(args.peers.split(",")) if args.peers else chosen
    with_labels, without = (
        installed({name: fit for name, fit in peers.items() if name in chosen}) for peers in (WITH_LABELS, WITHOUT)
    )
    fvnce(rows_like(200, 0)[0], (np.arange(200) < 5).astype(np.int64), SEED)
    train, test = (500, 2000) if args.quick else (20_000, 100_000)
    # DevNet's scores take their time from batches of 64 rows in Python; it is left out where rows are many.
    scored = {name: fit for name, fit in with_labels.items() if name != "devnet"}
    summaries = {}
    if args.only != "score":
        summaries["fit, 10 % known"] = fit_pairs(paths, 0.1, with_labels)
        summaries["fit, none known"] = fit_pairs(paths, 0.0, without)
    if args.only != "fit":
        both = scored | without
        summaries["score, known outliers"] = score_pairs(train, test, args.repeats, both, known=True)
        summaries["score, none known"] = score_pairs(train, test, args.repeats, without, known=False)
    summary = {
        name: {"fvnce seconds": round(float(np.median([row[OURS] for row in used])), 4), "ours / theirs": ratios(used)}
        for name, rows in summaries.items()
        if (used := [row for row in rows if not row.get("what", "").startswith("fit")])
    }
    content: dict[str, Any] = {
        **made_by("python " + " ".join(sys.argv)),
        "settings": "defaults of everyone, one thread",
        "seed": SEED,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
        "versions": versions(),
        "duration": {
            "wall seconds": round(time.perf_counter() - begun[0], 1),
            "cpu seconds": round(time.process_time() - begun[1], 1),
        },
        "seconds": "of the processor, in this process",
        "summary": summary,
        "rows": summaries,
    }
    for name, line in summary.items():
        shown = ", ".join(f"{peer} {value['ratio']:.2f}" for peer, value in line["ours / theirs"].items())
        print(f"{name}: ours {line['fvnce seconds']} s; ours / theirs: {shown}")
    if args.only != "fit":
        content["costs"] = costs(train, args.repeats)
        print(content["costs"])
    if args.out is not None:
        write_json(args.out, content)


if __name__ == "__main__":
    main()
