"""What a member of the detector can do, from training to a file: the contract that each of them keeps.

    anomaly(x) = base + Σ_j contributions_j(x) + rest(x)

A member is a class in a file of its own: it has a name, fits itself to rows, scores, explains its score as the sum
above, and gives and takes its state. :data:`fvnce.detection.members.CLASSES` lists them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from ...training import History
from ..plan import Array, Folds, HeldOutScores, Plan, TrainingRows

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
        averages_folds: whether it is an average of models anyway, each of which can do without a fold: scores of rows
            that a model has not seen then cost no further training.
    """

    name: ClassVar[str]
    needs_outliers: ClassVar[bool] = False
    sees_pixels: ClassVar[bool] = False
    averages_folds: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def fit(cls, rows: TrainingRows, plan: Plan, seed: int) -> tuple[Self, list[History]]:
        """A member trained on these rows, and the history of each network in it."""

    @classmethod
    def fit_held_out(
        cls, rows: TrainingRows, plan: Plan, seed: int, folds: Folds
    ) -> tuple[Self, list[History], HeldOutScores]:
        """The same, and what models that had not seen a training row say of it.

        Here a smaller one is trained without each fold; members that average many models leave a fold out of each.
        """
        member, histories = cls.fit(rows, plan, seed)
        return member, histories, refitted(cls.fit, member, rows, plan, seed, folds)

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


def refitted(
    fit: Callable[[TrainingRows, Plan, int], tuple[Scorer, list[History]]],
    member: Scorer,
    rows: TrainingRows,
    plan: Plan,
    seed: int,
    folds: Folds,
) -> HeldOutScores:
    """Scores of each fold by a smaller member trained without it, in units of the whole one.

    Units are those of the anomaly over the rows that each was trained on: its mean and its deviation.
    """
    centre, scale = standard(member.anomaly(rows.X), rows.weights)
    others = []
    for fold in range(folds.count):
        kept = rows.without(folds.rows == fold, folds.outliers == fold)
        other, _ = fit(kept, plan.for_calibration(), seed + 1 + fold)
        others.append((other, *standard(other.anomaly(kept.X), kept.weights)))

    def anomaly(X: Array, fold: int) -> Array:
        other, own_centre, own_scale = others[fold]
        return (other.anomaly(X) - own_centre) / own_scale * scale + centre

    return HeldOutScores.by(anomaly, rows, folds)


def standard(anomaly: Array, weights: Array) -> tuple[float, float]:
    """Mean and deviation of weighted anomalies; a deviation of 1 where all are alike, as nothing is to be divided by.

    >>> standard(np.array([1.0, 3.0]), np.ones(2))
    (2.0, 1.0)
    """
    centre = float(np.average(anomaly, weights=weights))
    spread = math.sqrt(float(np.average((anomaly - centre) ** 2, weights=weights)))
    return centre, spread if spread > 1e-12 else 1.0
