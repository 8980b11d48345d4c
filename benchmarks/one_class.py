"""One-class methods as limits of the contrastive objective: numerical check of docs/theory/relatives.md.

Run with

    FVNCE_DATA=... python benchmarks/one_class.py --out results/bench/one_class.json

All methods see the same rows and share one Gaussian kernel with a random feature for each of 300 centers, whitened so
that k(x, x') = φ(x)·φ(x'). Compared are the one-class SVM (scikit-learn's), which for this kernel is SVDD; the
contrastive objective at α = 1 with the metric of the one-class SVM, in closed form; the same with the metric that noise
gives it; and the profiled objective at α = 0 and α = 1, by gradient. Data: a ring, and tables if FVNCE_DATA names a
folder that holds ``adbench``.

Takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from sklearn.svm import OneClassSVM

from fvnce.paper.cells import made_by, write_json

Array = NDArray[np.float64]
TABLES = ("6_cardio", "28_pendigits", "38_thyroid", "40_vowels")


def ring(seed: int) -> tuple[Array, Array, Array]:
    """Return a ring for training; a ring with points inside and around it for testing; the truth."""
    rng = np.random.default_rng(seed)

    def draw(n: int) -> Array:
        angle = rng.uniform(0, 2 * np.pi, n)
        return np.stack([np.cos(angle), np.sin(angle)], 1) * 2 + 0.15 * rng.normal(size=(n, 2))

    outliers = rng.uniform(-3, 3, size=(400, 2))
    outliers = outliers[np.abs(np.linalg.norm(outliers, axis=1) - 2) > 0.6]
    good = draw(400)
    return draw(600), np.concatenate([good, outliers]), np.repeat([0, 1], [len(good), len(outliers)])


def table(path: Path, seed: int) -> tuple[Array, Array, Array]:
    """Return half of the inliers for training, the others and the anomalies for testing, and the truth."""
    with np.load(path, allow_pickle=False) as content:
        X, y = content["X"].astype(float), content["y"].astype(int).ravel()
    rng = np.random.default_rng(seed)
    good = rng.permutation(np.flatnonzero(y == 0))
    train, rest = good[: min(1500, len(good) // 2)], good[len(good) // 2 :][:1500]
    mean, deviation = X[train].mean(0), X[train].std(0)
    X = np.clip((X - mean) / np.where(deviation < 1e-12, 1, deviation), -10, 10)
    test = np.concatenate([rest, np.flatnonzero(y == 1)])
    return X[train], X[test], y[test]


def features(train: Array, seed: int) -> tuple[Any, float]:
    """Return Nyström features φ of the kernel exp(−γ|x − x'|²), and γ by the median heuristic."""
    rng = np.random.default_rng(seed)
    centres = train[rng.choice(len(train), min(300, len(train)), replace=False)]
    squares = ((centres[:, None] - centres[None]) ** 2).sum(-1)
    gamma = float(1 / np.median(squares[squares > 0]))
    values, vectors = np.linalg.eigh(np.exp(-gamma * squares))
    kept = values > 1e-8 * values.max()
    root = vectors[:, kept] / np.sqrt(values[kept])

    def phi(x: Array) -> Array:
        distance = ((x**2).sum(1)[:, None] + (centres**2).sum(1)[None] - 2 * x @ centres.T).clip(0)
        return np.asarray(np.exp(-gamma * distance) @ root)

    return phi, gamma


def profiled(data: Array, noise: Array, alpha: float, ridge: float) -> Array:
    """Return the maximizer w of the profiled objective for Δ⁰ = w·φ, with −ridge·|w|²/2, by L-BFGS in float64."""
    x, y = torch.from_numpy(data), torch.from_numpy(noise)
    w = torch.zeros(data.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([w], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        first = (x @ w).mean() if alpha == 0 else torch.logsumexp(alpha * (x @ w), 0) / alpha
        value = -first + torch.logsumexp((1 + alpha) * (y @ w), 0) / (1 + alpha) + ridge / 2 * w.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return w.detach().numpy()


def compare(train: Array, test: Array, truth: Array, seed: int) -> dict[str, Any]:
    """Return AUROC of every method, and rank correlations of the methods that are equivalent in theory."""
    phi, _ = features(train, seed)
    a, b = phi(train), phi(test)
    rng = np.random.default_rng(seed)
    low, high = train.min(0), train.max(0)
    noise = phi(rng.uniform(low, high, size=(4000, train.shape[1])))
    scores = {}
    for nu in (0.1, 0.5, 0.999):
        machine = OneClassSVM(kernel="linear", nu=nu).fit(a)
        scores[f"one-class SVM, ν = {nu:g}"] = machine.score_samples(b)
    mean = a.mean(0)
    scores["α = 1, metric I (closed form)"] = b @ mean
    scores["α = 1, metric of uniform noise (closed form)"] = b @ np.linalg.solve(
        noise.T @ noise / len(noise) + 1e-3 * np.eye(len(mean)), mean
    )
    for alpha in (0.0, 1.0):
        scores[f"profiled, α = {alpha:g}, uniform noise"] = b @ profiled(a, noise, alpha, 1e-3)

    def agreement(one: str, other: str) -> float:
        return round(float(spearmanr(scores[one], scores[other]).statistic), 5)

    return {
        "auroc": {name: round(float(roc_auc_score(truth, -score)), 4) for name, score in scores.items()},
        "rank correlation": {
            "α = 1, metric I — one-class SVM, ν = 0.999": agreement(
                "α = 1, metric I (closed form)", "one-class SVM, ν = 0.999"
            ),
            "α = 1, metric I — one-class SVM, ν = 0.1": agreement(
                "α = 1, metric I (closed form)", "one-class SVM, ν = 0.1"
            ),
        },
    }


def main() -> None:
    """Run all comparisons, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    numbers = {"ring": compare(*ring(args.seed), args.seed)}
    folder = Path(os.environ.get("FVNCE_DATA", "")) / "adbench"
    for name in TABLES:
        if (folder / f"{name}.npz").is_file():
            numbers[name] = compare(*table(folder / f"{name}.npz", args.seed), args.seed)
    content = {
        **made_by("python " + " ".join(sys.argv)),
        "cpu_seconds": time.process_time(),
        "seed": args.seed,
        "data": numbers,
    }
    text = json.dumps(content, indent=1, ensure_ascii=False)
    print(text)
    if args.out:
        write_json(args.out, content)


if __name__ == "__main__":
    main()
