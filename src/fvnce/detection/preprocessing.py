"""From what users have to the columns that models see, and back: tables (:mod:`fvnce.detection.table`) and images.

Both learn from training rows, encode rows, fold what belongs to encoded columns back to the original ones, and give and
take their state. Images are scaled to [0, 1] by the range of the training set, padded to multiples of 4, flattened.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from ..serialization import RecordError, fields
from . import table
from .plan import Array
from .stored import require, require_count, require_lengths, require_number
from .table import Categories, Column


class Preprocessor(ABC):
    """How rows are encoded."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Columns that models see."""

    @property
    @abstractmethod
    def image(self) -> tuple[int, int, int] | None:
        """(channels, height, width) if these columns are pixels."""

    @abstractmethod
    def encode(self, rows: Any) -> Array:
        """Rows, checked already, as a matrix of shape (n, width)."""

    @abstractmethod
    def fold(self, values: Array) -> Array:
        """Contributions of encoded columns, summed over what belongs to one original column, or at their pixels."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What JSON can hold."""


@dataclass(frozen=True)
class TablePreprocessor(Preprocessor):
    """How a table is encoded.

    Attributes:
        columns: how each column is.
        categories: for a data frame, the code of each text of a column, or None for numbers; None for a matrix.
    """

    columns: list[Column]
    categories: Categories | None

    @classmethod
    def learn(cls, matrix: Array, weights: Array, categories: Categories | None) -> Self:
        """From weighted rows that are no known outliers; texts are given by their codes."""
        categorical = [names is not None for names in categories or [None] * matrix.shape[1]]
        return cls(table.learn_columns(matrix, weights, categorical), categories)

    @property
    def width(self) -> int:
        """Columns that models see."""
        return sum(column.width for column in self.columns)

    @property
    def image(self) -> None:
        """A table is none."""
        return

    def encode(self, rows: Any) -> Array:
        """A matrix, in which texts are given by their codes, as the columns that models see."""
        return table.encode(np.asarray(rows, dtype=np.float64), self.columns)

    def fold(self, values: Array) -> Array:
        """Sums over what belongs to one original column."""
        return table.gather(values, self.columns)

    def names(self, columns: list[str]) -> list[str]:
        """What each encoded column stands for, from the names of the original ones.

        >>> columns = [Column(missing=True), Column(categories=[0, 1])]
        >>> TablePreprocessor(columns, [None, {"blue": 0, "red": 1}]).names(["age", "hue"])
        ['age', 'age is missing', 'hue = blue', 'hue = red', 'hue = other']
        """
        names: list[str] = []
        for position, (name, column) in enumerate(zip(columns, self.columns, strict=True)):
            if column.categories is None:
                names += [name, *([f"{name} is missing"] if column.missing else [])]
                continue
            codes = (self.categories or [])[position] or {}
            texts = {code: text for text, code in codes.items()}
            names += [*(f"{name} = {texts.get(code, code)}" for code in column.categories), f"{name} = other"]
        return names

    def state(self) -> dict[str, Any]:
        """Every column."""
        columns = None if self.columns is None else [asdict(column) for column in self.columns]
        return {"kind": "table", "columns": columns, "categories": self.categories}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], features: int) -> Self:
        """The preprocessor of tables with so many original columns."""
        _, saved, categories = fields(content, "a table", "kind", "columns", "categories")
        if not isinstance(saved, list):
            raise RecordError("it must be of images or of a table, found neither")
        columns = [Column(**item) for item in saved]
        require_lengths("columns", features, columns)
        for column in columns:
            _check_column(column)
        if categories is None:
            require(all(column.categories is None for column in columns), "name the categories of columns", "no names")
            return cls(columns, None)
        require_lengths("categories", len(columns), categories)
        for names, column in zip(categories, columns, strict=True):
            require((names is None) == (column.categories is None), "have categories where columns have them", names)
            if names is not None:
                good = isinstance(names, dict) and sorted(names.values()) == list(range(len(names)))
                require(good, "number its categories from 0", names)
        return cls(columns, categories)


@dataclass(frozen=True)
class ImagePreprocessor(Preprocessor):
    """How images are encoded.

    Attributes:
        shape: of one image as given, (H, W) or (C, H, W).
        low: smallest value in training.
        high: largest value in training.
    """

    shape: tuple[int, ...]
    low: float
    high: float

    @classmethod
    def learn(cls, images: Any, at_once: int) -> Self:
        """From training images, of which so many are looked at together."""
        parts = [images[start : start + at_once] for start in range(0, len(images), at_once)]
        low, high = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
        return cls(tuple(int(side) for side in images.shape[1:]), low, high)

    @property
    def image(self) -> tuple[int, int, int]:
        """(channels, height, width) of the padded image."""
        channels = 1 if len(self.shape) == 2 else self.shape[0]
        height, width = (-(-side // 4) * 4 for side in self.shape[-2:])
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
        scaled = np.clip(scaled, -1.0, 2.0).reshape(len(rows), -1, *self.shape[-2:])
        _, height, width = self.image
        wanted = ((0, 0), (0, 0), (0, height - self.shape[-2]), (0, width - self.shape[-1]))
        return np.ascontiguousarray(np.pad(scaled, wanted).reshape(len(rows), -1))

    def fold(self, values: Array) -> Array:
        """Rows of shape (n, padded) back at their pixels; what fell on the padding is left out."""
        images = values.reshape(len(values), *self.image)[:, :, : self.shape[-2], : self.shape[-1]]
        return images.reshape(len(values), *self.shape)

    def state(self) -> dict[str, Any]:
        """Shape and range."""
        return {"kind": "images", "shape": list(self.shape), "low": self.low, "high": self.high}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], features: int) -> Self:
        """The preprocessor of images with so many pixels."""
        _, shape, low, high = fields(content, "images", "kind", "shape", "low", "high")
        require(len(shape) in (2, 3), "have images of shape (H, W) or (C, H, W)", shape)
        for side in shape:
            require_count("a side of an image", side, 1)
        require(math.prod(shape) == features, f"have images of {features} pixels", shape)
        require_number("low of images", low)
        require_number("high of images", high)
        require(low <= high, "have images of a range", [low, high])
        return cls(tuple(shape), low, high)


def preprocessor_from_state(content: Mapping[str, Any], features: int) -> TablePreprocessor | ImagePreprocessor:
    """The preprocessor that gave this state, for rows with so many numbers."""
    kind = content["kind"]
    require(kind in ("table", "images"), "be of images or of a table", kind)
    return (TablePreprocessor if kind == "table" else ImagePreprocessor).from_state(content, features)


def as_images(X: Any) -> Any:
    """X as an array, which a memory map already is."""
    if isinstance(X, np.ndarray):
        return X
    try:
        return np.asarray(X)
    except (TypeError, ValueError, RuntimeError) as error:  # lists of different lengths, tensors that want a gradient
        raise ValueError(f"X must be an array of images of one shape, found {type(X).__name__}: {error}") from None


def check_images(X: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Finite images of shape (n, H, W) or (n, C, H, W), all of them as in training."""
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


def _check_column(column: Column) -> None:
    require_number("centre of a column", column.centre)
    require_number("scale of a column", column.scale)
    require(column.scale > 0, "have positive scales of columns", column.scale)
    require(isinstance(column.missing, bool), "say whether a column has missing values", column.missing)
    if column.categories is not None:
        require(isinstance(column.categories, list), "list the categories of a column", column.categories)
        for code in column.categories:
            require_count("a category of a column", code, 0)
        require(len(set(column.categories)) == len(column.categories), "list each category once", column.categories)
