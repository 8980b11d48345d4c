"""What a member of the detector can do, from training to a file: the contract that each of them keeps.

    anomaly(x) = base + Σ_j contributions_j(x) + rest(x)

A member is a class in a file of its own: it has a name, fits itself to rows, scores, explains its score as the sum
above, and gives and takes its state. :data:`fvnce.detection.members.CLASSES` lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from ...training import History
from ..plan import Array, Plan, TrainingRows

State = tuple[dict[str, Any], dict[str, Tensor]]


class Scorer(ABC):
    """A trained model of how strange a row is, which explains what it says."""

    #: Whether contributions are errors of a reconstruction; otherwise they are parts of a ratio.
    reconstructs: ClassVar[bool] = False

    @property
    def exact(self) -> bool:
        """Whether the sum above holds to rounding; otherwise up to a quadrature."""
        return True

    @abstractmethod
    def anomaly(self, X: Array) -> Array:
        """Higher for stranger rows, shape (n,)."""

    @abstractmethod
    def contributions(self, X: Array) -> Array:
        """The part of the anomaly that each column is the reason for, shape (n, D)."""

    def rest(self, X: Array) -> Array:
        """The part that belongs to no column, shape (n,)."""
        return np.zeros(len(X))

    @property
    def base(self) -> float:
        """The anomaly that all rows start from."""
        return 0.0

    @abstractmethod
    def state(self) -> State:
        """What JSON can hold, and tensors, from which ``from_state`` makes the same."""


class Member(Scorer):
    """A kind of scorer that trains itself.

    Attributes:
        name: what settings call it.
        needs_outliers: whether it cannot be trained without known outliers.
        sees_pixels: whether it takes images as they are; other members see their principal components.
    """

    name: ClassVar[str]
    needs_outliers: ClassVar[bool] = False
    sees_pixels: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def fit(cls, rows: TrainingRows, plan: Plan, seed: int) -> tuple[Self, list[History]]:
        """A member trained on these rows, and the history of each network in it."""

    @classmethod
    @abstractmethod
    def from_state(
        cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor], width: int, image: tuple[int, int, int] | None
    ) -> Self:
        """The member of a state that may be a stranger's.

        Args:
            content: from :meth:`state`.
            tensors: likewise.
            width: columns of the rows that it will see.
            image: (channels, height, width) of what these columns are the pixels of, or None.

        Raises:
            RecordError: if :meth:`fit` could not have made it.
        """
