"""The results in the README and on the start page: results/*.json → the text between marks, where there is a file.

The table on which nothing was chosen opens both; all others stand further down in the README.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fvnce.paper import penalised, table

from .detection import differences, markdown_table, named, pair

Record = dict[str, Any]
Parts = dict[str, Callable[[Record], list[str]]]
BEGIN, END = "<!-- results: made by `make pages`, do not edit -->", "<!-- end of results -->"
FIRST, END_OF_FIRST = "<!-- first result: made by `make pages`, do not edit -->", "<!-- end of first result -->"


def readme(text: str, results: Path) -> str:
    """The README with its results as the files give them."""
    text = _between(text, FIRST, END_OF_FIRST, block(results, OPENING))
    return _between(text, BEGIN, END, block(results, FURTHER))


def start_page(text: str, results: Path) -> str:
    """The start page with the result that opens it."""
    return _between(text, FIRST, END_OF_FIRST, block(results, OPENING))


def _between(text: str, begin: str, end: str, lines: list[str]) -> str:
    before, has_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not has_begin or not found_end:
        raise ValueError(
            f"the page must hold the marks {begin!r} and {end!r}, found {bool(has_begin)} and {bool(found_end)}"
        )
    return "\n".join([before + begin, "", *lines, end + after])


def block(results: Path, parts: Parts) -> list[str]:
    """The lines of those parts whose results are there."""
    lines: list[str] = []
    for name, part in parts.items():
        path = results / name
        if path.exists():
            lines += part(json.loads(path.read_text("utf-8")))
    return lines


def _unseen(record: Record) -> list[str]:
    """Ours minus a peer's, over all tables and by source."""
    most = max(row["tables"] for row in record["pooled"].values())
    return [
        f"**On {most} tables that played no part in choosing its defaults**, version {record['version']} minus a peer: "
        "mean differences, paired by table,",
        "± standard errors. Each has one set of defaults and the same splits and labels. Bold: more than two standard "
        "errors from 0.",
        "",
        *differences(record),
    ]


def _novelty(record: Record) -> list[str]:
    """Ours and the two best peers."""
    names = {
        "contaminated": "outliers among the training rows",
        "random-half": "clean training rows, a random half of the inliers",
        "first-half": "clean training rows, the first half of the inliers in file order (DTE's protocol)",
    }
    body = []
    for protocol, ranking in record["summary"].items():
        [ours] = [row for row in ranking if row["detector"] == "fvnce"]
        peers = [row for row in ranking if row["detector"] != "fvnce"][:2]
        shown = ", ".join(f"{named(row['detector'])} {pair(row, [ours])}" for row in peers)
        body.append([names[protocol], f"{len(ours['seeds'])}", pair(ours, peers), shown])
    tables = max(row["tables"] for ranking in record["summary"].values() for row in ranking)
    count = max(len(ranking) for ranking in record["summary"].values()) - 1
    return [
        f"**With no outlier known**, on {tables} tables; the two best of {count} peers.",
        f"Columns are {record['inputs']}, the peers' as well.",
        "",
        *markdown_table(["training", "seeds", "fvnce", "best peers"], body),
    ]


def _images(record: Record) -> list[str]:
    """Means over the classes."""
    groups = dict.fromkeys((row["protocol"], row["data"]) for row in record["summary"])
    body = []
    for protocol, data in groups:
        mine = [row for row in record["summary"] if (row["protocol"], row["data"]) == (protocol, data)]
        [ours] = [row for row in mine if row["method"] == "fvnce"]
        peers = sorted(
            (row for row in mine if row["method"] != "fvnce" and row["tasks"] == ours["tasks"]),
            key=lambda row: -row["mean auroc"],
        )
        shown = ", ".join(f"{row['method']} {row['mean auroc']:.3f}" for row in peers[:2]) or "–"
        body.append([f"{named(data)}, {protocol}", f"{ours['tasks']}", f"{ours['mean auroc']:.3f}", shown])
    return [
        "**Images of a class that was not in training**: mean AUROC, one seed "
        "([the protocols](docs/benchmarks.md#detection-on-images)).",
        "",
        *markdown_table(["images", "tasks", "fvnce", "best peers"], body),
    ]


def _detection(record: Record) -> list[str]:
    """Of each share of known anomalies the summary with most seeds, where peers have as many."""
    chosen: dict[float, tuple[int, list[Record]]] = {}
    for name, ranking in record["summary"].items():
        share, seeds = float(name.partition(", ")[0]), name.rpartition(" ")[2].count(",") + 1
        if seeds > chosen.get(share, (0, []))[0] and len(ranking) > 1:
            chosen[share] = seeds, ranking
    tables = len({row["dataset"] for row in record["rows"]})
    body = []
    for share, (seeds, ranking) in sorted(chosen.items(), reverse=True):
        [ours] = [row for row in ranking if row["detector"] == "fvnce"]
        peers = [row for row in ranking if row["detector"] != "fvnce"]
        best = [max(peers, key=lambda row: row[key]) for key in ("ap", "auroc")]
        others = [row for row in peers if row not in best][: 2 - len({row["detector"] for row in best})]
        shown = sorted([*{row["detector"]: row for row in [*best, *others]}.values()], key=lambda row: -row["ap"])
        body.append(
            [
                f"{100 * share:g} %" if share else "none",
                f"{seeds}",
                pair(ours, shown),
                ", ".join(f"{named(row['detector'])} {pair(row, [ours])}" for row in shown),
            ]
        )
    return [
        f"**On the {tables} tables on which the defaults were chosen**, so that these numbers flatter: mean AUROC / "
        "mean average precision on held-out rows,",
        "and the two best peers",
        "([all of them](docs/benchmarks.md); [how the defaults were chosen](docs/detection.md#every-default-and-why)).",
        f"Columns are {record['inputs']}, the peers' as well.",
        "",
        *markdown_table(["known", "seeds", "fvnce", "best peers"], body),
    ]


def _table(record: Record) -> list[str]:
    body = []
    for index, network in enumerate(table.networks(record)):
        line = [network]
        for name, row in record["rows"].items():
            mine = table.column(record, network, name, "difference")
            line.append(f"{_mean(mine)} ({row['paper'][index][2]})" if mine else "–")
        body.append(line)
    header = ["network", *(row["label"] for row in record["rows"].values())]
    return [
        f"**The paper's table** on MNIST: by how many nats log p(x|g(x)) is higher on data than on noise, "
        f"{_seeds(record['seeds'])}, with the",
        "paper's number in brackets ([the whole reproduction](docs/reproduction.md)).",
        "",
        *markdown_table(header, body),
    ]


def _penalised(record: Record) -> list[str]:
    body = []
    for method, label in record["methods"].items():
        ones, others, auroc = (penalised.mean(record, method, key) for key in ("ones", "others", "auroc"))
        body.append([label, f"{ones:.1f}", f"{others:.1f}", f"{auroc:.3f}"])
    return [
        "**The paper's autoencoder that forgets '1's**, on MNIST: squared reconstruction error on test digits, "
        f"{penalised.mean_of_seeds(record)}, and",
        "how well that error finds '1's.",
        "",
        *markdown_table(["objective", "error of '1's", "error of other digits", "AUROC of '1'"], body),
    ]


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"mean over {count} seeds"


def _mean(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.0f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.0f}"


#: Which results open the README and the start page, and which stand further down in the README.
OPENING: Parts = {"bench/detection_unseen.json": _unseen}
FURTHER: Parts = {
    "bench/detection.json": _detection,
    "bench/detection_novelty.json": _novelty,
    "bench/detection_images.json": _images,
    "paper-mnist/table.json": _table,
    "paper-mnist/penalised.json": _penalised,
}
