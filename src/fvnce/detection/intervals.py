r"""Intervals for AUROC, average precision, precision and recall that cover with few known outliers, too.

Let T(t) and F(t) be the shares of outliers and of other rows with a score above t, in the distributions from which the
rows were drawn, and ρ = m/(m + n) the share of outliers among the rows at hand, taken as fixed. The intervals are for

    AUROC              P(outlier scores higher than another row), ties counting half
    average precision  ∫ ρT / (ρT + (1 − ρ)F) dT; the precision at a score counts all rows with an equal score

and for precision and recall at a threshold or among the first k rows, at the same ρ. Each of these rises if the score
of an outlier rises, and falls if that of another row does. The lower end comes from distributions that are as
unfavorable as the rows allow. In a sample of m rows, the shares of the distribution between neighboring scores are
distributed as the m + 1 spacings of uniform draws, Dirichlet(1, …, 1). All of a share is put at the end of its gap that
makes the number smaller; this adds an outlier below all rows and another row above all. The lower end is the quantile
0.025 over draws of the shares; the upper end mirrors it (Learned-Miller and Thomas, *A new confidence interval for the
mean of a bounded random variable*, 2019). For recall at a threshold it is the interval of Clopper and Pearson. A
bootstrap draws only rows that were seen: if all known outliers score high, its interval ignores those that do not.

The price is width. With m known outliers, all above every other row, the lower end of AUROC is 0.025^(1/m): above 0.5
from m = 6, above 0.7 from 11, above 0.85 from 23 and above 0.95 from 72.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .plan import Array

#: What an interval covers.
LEVEL = 0.95
#: Draws for an interval; its ends are the 10th from either side, one in 40.
DRAWS, TAIL = 399, 10
#: Numbers drawn at a time.
AT_ONCE = 2**18


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval.

    Attributes:
        value: from all rows.
        low: lower end of the interval for the distribution from which the rows were drawn.
        high: upper end.

    >>> print(Interval(0.95, 0.91, 0.98))
    0.950 (0.910 to 0.980)
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


#: Numbers, shape (draws, K), from the mass of outliers and of other rows in each bin, shape (draws, bins), and whether
#: to take the lowest value that mass within a bin allows.
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
        positive: how many outliers are in each bin, shape (bins,).
        negative: how many other rows are.
        totals: mass of the outliers and of the other rows.
        measure: computes the numbers.
        rng: draws the spacings.
    """
    counts = [np.pad(kind, 1, constant_values=1.0) for kind in (positive, negative)]
    size = max(1, AT_ONCE // len(counts[0]))
    lows, highs = [], []
    for start in range(0, DRAWS, size):
        shape = (min(size, DRAWS - start), len(counts[0]))
        outliers, others = (rng.standard_gamma(np.broadcast_to(kind, shape)) for kind in counts)
        lows.append(measure(_masses(outliers, totals[0], -1), _masses(others, totals[1], 0), True))
        highs.append(measure(_masses(outliers, totals[0], 0), _masses(others, totals[1], -1), False))
    low, high = (np.sort(np.concatenate(ends), axis=0) for ends in (lows, highs))
    outliers, others = (np.pad(kind, 1)[None] for kind in (positive, negative))
    value = measure(_masses(outliers, totals[0], 0), _masses(others, totals[1], 0), False)[0]
    # All are shares, which rounding may lift above 1.
    numbers = np.clip([value, np.minimum(value, low[TAIL - 1]), np.maximum(value, high[-TAIL])], 0.0, 1.0)
    return [Interval(*map(float, number)) for number in numbers.T]


def auroc_and_precision(positive: Array, negative: Array, lowest: bool = False) -> Array:
    """AUROC and average precision from the mass of both kinds of row in each bin, along the last axis.

    With ``lowest``, outliers of a bin are spread below its other rows and from one another, as if no scores were equal.

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
    """Divide the total in proportion to what was drawn, without the bin at one end."""
    kept = drawn.copy()
    kept[:, end] = 0.0
    kept *= total / kept.sum(1, keepdims=True)
    return kept
