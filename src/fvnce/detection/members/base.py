"""The contract of members: they fit themselves to rows, score, explain the score as a sum, give and take a state.

    anomaly(x) = base + Σ_j contributions_j(x)

A checksum proves that nobody altered a file, not that its writer was honest. A forged tree can contain a cycle, an
index can lie outside of its table. So ``from_state`` refuses whatever ``fit`` could not have made; code behind it does
not check again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..rows import Array, Folds, TrainingRows, weighted_quantile

if TYPE_CHECKING:
    from ...training.history import History

#: What JSON can hold, and arrays.
State = tuple[dict[str, Any], dict[str, NDArray[Any]]]
#: (channels, height, width).
ImageShape = tuple[int, int, int]


@dataclass(frozen=True)
class MemberSettings:
    """Settings of members, under the names that they have in the detector's constructor and in its ``expert``.

    Attributes:
        image: shape of what a row holds the pixels of, or None for a table.
    """

    members: tuple[str, ...]
    clean: bool
    n_neighbors: int | None
    n_trees: int
    min_samples_leaf: int
    n_networks: int
    steps: int
    alpha: float
    outlier_share: float
    hidden: Sequence[int]
    batch_size: int
    learning_rate: float
    weight_decay: float
    outlier_bandwidth: float
    data_bandwidth: float
    device: str
    n_jobs: int | None = None
    verbose: int = 0
    image: ImageShape | None = None

    def smaller(self) -> MemberSettings:
        """Return settings of models that only calibrate: a third of the trees, one network.

        The network has as many steps as others. With fewer its scores have another spread, and so another threshold.
        """
        return replace(self, n_trees=-(-self.n_trees // 3), n_networks=1, verbose=0)


@dataclass(frozen=True)
class HeldOutScores:
    """Anomalies of training rows, each by models that were trained without it.

    Attributes:
        rows: of the unlabelled rows, shape (n,).
        outliers: of the known outliers, shape (m,); NaN for one that no model was trained without.
    """

    rows: Array
    outliers: Array

    @classmethod
    def by(cls, anomaly: Callable[[Array, int], Array], rows: TrainingRows, folds: Folds) -> Self:
        """Compute them by ``anomaly(X, fold)``, the score by what was trained without that fold."""
        scores = []
        for X, fold_of in ((rows.X, folds.rows), (rows.outliers, folds.outliers)):
            scores.append(np.full(len(X), np.nan))
            for fold in range(folds.count):
                here = fold_of == fold
                if here.any():
                    scores[-1][here] = anomaly(X[here], fold)
        return cls(*scores)

    def standardized(self, center: float, scale: float) -> HeldOutScores:
        """Return (score − center)/scale for both kinds of row."""
        return HeldOutScores((self.rows - center) / scale, (self.outliers - center) / scale)


class Scorer(ABC):
    """A trained model of how strange a row is, which explains its score."""

    #: Whether base and contributions sum to the anomaly up to rounding; otherwise up to a quadrature.
    exact: bool = True
    #: The record of training, for members that have networks.
    history: History | None = None

    @property
    def base(self) -> float:
        """The anomaly that all rows start from."""
        return 0.0

    @abstractmethod
    def anomaly(self, X: Array) -> Array:
        """Return scores that are higher for stranger rows, shape (n,)."""

    @abstractmethod
    def contributions(self, X: Array) -> Array:
        """Return the part of the anomaly that each column is the reason for, shape (n, D)."""

    @abstractmethod
    def state(self) -> State:
        """Return what ``from_state`` makes the same scorer from."""


class Member(Scorer):
    """A kind of scorer that trains itself.

    Attributes:
        name: its name in settings and files.
        needs_outliers: whether it cannot be trained without known outliers.
        sees_pixels: whether it takes images as they are; other members see their principal components.
        sees_components: whether it sees those of wide tables, too.
        novelty: whether it says how unlike the data a row is, whatever outliers are known.
        memorizes: whether it scores rows that it was trained on otherwise than new ones.
    """

    name: ClassVar[str]
    needs_outliers: ClassVar[bool] = False
    sees_pixels: ClassVar[bool] = False
    sees_components: ClassVar[bool] = False
    novelty: ClassVar[bool] = False
    memorizes: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def fit(
        cls, rows: TrainingRows, settings: MemberSettings, seed: int, folds: Folds | None = None
    ) -> tuple[Self, HeldOutScores | None]:
        """Train a member.

        Args:
            rows: encoded training rows.
            settings: of the detector.
            seed: of everything random.
            folds: parts of the rows, each of which some of the member's models must not see.

        Returns:
            The member and, with folds, the scores of training rows by models that have not seen them.
        """

    @classmethod
    @abstractmethod
    def from_state(
        cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int, image: ImageShape | None
    ) -> Self:
        """Make the member of a state, which may be forged.

        Args:
            content: from :meth:`state`.
            arrays: likewise.
            width: columns of the rows that it will score.
            image: shape of what these columns are the pixels of, or None.

        Raises:
            FileError: if :meth:`fit` could not have made it.
        """


def standard(anomaly: Array, weights: Array) -> tuple[float, float]:
    """Return mean and deviation of weighted anomalies; a deviation of 1 where all are equal.

    >>> standard(np.array([1.0, 3.0]), np.ones(2))
    (2.0, 1.0)
    """
    center = float(np.average(anomaly, weights=weights))
    spread = math.sqrt(float(np.average((anomaly - center) ** 2, weights=weights)))
    return center, spread if spread > 1e-12 else 1.0


def robust_standard(anomaly: Array, weights: Array) -> tuple[float, float]:
    """Return the median and half the range of the middle 68 %; the mean and deviation where that range is zero.

    >>> robust_standard(np.arange(101.0), np.ones(101))
    (50.0, 34.0)
    """
    low, middle, high = (weighted_quantile(anomaly, weights, level) for level in (0.16, 0.5, 0.84))
    return (middle, (high - low) / 2) if high - low > 1e-12 else standard(anomaly, weights)


def row_fractions(values: Array) -> Array:
    """Divide each row by its sum; a row of zeros becomes equal fractions.

    >>> row_fractions(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    total = values.sum(1, keepdims=True)
    return np.where(total > 0, values / np.where(total > 0, total, 1.0), 1 / values.shape[1])


def part_of(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names begin with ``prefix`` and a point, without these.

    >>> part_of({"0.a": np.ones(1), "1.a": np.zeros(1)}, "1")
    {'a': array([0.])}
    """
    return {name.removeprefix(f"{prefix}."): x for name, x in arrays.items() if name.startswith(f"{prefix}.")}


def prefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Put ``prefix`` and a point before the names of arrays."""
    return {f"{prefix}.{name}": value for name, value in arrays.items()}
