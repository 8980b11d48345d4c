"""Detection of images of a class that was not in training, with no known outliers or a few of one other class.

Run with

    FVNCE_DATA=... python benchmarks/detection_images.py --out results/bench/detection_images.json

Four protocols, AUROC on every test image. *Held out*: nine digits of MNIST for training (20,000 images of them), the
tenth to be found among all ten. *One class*: one digit for training, nine to be found; the same for each class of
KMNIST and Fashion-MNIST, of which the test set is at hand: half of it for training, half for testing. *One class, 5 %
known*: one digit for training, and of the digit after it as many images as make 5 % of the training set, marked (the
protocol of Deep SAD). *Other images*: all ten digits for training, to tell the test images of KMNIST and Fashion-MNIST
from MNIST's. Training images are clean in all protocols, and the detector is fitted with ``clean=True``.

The peers are nearest neighbors (the mean distance to 10), LOF (20 neighbors), an isolation forest and a one-class SVM
(on 4,000 rows at most, since its time grows with their square) on 64 principal components, and a convolutional
autoencoder and a VAE: in the same run, on the same test images. The two networks have the same budget for every task:
at most 4,000 training images, 400 steps of 64 images with Adam, codes of 32 numbers; larger budgets are not measured.
FVNCE_DATA names a folder that holds ``mnist`` and, if there, ``fashion_mnist`` and ``kmnist``. What is in the file is
not repeated, but for numbers of the detector at another commit.

Takes about half an hour of one core, 11 minutes of it for the detector itself and 14 for the two networks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.svm import OneClassSVM
from torch.distributions import Independent, Normal

import fvnce
from fvnce import NoiseContrastiveDetector
from fvnce.models import convolutional_pair
from fvnce.paper.cells import made_by
from fvnce.paper.datasets import idx_array, read_bytes

Images = NDArray[np.uint8]
Array = NDArray[np.float64]
Score = Callable[[Images], Array]

#: Images of nine digits for training, images of a one-class SVM, and principal components.
ROWS, SVM_ROWS, COMPONENTS = 20_000, 4000, 64
#: What the autoencoder and the VAE may spend: images, steps of 64 images, numbers of a code.
MAX_IMAGES, STEPS, BATCH, CODE = 4000, 400, 64, 32
#: Share of the training images that is known to be of another class.
KNOWN = 0.05
OTHERS = ("kmnist", "fashion_mnist")


@dataclass(frozen=True)
class Task:
    """Training images, labels of known outliers, test images and truth."""

    protocol: str
    data: str
    what: str
    train: Images
    known: Images
    test: Images
    truth: NDArray[np.bool_]


def idx(folder: Path, name: str) -> Images:
    """Read an idx file, plain or compressed."""
    path = next(iter(sorted(folder.glob(f"{name}*"))), None)
    if path is None:
        raise FileNotFoundError(f"{folder} must hold {name}, found no such file")
    return idx_array(read_bytes(path))


def test_set(folder: Path) -> tuple[Images, Images] | None:
    """Read test images and their classes from idx or npz files; None if the folder has none."""
    if any(folder.glob("t10k-images*")):
        return idx(folder, "t10k-images"), idx(folder, "t10k-labels")
    tasks = []
    for name in ("test-imgs", "test-labels"):
        path = next(iter(sorted(folder.glob(f"*{name}.npz"))), None)
        if path is None:
            return None
        with np.load(path, allow_pickle=False) as content:
            tasks.append(content["arr_0"])
    return tasks[0], tasks[1]


def tasks(folder: Path, protocols: list[str], classes: list[int], seed: int) -> Iterator[Task]:
    """Yield every task of the protocols, with images drawn by the seed."""
    x, digit = idx(folder / "mnist", "train-images"), idx(folder / "mnist", "train-labels")
    x_test, digit_test = idx(folder / "mnist", "t10k-images"), idx(folder / "mnist", "t10k-labels")
    none = x[:0]

    def drawn(places: NDArray[Any], *key: int) -> NDArray[Any]:
        return np.random.default_rng([seed, *key]).permutation(places)[:ROWS]

    for one in classes:
        if "held out" in protocols:
            train = x[drawn(np.flatnonzero(digit != one), 1, one)]
            yield Task("held out", "MNIST", str(one), train, none, x_test, digit_test == one)
        if "one class" in protocols:
            yield Task("one class", "MNIST", str(one), x[digit == one], none, x_test, digit_test != one)
        if "one class, 5 % known" in protocols:
            train, other = x[digit == one], (one + 1) % 10
            count = round(KNOWN / (1 - KNOWN) * len(train))
            known = x[drawn(np.flatnonzero(digit == other), 2, one)[:count]]
            what = f"{one}, known {other}"
            yield Task("one class, 5 % known", "MNIST", what, train, known, x_test, digit_test != one)
    for name in OTHERS:
        loaded = test_set(folder / name)
        if loaded is None:
            print(f"no {name} in {folder}", file=sys.stderr)
            continue
        images, kind = loaded
        order = np.random.default_rng([seed, 3]).permutation(len(images))
        first, second = order[: len(order) // 2], order[len(order) // 2 :]
        for one in classes if "one class" in protocols else []:
            train = images[first][kind[first] == one]
            yield Task("one class", name, str(one), train, none, images[second], kind[second] != one)
        if "other images" in protocols:
            train, test = x[drawn(np.arange(len(x)), 4)], np.concatenate([x_test, images])
            truth = np.repeat([False, True], [len(x_test), len(images)])
            yield Task("other images", "MNIST", f"against {name}", train, none, test, truth)


def ours(task: Task, seed: int) -> Score:
    """Fit the detector with its defaults and clean=True."""
    # Without known outliers folds only turn scores into probabilities, which are not judged here.
    folds = 3 if len(task.known) else 0
    detector = NoiseContrastiveDetector(clean=True, calibration_folds=folds, random_state=seed)
    y = np.repeat([0, 1], [len(task.train), len(task.known)])
    return detector.fit(np.concatenate([task.train, task.known]), y).anomaly_score


def on_components(make: Callable[[Array, int], Callable[[Array], Array]]) -> Callable[[Task, int], Score]:
    """Wrap a method so that it sees 64 principal components."""

    def fit(task: Task, seed: int) -> Score:
        rows = task.train.reshape(len(task.train), -1) / 255.0
        pca = PCA(min(COMPONENTS, *rows.shape), svd_solver="randomized", random_state=seed).fit(rows[:5000])
        score = make(pca.transform(rows), seed)
        return lambda X: score(pca.transform(X.reshape(len(X), -1) / 255.0))

    return fit


def neighbours(z: Array, seed: int) -> Callable[[Array], Array]:
    """Return the mean distance to ten neighbors."""
    search = NearestNeighbors(n_neighbors=10, algorithm="brute").fit(z)
    return lambda new: np.asarray(search.kneighbors(new)[0].mean(1))


def lof(z: Array, seed: int) -> Callable[[Array], Array]:
    """Fit scikit-learn's local outlier factor."""
    model = LocalOutlierFactor(algorithm="brute", novelty=True).fit(z)
    return lambda new: np.asarray(-model.score_samples(new))


def isolation_forest(z: Array, seed: int) -> Callable[[Array], Array]:
    """Fit an isolation forest of 100 trees of 256 rows."""
    model = IsolationForest(random_state=seed).fit(z)
    return lambda new: np.asarray(-model.score_samples(new))


def ocsvm(z: Array, seed: int) -> Callable[[Array], Array]:
    """Fit a one-class SVM with a radial basis, ν = 0.1."""
    model = OneClassSVM(nu=0.1).fit(z[:SVM_ROWS])
    return lambda new: np.asarray(-model.decision_function(new))


def reconstruction(variational: bool) -> Callable[[Task, int], Score]:
    """Train a convolutional autoencoder or VAE; the score is −log p(x, g(x)), with g(x) the mean of the encoder."""

    def fit(task: Task, seed: int) -> Score:
        some = np.random.default_rng(seed).permutation(len(task.train))[:MAX_IMAGES]
        x = torch.from_numpy(task.train[some] / np.float32(255)).float()[:, None]
        torch.manual_seed(seed)
        first, second = convolutional_pair(CODE, width=16, outputs=2 * CODE if variational else CODE, size=x.shape[2:])
        prior = Independent(Normal(torch.zeros(CODE), torch.ones(CODE)), 1)
        model = fvnce.LatentVariableModel(prior, fvnce.GaussianDecoder(second, learned="shared"))
        encoder = fvnce.GaussianEncoder(first) if variational else fvnce.PointEncoder(first)
        objective = (fvnce.VAE if variational else fvnce.Autoencoder)(model, encoder)
        epochs = max(1, round(STEPS * BATCH / len(x)))
        fvnce.fit(objective, x, epochs=epochs, batch_size=BATCH, lr=3e-3, schedule="warmup-cosine", seed=seed)
        objective.eval()

        @torch.no_grad()
        def score(X: Images) -> Array:
            parts = torch.from_numpy(X / np.float32(255)).float()[:, None].split(1024)
            return -torch.cat([model.log_joint(part, encoder(part).mean) for part in parts]).double().numpy()

        return score

    return fit


METHODS: dict[str, Callable[[Task, int], Score]] = {
    "fvnce": ours,
    "kNN": on_components(neighbours),
    "LOF": on_components(lof),
    "isolation forest": on_components(isolation_forest),
    "one-class SVM": on_components(ocsvm),
    "autoencoder": reconstruction(variational=False),
    "VAE": reconstruction(variational=True),
}
#: What makes something of known outliers.
WITH_KNOWN = ("fvnce",)
PROTOCOLS = ("held out", "one class", "one class, 5 % known", "other images")


def main() -> None:
    """Run all tasks and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocols", default=";".join(PROTOCOLS), help="some of them, with ; between")
    parser.add_argument("--classes", default="0,1,2,3,4,5,6,7,8,9")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test-rows", type=int, help="use only the first N test images; by default all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="two classes, one method: to see that everything runs")
    args = parser.parse_args()
    folder = Path(os.environ.get("FVNCE_DATA", ""))
    if not (folder / "mnist").is_dir():
        sys.exit(f"FVNCE_DATA must name a folder that holds mnist, found none in {folder}")
    classes = [int(one) for one in args.classes.split(",")]
    methods = args.methods.split(",")
    if args.quick:
        classes, methods = classes[:2], ["fvnce", "kNN"]
    settings = {
        "seed": args.seed,
        "training rows, held out": ROWS,
        "test rows": args.test_rows or "all",
        "budget of autoencoder and VAE": "4,000 images, 400 steps of 64, codes of 32",
    }
    before = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    rows: list[dict[str, Any]] = before.get("rows", []) if before.get("settings") == settings else []
    if before.get("commit") != made_by("").get("commit"):
        rows = [row for row in rows if row["method"] != "fvnce"]
    done = {(row["protocol"], row["data"], row["what"], row["method"]) for row in rows}
    for task in tasks(folder, args.protocols.split(";"), classes, args.seed):
        test, truth = task.test[: args.test_rows], task.truth[: args.test_rows]
        for method in methods:
            if (task.protocol, task.data, task.what, method) in done or (len(task.known) and method not in WITH_KNOWN):
                continue
            start = time.process_time()
            score = METHODS[method](task, args.seed)
            fitted = time.process_time()
            auroc = float(roc_auc_score(truth, score(test)))
            rows.append(
                {
                    "protocol": task.protocol,
                    "data": task.data,
                    "what": task.what,
                    "method": method,
                    "seed": args.seed,
                    "rows": len(task.train),
                    "known": len(task.known),
                    "test rows": len(test),
                    "auroc": round(auroc, 4),
                    "fit cpu seconds": round(fitted - start, 1),
                    "score cpu seconds": round(time.process_time() - fitted, 1),
                }
            )
            print(*rows[-1].values(), flush=True)
            if args.out:
                _write(args.out, settings, rows)


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = []
    for protocol, data, method in dict.fromkeys((row["protocol"], row["data"], row["method"]) for row in rows):
        group = [row for row in rows if (row["protocol"], row["data"], row["method"]) == (protocol, data, method)]
        lines.append(
            {
                "protocol": protocol,
                "data": data,
                "method": method,
                "tasks": len(group),
                "seeds": sorted({row["seed"] for row in group}),
                "mean auroc": round(float(np.mean([row["auroc"] for row in group])), 4),
                "lowest auroc": min(row["auroc"] for row in group),
            }
        )
    return lines


def _write(path: Path, settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    content = {
        **made_by("python benchmarks/detection_images.py --out results/bench/detection_images.json"),
        "cpu_seconds": round(sum(row["fit cpu seconds"] + row["score cpu seconds"] for row in rows)),
        "settings": settings,
        "summary": _summary(rows),
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_suffix(".part")
    hidden.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    hidden.replace(path)


if __name__ == "__main__":
    main()
