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


def _with_error(value: float, error: float | None) -> str:
    return f"{_three(1000 * value)}" if error is None else f"{_three(1000 * value)} ± {_three(1000 * error, 1)}"


def _three(value: float, digits: int = 2) -> str:
    """Format a number with a few significant digits, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{float(f'{value:.{digits}g}'):g}" if abs(value) >= 1e-4 else f"{value:.1g}"
