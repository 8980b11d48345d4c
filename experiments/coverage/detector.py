"""How far `evidence_`, `outlier_probability` and `prior_` of a default detector agree with the truth.

    python -m experiments.coverage.detector --data-sets 20

Unlabeled rows are N(0, I) in three columns but for a share π of outliers N(1.5, I); m outliers of the same kind are
known. Everything is measured on 4,000 fresh rows for each data set:

- *evidence_* against the AUROC and average precision that the fitted detector has on fresh known-like outliers and
  fresh unlabeled rows. Held-out scores average fewer models than the detector's, so its numbers are cautious.
- *outlier_probability*: the mean claim over fresh unlabeled rows above one half, and the share of outliers among
  them, and the expected calibration error in ten bins of equal width.
- *prior_* compared with π, and how often *prior_interval_* holds the share of outliers among the unlabeled rows.
"""

from __future__ import annotations

import time

import numpy as np
import typer
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from fvnce import NoiseContrastiveDetector

from . import Promise, record

ROWS, FRESH, SHIFT = 200, 2000, 1.5
KNOWN, SHARES = (3, 5, 10, 20), (0.0, 0.05, 0.15)
Array = NDArray[np.float64]


def draw(rng: np.random.Generator, rows: int, share: float) -> tuple[Array, NDArray[np.bool_]]:
    """Return rows with about a share of outliers, and a mask of these."""
    outlier = rng.random(rows) < share
    return rng.normal(size=(rows, 3)) + SHIFT * outlier[:, None], outlier


def calibration_error(claimed: Array, outlier: NDArray[np.bool_]) -> float:
    """Return the expected calibration error over ten bins."""
    place = np.minimum((10 * claimed).astype(int), 9)
    gaps = np.bincount(place, claimed - outlier, minlength=10)
    return float(np.abs(gaps).sum() / len(claimed))


def one(known: int, share: float, seed: int) -> dict[str, float]:
    """Fit one data set and return its numbers."""
    rng = np.random.default_rng([seed, known, round(100 * share)])
    X, hidden = draw(rng, ROWS, share)
    outliers, _ = draw(rng, known, 1.0)
    detector = NoiseContrastiveDetector().fit(np.r_[X, outliers], np.repeat([0, 1], [ROWS, known]))
    fresh, truth = draw(rng, FRESH, share)
    like_known, _ = draw(rng, FRESH, 1.0)
    label, score = np.repeat([0, 1], FRESH), detector.anomaly_score(np.r_[fresh, like_known])
    weights = np.repeat([ROWS / FRESH, known / FRESH], FRESH)
    true = {
        "auroc": float(roc_auc_score(label, score)),
        "average_precision": float(average_precision_score(label, score, sample_weight=weights)),
    }
    low, high = detector.prior_interval_ or (np.nan, np.nan)
    claimed = detector.outlier_probability(fresh)
    above = claimed > 0.5
    numbers = {
        "prior": detector.prior_,
        "interval covered": float(low <= hidden.mean() <= high) if low <= high else np.nan,
        "error": calibration_error(claimed, truth),
        "claimed": float(claimed[above].sum()),
        "held": float(truth[above].sum()),
        "above": float(above.sum()),
    }
    for name, value in true.items():
        number = getattr(detector.evidence_, name)
        numbers[f"{name} covered"] = float(number.low <= value <= number.high)
        numbers[f"{name} low"] = float(number.low <= value)
    return numbers


def rows_of(known: int, share: float, numbers: dict[str, Array]) -> list[Promise]:
    """Return the rows of the table of one setting."""
    count = len(numbers["prior"])
    setting = f"default detector, {ROWS} × 3 rows, π = {share:g}, {known} known"

    def mean(name: str) -> tuple[float, float]:
        return float(numbers[name].mean()), float(numbers[name].std(ddof=1) / count**0.5)

    def proportion(held: Array) -> tuple[float, float]:
        value, n = float(held.mean()), len(held)
        return value, ((value + 1 / n) * (1 - value + 1 / n) / n) ** 0.5

    made = [
        Promise(
            f"evidence_.{name}: 95 % interval",
            setting,
            0.95,
            "at least",
            *proportion(numbers[f"{name} covered"]),
            count,
        )
        for name in ("auroc", "average_precision")
    ]
    value, error = mean("prior")
    made.append(Promise("prior_: mean", setting, share, "equal", value, error, count, _if_off(value, share, error)))
    held = numbers["interval covered"][~np.isnan(numbers["interval covered"])]
    note = f"no interval on {count - len(held)}, where known outliers score no higher" if len(held) < count else ""
    made.append(Promise("prior_interval_: 90 % interval", setting, 0.9, "at least", *proportion(held), len(held), note))
    value, error = mean("error")
    note = "" if value <= 0.05 + 2 * error else "treat outlier_probability as a ranking"
    made.append(Promise("outlier_probability: calibration error", setting, 0.05, "at most", value, error, count, note))
    rows = numbers["above"].sum()
    if rows:
        claimed, held = numbers["claimed"].sum() / rows, numbers["held"].sum() / rows
        # Of a ratio of sums over data sets.
        error = float(
            np.sqrt(((numbers["held"] - numbers["claimed"] - (held - claimed) * numbers["above"]) ** 2).sum()) / rows
        )
        name, note = "outlier_probability > ½: mean claim, and share of outliers", _if_off(held, claimed, error)
        made.append(Promise(name, setting, float(claimed), "equal", float(held), error, count, note))
    return made


def _if_off(value: float, nominal: float, error: float) -> str:
    if abs(value - nominal) <= 2 * error:
        return ""
    return "too low" if value < nominal else "too high"


def main(data_sets: int = 20) -> None:
    """Fit all data sets and write results/coverage/detector.json."""
    started, promises = time.perf_counter(), []
    for known in KNOWN:
        for share in SHARES:
            numbers = [one(known, share, seed) for seed in range(data_sets)]
            promises += rows_of(known, share, {name: np.array([f[name] for f in numbers]) for name in numbers[0]})
            for row in promises[-6:]:
                typer.echo(f"{row.setting}: {row.promise} {row.nominal:.3f} {row.measured:.3f} ± {row.error:.3f}")
    settings: dict[str, object] = {"rows": ROWS, "shift": SHIFT, "data_sets": data_sets, "random_state": 0}
    typer.echo(record("detector", promises, settings=settings, started=started))


if __name__ == "__main__":
    typer.run(main)
