"""How far π, `outlier_probability` and the expected finds of a default detector agree with labels of real tables.

    python -m experiments.coverage.choosing TABLES.py

TABLES.py gives 99 tables of three sources (ADBench, KEEL, OddBench and OvrBench) by ``tables(source)``, and by
``problem(X, y, labeled, seed, most)`` at most ``most`` rows of one, split 70/30, of whose training outliers a fraction
is labeled: .1 and .01, but at least 3, and none. The constants of the calibration were compared on the same tables;
the rows of single sources show how much a source decides.

- *prior_* against the share of outliers among the unlabeled training rows.
- *prior_interval_*: how often it holds that share.
- *outlier_probability*: expected calibration error on the test rows in ten bins of equal width. An error of about .015
  is left by the number of test rows even if probabilities are right, and of .025 (.033 with .01 labeled) if π is.
- *expected_finds*: how often its interval holds the number of outliers among the flagged rows of a list.

A row that is no outlier by the labels counts as normal, though it may be unlike all others for another reason.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from fvnce import NoiseContrastiveDetector
from fvnce.detection import Scores

from . import Promise, record
from .detector import calibration_error

Array = NDArray[np.float64]
SOURCES, LABELLED, MOST = ("adbench", "keel", "oddovr"), (0.1, 0.01, 0.0), 4000
#: From which AUROC scores separate well enough for an estimate of π within a factor 2.
SEPARATED = 0.8


def numbers_of(detector: NoiseContrastiveDetector, scores: Scores, truth: Array, share: float) -> dict[str, float]:
    """Return the numbers of one table.

    Args:
        detector: fitted.
        scores: of the test rows.
        truth: 1 for outliers among them.
        share: of outliers among the unlabeled training rows.
    """
    interval = detector.prior_interval_
    made = {
        "auroc": float(roc_auc_score(truth, scores.anomaly)),
        "estimated": float(detector.calibration_.known),
        "log ratio": float(np.log(detector.prior_ / share)) if share else np.nan,
        "covered": np.nan if interval is None else float(interval[0] <= share <= interval[1]),
        "error": calibration_error(detector.probability_of(scores), truth > 0),
    }
    for name, each in detector.expected_finds(scores).items():
        last = each.flagged - 1
        found = truth[each.rows[: each.flagged]].sum()
        made[name] = float(each.low[last] <= found <= each.high[last]) if each.flagged else np.nan
    return made


def promises_of(labelled: float, source: str, tables: list[dict[str, float]]) -> list[Promise]:
    """Return the rows of the table of one source."""
    rows: list[Promise] = []
    about = f"{labelled:.0%} labelled, at least 3" if labelled else "none known"

    def add(
        name: str, where: str, nominal: float, sense: str, values: Any, statistic: Callable[[Array], float]
    ) -> None:
        kept = np.array([value for value in values if not np.isnan(value)])
        if len(kept) < 3:
            return
        draws = np.random.default_rng(0).choice(kept, (999, len(kept)))  # its error by the bootstrap over tables
        error = max(float(np.std([statistic(each) for each in draws])), 1 / len(kept) if sense == "at least" else 0.0)
        setting = f"{source}, {about}{where}"
        rows.append(Promise(name, setting, nominal, sense, float(statistic(kept)), error, len(kept)))

    good = [each for each in tables if each["auroc"] >= SEPARATED]
    other = [each for each in tables if each["auroc"] < SEPARATED]
    factor = "prior_: median factor between π and its estimate"

    def median(values: Array) -> float:
        return float(np.exp(np.median(values)))

    add(factor, f", AUROC ≥ {SEPARATED}", 2.0, "at most", [abs(each["log ratio"]) for each in good], median)
    add(
        "prior_: median of estimate/π",
        f", AUROC < {SEPARATED}",
        3.0,
        "at most",
        [e["log ratio"] for e in other],
        median,
    )
    add("prior_interval_", "", 0.9, "at least", [each["covered"] for each in tables], np.mean)
    add("outlier_probability: calibration error", "", 0.02, "at most", [each["error"] for each in tables], np.mean)
    for name in ("known", "novel"):
        what = f'expected_finds, "{name}": interval at the line'
        add(what, "", 0.9, "at least", [each.get(name, np.nan) for each in tables], np.mean)
    return rows


def all_promises(results: dict[tuple[float, str], list[dict[str, float]]]) -> list[Promise]:
    """Return the rows for all sources together and for each."""
    made = []
    for labelled in sorted({labelled for labelled, _ in results}, reverse=True):
        each = {source: results[labelled, source] for source in SOURCES if (labelled, source) in results}
        pooled = [table for tables in each.values() for table in tables]
        made += promises_of(labelled, f"{len(pooled)} tables", pooled)
        for source, tables in each.items():
            made += promises_of(labelled, f"{len(tables)} tables of {source}", tables)
    return made


def main(tables: Path, most: int = MOST) -> None:
    """Fit all tables, and write results/coverage/choosing.json."""
    spec = importlib.util.spec_from_file_location("choosing_tables", tables)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    results: dict[tuple[float, str], list[dict[str, float]]] = {}
    for labelled in LABELLED:
        for source in SOURCES:
            made: list[dict[str, float]] = []
            results[labelled, source] = made
            for name, (X, y) in module.tables(source):
                train, known, test, truth = module.problem(X, y, labelled, 0, most=most)
                hidden = round(len(train) * truth.mean()) - known.sum()  # the split is stratified
                try:
                    detector = NoiseContrastiveDetector().fit(train, known if labelled else None)
                except ValueError as error:  # one of the 99 has a column whose kind its owner must decide
                    typer.echo(f"{source} {name}: {error}")
                    continue
                made.append(numbers_of(detector, detector.scores(test), truth, hidden / (len(train) - known.sum())))
                typer.echo(f"{labelled} {source} {name}: {made[-1]}")
    settings: dict[str, object] = {"most rows": most, "labelled": LABELLED, "random_state": 0}
    typer.echo(record("choosing", all_promises(results), settings=settings, started=started))


if __name__ == "__main__":
    typer.run(main)
