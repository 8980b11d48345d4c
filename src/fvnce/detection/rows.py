"""Training rows as a measure: labels checked, duplicates merged, order forgotten.

Rows that are equal, label included, become one row with the sum of their weights, in lexicographic order. So a weight
of 2 is the same as two rows to the last bit, a weight of 0 the same as no row, and the order of rows does not matter.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight, column_or_1d

Array = NDArray[np.float64]


def check_labels(y: Any, n: int) -> NDArray[np.bool_]:
    """Which rows are known outliers.

    >>> check_labels([0, 1, 0], 3)
    array([False,  True, False])
    """
    if y is None:
        return np.zeros(n, dtype=bool)
    labels = column_or_1d(y, warn=True)
    if len(labels) != n:
        raise ValueError(f"y must hold one label for each of the {n} rows, found {len(labels)}")
    if labels.dtype.kind not in "biuf":
        if labels.dtype.kind == "O" and any(value is None for value in labels):
            raise ValueError("y must be 1 for known outliers and 0 for unlabelled rows, found None")
        warnings.warn(
            "y must be 1 for known outliers and 0 for unlabelled rows, found text: no row counts as a known outlier",
            stacklevel=3,
        )
        return np.zeros(n, dtype=bool)
    if not np.isfinite(labels.astype(float)).all():
        raise ValueError("y must be finite, found NaN or infinity: input y contains NaN or infinity")
    if (labels == -1).any():
        raise ValueError(
            "y must be 1 for known outliers and 0 for unlabelled rows, found -1: scikit-learn's predictions use -1 for "
            "outliers and +1 for inliers, the opposite; pass (y == -1).astype(int) if that is what these are"
        )
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
    return known


def check_weights(sample_weight: Any, X: Any) -> Array:
    """Non-negative weights with a positive sum, ones by default."""
    weights: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.sum() > 0:
        raise ValueError("sample_weight must have a positive sum, found only zeros")
    return weights


def merge(X: Array, known: NDArray[np.bool_], weights: Array) -> tuple[Array, NDArray[np.bool_], Array]:
    """Rows of positive weight, equal ones merged, in lexicographic order.

    >>> merge(np.array([[2.0], [1.0], [2.0]]), np.zeros(3, bool), np.ones(3))[2]
    array([1., 2.])
    """
    there = weights > 0
    table = np.column_stack([known[there], X[there]]) + 0.0  # −0.0 is 0.0
    # A missing value equals another for this purpose; the largest float stands for it, and infinity is refused earlier.
    table = np.where(np.isnan(table), np.finfo(float).max, table)
    rows, place = np.unique(table, axis=0, return_inverse=True)
    summed = np.bincount(place.ravel(), weights[there], minlength=len(rows)).astype(np.float64)
    rows = np.where(rows == np.finfo(float).max, np.nan, rows)
    return np.ascontiguousarray(rows[:, 1:]), rows[:, 0] > 0.5, summed
