r"""The search for neighbours: how far away from a row its nearest reference rows are.

With d(x) the mean distance from x to its k nearest reference rows, the density of the data is estimated by
p̂(x) ∝ d(x)^(−D), in closed form. Distances are smoothed, d + ε with ε a share of the mean distance, so that rows which
occur many times, and lie at no distance from their copies, are not infinitely dense.

A training row is no neighbour of itself: where a row coincides with a reference row, one copy of that is left out.
Rows that nobody marked may be outliers that lie together, and each other's neighbours. So unless rows are known to be
clean, the :data:`STRANGE` share of them whose :data:`CROWD` neighbours lie farthest is no reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from ..plan import Array
from .base import State, require, require_array, require_count, require_number

#: Share of rows that are no reference since they may be outliers, and neighbours by which they are found.
STRANGE, CROWD = 0.2, 100
#: Reference rows are moved by so much at random, that no two of them lie at the same distance from anything.
JITTER = 1e-6
#: Neighbours that are looked up beyond those wanted: the fast search rounds, and one may be the row itself.
SPARE = 3
#: Numbers in memory while distances are taken exactly.
NUMBERS = 2**21
#: Reference rows by which it is seen how much of a distance the neighbours' own explain.
WITNESSES = 4096


@dataclass(frozen=True)
class Reference:
    """Rows among which neighbours are looked for.

    Attributes:
        points: shape (R, D).
        weights: how often each occurs, whole numbers, shape (R,).
        distances: of each from its own neighbours, shape (R,).
        neighbours: k.
        smoothing: ε.
    """

    points: Array
    weights: Array
    distances: Array
    neighbours: int
    smoothing: float

    @property
    def mean(self) -> float:
        """The mean of d + ε over the reference rows."""
        return float(np.average(self.distances, weights=self.weights))

    @classmethod
    def learn(
        cls, rows: Array, weights: Array, neighbours: int, *, clean: bool, most: int, smoothing: float, seed: int
    ) -> Self:
        """From weighted rows, of which at most so many are kept, and ε as a share of their mean distance."""
        counts = _counts(weights, min(len(rows), most))
        chosen = np.flatnonzero(counts)
        rng = np.random.default_rng([seed, 80])
        points = rows[chosen] + JITTER * rng.uniform(-1, 1, size=(len(chosen), rows.shape[1]))
        weights = counts[chosen]
        if not clean:
            crowd = cls._unsmoothed(points, weights, CROWD).distance(points)
            order = np.argsort(crowd, kind="stable")
            share = np.cumsum(weights[order]) / weights.sum()
            kept = np.sort(order[: max(1, int(np.searchsorted(share, 1 - STRANGE, side="right")))])
            points, weights = np.ascontiguousarray(points[kept]), weights[kept]
        own = cls._unsmoothed(points, weights, neighbours).distance(points)
        mean = float(np.average(own, weights=weights))
        epsilon = smoothing * mean if mean > 0 else 1.0
        return cls(points, weights, own + epsilon, neighbours, epsilon)

    @classmethod
    def _unsmoothed(cls, points: Array, weights: Array, neighbours: int) -> Self:
        return cls(points, weights, np.ones(len(points)), neighbours, 0.0)

    def distance(self, X: Array) -> Array:
        """d + ε of each row, shape (n,)."""
        distance, _, mass = self._nearest(X)
        return _average(distance, mass) + self.smoothing

    def local(self, X: Array) -> tuple[Array, Array]:
        """d + ε of each row, and the mean of that of its neighbours, each of shape (n,)."""
        distance, index, mass = self._nearest(X)
        return _average(distance, mass) + self.smoothing, _average(self.distances[index], mass)

    def explained(self) -> float:
        """r²: the share of the variance of log d over reference rows that the distances of their neighbours explain.

        Near one where regions differ in density, near zero where it is each row's own affair how far away it lies.
        """
        count = len(self.points)
        chosen = np.arange(0, count, -(-count // WITNESSES))
        distance, around = self.local(self.points[chosen])
        return _squared_correlation(np.log(distance), np.log(around), self.weights[chosen])

    def differences(self, X: Array) -> Array:
        """Of each row from its k nearest reference rows but itself, shape (n, k, D)."""
        _, index, mass = self._nearest(X)
        first = np.argsort(mass == 0, axis=1, kind="stable")[:, : self.neighbours]
        return X[:, None, :] - self.points[np.take_along_axis(index, first, 1)]

    def _nearest(self, X: Array) -> tuple[Array, NDArray[np.int64], Array]:
        """Distances of the neighbours, which they are, and how much each of them counts, k together at most."""
        count = min(self.neighbours + SPARE, len(self.points))
        search = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(self.points)
        index: NDArray[np.int64] = search.kneighbors(X, return_distance=False)
        distance = np.empty(index.shape)
        step = max(1, NUMBERS // (count * X.shape[1]))
        for low in range(0, len(X), step):
            # Taken anew, row by row: the last digits of the search depend on the rows beside.
            away = X[low : low + step, None, :] - self.points[index[low : low + step]]
            distance[low : low + step] = np.sqrt((away**2).sum(2))
        order = np.argsort(distance, axis=1, kind="stable")
        distance, index = np.take_along_axis(distance, order, 1), np.take_along_axis(index, order, 1)
        mass = self.weights[index]
        itself = distance[:, 0] <= 10 * JITTER * math.sqrt(X.shape[1])
        mass[:, 0] = np.where(itself, np.maximum(mass[:, 0] - 1, 0), mass[:, 0])
        before = np.cumsum(mass, axis=1) - mass
        return distance, index, np.clip(self.neighbours - before, 0, mass)

    def state(self) -> State:
        """Two numbers, and arrays."""
        arrays = {name: torch.from_numpy(getattr(self, name)) for name in ("points", "weights", "distances")}
        return {"neighbours": self.neighbours, "smoothing": self.smoothing}, arrays

    @classmethod
    def from_state(cls, neighbours: Any, smoothing: Any, tensors: Mapping[str, Tensor], width: int) -> Self:
        """The reference rows of ``width`` columns."""
        require(set(tensors) == {"points", "weights", "distances"}, "have reference rows", sorted(tensors))
        require_count("neighbours of a row", neighbours, 1)
        require_number("smoothing of distances", smoothing)
        require(smoothing > 0, "have a positive smoothing of distances", smoothing)
        points, weights, distances = (tensors[name].numpy() for name in ("points", "weights", "distances"))
        made = cls(points, weights, distances, neighbours, smoothing)
        count = len(made.weights)
        require(count > 0, "have reference rows", count)
        require_array("points of neighbours", made.points, np.float64, (count, width))
        for name in ("weights", "distances"):
            values = getattr(made, name)
            require_array(f"{name} of neighbours", values, np.float64, (count,))
            require(bool((values > 0).all()), f"have positive {name} of neighbours", values.min())
        require(bool((made.weights >= 1).all()), "have reference rows that occur", made.weights.min())
        return made


def _counts(weights: Array, total: int) -> Array:
    """How often each row is among ``total`` rows that represent them by weight: within one of its share.

    >>> _counts(np.array([2.0, 1.0, 1.0, 0.01]), 4)
    array([2., 1., 1., 0.])
    """
    share = np.cumsum(weights) / weights.sum()
    return np.diff(np.floor(total * share + 0.5), prepend=0.0)


def _average(values: Array, mass: Array) -> Array:
    """The mean over neighbours; the nearest where none counts, which is a row that has no neighbour but itself."""
    total = mass.sum(1)
    return np.where(total > 0, (mass * values).sum(1) / np.where(total > 0, total, 1.0), values[:, 0])


def _squared_correlation(x: Array, y: Array, weights: Array) -> float:
    """Of two variables that go together, weighted; zero where they do not, or where one is constant.

    >>> _squared_correlation(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]), np.ones(3))
    1.0
    """
    x, y = x - np.average(x, weights=weights), y - np.average(y, weights=weights)
    both, of_x, of_y = (float((weights * product).sum()) for product in (x * y, x * x, y * y))
    return min(1.0, both / of_x * (both / of_y)) if both > 0 and of_x > 0 and of_y > 0 else 0.0
