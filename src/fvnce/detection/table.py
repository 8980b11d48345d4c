r"""Real tables as matrices: categories, dates, missing values, heavy tails, constant columns.

A number is centred at the median and divided by the standard deviation of its column after 1 % at each end have been
pulled in, which neither a few huge values nor a column that is mostly one value can break; then cut at ±10. A category
becomes one 0/1 column for each of its values, up to 32 of them, the rest together. A date becomes its month,
weekday and hour, as far as training rows span two years, weeks or days. The time that has passed is not told: rows to
come are later than all of training, where a model knows nothing of it. A missing number is the median beside a 0/1
column that says so, a missing category a value of its own. A column that is the same in every row says nothing and
becomes none.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .frame import Frame
from .reading import Reading, identifier_in, learn_reading, with_codes

Array = NDArray[np.float64]
#: How each column of a data frame is read.
Readings = list[Reading]

#: Numbers are cut at so many deviations for models, and at so many for the range they lie in.
LIMIT, FARTHEST = 10.0, 1e6
CATEGORIES = 32
#: The smallest number above zero: a deviation below it would be one to divide by.
SMALLEST = 5e-324
#: What is told of a date, and the days after which it comes again. A cycle that was not seen twice cannot be told from
#: the passing of time: of half a year, the next month would be strange for its number.
TIMES = ("month", "weekday", "hour")
CYCLES = (365.25, 7.0, 1.0)


@dataclass(frozen=True)
class Column:
    """How one column is encoded.

    Attributes:
        centre: median.
        scale: robust deviation, 1 for a constant column.
        missing: whether missing numbers get a column of their own.
        categories: values with a column each, or None for a number.
        times: for dates, the part of :data:`TIMES`, centre and scale of each part that varies; None for other columns.
        unused: whether it is left out, being the same in every row, an identifier, or dates without a cycle seen twice.
    """

    centre: float = 0.0
    scale: float = 1.0
    missing: bool = False
    categories: list[int] | None = None
    times: list[tuple[int, float, float]] | None = None
    unused: bool = False

    @property
    def empty(self) -> bool:
        """Whether no training row had a value in it."""
        return self.unused and (self.missing or self.categories == [])

    @property
    def width(self) -> int:
        """Columns that it becomes."""
        if self.unused:
            return 0
        if self.categories is not None:
            return len(self.categories) + 1
        return (1 if self.times is None else len(self.times)) + self.missing


def learn_readings(frame: Frame) -> Readings:
    """How each column of a data frame is to be read; identifiers are left out, and said so."""
    found: Readings = []
    for name in frame.columns:
        values = frame[name]
        reading = frame.readings.get(name)
        if reading is not None:
            found.append(with_codes(reading, values.tolist()) if reading.kind == "text" else reading)
            continue
        kind = values.dtype.kind
        if kind == "O":
            reading = _learn_objects(name, values)
        else:
            reading = Reading({"M": "time", "m": "duration", "b": "truth"}.get(kind, "number"))
        why = identifier_in(name, values) if reading.kind == "text" or kind in "iu" else None
        if why is not None:
            warnings.warn(
                f"column {name!r} {why} and is left out; to keep it, make it a column of floats or, if it is text, of "
                "fewer different texts",
                stacklevel=4,
            )
            reading = replace(reading, ignored=True)
        found.append(reading)
    if all(reading.ignored for reading in found):
        raise ValueError(
            f"X must hold a column that is no identifier, found only {', '.join(map(str, frame.columns[:5]))}; "
            "make those to keep columns of floats"
        )
    return found


def _learn_objects(name: Any, values: NDArray[Any]) -> Reading:
    texts = as_texts(values)
    reading, odd = learn_reading(texts)
    if odd is not None:
        row = next(row for row, text in enumerate(texts) if text is not None and text.strip() == odd)
        raise ValueError(
            f"column {name!r} must hold one kind of values, found {reading.told} and {odd[:40]!r} in row {row}; "
            "correct it, or leave it missing"
        )
    return with_codes(reading, texts) if reading.kind == "text" else reading


def as_texts(values: NDArray[Any]) -> list[str | None]:
    """Values of any kind as text, whole numbers without a point."""
    kind = values.dtype.kind
    if kind == "f":
        return [None if value != value else f"{value:.15g}" for value in values.tolist()]
    return [None if value is None else value if type(value) is str else str(value) for value in values.tolist()]


def frame_to_matrix(frame: Frame, readings: Readings) -> Array:
    """Numbers as they are, NaN for missing; categories as their codes, −1 for missing and −2 for those never seen."""
    result = np.empty((len(frame), len(readings)))
    for position, (name, reading) in enumerate(zip(frame.columns, readings, strict=True)):
        result[:, position] = 0.0 if reading.ignored else _numbers(name, frame[name], reading)
    if np.isinf(result).any():
        row, position = np.argwhere(np.isinf(result))[0]
        raise ValueError(f"X must not hold infinity, found it in row {row} of column {frame.columns[position]!r}")
    return result


def _numbers(name: Any, values: NDArray[Any], reading: Reading) -> Array:
    kind = values.dtype.kind
    if reading.kind == "text":
        numbers, _ = reading.numbers(as_texts(values))
        return np.where(np.isnan(numbers), -1.0, numbers)
    fits = {"time": "M", "duration": "m"}.get(reading.kind, "biuf")
    if kind in fits or (kind == "f" and name is not None and np.isnan(values).all()):
        if kind in "mM":
            unit = "datetime64[us]" if kind == "M" else "timedelta64[ns]"
            seconds = values.astype(unit).astype(np.int64) / (1e6 if kind == "M" else 1e9)
            return np.where(np.isnat(values), np.nan, seconds)
        return np.asarray(values, dtype=np.float64)
    if kind == "O":
        texts = as_texts(values)
        numbers, bad = reading.numbers(texts)
        if bad is None:
            return numbers
        raise ValueError(
            f"column {name!r} must hold {reading.told} as in training, found {str(texts[bad])[:40]!r} in row {bad}; "
            "correct it, or leave it missing"
        )
    raise ValueError(f"column {name!r} must hold {reading.told} as in training, found {values.dtype}")


def require_values(X: Any) -> Any:
    """Rows, of which at least one has a value; a memory map is looked at no further than its first value."""
    rows = 4096
    if all(np.isnan(X[start : start + rows]).all() for start in range(0, len(X), rows)):
        raise ValueError("X must hold some value, found only missing ones: all are NaN; give rows that have some")
    return X


def learn_columns(X: Array, weights: Array, readings: Sequence[Reading], outliers: Array | None = None) -> list[Column]:
    """The encoding of each column, from weighted rows.

    Args:
        X: rows, their texts as codes.
        weights: of the rows.
        readings: what each column holds.
        outliers: known outliers: a column that is the same in all rows but not in them says much.
    """
    columns = [_learn_column(values, weights, reading) for values, reading in zip(X.T, readings, strict=True)]
    if outliers is not None and len(outliers):
        same = [not len(X) or _is_one(np.concatenate([X[:, i], outliers[:, i]])) for i in range(X.shape[1])]
        columns = [
            replace(column, unused=column.unused and (one or reading.ignored))
            for column, one, reading in zip(columns, same, readings, strict=True)
        ]
    if not sum(column.width for column in columns):  # there must be something to look at
        columns = [
            replace(c, unused=r.ignored, times=c.times or ([(0, 0.0, 1.0)] if c.times is not None else None))
            for c, r in zip(columns, readings, strict=True)
        ]
    return columns


def _is_one(values: Array) -> bool:
    return bool((values == values[0]).all() or np.isnan(values).all())


def _learn_column(values: Array, weights: Array, reading: Reading) -> Column:
    if reading.kind == "text":
        codes, place = np.unique(values[values >= 0].astype(int), return_inverse=True)
        mass = np.bincount(place, weights[values >= 0], minlength=len(codes))
        kept = codes[np.argsort(-mass, kind="stable")[:CATEGORIES]]
        return Column(categories=sorted(int(code) for code in kept), unused=reading.ignored or _is_one(values))
    there = ~np.isnan(values)
    times: list[tuple[int, float, float]] | None = [] if reading.kind == "time" else None
    if not there.any():
        return Column(missing=True, times=times, unused=True)
    gone = bool((~there).any())
    values, weights = values[there], weights[there]
    if times is None:
        centre, scale, constant = _robust(values, weights)
        return Column(centre, scale, gone, unused=reading.ignored or (constant and not gone))
    span = float(values.max() - values.min())
    for part, numbers in enumerate(_time_parts(values)):
        centre, scale, constant = _robust(numbers, weights)
        seen = span >= 2 * CYCLES[part] * 86400
        times += [(part, centre, scale)] if seen and not constant else []
    return Column(missing=gone, times=times, unused=reading.ignored or not (times or gone))


def _time_parts(seconds: Array) -> tuple[Array, ...]:
    """What is told of dates: month, weekday from Monday, hour."""
    days = np.floor(seconds / 86400)
    with np.errstate(invalid="ignore"):
        month = (days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1).astype(float)
    return month, (days + 3) % 7, (seconds - 86400 * days) / 3600


def encode(X: Array, columns: list[Column]) -> Array:
    """The matrix that members see once it is :func:`cut`, float64, shape (n, sum of widths)."""
    if all(c.categories is None and c.times is None and not (c.missing or c.unused) for c in columns):
        centre = np.array([column.centre for column in columns])
        scale = np.array([column.scale for column in columns])
        return _scaled(np.where(np.isnan(X), centre, X), centre, scale)
    parts = [np.empty((len(X), 0))]
    for values, column in zip(X.T, columns, strict=True):
        if column.unused:
            continue
        if column.categories is not None:
            hits = values[:, None] == np.array(column.categories, dtype=float)[None, :]
            parts.append(np.concatenate([hits, ~hits.any(1, keepdims=True)], 1).astype(float))
            continue
        gone = np.isnan(values)
        if column.times is None:
            parts.append(_scaled(np.where(gone, column.centre, values), column.centre, column.scale)[:, None])
        else:
            told = _time_parts(np.where(gone, 0.0, values))
            for part, middle, unit in column.times:
                parts.append(_scaled(np.where(gone, middle, told[part]), middle, unit)[:, None])
        if column.missing:
            parts.append(gone[:, None].astype(float))
    return np.concatenate(parts, 1)


def cut(encoded: Array) -> Array:
    """An encoded matrix as models see it: one number far away must not be all that there is to see."""
    return np.clip(encoded, -LIMIT, LIMIT)


def count_odd(X: Array, columns: list[Column]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each column, how many values there are, and how many of them are unlike any of training.

    Such are texts never seen, numbers more than 10 deviations from the median, and anything but the one value of a
    column that was the same in every row. A date is never unlike: rows to come are later.
    """
    there = np.zeros(len(columns), dtype=np.int64)
    odd = np.zeros(len(columns), dtype=np.int64)
    for i, (values, column) in enumerate(zip(X.T, columns, strict=True)):
        if column.categories is not None:
            present = values != -1
            strange = values == -2
        else:
            present = ~np.isnan(values)
            with np.errstate(over="ignore", invalid="ignore"):
                far = np.abs(values / column.scale - column.centre / column.scale)
            strange = np.zeros(len(values), bool) if column.times is not None else far > (0 if column.unused else LIMIT)
        there[i], odd[i] = int(present.sum()), int((strange & present).sum())
    return there, odd


def _scaled(values: Array, centre: Array | float, scale: Array | float) -> Array:
    """(values − centre)/scale, cut at ±FARTHEST; what lies too far away for a float is cut as well."""
    with np.errstate(over="ignore"):
        return np.asarray(np.clip(values / scale - centre / scale, -FARTHEST, FARTHEST))


def gather(values: Array, columns: list[Column]) -> Array:
    """Sums of what belongs to one original column, shape (n, original columns)."""
    widths = np.array([column.width for column in columns])
    result = np.zeros((len(values), len(columns)))
    starts = np.cumsum(widths) - widths
    # Without the columns that became none, for which reduceat would give their neighbour's.
    result[:, widths > 0] = np.add.reduceat(values, starts[widths > 0], axis=1)
    return result


def _robust(values: Array, weights: Array) -> tuple[float, float, bool]:
    """Centre and scale, and whether all values are one."""
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
            return quantile(0.5), max(scale * unit, SMALLEST), False
    return quantile(0.5), 1.0, True
