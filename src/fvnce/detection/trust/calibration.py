r"""Calibration: from scores to P(outlier | x) (Eq. outlier_probability), to π and to a threshold.

*With known outliers*, log p_out/p_θ = a s + b is fitted to held-out scores by logistic regression of known outliers
against unlabelled rows, each weighed by its probability of being no outlier; the two are iterated. π is the smallest
ratio of Eq. prior_ratio over the quartiles of the known outliers' scores: a rough estimate that bounds nothing. If
known outliers do not score higher than other rows, scores are calibrated as if none were known.

*Without*, the spread of inliers is read between the median and the quantile 0.8 of the scores; what lies :data:`FENCE`
such deviations above the median, or above every training row, is called an outlier. This is a convention, not an
estimate. The derivation is in docs/theory/trust.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from ..._validation import fields, flag, number
from ..rows import Array, as_counts

#: Prior deviation of the slope, in units of the scores' own: it matters while known outliers are few.
SLOPE = 5.0
QUARTILES = (0.25, 0.5, 0.75)
#: Known outliers above a quartile below which only the lowest quartile is used.
MIN_ABOVE = 4
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
    """

    slope: float
    intercept: float
    prior: float
    known: bool

    def probability(self, score: Array) -> Array:
        """Return P(outlier | s) of anomaly scores."""
        logit = self.slope * score + self.intercept
        return np.asarray(1 / (1 + np.exp(-np.clip(logit, -700, 700))))

    @property
    def threshold(self) -> float:
        """The score at which P = ½."""
        return -self.intercept / self.slope

    @classmethod
    def from_state(cls, content: Mapping[str, Any]) -> Self:
        """Make the calibration of a state that may be forged."""
        positive, unit = partial(number, low=0.0, open_low=True), partial(number, low=0.0, high=1.0)
        return cls(*fields(content, "the calibration", slope=positive, intercept=number, prior=unit, known=flag))


def calibrate_with_outliers(
    unlabelled: Array, weights: Array, known: Array, known_weights: Array, prior: float | None
) -> Calibration:
    """Calibrate by held-out scores of unlabelled rows and of known outliers."""
    weights, known_weights = as_counts(weights), as_counts(known_weights)
    pi = estimate_prior(unlabelled, weights, known, known_weights) if prior is None else prior
    odds = math.log(pi / (1 - pi))
    inlier = np.ones_like(unlabelled)
    slope = intercept = 0.0
    for _ in range(ROUNDS):
        slope, intercept = _logistic(unlabelled, weights, inlier, known, known_weights)
        inlier = 1 / (1 + np.exp(np.clip(slope * unlabelled + intercept + odds, -30, 30)))
    return Calibration(slope, intercept + odds, pi, True)


def labels_tell(unlabelled: Array, weights: Array, known: Array, known_weights: Array) -> bool:
    """Return whether held-out known outliers score higher than unlabelled rows by more than chance.

    >>> rows, ones = np.arange(100.0), np.ones(100)
    >>> labels_tell(rows, ones, np.array([20.0, 40.0, 80.0]), np.ones(3))
    False
    >>> labels_tell(rows, ones, np.array([80.0, 90.0, 99.0]), np.ones(3))
    True
    """
    order = np.argsort(unlabelled, kind="stable")
    mass = np.concatenate([[0.0], np.cumsum(weights[order])]) / weights.sum()
    below, up_to = (mass[np.searchsorted(unlabelled[order], known, side=side)] for side in ("left", "right"))
    auroc = float(np.average((below + up_to) / 2, weights=known_weights))
    variance = sum(float((w**2).sum() / w.sum() ** 2) for w in (weights, known_weights)) / 12
    return auroc - 0.5 > BEYOND_CHANCE * math.sqrt(variance)


def calibrate_without(scores: Array, weights: Array, prior: float | None) -> Calibration:
    """Calibrate by scores of unlabelled rows alone."""
    order = np.argsort(scores, kind="stable")
    s, cumulative = scores[order], np.cumsum(weights[order]) / weights.sum()
    middle, upper = (float(s[min(len(s) - 1, int(np.searchsorted(cumulative, level)))]) for level in (0.5, UPPER))
    spread = max((upper - middle) / NORMAL_UPPER, 1e-3 * (float(s[-1] - s[0]) or 1.0))
    if prior is None:
        cut = min(middle + FENCE * spread, float(s[-1]) + ROOM * spread)
        above = float(weights[scores > cut].sum() / weights.sum())
        prior = min(0.5, max(above, 0.5 / float(as_counts(weights).sum())))
    else:
        cut = float(s[min(len(s) - 1, int(np.searchsorted(cumulative, 1 - prior)))])
    return Calibration(2 / spread, -2 * cut / spread, prior, False)


def estimate_prior(unlabelled: Array, weights: Array, known: Array, known_weights: Array) -> float:
    """Estimate π by the smallest of P_u(s > t)/P_out(s > t) over a few t, within (0, ½], from counts of rows."""
    order = np.argsort(known, kind="stable")
    cumulative = np.cumsum(known_weights[order]) / known_weights.sum()
    ratios: list[float] = []
    for level in QUARTILES:
        t = known[order][min(len(known) - 1, int(np.searchsorted(cumulative, level)))]
        if ratios and float(known_weights[known >= t].sum()) < MIN_ABOVE:
            break  # the smallest of several ratios is too small if one of them rests on very few rows
        among_known = float(known_weights[known >= t].sum() / known_weights.sum())
        # One row more: a tail that happens to be empty does not prove that there are no outliers.
        tail = float(weights[unlabelled >= t].sum() / weights.sum()) + 1 / (1 + float(weights.sum()))
        ratios.append(tail / among_known)
    return float(np.clip(min(ratios), 1e-6, 0.5))


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


def _logistic(
    unlabelled: Array, counts: Array, inlier: Array, known: Array, known_counts: Array
) -> tuple[float, float]:
    """Fit two parameters by Newton's method, both kinds of row with total weight one; the slope stays positive."""
    s, count = np.concatenate([unlabelled, known]), np.concatenate([counts, known_counts])
    y = np.repeat([0.0, 1.0], [len(unlabelled), len(known)])
    weights = counts * inlier
    w = np.concatenate([weights / weights.sum(), known_counts / known_counts.sum()])
    ridge = 1 / (SLOPE**2 * float(known_counts.sum()))
    center = float(np.average(s, weights=count))
    scale = math.sqrt(float(np.average((s - center) ** 2, weights=count))) or 1.0
    design = np.stack([(s - center) / scale, np.ones_like(s)], 1)
    beta = np.zeros(2)
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(design @ beta, -30, 30)))
        gradient = design.T @ (w * (y - p)) - ridge * np.array([beta[0], 0.0])
        hessian = (design * (w * p * (1 - p))[:, None]).T @ design + np.diag([ridge, 1e-9])
        step = np.linalg.solve(hessian, gradient)
        beta += step * min(1.0, 4 / (1e-12 + float(np.abs(step).max())))
        if float(np.abs(step).max()) < 1e-10:
            break
    a = max(float(beta[0]), 1e-2)
    return a / scale, float(beta[1]) - a * center / scale
