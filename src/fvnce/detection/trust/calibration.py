r"""Calibration: from scores to P(outlier | x) (Eq. outlier_probability), to π and to a threshold.

*With known outliers*, log p_out/p_θ = a s + b is fitted to held-out scores by logistic regression of known outliers
against unlabeled rows, each weighed by its probability of being no outlier, and each known outlier by its probability
of being labeled rightly; these are iterated. π is the smallest ratio of Eq. prior_ratio over the quartiles of the
known outliers' scores, each drawn toward :data:`USUAL_SHARE` the more the fewer rows it rests on, and b is such that
P(outlier | x) averages to π over the unlabeled rows. If known outliers do not score higher than other rows, scores are
calibrated as if none were known.

*Without*, the spread of inliers is read between the median and the quantile 0.8 of the scores; what lies :data:`FENCE`
such deviations above the median, or above every training row, is called an outlier. This is a convention, not an
estimate. The derivation is in docs/detector/thresholds.md.
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

#: Prior deviation of the slope, in units of the scores' own: it matters while known outliers are few.
SLOPE = 5.0
QUARTILES = (0.0, 0.25, 0.5, 0.75)
#: The share of outliers that is expected before any is seen, and the deviation of its logarithm: a factor e.
USUAL_SHARE, SHARE_DEVIATION = 0.05, 1.0
#: A lower end of the interval below this is given as zero: inliers reach the tails as well.
NO_SHARE = 0.01
#: How many times the variance of independent draws known outliers have: they tend to come in kinds.
CLUSTERED = 3.0
#: The deviation of a log-ratio for scores that do not separate at all, of which 1 − AUROC is a fraction.
OVERLAPPING = 3.0
#: Deviations of log π on both sides of its estimate, for an interval of 90 %: hidden outliers differ from known ones.
INTERVAL = 1.96
#: Deviations on both sides of a count, for an interval of 90 %.
CHANCE = 1.645
#: The fraction of the outliers claimed by a convention that are outliers, where known outliers have a list of their own
#: and where none is known: means over 98 tables, of which those of three sources are .13 to .26 and .30 to .52.
HELD_BESIDE, HELD_ALONE = 1 / 6, 1 / 3
#: The fraction of known outliers that is expected to be labeled wrongly.
WRONG_LABELS = 0.05
#: The quantile up to which the spread of scores is read without known outliers, the same of a normal distribution, and
#: how many deviations away an outlier lies.
UPPER, NORMAL_UPPER, FENCE = 0.8, 0.8416212335729143, 2.5
#: How far above the highest score a threshold lies at most, in the same deviations: more than rounding.
ROOM = 1e-3
#: Deviations by which a held-out AUROC is above one half by chance in one case of twenty.
BEYOND_CHANCE = 1.645
#: Rounds between the ratio and the probabilities that weigh it.
ROUNDS = 10


@dataclass(frozen=True)
class Calibration:
    """P(outlier | s) = σ(a s + b), increasing in the anomaly score s.

    Attributes:
        slope: a > 0.
        intercept: b, which holds log π/(1 − π).
        prior: π.
        known: whether it was fitted to known outliers.
        low: lower end of the interval of π, or NaN where π is given or a convention.
        high: its upper end.
        low_intercept: b if π is at the lower end, NaN if that is zero.
        high_intercept: b if π is at the upper end.
    """

    slope: float
    intercept: float
    prior: float
    known: bool
    low: float = math.nan
    high: float = math.nan
    low_intercept: float = math.nan
    high_intercept: float = math.nan

    def probability(self, score: Array) -> Array:
        """Return P(outlier | s) of anomaly scores."""
        return np.asarray(expit(self.slope * score + self.intercept))

    def claims(self, score: Array, held: float) -> tuple[Array, Array, Array]:
        """Return the probability of an outlier for counts of them, its lower and its upper end, each of shape (n,).

        Args:
            score: anomaly scores.
            held: the fraction of its claims that holds on average, if it is a convention.
        """
        p = self.probability(score)
        if not self.known:
            return held * p, np.zeros_like(p), p
        if math.isnan(self.low):
            return p, p, p
        low, high = (np.nan_to_num(expit(self.slope * score + b)) for b in (self.low_intercept, self.high_intercept))
        return p, low, high

    @property
    def threshold(self) -> float:
        """The score at which P = ½."""
        return -self.intercept / self.slope

    @classmethod
    def from_state(cls, content: Mapping[str, Any]) -> Self:
        """Make the calibration of a state that may be forged."""
        positive, unit = partial(number, low=0.0, open_low=True), partial(number, low=0.0, high=1.0)
        share = optional(unit)
        ends = {"low": share, "high": share, "low_intercept": optional(number), "high_intercept": optional(number)}
        slope, intercept, prior, known, *rest = fields(
            {**dict.fromkeys(ends), **content},
            "the calibration",
            slope=positive,
            intercept=number,
            prior=unit,
            known=flag,
            **ends,
        )
        return cls(slope, intercept, prior, known, *(math.nan if end is None else end for end in rest))

    def state(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Finds:
    """How many outliers to expect among the highest rows of a list, for any number of alarms, with 90 % intervals.

    Attributes:
        rows: places of the rows of the list, the highest first, shape (n,).
        alarms: 1, 2, …, n: how many of them are looked at.
        finds: how many outliers are expected among these, shape (n,).
        low: the lower end of the interval of how many there are, shape (n,).
        high: its upper end.
        flagged: how many are flagged, which need not be the first.

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
        """Make the list of a name from all rows: their kinds, what ranks them, and :meth:`Calibration.claims`.

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
            low=np.maximum(np.cumsum(low[rows]) - chance, 0.0),
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
    """Calibrate by held-out scores of unlabeled rows, of which some are checked inliers, and of known outliers.

    Returns:
        The calibration, and the probability that each known outlier is labeled rightly, shape (m,).
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
    """Return which rows are known inliers, and among which π is the share of outliers: all others, or all."""
    sure = np.zeros(len(unlabeled), dtype=bool) if checked is None else checked
    return sure, ~sure | sure.all()


def labels_tell(unlabeled: Array, weights: Array, known: Array, known_weights: Array) -> bool:
    """Return whether held-out known outliers score higher than unlabeled rows by more than chance.

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
    scores: Array, weights: Array, prior: float | None, checked: NDArray[np.bool_] | None = None
) -> Calibration:
    """Calibrate by scores of unlabeled rows alone."""
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
    return Calibration(2 / spread, -2 * cut / spread, prior, False)


def estimate_prior(unlabeled: Array, weights: Array, known: Array, known_weights: Array) -> tuple[float, float, float]:
    """Estimate π within (0, ½] by ratios of tails above known outliers' scores; return it and its interval.

    Inliers reach the tails as well, so a lower end below one row in a hundred is given as zero.
    """
    order, ranked = np.argsort(known, kind="stable"), np.argsort(unlabeled, kind="stable")
    n, m = float(weights.sum()), float(known_weights.sum())
    up_to = np.cumsum(known_weights[order])
    places = np.searchsorted(up_to, m * np.array(QUARTILES) * (1 - 1e-12), side="right")
    t, above = known[order][places], m - up_to[places] + known_weights[order][places]
    below = np.concatenate([[0.0], np.cumsum(weights[ranked])])
    tail = np.maximum(n - below[np.searchsorted(unlabeled[ranked], t, side="left")], 0.0)
    # Half a row more: a tail that happens to be empty does not prove that there are no outliers.
    ratio = np.log((tail + 0.5) / n) - np.log((above - 0.5 * np.minimum(1.0, above)) / m)
    overlap = 1 - _auroc(unlabeled, weights, known, known_weights)
    precision = 1 / (CLUSTERED / above + 1 / (tail + 1) + (OVERLAPPING * overlap) ** 2)
    total = precision + SHARE_DEVIATION**-2
    estimate = (ratio * precision + math.log(USUAL_SHARE) * SHARE_DEVIATION**-2) / total
    lowest = int(np.argmin(estimate))
    wide = INTERVAL / math.sqrt(float(total[lowest]))
    pi, low, high = np.clip(np.exp(estimate[lowest] + np.array([0.0, -wide, wide])), 1e-6, [0.5, 0.5, 1.0])
    return float(pi), float(low) if low > NO_SHARE else 0.0, float(high)


def threshold_at(scores: Array, weights: Array, fraction: float) -> float:
    """Return a number above the scores that make up the lowest ``fraction`` of the weight, and below the next."""
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
    """Fit two parameters by Newton's method, both kinds of row with total weight one; the slope stays positive."""
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
