r"""Real tables as matrices: categories, missing values, heavy tails, constant columns.

A number is centred at the median and divided by the standard deviation of its column after 1 % at each end have been
pulled in, which neither a few huge values nor a column that is mostly one value can break; then cut at ±10. A category
becomes one 0/1 column for each of its values, up to 32 of them, the rest together. In a data frame a missing number is
the median beside a 0/1 column that says so, a missing category a value of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: For each column of a data frame, the code of each category, or None for numbers.
Categories = list[dict[str, int] | None]

LIMIT = 10.0
CATEGORIES = 32
#: The smallest number above zero: a deviation below it would be one to divide by.
SMALLEST = 5e-324


@dataclass(frozen=True)
class Column:
    """How one column is encoded.

    Attributes:
        centre: median.
        scale: robust deviation, 1 for a constant column.
        missing: whether missing numbers get a column of their own.
        categories: values with a column each, or None for a number.
    """

    centre: float = 0.0
    scale: float = 1.0
    missing: bool = False
    categories: list[int] | None = None

    @property
    def width(self) -> int:
        """Columns that it becomes."""
        return 1 + self.missing if self.categories is None else len(self.categories) + 1


def is_frame(X: Any) -> bool:
    """Whether X is a data frame."""
    return hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "iloc")


def check_frame(X: Any) -> None:
    """At least one row and one column, and no name twice: a column that is named is one."""
    names = list(X.columns)
    if len(names) == 0:
        raise ValueError("X must hold at least one column, found 0 feature(s)")
    if len(X) == 0:
        raise ValueError("X must hold at least one row, found 0 sample(s)")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if len(set(names)) < len(names):  # None is a name too
        raise ValueError(f"X must have a name of its own for each column, found {twice!r} more than once; rename one")


def check_no_times(X: Any) -> None:
    """No dates and durations, where numbers are wanted."""
    for name, dtype in zip(X.columns, X.dtypes, strict=True):
        if getattr(dtype, "kind", "O") in "mM":
            raise ValueError(f"column {name!r} must hold numbers as in training, found {dtype}")


def learn_names(X: Any) -> Categories:
    """For each column of a data frame, the code of each category, or None for numbers."""
    found: Categories = []
    for position, dtype in enumerate(X.dtypes):
        if _is_number(dtype):
            found.append(None)
        else:
            texts = sorted({str(value) for value in X.iloc[:, position] if not is_missing(value)})
            found.append({text: code for code, text in enumerate(texts)})
    return found


def frame_to_matrix(X: Any, names: Categories) -> Array:
    """Numbers as they are with NaN for missing, categories as their codes with −1 for those never seen or missing."""
    result = np.empty((len(X), len(names)))
    for position, codes in enumerate(names):
        column = X.iloc[:, position]
        if codes is not None:
            result[:, position] = [-1 if is_missing(v) else codes.get(str(v), -1) for v in column]
            continue
        if not _is_number(X.dtypes.iloc[position]):
            raise ValueError(
                f"column {X.columns[position]!r} must hold numbers as in training, found {X.dtypes.iloc[position]}"
            )
        result[:, position] = [np.nan if is_missing(v) else float(v) for v in column]
    if np.isinf(result).any():
        row, position = np.argwhere(np.isinf(result))[0]
        raise ValueError(f"X must not hold infinity, found it in row {row} of column {X.columns[position]!r}")
    return result


def learn_columns(X: Array, weights: Array, categorical: list[bool]) -> list[Column]:
    """The encoding of each column, from weighted rows."""
    columns = []
    for values, is_category in zip(X.T, categorical, strict=True):
        if is_category:
            codes, place = np.unique(values[values >= 0].astype(int), return_inverse=True)
            mass = np.bincount(place, weights[values >= 0], minlength=len(codes))
            kept = codes[np.argsort(-mass, kind="stable")[:CATEGORIES]]
            columns.append(Column(categories=sorted(int(code) for code in kept)))
            continue
        there = ~np.isnan(values)
        if not there.any():
            columns.append(Column(missing=True))
            continue
        centre, scale = _robust(values[there], weights[there])
        columns.append(Column(centre, scale, bool((~there).any())))
    return columns


def encode(X: Array, columns: list[Column]) -> Array:
    """The matrix that members see, float64, shape (n, sum of widths)."""
    if all(column.categories is None and not column.missing for column in columns):
        centre = np.array([column.centre for column in columns])
        scale = np.array([column.scale for column in columns])
        return _scaled(np.where(np.isnan(X), centre, X), centre, scale)
    parts = []
    for values, column in zip(X.T, columns, strict=True):
        if column.categories is not None:
            hits = values[:, None] == np.array(column.categories, dtype=float)[None, :]
            parts.append(np.concatenate([hits, ~hits.any(1, keepdims=True)], 1).astype(float))
            continue
        gone = np.isnan(values)
        parts.append(_scaled(np.where(gone, column.centre, values), column.centre, column.scale)[:, None])
        if column.missing:
            parts.append(gone[:, None].astype(float))
    return np.concatenate(parts, 1)


def _scaled(values: Array, centre: Array | float, scale: Array | float) -> Array:
    """(values − centre)/scale, cut at ±LIMIT; what lies too far away for a float is cut as well."""
    with np.errstate(over="ignore"):
        return np.asarray(np.clip(values / scale - centre / scale, -LIMIT, LIMIT))


def gather(values: Array, columns: list[Column]) -> Array:
    """Sums of what belongs to one original column, shape (n, original columns)."""
    starts = np.cumsum([0, *[column.width for column in columns[:-1]]])
    return np.asarray(np.add.reduceat(values, starts, axis=1))


def _robust(values: Array, weights: Array) -> tuple[float, float]:
    order = np.argsort(values, kind="stable")
    v, share = values[order], np.cumsum(weights[order]) / weights.sum()

    def quantile(level: float) -> float:
        return float(v[min(len(v) - 1, int(np.searchsorted(share, level - 1e-12)))])

    for low, high in ((quantile(0.01), quantile(0.99)), (float(v[0]), float(v[-1]))):
        # Squares of huge or tiny numbers have no exponent left. The unit is that of what the pulling leaves, since one
        # huge value would leave the others none.
        unit = max(abs(low), abs(high)) or 1.0
        with np.errstate(over="ignore"):  # numpy 1.26 warns of places in its registers that hold no value at all
            pulled = np.clip(v, low, high) / unit
        mean = np.average(pulled, weights=weights[order])
        scale = float(np.sqrt(np.average((pulled - mean) ** 2, weights=weights[order])))
        # A deviation that is rounding noise beside the values themselves is that of a constant column.
        if scale > 1e-10:
            return quantile(0.5), max(scale * unit, SMALLEST)
    return quantile(0.5), 1.0


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "iuf"


def is_missing(value: Any) -> bool:
    """Whether a value of a data frame stands for none: None, NaN, or one of pandas' own.

    >>> [is_missing(value) for value in (None, np.nan, 0.0, "")]
    [True, True, False, False]
    """
    # By name first: pandas.NA compared with anything, itself included, is neither true nor false.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | complex | Decimal | np.inexact | np.datetime64 | np.timedelta64) and bool(
        value != value
    )
