"""Strange digits: nine digits for training, the tenth to be found; and other kinds of image altogether.

Run with

    FVNCE_DATA=... python benchmarks/detection_images.py --out results/bench/detection_images.json

For each held-out digit the training rows are images of the other nine, the test rows are of all ten, and the detector
knows 0 or 10 examples of the tenth. Beside it stand an autoencoder and a VAE with the same networks, the same number of
steps and the same rows, scored by −log p(x, z). FVNCE_DATA names a folder that holds ``mnist`` and, if there,
``fashion_mnist`` and ``kmnist``. The published numbers of Normalized Autoencoders (Yoon et al. 2021) need the
whole training set and MCMC; they are no part of this run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from fvnce import NoiseContrastiveDetector

Images = NDArray[np.uint8]


def idx(folder: Path, name: str) -> Images:
    """An idx file, plain or compressed."""
    path = next(iter(sorted(folder.glob(f"{name}*"))), None)
    if path is None:
        raise FileNotFoundError(f"{folder} must hold {name}, found no such file")
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    dims = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def test_images(folder: Path) -> Images | None:
    """The test images of a folder, from an idx file or an npz file, if it holds them."""
    if any(folder.glob("t10k-images*")):
        return idx(folder, "t10k-images")
    for path in sorted(folder.glob("*test-imgs.npz")):
        with np.load(path, allow_pickle=False) as content:
            images: Images = content["arr_0"]
            return images
    return None


def detectors(known: int, steps: int, seed: int) -> dict[str, NoiseContrastiveDetector]:
    """Ours and its peers of equal size; without known outliers ours is the autoencoder, and is run once."""
    common: dict[str, Any] = {"steps": steps, "random_state": seed, "calibration_folds": 0, "n_networks": 1}
    if known:
        return {"fvnce": NoiseContrastiveDetector(**common)}
    return {
        "autoencoder (fvnce without labels)": NoiseContrastiveDetector(**common),
        "VAE": NoiseContrastiveDetector(members=("variational",), **common),
    }


def main() -> None:
    """Run and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--digits", default="0,1,2,3,4,5,6,7,8,9")
    parser.add_argument("--rows", type=int, default=6000, help="training images")
    parser.add_argument("--test-rows", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = Path(os.environ.get("FVNCE_DATA", ""))
    x, digit = idx(folder / "mnist", "train-images"), idx(folder / "mnist", "train-labels")
    x_test, digit_test = idx(folder / "mnist", "t10k-images"), idx(folder / "mnist", "t10k-labels")
    rng = np.random.default_rng(args.seed)
    rows: list[dict[str, Any]] = []

    def judge(name: str, train: Images, known: Images, good: Images, bad: Images) -> None:
        truth = np.repeat([0, 1], [len(good), len(bad)])
        y = np.repeat([0, 1], [len(train), len(known)])
        for method, detector in detectors(len(known), args.steps, args.seed).items():
            start = time.perf_counter()
            detector.fit(np.concatenate([train, known]), y)
            seconds = time.perf_counter() - start
            auroc = float(roc_auc_score(truth, detector.anomaly_score(np.concatenate([good, bad]))))
            rows.append(
                {
                    "task": name,
                    "known": len(known),
                    "method": method,
                    "auroc": round(auroc, 4),
                    "fit seconds": round(seconds, 1),
                }
            )
            print(*rows[-1].values(), flush=True)

    for held_out in map(int, args.digits.split(",")):
        train = x[rng.choice(np.flatnonzero(digit != held_out), args.rows, replace=False)]
        examples = x[rng.choice(np.flatnonzero(digit == held_out), 10, replace=False)]
        chosen = rng.choice(len(x_test), min(args.test_rows, len(x_test)), replace=False)
        good, bad = (x_test[chosen][(digit_test[chosen] == held_out) == strange] for strange in (False, True))
        for known in (0, 10):
            judge(f"digit {held_out}", train, examples[:known], good, bad)
    train = x[rng.choice(len(x), args.rows, replace=False)]
    good = x_test[rng.choice(len(x_test), args.test_rows // 2, replace=False)]
    for other in ("fashion_mnist", "kmnist"):
        strange = test_images(folder / other)
        if strange is None:
            print(f"no {other} in {folder}", file=sys.stderr)
            continue
        examples, bad = strange[:10], strange[10 : 10 + args.test_rows // 2]
        for known in (0, 10):
            judge(f"MNIST against {other}", train, examples[:known], good, bad)
    if args.out:
        summary: dict[str, float] = {}
        for key in sorted({(row["method"], row["known"]) for row in rows if row["task"].startswith("digit")}):
            values = [r["auroc"] for r in rows if (r["method"], r["known"]) == key and r["task"].startswith("digit")]
            summary[f"{key[0]}, {key[1]} known: mean AUROC over held-out digits"] = round(float(np.mean(values)), 4)
        content = {"command": "python " + " ".join(sys.argv), "seed": args.seed, "summary": summary, "rows": rows}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        hidden = args.out.with_suffix(".part")
        hidden.write_text(json.dumps(content, indent=1) + "\n")
        hidden.replace(args.out)


if __name__ == "__main__":
    main()
