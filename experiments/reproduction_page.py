"""The page of the reproduction: results/paper-mnist/*.json → docs/reproduction.md.

Tables and sentences of an item are the item's own; beside them stand how sure the order of the table's rows is, and
what the search found. The section of a file that is not there is left out.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fvnce.pages.page import Table
from fvnce.paper import instances, noise_reconstructions, penalised, table
from fvnce.paper.cells import beyond_error, mean_and_error

Record = dict[str, Any]

#: The order of the column of differences that the paper reports, and that is to be found again.
CHAIN = ("ae", "vae", "1-256", "1-64")
#: What the paper leaves open.
CHOSEN = ("encoder", "code_activation", "output", "init", "pixels", "lr", "batch_size", "centres")


def page(results: Path) -> str:
    """The whole page, in Markdown."""
    found = {name: json.loads((results / name).read_text("utf-8")) for name in SECTIONS if (results / name).exists()}
    if not found:
        raise FileNotFoundError(f"results must hold one of {', '.join(SECTIONS)}, found none in {str(results)!r}")
    lines = [
        "# The paper, reproduced on MNIST",
        "",
        "Made by `make pages` from the JSON files in `results/paper-mnist`; do not edit by hand. `make reproduce`",
        "computes everything with one seed. The numbers here come from",
        "",
        *(f"* `{record['command']}`, fvnce {record['version']}, torch {record['torch']}" for record in found.values()),
        "",
    ]
    for name, record in found.items():
        lines += SECTIONS[name](record)
    return "\n".join(lines).rstrip() + "\n"


def _table_section(record: Record) -> list[str]:
    settings = record["settings"]
    chosen = {name: settings[name] for name in CHOSEN}
    fixed = {name: value for name, value in settings.items() if name not in CHOSEN}
    shown = table.tables(record)
    networks = table.networks(record)
    steps = [
        _step(record, network, index, low, high)
        for index, network in enumerate(networks)
        for low, high in [*pairwise(CHAIN), ("vae", "0,1")]
    ]
    return [
        f"## {table.TITLE}",
        "",
        "Given by the paper, or without consequence:",
        "",
        *_listed(fixed),
        "",
        "Chosen:",
        "",
        *_listed(chosen),
        "",
        *(line for part in shown[: len(networks)] for line in _shown(part)),
        *_paragraphs(table.reading(record)),
        "### Does the order hold?",
        "",
        "The difference of two rows, paired by seed because both start from the same weights, with its standard error.",
        "A step holds if its 95 % interval, by Student's t, excludes zero.",
        "",
        *_shown(Table("Steps of the column of differences", ["network: step", "paper", "ours", "verdict"], steps)),
        *_paragraphs(_why_not(record, steps)),
        "### What explains the rows",
        "",
        *(line for part in shown[len(networks) :] for line in _shown(part)),
    ]


def _step(record: Record, network: str, index: int, low: str, high: str) -> list[str]:
    rows = record["rows"]
    columns = {name: table.column(record, network, name, "difference") for name in ("ae", "vae", low, high)}
    steps = [b - a for a, b in zip(columns[low], columns[high], strict=True)]
    mean = statistics.fmean(steps)
    theirs = rows[high]["paper"][index][2] - rows[low]["paper"][index][2]
    if low == "vae" and high == "0,1":
        close = abs(mean) <= 0.25 * abs(statistics.fmean(columns["vae"]) - statistics.fmean(columns["ae"]))
        verdict = "close to the VAE" if close else "not close: more than a quarter of the step from AE to VAE"
    elif len(steps) < 2:
        verdict = "one seed: no error known" + ("" if mean > 0 else ", and the sign is the other")
    else:
        beyond = beyond_error(columns[high], columns[low])
        verdict = "within the error" if not beyond else "holds" if mean > 0 else "does not hold"
    ours = ("+" if mean >= 0 else "") + mean_and_error(steps)
    return [f"{network}: {rows[low]['label']} → {rows[high]['label']}", f"{theirs:+d}", ours, verdict]


def _why_not(record: Record, steps: Sequence[Sequence[str]]) -> list[str]:
    """Why the step to the smallest α may not hold: nothing tells its gradient from the VAE's."""
    name = CHAIN[2]
    label, cells = record["rows"][name]["label"], [cell for cell in record["cells"] if cell["row"] == name]
    failed = [step[0].split(":")[0] for step in steps if step[0].endswith(f"→ {label}") and step[3] != "holds"]
    weights = [cell["ess_data"] for cell in cells]
    felt = max((cell["live_noise"] for cell in cells), default=1.0)
    if not failed or felt > 0.01 or min(weights) < 0.9:
        return []
    return [
        f"The step from the VAE to {label} is not found again on {' and '.join(failed)}. It need not be: no noise "
        f"sample is felt, and at the end of training the weights r^α of the data are all but equal (effective sample "
        f"size {table.span(weights)}), so the two rows follow nearly the same gradient and nothing pushes the noise "
        "column of the one below that of the other. The paper gives no errors for its numbers."
    ]


def _search_section(record: Record) -> list[str]:
    lines = [
        "## What the paper leaves open",
        "",
        "One search, one seed, no choice made for a single row. Distances to the paper's table are root mean",
        "squares in nats over the data and the noise column of all cells measured; data are training or test images.",
        "",
    ]
    for stage in record["rounds"]:
        body = [
            [
                variant["name"],
                *(
                    f"{variant['distance'][name]:.0f}"
                    for name in ("train", "test", "train column", "test column", "noise column")
                ),
            ]
            for variant in stage["variants"]
        ]
        caption = (
            f"{stage['name']}: {' and '.join(stage['networks'])}, rows {', '.join(stage['rows'])}, "
            f"{stage['epochs']} epochs, {stage['core_seconds'] / 60:.0f} core-minutes"
        )
        header = ["change", "distance, train", "distance, test", "train alone", "test alone", "noise alone"]
        lines += _shown(Table(caption, header, body)) if body else []
    return [*lines, *_choices(record["rounds"][0]["variants"]), f"Chosen: **{record['chosen']['name']}**.", ""]


def _choices(variants: Sequence[Record]) -> list[str]:
    """By how many nats each choice moves the numbers, most first."""
    base = next(variant for variant in variants if not variant["changes"])
    before = {(cell["network"], cell["row"]): cell for cell in base["cells"]}
    moved: dict[str, list[tuple[float, float]]] = {}
    for variant in variants:
        for field in variant["changes"]:
            pairs = [(before[cell["network"], cell["row"]], cell) for cell in variant["cells"]]
            data, noise = (
                math.sqrt(statistics.fmean((a[column] - b[column]) ** 2 for a, b in pairs))
                for column in ("test", "noise")
            )
            moved.setdefault(field, []).append((data, noise))
    body = [
        [field, f"{max(data for data, _ in moves):.0f}", f"{max(noise for _, noise in moves):.0f}"]
        for field, moves in sorted(moved.items(), key=lambda item: -max(max(move) for move in item[1]))
    ]
    caption = "Which choices matter: nats by which a single change moves a column at most (root mean square over rows)"
    return _shown(Table(caption, ["choice", "test data", "noise"], body))


def _penalised_section(record: Record) -> list[str]:
    return [
        "## An autoencoder that forgets '1's",
        "",
        "![Test inputs, samples of the noise, reconstructions by the VAE, and with the log-scale set by hand and "
        "by a budget]"
        "(../results/paper-mnist/penalised.png)",
        "",
        *(line for part in penalised.tables(record) for line in _shown(part)),
        *_paragraphs([*penalised.reading(record), f"{penalised.DEVIATIONS} Settings:"]),
        *_listed(record["settings"]),
        "",
    ]


def _noise_section(record: Record) -> list[str]:
    return [
        f"## {noise_reconstructions.TITLE}",
        "",
        "![Noise samples, what the AE makes of them, and how VAE and α = 1/16 differ from it]"
        "(../results/paper-mnist/noise-reconstructions.png)",
        "",
        *_paragraphs(noise_reconstructions.reading(record)),
    ]


def _instances_section(record: Record) -> list[str]:
    rows = [list(map(str, row)) for row in record["rows"]]
    return [
        f"## {instances.TITLE}",
        "",
        *_paragraphs([instances.READING]),
        *_shown(Table(record["caption"], record["header"], rows)),
        "Settings:",
        "",
        *_listed(record["settings"]),
        "",
    ]


#: The file of each section.
SECTIONS: dict[str, Callable[[Record], list[str]]] = {
    "table.json": _table_section,
    "noise-reconstructions.json": _noise_section,
    "penalised.json": _penalised_section,
    "instances.json": _instances_section,
    "search.json": _search_section,
}


def _listed(settings: Record) -> list[str]:
    return ["`" + ", ".join(f"{name} = {value}" for name, value in settings.items()) + "`"]


def _paragraphs(sentences: Sequence[str]) -> list[str]:
    return [line for sentence in sentences for line in (sentence, "")]


def _shown(part: Table) -> list[str]:
    return [f"**{part.caption}**", "", part.markdown(), ""]
