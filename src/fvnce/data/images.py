"""A labelled set of grey images as rows in [0, 1], split into training and test."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Images:
    """Images as rows.

    Attributes:
        name: what it is.
        train: training images, shape (n, height·width), float32 in [0, 1].
        train_labels: their labels, int64.
        test: test images.
        test_labels: their labels.
        shape: (height, width).
    """

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    shape: tuple[int, int]
