"""The paper's table: average log p(x|g(x)) on data and on noise, for two networks and six rows.

    fvnce reproduce table --data mnist --seeds 3 --out out

Each cell (network × row × seed) is kept on disk and not repeated, so seeds can be added later; it is trained on one
thread, in whichever process. All rows of a seed start
from the same weights and are measured on the same noise samples.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..data import Images
from ..diagnostics import SHARES, diagnose
from ..noise import KernelDensity
from ..objectives import Autoencoder, ContrastiveObjective
from ..report.page import Section, Table
from ..training import fit
from ..training import load as load_objective
from ..training import save as save_objective
from .cells import Cells, write_json
from .study import Options, Pair, Row, Setting, make_pair, materials, rows, setting_for
from .workers import Work, do_all

#: (network, row, seed) → what was measured.
Measured = dict[tuple[tuple[int, ...], str, int], dict[str, Any]]
#: Folder of remembered values of log p_n, and the rows that ``fit`` asks for at once.
_MEMORY, _TABLE_ROWS = "log-noise", 8192


def run(out: Path, options: Options) -> Section:
    """Make the missing cells, then the table."""
    start = time.perf_counter()
    setting = setting_for(options)
    measured = measure(out, setting, options.seeds, jobs=options.processes, say=options.say)
    tables = [_table(setting, index, measured) for index in range(len(setting.networks))]
    tables += [_diagnostics(setting, network, measured) for network in setting.networks]
    document = out / f"table-{setting.data}.md"
    document.write_text("\n\n".join(f"**{table.caption}**\n\n{table.markdown()}" for table in tables) + "\n")
    record = write_json(out / f"table-{setting.data}.json", _record(setting, options.seeds, measured))
    return Section(
        "Average log p(x|g(x)) on data and on noise",
        _reading(setting, measured),
        tables=tables,
        settings=setting.named() | {"seeds": options.seeds},
        seconds=time.perf_counter() - start,
        files=[document, record],
    )


def _record(setting: Setting, seeds: int, measured: Measured) -> dict[str, Any]:
    """Everything of every cell, for a file."""
    paper = {row.name: {"label": row.label, "paper": row.paper} for row in rows(setting)}
    return {
        "command": f"fvnce reproduce table --data {setting.data} --seeds {seeds}",
        "version": __version__,
        "torch": torch.__version__,
        "settings": setting.named(),
        "seeds": seeds,
        "rows": paper,
        "cells": [
            {"network": "-".join(map(str, network)), "row": row, "seed": seed}
            | {name: value for name, value in cell.items() if name not in ("settings", "version")}
            for (network, row, seed), cell in measured.items()
        ],
    }


def measure(
    out: Path,
    setting: Setting,
    seeds: int,
    *,
    jobs: int = 1,
    say: Callable[[str], None] = lambda text: None,
    only: Sequence[str] | None = None,
) -> Measured:
    """Every cell, from disk where it is there; the rest is made by ``jobs`` processes.

    Args:
        out: the folder that has the cells.
        setting: of all of them.
        seeds: how many, counted from 0.
        jobs: processes of one thread each.
        say: told of each finished cell.
        only: names of the rows, by default all.
    """
    cells = cells_of(out, setting)
    wanted = {
        (network, row.name, seed): cell_name(network, row.name, seed)
        for seed in range(seeds)
        for network in setting.networks
        for row in rows(setting)
        if only is None or row.name in only
    }
    do_all(missing(out, setting, wanted, tables=jobs > 1), jobs, say)
    return {key: cells.read(name) for key, name in wanted.items()}


def missing(
    out: Path, setting: Setting, wanted: Iterable[tuple[tuple[int, ...], str, int]], *, tables: bool
) -> list[Work]:
    """The work that makes the cells that are not there; with ``tables``, log p_n of the training images comes first,
    in blocks, so that several processes share it instead of each making all of it."""
    cells = cells_of(out, setting)
    keys = [key for key in wanted if not cells.path(cell_name(*key)).exists()]
    contrastive = {row.name for row in rows(setting) if row.rule is not None}
    blocks: range = range(0)
    if tables and any(row in contrastive for _, row, _ in keys):
        count = setting.rows or {"digits": 1437, "mnist": 60_000}[setting.data]
        blocks = range(0, count, _TABLE_ROWS)
    return [
        *(Work(f"log p_n of images from {low}", tabulate, (out, setting, low)) for low in blocks),
        *(Work(cell_name(*key), make_cell, (out, setting, *key)) for key in keys),
    ]


def tabulate(out: Path, setting: Setting, low: int) -> None:
    """log p_n of one block of training images, which the noise remembers."""
    images, noise = materials(setting, out / "cells" / _MEMORY)
    with torch.no_grad():
        noise.log_prob(images.train[low : low + _TABLE_ROWS])


def cell_name(network: tuple[int, ...], row: str, seed: int) -> str:
    """What a cell is called, on the screen and on the disk."""
    return f"{'-'.join(map(str, network))}_{row.replace(',', '_')}_seed{seed}"


def make_cell(out: Path, setting: Setting, network: tuple[int, ...], row: str, seed: int) -> None:
    """Make one cell and keep it."""
    cells, name = cells_of(out, setting), cell_name(network, row, seed)
    images, noise = materials(setting, out / "cells" / _MEMORY)
    wanted = next(candidate for candidate in rows(setting) if candidate.name == row)
    weights = cells.path(name, ".safetensors")
    cells.get(name, lambda: _cell(weights, setting, images, noise, network, wanted, seed))


def cells_of(out: Path, setting: Setting) -> Cells:
    """The finished cells of a setting."""
    # A cell's own network is part of its name; that others are measured beside it does not change it.
    named = {name: value for name, value in setting.named().items() if name != "networks"}
    return Cells(out / "cells" / f"table-{setting.data}", named)


def _cell(
    weights: Path,
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
    weights.parent.mkdir(parents=True, exist_ok=True)
    save_objective(weights, Autoencoder(pair.model, pair.encoder))
    measured = {
        "train": pair.log_likelihood(images.train).mean().item(),
        "test": pair.log_likelihood(images.test).mean().item(),
        "noise": pair.log_likelihood(samples).mean().item(),
        "epochs": setting.epochs,
        "final_loss": history.epochs["loss"][-1],
        "seconds": time.perf_counter() - start,
    }
    if isinstance(objective, ContrastiveObjective):
        report = diagnose(
            objective,
            images.test[:2000],
            samples=min(2000, setting.noise_samples),
            latent_samples=1,
            generator=torch.Generator().manual_seed(2000 + seed),
        )
        measured |= {name: getattr(report, name) for name in SHARES}
    return measured


def trained(out: Path, setting: Setting, network: tuple[int, ...], row: Row, seed: int = 0) -> Pair:
    """The networks of a finished cell."""
    path = cells_of(out, setting).path(cell_name(network, row.name, seed), ".safetensors")
    objective: Any = load_objective(path)
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
    lines = []
    for row in rows(setting):
        cells = [c for (n, name, _), c in measured.items() if n == network and name == row.name and "live_noise" in c]
        if cells:
            lines.append([row.label, *(f"{statistics.fmean(c[name] for c in cells):.1%}" for name in SHARES)])
    caption = f"{'-'.join(map(str, network))}: what explains the rows"
    return Table(caption, ["(α, β)", *(name.replace("_", " ") for name in SHARES)], lines)


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
            + (_against_the_paper(setting, network, measured) if setting.data == "mnist" else "")
        )
    if setting.data == "mnist":
        sentences.append(
            "The noise column depends on what the paper leaves open, above all on the initial weights: pixels that are "
            "0 in every image never change the weights that lead away from them, and noise on them passes through."
        )
    live = [cell["live_noise"] for cell in measured.values() if "live_noise" in cell]
    if live:
        low, high = f"{min(live):.0%}", f"{max(live):.0%}"
        felt = "None" if max(live) == 0 else f"Between {low} and {high}" if low != high else high
        sentences.append(
            f"{felt} of the noise samples can be felt in the gradient. Where none can, the rows differ only because α "
            "re-weights the data by r^α, not because noise is penalised."
        )
    return sentences


def _against_the_paper(setting: Setting, network: tuple[int, ...], measured: Measured) -> str:
    """How far the columns are from the paper's."""
    index = setting.networks.index(network)
    paper = {row.name: row.paper[index] for row in rows(setting)}
    data, noise = (
        statistics.fmean(cell[column] - paper[name][place] for (n, name, _), cell in measured.items() if n == network)
        for place, column in enumerate(("train", "noise"))
    )
    return f" On average over rows data are {data:+.0f} and noise {noise:+.0f} nats from the paper's."
