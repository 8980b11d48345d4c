r"""From a score to P(outlier | x), and to a threshold nobody guessed.

The training rows are a mixture, p_u = (1 − π) p_θ + π p_out, so that

    P(outlier | x) = π p_out / (π p_out + (1 − π) p_θ).

*With known outliers* the ratio is fitted to scores of rows that the model had not seen, log p_out/p_θ = a s + b,
by logistic regression of known outliers against unlabelled rows, each of which counts with its probability of not being
an outlier; the two are iterated. π is estimated from the same scores: p_u ≥ π p_out everywhere, hence
π ≤ P_u(s > t) / P_out(s > t) at every t. The smallest of these ratios over the quartiles of the known outliers' scores
is the estimate. It bounds nothing: the ratios come from a few scores, and the smallest of several is biased downward,
while scores that do not separate leave it far too high. The ratios say nothing where known outliers score like any
other row: if their held-out AUROC is not above ½ by
:data:`BEYOND_CHANCE` of the deviations that it has by chance, (1/n + 1/m)/12 its variance for n rows and m known
outliers, scores are calibrated as if none were known.

*Without*, a forest against broad noise has p_n in place of p_out and its own answer: at equal masses, π = ½, the
posterior is μ, and a row is an outlier if noise outweighs data where it lies (μ > ½).

*Otherwise* there is no p_out. The spread of inliers is read where they are sure to be the most, between the median and
the quantile 0.8 of the scores; what lies :data:`FENCE` such deviations above the median is an outlier, the share of
rows that does is π, and P rises through ½ there at the rate of that spread. This is a convention, not an estimate.
Where it would be above every training row, as with scores in two heaps, the threshold is just above the strangest:
scores are bounded, and nothing at all might reach it. A new row like the n of training does with probability 1/(n + 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..serialization import fields
from .members.base import require, require_number
from .plan import Array
from .rows import as_counts

#: Deviation of the slope beforehand, in units of the scores' own: it matters while known outliers are a handful.
SLOPE = 5.0
QUARTILES = (0.25, 0.5, 0.75)
#: Known outliers above a quartile below which only the lowest quartile is asked.
FEWEST_ABOVE = 4
#: Where the spread of scores is read without known outliers, and how many deviations away an outlier lies.
UPPER, FENCE = 0.8, 2.5
#: How far above the strangest row a threshold lies at most, in the same deviations: more than rounding.
ROOM = 1e-3
#: The quantile UPPER of a normal distribution.
NORMAL_UPPER = 0.8416212335729143
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
        """P(outlier | s)."""
        logit = self.slope * score + self.intercept
        return np.asarray(1 / (1 + np.exp(-np.clip(logit, -700, 700))))

    @property
    def threshold(self) -> float:
        """The score at which P = ½."""
        return -self.intercept / self.slope

    @classmethod
    def from_state(cls, content: Mapping[str, Any]) -> Self:
        """The calibration with these attributes, which may be a stranger's."""
        made = cls(*fields(content, "the calibration", "slope", "intercept", "prior", "known"))
        for name in ("slope", "intercept", "prior"):
            require_number(f"{name} of the calibration", getattr(made, name))
        require(made.slope > 0, "have a positive slope of the calibration", made.slope)
        require(0 <= made.prior <= 1, "have a prior in [0, 1]", made.prior)
        require(isinstance(made.known, bool), "say whether outliers were known", made.known)
        return made


def calibrate_with_outliers(
    unlabelled: Array, weights: Array, known: Array, known_weights: Array, prior: float | None
) -> Calibration:
    """From held-out scores of unlabelled rows and of known outliers."""
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
    """Whether known outliers score higher than unlabelled rows, when held out, by more than chance.

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
    spread = sum(float((w**2).sum() / w.sum() ** 2) for w in (weights, known_weights)) / 12
    return auroc - 0.5 > BEYOND_CHANCE * math.sqrt(spread)


def calibrate_without(scores: Array, weights: Array, prior: float | None) -> Calibration:
    """From scores of unlabelled rows alone."""
    order = np.argsort(scores, kind="stable")
    s, share = scores[order], np.cumsum(weights[order]) / weights.sum()
    middle, upper = (float(s[min(len(s) - 1, int(np.searchsorted(share, level)))]) for level in (0.5, UPPER))
    spread = max((upper - middle) / NORMAL_UPPER, 1e-3 * (float(s[-1] - s[0]) or 1.0))
    if prior is None:
        cut = min(middle + FENCE * spread, float(s[-1]) + ROOM * spread)
        prior = min(0.5, max(float(weights[scores > cut].sum() / weights.sum()), 0.5 / float(as_counts(weights).sum())))
    else:
        cut = float(s[min(len(s) - 1, int(np.searchsorted(share, 1 - prior)))])
    return Calibration(2 / spread, -2 * cut / spread, prior, False)


def calibrate_by_share(centre: float, scale: float) -> Calibration:
    """From the score s = (μ − centre)/scale of a forest: P = σ(4 (μ − ½)), which is μ to first order around ½."""
    return Calibration(4 * scale, 4 * (centre - 0.5), 0.5, False)


def estimate_prior(unlabelled: Array, weights: Array, known: Array, known_weights: Array) -> float:
    """Estimate π by the smallest of P_u(s > t)/P_out(s > t) over a few t, within (0, ½], from counts of rows."""
    order = np.argsort(known, kind="stable")
    share = np.cumsum(known_weights[order]) / known_weights.sum()
    ratios: list[float] = []
    for level in QUARTILES:
        t = known[order][min(len(known) - 1, int(np.searchsorted(share, level)))]
        if ratios and float(known_weights[known >= t].sum()) < FEWEST_ABOVE:
            break  # the smallest of several ratios is too small if one of them rests on a handful
        among_known = float(known_weights[known >= t].sum() / known_weights.sum())
        # One row more: a tail that happens to be empty is no proof that there are no outliers.
        tail = float(weights[unlabelled >= t].sum() / weights.sum()) + 1 / (1 + float(weights.sum()))
        ratios.append(tail / among_known)
    return float(np.clip(min(ratios), 1e-6, 0.5))


def threshold_at(scores: Array, weights: Array, share: float) -> float:
    """A number above the scores that make up the lowest ``share`` of the weight, and below the next."""
    order = np.argsort(scores, kind="stable")
    below = np.cumsum(weights[order]) / weights.sum()
    last = int(np.searchsorted(below, share + 1e-12, side="right"))
    if last == 0:
        return float(scores[order[0]])
    if last == len(scores):
        return float(np.nextafter(scores[order[-1]], np.inf))
    return float((scores[order[last - 1]] + scores[order[last]]) / 2)


def _logistic(
    unlabelled: Array, counts: Array, inlier: Array, known: Array, known_counts: Array
) -> tuple[float, float]:
    """Newton's method for two parameters, both kinds of row with total weight one; the slope stays positive."""
    s, count = np.concatenate([unlabelled, known]), np.concatenate([counts, known_counts])
    y = np.repeat([0.0, 1.0], [len(unlabelled), len(known)])
    weights = counts * inlier
    w = np.concatenate([weights / weights.sum(), known_counts / known_counts.sum()])
    ridge = 1 / (SLOPE**2 * float(known_counts.sum()))
    centre = float(np.average(s, weights=count))
    scale = math.sqrt(float(np.average((s - centre) ** 2, weights=count))) or 1.0
    design = np.stack([(s - centre) / scale, np.ones_like(s)], 1)
    found = np.zeros(2)
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(design @ found, -30, 30)))
        gradient = design.T @ (w * (y - p)) - ridge * np.array([found[0], 0.0])
        hessian = (design * (w * p * (1 - p))[:, None]).T @ design + np.diag([ridge, 1e-9])
        step = np.linalg.solve(hessian, gradient)
        found += step * min(1.0, 4 / (1e-12 + float(np.abs(step).max())))
        if float(np.abs(step).max()) < 1e-10:
            break
    a = max(float(found[0]), 1e-2)
    return a / scale, float(found[1]) - a * centre / scale
