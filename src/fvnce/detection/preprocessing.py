"""From what users have to the columns that models see, and back: tables (:mod:`fvnce.detection.table`) and images.

Both learn from training rows, encode rows, fold what belongs to encoded columns back to the original ones, and give and
take their state. Images are scaled to [0, 1] by the range of the training set, padded to multiples of 4, flattened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from ..serialization import RecordError, fields
from . import table
from .members.base import require, require_count, require_lengths, require_number
from .plan import Array
from .reading import Reading, require_reading
from .rows import rows_at_once
from .table import Column, Readings


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
    def learn(cls, matrix: Array, weights: Array, readings: Readings | None, outliers: Array | None = None) -> Self:
        """From weighted rows that are no known outliers, and those that are; texts are given by their codes."""
        read = readings or [Reading()] * matrix.shape[1]
        return cls(table.learn_columns(matrix, weights, read, outliers), readings)

    @property
    def width(self) -> int:
        """Columns that models see."""
        return sum(column.width for column in self.columns)

    def encode(self, rows: Any) -> Array:
        """A matrix, in which texts are given by their codes, as the columns that models see."""
        return table.encode(np.asarray(rows, dtype=np.float64), self.columns)

    def fold(self, values: Array) -> Array:
        """Sums over what belongs to one original column."""
        return table.gather(values, self.columns)

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
                times = [f"{name} ({table.TIMES[part]})" for part, _, _ in column.times or []]
                names += [*([name] if column.times is None else times), *([f"{name} is missing"] * column.missing)]
                continue
            codes = (self.readings or [])[position].codes or {}
            texts = {code: text for text, code in codes.items()}
            names += [*(f"{name} = {texts.get(code, code)}" for code in column.categories), f"{name} = other"]
        return names

    def state(self) -> dict[str, Any]:
        """Every column."""
        columns, readings = (
            None if entries is None else [asdict(entry) for entry in entries]
            for entries in (self.columns, self.readings)
        )
        return {"kind": "table", "columns": columns, "readings": readings}

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
        columns = [
            _column(item, reading) for item, reading in zip(saved, readings or [Reading()] * features, strict=True)
        ]
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
        if len(self.shape) == 2:
            return 1, self.shape[0], self.shape[1]
        channels, height, width = (self.shape[2], *self.shape[:2]) if channels_last(self.shape) else self.shape
        return channels, height, width

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
        scaled = np.clip(scaled, -1.0, 2.0)
        scaled = (np.moveaxis(scaled, -1, 1) if channels_last(self.shape) else scaled).reshape(len(rows), *self._planes)
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


def _column(item: Any, reading: Reading) -> Column:
    """A column from its state, or an error for what no column is."""
    column = Column(**item)
    require_number("centre of a column", column.centre)
    require_number("scale of a column", column.scale)
    require(column.scale > 0, "have positive scales of columns", column.scale)
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
        require(part in range(len(table.TIMES)), "have known parts of dates", part)
        require_number("centre of a date", centre)
        require_number("scale of a date", scale)
        require(scale > 0, "have positive scales of columns", scale)
    times = [(int(part), float(centre), float(scale)) for part, centre, scale in column.times]
    require(times == sorted(times) and len({part for part, _, _ in times}) == len(times), "have each part once", times)
    return replace(column, times=times)
