"""Sections of the page of benchmarks that compare estimators: results/bench/{estimators,flat_landscape,…}.json."""

from __future__ import annotations

from typing import Any

from .detection import markdown_table

Record = dict[str, Any]


def estimators(record: Record) -> list[str]:
    """Return the errors of every estimator on every problem."""
    names = list(next(iter(record["problems"].values())))

    def rows(value: str, error: str) -> list[list[str]]:
        return [
            [problem, *(_with_error(numbers[name][value], numbers[name].get(error)) for name in names)]
            for problem, numbers in record["problems"].items()
        ]

    return [
        "## Estimators",
        "",
        f"`{record['command']}`, torch {record['torch']}, `results/bench/estimators.json`: {record['rows']:,} rows, "
        f"{record['seconds']:g} processor seconds each, means of {len(record['seeds'])} seeds with standard errors.",
        "",
        "**KL(truth‖model), in thousandths of a nat**",
        "",
        *markdown_table(["problem", *names], rows("kl", "kl_error")),
        "**Error of log Z, root mean square, in thousandths of a nat**",
        "",
        *markdown_table(
            ["problem", *names[1:]],
            [[row[0], *row[2:]] for row in rows("log_z", "log_z_error")],
        ),
    ]


def flat_landscape(record: Record) -> list[str]:
    """Return the number of descent steps against the distance of the noise."""
    names = list(record["rows"][0]["steps"])
    rows = [
        [
            f"{row['distance']:g}",
            *(f"> {record['most']:,}" if row["steps"][name] is None else f"{row['steps'][name]:,}" for name in names),
            *(f"{value:.0f}" for value in row["condition"].values()),
        ]
        for row in record["rows"]
    ]
    return [
        "## Flat landscapes",
        "",
        f"`{record['command']}`, `results/bench/flat_landscape.json`: steps until the error is {record['near']:g}, and "
        "the condition number of the Hessian at the truth.",
        "",
        *markdown_table(["distance", *names, *(f"condition, {name}" for name in record["rows"][0]["condition"])], rows),
    ]


def annealing(record: Record) -> list[str]:
    """Return N·MSE of log Z against the distance."""
    names = [name for name in record["rows"][0] if name != "distance"]
    rows = [
        [
            f"{row['distance']:g}",
            *(
                f"{_three(row[name]['mse'])} ± {_three(row[name]['error'])}"
                + ("" if row[name]["trusted"] > 0.5 else " (not trusted)")
                for name in names
            ),
        ]
        for row in record["rows"]
    ]
    return [
        "## Annealed NCE",
        "",
        f"`{record['command']}`, `results/bench/annealing.json`: N times the mean squared error of log Z, N = "
        f"{record['budget']:,} draws in all, {record['repetitions']} repetitions. The draws are exact, which a model "
        "of unknown log Z seldom allows. The last column is `annealed_nce(model, noise)` with its default Langevin "
        f"chains, N = {record['default_budget']:,}, {record['chain_repetitions']} repetitions.",
        "",
        *markdown_table(["distance", *names], rows),
    ]


def bridges(record: Record) -> list[str]:
    """Return the errors of log-ratios on data and on noise."""
    ways = list(next(iter(record["problems"].values())))
    rows = [
        [
            problem,
            *(
                f"{_three(numbers[way]['on data']['mean'])} / {_three(numbers[way]['on noise']['mean'])}"
                for way in ways
            ),
            *(f"{numbers[way]['seconds']['mean']:.1f}" for way in ways),
        ]
        for problem, numbers in record["problems"].items()
    ]
    return [
        "## Bridges",
        "",
        f"`{record['command']}`, `results/bench/bridges.json`: error of the log-ratio on data / on noise in nats, "
        f"{record['levels']} levels, {record['rows']:,} rows, mean of {len(record['seeds'])} seeds; processor seconds.",
        "",
        *markdown_table(["problem", *ways, *(f"{way}, s" for way in ways)], rows),
    ]


def information(record: Record) -> list[str]:
    """Return the errors of every estimator of mutual information on every task, the smallest of a task in bold."""
    names = list(next(iter(record["tasks"].values()))["mean_absolute_error"])
    rows = []
    for task, numbers in record["tasks"].items():
        off, best = numbers["mean_absolute_error"], numbers["best"]
        cells = ["–" if name not in off else f"{off[name]:.3f}" for name in names]
        bold = [f"**{cell}**" if name == best else cell for name, cell in zip(names, cells, strict=True)]
        rows.append([task, f"{numbers['truth']:.2f}", *bold, f"{numbers['error']:.3f}" if numbers["error"] else "–"])
    settings = record["settings"]
    return [
        "## Mutual information",
        "",
        f"`{record['command']}`, `results/bench/mutual_information.json`: mean absolute "
        f"error in nats on tasks of benchmark-mi, {settings['rows']:,} rows, {settings['seeds']} seeds, neural peers "
        f"{settings['neural_seeds']} with {settings['steps']:,} steps each; the smallest is bold. The last column is "
        "the mean error that fvnce reports.",
        "",
        *information_summary(record),
        *markdown_table(["task", "nats", *names, "reported"], rows),
    ]


def information_summary(record: Record) -> list[str]:
    """Return how often each estimator is the best, and what our error covered."""
    tasks = record["tasks"].values()
    names = list(next(iter(tasks))["mean_absolute_error"])
    rows = []
    for name in names:
        off = [task["mean_absolute_error"][name] for task in tasks if name in task["mean_absolute_error"]]
        best = sum(task["best"] == name for task in tasks)
        rows.append([name, f"{sum(off) / len(off):.3f}", f"{max(off):.2f}", f"{best} of {len(tasks)}"])
    without = record["estimates"] - record["with_an_error"]
    return [
        *markdown_table(["estimator", "mean absolute error, nats", "largest of a task", "best on"], rows),
        f"`fvnce` is best, or worse than the best by no more than the error that it reports, on "
        f"{record['near_the_best']} of {record['of']} tasks. The error covered the truth on {record['covered']} of "
        f"{record['with_an_error']} data sets" + (f"; on {without} none was reported." if without else "."),
        "",
    ]


def gaussian_information(record: Record) -> list[str]:
    """Return estimates of two estimators by dimension, plain and warped."""
    names = list(dict.fromkeys(row["by"] for row in record["records"]))
    cases: dict[tuple[int, bool], dict[str, list[Record]]] = {}
    for row in record["records"]:
        cases.setdefault((row["columns"], row["warped"]), {}).setdefault(row["by"], []).append(row)
    rows = []
    for (columns, warped), by in cases.items():
        cells = []
        for name in names:
            found = [f"{row['value']:.2f}" for row in by.get(name, [])]
            errors = ["none" if row["error"] is None else f"{row['error']:.2f}" for row in by.get(name, [])]
            cells += [", ".join(found), ", ".join(errors)]
        rows.append([f"{columns}", "warped" if warped else "plain", f"{columns / 4:g}", *cells])
    header = [part for name in names for part in (f"`{name}`", "its error")]
    return [
        "## Mutual information in many dimensions",
        "",
        f"`{record['command']}`, `results/bench/gaussian_information.json`: estimates in "
        f"nats from {record['settings']['rows']:,} rows. Warped, every column is sign(z)·|z|^1.5. The error of "
        "`telescope` is that of log-ratios of rows (root mean square), not of their mean.",
        "",
        *markdown_table(["columns", "", "truth", *header], rows),
    ]


def _with_error(value: float, error: float | None) -> str:
    return f"{_three(1000 * value)}" if error is None else f"{_three(1000 * value)} ± {_three(1000 * error, 1)}"


def _three(value: float, digits: int = 2) -> str:
    """Format a number with a few significant digits, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{float(f'{value:.{digits}g}'):g}" if abs(value) >= 1e-4 else f"{value:.1g}"
