"""Can the profiled form forget without a log-scale, if the model is tempered or the noise has several scales?

    python -m experiments.tempering --json results/forgetting/tempering.json

The task of the paper's figure on scikit-learn's digits: an autoencoder 64-32-64 is to forget '1's, which are taken for
noise. The profiled form finds log Z by itself, but a log-mean-exp over noise is carried by its largest Δ: one sample in
many dimensions. Two ways to let more samples count are tried, alone and together: σ of the decoder is learnt, so that
Δ of noise falls less steeply; and the noise is a mixture of kernels of several widths. A third way is to split Δ into
bridges (``latent_bridges``), with the levels above trained as denominators or held. Beside them the VAE and the
log-scale by a budget. Recorded: how much of the noise is alive at the end, what share carries it, the errors of '1's
and of the rest on test digits, and the AUROC of '1's by their error.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from sklearn.metrics import roc_auc_score

from fvnce import (
    VAE,
    FullyVariationalNCE,
    GaussianDecoder,
    KernelDensity,
    LatentVariableModel,
    NoiseMixture,
    PointEncoder,
    PowerRule,
    fit,
    mlp,
    smoothed,
)
from fvnce.data import load_digits
from fvnce.diagnostics import diagnose
from fvnce.objectives import Objective
from fvnce.paper.cells import made_by, write_json
from fvnce.paper.setting import standard_normal

from .latent_bridges import LatentBridges


@dataclass(frozen=True)
class Task:
    """What is the same for all ways."""

    digit: int = 1
    decoder_scale: float = 1 / 8
    noise_scale: float = 1 / 16
    scales: tuple[float, ...] = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
    cover_scale: float = 1 / 4
    levels: int = 8
    held_out: int = 300
    epochs: int = 15
    batch_size: int = 32
    lr: float = 1e-3


WAYS = {
    "vae": "VAE",
    "profiled": "profiled, kernels of '1's and smoothed data",
    "learned σ": "profiled, σ learnt",
    "several scales": "profiled, kernels of four widths",
    "both": "profiled, σ learnt, kernels of four widths",
    "bridges": "profiled, bridges of one network that is told the level",
    "bridges, held": "the same, each level taking the one above for noise of a known density",
    "budget": "log-scale by a budget",
}


def make(way: str, task: Task, train: Any, ones: Any, seed: int) -> Objective | LatentBridges:
    """The objective of one way, always from the same weights."""
    torch.manual_seed(seed)
    learned: Literal["shared"] | None = "shared" if way in ("learned σ", "both") else None
    decode, encode = mlp([32, 64]), mlp([64, 32])
    decoder = GaussianDecoder(decode, scale=task.decoder_scale, learned=learned)
    model, encoder = LatentVariableModel(standard_normal(32), decoder), PointEncoder(encode)
    if way == "vae":
        return VAE(model, encoder)
    kernels = KernelDensity(ones, task.noise_scale)
    if way == "budget":
        return FullyVariationalNCE(model, encoder, kernels, PowerRule(0, clip=0.0), log_scale="auto")
    cover = smoothed(train, task.cover_scale, max_centres=500, generator=torch.Generator().manual_seed(seed))
    parts = [kernels]
    if way in ("several scales", "both"):
        parts = [KernelDensity(ones, scale) for scale in task.scales]
    mixture = NoiseMixture([*parts, cover], [1 / len(parts)] * len(parts) + [1.0])
    if way.startswith("bridges"):
        settings: dict[str, Any] = {"levels": task.levels, "scale": task.decoder_scale, "held": way != "bridges"}
        return LatentBridges(encode, decode, 32, 64, standard_normal(32), mixture, **settings)
    return FullyVariationalNCE(model, encoder, mixture, PowerRule(0), partition="profiled")


#: Ways that are also tried on data that hold nothing to forget: does what they learn know '1's at all?
CONTROLS = ("vae", "bridges", "bridges, held")


def cell(way: str, task: Task, seed: int) -> dict[str, Any]:
    """Train one way and measure it."""
    return _cell(way, task, seed) | ({"auroc_without": control(way, task, seed)} if way in CONTROLS else {})


def control(way: str, task: Task, seed: int) -> float:
    """AUROC of '1's by their error where no '1' was among the data."""
    found: float = _cell(way, task, seed, without=True)["auroc"]
    return found


def _cell(way: str, task: Task, seed: int, *, without: bool = False) -> dict[str, Any]:
    digits = load_digits()
    train, rest = digits.train[: -task.held_out], digits.train[-task.held_out :]
    ones = rest[digits.train_labels[-task.held_out :] == task.digit]
    if without:
        train = train[digits.train_labels[: -task.held_out] != task.digit]
    started = time.process_time()
    objective: Any = make(way, task, train, ones, seed)
    fit(objective, train, epochs=task.epochs, batch_size=task.batch_size, lr=task.lr, seed=seed, progress=False)
    found: dict[str, Any] = {"way": way, "seed": seed, "seconds": time.process_time() - started}
    if isinstance(objective, LatentBridges):
        state = objective.state_of_bridges(digits.test, torch.Generator().manual_seed(seed))
        effective = [share * len(digits.test) for share in state.ess_noise]
        found |= {"live_noise": min(state.live_noise), "effective_samples": min(effective)}
        found |= {"bridges": {"live_noise": state.live_noise, "effective_samples": effective}}
    elif way != "vae":
        report = diagnose(objective, digits.test, latent_samples=1, generator=torch.Generator().manual_seed(seed))
        found |= {"live_noise": report.live_noise, "effective_samples": report.ess_noise * len(digits.test)}
    with torch.no_grad():
        rebuilt = objective.model.decoder(objective.encoder(digits.test).mean).mean
    error, one = (rebuilt - digits.test).square().sum(1), digits.test_labels == task.digit
    return found | {
        "scale": objective.model.decoder.scale.item(),
        "ones": error[one].mean().item(),
        "others": error[~one].mean().item(),
        "auroc": float(roc_auc_score(one.numpy(), error.numpy())),
    }


def main() -> None:
    """All ways; the file is written after every run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, default=Path("results/forgetting/tempering.json"))
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task, cells = Task(), []
    for seed in range(arguments.seeds):
        for way in WAYS:
            cells.append(cell(way, task, seed))
            record = made_by(f"python -m experiments.tempering --seeds {arguments.seeds}")
            write_json(arguments.json, record | {"settings": asdict(task), "ways": WAYS, "cells": cells})
            print(cells[-1], flush=True)


if __name__ == "__main__":
    main()
