"""The sections of the page of benchmarks that are about detection: tables on which nothing was chosen come first."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fvnce.paper.setting import ResultTable

Record = dict[str, Any]

#: Names of peers and data sets as their authors write them.
NAMES = {
    "catboost": "CatBoost",
    "copod": "COPOD",
    "deepsad": "Deep SAD",
    "deepsvdd": "Deep SVDD",
    "devnet": "DevNet",
    "ecod": "ECOD",
    "feawad": "FEAWAD",
    "feawad_fixed": "FEAWAD, labels put right",
    "iforest": "isolation forest",
    "knn": "nearest neighbors",
    "knn (mean)": "nearest neighbors (mean)",
    "lightgbm": "LightGBM",
    "lof": "LOF",
    "mcd": "robust covariance (MCD)",
    "mlp": "multi-layer perceptron",
    "ocsvm": "one-class SVM",
    "prenet": "PReNet",
    "pyod_ae": "autoencoder of PyOD",
    "pyod_vae": "VAE of PyOD",
    "rf": "random forest",
    "rosas": "RoSAS",
    "xgbod": "XGBOD",
    "xgboost": "XGBoost",
    "kmnist": "KMNIST",
    "fashion_mnist": "Fashion-MNIST",
}


def named(name: str) -> str:
    """Return the name of a peer or a data set as its authors write it."""
    return NAMES.get(name, name)


def unseen(record: Record) -> list[str]:
    """Return the section on tables that were not used to choose the defaults."""
    lines = [
        "## Detection on tables on which nothing was chosen",
        "",
        f"{record['what'][0].upper()}{record['what'][1:]}. Protocol: {record['protocol']}.",
        "",
        *differences(record),
        "",
    ]
    for source, part in record["sources"].items():
        note = "; later versions choose their defaults on them" if part.get("chosen on since") else ""
        lines += [f"### Means on {source}", "", f"{part['tables']} tables{note}.", ""]
        for setting, ranking in part["settings"].items():
            lines += [f"**{setting}**", "", *_means(ranking)]
    return lines


def differences(record: Record) -> list[str]:
    """Return differences from peers over all tables and by source, and from the previous version."""
    return [*pooled(record), *by_source(record)]


def pooled(record: Record) -> list[str]:
    """Return differences from peers over all tables."""
    body = []
    for setting, row in record["pooled"].items():
        cells = [signed(row[key], row[f"{key}_se"]) for key in ("auroc", "ap")]
        wins = f"{row['wins_ap']} of {row['tables']}"
        body.append([setting.removesuffix(" known"), named(row["against"]), *cells, wins])
    return markdown_table(["known", "compared with", "AUROC", "average precision", "higher average precision on"], body)


def by_source(record: Record) -> list[str]:
    """Return differences by source of the tables, and from the previous version."""
    settings = list(record["pooled"])
    rows = []
    for source, part in record["sources"].items():
        cells = [_minus(part["settings"].get(setting, []), record["pooled"][setting]) for setting in settings]
        rows.append([source, f"{part['tables']}", *cells])
    return [
        "By source, AUROC / average precision:",
        "",
        *markdown_table(["source", "tables", *settings], rows),
        *_last_version(record),
    ]


def _minus(ranking: Sequence[Record], pooled: Record) -> str:
    """Return the difference from a peer, without a standard error if tables were not paired."""
    if not ranking:
        return "–"
    [ours] = [row for row in ranking if row["detector"] == "fvnce"]
    [peer] = [row for row in ranking if row["detector"] == pooled["against"]]
    difference = ours.get("minus") or {key: ours[key] - peer[key] for key in ("auroc", "ap")}
    return " / ".join(signed(difference[key], difference.get(f"{key}_se")) for key in ("auroc", "ap"))


def _last_version(record: Record) -> list[str]:
    """Return both versions on the tables where the previous one was measured, the higher number bold."""
    lines = []
    for source, part in record["sources"].items():
        body = []
        for setting, ranking in part["settings"].items():
            ours = {row["detector"]: row for row in ranking if row["detector"].startswith("fvnce")}
            if len(ours) > 1:
                now, before = ours["fvnce"], next(row for name, row in ours.items() if name != "fvnce")
                version = before["detector"].removeprefix("fvnce ")
                body.append([setting.removesuffix(" known"), pair(now, [before]), pair(before, [now])])
        if body:
            text = f"Compared with version {version} on the {part['tables']} tables of {source}"
            lines += [
                f"{text}; the higher mean is bold:",
                "",
                *markdown_table(["known", record["version"], version], body),
            ]
    return lines


def pair(row: Record, compared: Sequence[Record]) -> str:
    """Return AUROC and AP, each bold if it is the highest shown."""
    cells = []
    for key in ("auroc", "ap"):
        value = f"{row[key]:.3f}".removeprefix("0")
        cells.append(f"**{value}**" if all(row[key] > other[key] for other in compared) else value)
    return " / ".join(cells)


def signed(value: float, error: float | None) -> str:
    """Format a difference and its standard error, bold if it is more than two of them from 0."""
    shown = f"{'−' if value < 0 else '+'}{abs(value):.3f}".replace("0.", ".", 1)
    if error is None:
        return shown
    shown += f" ± {error:.3f}".replace("0.", ".", 1)
    return f"**{shown}**" if abs(value) > 2 * error else shown


def _means(ranking: Sequence[Record]) -> list[str]:
    body = [
        [_bold(named(row["detector"])), f"{row['seeds']}", f"{row['auroc']:.3f}", f"{row['ap']:.3f}"] for row in ranking
    ]
    return markdown_table(["detector", "seeds", "AUROC", "average precision"], body)


def known(record: Record) -> list[str]:
    """Return the section on tables with known anomalies."""
    lines = ["## Detection", "", *(f"* `{plain(command)}`" for command in record["commands"]), ""]
    lines += [f"Columns are {record['inputs']}, the peers' as well.", ""]
    for name, ranking in record["summary"].items():
        share, _, seeds = name.partition(", ")
        mine = [row for row in record["rows"] if f"{row['share']:g}" == share]
        tables = len({row["dataset"] for row in mine})
        seconds = [row["fit cpu seconds"] for row in mine if "fit cpu seconds" in row]
        cost = f", median fit {statistics.median(seconds):.1f} s of one core" if seconds else ""
        what = f"{float(share):.0%} of the anomalies known" if float(share) else "no anomaly known"
        lines += [f"**{what}, {seeds}, {tables} tables{cost}; means over tables**", ""]
        numbers = seeds.removeprefix("seeds ").removeprefix("seed ").split(",")
        lines += _ranking(ranking, f"{len(numbers)}")
        for part, part_rows in record.get("parts", {}).get(name, {}).items():
            [ours] = [row for row in part_rows if row["detector"] == "fvnce"]
            best = [row for row in part_rows if row["detector"] != "fvnce"][:2]
            shown = [f"**fvnce** {ours['auroc']:.3f} / {ours['ap']:.3f}"]
            shown += [f"{named(row['detector'])} {row['auroc']:.3f} / {row['ap']:.3f}" for row in best]
            lines += [f"* {part}: {', '.join(shown)}"]
        lines += ["* " + _at_threshold([row for row in mine if str(row["seed"]) in numbers]), ""]
    return lines


def _at_threshold(rows: Sequence[Record]) -> str:
    """Return mean results at the automatic threshold over tables and seeds."""
    flagged, true = (statistics.fmean(row[name] for row in rows) for name in ("flagged", "true share"))
    precision, recall = (statistics.fmean(row[name] for row in rows) for name in ("precision", "recall"))
    return (
        f"at the threshold: {flagged:.1%} of the test rows are flagged where {true:.1%} are anomalies; "
        f"precision {precision:.2f}, recall {recall:.2f}"
    )


def novelty(record: Record) -> list[str]:
    """Return the section on tables without known anomalies, by protocol."""
    titles = {
        "contaminated": "Rows that may hold outliers",
        "random-half": "A random half of the inliers, known to be clean (`clean=True`)",
        "first-half": "The protocol of DTE: the first half of the inliers in file order (`clean=True`)",
    }
    lines = [
        "## Detection with nothing known",
        "",
        f"`{plain(record['command'])}`. Everyone in the same run, on the same rows.",
        f"Columns are {record['inputs']}, the peers' as well.",
        "",
    ]
    if "random-half" in record["summary"]:
        lines += [
            "A random half of the inliers is a protocol of our own. Its numbers cannot be compared with those of DTE "
            "(Livernoche et al.,",
            "ICLR 2024), which trains on the first half in file order: `--protocols first-half`.",
            "",
        ]
    for protocol, ranking in record["summary"].items():
        tables = max(row["tables"] for row in ranking)
        lines += [f"**{titles[protocol]}, {tables} tables; means over tables and seeds**", ""]
        rows = [
            [
                _bold(named(row["detector"])),
                f"{len(row['seeds'])}",
                f"{row['auroc']:.3f}",
                f"{row['ap']:.3f}",
                f"{row['median fit cpu seconds']:.2f}",
            ]
            for row in ranking
        ]
        lines += markdown_table(["detector", "seeds", "AUROC", "average precision", "median fit, s of one core"], rows)
    return lines


def images(record: Record) -> list[str]:
    """Return the section on images of a class that was not in training."""
    settings = record["settings"]
    rows, tests = settings["training rows, held out"], settings["test rows"]
    lines = [
        "## Detection on images",
        "",
        f"`{plain(record['command'])}`: AUROC on {tests} test images; {rows:,} training images where one digit is held",
        "out, else all of the class. The program states each protocol, and the budget of autoencoder and VAE.",
        "",
    ]
    groups = dict.fromkeys((row["protocol"], row["data"]) for row in record["rows"])
    for protocol, data in groups:
        mine = [row for row in record["rows"] if (row["protocol"], row["data"]) == (protocol, data)]
        tasks = list(dict.fromkeys(row["what"] for row in mine))
        aurocs = {(row["what"], row["method"]): row["auroc"] for row in mine}
        body = []
        for method in dict.fromkeys(row["method"] for row in mine):
            values = [aurocs.get((task, method)) for task in tasks]
            there = [value for value in values if value is not None]
            mean = f"{statistics.fmean(there):.3f}" + ("" if len(there) == len(tasks) else f" of {len(there)}")
            seeds = f"{len({row['seed'] for row in mine if row['method'] == method})}"
            body.append([_bold(method), seeds, mean, *("–" if value is None else f"{value:.3f}" for value in values)])
        body.sort(key=lambda cells: -float(cells[2].partition(" ")[0]))
        lines += [f"**{named(data)}, {protocol}**", "", *markdown_table(["method", "seeds", "mean", *tasks], body)]
    return lines


def made_with(record: Record) -> str:
    """Return by which version and commit a file of results was made.

    >>> made_with({"version": "0.3.0", "commit": "5f1e6d4"})
    'Measured with version 0.3.0, commit 5f1e6d4.'
    """
    version = record.get("version") or record.get("versions", {}).get("fvnce")
    if version is None:
        return "Measured with a version before 0.3.0, which was not recorded."
    return f"Measured with version {version}" + (f", commit {record['commit'][:7]}." if "commit" in record else ".")


def plain(command: str) -> str:
    """Return the command without folders of the machine it ran on."""
    return " ".join(Path(word).name if word.startswith("/") else word for word in command.split())


def _ranking(ranking: Sequence[Record], seeds: str) -> list[str]:
    ranked = any("mean rank" in row for row in ranking)
    body = [
        [
            _bold(named(row["detector"])),
            seeds,
            f"{row['auroc']:.3f}",
            f"{row['ap']:.3f}",
            *([f"{row['mean rank']:.1f}"] if ranked else []),
        ]
        for row in ranking
    ]
    return markdown_table(
        ["detector", "seeds", "AUROC", "average precision", *(["mean rank by it"] if ranked else [])], body
    )


def _bold(name: str) -> str:
    return f"**{name}**" if name == "fvnce" else name


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown, and an empty line."""
    return [ResultTable("", header, rows).markdown(), ""]
