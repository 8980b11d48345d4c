"""The paper's table: average log p(x|g(x)) on data and on noise, for two networks and six rows.

    fvnce reproduce table --data mnist --seeds 3 --out out

The paper's numbers are in :func:`rows`, ours beside them in the tables that this makes; docs/reproduction.md has both
on MNIST. It differs from the paper in two ways. What the paper leaves open is chosen once for all rows
(:mod:`fvnce.paper.setting`), and the row (0, 1) is mixed with J^{0,0} like the rows with α > 0, without which its
training does not start. On digits, the networks are scaled down and there is nothing to compare with.

Each cell (network × row × seed) is kept on disk and not repeated, so seeds can be added later; it is trained on one
thread, in whichever process. All rows of a seed start from the same weights and are measured on the same noise samples.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributions import Distribution

from ..diagnostics import diagnose
from ..diagnostics.report import SHARES
from ..noise import KernelDensity
from ..objectives import VAE, Autoencoder, ContrastiveObjective, FullyVariationalNCE, Objective
from ..pages.page import Section, Table
from ..scoring import PowerRule, ScoringRule
from ..serialization import write_text
from ..training import fit
from ..training import load as load_objective
from ..training import save as save_objective
from .cells import (
    Cells,
    Work,
    against,
    do_all,
    fallen,
    made_by,
    mean_and_error,
    measured,
    ordered,
    write_json,
)
from .datasets import Images
from .setting import Options, Pair, Setting, data_and_noise, make_pair, setting_for

TITLE = "Average log p(x|g(x)) on data and on noise"
#: Network, row, seed.
Key = tuple[tuple[int, ...], str, int]
#: A file of results, as JSON holds it.
Record = dict[str, Any]
#: Folder of cached values of log p_n, and the rows that ``fit`` asks for at once.
_CACHE, _BLOCK_ROWS = "log-noise", 8192


@dataclass(frozen=True)
class Row:
    """A row of the table: its name, what the paper reports for both networks, and the rule that makes it."""

    name: str
    label: str
    paper: tuple[tuple[int, int, int], tuple[int, int, int]]
    rule: ScoringRule | None = None

    def objective(self, pair: Pair, noise: Distribution) -> Objective:
        """The objective of this row."""
        if self.name == "ae":
            return Autoencoder(pair.model, pair.encoder)
        if self.rule is None:
            return VAE(pair.model, pair.encoder)
        return FullyVariationalNCE(pair.model, pair.encoder, noise, self.rule)


def rows(setting: Setting) -> list[Row]:
    """The six rows, with the paper's (data, noise, difference) for its two networks."""

    def mixed(alpha: float, beta: float) -> ScoringRule:
        own, plain = PowerRule(alpha, beta, clip=setting.clip), PowerRule(0, clip=setting.clip)
        return setting.weight * own + (1 - setting.weight) * plain

    return [
        Row("ae", "AE", ((766, -1138, 1904), (756, -919, 1675))),
        Row("vae", "VAE", ((765, -1609, 2374), (769, -1373, 2142))),
        Row("1-256", "(1/256, 0)", ((749, -1665, 2414), (774, -1402, 2176)), mixed(1 / 256, 0)),
        Row("1-64", "(1/64, 0)", ((698, -1863, 2561), (748, -1520, 2268)), mixed(1 / 64, 0)),
        Row("1-16", "(1/16, 0)", ((753, -1818, 2571), (777, -1463, 2240)), mixed(1 / 16, 0)),
        Row("0,1", "(0, 1)", ((736, -1656, 2392), (775, -1372, 2147)), mixed(0, 1)),
    ]


def run(out: Path, options: Options) -> Section:
    """Make the missing cells, then the table."""
    start = time.perf_counter()
    setting = setting_for(options)
    cells = measure(out, setting, options.seeds, jobs=options.processes, say=options.say)
    record = made_by(f"fvnce reproduce table --data {setting.data} --seeds {options.seeds}") | {
        "settings": asdict(setting),
        "seeds": options.seeds,
        "rows": {row.name: {"label": row.label, "paper": row.paper} for row in rows(setting)},
        "cells": [
            {"network": named(network), "row": row, "seed": seed} | measured(cell)
            for (network, row, seed), cell in cells.items()
        ],
    }
    shown = tables(record)
    document = out / f"table-{setting.data}.md"
    write_text(document, "\n\n".join(f"**{table.caption}**\n\n{table.markdown()}" for table in shown) + "\n")
    return Section(
        TITLE,
        reading(record),
        tables=shown,
        settings=asdict(setting) | {"seeds": options.seeds},
        seconds=time.perf_counter() - start,
        files=[document, write_json(out / f"table-{setting.data}.json", record)],
    )


# The cells.


def measure(
    out: Path,
    setting: Setting,
    seeds: int,
    *,
    jobs: int = 1,
    say: Callable[[str], None] = lambda text: None,
    only: Sequence[str] | None = None,
) -> dict[Key, dict[str, Any]]:
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


def missing(out: Path, setting: Setting, wanted: Iterable[Key], *, tables: bool) -> list[Work]:
    """The work that makes the cells that are not there; with ``tables``, log p_n of the training images comes first,
    in blocks, so that several processes share it instead of each making all of it."""
    cells = cells_of(out, setting)
    keys = [key for key in wanted if not cells.path(cell_name(*key)).exists()]
    contrastive = {row.name for row in rows(setting) if row.rule is not None}
    blocks: range = range(0)
    if tables and any(row in contrastive for _, row, _ in keys):
        count = setting.rows or {"digits": 1437, "mnist": 60_000}[setting.data]
        blocks = range(0, count, _BLOCK_ROWS)
    return [
        *(Work(f"log p_n of images from {low}", tabulate, (out, setting, low)) for low in blocks),
        *(Work(cell_name(*key), make_cell, (out, setting, *key)) for key in keys),
    ]


def tabulate(out: Path, setting: Setting, low: int) -> None:
    """log p_n of one block of training images, into the cache."""
    images, noise = data_and_noise(setting, out / "cells" / _CACHE)
    with torch.no_grad():
        noise.log_prob(images.train[low : low + _BLOCK_ROWS])


def named(network: tuple[int, ...]) -> str:
    """A network as text.

    >>> named((784, 128, 784))
    '784-128-784'
    """
    return "-".join(map(str, network))


def cell_name(network: tuple[int, ...], row: str, seed: int) -> str:
    """What a cell is called, on the screen and on the disk."""
    return f"{named(network)}_{row.replace(',', '_')}_seed{seed}"


def cells_of(out: Path, setting: Setting) -> Cells:
    """The finished cells of a setting."""
    # A cell's own network is part of its name; that others are measured beside it does not change it.
    kept = {name: value for name, value in asdict(setting).items() if name != "networks"}
    return Cells(out / "cells" / f"table-{setting.data}", kept)


def make_cell(out: Path, setting: Setting, network: tuple[int, ...], row: str, seed: int) -> None:
    """Train one row and measure it, and keep that."""
    cells, name = cells_of(out, setting), cell_name(network, row, seed)
    images, noise = data_and_noise(setting, out / "cells" / _CACHE)
    wanted = next(candidate for candidate in rows(setting) if candidate.name == row)
    weights = cells.path(name, ".safetensors")
    cells.get(name, lambda: _cell(weights, setting, images, noise, network, wanted, seed))


def _cell(
    weights: Path,
    setting: Setting,
    images: Images,
    noise: KernelDensity,
    network: tuple[int, ...],
    row: Row,
    seed: int,
) -> dict[str, Any]:
    start = time.perf_counter()
    pair = make_pair(setting, network, seed)
    objective = row.objective(pair, noise)
    history = fit(
        objective, images.train, epochs=setting.epochs, batch_size=setting.batch_size, lr=setting.lr, seed=seed
    )
    samples = noise.draw(setting.noise_samples, torch.Generator().manual_seed(1000 + seed))
    weights.parent.mkdir(parents=True, exist_ok=True)
    save_objective(weights, Autoencoder(pair.model, pair.encoder))
    found = {
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
        found |= {name: getattr(report, name) for name in SHARES}
    return found


def trained(out: Path, setting: Setting, network: tuple[int, ...], row: Row, seed: int = 0) -> Pair:
    """The networks of a finished cell."""
    path = cells_of(out, setting).path(cell_name(network, row.name, seed), ".safetensors")
    objective: Any = load_objective(path)
    return Pair(objective.model, objective.encoder)


# What is told of them, from the file of results alone.


def networks(record: Record) -> list[str]:
    """The networks of a file, as text."""
    return list(dict.fromkeys(cell["network"] for cell in record["cells"]))


def column(record: Record, network: str, row: str, name: str) -> list[float]:
    """One number of a row for each seed; "difference" is that between training images and noise."""
    cells = [cell for cell in record["cells"] if cell["network"] == network and cell["row"] == row]
    cells.sort(key=lambda cell: int(cell["seed"]))
    if name == "difference":
        return [cell["train"] - cell["noise"] for cell in cells]
    return [cell[name] for cell in cells if name in cell]


def tables(record: Record) -> list[Table]:
    """Averages, with the paper's beside ours on MNIST, and the state of the noise term."""
    with_paper = record["settings"]["data"] == "mnist"
    seeds = f"{record['seeds']} seed{'s' * (record['seeds'] > 1)}"
    columns = ("train", "test", "noise", "difference")
    header = ["method / (α, β)", "train", "test", "noise", "train − noise"]
    if with_paper:
        header += ["paper: data", "paper: noise", "paper: difference"]
    averages, explained = [], []
    for index, network in enumerate(networks(record)):
        lines, shares = [], []
        for name, row in record["rows"].items():
            ours = [mean_and_error(column(record, network, name, which)) for which in columns]
            lines.append([row["label"], *ours, *(map(str, row["paper"][index]) if with_paper else [])])
            found = [column(record, network, name, share) for share in SHARES]
            if found[0]:
                shares.append([row["label"], *(f"{statistics.fmean(values):.1%}" for values in found)])
        averages.append(Table(f"{network}, nats, mean ± standard error over {seeds}", header, lines))
        head = ["(α, β)", *(share.replace("_", " ") for share in SHARES)]
        explained.append(Table(f"{network}: what explains the rows", head, shares))
    return averages + explained


def reading(record: Record) -> list[str]:
    """What came out, in words."""
    labels = {name: row["label"] for name, row in record["rows"].items()}
    with_paper = record["settings"]["data"] == "mnist"
    sentences = []
    for index, network in enumerate(networks(record)):
        sentences.append(
            _order(record, network, labels) + (_against_the_paper(record, index, network, labels) if with_paper else "")
        )
    if with_paper:
        sentences.append(
            "Where training starts for every row, the data column depends little on what the paper leaves open; the "
            "noise column depends on it, above all on the initial weights. Pixels that are 0 in every image never "
            "change the weights that lead away from them, so noise on these pixels passes through weights as they were "
            "drawn, and their size is a matter of convention."
        )
    return sentences + _felt(record)


def _order(record: Record, network: str, labels: dict[str, str]) -> str:
    """The order of the rows as far as it is beyond its error, and where a distance from the VAE comes from."""
    data, noise = ({name: column(record, network, name, which) for name in labels} for which in ("train", "noise"))
    if record["seeds"] < 2:
        falls = {name: fallen(data[name], noise[name], data["vae"], noise["vae"]) for name in labels}
        fell = [f"{labels[name]} (data {-fall:+.0f})" for name, fall in falls.items() if fall is not None]
        return (
            f"On {network} the rows are not put in an order: one seed has no error, and the order of numbers as close "
            "as these may be chance; --seeds 3 gives one."
            + (f" Below the VAE because the data term fell, not because of noise: {', '.join(fell)}." if fell else "")
        )
    gaps = {label: column(record, network, name, "difference") for name, label in labels.items()}
    found = {
        label: against(label, "the VAE", data[name], noise[name], data["vae"], noise["vae"])
        for name, label in labels.items()
        if name != "vae"
    }
    told = "; ".join(filter(None, found.values())) or "no row differs from the VAE beyond its error"
    close = [label for label, sentence in found.items() if not sentence]
    within = f" Within their error of the VAE: {', '.join(close)}." if close and len(close) < len(found) else ""
    return (
        f"On {network} the difference between data and noise grows in the order {ordered(gaps)}, where ≈ is a "
        f"step within its error (95 %, paired over {record['seeds']} seeds). {told[0].upper()}{told[1:]}.{within}"
    )


def _against_the_paper(record: Record, index: int, network: str, labels: dict[str, str]) -> str:
    """How far the columns are from the paper's, as root mean squares over all rows, and in which row most."""
    parts = []
    for place, (which, title) in enumerate((("noise", "noise"), ("train", "data"), ("difference", "their difference"))):
        errors = {
            label: statistics.fmean(column(record, network, name, which))
            - record["rows"][name]["paper"][index][(1, 0, 2)[place]]
            for name, label in labels.items()
        }
        rms = statistics.fmean(error**2 for error in errors.values()) ** 0.5
        worst = max(errors, key=lambda label: abs(errors[label]))
        parts.append(f"{title} {rms:.0f} (most in {worst}: {errors[worst]:+.0f})")
    return f" Distance from the paper's numbers, root mean square over the six rows, in nats: {', '.join(parts)}."


def _felt(record: Record) -> list[str]:
    """Which samples the gradient of the contrastive rows comes from."""
    contrastive = [cell for cell in record["cells"] if "live_noise" in cell]
    if not contrastive:
        return []
    live, zero = (span([cell[name] for cell in contrastive]) for name in ("live_noise", "zero_noise"))
    far = ": with σ_kde = 2σ_dec the log-ratio Δ of a noise sample is hundreds of nats below 0"
    sentences = [
        f"Of the noise samples {live} can be felt in the gradient and {zero} have a gradient of exactly zero in "
        f"float32{far * (record['settings']['data'] == 'mnist')}. Where none can be felt, the rows differ only because "
        "α re-weights the data by r^α, not because noise is penalised."
    ]
    clipped = [cell["clipped_data"] for cell in contrastive if cell["row"] == "1-16"]
    if clipped and min(clipped) > 0.5:
        sentences.append(
            f"With α = 1/16, {span(clipped)} of the data end above the clip T, where r^α is replaced by a line and all "
            "data weigh the same, as in the VAE. Where this row ends elsewhere than the VAE, the way there decides: "
            "while Δ of the first images rises through 0, these carry nearly all of the weight (`ess_data` in the "
            "history of such a run falls from 1 to a few per cent within its first epoch and then recovers)."
        )
    return sentences


def span(shares: Sequence[float]) -> str:
    """From the smallest to the largest.

    >>> span([0.0, 0.001]), span([0.2, 0.5])
    ('0%', '20% to 50%')
    """
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return low if low == high else f"{low} to {high}"
