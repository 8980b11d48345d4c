"""Blocks of pages that are made from results: results/*.json → the text between two marks, where there is a file.

A page that a person writes holds ``<!-- NAME: made by `make pages`, do not edit -->`` and ``<!-- end of NAME -->``;
between them comes the block of that name in :data:`BLOCKS`. Tables are sorted, and "seeds" is always a number of them.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fvnce.paper import penalised, table

from . import detection, estimators, forgetting
from .benchmarks import times
from .detection import markdown_table, named, pair

Record = dict[str, Any]
#: Files whose blocks have the version in a sentence of their own.
SAYS_VERSION = ("bench/detection_unseen", "bench/detection_choice")
BLOCK = re.compile(r"(<!-- ([\w ]+): made by `make pages`, do not edit -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def filled(text: str, results: Path) -> str:
    """Return the page with each of its blocks as the files give it; a file that is not there leaves a block empty."""

    def fill(match: re.Match[str]) -> str:
        if match[2] not in BLOCKS:
            raise ValueError(f"a block must be one of {', '.join(BLOCKS)}, found {match[2]!r}")
        name, make = BLOCKS[match[2]]
        path = results / name
        if not path.exists():
            return "\n".join([match[1], match[3]])
        record = json.loads(path.read_text("utf-8"))
        made = [] if name.startswith(SAYS_VERSION) else [detection.made_with(record), ""]
        return "\n".join([match[1], *make(record), *made, match[3]])

    return BLOCK.sub(fill, text)


def _unseen(record: Record) -> list[str]:
    """Return ours minus a peer's, over all tables."""
    most = max(row["tables"] for row in record["pooled"].values())
    return [
        f"**On {most} tables that played no part in choosing its defaults**, version {record['version']} minus a peer: "
        "mean differences, paired by table,",
        "± standard errors. Each has one set of defaults and the same splits and labels. Bold: more than two standard "
        "errors from 0.",
        "",
        *detection.pooled(record),
    ]


def _by_source(record: Record) -> list[str]:
    return detection.by_source(record)


def _choice(record: Record) -> list[str]:
    """Return ours minus a peer's on the tables on which the defaults were chosen, by source."""
    rows = record["differences"]
    shares = sorted({row["share"] for row in rows}, reverse=True)
    names = {"adbench": "ADBench", "keel": "KEEL", "oddovr": "OddBench and OvrBench", "all": "all"}
    body = []
    for source, name in names.items():
        found = {row["share"]: row for row in rows if row["source"] == source}
        if not found:
            continue
        cells = []
        for share in shares:
            row = found[share]
            both = [detection.signed(row[f"{key} difference"], row[f"{key} standard error"]) for key in ("auroc", "ap")]
            cells.append(" / ".join(both))
        body.append([name, f"{max(row['tables'] for row in found.values())}", *cells])
    seeds = len({row["seed"] for row in record["rows"]})
    header = [f"{100 * h:g} % known, minus CatBoost" if h else "none known, minus isolation forest" for h in shares]
    version = f"version {record['versions']['fvnce']} (commit {record['commit']})"
    return [
        f"**On the tables on which defaults were chosen**, {version}, {seeds} seeds: mean differences in AUROC /",
        "average precision, paired by table, ± standard errors; bold: more than two of them from 0. These numbers may",
        "flatter: only the score without labels was chosen with a source left out.",
        "",
        *markdown_table(["source", "tables", *header], body),
    ]


def _nothing_known(record: Record) -> list[str]:
    """Return tables of the detector and all peers, by protocol."""
    names = {
        "contaminated": "Outliers among the training rows",
        "random-half": "Clean training rows, a random half of the inliers (`clean=True`)",
        "first-half": "Clean training rows, the first half of the inliers in file order (`clean=True`)",
    }
    lines = []
    for protocol, ranking in record["summary"].items():
        tables = max(row["tables"] for row in ranking)
        [ours] = [row for row in ranking if row["detector"] == "fvnce"]
        peers = [row for row in ranking if row is not ours]
        body = [
            [
                named(row["detector"]),
                f"{len(row['seeds'])}",
                pair(row, peers if row is ours else [ours]),
                f"{row['median fit cpu seconds']:.2f}",
            ]
            for row in sorted(ranking, key=lambda row: -row["ap"])
        ]
        header = ["detector", "seeds", "AUROC / average precision", "median fit, s of one core"]
        lines += [f"**{names[protocol]}**, {tables} tables:", "", *markdown_table(header, body)]
    return lines


def _images(record: Record) -> list[str]:
    """Return means over the classes: a row for each method, a column for each protocol."""
    groups = list(dict.fromkeys((row["data"], row["protocol"]) for row in record["summary"]))
    means = {(row["method"], row["data"], row["protocol"]): row["mean auroc"] for row in record["summary"]}
    best = {group: max(value for (_, *found), value in means.items() if tuple(found) == group) for group in groups}
    methods = list(dict.fromkeys(method for method, *_ in means))
    body = []
    for method in sorted(methods, key=lambda method: -means.get((method, *groups[0]), 0.0)):
        cells = []
        for group in groups:
            value = means.get((method, *group))
            shown = "–" if value is None else f"{value:.3f}"
            cells.append(f"**{shown}**" if value == best[group] else shown)
        body.append([method, *cells])
    return markdown_table(["mean AUROC", *(f"{named(data)}, {protocol}" for data, protocol in groups)], body)


def _speed(record: Record) -> list[str]:
    """A row for each peer, a column for what is timed."""
    parts = record["summary"]
    names = list(dict.fromkeys(name for part in parts.values() for name in part["ours / theirs"]))
    body = [["fvnce, seconds", *(f"{part['fvnce seconds']:.2f}" for part in parts.values())]]
    for name in names:
        ratios = [part["ours / theirs"].get(name) for part in parts.values()]
        body.append([named(name), *("–" if ratio is None else times(ratio["ratio"]) for ratio in ratios)])
    return markdown_table(["compared with", *parts], body)


def _rows(record: Record) -> list[str]:
    """Average precision by the most rows that train."""
    means = record["mean ap by max_rows"]
    shown = {"adbench": "the largest tables of ADBench", "mnist": "MNIST, principal components"}
    body = [
        [f"{size:,}", *(f"{part[str(size)]:.3f}" if str(size) in part else "–" for part in means.values())]
        for size in sorted({int(size) for part in means.values() for size in part})
    ]
    return markdown_table(["`max_rows`", *(f"average precision on {shown[name]}" for name in means)], body)


def _table(record: Record) -> list[str]:
    """The columns of the paper's table for each network, with the paper's numbers."""
    seeds = "one seed" if record["seeds"] == 1 else f"mean over {record['seeds']} seeds"
    lines = [
        f"log p(x|g(x)) in nats on data and on noise, {seeds} with standard errors; in brackets the paper's number.",
        "",
    ]
    for index, network in enumerate(table.networks(record)):
        body = []
        for name, row in record["rows"].items():
            columns = [table.column(record, network, name, column) for column in ("train", "noise", "difference")]
            paper = row["paper"][index]
            cells = [f"{_mean(mine)} ({theirs})" if mine else "–" for mine, theirs in zip(columns, paper, strict=True)]
            body.append([row["label"], *cells])
        lines += [f"**{network}**", "", *markdown_table(["(α, β)", "data", "noise", "data − noise"], body)]
    return lines


def _forgetting(record: Record) -> list[str]:
    body = []
    for method, label in record["methods"].items():
        ones, others, auroc = (penalised.mean(record, method, key) for key in ("ones", "others", "auroc"))
        label = label.replace("normalised", "normalized")
        body.append([label, f"{ones:.1f}", f"{others:.1f}", f"{auroc:.3f}"])
    return [
        f"Squared reconstruction error on test digits, {penalised.mean_of_seeds(record)}:",
        "",
        *markdown_table(["objective", "error of '1's", "error of other digits", "AUROC of '1' by its error"], body),
    ]


def _classes(record: Record) -> list[str]:
    """Return mean and range over the forgotten classes, by data set and method."""
    ways = {"vae": "VAE", "auto": "budget", "without": "retrained without the class", "ascent": "gradient ascent"}
    shown = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}
    body = []
    for data in dict.fromkeys(line["data"] for line in record["summary"]):
        lines = [line for line in record["summary"] if line["data"] == data]
        for way, title in ways.items():
            aurocs = [line[way]["auroc"] for line in lines if way in line]
            rest = [line[way]["rest"] for line in lines if way in line]
            if aurocs:
                body.append([shown.get(data, data), f"{len(aurocs)}", title, _range(aurocs), _range(rest)])
    header = ["data", "tasks", "way", "AUROC of the class", "error of the rest over the VAE's"]
    return markdown_table(header, body)


def _range(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _mean(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.0f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.0f}"


#: The file in ``results`` and the maker of each block.
BLOCKS: dict[str, tuple[str, Callable[[Record], list[str]]]] = {
    "unseen": ("bench/detection_unseen.json", _unseen),
    "by source": ("bench/detection_unseen.json", _by_source),
    "choice": ("bench/detection_choice.json", _choice),
    "nothing known": ("bench/detection_novelty.json", _nothing_known),
    "images": ("bench/detection_images.json", _images),
    "speed": ("bench/detector-speed.json", _speed),
    "rows": ("bench/detector-rows.json", _rows),
    "table": ("paper-mnist/table.json", _table),
    "forgetting": ("paper-mnist/penalised.json", _forgetting),
    "mutual information": ("bench/mutual_information.json", estimators.information_summary),
    "classes": ("forgetting/forgetting.json", _classes),
    "noises": ("forgetting/flow-contrastive.json", forgetting.noises_compared),
}
