r"""From what users have to the columns that models see, and back: real tables and images as matrices.

Images are scaled to [0, 1] by the range of the training set, padded to multiples of 4, flattened.

In a table a number is centred at the median and divided by the standard deviation of its column after 1 % at each end
have been pulled in, which neither a few huge values nor a column that is mostly one value can break; then cut at ±10.
A category becomes one 0/1 column for each of its values, up to 32 of them, the rest together. A date becomes its month,
weekday and hour, as far as training rows span two years, weeks or days. The time that has passed is not told: rows to
come are later than all of training, where a model knows nothing of it. A missing number is the median beside a 0/1
column that says so, a missing category a value of its own. A column that is the same in every row says nothing and
becomes none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..serialization import RecordError, fields
from .frame import Readings
from .members.base import require, require_count, require_lengths, require_number
from .plan import Array
from .reading import Reading, require_reading
from .rows import rows_at_once

#: Numbers are cut at so many deviations for models, and at so many for the range they lie in.
LIMIT, FARTHEST = 10.0, 1e6
CATEGORIES = 32
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


@dataclass(frozen=True)
class TablePreprocessor:
    """How a table is encoded.

    Attributes:
        columns: how each column is.
        readings: for a data frame, how each column is read; None for a matrix.
    """

    #: Its columns are no pixels.
    image: ClassVar[None] = None

    columns: list[Column]
    readings: Readings | None

    @classmethod
    def learn(cls, X: Array, weights: Array, readings: Readings | None, outliers: Array | None = None) -> Self:
        """From weighted rows that are no known outliers, and those that are; texts are given by their codes."""
        read = readings or [Reading()] * X.shape[1]
        columns = [_learn_column(values, weights, reading) for values, reading in zip(X.T, read, strict=True)]
        if outliers is not None and len(outliers):  # a column that is the same in all rows but not in them says much
            same = [not len(X) or _is_one(np.concatenate([X[:, i], outliers[:, i]])) for i in range(X.shape[1])]
            columns = [
                replace(column, unused=column.unused and (one or reading.ignored))
                for column, one, reading in zip(columns, same, read, strict=True)
            ]
        if not sum(column.width for column in columns):  # there must be something to look at
            columns = [
                replace(c, unused=r.ignored, times=c.times or ([(0, 0.0, 1.0)] if c.times is not None else None))
                for c, r in zip(columns, read, strict=True)
            ]
        return cls(columns, readings)

    @property
    def width(self) -> int:
        """Columns that models see."""
        return sum(column.width for column in self.columns)

    def encode(self, rows: Any) -> Array:
        """A matrix, in which texts are given by their codes, as the columns that members see once it is :func:`cut`."""
        X, columns = np.asarray(rows, dtype=np.float64), self.columns
        if all(c.categories is None and c.times is None and not (c.missing or c.unused) for c in columns):
            centres, scales = (np.array([getattr(column, name) for column in columns]) for name in ("centre", "scale"))
            return _scaled(np.where(np.isnan(X), centres, X), centres, scales)
        parts = [np.empty((len(X), 0))]
        for values, column in zip(X.T, columns, strict=True):
            if column.unused:
                continue
            if column.categories is not None:
                hits = values[:, None] == np.array(column.categories, dtype=float)[None, :]
                parts.append(np.concatenate([hits, ~hits.any(1, keepdims=True)], 1).astype(float))
                continue
            gone = np.isnan(values)
            told = (values,) if column.times is None else _time_parts(np.where(gone, 0.0, values))
            for part, centre, scale in [(0, column.centre, column.scale)] if column.times is None else column.times:
                parts.append(_scaled(np.where(gone, centre, told[part]), centre, scale)[:, None])
            if column.missing:
                parts.append(gone[:, None].astype(float))
        return np.concatenate(parts, 1)

    def fold(self, values: Array) -> Array:
        """Sums of what belongs to one original column, shape (n, original columns)."""
        widths = np.array([column.width for column in self.columns])
        result = np.zeros((len(values), len(widths)))
        starts = np.cumsum(widths) - widths
        # Without the columns that became none, for which reduceat would give their neighbour's.
        result[:, widths > 0] = np.add.reduceat(values, starts[widths > 0], axis=1)
        return result

    def count_odd(self, X: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each column, how many values there are, and how many of them are unlike any of training.

        Such are texts never seen, numbers more than 10 deviations from the median, and anything but the one value of a
        column that was the same in every row. A date is never unlike: rows to come are later.
        """
        counts = np.zeros((2, len(self.columns)), dtype=np.int64)
        for i, (values, column) in enumerate(zip(X.T, self.columns, strict=True)):
            present, strange = ~np.isnan(values), np.zeros(len(values), bool)
            if column.categories is not None:
                present, strange = values != -1, values == -2
            elif column.times is None:
                with np.errstate(over="ignore", invalid="ignore"):
                    far = np.abs(values / column.scale - column.centre / column.scale)
                strange = far > (0 if column.unused else LIMIT)
            counts[:, i] = present.sum(), (strange & present).sum()
        return counts[0], counts[1]

    def names(self, columns: list[str]) -> list[str]:
        """What each encoded column stands for, from the names of the original ones.

        >>> columns = [Column(missing=True), Column(categories=[0, 1])]
        >>> readings = [Reading(), Reading("text", codes={"blue": 0, "red": 1})]
        >>> TablePreprocessor(columns, readings).names(["age", "hue"])
        ['age', 'age is missing', 'hue = blue', 'hue = red', 'hue = other']
        """
        names: list[str] = []
        for position, (name, column) in enumerate(zip(columns, self.columns, strict=True)):
            if column.unused:
                continue
            if column.categories is None:
                times = [f"{name} ({TIMES[part]})" for part, _, _ in column.times or []]
                names += [*([name] if column.times is None else times), *([f"{name} is missing"] * column.missing)]
                continue
            codes = (self.readings or [])[position].codes or {}
            texts = {code: text for text, code in codes.items()}
            names += [*(f"{name} = {texts.get(code, code)}" for code in column.categories), f"{name} = other"]
        return names

    def state(self) -> dict[str, Any]:
        """Every column."""
        return {"kind": "table"} | asdict(self)

    @classmethod
    def from_state(cls, content: Mapping[str, Any], features: int) -> Self:
        """The preprocessor of tables with so many original columns."""
        _, saved, readings = fields(content, "a table", "kind", "columns", "readings")
        if not isinstance(saved, list):
            raise RecordError("it must be of images or of a table, found neither")
        require_lengths("columns", features, saved)
        if readings is not None:
            require_lengths("readings", features, readings)
            readings = [require_reading(item) for item in readings]
        columns = list(map(_column, saved, readings or [Reading()] * features))
        require(any(column.width for column in columns), "have a column that is used", "none")
        return cls(columns, readings)


@dataclass(frozen=True)
class ImagePreprocessor:
    """How images are encoded.

    Attributes:
        shape: of one image as given, (H, W), (C, H, W) or (H, W, C).
        low: smallest value in training.
        high: largest value in training.
    """

    shape: tuple[int, ...]
    low: float
    high: float

    @classmethod
    def learn(cls, images: Any) -> Self:
        """From training images."""
        at_once = rows_at_once(images)
        parts = [images[start : start + at_once] for start in range(0, len(images), at_once)]
        low, high = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
        return cls(tuple(int(side) for side in images.shape[1:]), low, high)

    @property
    def image(self) -> tuple[int, int, int]:
        """(channels, height, width) of the padded image."""
        channels, *sides = self._planes
        height, width = (-(-side // 4) * 4 for side in sides)
        return channels, height, width

    @property
    def _planes(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image as given, wherever its channels stand."""
        *channels, height, width = (self.shape[2], *self.shape[:2]) if channels_last(self.shape) else self.shape
        return channels[0] if channels else 1, height, width

    @property
    def width(self) -> int:
        """Pixels of the padded image."""
        return math.prod(self.image)

    def encode(self, rows: Any) -> Array:
        """Images of shape (n, …) as rows of floats."""
        # Half of everything where the range itself is too large for a float; half a difference of floats never is.
        unit = 1.0 if math.isfinite(self.high - self.low) else 0.5
        spread = unit * self.high - unit * self.low or 1.0
        with np.errstate(over="ignore"):
            scaled = (unit * np.asarray(rows, dtype=np.float64) - unit * self.low) / spread
        scaled = np.moveaxis(scaled, -1, 1) if channels_last(self.shape) else scaled
        scaled = np.clip(scaled, -1.0, 2.0).reshape(len(rows), *self._planes)
        _, height, width = self.image
        wanted = ((0, 0), (0, 0), (0, height - scaled.shape[-2]), (0, width - scaled.shape[-1]))
        return np.ascontiguousarray(np.pad(scaled, wanted).reshape(len(rows), -1))

    def fold(self, values: Array) -> Array:
        """Rows of shape (n, padded) back at their pixels; what fell on the padding is left out."""
        _, height, width = self._planes
        images = values.reshape(len(values), *self.image)[:, :, :height, :width]
        return np.moveaxis(images, 1, -1) if channels_last(self.shape) else images.reshape(len(values), *self.shape)

    def state(self) -> dict[str, Any]:
        """Shape and range."""
        return {"kind": "images", "shape": list(self.shape), "low": self.low, "high": self.high}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], features: int) -> Self:
        """The preprocessor of images with so many pixels."""
        _, shape, low, high = fields(content, "images", "kind", "shape", "low", "high")
        require(len(shape) in (2, 3), "have images of shape (H, W), (C, H, W) or (H, W, C)", shape)
        for side in shape:
            require_count("a side of an image", side, 1)
        require(math.prod(shape) == features, f"have images of {features} pixels", shape)
        require_number("low of images", low)
        require_number("high of images", high)
        require(low <= high, "have images of a range", [low, high])
        return cls(tuple(shape), low, high)


#: How rows are encoded.
Preprocessor = TablePreprocessor | ImagePreprocessor


def learn_preprocessor(rows: Any, weights: Array, readings: Readings | None, outliers: Any = None) -> Preprocessor:
    """How to encode rows like these and known outliers: images, or a table in which texts are given by their codes."""
    if rows.ndim > 2:
        return ImagePreprocessor.learn(rows)
    return TablePreprocessor.learn(rows, weights, readings, outliers)


def preprocessor_from_state(content: Mapping[str, Any], features: int) -> Preprocessor:
    """The preprocessor that gave this state, for rows with so many numbers."""
    kind = content["kind"]
    require(kind in ("table", "images"), "be of images or of a table", kind)
    return (TablePreprocessor if kind == "table" else ImagePreprocessor).from_state(content, features)


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether the channels of an image of this shape stand last: one, three or four of them, and not in front too.

    >>> channels_last((28, 28, 3)), channels_last((3, 28, 28)), channels_last((28, 28))
    (True, False, False)
    """
    return len(shape) == 3 and shape[2] in (1, 3, 4) and shape[0] > 4


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


def cut(encoded: Array) -> Array:
    """An encoded matrix as models see it: one number far away must not be all that there is to see."""
    return np.clip(encoded, -LIMIT, LIMIT)


def _scaled(values: Array, centre: Array | float, scale: Array | float) -> Array:
    """(values − centre)/scale, cut at ±FARTHEST; what lies too far away for a float is cut as well."""
    with np.errstate(over="ignore"):
        return np.asarray(np.clip(values / scale - centre / scale, -FARTHEST, FARTHEST))


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
            return quantile(0.5), max(scale * unit, math.ulp(0.0)), False  # never zero, to divide by
    return quantile(0.5), 1.0, True


def _column(item: Any, reading: Reading) -> Column:
    """A column from its state, or an error for what no column is."""
    column = Column(**item)
    _require_scaling("a column", column.centre, column.scale)
    for flag in (column.missing, column.unused):
        require(isinstance(flag, bool), "say of a column yes or no", flag)
    require((column.categories is not None) == (reading.kind == "text"), "have categories for texts", column.categories)
    require((column.times is not None) == (reading.kind == "time"), "have parts for dates", column.times)
    if column.categories is not None:
        require(isinstance(column.categories, list), "list the categories of a column", column.categories)
        for code in column.categories:
            require_count("a category of a column", code, 0)
        require(len(set(column.categories)) == len(column.categories), "list each category once", column.categories)
    if column.times is None:
        return column
    for part, centre, scale in column.times:
        require(part in range(len(TIMES)), "have known parts of dates", part)
        _require_scaling("a date", centre, scale)
    times = [(int(part), float(centre), float(scale)) for part, centre, scale in column.times]
    require(times == sorted(times) and len({part for part, _, _ in times}) == len(times), "have each part once", times)
    return replace(column, times=times)


def _require_scaling(of: str, centre: Any, scale: Any) -> None:
    require_number(f"centre of {of}", centre)
    require_number(f"scale of {of}", scale)
    require(scale > 0, "have positive scales of columns", scale)
