"""Validation of labels and weights, merging of equal rows, and reading of large arrays in parts.

Rows that are equal, including their label, are merged to one row with the sum of their weights, in lexicographic order.
So a weight of 2 has the same effect as two rows, to the last bit, a weight of 0 the same as no row, and the order of
the rows has none.

Pages of a memory map that were read count as memory of the process until the system reclaims them. They are released
part by part, so that a file of any size needs no more memory than one part.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..tables.frame import is_missing

Array = NDArray[np.float64]

#: Words for known outliers and for other rows, in lower case.
# fmt: off
OUTLIER = frozenset({
    "1", "1.0", "true", "yes", "y", "t", "outlier", "outliers", "anomaly", "anomalous", "abnormal", "fraud",
    "fraudulent", "attack", "intrusion", "malicious", "malignant", "defect", "defective", "fault", "faulty", "bad",
})
INLIER = frozenset({
    "0", "0.0", "false", "no", "n", "f", "inlier", "inliers", "normal", "ok", "okay", "good", "legit", "legitimate",
    "genuine", "benign", "clean", "healthy", "none",
})
# fmt: on
LABELS = "y must be 1 for known outliers and 0 for unlabeled rows"
#: Weight of a known inlier in members, in unlabeled rows; chosen by leaving out sources of tables in turn.
INLIER_WORTH = 25.0
#: Largest binary exponent of weights that are not rescaled.
MAX_EXPONENT = 500
#: Largest sum of whole weights that are taken for counts of rows.
MAX_COUNT = 10**8
#: Largest number of rows, and of numbers in them, that are processed together.
PART_ROWS, PART_NUMBERS = 16_384, 2**21
#: Rows of a memory map read before pages are released; the system reads about 64 kB around each.
GATHERED_ROWS = 1024


@dataclass(frozen=True)
class TrainingRows:
    """Encoded training rows and known outliers, with weights.

    Attributes:
        X: unlabeled rows, shape (n, D).
        weights: weights of the unlabeled rows, shape (n,).
        outliers: known outliers, shape (m, D); m may be 0.
        outlier_weights: weights of the known outliers, shape (m,).
        checked: mask of known inliers among the unlabeled rows, shape (n,); None if there are none.
    """

    X: Array
    weights: Array
    outliers: Array
    outlier_weights: Array
    checked: NDArray[np.bool_] | None = None

    @classmethod
    def split(
        cls, X: Array, known: NDArray[np.bool_], weights: Array, checked: NDArray[np.bool_] | None = None
    ) -> Self:
        """Separate known outliers from unlabeled rows, of which some are known inliers."""
        return cls(X[~known], weights[~known], X[known], weights[known], None if checked is None else checked[~known])

    def without(self, rows: NDArray[np.bool_], outliers: NDArray[np.bool_]) -> TrainingRows:
        """Return all rows except the marked ones."""
        checked = None if self.checked is None else self.checked[~rows]
        both = self.outliers[~outliers], self.outlier_weights[~outliers]
        return TrainingRows(self.X[~rows], self.weights[~rows], *both, checked)

    def transformed(self, transform: Callable[[Array], Array]) -> TrainingRows:
        """Return the rows with transformed columns and the same weights."""
        return replace(self, X=transform(self.X), outliers=transform(self.outliers))

    def emphasized(self) -> TrainingRows:
        """Return the rows with weights in which a known inlier counts :data:`INLIER_WORTH` times.

        The total weight of known inliers is at most that of all other rows.
        """
        if self.checked is None or not self.checked.any():
            return self
        inliers, others = (float(self.weights[kind].sum()) for kind in (self.checked, ~self.checked))
        factor = max(1.0, min(INLIER_WORTH, others / inliers))
        return replace(self, weights=np.where(self.checked, factor, 1.0) * self.weights)


@dataclass(frozen=True)
class Folds:
    """Fold of each training row, for training some models of an ensemble without it.

    Attributes:
        count: number of folds K.
        rows: fold of each unlabeled row, 0 … K − 1, shape (n,).
        outliers: fold of each known outlier, shape (m,); −1 for a single one, which cannot be held out.
    """

    count: int
    rows: NDArray[np.int64]
    outliers: NDArray[np.int64]

    @classmethod
    def drawn(cls, count: int, rows: int, outliers: int, rng: np.random.Generator) -> Self:
        """Draw random folds whose sizes differ by at most one row.

        >>> Folds.drawn(3, 6, 1, np.random.default_rng(0)).outliers
        array([-1])
        """
        of_row, of_outlier = (rng.permutation(np.arange(n) % count) for n in (rows, outliers))
        return cls(count, of_row, np.full(1, -1) if outliers == 1 else of_outlier)


def check_labels(y: Any, n: int, *, mostly_outliers: bool = False) -> NDArray[np.bool_]:
    """Return a mask of the known outliers among n rows; rows with a missing label are unlabeled.

    Args:
        y: 1 for known outliers and 0 for other rows, or words.
        n: number of rows.
        mostly_outliers: whether more than half of the rows may be known outliers.

    >>> check_labels([0, 1, 0], 3)
    array([False,  True, False])
    >>> check_labels(["no", "yes", None], 3)
    array([False,  True, False])
    """
    if y is None:
        return np.zeros(n, dtype=bool)
    labels = read_labels(y)
    if len(labels) != n:
        raise ValueError(f"y must hold one label for each of the {n} rows, found {len(labels)}")
    known: NDArray[np.bool_] = labels == 1
    count = int(known.sum())
    if count == n:
        raise ValueError(f"y must leave some rows unlabeled (0), found all {n} rows marked as outliers (1 class)")
    if 2 * count > n and not mostly_outliers:
        raise ValueError(
            f"{LABELS}, found 1 in {count:,} of {n:,} rows ({100 * count / n:.0f} %), more than half; pass 1 - y if 1 "
            "marks normal rows, or mostly_outliers=True to fit if this is correct"
        )
    return known


def check_mask(name: str, mask: Any, n: int) -> NDArray[np.bool_]:
    """Validate a mask of n rows, by default all False.

    >>> check_mask("reviewed", [True, False], 2), check_mask("reviewed", None, 1)
    (array([ True, False]), array([False]))
    """
    if mask is None:
        return np.zeros(n, dtype=bool)
    marks: NDArray[Any] = np.array(np.asarray(mask).tolist())
    if marks.dtype != np.bool_ or marks.shape != (n,):
        found = f"shape {marks.shape} of {marks.dtype}"
        raise ValueError(f"{name} must hold True or False for each of the {n} rows, found {found}; pass a mask")
    return marks


def check_inliers(checked: Any, y: Any, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the known inliers: rows that are checked and not known outliers.

    >>> check_inliers([True, True, False], [1, 0, 0], np.array([True, False, False]))
    array([False,  True, False])
    """
    from sklearn.utils.validation import column_or_1d

    mask = check_mask("checked", checked, len(known))
    labels = [None] * len(mask) if y is None else column_or_1d(y).tolist()
    if bare := [row for row in np.flatnonzero(mask).tolist() if is_missing(labels[row])]:
        raise ValueError(f"checked must mark rows that y labels, found row {bare[0]} without a label; pass 0 or 1 in y")
    return np.asarray(mask & ~known)


def read_labels(y: Any) -> NDArray[np.float64]:
    """Convert labels to numbers: 1 for outliers, 0 for other rows and missing labels."""
    from sklearn.utils.validation import column_or_1d

    labels: NDArray[Any] = column_or_1d(y, warn=True)
    if labels.dtype.kind == "O":
        labels = np.array([0 if is_missing(value) else value for value in labels], dtype=object)
        # Data frames with missing values hold numbers as objects.
        if all(isinstance(value, Real | np.bool_) for value in labels):
            labels = labels.astype(np.float64)
    if labels.dtype.kind not in "biuf":
        words = [str(value).strip().lower() for value in labels.tolist()]
        unknown = next((word for word in words if word not in OUTLIER | INLIER), None)
        if unknown is not None:
            raise ValueError(
                f"{LABELS}, or words such as yes and no, outlier and inlier, found {unknown[:40]!r}; pass "
                "(y == WORD).astype(int) with the word that marks outliers"
            )
        labels = np.array([float(word in OUTLIER) for word in words])
    numbers = labels.astype(np.float64)
    numbers[np.isnan(numbers)] = 0.0
    others = sorted({float(value) for value in np.unique(numbers)} - {0.0, 1.0})
    if -1.0 in others:
        raise ValueError(
            f"{LABELS}, found -1; pass (y == -1).astype(int) if these are "
            "predictions of scikit-learn, -1 for outliers and +1 for inliers"
        )
    if others:
        shown = ", ".join(f"{value:g}" for value in others[:5])
        raise ValueError(
            f"{LABELS}, found {shown}; pass (y == VALUE).astype(int) with the value that marks outliers, such as "
            f"{min(others, key=lambda value: (numbers == value).sum()):g}"
        )
    return numbers


def check_images(X: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Validate an array of finite images of the given shape; a memory map is returned as a memory map."""
    if not isinstance(X, np.ndarray):
        try:
            X = np.asarray(X)
        except (TypeError, ValueError, RuntimeError) as error:  # lists of different lengths, tensors with gradients
            raise ValueError(f"X must be an array of images of one shape, found {type(X).__name__}: {error}") from None
    if X.dtype.kind not in "biuf":
        raise ValueError(f"X must hold numbers, found dtype {X.dtype}")
    if shape is not None and tuple(X.shape[1:]) != shape:
        raise ValueError(f"X must hold images of shape {shape} as in training, found {tuple(X.shape[1:])}")
    if len(X) == 0 or 0 in X.shape:
        raise ValueError(f"X must hold at least one image, found shape {tuple(X.shape)}")
    if X.dtype.kind == "f" and not all(np.isfinite(part).all() for part in parts_of(X)):
        raise ValueError("X must not hold NaN or infinity, found some")
    return X


def require_values(X: Any) -> Any:
    """Return rows; raise ValueError if all values are missing. A memory map is read only up to its first value."""
    if all(np.isnan(part).all() for part in parts_of(X)):
        raise ValueError("X must hold some value, found only missing ones: all are NaN")
    return X


def check_weights(sample_weight: Any, X: Any, known: NDArray[np.bool_]) -> Array:
    """Validate nonnegative weights, by default ones; at least one unlabeled row must have a positive weight.

    >>> unlabeled = np.zeros(2, dtype=bool)
    >>> check_weights([3e307, 1e308], np.zeros((2, 1)), unlabeled), check_weights([10, 30], np.eye(2), unlabeled)
    (array([0.16688054, 0.55626846]), array([1., 3.]))
    """
    from sklearn.utils.validation import _check_sample_weight

    weights: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    largest = float(weights.max(initial=0.0))
    if not math.isfinite(largest):  # scikit-learn does not check a single number
        raise ValueError(f"sample_weight must be finite, found {largest}")
    if not largest > 0:
        raise ValueError("sample_weight must have a positive sum, found only zeros")
    if not (weights[~known] > 0).any():
        raise ValueError("sample_weight must be positive for some unlabeled row (y = 0), found none")
    # Only ratios of weights count: ten times one row is no more evidence than one row.
    if largest <= MAX_COUNT and are_counts(weights):
        return weights / float(np.gcd.reduce(weights.astype(np.int64)))
    # Scaling by a power of two is exact, and keeps sums from overflowing.
    exponent = math.frexp(largest)[1]
    return np.ldexp(weights, -exponent) if abs(exponent) > MAX_EXPONENT else weights


def are_counts(weights: Array) -> bool:
    """Return whether weights are counts of rows."""
    return bool((weights == np.floor(weights)).all()) and float(weights.sum()) <= MAX_COUNT


def as_counts(weights: Array) -> Array:
    """Return weights scaled to sum to the number of rows, unless they are counts.

    >>> as_counts(np.array([3.0, 1.0])), as_counts(np.array([0.1, 0.1]))
    (array([3., 1.]), array([1., 1.]))
    """
    return weights if are_counts(weights) else effective_counts(weights)


def effective_counts(weights: Array) -> Array:
    """Return weights scaled to sum to the effective sample size of Kish.

    >>> effective_counts(np.array([20.0, 20.0, 20.0]))
    array([1., 1., 1.])
    """
    return np.asarray(weights * (weights.sum() / (weights**2).sum()))


def weighted_quantile(values: Array, weights: Array, level: float) -> float:
    """Return the smallest value with at least a fraction ``level`` of the weight at or below it.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.5)
    2.0
    """
    return float(weighted_quantiles(values, weights, np.array([level]))[0])


def weighted_quantiles(values: Array, weights: Array, levels: Array) -> Array:
    """Return the weighted quantile of each level, shape of ``levels``.

    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), np.array([0.2, 1.0]))
    array([1., 3.])
    """
    order = np.argsort(values, kind="stable")
    places = np.searchsorted(np.cumsum(weights[order]) / weights.sum(), levels - 1e-12)
    return np.asarray(values[order[np.minimum(places, len(order) - 1)]])


def weight_up_to(values: Array, weights: Array, ends: Array) -> Array:
    """Return the fraction of the weight of values that are at most each end, shape of ``ends``.

    >>> weight_up_to(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), np.array([0.0, 2.0]))
    array([0.  , 0.75])
    """
    order = np.argsort(values, kind="stable")
    cumulative = np.append(0.0, np.cumsum(weights[order]) / weights.sum())
    return np.asarray(np.minimum(1.0, cumulative[np.searchsorted(values[order], ends, side="right")]))


def hash_words(*arrays: Any) -> list[int]:
    """Return a 128-bit hash of numbers as four integers, to be part of a seed.

    With a fixed seed alone, the same positions are drawn in every table, and in sorted tables the same ranks. With the
    hash in the seed, each table has its own draw, which is reproducible.

    >>> hash_words(np.zeros((2, 1))) == hash_words(np.array([[0], [-0.0]])), len(hash_words(np.ones(1)))
    (True, 4)
    """
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        for part in parts_of(array):
            numbers = np.asarray(part, dtype=np.float64) + 0.0  # −0.0 is 0.0
            digest.update(np.where(np.isnan(numbers), np.nan, numbers).astype("<f8").tobytes())
    return [int(word) for word in np.frombuffer(digest.digest(), dtype="<u4")]


def merge(
    X: Array, known: NDArray[np.bool_], weights: Array, checked: NDArray[np.bool_] | None = None
) -> tuple[Array, NDArray[np.bool_], Array, NDArray[np.int64]]:
    """Merge equal rows of positive weight, in lexicographic order; checked rows are merged separately.

    Returns:
        Distinct rows, a mask of known outliers, weights, and the index of each row of positive weight in the result.

    >>> merge(np.array([[2.0], [1.0], [2.0]]), np.zeros(3, bool), np.ones(3))[2]
    array([1., 2.])
    """
    there = weights > 0
    label = known if checked is None else np.maximum(known, 0.5 * checked)
    table = np.column_stack([label[there], X[there]]) + 0.0  # −0.0 is 0.0
    # As integers, the bits of floats sort like the floats if those of negative numbers are flipped; NaN comes last.
    bits = np.where(np.isnan(table), np.nan, table).view(np.int64)
    keys, place = np.unique(_flipped(bits), axis=0, return_inverse=True)
    summed = np.bincount(place.ravel(), weights[there], minlength=len(keys)).astype(np.float64)
    rows = _flipped(keys).view(np.float64)
    return np.ascontiguousarray(rows[:, 1:]), rows[:, 0] > 0.5, summed, place.ravel()


def _flipped(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Invert all bits of negative numbers except the sign; the function is its own inverse."""
    return bits ^ ((bits >> 63) & np.iinfo(np.int64).max)


def in_parts(
    rows: Any, score: Callable[[Any], Array], *, n_jobs: int | None = None, progress: bool | None = False
) -> Array:
    """Compute scores of rows in parts of bounded memory.

    Args:
        rows: rows, shape (n, …).
        score: function from rows to scores; the score of a row must not depend on other rows.
        n_jobs: number of threads, as in joblib.
        progress: whether to show a progress bar; None shows it in a terminal only.
    """
    step = rows_at_once(rows)
    starts = range(0, len(rows), step)
    parts: Iterable[Array] = (score(rows[start : start + step]) for start in starts)
    if n_jobs not in (None, 1) and len(starts) > 1:
        from joblib import Parallel, delayed

        work = (delayed(lambda start: score(rows[start : start + step]))(start) for start in starts)
        parts = Parallel(n_jobs=n_jobs, prefer="threads", return_as="generator")(work)
    return np.concatenate(list(with_bar(parts, len(starts), "scoring", progress)))


def with_bar(items: Iterable[Any], total: int, name: str, progress: bool | None) -> Iterable[Any]:
    """Return the items, with a progress bar on standard error if asked for; None shows it in a terminal."""
    if progress is False or (progress is None and not sys.stderr.isatty()):
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, name, total, console=Console(stderr=True))


def rows_at_once(X: Any) -> int:
    """Return the number of rows or images to process together within bounded memory."""
    return max(1, min(PART_ROWS, PART_NUMBERS // max(1, math.prod(map(int, X.shape[1:])))))


def parts_of(X: Any) -> Iterator[Any]:
    """Yield rows in parts of bounded memory; the pages of a memory map are released after each part.

    >>> [len(part) for part in parts_of(np.zeros((20_000, 2)))]
    [16384, 3616]
    """
    step = rows_at_once(X)
    for start in range(0, len(X), step):
        yield X[start : start + step]
        release(X)


def release(X: Any) -> None:
    """Release the pages of a read-only memory map; the next access reads them again. Other arrays are unchanged.

    Pages of a writable map are kept, since a private map holds the only copy of changes.
    """
    if not isinstance(X, np.memmap) or X.mode != "r" or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base: Any = X
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def take(X: Any, rows: slice | NDArray[np.int64]) -> Any:
    """Return ``X[rows]`` in memory; a memory map is read part by part.

    >>> take(np.array([[1.0], [2.0], [3.0]]), np.array([0, 2])).tolist()
    [[1.0], [3.0]]
    """
    if not isinstance(X, np.memmap) or isinstance(rows, slice):
        return X[rows]
    taken = np.empty((len(rows), *X.shape[1:]), dtype=X.dtype)
    for start in range(0, len(rows), GATHERED_ROWS):
        taken[start : start + GATHERED_ROWS] = X[rows[start : start + GATHERED_ROWS]]
        release(X)
    return taken
