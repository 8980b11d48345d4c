"""How often the intervals of AUROC, average precision, precision and recall hold, on scores whose truth is known.

    python -m experiments.coverage.evidence --data-sets 100

Scores of m known outliers and 300 other rows are drawn from distributions of many shapes with an AUROC from 0.7 to
0.99. A row of the table gives normal scores of all AUROCs together, or the shape and AUROC that cover least: these are
chosen with one set of draws and measured with another, four times as large. The same program counts how often the page
of a run praises more than the truth deserves, how often labels without meaning pass for meaningful, and how often
intervals of log Z and of the paper's steps hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
import typer
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score

from fvnce._stats import estimate_log_mean
from fvnce.app.report.verdict import GRADES
from fvnce.app.runs.evaluation import evaluate
from fvnce.detection.trust.calibration import labels_tell
from fvnce.detection.trust.evidence import RowScores, intervals
from fvnce.paper.cells import beyond_error

from . import Promise, record

ROWS = 300
KNOWN = (3, 5, 10, 20, 50, 200)
AREAS = (0.7, 0.85, 0.95, 0.99)
Array = NDArray[np.float64]
Draw = Callable[[Generator, int], Array]


def normal(area: float, deviation: float = 1.0) -> tuple[Draw, Draw]:
    """Return normal scores, with another deviation for outliers."""
    shift = float((1 + deviation**2) ** 0.5 * norm.ppf(area))
    return lambda rng, n: rng.normal(shift, deviation, n), lambda rng, n: rng.normal(size=n)


def mixed(area: float) -> tuple[Draw, Draw]:
    """Return scores where a share 2(1 − A) of the outliers scores like other rows, the rest above all."""
    return lambda rng, n: rng.normal(size=n) + 9 * (rng.random(n) > 2 * (1 - area)), lambda rng, n: rng.normal(size=n)


def below(area: float) -> tuple[Draw, Draw]:
    """Return scores where a share 1 − A of the outliers is below all other rows, the rest above all."""
    return lambda rng, n: rng.normal(size=n) + 18 * (rng.random(n) < area) - 9, lambda rng, n: rng.normal(size=n)


def exponential(area: float) -> tuple[Draw, Draw]:
    """Return exponential scores of outliers and others."""
    return lambda rng, n: rng.exponential(area / (1 - area), n), lambda rng, n: rng.exponential(1.0, n)


def heavy(area: float) -> tuple[Draw, Draw]:
    """Student's t with 2 degrees of freedom, shifted; their AUROC is a little below the stated one."""
    shift = float(2**0.5 * norm.ppf(area))
    return lambda rng, n: rng.standard_t(2, n) + 1.5 * shift, lambda rng, n: rng.standard_t(2, n)


def discrete(area: float) -> tuple[Draw, Draw]:
    """Return normal scores rounded to five values."""
    outliers, others = normal(area)
    return lambda rng, n: np.clip(np.round(outliers(rng, n)), -1, 3), lambda rng, n: np.clip(
        np.round(others(rng, n)), -1, 3
    )


def binary(area: float) -> tuple[Draw, Draw]:
    """Return scores with two values only."""
    return lambda rng, n: (rng.random(n) < area) * 1.0, lambda rng, n: (rng.random(n) > area) * 1.0


SHAPES: dict[str, Callable[[float], tuple[Draw, Draw]]] = {
    "normal": normal,
    "normal, outliers 3 times as wide": lambda area: normal(area, 3.0),
    "normal, outliers 0.3 times as wide": lambda area: normal(area, 0.3),
    "some outliers like other rows": mixed,
    "some outliers below all rows": below,
    "exponential": exponential,
    "Student's t": heavy,
    "five values": discrete,
    "two values": binary,
}


def truth_of(outliers: Draw, others: Draw, known: int) -> tuple[float, float]:
    """Return AUROC and average precision of the distributions, from 20,000 rows of each."""
    rng, size = np.random.default_rng(99), 20_000
    label, score = np.repeat([0, 1], size), np.r_[others(rng, size), outliers(rng, size)]
    weights = np.repeat([ROWS / size, known / size], size)
    return float(roc_auc_score(label, score)), float(average_precision_score(label, score, sample_weight=weights))


def covered(shape: str, area: float, known: int, data_sets: int, seed: int) -> Array:
    """Return whether the intervals of AUROC and average precision contain the truth, shape (data sets, 2)."""
    outliers, others = SHAPES[shape](area)
    truth = truth_of(outliers, others, known)
    rng = np.random.default_rng([seed, known, round(100 * area), list(SHAPES).index(shape)])
    promises = []
    for _ in range(data_sets):
        held = RowScores(others(rng, ROWS), np.ones(ROWS), outliers(rng, known), np.ones(known))
        promises.append(
            [number.low <= true <= number.high for number, true in zip(intervals(held, 0), truth, strict=True)]
        )
    return np.array(promises, np.float64)


def counted(name: str, setting: str, nominal: float, sense: str, hits: Array, note: str = "") -> Promise:
    """Return a frequency with its standard error."""
    count, value = len(hits), float(np.mean(hits))
    error = float(((value + 1 / count) * (1 - value + 1 / count) / count) ** 0.5)
    return Promise(name, setting, nominal, sense, value, error, count, note)


def of_intervals(data_sets: int) -> list[Promise]:
    """Count coverage of AUROC and average precision for each number of known outliers."""
    made = []
    for known in KNOWN:
        count = data_sets if known <= 50 else max(20, data_sets // 4)
        cells = {(shape, area): covered(shape, area, known, count, 0) for shape in SHAPES for area in AREAS}
        for i, name in enumerate(("evidence_.auroc: 95 % interval", "evidence_.average_precision: 95 % interval")):
            pooled = np.concatenate([cells["normal", area][:, i] for area in AREAS])
            rows = f"{known} known, {ROWS} others"
            made.append(counted(name, f"normal scores, AUROC .7 to .99, {rows}", 0.95, "at least", pooled))
            shape, area = min(cells, key=lambda cell: cells[cell][:, i].mean())
            worst = covered(shape, area, known, 4 * count, 1)[:, i]
            made.append(
                counted(name, f"least of {len(cells)}: {shape}, AUROC {area:g}, {rows}", 0.95, "at least", worst)
            )
        typer.echo("\n".join(f"{row.promise} {row.setting} {row.measured:.3f}" for row in made[-4:]))
    return made


def of_verdicts(data_sets: int) -> list[Promise]:
    """Count how often the report grades the AUROC higher than the truth."""
    made = []
    for known in (2, 3, 5, 20, 80):
        hits = []
        for limit, _ in GRADES[:3]:
            for shape in (normal, mixed):
                outliers, others = shape(limit)
                rng = np.random.default_rng([2, known, round(100 * limit)])
                for _ in range(data_sets):
                    held = RowScores(others(rng, ROWS), np.ones(ROWS), outliers(rng, known), np.ones(known))
                    hits.append(intervals(held, 0)[0].low > limit)
        setting = f"AUROC at .7, .85 and .95, {known} known"
        made.append(counted("report: a grade above the truth", setting, 0.05, "at most", np.array(hits)))
    return made


def of_evaluate(data_sets: int) -> list[Promise]:
    """Precision and recall of `fvnce evaluate`, with normal scores 2 apart and a threshold of 1.5."""
    made = []
    for known in (3, 5, 20):
        total, t = known + ROWS, np.linspace(-9, 12, 20_001)
        true_alarms, false = known * norm.sf(t - 2), ROWS * norm.sf(t)
        at_k = float(np.interp(-known, -(true_alarms + false), t))
        recall = [float(norm.sf(1.5 - 2)), float(norm.sf(at_k - 2))]
        precision = [known * recall[0] / (known * recall[0] + ROWS * norm.sf(1.5)), recall[1]]
        truth = dict(
            zip(
                ("precision_at_threshold", "recall_at_threshold", "precision_at_k", "recall_at_k"),
                (precision[0], recall[0], precision[1], recall[1]),
                strict=True,
            )
        )
        outlier, rng = np.arange(total) < known, np.random.default_rng([3, known])
        hits: dict[str, list[bool]] = {name: [] for name in truth}
        for _ in range(data_sets):
            scores = rng.normal(size=total) + 2 * outlier
            numbers = evaluate(scores, scores > 1.5, outlier, 1.5).numbers
            for name, true in truth.items():
                number = numbers[name]
                if number is not None:
                    hits[name].append(number.low <= true <= number.high)
        setting = f"normal scores 2 apart, {known} outliers, {ROWS} others"
        for name, held in hits.items():
            words = f"fvnce evaluate, {name.replace('_', ' ')}: 95 % interval"
            made.append(counted(words, setting, 0.95, "at least", np.array(held)))
    return made


def of_labels(data_sets: int) -> list[Promise]:
    """Count how often random labels are reported as meaningful."""
    made = []
    for known in (2, 3, 5, 20):
        rng = np.random.default_rng([4, known])
        ones = np.ones(ROWS), np.ones(known)
        hits = [
            labels_tell(rng.normal(size=ROWS), ones[0], rng.normal(size=known), ones[1]) for _ in range(20 * data_sets)
        ]
        name = "calibration: labels without meaning are used"
        made.append(counted(name, f"{known} known at random, {ROWS} others", 0.05, "at most", np.array(hits)))
    return made


def of_log_z(data_sets: int) -> list[Promise]:
    """1.96 standard errors of log Z from 1,000 log-normal weights, of estimates that are trusted."""
    made = []
    for spread in (0.5, 1.0, 1.5):
        hits, generator = [], torch.Generator().manual_seed(0)
        for _ in range(10 * data_sets):
            logs = spread * torch.randn(1000, generator=generator, dtype=torch.float64) - spread**2 / 2
            estimate = estimate_log_mean(logs)
            if estimate.trusted:
                hits.append(abs(float(estimate.value)) <= 1.96 * float(estimate.error))
        if len(hits) < 5:
            continue
        made.append(
            counted(
                "log_partition: ± 1.96 errors, where trusted",
                f"1,000 log-normal weights of spread {spread:g} ({len(hits) / (10 * data_sets):.0%} trusted)",
                0.95,
                "at least",
                np.array(hits),
            )
        )
    return made


def of_steps(data_sets: int) -> list[Promise]:
    """Count how often a step of zero in the paper's table is reported as found, over 3 and 5 seeds."""
    made = []
    for seeds in (3, 5):
        rng = np.random.default_rng([5, seeds])
        hits = [beyond_error(*rng.normal(size=(2, seeds)).tolist()) for _ in range(20 * data_sets)]
        setting = f"normal results, {seeds} seeds"
        made.append(counted("paper: a step of zero is called found", setting, 0.05, "at most", np.array(hits)))
    return made


def main(data_sets: int = 100) -> None:
    """Count coverage, and write results/coverage/evidence.json."""
    started, promises = time.perf_counter(), []
    for part in (of_labels, of_log_z, of_steps, of_evaluate, of_verdicts, of_intervals):
        promises += part(data_sets)
    settings: dict[str, object] = {"rows": ROWS, "known": KNOWN, "areas": AREAS, "data_sets": data_sets, "seed": 0}
    typer.echo(record("evidence", promises[::-1], settings=settings, started=started))


if __name__ == "__main__":
    typer.run(main)
