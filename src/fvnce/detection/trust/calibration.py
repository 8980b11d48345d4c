r"""Calibration: from scores to P(outlier | x) (Eq. outlier_probability), to π and to a threshold.

*With known outliers*, log p_out/p_in = a s + b is fitted to held-out scores by logistic regression of known outliers
against unlabeled rows. Unlabeled rows are weighted by their probability of being inliers, known outliers by their
probability of being labeled correctly; both are iterated. π is the smallest ratio of Eq. prior_ratio over the quartiles
of the scores of known outliers, where each ratio is shrunk toward :data:`USUAL_SHARE`, more strongly if it depends on
few rows. b is chosen such that P(outlier | x) averages to π over the unlabeled rows. If known outliers do not score
higher than other rows, scores are calibrated as if none were known.

*Without known outliers*, the spread of inliers is estimated from the median and the quantile 0.8 of the scores. Rows
more than :data:`FENCE` such deviations above the median, or above all training rows, are called outliers. This is a
convention, not an estimate, and probabilities are multiplied by the fraction of such rows that were outliers on labeled
tables. The derivation is in docs/detector/thresholds.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from ..._validation import fields, flag, number, optional
from ..rows import Array, as_counts

#: Prior standard deviation of the slope for standardized scores; it matters with few known outliers.
SLOPE = 5.0
QUARTILES = (0.0, 0.25, 0.5, 0.75)
#: Prior share of outliers, and the standard deviation of its logarithm.
USUAL_SHARE, SHARE_DEVIATION = 0.05, 1.0
#: Lower ends of the interval are set to zero below this, and below this fraction of 1 − AUROC.
NO_SHARE, NO_SHARE_OVERLAP = 0.01, 0.3
#: Variance of known outliers relative to independent draws, since they tend to come in groups.
CLUSTERED = 3.0
#: The deviation of a log-ratio for scores that do not separate at all, of which 1 − AUROC is a fraction.
OVERLAPPING = 3.0
#: Half-width of the 90 % interval of log π, in deviations; hidden outliers may differ from known ones.
INTERVAL = 1.96
#: Deviations of the ratio by chance that are added to the share of rows that may be hidden outliers.
MARGIN = 1.0
#: Half-width of the 90 % interval of a count, in deviations.
CHANCE = 1.645
#: Fraction of the outliers claimed by a convention that are outliers, with known outliers and without: means over 98
#: tables; the means of three sources of tables are .13 to .26 and .30 to .52.
HELD_BESIDE, HELD_ALONE = 1 / 6, 1 / 3
#: Expected fraction of wrong labels among known outliers.
WRONG_LABELS = 0.05
#: Quantile for estimating the spread of scores without known outliers, its value for a normal distribution, and the
#: distance of outliers from the median in deviations.
UPPER, NORMAL_UPPER, FENCE = 0.8, 0.8416212335729143, 2.5
#: Largest distance of a threshold above the highest score, in the same deviations; more than rounding errors.
ROOM = 1e-3
#: Quantile 0.95 of the normal distribution, for testing whether a held-out AUROC is above one half.
BEYOND_CHANCE = 1.645
#: Number of iterations between the fit and the weights.
ROUNDS = 10


@dataclass(frozen=True)
class Calibration:
    """Logistic calibration P(outlier | s) = h σ(a s + b), increasing in the anomaly score s.

    Attributes:
        slope: slope a > 0.
        intercept: intercept b, which includes log π/(1 − π).
        prior: share of outliers π.
        known: whether the calibration was fitted to known outliers.
        low: lower end of the interval of π, or NaN if π is given or a convention.
        high: upper end of the interval of π.
        low_intercept: b for π at the lower end, NaN if that is zero.
        high_intercept: b for π at the upper end.
        held: fraction h of what a convention takes for outliers that are; 1 if π is estimated or given.
    """

    slope: float
    intercept: float
    prior: float
    known: bool
    low: float = math.nan
    high: float = math.nan
    low_intercept: float = math.nan
    high_intercept: float = math.nan
    held: float = 1.0

    def probability(self, score: Array) -> Array:
        """Return the probability P(outlier | s) of anomaly scores."""
        return np.asarray(self.held * expit(self.slope * score + self.intercept))

    def claims(self, score: Array) -> tuple[Array, Array, Array]:
        """Return probabilities for expected counts of outliers, with lower and upper ends, each of shape (n,)."""
        p = self.probability(score)
        if not self.known:
            return p, np.zeros_like(p), p / self.held
        if math.isnan(self.low):
            return p, p, p
        low, high = (np.nan_to_num(expit(self.slope * score + b)) for b in (self.low_intercept, self.high_intercept))
        return p, low, high

    @property
    def threshold(self) -> float:
        """Score at which σ(a s + b) = ½."""
        return -self.intercept / self.slope

    @classmethod
    def from_state(cls, content: Mapping[str, Any]) -> Self:
        """Restore the calibration from a state, which is checked."""
        positive, unit = partial(number, low=0.0, open_low=True), partial(number, low=0.0, high=1.0)
        share = optional(unit)
        ends = {"low": share, "high": share, "low_intercept": optional(number), "high_intercept": optional(number)}
        slope, intercept, prior, known, held, *rest = fields(
            {**dict.fromkeys(ends), "held": 1.0, **content},  # version 0.2 had neither
            "the calibration",
            slope=positive,
            intercept=number,
            prior=unit,
            known=flag,
            held=partial(number, low=0.0, high=1.0, open_low=True),
            **ends,
        )
        low, high, low_intercept, high_intercept = (math.nan if end is None else end for end in rest)
        return cls(slope, intercept, prior, known, low, high, low_intercept, high_intercept, held)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON content."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Finds:
    """Expected number of outliers among the highest rows of a list, for any number of alarms, with 90 % intervals.

    Attributes:
        rows: indices of the rows of the list, the highest first, shape (n,).
        alarms: number of rows that are reviewed, 1, 2, …, n.
        finds: expected number of outliers among these rows, shape (n,).
        low: lower end of the interval of the number of outliers, shape (n,).
        high: upper end of the interval, shape (n,).
        flagged: number of flagged rows, which are not necessarily the first.

    >>> p = np.array([0.9, 0.5, 0.1])
    >>> finds = Finds.of(np.array(["known", "", ""]), "known", p, p, p / 2, p)
    >>> finds.flagged, finds.finds.round(1)
    (1, array([0.9, 1.4, 1.5]))
    """

    rows: NDArray[np.int64]
    alarms: NDArray[np.int64]
    finds: Array
    low: Array
    high: Array
    flagged: int

    @classmethod
    def of(cls, kind: NDArray[np.str_], name: str, rank: Array, p: Array, low: Array, high: Array) -> Self:
        """Make the list of this name from the kinds, ranking scores and :meth:`Calibration.claims` of all rows.

        >>> p = np.array([0.25, 0.5, 0.75])
        >>> Finds.of(np.array(["", "novel", "known"]), "known", p, p, p, p).finds
        array([0.75, 1.  ])
        """
        rows = np.flatnonzero((kind == name) | (kind == ""))
        rows = rows[np.argsort(-rank[rows], kind="stable")]
        alarms = np.arange(1, len(rows) + 1)
        chance = CHANCE * np.sqrt(np.cumsum(high[rows] * (1 - high[rows])))
        return cls(
            rows=rows,
            alarms=alarms,
            finds=np.cumsum(p[rows]),
            # More rows hold no fewer outliers.
            low=np.maximum.accumulate(np.maximum(np.cumsum(low[rows]) - chance, 0.0)),
            high=np.minimum(np.cumsum(high[rows]) + chance, alarms),
            flagged=int((kind == name).sum()),
        )


def calibrate_with_outliers(
    unlabeled: Array,
    weights: Array,
    known: Array,
    known_weights: Array,
    prior: float | None,
    checked: NDArray[np.bool_] | None = None,
) -> tuple[Calibration, Array]:
    """Calibrate from held-out scores of unlabeled rows, possibly with checked inliers, and of known outliers.

    Returns:
        The calibration, and the probability that each known outlier is labeled correctly, shape (m,).
    """
    weights, known_weights = as_counts(weights), as_counts(known_weights)
    sure, unsure = _divided(unlabeled, checked)
    pi, low, high = estimate_prior(unlabeled[unsure], weights[unsure], known, known_weights)
    if prior is not None:
        pi, low, high = prior, math.nan, math.nan
    inlier, right = np.ones_like(unlabeled), np.ones_like(known)
    slope = intercept = 0.0
    for _ in range(ROUNDS):
        slope, b = _logistic(unlabeled, weights, inlier, known, known_weights, right)
        intercept = _intercept(slope * unlabeled[unsure], weights[unsure], pi)
        inlier = np.where(sure, 1.0, expit(-slope * unlabeled - intercept))
        right = expit(slope * known + b + math.log(1 / WRONG_LABELS - 1))
    ends = [_intercept(slope * unlabeled, weights, end) if 0 < end < 1 else math.nan for end in (low, high - 1e-9)]
    return Calibration(slope, intercept, pi, True, low, high, *ends), right


def _divided(unlabeled: Array, checked: NDArray[np.bool_] | None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return a mask of known inliers, and a mask of the rows that π refers to: all others, or all."""
    sure = np.zeros(len(unlabeled), dtype=bool) if checked is None else checked
    return sure, ~sure | sure.all()


def labels_tell(unlabeled: Array, weights: Array, known: Array, known_weights: Array) -> bool:
    """Test whether held-out known outliers score higher than unlabeled rows.

    >>> rows, ones = np.arange(100.0), np.ones(100)
    >>> labels_tell(rows, ones, np.array([20.0, 40.0, 80.0]), np.ones(3))
    False
    >>> labels_tell(rows, ones, np.array([80.0, 90.0, 99.0]), np.ones(3))
    True
    """
    auroc = _auroc(unlabeled, weights, known, known_weights)
    variance = sum(float((w**2).sum() / w.sum() ** 2) for w in (weights, known_weights)) / 12
    return auroc - 0.5 > BEYOND_CHANCE * math.sqrt(variance)


def calibrate_without(
    scores: Array,
    weights: Array,
    prior: float | None,
    checked: NDArray[np.bool_] | None = None,
    held: float = HELD_ALONE,
) -> Calibration:
    """Calibrate from scores of unlabeled rows alone; ``held`` is that of :class:`Calibration`."""
    order = np.argsort(scores, kind="stable")
    s, cumulative = scores[order], np.cumsum(weights[order]) / weights.sum()
    middle, upper = (float(s[min(len(s) - 1, int(np.searchsorted(cumulative, level)))]) for level in (0.5, UPPER))
    spread = max((upper - middle) / NORMAL_UPPER, 1e-3 * (float(s[-1] - s[0]) or 1.0))
    if prior is None:
        cut = min(middle + FENCE * spread, float(s[-1]) + ROOM * spread)
        unsure = _divided(scores, checked)[1]
        above = float(weights[unsure & (scores > cut)].sum() / weights[unsure].sum())
        prior = min(0.5, max(above, 0.5 / float(as_counts(weights).sum())))
    else:
        cut = float(s[min(len(s) - 1, int(np.searchsorted(cumulative, 1 - prior)))])
    return Calibration(2 / spread, -2 * cut / spread, prior, False, held=held)


def estimate_prior(unlabeled: Array, weights: Array, known: Array, known_weights: Array) -> tuple[float, float, float]:
    """Estimate π in (0, ½] from ratios of tails above scores of known outliers; return it with its interval.

    Inliers also reach the tails, the more the scores overlap, so a small lower end is set to zero.
    """
    ratio, above, tail = _ratios(unlabeled, weights, known, known_weights)
    overlap = 1 - _auroc(unlabeled, weights, known, known_weights)
    precision = 1 / (CLUSTERED / above + 1 / (tail + 1) + (OVERLAPPING * overlap) ** 2)
    total = precision + SHARE_DEVIATION**-2
    estimate = (ratio * precision + math.log(USUAL_SHARE) * SHARE_DEVIATION**-2) / total
    lowest = int(np.argmin(estimate))
    wide = INTERVAL / math.sqrt(float(total[lowest]))
    pi, low, high = np.clip(np.exp(estimate[lowest] + np.array([0.0, -wide, wide])), 1e-6, [0.5, 0.5, 1.0])
    return float(pi), float(low) if low > max(NO_SHARE, NO_SHARE_OVERLAP * overlap) else 0.0, float(high)


def most_hidden(unlabeled: Array, weights: Array, known: Array, known_weights: Array) -> float:
    """Return the largest share of unlabeled rows that can be outliers like the known: the lowest ratio of tails."""
    ratio, above, _ = _ratios(unlabeled, as_counts(weights), known, as_counts(known_weights))
    return float(np.exp(ratio + MARGIN * np.sqrt(CLUSTERED / above)).min())


def _ratios(unlabeled: Array, weights: Array, known: Array, known_weights: Array) -> tuple[Array, Array, Array]:
    """Return log-ratios of tails above scores of known outliers, and weights of known and unlabeled rows there."""
    order, ranked = np.argsort(known, kind="stable"), np.argsort(unlabeled, kind="stable")
    n, m = float(weights.sum()), float(known_weights.sum())
    up_to = np.cumsum(known_weights[order])
    places = np.searchsorted(up_to, m * np.array(QUARTILES) * (1 - 1e-12), side="right")
    t, above = known[order][places], m - up_to[places] + known_weights[order][places]
    below = np.concatenate([[0.0], np.cumsum(weights[ranked])])
    tail = np.maximum(n - below[np.searchsorted(unlabeled[ranked], t, side="left")], 0.0)
    # Add half a row, since an empty tail does not prove that there are no outliers.
    ratio = np.log((tail + 0.5) / n) - np.log((above - 0.5 * np.minimum(1.0, above)) / m)
    return ratio, above, tail


def threshold_at(scores: Array, weights: Array, fraction: float) -> float:
    """Return a threshold above the scores with the lowest ``fraction`` of the weight, and below the next score."""
    order = np.argsort(scores, kind="stable")
    below = np.cumsum(weights[order]) / weights.sum()
    last = int(np.searchsorted(below, fraction + 1e-12, side="right"))
    if last == 0:
        return float(scores[order[0]])
    if last == len(scores):
        return float(np.nextafter(scores[order[-1]], np.inf))
    return float((scores[order[last - 1]] + scores[order[last]]) / 2)


def _auroc(unlabeled: Array, weights: Array, known: Array, known_weights: Array) -> float:
    order = np.argsort(unlabeled, kind="stable")
    mass = np.concatenate([[0.0], np.cumsum(weights[order])]) / weights.sum()
    below, up_to = (mass[np.searchsorted(unlabeled[order], known, side=side)] for side in ("left", "right"))
    return float(np.average((below + up_to) / 2, weights=known_weights))


def _logistic(
    unlabeled: Array, counts: Array, inlier: Array, known: Array, known_counts: Array, right: Array
) -> tuple[float, float]:
    """Fit slope and intercept by Newton's method, with total weight one for each class and a positive slope."""
    s, count = np.concatenate([unlabeled, known]), np.concatenate([counts, known_counts])
    y = np.repeat([0.0, 1.0], [len(unlabeled), len(known)])
    w = np.concatenate([each / each.sum() for each in (counts * inlier, known_counts * right)])
    ridge = 1 / (SLOPE**2 * float(known_counts.sum()))
    center = float(np.average(s, weights=count))
    scale = math.sqrt(float(np.average((s - center) ** 2, weights=count))) or 1.0
    design = np.stack([(s - center) / scale, np.ones_like(s)], 1)
    beta = np.zeros(2)
    for _ in range(50):
        p = expit(design @ beta)
        gradient = design.T @ (w * (y - p)) - ridge * np.array([beta[0], 0.0])
        hessian = (design * (w * p * (1 - p))[:, None]).T @ design + np.diag([ridge, 1e-9])
        step = np.linalg.solve(hessian, gradient)
        beta += step * min(1.0, 4 / (1e-12 + float(np.abs(step).max())))
        if float(np.abs(step).max()) < 1e-10:
            break
    a = max(float(beta[0]), 1e-2)
    return a / scale, float(beta[1]) - a * center / scale


def _intercept(logits: Array, counts: Array, mean: float) -> float:
    """Return b such that σ(logit + b) has the given mean over rows, by bisection."""
    low, high = (float(logit(mean)) - float(end) for end in (logits.max(), logits.min()))
    for _ in range(100):
        b = (low + high) / 2
        low, high = (low, b) if np.average(expit(logits + b), weights=counts) > mean else (b, high)
    return (low + high) / 2
