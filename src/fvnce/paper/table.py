"""The paper's table: average log p(x|g(x)) on data and on noise, for two networks and six rows.

    fvnce reproduce table --data mnist --seeds 3 --out out

Each cell (network × row × seed) is kept on disk and not repeated, so seeds can be added later. All rows of a seed start
from the same weights and are measured on the same noise samples.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from ..data import Images
from ..diagnostics import diagnose
from ..noise import KernelDensity
from ..objectives import Autoencoder, ContrastiveObjective
from ..report.page import Section, Table
from ..training import fit
from ..training import load as load_objective
from ..training import save as save_objective
from .cells import Cells
from .study import Options, Pair, Row, Setting, kernel_noise, load, make_pair, rows, setting_for

#: (network, row, seed) → what was measured.
Measured = dict[tuple[tuple[int, ...], str, int], dict[str, Any]]


def run(out: Path, options: Options) -> Section:
    """Make the missing cells, then the table."""
    start = time.perf_counter()
    setting = setting_for(options)
    measured = measure(out, setting, options.seeds)
    tables = [_table(setting, index, measured) for index in range(len(setting.networks))]
    tables += [_diagnostics(setting, network, measured) for network in setting.networks]
    document = out / f"table-{setting.data}.md"
    document.write_text("\n\n".join(f"**{table.caption}**\n\n{table.markdown()}" for table in tables) + "\n")
    return Section(
        "Average log p(x|g(x)) on data and on noise",
        _reading(setting, measured),
        tables=tables,
        settings=setting.named() | {"seeds": options.seeds},
        seconds=time.perf_counter() - start,
        files=[document],
    )


def measure(out: Path, setting: Setting, seeds: int) -> Measured:
    """Every cell, from disk where it is there."""
    cells = Cells(out / "cells" / f"table-{setting.data}", setting.named())
    images: list[Images] = []
    noise: list[KernelDensity] = []

    def make(network: tuple[int, ...], row: Row, seed: int) -> dict[str, Any]:
        if not images:
            images.append(load(setting))
            noise.append(kernel_noise(setting, images[0].train))
        return _cell(cells, setting, images[0], noise[0], network, row, seed)

    return {
        (network, row.name, seed): cells.get(_name(network, row, seed), lambda n=network, r=row, s=seed: make(n, r, s))  # type: ignore[misc]
        for seed in range(seeds)
        for network in setting.networks
        for row in rows(setting)
    }


def _name(network: tuple[int, ...], row: Row, seed: int) -> str:
    return f"{'-'.join(map(str, network))}_{row.name.replace(',', '_')}_seed{seed}"


def _cell(
    cells: Cells,
    setting: Setting,
    images: Images,
    noise: KernelDensity,
    network: tuple[int, ...],
    row: Row,
    seed: int,
) -> dict[str, Any]:
    """Train one row and measure it."""
    start = time.perf_counter()
    pair = make_pair(setting, network, seed)
    objective = row.objective(pair, noise)
    history = fit(
        objective, images.train, epochs=setting.epochs, batch_size=setting.batch_size, lr=setting.lr, seed=seed
    )
    samples = noise.draw(setting.noise_samples, torch.Generator().manual_seed(1000 + seed))
    save_objective(cells.path(_name(network, row, seed), ".safetensors"), Autoencoder(pair.model, pair.encoder))
    measured = {
        "train": pair.log_likelihood(images.train).mean().item(),
        "test": pair.log_likelihood(images.test).mean().item(),
        "noise": pair.log_likelihood(samples).mean().item(),
        "epochs": setting.epochs,
        "final_loss": history.epochs["loss"][-1],
        "seconds": time.perf_counter() - start,
    }
    if isinstance(objective, ContrastiveObjective):
        report = diagnose(objective, images.test[:2000], samples=min(2000, setting.noise_samples), latent_samples=1)
        shares = ("live_noise", "zero_noise", "ess_noise", "ess_data", "clipped_noise", "clipped_data")
        measured |= {name: getattr(report, name) for name in shares}
    return measured


def trained(out: Path, setting: Setting, network: tuple[int, ...], row: Row, seed: int = 0) -> Pair:
    """The networks of a finished cell."""
    cells = Cells(out / "cells" / f"table-{setting.data}", setting.named())
    objective: Any = load_objective(cells.path(_name(network, row, seed), ".safetensors"))
    return Pair(objective.model, objective.encoder)


def _table(setting: Setting, index: int, measured: Measured) -> Table:
    network = setting.networks[index]
    lines = []
    for row in rows(setting):
        cells = [cell for (n, name, _), cell in measured.items() if n == network and name == row.name]
        line = [row.label]
        for column in ("train", "test", "noise"):
            line.append(mean_and_error([cell[column] for cell in cells]))
        line.append(mean_and_error([cell["train"] - cell["noise"] for cell in cells]))
        lines.append(line + ([str(value) for value in row.paper[index]] if setting.data == "mnist" else []))
    paper = ["paper: data", "paper: noise", "paper: difference"] if setting.data == "mnist" else []
    seeds = len({seed for _, _, seed in measured})
    caption = f"{'-'.join(map(str, network))}, nats, mean ± standard error over {seeds} seed{'s' * (seeds > 1)}"
    return Table(caption, ["method / (α, β)", "train", "test", "noise", "train − noise", *paper], lines)


def _diagnostics(setting: Setting, network: tuple[int, ...], measured: Measured) -> Table:
    names = ["live_noise", "zero_noise", "ess_noise", "ess_data", "clipped_noise", "clipped_data"]
    lines = []
    for row in rows(setting):
        cells = [c for (n, name, _), c in measured.items() if n == network and name == row.name and "live_noise" in c]
        if cells:
            lines.append([row.label, *(f"{statistics.fmean(c[name] for c in cells):.1%}" for name in names)])
    caption = f"{'-'.join(map(str, network))}: what explains the rows"
    return Table(caption, ["(α, β)", *(name.replace("_", " ") for name in names)], lines)


def mean_and_error(values: list[float]) -> str:
    """Mean ± standard error, or the value alone."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.0f}"
    return f"{mean:.0f} ± {statistics.stdev(values) / math.sqrt(len(values)):.1f}"


def _reading(setting: Setting, measured: Measured) -> list[str]:
    sentences = []
    for network in setting.networks:
        difference = {
            row.name: [
                c["train"] - c["noise"] for (n, name, _), c in measured.items() if n == network and name == row.name
            ]
            for row in rows(setting)
        }
        order = sorted(difference, key=lambda name: statistics.fmean(difference[name]))
        labels = {row.name: row.label for row in rows(setting)}
        gap = statistics.fmean(difference["0,1"]) - statistics.fmean(difference["vae"])
        sentences.append(
            f"On {'-'.join(map(str, network))} the difference between data and noise grows in the order "
            f"{' < '.join(labels[name] for name in order)}. (0, 1) lies {abs(gap):.0f} nats "
            f"{'above' if gap > 0 else 'below'} the VAE."
        )
    live = [cell["live_noise"] for cell in measured.values() if "live_noise" in cell]
    if live:
        sentences.append(
            f"Between {min(live):.0%} and {max(live):.0%} of the noise samples can be felt in the gradient. Where none "
            "can, the rows differ only because α re-weights the data by r^α, not because noise is penalised."
        )
    return sentences
