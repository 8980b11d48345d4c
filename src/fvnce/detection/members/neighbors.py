r"""Density ratio by nearest neighbors, in closed form without training.

With d(x) the mean distance from x to its k nearest reference rows, the density of the data is p̂(x) ∝ d(x)^(−D).
Against a noise whose density is known as well, every scoring rule has its optimum at the ratio of the two. The noise is
a geometric mean of three, p_n ∝ u^(1−a−b) · s^a · w^b, so that

    (1/D) log p_n/p̂ = log d(x) − a log mean_i d(x_i) − b log ρ(x) + const,

u uniform, s the data smoothed as far as the neighbors x_i of x reach (rows far from their neighbors, relative to the
local density, score high: LOF), and w the conditional noise of small warps of an image, log ρ(x) their mean log
distance from it. benchmarks/DEFAULTS.md gives the reasons for a and b.

Distances are smoothed, d + ε, so that the density of repeated rows is finite. A training row is not its own neighbor:
if a row equals a reference row, one copy of it is left out. Hidden outliers may form groups and be each other's
neighbors. So unless rows are known to be clean, the fifth of them with the largest distances from their 100 nearest
neighbors is not used as reference, and neither is a group far from the bulk of the rows, however dense
(:class:`~fvnce.detection.bulk.Bulk`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..._validation import count, fields, number, require, stored_array
from ..bulk import Bulk
from ..products import SquaredDistances
from ..rows import Array, Folds, TrainingRows
from .base import HeldOutScores, ImageShape, Member, MemberSettings, State, part_of, prefixed, row_fractions

if TYPE_CHECKING:
    from .images import ImageCode, Warps

#: Largest number of reference rows: without known outliers; with some, where other members matter more; for images.
MAX_ROWS, MAX_ROWS_WITH_KNOWN, MAX_IMAGES = 4096, 2048, 20_000
#: ε as a fraction of the mean distance, for tables, which may repeat rows, and for images.
SMOOTHING, IMAGE_SMOOTHING = 0.3, 0.01
#: a on tables of clean rows; a on images if neighbors explain all variance; b on images.
LOCAL, IMAGE_LOCAL, IMAGE_WARPED = 0.5, 0.7, 0.4
#: Default of k on tables and on images.
ROW_NEIGHBORS, IMAGE_NEIGHBORS = 5, 10
#: Fraction of rows that are left out of the reference as possible outliers; number of neighbors to find them.
TRIMMED, CROWD = 0.2, 100
#: Size of random moves of reference rows, which break ties of distances.
JITTER = 1e-6
#: Additional neighbors that are searched, since one may be the row itself.
SPARE = 3
#: Number of products that are computed at a time, and largest number of differences in memory.
SEARCHED, MAX_DISTANCES = 2**20, 2**21
#: Mean number of candidates, in numbers of neighbors, above which the search is repeated in double precision.
CANDIDATES = 4
#: Number of reference rows for estimating how much of the variance of distances neighbors explain.
WITNESSES = 4096
#: Number of rows that are explained at a time.
EXPLAINED = 256


@dataclass(frozen=True)
class Reference:
    """Reference rows for the search of nearest neighbors.

    Attributes:
        points: reference rows, shape (R, D).
        weights: number of copies of each row, shape (R,).
        distances: d + ε of each row from its own neighbors, shape (R,).
        n_neighbors: number of neighbors k.
        smoothing: smoothing ε.
    """

    points: Array
    weights: Array
    distances: Array
    n_neighbors: int
    smoothing: float

    @property
    def mean(self) -> float:
        """The mean of d + ε over the reference rows."""
        return float(np.average(self.distances, weights=self.weights))

    @classmethod
    def learn(
        cls, rows: Array, weights: Array, n_neighbors: int, *, clean: bool, max_rows: int, smoothing: float, seed: int
    ) -> Self:
        """Sample at most ``max_rows`` reference rows by weight; ``smoothing`` is ε divided by their mean distance."""
        counts = _counts(weights, min(len(rows), max_rows))
        chosen = np.flatnonzero(counts)
        rng = np.random.default_rng([seed, 80])
        points = _single(rows[chosen] + JITTER * rng.uniform(-1, 1, size=(len(chosen), rows.shape[1])))
        weights = counts[chosen]
        unsmoothed = partial(cls, distances=np.ones(0), smoothing=0.0)
        if not clean:
            crowd = unsmoothed(points, weights, n_neighbors=CROWD).distance(points)
            far = Bulk.learn(points, weights, rng).far(points)
            order = np.argsort(np.where(far, np.inf, crowd), kind="stable")
            cumulative = np.cumsum(weights[order]) / weights.sum()
            share = min(1 - TRIMMED, 1 - float(weights[far].sum() / weights.sum()))
            kept = np.sort(order[: max(1, int(np.searchsorted(cumulative, share, side="right")))])
            points, weights = np.ascontiguousarray(points[kept]), weights[kept]
        distances = unsmoothed(points, weights, n_neighbors=n_neighbors).distance(points)
        mean = float(np.average(distances, weights=weights))
        epsilon = smoothing * mean if mean > 0 else 1.0
        return cls(points, weights, _single(distances + epsilon), n_neighbors, epsilon)

    def distance(self, X: Array) -> Array:
        """Return d + ε of each row, shape (n,)."""
        distance, _, mass = self._nearest(X)
        return _average(distance, mass) + self.smoothing

    def local(self, X: Array) -> tuple[Array, Array]:
        """Return d + ε of each row, and the mean of d + ε over its neighbors, each of shape (n,)."""
        distance, index, mass = self._nearest(X)
        return _average(distance, mass) + self.smoothing, _average(self.distances[index], mass)

    def explained(self) -> float:
        """Return r², the fraction of the variance of log d over reference rows explained by that of their neighbors.

        It is near one if regions differ in density, and near zero if rows differ from their neighbors.
        """
        chosen = np.arange(0, len(self.points), -(-len(self.points) // WITNESSES))
        distance, around = self.local(self.points[chosen])
        return _squared_correlation(np.log(distance), np.log(around), self.weights[chosen])

    def differences(self, X: Array) -> Array:
        """Return the differences of each row from its k nearest reference rows, without itself, shape (n, k, D)."""
        _, index, mass = self._nearest(X)
        first = np.argsort(mass == 0, axis=1, kind="stable")[:, : self.n_neighbors]
        return X[:, None, :] - self.points[np.take_along_axis(index, first, 1)]

    def _nearest(self, X: Array) -> tuple[Array, NDArray[np.int64], Array]:
        """Return distances, indices and weights of the neighbors, with a total weight of at most k."""
        step = max(1, SEARCHED // len(self.points))
        parts = [self._search(X[low : low + step]) for low in range(0, max(len(X), 1), step)]
        distance, index = (np.concatenate(part) for part in zip(*parts, strict=True))
        mass = self.weights[index]
        itself = distance[:, 0] <= 10 * JITTER * math.sqrt(X.shape[1])
        mass[:, 0] = np.where(itself, np.maximum(mass[:, 0] - 1, 0), mass[:, 0])
        before = np.cumsum(mass, axis=1) - mass
        return distance, index, np.clip(self.n_neighbors - before, 0, mass)

    def _search(self, X: Array) -> tuple[Array, NDArray[np.int64]]:
        """Return the distances of the nearest reference rows, in their order, and their indices.

        Distances are computed exactly, row by row, for all candidates: reference rows that products do not exclude,
        whatever their rounding error. So the bits of a row do not depend on the other rows.
        """
        count = min(self.n_neighbors + SPARE, len(self.points))
        near = self._candidates(X, count, self._single)
        if np.count_nonzero(near) > CANDIDATES * count * len(X):  # ties up to single precision
            near = self._candidates(X, count, self._double)
        row, found = np.divmod(np.flatnonzero(near), near.shape[1])
        counts = np.bincount(row, minlength=len(X))
        place = row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        distance = np.full((len(X), max(count, counts.max(initial=0))), np.inf)
        index = np.zeros(distance.shape, dtype=np.int64)
        index[place], step = found, max(1, MAX_DISTANCES // X.shape[1])
        pairs = ((row[low : low + step], found[low : low + step]) for low in range(0, len(row), step))
        squares = [((X[x] - self.points[y]) ** 2).sum(1) for x, y in pairs]
        distance[place] = np.sqrt(np.concatenate([*squares, np.empty(0)]))
        order = np.argsort(distance, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(distance, order, 1), np.take_along_axis(index, order, 1)

    def _candidates(self, X: Array, count: int, products: SquaredDistances) -> NDArray[np.bool_]:
        """Return a mask of the reference rows that may be among the ``count`` nearest, shape (n, R)."""
        values, error = products(X)
        minima = values
        # The smallest minima of groups of values bound as many values, and are fast to find.
        while (half := minima.shape[1] // 2) >= 4 * count:
            minima = np.minimum(minima[:, :half], minima[:, half : 2 * half])
        limit = np.partition(minima, count - 1, axis=1)[:, count - 1] + 2 * error
        return np.asarray(~(values > limit[:, None]))  # NaN, after an overflow, is near

    @cached_property
    def _single(self) -> SquaredDistances:
        return SquaredDistances(self.points)

    @cached_property
    def _double(self) -> SquaredDistances:
        return SquaredDistances(self.points, np.float64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, in single precision unless loaded from a file of version 0.2."""
        arrays: dict[str, Array] = {name: getattr(self, name) for name in ("points", "weights", "distances")}
        exact = all(np.array_equal(values, _single(values)) for values in arrays.values())
        return {name: values.astype(np.float32 if exact else np.float64) for name, values in arrays.items()}

    @classmethod
    def from_state(cls, n_neighbors: int, smoothing: float, arrays: Mapping[str, NDArray[Any]], width: int) -> Self:
        """Restore the reference rows with ``width`` columns from arrays, which are checked."""
        require(set(arrays) == {"points", "weights", "distances"}, "have reference rows", sorted(arrays))
        rows = np.shape(arrays["weights"])[0] if np.ndim(arrays["weights"]) else 0
        require(rows > 0, "have reference rows", rows)
        # Version 0.2 stored them in double precision.
        dtype = np.float64 if arrays["points"].dtype == np.float64 else np.float32
        stored_array("points of neighbors", arrays["points"], dtype, (rows, width))
        for name, low in (("weights", 1.0), ("distances", math.ulp(0.0))):
            values = stored_array(f"{name} of neighbors", arrays[name], dtype, (rows,))
            require(bool((values >= low).all()), f"have {name} of neighbors >= {low:g}", values.min())
        double = {name: values.astype(np.float64) for name, values in arrays.items()}
        return cls(**double, n_neighbors=n_neighbors, smoothing=smoothing)


@dataclass(frozen=True, eq=False)
class NeighborMember(Member):
    """Member that computes log p_n/p̂ with p̂ by nearest neighbors.

    Attributes:
        reference: reference rows.
        local: exponent a.
        warped: exponent b.
        code: coordinates of images, or None for a table.
        warps: conditional noise, or None for a table.
    """

    name: ClassVar[str] = "neighbors"
    sees_pixels: ClassVar[bool] = True
    novelty: ClassVar[bool] = True
    memorizes: ClassVar[bool] = False

    reference: Reference
    local: float
    warped: float = 0.0
    code: ImageCode | None = None
    warps: Warps | None = None

    @classmethod
    def fit(
        cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None = None
    ) -> tuple[Self, HeldOutScores | None]:
        """Choose reference rows among rows that are not known outliers; no row is its own neighbor."""
        learn = partial(Reference.learn, weights=rows.weights, clean=settings.clean, seed=seed)
        if settings.image is None:
            k = settings.n_neighbors or ROW_NEIGHBORS
            most = MAX_ROWS_WITH_KNOWN if len(rows.outliers) else MAX_ROWS
            reference = learn(rows.X, n_neighbors=k, max_rows=most, smoothing=SMOOTHING)
            member = cls(reference, LOCAL if settings.clean else 0.0)
        else:
            from .images import ImageCode, Warps

            k, code = settings.n_neighbors or IMAGE_NEIGHBORS, ImageCode.learn(rows, settings.image, seed)
            z = code.encode(rows.X)
            reference = learn(z, n_neighbors=k, max_rows=MAX_IMAGES, smoothing=IMAGE_SMOOTHING)
            local = IMAGE_LOCAL * reference.explained() ** 2
            member = cls(reference, local, IMAGE_WARPED, code, Warps.draw(settings.image, seed))
        return member, None

    def anomaly(self, X: Array) -> Array:
        """Return (1/D) log p_n/p̂, which is zero for the distances of a typical reference row."""
        z = X if self.code is None else self.code.encode(X)
        distance, around = self.reference.local(z)
        typical = self.reference.mean
        ratio = np.log(distance / typical) - self.local * np.log(around / typical)
        if self.code is not None and self.warps is not None:
            ratio -= self.warped * self.warps.log_distance(X, z, self.code, self.reference.smoothing)
        return np.asarray(ratio)

    def contributions(self, X: Array) -> Array:
        """Distribute the anomaly over columns in proportion to squared differences from the neighbors."""
        parts = [self._fractions(X[low : low + EXPLAINED]) for low in range(0, max(len(X), 1), EXPLAINED)]
        return np.asarray(self.anomaly(X)[:, None] * np.concatenate(parts))

    def _fractions(self, X: Array) -> Array:
        if self.code is not None:
            return self.code.at_pixels(X, self.reference.differences(self.code.encode(X)))
        return row_fractions((self.reference.differences(X) ** 2).mean(1))

    def state(self) -> State:
        """Return reference rows, exponents, and the code and warps of images."""
        reference = self.reference
        content = {"local": self.local, "warped": self.warped, "smoothing": reference.smoothing}
        arrays = prefixed("reference", reference.arrays())
        if self.code is not None and self.warps is not None:
            arrays |= prefixed("code", self.code.arrays()) | {"warps.grids": self.warps.grids}
        return content | {"neighbours": reference.n_neighbors}, arrays  # as version 0.2 spelled it

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int, image: ImageShape | None
    ) -> Self:
        """Restore the member over ``width`` columns, or over the coordinates of images."""
        exponent, positive = partial(number, low=0.0, high=1.0), partial(number, low=0.0, open_low=True)
        local, warped, smoothing, k = fields(
            content, "neighbors", local=exponent, warped=exponent, smoothing=positive, neighbours=count
        )
        reference, code, warps = (part_of(arrays, part) for part in ("reference", "code", "warps"))
        require(len(arrays) == len(reference) + len(code) + len(warps), "have arrays of neighbors only", sorted(arrays))
        if image is None:
            require(not code and not warps, "be of a table", "images")
            return cls(Reference.from_state(k, smoothing, reference, width), local, warped)
        from .images import ImageCode, Warps

        made = ImageCode.from_state(code, width, image)
        rows = Reference.from_state(k, smoothing, reference, len(made.directions))
        return cls(rows, local, warped, made, Warps.from_state(warps, image))


def _single(values: Array) -> Array:
    """Round numbers to single precision, as in a file."""
    return values.astype(np.float32).astype(np.float64)


def _counts(weights: Array, total: int) -> Array:
    """Return the number of copies of each row among ``total`` rows that represent the weights.

    >>> _counts(np.array([2.0, 1.0, 1.0, 0.01]), 4)
    array([2., 1., 1., 0.])
    """
    cumulative = np.cumsum(weights) / weights.sum()
    return np.diff(np.floor(total * cumulative + 0.5), prepend=0.0)


def _average(values: Array, mass: Array) -> Array:
    """Return the weighted mean over neighbors, or the nearest value if all weights are zero."""
    total = mass.sum(1)
    return np.where(total > 0, (mass * values).sum(1) / np.where(total > 0, total, 1.0), values[:, 0])


def _squared_correlation(x: Array, y: Array, weights: Array) -> float:
    """Return the squared weighted correlation of two variables; zero if it is negative or one variable is constant.

    >>> _squared_correlation(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]), np.ones(3))
    1.0
    """
    x, y = x - np.average(x, weights=weights), y - np.average(y, weights=weights)
    both, of_x, of_y = (float((weights * product).sum()) for product in (x * y, x * x, y * y))
    return min(1.0, both / of_x * (both / of_y)) if both > 0 and of_x > 0 and of_y > 0 else 0.0
