r"""Distance of a row from the bulk of the training rows, independent of the local density.

Nearest neighbors and densities are local: a distant group of hundreds of equal rows looks normal to them. Let t(x) be
the distance within which a fifth of the rows lies, in units of the spreads of the columns, m and u the median and the
quantile 0.8 of t over the rows, and

    away(x) = (t(x) − m) / (u − m).

A row is *far* if away(x) > 2.4; it is then not used as a reference for nearest neighbors. At most a fifth of the rows
is far: these may be a group, near to each other but not to the bulk. A row is *isolated* if away(x) > 5, which the
tails of a single bulk seldom reach. The term

    excess(x) = max(0, away(x) − 5), at most 15,

is added to the novelty of isolated rows, whatever the local density. The novelty of all other rows is unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._validation import require, stored_array
from .members.base import row_fractions
from .products import SquaredDistances
from .rows import Array, weighted_quantile, weighted_quantiles

#: Number of representative rows; the fraction of them that is near a normal row; limits for far and isolated rows.
BULK_ROWS, BULK, FAR, ISOLATED = 256, 0.2, 2.4, 5.0
#: Lower bound for u − m, which may be zero for columns with few values.
LEAST_RANGE = 0.3
#: Lower bound for the spread of a column, in deviations, since a far group may increase the deviation.
LEAST_SPREAD = 0.3
#: Differences up to which rows are equal: rounding, or the random moves of reference rows.
TINY = 1e-5
#: The largest fraction of the rows that a group is expected to have.
MOST_GROUP = 0.1
#: The largest excess.
MAX_EXCESS = 15.0
#: The most numbers in memory while distances are computed.
MAX_DISTANCES = 2**21


@dataclass(frozen=True)
class Bulk:
    """Representative rows, and the usual distances from them.

    Attributes:
        points: representative rows, divided by the spreads, shape (B, D).
        spreads: spreads of the columns, shape (D,).
        limits: m and u, shape (2,).
    """

    points: Array
    spreads: Array
    limits: Array

    @classmethod
    def learn(cls, rows: Array, weights: Array, rng: np.random.Generator) -> Self:
        """Sample the points by weight, and measure the distances of all rows.

        >>> rows = np.concatenate([np.random.default_rng(0).normal(size=(900, 1)), np.full((100, 1), 8.0)])
        >>> bulk = Bulk.learn(rows, np.ones(1000), np.random.default_rng(0))
        >>> bulk.excess(rows)[900:].min() > 0, bulk.excess(rows)[:900].any(1).mean() < 0.01
        (np.True_, np.True_)
        """
        spreads = _spreads(rows, weights)
        chosen = rng.choice(len(rows), min(BULK_ROWS, len(rows)), p=weights / weights.sum())
        distance = cls(rows[chosen] / spreads, spreads, np.zeros(2)).distance(rows)
        limits = weighted_quantiles(distance, weights, np.array([0.5, 1 - BULK]))
        others = distance > TINY
        if limits[0] <= TINY and weights[others].sum() > MOST_GROUP * weights.sum():
            # Most rows are at one point; usual distances are then estimated from the other rows.
            limits[1] = max(limits[1], weighted_quantile(distance[others], weights[others], 0.5))
        return cls(rows[chosen] / spreads, spreads, limits)

    def distance(self, X: Array) -> Array:
        """Return t(x) of each row, shape (n,)."""
        step, result = max(1, MAX_DISTANCES // len(self.points)), np.empty(len(X))
        from scipy.spatial.distance import cdist

        for low in range(0, len(X), step):
            # The last digits of distances by scipy do not depend on the other rows.
            away = cdist(X[low : low + step] / self.spreads, self.points)
            away.partition(self._nearest, axis=1)
            result[low : low + step] = away[:, self._nearest]
        return result

    def _may_exceed(self, X: Array, limit: float) -> NDArray[np.bool_]:
        """Return a mask of rows whose t(x) may exceed a limit; for many rows, by products, which are fast."""
        if len(X) <= len(self.points):
            return np.ones(len(X), dtype=bool)
        rows = X / self.spreads
        values, error = SquaredDistances(self.points)(rows)
        values.partition(self._nearest, axis=1)
        squares = 2 * (values[:, self._nearest] + error) + (rows**2).sum(1)
        return np.asarray(~(squares <= (1 - 1e-9) * limit**2))  # t(x), which is compared, is rounded

    @property
    def _nearest(self) -> int:
        return max(0, math.ceil(BULK * len(self.points)) - 1)

    def far(self, X: Array) -> NDArray[np.bool_]:
        """Return a mask of the rows that are far from the bulk."""
        middle, upper = self.limits
        return np.asarray(self.distance(X) > middle + FAR * (upper - middle) + TINY)

    def excess(self, X: Array) -> Array:
        """Return what each column adds to the novelty of each isolated row, zero for others, shape (n, D)."""
        middle, upper = self.limits
        spread = max(upper - middle, LEAST_RANGE)
        result, rows = np.zeros(X.shape), self._may_exceed(X, middle + ISOLATED * spread)
        beyond = np.zeros(len(X))
        beyond[rows] = (self.distance(X[rows]) - middle) / spread - ISOLATED
        rows = beyond > 0
        apart = (X[rows] / self.spreads - np.median(self.points, axis=0)) ** 2
        result[rows] = np.minimum(beyond[rows], MAX_EXCESS)[:, None] * row_fractions(apart)
        return result

    @classmethod
    def from_state(cls, arrays: Mapping[str, NDArray[Any]], width: int) -> Self:
        """Restore the bulk of rows with ``width`` columns from arrays, which are checked."""
        require(set(arrays) == {"points", "spreads", "limits"}, "have the bulk of rows", sorted(arrays))
        count = np.shape(arrays["points"])[0] if np.ndim(arrays["points"]) else 0
        require(0 < count <= BULK_ROWS, f"have 1 to {BULK_ROWS} rows of the bulk", count)
        for name, shape in (("points", (count, width)), ("spreads", (width,)), ("limits", (2,))):
            stored_array(f"{name} of the bulk", arrays[name], np.float64, shape)
        require(bool((arrays["spreads"] > 0).all()), "have spreads > 0", arrays["spreads"].min())
        low, high = arrays["limits"].tolist()
        require(0 <= low <= high, "have rising limits of the bulk", [low, high])
        return cls(**arrays)


def _spreads(rows: Array, weights: Array) -> Array:
    """Return the spread of each column between the quantiles 0.2 and 0.8, in [LEAST_SPREAD, 1]; 1 where it is zero.

    >>> _spreads(np.array([[-0.5, 0.0], [-0.4, 0.0], [0.0, 0.0], [0.4, 0.0], [50.0, 9.0]]), np.ones(5)).round(2)
    array([0.6, 1. ])
    """
    levels = np.array([BULK, 0.5, 1 - BULK])
    low, middle, high = np.stack([weighted_quantiles(column, weights, levels) for column in rows.T], 1)
    spread = np.maximum(high - middle, middle - low) / 0.84
    return np.where(spread > TINY, np.clip(spread, LEAST_SPREAD, 1.0), 1.0)
