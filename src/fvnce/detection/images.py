"""Images as rows: scaled to [0, 1] by the range of the training set, padded to multiples of 4, flattened."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ImageShape:
    """How images are encoded.

    Attributes:
        shape: of one image as given, (H, W) or (C, H, W).
        low: smallest value in training.
        high: largest value in training.
    """

    shape: tuple[int, ...]
    low: float
    high: float

    @property
    def padded(self) -> tuple[int, int, int]:
        """(channels, height, width) of the padded image."""
        channels = 1 if len(self.shape) == 2 else self.shape[0]
        height, width = (-(-side // 4) * 4 for side in self.shape[-2:])
        return channels, height, width

    def encode(self, X: Any) -> Array:
        """Images of shape (n, …) as rows of floats."""
        # Half of everything where the range itself is too large for a float; half a difference of floats never is.
        unit = 1.0 if math.isfinite(self.high - self.low) else 0.5
        spread = unit * self.high - unit * self.low or 1.0
        with np.errstate(over="ignore"):
            scaled = (unit * np.asarray(X, dtype=np.float64) - unit * self.low) / spread
        scaled = np.clip(scaled, -1.0, 2.0).reshape(len(X), -1, *self.shape[-2:])
        _, height, width = self.padded
        wanted = ((0, 0), (0, 0), (0, height - self.shape[-2]), (0, width - self.shape[-1]))
        return np.ascontiguousarray(np.pad(scaled, wanted).reshape(len(X), -1))

    def decode(self, rows: Array) -> Array:
        """Contributions of shape (n, padded) back at their pixels; what fell on the padding is left out."""
        images = rows.reshape(len(rows), *self.padded)[:, :, : self.shape[-2], : self.shape[-1]]
        return images.reshape(len(rows), *self.shape)


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
