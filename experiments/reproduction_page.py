"""The document of the reproduction, written from what was measured: no number in it is typed by hand.

    python -m fvnce.paper.document --results results/paper-mnist --out docs/reproduction.md

It reads what ``fvnce reproduce`` and ``fvnce.paper.search`` write, and leaves out the section of a file that is not
there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..diagnostics import SHARES
from ..report.page import Table
from .study import Setting
from .table import mean_and_error

Record = dict[str, Any]

#: A row whose data column is below this share of the VAE's has not been trained.
STARTED = 0.8

#: The order of the column of differences that the paper reports, and that is to be found again.
CHAIN = ("ae", "vae", "1-256", "1-64")


def document(results: Path) -> str:
    """The whole document, in Markdown."""
    parts: dict[str, Callable[[Record], list[str]]] = {
        "table.json": _table_section,
        "noise-reconstructions.json": _noise_section,
        "penalised.json": _penalised_section,
        "instances.json": _instances_section,
        "search.json": _search_section,
    }
    found = {name: json.loads((results / name).read_text("utf-8")) for name in parts if (results / name).exists()}
    if not found:
        raise FileNotFoundError(f"results must hold one of {', '.join(parts)}, found none in {str(results)!r}")
    lines = [
        "# The paper, reproduced on MNIST",
        "",
        "Made by `python -m fvnce.paper.document` from the JSON files in `results/paper-mnist`; do not edit by hand.",
        "`make reproduce` makes all items with one seed. The numbers here come from",
        "",
        *(f"* `{record['command']}`, fvnce {record['version']}, torch {record['torch']}" for record in found.values()),
        "",
    ]
    for name, record in found.items():
        lines += parts[name](record)
    return "\n".join(lines).rstrip() + "\n"


def _table_section(record: Record) -> list[str]:
    cells, labels = record["cells"], {name: row["label"] for name, row in record["rows"].items()}
    networks = list(dict.fromkeys(cell["network"] for cell in cells))
    lines = ["## Average log p(x|g(x)) on data and on noise", "", *_settings(record["settings"]), ""]
    for index, network in enumerate(networks):
        body = []
        for name, row in record["rows"].items():
            data, noise, difference = row["paper"][index]
            values = [_of(cells, network, name, column) for column in ("train", "test", "noise")]
            ours = [mean_and_error(column) for column in (*values, _difference(cells, network, name))]
            body.append([row["label"], str(data), *ours[:2], str(noise), ours[2], str(difference), ours[3]])
        header = [
            "method / (α, β)",
            *("paper: data", "train", "test"),
            *("paper: noise", "noise"),
            *("paper: difference", "train − noise"),
        ]
        seeds = f"{record['seeds']} seed{'s' * (record['seeds'] > 1)}"
        lines += _shown(Table(f"{network}, nats, ours with mean ± standard error over {seeds}", header, body))
    lines += ["### Does the order hold?", ""]
    lines += [
        "The difference of two rows, seed by seed as both start from the same weights, with its standard error. A step",
        "holds if it is above its standard error.",
        "",
    ]
    body = []
    for network in networks:
        for low, high in [*pairwise(CHAIN), ("vae", "0,1")]:
            body.append(_step(record, network, networks.index(network), low, high, labels))
    lines += _shown(Table("Steps of the column of differences", ["network: step", "paper", "ours", "verdict"], body))
    lines += _why_not(cells, body, labels)
    lines += ["### Where it differs from the paper", "", *_where(record, networks, labels), ""]
    lines += ["### What explains the rows", ""]
    lines += _why(cells)
    for network in networks:
        body = [
            [labels[name], *(f"{statistics.fmean(_of(cells, network, name, share)):.1%}" for share in SHARES)]
            for name in labels
            if _of(cells, network, name, SHARES[0])
        ]
        lines += _shown(Table(network, ["(α, β)", *(share.replace("_", " ") for share in SHARES)], body))
    return lines


def _step(record: Record, network: str, index: int, low: str, high: str, labels: dict[str, str]) -> list[str]:
    cells, paper = record["cells"], record["rows"]
    pairs = zip(_difference(cells, network, low), _difference(cells, network, high), strict=True)
    steps = [b - a for a, b in pairs]
    mean, error = statistics.fmean(steps), _error(steps)
    theirs = paper[high]["paper"][index][2] - paper[low]["paper"][index][2]
    if low == "vae" and high == "0,1":
        span = statistics.fmean(_difference(cells, network, "vae")) - statistics.fmean(
            _difference(cells, network, "ae")
        )
        close = abs(mean) <= 0.25 * abs(span)
        verdict = "close to the VAE" if close else "not close: more than a quarter of the step from AE to VAE"
    elif math.isnan(error):
        verdict = "one seed: no error known" + ("" if mean > 0 else ", and the sign is the other")
    else:
        verdict = "holds" if mean > error else "does not hold" if mean < -error else "within the error"
    return [f"{network}: {labels[low]} → {labels[high]}", f"{theirs:+d}", _signed(steps), verdict]


def _why_not(cells: Sequence[Record], steps: Sequence[Sequence[str]], labels: dict[str, str]) -> list[str]:
    """Why the step to the smallest α may not hold: nothing tells its gradient from the VAE's."""
    name = CHAIN[2]
    failed = [step[0].split(":")[0] for step in steps if step[0].endswith(f"→ {labels[name]}") and step[3] != "holds"]
    weights = [cell["ess_data"] for cell in cells if cell["row"] == name]
    felt = max((cell["live_noise"] for cell in cells if cell["row"] == name), default=1.0)
    if not failed or felt > 0.01 or min(weights) < 0.9:
        return []
    return [
        f"The step from the VAE to {labels[name]} is not found again on {' and '.join(failed)}. It need not be: no "
        f"noise sample is felt, and at the end of training the weights r^α of the data are all but equal (effective "
        f"sample size {_span(weights)}), so the two rows follow nearly the same gradient and nothing pushes the noise "
        "column of the one below that of the other. The paper gives no errors for its numbers.",
        "",
    ]


def _where(record: Record, networks: Sequence[str], labels: dict[str, str]) -> list[str]:
    """How far each network's columns are from the paper's, and which rows are far from the others."""
    cells, lines = record["cells"], []
    for index, network in enumerate(networks):
        vae = statistics.fmean(_of(cells, network, "vae", "train"))
        ours = {name: statistics.fmean(_of(cells, network, name, "train")) for name in labels}
        started = [name for name in labels if ours[name] > STARTED * vae]
        off = [
            (
                ours[name] - record["rows"][name]["paper"][index][0],
                statistics.fmean(_of(cells, network, name, "noise")) - record["rows"][name]["paper"][index][1],
            )
            for name in started
        ]
        data, noise = (statistics.fmean(column) for column in zip(*off, strict=True))
        lines.append(f"* {network}: data {data:+.0f}, noise {noise:+.0f} nats from the paper's, means over rows.")
        stuck = [labels[name] for name in labels if name not in started]
        if stuck:
            lines.append(
                f"  Not counted: {', '.join(stuck)}, where training did not start for most images: the few that were "
                "first above the noise have weights r^α up to e^T times those of the rest."
            )
    lines += [
        "",
        "Where training starts for every row, the data column depends little on what the paper leaves open; the noise",
        "column depends on it, above all on the initial weights (see below). Pixels that are 0 in every image never",
        "change the weights that lead away from them, so",
        "noise on these pixels passes through weights as they were drawn, and their size is a matter of convention.",
    ]
    return lines


def _why(cells: Sequence[Record]) -> list[str]:
    contrastive = [cell for cell in cells if "live_noise" in cell]
    if not contrastive:
        return []
    live, zero = ([cell[name] for cell in contrastive] for name in ("live_noise", "zero_noise"))
    clipped = [cell["clipped_data"] for cell in contrastive if cell["row"] == "1-16"]
    sentences = [
        f"Of the noise samples {_span(live)} can be felt in the gradient and {_span(zero)} have a gradient of exactly "
        "zero in float32: with σ_kde = 2σ_dec the log-ratio Δ of a noise sample is hundreds of nats below 0. Where no "
        "noise is felt, what α changes comes from the weights r^α of the data, and not from a penalty on noise.",
    ]
    if clipped and min(clipped) > 0.5:
        sentences.append(
            f"With α = 1/16, {_span(clipped)} of the data end above the clip T, where r^α is replaced by a line and "
            "all data weigh alike, as in the VAE. Where this row ends elsewhere than the VAE, it is for the way there: "
            "while Δ of the first images rises through 0, these carry nearly all of the weight (`ess_data` in the "
            "history of such a run falls from 1 to a few per cent within its first epoch and then recovers)."
        )
    return [*sentences, ""]


def _search_section(record: Record) -> list[str]:
    lines = [
        "## What the paper leaves open",
        "",
        "One search, one seed, no choice made for a row by itself. Distances to the paper's table are root mean",
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
    cells = record["cells"]

    def values(method: str, key: str) -> list[float]:
        return [cell[key] for cell in cells if cell["method"] == method]

    base = {key: statistics.fmean(values("vae", key)) for key in ("ones", "others")}
    body, digits = [], []
    for method, label in record["methods"].items():
        ones, others, auroc = (values(method, key) for key in ("ones", "others", "auroc"))
        body.append(
            [
                label,
                _decimal(ones),
                f"{statistics.fmean(ones) / base['ones']:.1f} ×",
                _decimal(others),
                f"{statistics.fmean(others) / base['others']:.1f} ×",
                _decimal(auroc, 3),
            ]
        )
        each = [cell["per_digit"] for cell in cells if cell["method"] == method]
        digits.append([label, *(f"{statistics.fmean(row[digit] for row in each):.2f}" for digit in range(10))])
    header = ["method", "error of '1's", "over VAE", "error of the rest", "over VAE", "AUROC of '1'"]
    seeds = f"mean over {record['seeds']} seed{'s' * (record['seeds'] > 1)}"
    return [
        "## An autoencoder that forgets '1's",
        "",
        "![Test inputs, samples of the noise, reconstructions by the VAE and by J^{0,0}]"
        "(../results/paper-mnist/penalised.png)",
        "",
        *_shown(Table(f"Squared reconstruction error on test digits, {seeds}", header, body)),
        *_shown(Table("By digit", ["method", *map(str, range(10))], digits)),
        "σ_kde, the number of centres, T, s and the epochs are those of an earlier prototype. With them a linear code",
        "let the other digits suffer too much, on test images too; the ReLU on the code was then chosen among eight",
        "runs on training images that neither training nor noise uses. The numbers above are of test images. Settings:",
        "",
        *_listed(record["settings"]),
        "",
    ]


def _noise_section(record: Record) -> list[str]:
    nats = ", ".join(f"{label} {value:.0f}" for label, value in record["nats"].items())
    return [
        "## Reconstructions of noise samples",
        "",
        "![Noise samples and their reconstructions by AE, VAE and α = 1/16]"
        "(../results/paper-mnist/noise-reconstructions.png)",
        "",
        f"Network {record['network']}, seed {record['seed']}. Average log p(x|g(x)) of noise in nats: {nats}. The "
        "worse noise is rebuilt, the more a method has concentrated on the data; in the paper AE is above VAE, and VAE "
        "above α = 1/16.",
        "",
    ]


def _instances_section(record: Record) -> list[str]:
    rows = [list(map(str, row)) for row in record["rows"]]
    return [
        "## The instances of the family, on trained models",
        "",
        "Equalities hold to rounding, inequalities have the sign that theory demands; log p(x) is from a long run of",
        "importance sampling.",
        "",
        *_shown(Table(record["caption"], record["header"], rows)),
        "Settings:",
        "",
        *_listed(record["settings"]),
        "",
    ]


def _settings(settings: Record) -> list[str]:
    plain = Setting(data=settings["data"]).named()
    names = ("encoder", "code_activation", "output", "init", "pixels", "lr", "batch_size", "centres")
    chosen = {name: settings[name] for name in names}
    fixed = {name: value for name, value in settings.items() if name not in names and name in plain}
    return ["Given by the paper, or of no consequence:", "", *_listed(fixed), "", "Chosen:", "", *_listed(chosen)]


def _listed(settings: Record) -> list[str]:
    return ["`" + ", ".join(f"{name} = {value}" for name, value in settings.items()) + "`"]


def _shown(table: Table) -> list[str]:
    return [f"**{table.caption}**", "", table.markdown(), ""]


def _of(cells: Sequence[Record], network: str, row: str, column: str) -> list[float]:
    mine = sorted((c for c in cells if c["network"] == network and c["row"] == row), key=lambda cell: int(cell["seed"]))
    return [cell[column] for cell in mine if column in cell]


def _difference(cells: Sequence[Record], network: str, row: str) -> list[float]:
    columns = (_of(cells, network, row, column) for column in ("train", "noise"))
    return [data - noise for data, noise in zip(*columns, strict=True)]


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _signed(values: list[float]) -> str:
    return ("+" if statistics.fmean(values) >= 0 else "") + mean_and_error(values)


def _decimal(values: Sequence[float], digits: int = 2) -> str:
    text = f"{statistics.fmean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {_error(values):.{digits}f}"


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0%}", f"{max(values):.0%}"
    return low if low == high else f"{low} to {high}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=Path("results/paper-mnist"), help="folder of JSON files")
    parser.add_argument("--out", type=Path, default=Path("docs/reproduction.md"), help="the document")
    given = parser.parse_args()
    text = document(given.results)
    partial = given.out.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, given.out)


if __name__ == "__main__":
    main()
