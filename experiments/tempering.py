r"""Forgetting by the profiled form without a log-scale: tempered models, noise of several scales, bridges.

    python -m experiments.tempering --json results/forgetting/tempering.json

The task of the paper's figure on scikit-learn's digits: an autoencoder 64-32-64 is to forget '1's, which are taken for
noise. The profiled form finds log Z by itself, but a log-mean-exp over noise is carried by its largest Δ: one sample in
many dimensions. Two ways to let more samples count are tried, alone and together: σ of the decoder is learnt, so that
Δ of noise falls less steeply; and the noise is a mixture of kernels of several widths. A third way is to split Δ into
bridges (:class:`LatentBridges`), with the levels above trained as denominators or held. Baselines are the VAE and the
log-scale by a budget. Recorded: the fraction of noise samples with a gradient at the end, the fraction that dominates
the noise term, the errors of '1's and of the rest on test digits, and the AUROC of '1's by their error.

Bridges for a model with latents: one network that gets the level as input, from the data to the noise.

Between data p_0 and noise p_K lie waypoints p_k, and every level below K has an unnormalized density of its own,

    φ_k(x) = p(x | z) p_Z(z),      z = g_k(x),

with the weights of one autoencoder, whose code is scaled and shifted and whose output is shifted by what the level has
learned; φ_K is p_n itself. Neighboring levels are classified by the profiled (0, 0),

    J = Σ_k E_k[log φ_k − log φ_{k+1}] − log E_{k+1}[φ_k/φ_{k+1}].

It takes deterministic encoders. With q(z|x) the evidence of φ_{k+1}, which is subtracted, would have to be bounded from
above, and no double bound does that: p_n, whose density is known, is the only level that fvNCE may divide by.

A ratio is the same if both densities are multiplied by anything, so that nothing asks φ_0 to rebuild the data. Where
``held``, φ_{k+1} is no longer trained as a denominator: each level takes the one above for noise of a known density, as
if it were p_n, and the data term of each is its own evidence.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.distributions import Distribution

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
)
from fvnce.diagnostics import diagnose
from fvnce.noise import draw, smoothed
from fvnce.objectives import Objective
from fvnce.objectives.batch import effective_fraction, ratio_statistics
from fvnce.paper.cells import made_by, write_json
from fvnce.paper.datasets import load_digits
from fvnce.paper.setting import standard_normal
from fvnce.ratio.chain import equal_steps, waypoints


class _Moved(nn.Module):
    """Shared network whose output is scaled and shifted by own parameters."""

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.network = network
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output, scaled and shifted."""
        moved: Tensor = self.network(x) * self.scale + self.shift
        return moved


@dataclass(frozen=True)
class BridgeState:
    """State of each bridge: fraction of noise with a gradient, and fraction that dominates the noise term."""

    live_noise: list[float]
    ess_noise: list[float]


class LatentBridges(nn.Module):
    """−J as a function of data rows; ``model`` and ``encoder`` are those of level 0.

    Args:
        encode: from x to a code of ``code`` numbers, shared by all levels.
        decode: from a code to the mean of x.
        code: width of the code.
        columns: width of x.
        prior: p_Z.
        noise: p_n.
        levels: K.
        scale: σ of the decoder.
        held: whether a level above is taken for noise of a known density.
    """

    def __init__(
        self,
        encode: nn.Module,
        decode: nn.Module,
        code: int,
        columns: int,
        prior: Distribution,
        noise: Distribution,
        *,
        levels: int,
        scale: float,
        held: bool,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(PointEncoder(_Moved(encode, code)) for _ in range(levels))
        self.models = nn.ModuleList(
            LatentVariableModel(prior, GaussianDecoder(_Moved(decode, columns), scale=scale)) for _ in range(levels)
        )
        self.noise = noise
        self.held = held
        self.shares = equal_steps(levels)

    @property
    def model(self) -> Any:
        """The part of level 0, that of the data."""
        return self.models[0]

    @property
    def encoder(self) -> Any:
        """The part of level 0, that of the data."""
        return self.encoders[0]

    def log_density(self, x: Tensor, level: int) -> Tensor:
        """Return log φ_k of a level, shape (B,)."""
        if level == len(self.models):
            return self.noise.log_prob(x)
        model: Any = self.models[level]
        log_density: Tensor = model.log_joint(x, self.encoders[level](x).mean)
        return log_density

    def deltas(self, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return log φ_k/φ_{k+1} of each bridge on waypoints of both ends, made of rows x and noise samples y."""
        ends = [waypoints(x, y, share) for share in self.shares]
        bridges = []
        for level, pair in enumerate(pairwise(ends)):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.held):
                above = [self.log_density(rows, level + 1) for rows in pair]
            densities = [self.log_density(rows, level) for rows in pair]
            bridges.append((densities[0] - above[0], densities[1] - above[1]))
        return bridges

    def forward(self, x: Tensor) -> Tensor:
        """Return −J with fresh noise samples."""
        y = draw(self.noise, len(x)).to(x)
        losses = [num_den[1].logsumexp(0) - num_den[0].mean() for num_den in self.deltas(x, y)]
        return torch.stack(losses).sum()

    @torch.no_grad()
    def state_of_bridges(self, x: Tensor, generator: torch.Generator) -> BridgeState:
        """Return the state of all bridges on fresh waypoints of rows x."""
        live, ess = [], []
        for num, den in self.deltas(x, draw(self.noise, len(x), generator).to(x)):
            offset = den.logsumexp(0) - torch.tensor(float(len(den))).log()
            shares = ratio_statistics(PowerRule(0, clip=None), num - offset, den - offset)
            live.append(shares["live_noise"])
            ess.append(effective_fraction(den))
        return BridgeState(live, ess)


@dataclass(frozen=True)
class Task:
    """Settings shared by all methods."""

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
    """Make the objective of one method, always from the same weights."""
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
    """Return the AUROC of '1's by their error after training without '1's."""
    auroc: float = _cell(way, task, seed, without=True)["auroc"]
    return auroc


def _cell(way: str, task: Task, seed: int, *, without: bool = False) -> dict[str, Any]:
    digits = load_digits()
    train, rest = digits.train[: -task.held_out], digits.train[-task.held_out :]
    ones = rest[digits.train_labels[-task.held_out :] == task.digit]
    if without:
        train = train[digits.train_labels[: -task.held_out] != task.digit]
    started = time.process_time()
    objective: Any = make(way, task, train, ones, seed)
    fit(objective, train, epochs=task.epochs, batch_size=task.batch_size, lr=task.lr, seed=seed, progress=False)
    numbers: dict[str, Any] = {"way": way, "seed": seed, "seconds": time.process_time() - started}
    if isinstance(objective, LatentBridges):
        state = objective.state_of_bridges(digits.test, torch.Generator().manual_seed(seed))
        effective = [share * len(digits.test) for share in state.ess_noise]
        numbers |= {"live_noise": min(state.live_noise), "effective_samples": min(effective)}
        numbers |= {"bridges": {"live_noise": state.live_noise, "effective_samples": effective}}
    elif way != "vae":
        report = diagnose(objective, digits.test, latent_samples=1, generator=torch.Generator().manual_seed(seed))
        numbers |= {"live_noise": report.live_noise, "effective_samples": report.ess_noise * len(digits.test)}
    with torch.no_grad():
        rebuilt = objective.model.decoder(objective.encoder(digits.test).mean).mean
    error, one = (rebuilt - digits.test).square().sum(1), digits.test_labels == task.digit
    return numbers | {
        "scale": objective.model.decoder.scale.item(),
        "ones": error[one].mean().item(),
        "others": error[~one].mean().item(),
        "auroc": float(roc_auc_score(one.numpy(), error.numpy())),
    }


def main() -> None:
    """Run all methods, and write the file after every run."""
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
