"""All benchmarks: results/bench/*.json → results/bench/README.md, a section for each file that is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import detection, estimators
from .detection import markdown_table, plain

Record = dict[str, Any]


def page(results: Path) -> str:
    """Return the whole page in Markdown."""
    lines = [
        "# Benchmarks",
        "",
        "Made by `make pages` from the JSON files in `results/bench`; do not edit by hand. Each",
        "file holds every number with what made it. Times are those of one machine; ratios travel better.",
        "",
    ]
    any_results = False
    for name, section in SECTIONS.items():
        path = results / name
        if path.exists():
            any_results = True
            record = json.loads(path.read_text("utf-8"))
            title, *rest = section(record)
            lines += [title, "", detection.made_with(record), *rest]
    if not any_results:
        raise FileNotFoundError(f"results must hold one of {', '.join(SECTIONS)}, found none in {str(results)!r}")
    return "\n".join(lines).rstrip() + "\n"


def _kde(record: Record) -> list[str]:
    names = ["ours", "ours, own draws", "naive torch", "scikit-learn"]
    rows = [
        [
            f"{row['images']}, {row['centres']:,} centers, {row['queries']:,} {row['points']}, "
            f"h = {row['bandwidth']:.3g}",
            *(_number(row["ratio"].get(name)) for name in names),
            *(_small(row["error"].get(name)) for name in ("ours", "naive torch", "scikit-learn")),
        ]
        for row in record["high dimensions"]
    ]
    peers = ["ours", "scipy", "torch-kde"]
    low = [
        [
            f"{row['dimensions']} dimensions, {row['centres']:,} centers, {row['queries']:,} queries",
            *(_number(row["time / scikit-learn"].get(name), 3) for name in peers),
            *(_small(row["error"].get(name)) for name in ("ours", "scikit-learn", "torch-kde")),
        ]
        for row in record["low dimensions"]
    ]
    notes = {name: note for row in record["high dimensions"] for name, note in row.get("notes", {}).items()}
    loo, large = record["leave one out"], record["large"]
    return [
        "## Kernel densities",
        "",
        f"`{record['command']}`, torch {record['torch']}, {record['threads']} threads. Errors in nats.",
        "",
        "**784 dimensions: time over that of the bare matrix product, largest error**",
        "",
        *markdown_table(["what", *names, "error: ours", "naive torch", "scikit-learn"], rows),
        *(f"* {name}: {' '.join(note.split())}" for name, note in notes.items()),
        "",
        "**Few dimensions: time over that of scikit-learn, largest error**",
        "",
        *markdown_table(["what", *peers, "error: ours", "scikit-learn", "torch-kde"], low),
        f"{large['centres']:,} centers and {large['queries']:,} queries took {large['seconds']:.0f} s and "
        f"{large['peak MiB']:.0f} MiB. The leave-one-out bandwidth of {loo['rows']:,} images took {loo['ratio']:.1f} "
        "times the product of the images with one another.",
        "",
    ]


def _speed(record: Record) -> list[str]:
    lines = [
        "## Speed of the detector",
        "",
        f"`{record['command']}`, {record['settings']}.",
        "CPU seconds, and how many times those of a peer on the same rows: the median over pairs. Fits are on 18",
        "tables, scores on 100,000 rows of 20 columns.",
        "",
    ]
    names = list(dict.fromkeys(name for part in record["summary"].values() for name in part["ours / theirs"]))
    rows = [
        [what, _number(part["fvnce seconds"]), *(_ratio(part["ours / theirs"].get(name)) for name in names)]
        for what, part in record["summary"].items()
    ]
    costs = record.get("costs", {})
    of_file = [
        "A saved detector of 20,000 × 20 rows, scored without torch (`fvnce.scorer`) and by the command line:",
        "",
    ]
    saved = [*of_file, *markdown_table(list(costs), [list(map(str, costs.values()))])] if costs else []
    return [*lines, *markdown_table(["", "fvnce, s", *names], rows), *saved]


def _rows_to_train_on(record: Record) -> list[str]:
    means = record["mean ap by max_rows"]
    sizes = sorted({int(size) for part in means.values() for size in part})
    return [
        "## Rows to train on",
        "",
        f"`{record['command']}`, {len(str(record['seeds']).split(','))} seeds.",
        "Mean average precision against `max_rows`: the largest tables of ADBench, and MNIST by principal components.",
        "",
        *markdown_table(
            ["", *(f"{size:,}" for size in sizes)],
            [[name, *(_number(part.get(str(size)), 3) for size in sizes)] for name, part in means.items()],
        ),
    ]


def _ratio(pair: Record | None) -> str:
    return "" if pair is None else times(pair["ratio"])


def times(ratio: float) -> str:
    """Format a ratio with two digits, or as a whole number.

    >>> times(1.64), times(118.6)
    ('1.6 ×', '119 ×')
    """
    return f"{ratio:.2g} ×" if ratio < 99.5 else f"{ratio:.0f} ×"


def _training(record: Record) -> list[str]:
    return [
        "## Training",
        "",
        f"`python benchmarks/training.py`, torch {record['torch']}, {record['threads']} threads, "
        f"{record['rows']:,} rows, {record['centres']:,} centers. The targets were set before.",
        "",
        *markdown_table(["ratio", "found"], [[name, f"{value:.2f}"] for name, value in record["ratios"].items()]),
        *markdown_table(["an epoch", "seconds"], [[name, f"{value:.2f}"] for name, value in record["seconds"].items()]),
        *markdown_table(
            ["before the first step", "tabulating log p_n of the data, s", "filling the pool, s", "live noise"],
            [
                [
                    name,
                    f"{row['seconds_tabulating_data']:.1f}",
                    f"{row['seconds_filling_pool']:.1f}",
                    f"{row['live_noise']:.0%}",
                ]
                for name, row in record["before_training"].items()
            ],
        ),
    ]


def _scaling(record: Record) -> list[str]:
    model = record["model"]
    steps = [
        [
            f"{row['width']} columns, ν = {row['noise_ratio']:g}, K = {row['latent_samples']}, "
            f"{row['rows']:,} rows of data",
            f"{row['parameters']:,}",
            f"{1000 * row['seconds']:.2f}",
        ]
        for row in record["steps"]
    ]
    table = [
        [f"{row['centres']:,} centers, {row['width']} columns", f"{1e6 * row['seconds_per_row']:.1f}"]
        for row in record["table"]
    ]
    return [
        "## Scaling",
        "",
        f"`python benchmarks/scaling.py`, torch {record['torch']}, {record['threads']} threads.",
        "What follows from it is in [the page on training](../../docs/models/train.md#what-training-costs).",
        "",
        *markdown_table(["a step", "parameters", "ms"], steps),
        f"Fitted: an overhead of {1000 * model['overhead_seconds']:.1f} ms, "
        f"{model['flops_per_second'] / 1e9:.0f} GFLOP/s and "
        f"{model['updates_per_second'] / 1e6:.0f} M parameter updates a second, within "
        f"{model['largest_relative_error']:.0%} of every step. At 16 times the rows a step took "
        f"{record['seconds_of_a_step_at_16_times_the_rows']:.2f} times as long.",
        "",
        *markdown_table(["log p_n of a row", "µs"], table),
        f"That is {1e12 * record['seconds_per_centre_and_dimension']:.0f} ps a center and dimension.",
        "",
    ]


def _one_class(record: Record) -> list[str]:
    data = record["data"]
    methods = list(dict.fromkeys(method for numbers in data.values() for method in numbers["auroc"]))
    rows = [[method, *(_number(numbers["auroc"].get(method), 3) for numbers in data.values())] for method in methods]
    return [
        "## One-class methods on the same features",
        "",
        f"`{plain(record['command'])}`, AUROC. What the rows are: [one-class methods as limits]"
        "(../../docs/theory/relatives.md#one-class-methods-as-limits).",
        "",
        *markdown_table(["method", *data], rows),
    ]


def _density_ratio(record: Record) -> list[str]:
    problems = record["problems"]
    methods = list(dict.fromkeys(method for numbers in problems.values() for method in numbers))

    def cells(method: str) -> list[str]:
        measured = [problem.get(method) for problem in problems.values()]
        errors = ["–" if row is None else f"{row['median_error']:.3f} ({row['error']:.3f})" for row in measured]
        return [*errors, *("–" if row is None else f"{row['seconds']:.2f}" for row in measured)]

    return [
        "## Density ratios",
        "",
        f"`{plain(record['command'])}`, {record['seeds']} seeds, {record['rows']} samples of each side, known "
        f"Gaussian ratios; peer: {record['peer'] or 'not installed'}. Median (mean) over seeds of "
        "E[(r̂ − r)²]/E[r²] under the denominator, and processor seconds with cross-validation. The seed decides the "
        "data; a mean far above the median comes from one or two data sets on which cross-validation chose badly.",
        "",
        *markdown_table(["method", *problems, *(f"{name}, s" for name in problems)], [[m, *cells(m)] for m in methods]),
    ]


#: The file of each section.
SECTIONS: dict[str, Callable[[Record], list[str]]] = {
    "detection_unseen.json": detection.unseen,
    "detection.json": detection.known,
    "detection_novelty.json": detection.novelty,
    "detection_images.json": detection.images,
    "detector-speed.json": _speed,
    "detector-rows.json": _rows_to_train_on,
    "one_class.json": _one_class,
    "kde.json": _kde,
    "density_ratio.json": _density_ratio,
    "training.json": _training,
    "scaling.json": _scaling,
    "estimators.json": estimators.estimators,
    "flat_landscape.json": estimators.flat_landscape,
    "annealing.json": estimators.annealing,
    "bridges.json": estimators.bridges,
    "mutual_information.json": estimators.information,
    "gaussian_information.json": estimators.gaussian_information,
}


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _small(value: float | None) -> str:
    return "–" if value is None else f"{value:.0e}" if value < 0.01 else f"{value:.3g}"
