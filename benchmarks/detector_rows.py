"""Average precision of the detector against ``max_rows``, the maximum number of training rows.

Run with

    FVNCE_DATA=... python benchmarks/detector_rows.py --out results/bench/detector-rows.json

The detector trains on at most ``max_rows`` unlabeled rows, drawn at random; known outliers are all kept. Measured are
average precision and AUROC on test rows, the seconds of the processor for the fit and for scoring 10,000 test rows, on
the largest tables of ``adbench`` in the folder FVNCE_DATA, split as in ``benchmarks/detection.py`` with 10 % known, and
on MNIST by its 30 first principal components: 40,000 training images, of which 3 % show the digit that is to be found
and a tenth of these is known.

Takes about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detection import split
from detection_images import idx
from sklearn.decomposition import PCA
from sklearn.metrics import average_precision_score, roc_auc_score

from fvnce import NoiseContrastiveDetector
from fvnce.paper.cells import made_by, write_json

TABLES = ("2_annthyroid", "27_PageBlocks", "28_pendigits", "31_satimage-2")
FEW, MANY = (625, 1250, 2500, 10_000), (2500, 5000, 10_000, 20_000, 40_000)


def digits(folder: Path, outlier: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return training rows, 1 for the known outliers among them, test rows and truth."""
    X = idx(folder, "train-images").reshape(60_000, -1) / 255.0
    kind = idx(folder, "train-labels") == outlier
    rng = np.random.default_rng(seed)
    bad, good = (rng.permutation(np.flatnonzero(part)) for part in (kind, ~kind))
    train = np.concatenate([bad[:1200], good[:38_800]])
    test = np.concatenate([bad[1200:1500], good[38_800:48_500]])
    pca = PCA(30, random_state=seed).fit(X[train[:5000]])
    known = np.zeros(len(train), dtype=np.int64)
    known[:120] = 1
    return pca.transform(X[train]), known, pca.transform(X[test]), kind[test]


def measure(data: tuple[Any, Any, Any, Any], rows: int, seed: int) -> dict[str, Any]:
    """Fit one detector and return its numbers."""
    X, known, test, truth = data
    begun = time.process_time()
    detector = NoiseContrastiveDetector(max_rows=rows, random_state=seed).fit(X, known)
    fitted = time.process_time()
    anomaly = detector.anomaly_score(test)
    scored = (time.process_time() - fitted) * 10_000 / len(test)
    return {
        "max_rows": rows,
        "rows": len(X),
        "seed": seed,
        "ap": round(float(average_precision_score(truth, anomaly)), 5),
        "auroc": round(float(roc_auc_score(truth, anomaly)), 5),
        "fit cpu seconds": round(fitted - begun, 3),
        "score cpu seconds, 10,000 rows": round(scored, 4),
    }


def main() -> None:
    """Run all sizes and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", default="0,1")
    args = parser.parse_args()
    data = Path(os.environ.get("FVNCE_DATA", ""))
    if not (data / "adbench").is_dir():
        sys.exit(f"FVNCE_DATA must name a folder that holds adbench, found none in {data}")
    torch.set_num_threads(1)
    rows = []
    begun = time.process_time()
    for seed in map(int, args.seeds.split(",")):
        tasks: dict[str, tuple[Any, tuple[int, ...]]] = {
            name: (split(data / "adbench" / f"{name}.npz", 0.1, seed), FEW) for name in TABLES
        }
        if (data / "mnist").is_dir():
            tasks |= {f"mnist, digit {digit}": (digits(data / "mnist", digit, seed), MANY) for digit in (4, 8)}
        for name, (task, sizes) in tasks.items():
            for size in sizes:
                rows.append({"table": name, **measure(task, size, seed)})
                print(rows[-1], flush=True)
    means: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        means["mnist" if row["table"].startswith("mnist") else "adbench"][str(row["max_rows"])].append(row["ap"])
    content = {
        **made_by("python " + " ".join(sys.argv)),
        "seeds": args.seeds,
        "cpu seconds": round(time.process_time() - begun, 1),
        "mean ap by max_rows": {
            kind: {size: round(float(np.mean(values)), 4) for size, values in sizes.items()}
            for kind, sizes in means.items()
        },
        "rows": rows,
    }
    print(content["mean ap by max_rows"])
    if args.out is not None:
        write_json(args.out, content)


if __name__ == "__main__":
    main()
