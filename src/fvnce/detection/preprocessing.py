r"""Encoding of tables and images as numeric columns for models, and the inverse mapping of contributions.

Images are scaled to [0, 1] by the range of the training set, padded to multiples of 4, and flattened.

In a table, numbers are centered at the median and divided by the standard deviation of their column after winsorizing 1
% at each end, which is robust to a few huge values and to columns with a dominant value; models see them clipped at
±10. A category becomes a 0/1 column for each of its values, up to 32, and one for all others. A date becomes its month,
weekday and hour, if training rows span two years, weeks or days respectively; the date itself is not used, since new
rows are later than all training rows. A missing number becomes the median and a 0/1 indicator column, a missing
category is a separate value; :mod:`fvnce.detection.gaps` corrects scores for missing values. Constant columns are not
used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from .._validation import Check, count, fields, flag, listed, number, optional, require
from ..tables.arrays import channels_last
from ..tables.parsing import ColumnType
from ..tables.schema import ColumnTypes
from .rows import Array, parts_of, weighted_quantiles

#: Limits in deviations at which numbers are clipped for models, and for their range.
MAX_DEVIATIONS, MAX_RANGE = 10.0, 1e6
#: Largest number of values of a category that get a column each.
MAX_CATEGORIES = 32
#: Parts of a date: month, weekday, hour, and their periods in days. A part is used only if training spans its period
#: twice: after half a year of training, the next month would look new.
CYCLES = (365.25, 7.0, 1.0)

_positive = partial(number, low=0.0, open_low=True)


@dataclass(frozen=True)
class ColumnEncoding:
    """Encoding of one column of a table.

    Attributes:
        center: median.
        scale: robust deviation, 1 for a constant column.
        missing: whether missing numbers are marked by an indicator column.
        categories: values with a column each, or None for a number.
        times: for dates, the number in :data:`CYCLES`, center and scale of each part that varies; None otherwise.
        unused: whether the column is left out: constant, an identifier, or dates without a cycle seen twice.
    """

    center: float = 0.0
    scale: float = 1.0
    missing: bool = False
    categories: list[int] | None = None
    times: list[tuple[int, float, float]] | None = None
    unused: bool = False

    @property
    def empty(self) -> bool:
        """Whether no training row had a value in this column."""
        return self.unused and (self.missing or self.categories == [])

    @property
    def width(self) -> int:
        """Number of encoded columns of this column."""
        if self.unused:
            return 0
        if self.categories is not None:
            return len(self.categories) + 1
        return (1 if self.times is None else len(self.times)) + self.missing

    @classmethod
    def learn(cls, values: Array, weights: Array, reading: ColumnType) -> Self:
        """Learn the encoding of a column from weighted rows; texts are given by their codes."""
        if reading.kind == "text":
            codes, place = np.unique(values[values >= 0].astype(int), return_inverse=True)
            mass = np.bincount(place, weights[values >= 0], minlength=len(codes))
            kept = codes[np.argsort(-mass, kind="stable")[:MAX_CATEGORIES]]
            return cls(categories=sorted(int(code) for code in kept), unused=reading.ignored or _is_constant(values))
        present = ~np.isnan(values)
        times: list[tuple[int, float, float]] | None = [] if reading.kind == "time" else None
        if not present.any():
            return cls(missing=True, times=times, unused=True)
        missing = not present.all()
        values, weights = values[present], weights[present]
        if times is None:
            center, scale, constant = _robust(values, weights)
            return cls(center, scale, missing, unused=reading.ignored or (constant and not missing))
        span = float(values.max() - values.min())
        for part, (numbers, days) in enumerate(zip(time_parts(values), CYCLES, strict=True)):
            center, scale, constant = _robust(numbers, weights)
            if span >= 2 * days * 86400 and not constant:
                times.append((part, center, scale))
        return cls(missing=missing, times=times, unused=reading.ignored or not (times or missing))

    def encode(self, values: Array) -> list[Array]:
        """Encode the values of one column as one or more columns."""
        if self.unused:
            return []
        if self.categories is not None:
            hits = values[:, None] == np.array(self.categories, dtype=float)[None, :]
            return [*hits.T.astype(float), (~hits.any(1)).astype(float)]
        gone = np.isnan(values)
        if self.times is None:
            columns = [_scaled(np.where(gone, self.center, values), self.center, self.scale)]
        else:
            parts = time_parts(np.where(gone, 0.0, values))
            columns = [_scaled(np.where(gone, c, parts[part]), c, scale) for part, c, scale in self.times]
        return [*columns, gone.astype(float)] if self.missing else columns

    def state(self) -> dict[str, Any]:
        """Return the state as JSON content."""
        entries = asdict(self)
        return {"centre": entries.pop("center"), **entries}

    @classmethod
    def from_state(cls, content: Any, reading: ColumnType) -> Self:
        """Restore the encoding from a state, which is checked, for a column of this type."""
        made = cls(*fields(content, "a column", **_COLUMN_CHECKS))
        require((made.categories is not None) == (reading.kind == "text"), "have categories for texts", made.categories)
        require((made.times is not None) == (reading.kind == "time"), "have parts for dates", made.times)
        for center, scale in ((made.center, made.scale), *((center, scale) for _, center, scale in made.times or [])):
            require(math.isfinite(center / scale), "have scales that suit the centers of columns", scale)
        for values in (made.categories or [], [part for part, _, _ in made.times or []]):
            require(len(set(values)) == len(values), "have each category or part of a date once", values)
        require((made.times or []) == sorted(made.times or []), "have parts of dates in their order", made.times)
        return made


def _time_part(name: str, value: Any) -> tuple[int, float, float]:
    part, center, scale = listed(number, 3)(name, value)
    require(part in range(len(CYCLES)), "have known parts of dates", part)
    return int(part), center, _positive(name, scale)


#: Entries of a column in a file, in the spelling of version 0.2.
_COLUMN_CHECKS: dict[str, Check] = {
    "centre": number,
    "scale": _positive,
    "missing": flag,
    "categories": optional(listed(partial(count, low=0))),
    "times": optional(listed(_time_part)),
    "unused": flag,
}


@dataclass(frozen=True)
class TablePreprocessor:
    """Encoding of a table as numeric columns.

    Attributes:
        columns: encoding of each column.
        readings: types of the columns of a data frame; None for a matrix.
    """

    #: Its columns are not pixels.
    image: ClassVar[None] = None

    columns: list[ColumnEncoding]
    readings: ColumnTypes | None

    @classmethod
    def learn(cls, X: Array, weights: Array, readings: ColumnTypes | None, outliers: Array | None = None) -> Self:
        """Learn the encoding from weighted unlabeled rows; known outliers only affect which columns are constant."""
        read, columns = readings or [ColumnType()] * X.shape[1], []
        known = X[:0] if outliers is None else outliers
        for values, of_known, how in zip(X.T, known.T, read, strict=True):
            column = ColumnEncoding.learn(values, weights, how)
            if len(known):  # a column in which only known outliers differ or have gaps is informative
                unused = not len(X) or _is_constant(np.concatenate([values, of_known])) or how.ignored
                missing = column.categories is None and bool(np.isnan(of_known).any())
                column = replace(column, unused=column.unused and unused, missing=column.missing or missing)
            columns.append(column)
        if not any(column.width for column in columns):  # models need at least one column
            for i, how in enumerate(read):
                times = [(0, 0.0, 1.0)] if columns[i].times == [] else columns[i].times
                columns[i] = replace(columns[i], unused=how.ignored, times=times)
        return cls(columns, readings)

    @property
    def width(self) -> int:
        """Number of encoded columns that models see."""
        return sum(column.width for column in self.columns)

    def encode(self, rows: Any) -> Array:
        """Encode a matrix with codes for texts; members see the result after :func:`cut`."""
        X, columns = np.asarray(rows, dtype=np.float64), self.columns
        if all(c.categories is None and c.times is None and not (c.missing or c.unused) for c in columns):
            centers, scales = (np.array([getattr(column, name) for column in columns]) for name in ("center", "scale"))
            return _scaled(np.where(np.isnan(X), centers, X), centers, scales)
        encoded = [part for values, column in zip(X.T, columns, strict=True) for part in column.encode(values)]
        return np.stack(encoded, 1) if encoded else np.empty((len(X), 0))

    @property
    def used(self) -> NDArray[np.bool_]:
        """Mask of the original columns that models see, shape (original columns,)."""
        return np.array([not column.unused for column in self.columns])

    def gaps(self, rows: Any) -> NDArray[np.bool_]:
        """Return a mask of the missing values in used columns, shape (n, original columns)."""
        X = np.asarray(rows, dtype=np.float64)
        gone: NDArray[np.bool_] = (np.isnan(X) | (self._texts & (X == -1))) & self.used
        return gone

    @property
    def _texts(self) -> NDArray[np.bool_]:
        return np.array([column.categories is not None for column in self.columns])

    def remove(self, rows: Array, places: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Set masked values of a matrix to missing, in place."""
        rows[places, columns] = np.where(self._texts[columns], -1.0, np.nan)

    def filled(self, encoded: Array, gone: NDArray[np.bool_]) -> Array:
        """Return encoded rows with chosen values imputed; indicator columns of gaps are unchanged.

        Args:
            encoded: rows, shape (n, width).
            gone: mask of the values to impute, shape (n, original columns).
        """
        used = [column for column in self.columns if not column.unused]
        values = [float(c.categories is not None and i == c.width - 1) for c in used for i in range(c.width)]
        marks = [c.missing and c.categories is None and i == c.width - 1 for c in used for i in range(c.width)]
        widths = [column.width for column in self.columns]
        return np.where(np.repeat(gone, widths, axis=1) & ~np.array(marks), values, encoded)

    def fold(self, values: Array) -> Array:
        """Sum the encoded columns of each original column, shape (n, original columns)."""
        widths = np.array([column.width for column in self.columns])
        result = np.zeros((len(values), len(widths)))
        starts = np.cumsum(widths) - widths
        # Skip columns without encoded columns, for which reduceat would return the next value.
        result[:, widths > 0] = np.add.reduceat(values, starts[widths > 0], axis=1)
        return result

    def count_odd(self, rows: Any) -> NDArray[np.int64]:
        """Count the values of each column, and those unlike all values in training, shape (2, original columns).

        These are unseen texts, numbers more than 10 deviations from the median, and other values in columns that were
        constant in training. Dates do not count, since new rows are later.
        """
        X, counts = np.asarray(rows, dtype=np.float64), np.zeros((2, len(self.columns)), dtype=np.int64)
        for i, (values, column) in enumerate(zip(X.T, self.columns, strict=True)):
            present, odd = ~np.isnan(values), np.zeros(len(values), bool)
            if column.categories is not None:
                present, odd = values != -1, values == -2
            elif column.times is None:
                with np.errstate(over="ignore", invalid="ignore"):
                    away = np.abs(values / column.scale - column.center / column.scale)
                odd = away > (0 if column.unused else MAX_DEVIATIONS)
            counts[:, i] = present.sum(), (odd & present).sum()
        return counts

    def state(self) -> dict[str, Any]:
        """Return the state as JSON content."""
        readings = None if self.readings is None else [asdict(how) for how in self.readings]
        return {"kind": "table", "columns": [column.state() for column in self.columns], "readings": readings}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], features: int) -> Self:
        """Restore the preprocessor of tables with ``features`` columns from a state, which is checked."""
        _, saved, readings = fields(content, "a table", "kind", "columns", "readings")
        for each in (saved, [None] * features if readings is None else readings):
            require(isinstance(each, list) and len(each) == features, f"have {features} columns", type(each).__name__)
        readings = None if readings is None else [ColumnType.from_state(item) for item in readings]
        columns = list(map(ColumnEncoding.from_state, saved, readings or [ColumnType()] * features))
        require(any(column.width for column in columns), "have a column that is used", "none")
        return cls(columns, readings)


@dataclass(frozen=True)
class ImagePreprocessor:
    """Encoding of images as rows of numbers.

    Attributes:
        shape: of one image as given, (H, W), (C, H, W) or (H, W, C).
        low: smallest value in training.
        high: largest value in training.
    """

    #: They have no texts.
    readings: ClassVar[None] = None

    shape: tuple[int, ...]
    low: float
    high: float

    @classmethod
    def learn(cls, images: Any) -> Self:
        """Learn shape and range of training images, which may be a memory map."""
        low, high = zip(*((float(part.min()), float(part.max())) for part in parts_of(images)), strict=True)
        return cls(tuple(int(side) for side in images.shape[1:]), min(low), max(high))

    @property
    def image(self) -> tuple[int, int, int]:
        """Shape of the padded image: (channels, height, width)."""
        channels, height, width = self._planes
        return channels, -(-height // 4) * 4, -(-width // 4) * 4

    @property
    def _planes(self) -> tuple[int, int, int]:
        """Shape of a given image, for either order of channels: (channels, height, width)."""
        *channels, height, width = (self.shape[2], *self.shape[:2]) if channels_last(self.shape) else self.shape
        return channels[0] if channels else 1, height, width

    @property
    def width(self) -> int:
        """Number of pixels of the padded image, in all channels."""
        return math.prod(self.image)

    def encode(self, rows: Any) -> Array:
        """Encode images of shape (n, …) as rows of floats."""
        # Halve all values if the range overflows a float; half the difference of two floats never overflows.
        unit = 1.0 if math.isfinite(self.high - self.low) else 0.5
        spread = unit * self.high - unit * self.low or 1.0
        with np.errstate(over="ignore"):
            scaled = (unit * np.asarray(rows, dtype=np.float64) - unit * self.low) / spread
        scaled = np.moveaxis(scaled, -1, 1) if channels_last(self.shape) else scaled
        scaled = np.clip(scaled, -1.0, 2.0).reshape(len(rows), *self._planes)
        _, height, width = self.image
        padding = ((0, 0), (0, 0), (0, height - scaled.shape[-2]), (0, width - scaled.shape[-1]))
        return np.ascontiguousarray(np.pad(scaled, padding).reshape(len(rows), -1))

    def gaps(self, rows: Any) -> NDArray[np.bool_]:
        """Return an empty mask, since no pixel is missing, shape (n, 0)."""
        return np.zeros((len(rows), 0), dtype=bool)

    def count_odd(self, rows: Any) -> NDArray[np.int64]:
        """Return empty counts, since pixels are no columns, shape (2, 0)."""
        return np.zeros((2, 0), dtype=np.int64)

    def fold(self, values: Array) -> Array:
        """Reshape rows of shape (n, padded) to images, without the padding."""
        _, height, width = self._planes
        images = values.reshape(len(values), *self.image)[:, :, :height, :width]
        return np.moveaxis(images, 1, -1) if channels_last(self.shape) else images.reshape(len(values), *self.shape)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON content."""
        return {"kind": "images", "shape": list(self.shape), "low": self.low, "high": self.high}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], features: int) -> Self:
        """Restore the preprocessor of images with ``features`` pixels from a state, which is checked."""
        _, shape, low, high = fields(content, "images", "kind", shape=listed(count), low=number, high=number)
        require(len(shape) in (2, 3), "have images of shape (H, W), (C, H, W) or (H, W, C)", shape)
        require(math.prod(shape) == features, f"have images of {features} pixels", shape)
        require(low <= high, "have images of a range", [low, high])
        return cls(tuple(shape), low, high)


#: Encoding of tables or images.
Preprocessor = TablePreprocessor | ImagePreprocessor


def learn_preprocessor(rows: Any, weights: Array, readings: ColumnTypes | None, outliers: Any = None) -> Preprocessor:
    """Learn the encoding of unlabeled rows and known outliers: images, or a table with codes for texts."""
    if rows.ndim > 2:
        return ImagePreprocessor.learn(rows)
    return TablePreprocessor.learn(rows, weights, readings, outliers)


def preprocessor_from_state(content: Mapping[str, Any], features: int) -> Preprocessor:
    """Restore a preprocessor for rows with ``features`` numbers from a state, which is checked."""
    kind = content["kind"]
    require(kind in ("table", "images"), "be of images or of a table", kind)
    return (TablePreprocessor if kind == "table" else ImagePreprocessor).from_state(content, features)


def cut(encoded: Array) -> Array:
    """Clip an encoded matrix, so that a single huge number does not dominate."""
    return np.clip(encoded, -MAX_DEVIATIONS, MAX_DEVIATIONS)


def _is_constant(values: Array) -> bool:
    return bool((values == values[0]).all() or np.isnan(values).all())


def time_parts(seconds: Array) -> tuple[Array, Array, Array]:
    """Return month, weekday (Monday is 0), and hour of dates."""
    days = np.floor(seconds / 86400)
    with np.errstate(invalid="ignore"):
        month = (days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1).astype(float)
    return month, (days + 3) % 7, (seconds - 86400 * days) / 3600


def _scaled(values: Array, center: Array | float, scale: Array | float) -> Array:
    """Return (values − center)/scale, clipped at ±MAX_RANGE, also where the quotient overflows."""
    with np.errstate(over="ignore"):
        return np.asarray(np.clip(values / scale - center / scale, -MAX_RANGE, MAX_RANGE))


def _robust(values: Array, weights: Array) -> tuple[float, float, bool]:
    """Return center, scale, and whether all values are equal."""
    order = np.argsort(values, kind="stable")
    v, weights = values[order], weights[order]
    lower, middle, upper = weighted_quantiles(v, weights, np.array([0.01, 0.5, 0.99])).tolist()
    for low, high in ((lower, upper), (float(v[0]), float(v[-1]))):
        # Squares of huge or tiny numbers overflow or underflow. The unit is computed after winsorizing, since one huge
        # value would make the others underflow.
        unit = max(abs(low), abs(high)) or 1.0
        with np.errstate(over="ignore"):  # numpy 1.26 warns of places in its registers that hold no value at all
            pulled = np.clip(v, low, high) / unit
        mean = np.average(pulled, weights=weights)
        scale = float(np.sqrt(np.average((pulled - mean) ** 2, weights=weights)))
        # A column whose deviation is a rounding error is constant.
        if scale > 1e-10:
            return middle, max(scale * unit, math.ulp(0.0)), False  # never zero, since it is a divisor
    return middle, 1.0, True
