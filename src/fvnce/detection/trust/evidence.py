r"""Evidence: quality of a detector on held-out rows with intervals, and reasons for missing numbers.

Folds are held out in training, so that every row and every known outlier has a score by models trained without it.
AUROC and average precision of known outliers against unlabeled rows follow from these scores. If outliers hide among
the unlabeled rows, both are lower bounds (Eq. hidden), and the number of flagged rows is an upper bound on false
alarms. None of these numbers covers kinds of outliers of which none is known.

Each number rises with the score of an outlier and falls with that of another row. The ends of its 95 % interval come
from the least and the most favorable distributions that the rows allow, with Dirichlet masses between neighboring
scores, so that intervals cover with few known outliers, too (Eq. held_out_numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..._validation import Check, count, fields, flag, number, optional, require, stored_array, text
from ..members.base import State, part_of, prefixed
from ..preprocessing import Preprocessor
from ..reasons import Usual
from ..rows import Array, as_counts, effective_counts
from .calibration import FENCE, UPPER
from .conformal import MIN_SPLIT, Conformal
from .drift import Baseline
from .monitor import Cells

#: Coverage of the intervals.
LEVEL = 0.95
#: Number of draws for an interval, whose ends are the 10th smallest and the 10th largest, one in 40.
DRAWS, TAIL = 399, 10
#: Largest number of values drawn at a time.
MAX_DRAWN = 2**18

#: Findings with a state of their own.
PARTS = ("conformal", "baseline", "usual", "cells")

#: Reasons for a number or for a missing number, by case; numbers of a fit are filled in.
REASONS = {
    # the threshold
    "contamination": "contamination = {contamination:g}, and at most this fraction of the {rows} rows lies above",
    "calibrated": "P(outlier | x) = 1/2 there, by held-out scores of known outliers and other rows and {pi}",
    "prior": "{pi} lies above it",
    "clean": "a fraction {prior:.3g} of the rows, which are known to be clean, lies above it",
    "highest": f"it lies just above the highest score, within {FENCE:g} deviations above the median; a convention",
    "fence": f"it lies {FENCE:g} deviations above the median, by the scores up to the quantile {UPPER:g}; a convention",
    "uninformative": "known outliers score like other rows when held out, so labels do not move it; {otherwise}",
    # no evidence
    "none known": "no outlier is known (y = 1)",
    "one row": "all {known} known outliers are the same row, which cannot be learned from and held out at once",
    "one known": "one known outlier cannot be learned from and held out at once, and two can",
    "no folds": "no folds were held out, since calibration_folds = {folds}",
    "few rows": "there are too few rows to hold some out",
    "no outlier held out": "the model is trained with all known outliers, and holds none out",
    # no p-values, no scores of training rows
    "no split": "calibration_folds = 0 trains no second model",
    "no validation": "validation = 0 holds no rows out",
    "few to split": f"there were fewer than {MIN_SPLIT} unlabeled rows",
    "thinned": "X had more than max_rows = {max_rows} unlabeled rows; call anomaly_score(X)",
}


@dataclass(frozen=True)
class Interval:
    """Number with a 95 % interval.

    Attributes:
        value: estimate from all rows.
        low: lower end of the interval for the distribution from which the rows were drawn.
        high: upper end of the interval.

    >>> print(Interval(0.95, 0.91, 0.98))
    0.950 (0.910 to 0.980)
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class RowScores:
    """Scores of training rows with weights, held out where possible.

    Attributes:
        scores: scores of unlabeled rows, shape (n,).
        weights: weights of unlabeled rows.
        known: scores of known outliers, shape (m,).
        known_weights: weights of known outliers.
        weighted: whether the user gave weights, so that a weight of k is not k independent rows.
    """

    scores: Array
    weights: Array
    known: Array
    known_weights: Array
    weighted: bool = False


@dataclass(frozen=True)
class Evidence:
    """Quality of a detector on held-out rows; docs/detector/thresholds.md explains the numbers.

    Attributes:
        rows: number of unlabeled rows, by weight.
        known: number of known outliers, by weight.
        auroc: held-out AUROC of known outliers against unlabeled rows, or None.
        average_precision: held-out average precision, or None.
        found: number of held-out known outliers above the threshold, or None.
        flagged: number of unlabeled rows above the threshold, by held-out scores if ``held_out``, else by training
            scores.
        held_out: whether ``flagged`` is computed from held-out scores.
        threshold: anomaly score above which a row is flagged as an outlier.
        threshold_reason: reason for the value of the threshold.
        prior: π, estimated or given, or None.
        reason: reason why auroc, average_precision and found are missing, or None.

    >>> evidence = Evidence(1963, 37, Interval(0.98, 0.96, 0.99), Interval(0.7, 0.6, 0.8), 34, 60, True, 1.5,
    ...     "P(outlier | x) = 1/2 there", 0.02, None)
    >>> print(evidence)  # doctest: +NORMALIZE_WHITESPACE
    34 of 37 known outliers are found when held out, 60 of 1,963 other rows are flagged.
    AUROC 0.980 (0.960 to 0.990), average precision 0.700 (0.600 to 0.800): lower bounds if outliers hide among the
    other rows.
    The threshold is 1.5: P(outlier | x) = 1/2 there.
    """

    rows: float
    known: float
    auroc: Interval | None
    average_precision: Interval | None
    found: float | None
    flagged: float
    held_out: bool
    threshold: float
    threshold_reason: str
    prior: float | None
    reason: str | None

    def if_alike(self) -> float | None:
        """Return the AUROC against inliers, assuming a share ``prior`` of hidden outliers like the known ones.

        The value is at most 1, and None without held-out numbers or without a prior.
        """
        if self.auroc is None or self.prior is None:
            return None
        return min(1.0, (self.auroc.value - self.prior / 2) / (1 - self.prior))

    def __str__(self) -> str:
        flagged = f"{shown_count(self.flagged)} of {shown_count(self.rows)} other rows are flagged."
        threshold = f"The threshold is {self.threshold:.4g}: {self.threshold_reason}."
        if self.reason is not None:
            return f"The quality of the detector is unknown: {self.reason}.\n{flagged}\n{threshold}"
        caught = f"{shown_count(self.found or 0)} of {shown_count(self.known)} known outliers are found when held out"
        quality = f"AUROC {self.auroc}, average precision {self.average_precision}"
        return f"{caught}, {flagged}\n{quality}: lower bounds if outliers hide among the other rows.\n{threshold}"

    def as_dict(self) -> dict[str, Any]:
        """Return all attributes as JSON content."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Restore the evidence from the result of :meth:`as_dict`, which is checked."""
        checks: dict[str, Check] = {
            **dict.fromkeys(("rows", "known", "flagged"), _count),
            **dict.fromkeys(("auroc", "average_precision"), optional(_interval)),
            **{"found": optional(_count), "held_out": flag, "threshold": number, "prior": optional(number)},
            **{"threshold_reason": text, "reason": optional(text)},
        }
        made = cls(**dict(zip(checks, fields(content, "the evidence", **checks), strict=True)))
        numbers = [value is not None for value in (made.auroc, made.average_precision, made.found)]
        complete = all(numbers) if made.reason is None else not any(numbers)
        require(complete, "have the numbers of held-out rows or the reason why there are none", numbers)
        return made


def _count(name: str, value: Any) -> float:
    """Return a weighted number of rows, as an integer if it is whole."""
    rows = number(name, value)
    return int(rows) if rows.is_integer() else rows


def _interval(name: str, content: Any) -> Interval:
    unit = partial(number, low=0.0, high=1.0)
    return Interval(*fields(content, name, value=unit, low=unit, high=unit))


def shown_count(rows: float) -> str:
    """Format a number of rows, which need not be whole because of weights.

    >>> shown_count(1963), shown_count(0.5)
    ('1,963', '0.5')
    """
    return f"{rows:,}" if isinstance(rows, int) else f"{rows:,.1f}"


def make_evidence(
    scores: RowScores,
    lines: RowScores,
    seed: int,
    *,
    threshold: float,
    threshold_reason: str,
    reason: str | None,
    prior: float | None = None,
) -> Evidence:
    """Make evidence from scores.

    Args:
        scores: held-out scores, which measure the quality of the detector, or training scores.
        lines: scores that are compared with the threshold, held out likewise.
        seed: seed of the intervals.
        threshold: threshold of the detector.
        threshold_reason: reason for the value of the threshold.
        reason: reason why there are no held-out scores; None if there are.
        prior: π, or None.
    """
    held_out = reason is None
    auroc, precision = intervals(scores, seed) if held_out else (None, None)
    return Evidence(
        rows=_count("rows", scores.weights.sum()),
        known=_count("known", scores.known_weights.sum()),
        auroc=auroc,
        average_precision=precision,
        found=_count("found", scores.known_weights[lines.known > threshold].sum()) if held_out else None,
        flagged=_count("flagged", scores.weights[lines.scores > threshold].sum()),
        held_out=held_out,
        threshold=threshold,
        threshold_reason=threshold_reason,
        prior=prior,
        reason=reason,
    )


@dataclass(frozen=True)
class Findings:
    """Results of a fit in addition to the model.

    Attributes:
        evidence: quality of the detector.
        conformal: held-out scores for p-values, or None.
        no_p_value: reason why there are no p-values, or None.
        importances: importance of each column, shape (D,).
        scores: anomaly scores of the training rows in the given order, shape (n,), or None.
        no_scores: reason why there are no scores, or None.
        baseline: statistics that batches are compared with; None in files of version 0.2.
        mean_parts: mean part of each column in the scores of training rows, shape (D,); None in earlier files.
        usual: statistics of each column of a table; None for images and in earlier files.
        cells: counts that columns are compared with; None for images and in files of version 0.2.
    """

    evidence: Evidence
    conformal: Conformal | None
    no_p_value: str | None
    importances: Array
    scores: Array | None
    no_scores: str | None = None
    baseline: Baseline | None = None
    mean_parts: Array | None = None
    usual: Usual | None = None
    cells: Cells | None = None

    def state(self) -> State:
        """Return the state as JSON content and arrays."""
        content: dict[str, Any] = {"evidence": self.evidence.as_dict(), "rows": None}
        content |= {"no_p_value": self.no_p_value, "no_scores": self.no_scores}
        arrays = {"importances": self.importances}
        if self.scores is not None:
            content["rows"], arrays["scores"] = len(self.scores), self.scores
        if self.mean_parts is not None:
            arrays["mean_parts"] = self.mean_parts
        for name in PARTS:
            part: Any = getattr(self, name)
            content[name], of_part = (None, {}) if part is None else part.state()
            arrays |= prefixed(name, of_part)
        return content, arrays

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], features: int, how: Preprocessor
    ) -> Self:
        """Restore the findings from a state, which is checked, for rows with ``features`` columns."""
        content = {**dict.fromkeys(PARTS), **content}  # version 0.2 had only some of them
        texts = {"no_p_value": optional(text), "no_scores": optional(text)}
        evidence, *saved, rows, no_p_value, no_scores = fields(
            content, "the findings", "evidence", *PARTS, rows=optional(count), **texts
        )
        for value, reason in ((content["conformal"], no_p_value), (rows, no_scores)):
            require((value is None) == (reason is not None), "give the reason for what is missing only", reason)
        of_columns: dict[str, Any] = {name: arrays[name] for name in ("importances", "mean_parts") if name in arrays}
        for name, values in of_columns.items():
            stored_array(f"{name} of columns", values, np.float64, (features,))
        scores = None
        if rows is not None:
            scores = stored_array("scores of the training rows", arrays["scores"], np.float64, (rows,))
        restore: dict[str, Any] = {
            "conformal": partial(Conformal.from_state, features=features),
            "baseline": Baseline.from_state,
            "usual": partial(Usual.from_state, preprocessor=how),
            "cells": partial(Cells.from_state, features=features),
        }
        parts: dict[str, Any] = {
            name: None if state is None else restore[name](state, part_of(arrays, name))
            for name, state in zip(PARTS, saved, strict=True)
        }
        found: dict[str, Any] = {"scores": scores, "no_p_value": no_p_value, "no_scores": no_scores}
        return cls(evidence=Evidence.from_dict(evidence), **of_columns, **found, **parts)


def intervals(held_out: RowScores, seed: int) -> tuple[Interval, Interval]:
    """Return AUROC and average precision with their intervals."""
    levels = np.unique(held_out.known)
    counts = effective_counts if held_out.weighted else as_counts
    positive = into_bins(levels, held_out.known, counts(held_out.known_weights))
    negative = into_bins(levels, held_out.scores, counts(held_out.weights))
    totals = float(held_out.known_weights.sum()), float(held_out.weights.sum())
    rng = np.random.default_rng([seed, 80])
    auroc, precision = with_intervals(positive, negative, totals, auroc_and_precision, rng)
    return auroc, precision


#: Function from the masses of outliers and of other rows in each bin, shape (draws, bins), and a flag for the lowest
#: value that the masses allow, to numbers, shape (draws, K).
Measure = Callable[[Array, Array, bool], Array]


def into_bins(levels: Array, scores: Array, weights: Array) -> Array:
    """Sum weights at each level and between levels, in ascending order of scores.

    >>> into_bins(np.array([1.0, 2.0]), np.array([0.0, 2.0, 3.0]), np.ones(3))
    array([1., 0., 0., 1., 1.])
    """
    place = np.searchsorted(levels, scores, "left") + np.searchsorted(levels, scores, "right")
    return np.bincount(place, weights, minlength=2 * len(levels) + 1).astype(np.float64)


def with_intervals(
    positive: Array, negative: Array, totals: tuple[float, float], measure: Measure, rng: np.random.Generator
) -> list[Interval]:
    """Return each number of a measure with its interval.

    The measure gets one bin more at either end than there are in ``positive`` and ``negative``.

    Args:
        positive: number of outliers in each bin, shape (bins,).
        negative: number of other rows in each bin, shape (bins,).
        totals: total mass of the outliers and of the other rows.
        measure: function that computes the numbers.
        rng: generator for the Dirichlet masses.
    """
    counts = [np.pad(kind, 1, constant_values=1.0) for kind in (positive, negative)]
    size = max(1, MAX_DRAWN // len(counts[0]))
    lows, highs = [], []
    for start in range(0, DRAWS, size):
        shape = (min(size, DRAWS - start), len(counts[0]))
        outliers, others = (rng.standard_gamma(np.broadcast_to(kind, shape)) for kind in counts)
        lows.append(measure(_masses(outliers, totals[0], -1), _masses(others, totals[1], 0), True))
        highs.append(measure(_masses(outliers, totals[0], 0), _masses(others, totals[1], -1), False))
    low, high = (np.sort(np.concatenate(ends), axis=0) for ends in (lows, highs))
    outliers, others = (np.pad(kind, 1)[None] for kind in (positive, negative))
    value = measure(_masses(outliers, totals[0], 0), _masses(others, totals[1], 0), False)[0]
    # All are fractions, which may exceed 1 by rounding errors.
    numbers = np.clip([value, np.minimum(value, low[TAIL - 1]), np.maximum(value, high[-TAIL])], 0.0, 1.0)
    return [Interval(*map(float, each)) for each in numbers.T]


def auroc_and_precision(positive: Array, negative: Array, lowest: bool = False) -> Array:
    """Return AUROC and average precision from the mass of both kinds of row in each bin, along the last axis.

    With ``lowest``, outliers of a bin rank below its other rows, without ties.

    >>> auroc_and_precision(np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0]))
    array([0.75      , 0.83333333])
    """
    below = np.cumsum(negative, -1) - negative
    auroc = (positive * (below + negative / 2)).sum(-1) / (positive.sum(-1) * negative.sum(-1))
    mass = positive[..., ::-1]
    above, other = np.cumsum(mass, -1), np.cumsum(negative[..., ::-1], -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        if lowest:  # ∫ t/(t + other) dt over the mass
            part = mass - np.where(other > 0, other * np.log1p(mass / (above - mass + other)), 0.0)
        else:
            part = np.where(above > 0, mass * above / (above + other), 0.0)
    return np.stack([auroc, part.sum(-1) / positive.sum(-1)], -1)


def _masses(drawn: Array, total: float, end: int) -> Array:
    """Divide the total in proportion to the draws, without the bin at one end."""
    kept = drawn.copy()
    kept[:, end] = 0.0
    kept *= total / kept.sum(1, keepdims=True)
    return kept
