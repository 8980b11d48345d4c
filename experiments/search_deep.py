"""Search over one choice at a time: why (1/16, 0) on the deeper network differs from the paper.

    python -m experiments.search_deep --out out/search-deep --json results/paper-mnist/search-deep.json

With the setting that :mod:`experiments.search` chose, the paper's step from (1/64, 0) to (1/16, 0) on
784-256-128-256-784 is missed by hundreds of nats. This program changes one choice at a time from that setting, among
them what :class:`fvnce.paper.setting.Setting` does not offer (optimizer, place of the clip, the constant of the prior),
and measures each run on its way, so that a run of 100 epochs answers for fewer epochs, too. One seed, all images.

A run maximizes the mean of w(Δ) Δ with w = df1/dΔ detached, which has the gradient of the data term. The noise term is
left out: its gradient is 0 in float32 where (1+α)Δ < −104 on noise, and the largest Δ of 10,000 noise samples is
recorded with every measurement. ``noise_unseen`` is the noise column with the input of the encoder set to 0 at rare
pixels, ``noise_dead_unseen`` at pixels that are 0 in all images; ``code_norm`` is the mean of ‖g(x)‖², ``rare_weight``
the share of the weight that images with a rare pixel have. Finished runs are kept in ``--out``, so that the search can
be stopped and taken up again.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from fvnce.paper.cells import Cells, made_by, measured, one_thread, write_json
from fvnce.paper.setting import MNIST, data_and_noise, make_pair
from fvnce.paper.table import named, rows

SHALLOW, DEEP = MNIST.networks
#: α and β of the contrastive rows.
POWERS = {"1-256": (1 / 256, 0), "1-64": (1 / 64, 0), "1-16": (1 / 16, 0), "0,1": (0.0, 1)}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, fused=True),
    "adagrad": torch.optim.Adagrad,
}
#: Pixels above 0 in a smaller share of the images are rare: 189 of 784, of which 67 are 0 in all images.
RARE = 0.001
#: Epochs after which a run is measured.
COURSE = (1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100)
SEED = 0


@dataclass(frozen=True)
class Choices:
    """Choices that the paper does not state; by default the setting of the table."""

    optimizer: str = "adam"
    lr: float = 1e-3
    batch_size: int = 128
    init: str = "glorot"
    """Initial weights: "glorot" as in the table, or "lecun", Gaussian of variance 1/inputs."""
    clip: str = "exponent"
    """Where T applies: to the exponent αΔ, continued by a line ("exponent", the paper's words) or by a constant
    ("constant"); to f0 only ("f0"); to f1 where f0 is clipped, at Δ = T/(1+α) ("both")."""
    shift: float = 0.0
    """Added to Δ; 64 log 2π = 117.6 drops the constant of the prior, the paper's γ."""
    centres: int | None = None
    """Kernel centres of p_n; with fewer than all, most training images have no kernel of their own."""


@dataclass(frozen=True)
class Run:
    """Run: a row, its network and the number of epochs."""

    row: str
    epochs: int
    choices: Choices = Choices()
    network: tuple[int, ...] = DEEP


#: γ = max log p_Z of 128 codes, with its sign changed.
GAMMA = 117.6
#: The runs, in the order of the page.
RUNS = (
    Run("vae", 30),
    Run("1-16", 40),
    Run("1-16", 15, Choices(centres=10_000)),
    Run("1-16", 100, Choices(shift=GAMMA)),
    Run("1-16", 100, Choices(shift=GAMMA), SHALLOW),
    Run("1-16", 40, Choices(batch_size=512)),
    Run("1-16", 20, Choices(optimizer="adagrad", lr=0.01)),
    Run("1-16", 15, Choices(init="lecun")),
    Run("1-16", 8, network=SHALLOW),
    Run("1-16", 8, Choices(clip="constant"), SHALLOW),
    Run("1-16", 8, Choices(clip="f0"), SHALLOW),
    Run("1-64", 8, network=SHALLOW),
    Run("1-64", 8, Choices(clip="both"), SHALLOW),
)


def slope(choices: Choices, alpha: float, beta: float, delta: Tensor) -> Tensor:
    """Return df1/dΔ of a row's own rule."""
    top = MNIST.clip
    if beta:
        return torch.sigmoid(delta)
    if choices.clip == "exponent":
        return (alpha * delta).clamp(max=top).exp()
    if choices.clip == "constant":
        return (alpha * delta).exp() * (alpha * delta <= top)
    if choices.clip == "both":
        return (alpha * delta.clamp(max=top / (1 + alpha))).exp()
    return (alpha * delta).exp()


def changed(choices: Choices) -> dict[str, Any]:
    """Return the choices that differ from the table's."""
    return {name: value for name, value in asdict(choices).items() if value != getattr(Choices(), name)}


def run(out: Path, choices: Choices, network: tuple[int, ...], row: str, epochs: int, seed: int) -> dict[str, Any]:
    """Train one row, from disk if it is there."""
    folder = Cells(out / "runs", changed(choices) | {"epochs": epochs})
    name = f"{named(network)}_{row.replace(',', '_')}_seed{seed}"
    return folder.get(name, lambda: _train(out, choices, network, row, epochs, seed))


def _train(out: Path, choices: Choices, network: tuple[int, ...], row: str, epochs: int, seed: int) -> dict[str, Any]:
    start, cpu = time.perf_counter(), time.process_time()
    setting = replace(MNIST, centres=choices.centres)
    images, noise = data_and_noise(setting, out / "log-noise")
    x, log_noise = images.train, noise.log_prob(images.train)
    samples, log_samples = noise.draw_with_log_prob(10_000, torch.Generator().manual_seed(1000 + seed))
    pair = make_pair(setting, network, seed)
    encoder, decoder = (cast(nn.Sequential, part.network) for part in (pair.encoder, pair.model.decoder))
    generator = torch.Generator().manual_seed(seed)
    if choices.init == "lecun":
        for layer in (*encoder, *decoder):
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
    optimizer = OPTIMIZERS[choices.optimizer]([*encoder.parameters(), *decoder.parameters()], choices.lr)
    level = -x.shape[1] * math.log(setting.decoder_scale * math.sqrt(2 * math.pi))

    active = (x > 0).float().mean(0)
    with_rare = (x[:, active < RARE] > 0).any(1)
    masked = {
        "noise_unseen": samples.masked_fill(active < RARE, 0.0),
        "noise_dead_unseen": samples.masked_fill(active == 0, 0.0),
    }

    def terms(batch: Tensor, log_p_n: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(x|g(x)) and Δ of a batch."""
        code = encoder(batch)
        likelihood = level - (batch - decoder(code)).square().sum(-1) / (2 * setting.decoder_scale**2)
        log_prior = -code.square().sum(-1) / 2 - code.shape[1] / 2 * math.log(2 * math.pi)
        return likelihood, likelihood + log_prior - log_p_n + choices.shift

    def measure(epoch: int, count: int) -> dict[str, Any]:
        with torch.no_grad():
            likelihood, delta = terms(x[:count], log_noise[:count])
            on_noise, noise_delta = terms(samples, log_samples)
            weight = _weight(choices, row, delta).double()
            code = encoder(x[:count])
            unseen = {
                name: (level - (samples - decoder(encoder(part))).square().sum(-1) / (2 * setting.decoder_scale**2))
                for name, part in masked.items()
            }
        return {
            "epoch": epoch,
            "train": likelihood.mean().item(),
            "noise": on_noise.mean().item(),
            **{name: values.mean().item() for name, values in unseen.items()},
            "rare_weight": (weight[with_rare[:count]].sum() / weight.sum()).item(),
            "code_norm": code.square().sum(-1).mean().item(),
            "delta": delta.mean().item(),
            "largest_noise_delta": noise_delta.max().item(),
            "ess": (weight.sum().square() / weight.square().sum() / len(weight)).item(),
        }

    course = []
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(x), generator=generator).split(choices.batch_size):
            likelihood, delta = terms(x[batch], log_noise[batch])
            loss = -(_weight(choices, row, delta.detach()) * (likelihood if row == "ae" else delta)).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if epoch in COURSE or epoch == epochs:
            course.append(measure(epoch, len(x) if epoch == epochs else 10_000))
            _say(f"    {epoch:3d} " + " ".join(f"{name} {value:.3g}" for name, value in course[-1].items()))
    with torch.no_grad():
        test = terms(images.test, torch.zeros(()))[0].mean().item()
    seconds = {"seconds": time.perf_counter() - start, "core_seconds": time.process_time() - cpu}
    return {**course[-1], "test": test, "course": course[:-1], **seconds}


def _weight(choices: Choices, row: str, delta: Tensor) -> Tensor:
    if row not in POWERS:
        return torch.ones_like(delta)
    return MNIST.weight * slope(choices, *POWERS[row], delta) + 1 - MNIST.weight


def search(out: Path, runs: Sequence[Run]) -> dict[str, Any]:
    """Make the runs that are not there, and return all of them as JSON."""
    measured_runs: list[dict[str, Any]] = []
    for which in runs:
        _say(f"{named(which.network)} {which.row}, {which.epochs} epochs: {changed(which.choices) or 'table'}")
        with one_thread():
            measured_run = run(out, which.choices, which.network, which.row, which.epochs, SEED)
        row = next(row for row in rows(MNIST) if row.name == which.row)
        measured_runs.append(
            {
                "network": named(which.network),
                "label": row.label,
                "epochs": which.epochs,
                "changes": changed(which.choices),
                "paper": row.paper[MNIST.networks.index(which.network)],
            }
            | measured(measured_run)
        )
    return made_by("python -m experiments.search_deep " + " ".join(sys.argv[1:])) | {
        "machine": f"{platform.machine()}, one thread of a busy machine of {os.cpu_count()} cores",
        "seed": SEED,
        "rows_used": 60_000,
        "networks": [named(network) for network in MNIST.networks],
        "gamma": GAMMA,
        "base": asdict(Choices()),
        "core_seconds": sum(one["core_seconds"] for one in measured_runs),
        "runs": measured_runs,
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Parse the command line and search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("out/search-deep"), help="folder of finished runs")
    parser.add_argument("--json", type=Path, default=Path("results/paper-mnist/search-deep.json"), help="file to write")
    given = parser.parse_args()
    _say(str(write_json(given.json, search(given.out, RUNS))))


if __name__ == "__main__":
    main()
