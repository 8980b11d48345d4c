"""Rows: looked at in parts, and in training a measure: labels checked, duplicates merged, order forgotten.

Rows that are equal, label included, become one row with the sum of their weights, in lexicographic order. So a weight
of 2 is the same as two rows to the last bit, a weight of 0 the same as no row, and the order of rows does not matter.

The pages of a mapped file that were read count as memory of the process until the system wants them back. Let go part
by part, a file of any size takes no more memory than a part of it.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import warnings
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from ..training.callbacks import make_progress
from .frame import is_missing
from .plan import Array

#: Words that mark a known outlier, and words that do not, in lower case.
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
#: Weights whose largest has a binary exponent beyond this are scaled.
EXPONENT = 500
#: Whole weights up to this sum are counts of rows.
MOST_COUNTED = 10**8
#: Rows that are looked at together, at most, and numbers in them.
BATCH, NUMBERS = 8192, 2**21
#: Rows of a memory map gathered before their pages are let go; the system reads some 64 kB around each.
GATHERED = 1024


def check_labels(y: Any, n: int) -> NDArray[np.bool_]:
    """Which rows are known outliers.

    >>> check_labels([0, 1, 0], 3)
    array([False,  True, False])
    >>> check_labels(["no", "yes", "no"], 3)
    array([False,  True, False])
    """
    if y is None:
        return np.zeros(n, dtype=bool)
    labels = read_labels(y)
    if len(labels) != n:
        raise ValueError(f"y must hold one label for each of the {n} rows, found {len(labels)}")
    others = sorted({float(v) for v in np.unique(labels)} - {0.0, 1.0})
    if others:
        shown = ", ".join(f"{value:g}" for value in others[:5])
        warnings.warn(
            f"y must be 1 for known outliers and 0 for unlabelled rows, found also {shown}: those rows count "
            "as unlabelled",
            stacklevel=3,
        )
    known: NDArray[np.bool_] = labels == 1
    if known.all():
        raise ValueError(
            f"y must leave some rows unlabelled (0), found all {n} rows marked as outliers (1 class): there is nothing "
            "to tell them from"
        )
    count = int(known.sum())
    if 2 * count > n:
        warnings.warn(
            f"y must be 1 for known outliers and 0 for unlabelled rows, found 1 in {count:,} of {n:,} rows "
            f"({100 * count / n:.0f} %): more than half; pass 1 - y if 1 marks those that are usual",
            stacklevel=3,
        )
    return known


def read_labels(y: Any) -> NDArray[Any]:
    """Labels as numbers, of which 1 marks an outlier, whether they are given as numbers or in words."""
    labels: NDArray[Any] = column_or_1d(y, warn=True)
    if labels.dtype.kind == "O":
        for value in labels:
            if is_missing(value):
                raise ValueError(
                    f"y must be 1 for known outliers and 0 for unlabelled rows, found {value}: contains NaN"
                )
        # Numbers in a column of objects, as data frames with missing values have them, are numbers.
        if all(isinstance(value, Real | np.bool_) for value in labels):
            labels = labels.astype(np.float64)
    if labels.dtype.kind not in "biuf":
        words = [str(value).strip().lower() for value in labels.tolist()]
        odd = next((word for word in words if word not in OUTLIER | INLIER), None)
        if odd is not None:
            raise ValueError(
                f"y must be 1 for known outliers and 0 for unlabelled rows, or words such as yes and no, outlier and "
                f"inlier, found {odd[:40]!r}; pass (y == WORD).astype(int) with the word that marks outliers"
            )
        labels = np.array([float(word in OUTLIER) for word in words])
    if not np.isfinite(labels.astype(float)).all():
        raise ValueError("y must be finite, found NaN or infinity: input y contains NaN or infinity")
    if (labels == -1).any():
        raise ValueError(
            "y must be 1 for known outliers and 0 for unlabelled rows, found -1: scikit-learn's predictions use -1 for "
            "outliers and +1 for inliers, the opposite; pass (y == -1).astype(int) if that is what these are"
        )
    return labels


def as_images(X: Any) -> Any:
    """X as an array, which a memory map already is."""
    if isinstance(X, np.ndarray):
        return X
    try:
        return np.asarray(X)
    except (TypeError, ValueError, RuntimeError) as error:  # lists of different lengths, tensors that want a gradient
        raise ValueError(f"X must be an array of images of one shape, found {type(X).__name__}: {error}") from None


def check_images(X: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Finite images of shape (n, H, W), (n, C, H, W) or (n, H, W, C), all of them as in training."""
    if getattr(X, "dtype", np.dtype(object)).kind not in "biuf":
        raise ValueError(f"X must hold numbers, found dtype {getattr(X, 'dtype', None)}")
    if shape is not None and tuple(X.shape[1:]) != shape:
        raise ValueError(f"X must hold images of shape {shape} as in training, found {tuple(X.shape[1:])}")
    if len(X) == 0 or 0 in X.shape:
        raise ValueError(f"X must hold at least one image, found shape {tuple(X.shape)}")
    for start in range(0, len(X), 1024):
        if X.dtype.kind == "f" and not np.isfinite(X[start : start + 1024]).all():
            raise ValueError("X must not hold NaN or infinity, found some")
    return X


def require_values(X: Any) -> Any:
    """Rows, of which at least one has a value; a memory map is looked at no further than its first value."""
    rows = 4096
    if all(np.isnan(X[start : start + rows]).all() for start in range(0, len(X), rows)):
        raise ValueError("X must hold some value, found only missing ones: all are NaN; give rows that have some")
    return X


def check_weights(sample_weight: Any, X: Any) -> Array:
    """Non-negative weights with a positive and finite sum, ones by default.

    >>> check_weights([3e307, 1e308], np.zeros((2, 1))), check_weights([10, 30], np.zeros((2, 1)))
    (array([0.16688054, 0.55626846]), array([1., 3.]))
    """
    weights: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    largest = float(weights.max(initial=0.0))
    if not math.isfinite(largest):  # a single number is not looked at by scikit-learn
        raise ValueError(f"sample_weight must be finite, found {largest}")
    if not largest > 0:
        raise ValueError("sample_weight must have a positive sum, found only zeros")
    # Only ratios of weights count: ten times one row is no more evidence than one row.
    if largest <= MOST_COUNTED and are_counts(weights):
        return weights / float(np.gcd.reduce(weights.astype(np.int64)))
    # A power of two changes no digit of them, and leaves sums an exponent to grow into.
    exponent = math.frexp(largest)[1]
    return np.ldexp(weights, -exponent) if abs(exponent) > EXPONENT else weights


def hash_words(*arrays: Any) -> list[int]:
    """Return 128 bits of a hash of numbers, as four integers for the seed of a draw over them.

    A fixed seed alone draws the same places of every table, and in a sorted table these are the same ranks each time.
    With the numbers themselves in the seed, the draw is as good as new for each table, and the same for the same one.

    >>> hash_words(np.zeros((2, 1))) == hash_words(np.array([[0], [-0.0]])), len(hash_words(np.ones(1)))
    (True, 4)
    """
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        step = rows_at_once(array)
        for start in range(0, len(array), step):
            part = np.asarray(array[start : start + step], dtype=np.float64) + 0.0  # −0.0 is 0.0
            digest.update(np.where(np.isnan(part), np.nan, part).astype("<f8").tobytes())
            release(array)
    return [int(word) for word in np.frombuffer(digest.digest(), dtype="<u4")]


def are_counts(weights: Array) -> bool:
    """Whether weights say how often rows occur."""
    return bool((weights == np.floor(weights)).all()) and float(weights.sum()) <= MOST_COUNTED


def as_counts(weights: Array) -> Array:
    """Weights whose sum is the number of rows that they stand for: as they are if they are counts.

    >>> as_counts(np.array([3.0, 1.0])), as_counts(np.array([0.1, 0.1]))
    (array([3., 1.]), array([1., 1.]))
    """
    return weights if are_counts(weights) else effective_counts(weights)


def effective_counts(weights: Array) -> Array:
    """Weights whose sum is the number of rows of equal weight that give a mean the same variance (Kish).

    >>> effective_counts(np.array([20.0, 20.0, 20.0]))
    array([1., 1., 1.])
    """
    return np.asarray(weights * (weights.sum() / (weights**2).sum()))


def merge(
    X: Array, known: NDArray[np.bool_], weights: Array
) -> tuple[Array, NDArray[np.bool_], Array, NDArray[np.int64]]:
    """Rows of positive weight, equal ones merged, in lexicographic order; and where each of these rows is now.

    >>> merge(np.array([[2.0], [1.0], [2.0]]), np.zeros(3, bool), np.ones(3))[2]
    array([1., 2.])
    """
    there = weights > 0
    table = np.column_stack([known[there], X[there]]) + 0.0  # −0.0 is 0.0
    keys, place = np.unique(_ordered(table), axis=0, return_inverse=True)
    summed = np.bincount(place.ravel(), weights[there], minlength=len(keys)).astype(np.float64)
    rows = _flipped(keys).view(np.float64)
    return np.ascontiguousarray(rows[:, 1:]), rows[:, 0] > 0.5, summed, place.ravel()


def _ordered(values: Array) -> NDArray[np.int64]:
    """Integers in the order of the numbers, one for each of them; missing values are alike, and the last.

    The bits of a positive float, read as an integer, are in its order; those of a negative one in the opposite.
    """
    return _flipped(np.where(np.isnan(values), np.nan, values).view(np.int64))


def _flipped(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """All bits but the sign of negative numbers inverted, which is its own inverse."""
    return bits ^ ((bits >> 63) & np.iinfo(np.int64).max)


def in_parts(
    rows: Any, score: Callable[[Any], Array], *, jobs: int | None = None, progress: bool | None = False
) -> Array:
    """Scores of rows, so many at once as the memory holds.

    Args:
        rows: shape (n, …).
        score: from some of them to their scores, which must not depend on the others.
        jobs: threads, as joblib counts them.
        progress: show a bar; None for in a terminal.
    """
    step = rows_at_once(rows)
    starts = range(0, len(rows), step)
    work = (delayed(lambda start: score(rows[start : start + step]))(start) for start in starts)
    shown = make_progress(progress, main_process=True)
    found = []
    with shown.stage("scoring") as report:
        for part in Parallel(n_jobs=jobs, prefer="threads", return_as="generator")(work):
            found.append(part)
            if report is not None:
                report(len(found), len(starts))
    shown.close()
    return np.concatenate(found)


def rows_at_once(X: Any) -> int:
    """How many rows of a matrix or images are looked at together, so that wide ones do not fill the memory."""
    return max(1, min(BATCH, NUMBERS // max(1, math.prod(map(int, X.shape[1:])))))


def release(X: Any) -> None:
    """Let go of the pages of a read-only memory map; the next look reads them again. Other arrays are left alone.

    Pages of a map that is written to are not touched: what was written to a private one is nowhere else.
    """
    if not isinstance(X, np.memmap) or X.mode != "r" or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base: Any = X
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def take(X: Any, rows: slice | NDArray[np.int64]) -> Any:
    """``X[rows]``, in memory; of a memory map part by part.

    >>> take(np.array([[1.0], [2.0], [3.0]]), np.array([0, 2])).tolist()
    [[1.0], [3.0]]
    """
    if not isinstance(X, np.memmap) or isinstance(rows, slice):
        return X[rows]
    found = np.empty((len(rows), *X.shape[1:]), dtype=X.dtype)
    for start in range(0, len(rows), GATHERED):
        found[start : start + GATHERED] = X[rows[start : start + GATHERED]]
        release(X)
    return found
