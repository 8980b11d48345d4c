"""Forgetting by a budget: each class, and pairs of classes, compared with retraining and gradient ascent.

    FVNCE_DATA=… python -m experiments.forgetting --out out/forgetting --json results/forgetting/forgetting.json

The autoencoder of the paper's figure, 784-256-784 with a ReLU on a deterministic code, σ_dec = 1/8, is trained on all
classes and is to rebuild one of them badly: the noise is a kernel density of examples of that class, the log-scale
``"auto"``, no number chosen for a class. Four ways, measured on test images by the squared error of the class and of
the rest, and by how well the error tells the two apart:

* ``vae``: no noise; the baseline that is trained alongside.
* ``auto``: the budget.
* ``without``: the VAE retrained without the class, which is what forgetting is often said to mean.
* ``ascent``: the trained VAE, then gradient ascent on examples of the class, until the error of the training data over
  the VAE's has reached the same budget.

MNIST: 10,000 training images, centers from its last 10,000. Fashion-MNIST: the first half of its test set to train,
with centers from the same rows, the second half to test. Cells are kept in ``--out``; the file has the finished
ones.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fvnce import VAE, FullyVariationalNCE, KernelDensity, PowerRule, fit
from fvnce.paper.cells import Cells, made_by, measured, write_json
from fvnce.paper.datasets import idx_array, load_mnist, read_bytes
from fvnce.paper.setting import Pair, Setting, make_pair
from fvnce.training import ErrorBudget


@dataclass(frozen=True)
class Task:
    """Settings shared by all classes."""

    network: tuple[int, ...] = (784, 256, 784)
    decoder_scale: float = 1 / 8
    noise_scale: float = 1 / 16
    centres: int = 1000
    budget: float = 1.7
    clip: float = 0.0
    noise_samples: float = 1.0
    rows: int = 10_000
    epochs: int = 12
    batch_size: int = 128
    lr: float = 1e-3
    ascent_lr: float = 1e-4


@dataclass(frozen=True)
class Split:
    """Images to train on, examples that centers are taken from, and images to test on, each with labels."""

    train: Tensor
    labels: Tensor
    examples: Tensor
    example_labels: Tensor
    test: Tensor
    test_labels: Tensor


def mnist(task: Task) -> Split:
    """Return MNIST: the first rows for training, the last 10,000 for examples."""
    images = load_mnist()
    return Split(
        images.train[: task.rows],
        images.train_labels[: task.rows],
        images.train[-10_000:],
        images.train_labels[-10_000:],
        images.test,
        images.test_labels,
    )


def fashion(task: Task) -> Split:
    """Return the test set of Fashion-MNIST, split in halves."""
    folder = Path(os.environ["FVNCE_DATA"]) / "fashion_mnist"
    paths = (folder / f"t10k-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
    pixels, labels = (idx_array(read_bytes(path)) for path in paths)
    x, y = torch.from_numpy(pixels.reshape(-1, 784) / np.float32(255)), torch.from_numpy(labels.astype(np.int64))
    return Split(x[:5000], y[:5000], x[:5000], y[:5000], x[5000:], y[5000:])


DATA = {"mnist": mnist, "fashion": fashion}


def cases(seeds: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield (data, classes, seed), with the first seed of all cases first."""
    for seed in range(seeds):
        yield from (("mnist", (digit,), seed) for digit in range(10))
        yield from (("mnist", pair, seed) for pair in ((3, 8), (4, 9)))
        yield from (("fashion", (kind,), seed) for kind in range(10))


def _options(task: Task, seed: int) -> dict[str, Any]:
    return {
        "epochs": task.epochs,
        "batch_size": task.batch_size,
        "lr": task.lr,
        "seed": seed,
        "progress": False,
    }


def _pair(task: Task, seed: int) -> Pair:
    return make_pair(Setting(decoder_scale=task.decoder_scale, code_activation="relu"), task.network, seed)


def without(task: Task, split: Split, classes: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Retrain the VAE without the classes."""
    forgotten, pair = torch.tensor(classes), _pair(task, seed)
    objective = VAE(pair.model, pair.encoder)
    fit(objective, split.train[~torch.isin(split.labels, forgotten)], **_options(task, seed))
    return {"without": _measure(objective, split, forgotten)}


def budgeted(task: Task, split: Split, classes: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Train with the budget and its baseline, then run gradient ascent from the baseline."""
    forgotten = torch.tensor(classes)
    examples = torch.cat([split.examples[split.example_labels == kind][: task.centres] for kind in classes])
    noise = KernelDensity(examples, task.noise_scale)
    started = time.process_time()
    pair = _pair(task, seed)
    objective = FullyVariationalNCE(
        pair.model,
        pair.encoder,
        noise,
        PowerRule(0, clip=task.clip),
        noise_samples=task.noise_samples,
        log_scale="auto",
    )
    budget = ErrorBudget(task.budget)
    fit(objective, split.train, callbacks=[budget], **_options(task, seed))
    vae = budget.baseline
    numbers: dict[str, Any] = {
        "log_scale": -float(objective.fitted_log_partition()),
        "share": budget.margin_fraction,
        "train_ratio": budget.error_ratio,
        "seconds": time.process_time() - started,
        "vae": _measure(vae, split, forgotten),
        "auto": _measure(objective, split, forgotten),
    }
    ascended, steps = ascent(task, vae, split.train, examples, seed)
    numbers["ascent"] = _measure(ascended, split, forgotten) | {"steps": steps}
    return numbers


def ascent(task: Task, vae: Any, train: Tensor, examples: Tensor, seed: int) -> tuple[Any, int]:
    """Gradient ascent on examples until the median error of training rows has reached the budget, and its steps."""
    made = copy.deepcopy(vae)
    optimiser = torch.optim.Adam(made.parameters(), lr=task.ascent_lr)
    generator = torch.Generator().manual_seed(seed)
    watched = train[:2000]
    allowed = task.budget * _errors(vae, watched).median()
    steps = 0
    while _errors(made, watched).median() < allowed:
        x = examples[torch.randint(len(examples), (task.batch_size,), generator=generator)]
        optimiser.zero_grad()
        made(x, x)[0].mean().backward()
        optimiser.step()
        steps += 1
    return made, steps


@torch.no_grad()
def _errors(part: Any, x: Tensor) -> Tensor:
    rebuilt: Tensor = part.model.decoder(part.encoder(x).mean).mean
    return (rebuilt - x).square().sum(1)


def _measure(part: Any, split: Split, forgotten: Tensor) -> dict[str, float]:
    error, one = _errors(part, split.test), torch.isin(split.test_labels, forgotten)
    return {
        "forgotten": error[one].mean().item(),
        "rest": error[~one].mean().item(),
        "auroc": float(roc_auc_score(one.numpy(), error.numpy())),
    }


def summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means over seeds for each choice of classes and each method: AUROC, and errors relative to the VAE."""
    lines = []
    for data, classes in dict.fromkeys((c["data"], tuple(c["classes"])) for c in cells):
        class_cells = [c for c in cells if c["data"] == data and tuple(c["classes"]) == classes]
        line: dict[str, Any] = {"data": data, "classes": list(classes)}
        for way in ("vae", "auto", "without", "ascent"):
            done = [c for c in class_cells if way in c]
            if done:
                line[way] = {
                    "seeds": len(done),
                    "auroc": statistics.fmean(c[way]["auroc"] for c in done),
                    "rest": statistics.fmean(c[way]["rest"] / c["vae"]["rest"] for c in done),
                    "forgotten": statistics.fmean(c[way]["forgotten"] / c["vae"]["forgotten"] for c in done),
                }
        lines.append(line)
    return lines


def main() -> None:
    """Make missing cells, and write the file after every cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=Path("out/forgetting"))
    parser.add_argument("--json", type=Path, default=Path("results/forgetting/forgetting.json"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = Task()
    cells, splits = Cells(arguments.out, asdict(task)), dict[str, Split]()
    done: dict[str, dict[str, Any]] = {}
    # All budgets first, as they matter more than retraining.
    for make in (budgeted, without):
        for data, classes, seed in cases(arguments.seeds):
            if data not in splits:
                splits[data] = DATA[data](task)
            name = f"{data}-{''.join(map(str, classes))}-seed{seed}"
            cell = f"{name}-{make.__name__}"
            made = cells.get(cell, lambda m=make, d=data, c=classes, s=seed: m(task, splits[d], c, s))  # type: ignore[misc]
            done.setdefault(name, {"data": data, "classes": list(classes), "seed": seed}).update(measured(made))
            record = made_by(f"python -m experiments.forgetting --seeds {arguments.seeds}") | {
                "settings": asdict(task),
                "summary": summary(list(done.values())),
                "cells": list(done.values()),
            }
            write_json(arguments.json, record)
            line = done[name]
            ways = [way for way in ("vae", "auto", "ascent", "without") if way in line]
            shown = (f"{way} {line[way]['auroc']:.4f}/{line[way]['rest'] / line['vae']['rest']:.3f}" for way in ways)
            print(name, *shown, flush=True)


if __name__ == "__main__":
    main()
