"""Strange digits: nine digits for training, the tenth to be found; and other kinds of image altogether.

Run with

    FVNCE_DATA=... python benchmarks/detection_images.py --out results/bench/detection_images.json

For each held-out digit the training rows are images of the other nine, the test rows are of all ten, and the detector
knows 0 or 10 examples of the tenth. Beside it stand an autoencoder and a VAE with the same networks, the same number of
steps and the same rows, scored by −log p(x, z). FVNCE_DATA names a folder that holds ``mnist`` and, if there,
``fashion_mnist`` and ``kmnist``. Normalized Autoencoders (Yoon et al. 2021) are trained on the whole set by MCMC; they
are no part of this run. Tasks that are in the file already are not repeated.

Takes about 40 minutes on two cores.
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
    """Ours, and what it is compared with, which can make nothing of known outliers."""
    # Folds only turn scores into probabilities, which are not judged here.
    common: dict[str, Any] = {"steps": steps, "random_state": seed, "calibration_folds": 0}
    ours = {"fvnce": NoiseContrastiveDetector(**common)}
    if known:
        return ours
    return ours | {
        "autoencoder": NoiseContrastiveDetector(members=("autoencoder",), **common),
        "VAE": NoiseContrastiveDetector(members=("variational",), **common),
    }


def main() -> None:
    """Run and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--digits", default="0,1,2,3,4,5,6,7,8,9")
    parser.add_argument("--rows", type=int, default=4000, help="training images")
    parser.add_argument("--test-rows", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = Path(os.environ.get("FVNCE_DATA", ""))
    x, digit = idx(folder / "mnist", "train-images"), idx(folder / "mnist", "train-labels")
    x_test, digit_test = idx(folder / "mnist", "t10k-images"), idx(folder / "mnist", "t10k-labels")
    rng = np.random.default_rng(args.seed)
    settings = {"rows": args.rows, "test rows": args.test_rows, "steps": args.steps, "seed": args.seed}
    rows = _finished(args.out, settings)

    def judge(name: str, train: Images, known: Images, good: Images, bad: Images) -> None:
        if any(row["task"] == name and row["known"] == len(known) for row in rows):
            return
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
        if args.out:
            _write(args.out, settings, rows)

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


def _finished(path: Path | None, settings: dict[str, Any]) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    content = json.loads(path.read_text())
    return list(content["rows"]) if content["settings"] == settings else []


def _write(path: Path, settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    digits = [row for row in rows if row["task"].startswith("digit")]
    summary = []
    for method, known in dict.fromkeys((row["method"], row["known"]) for row in digits):
        values = [row["auroc"] for row in digits if (row["method"], row["known"]) == (method, known)]
        mean = round(float(np.mean(values)), 4)
        summary.append({"method": method, "known": known, "digits": len(values), "mean auroc": mean})
    content = {
        "command": "python benchmarks/detection_images.py --out results/bench/detection_images.json",
        "settings": settings,
        "summary": summary,
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_suffix(".part")
    hidden.write_text(json.dumps(content, indent=1) + "\n")
    hidden.replace(path)


if __name__ == "__main__":
    main()
