"""Interface of members: fitting, scores, explanation of scores as sums over columns, and their state.

    anomaly(x) = base + Σ_j contributions_j(x)

A checksum detects changes of a file, but not a malicious writer: a forged tree may contain a cycle, or an index may be
out of range. So ``from_state`` raises FileError for every state that ``fit`` could not have made; other code does not
check again.
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

#: JSON content, and arrays by name.
State = tuple[dict[str, Any], dict[str, NDArray[Any]]]
#: Number of encoded columns from which a table is wide: networks see principal components, and trees no ranks.
WIDE = 100
#: Lower bound of the divisors of anomalies in files, which ``fit`` does not reach; with 1e-320 scores were infinite.
LEAST_SCALE = 1e-13
#: (channels, height, width).
ImageShape = tuple[int, int, int]


@dataclass(frozen=True)
class MemberSettings:
    """Settings of members, named as in the constructor of the detector and in ``expert``.

    Attributes:
        image: shape of the image whose pixels a row holds, or None for a table.
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
        """Return settings of models for calibration only: a third of the trees, one network.

        The number of steps is unchanged, since it affects the spread of scores and so the threshold.
        """
        return replace(self, n_trees=-(-self.n_trees // 3), n_networks=1, verbose=0)


@dataclass(frozen=True)
class HeldOutScores:
    """Anomalies of training rows by models that were trained without the row.

    Attributes:
        rows: anomalies of the unlabeled rows, shape (n,).
        outliers: anomalies of the known outliers, shape (m,); NaN for one that could not be held out.
    """

    rows: Array
    outliers: Array

    @classmethod
    def by(cls, anomaly: Callable[[Array, int], Array], rows: TrainingRows, folds: Folds) -> Self:
        """Compute the anomalies by ``anomaly(X, fold)``, which scores rows by models trained without that fold."""
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
    """Trained model that scores rows and explains the scores."""

    #: Whether base and contributions sum to the anomaly up to rounding, otherwise up to a quadrature error.
    exact: bool = True
    #: Training history, for members with networks.
    history: History | None = None

    @property
    def base(self) -> float:
        """Base value that contributions are added to."""
        return 0.0

    @abstractmethod
    def anomaly(self, X: Array) -> Array:
        """Return scores, higher for more anomalous rows, shape (n,)."""

    @abstractmethod
    def contributions(self, X: Array) -> Array:
        """Return the contribution of each column to the anomaly, shape (n, D)."""

    @abstractmethod
    def state(self) -> State:
        """Return the state from which ``from_state`` restores the scorer."""


class Member(Scorer):
    """Scorer that can be fitted, one class for each kind of model.

    Attributes:
        name: name in settings and files.
        needs_outliers: whether known outliers are needed for training.
        sees_pixels: whether it uses the pixels of images; other members use principal components.
        sees_components: whether it uses principal components of wide tables.
        novelty: whether it measures novelty, independent of known outliers.
        memorizes: whether scores of its training rows differ systematically from those of new rows.
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
        """Fit the member to training rows.

        Args:
            rows: encoded training rows.
            settings: settings of the detector.
            seed: seed of all random draws.
            folds: folds of the rows; for each fold, some models of the member are trained without it.

        Returns:
            The member and, with folds, the held-out scores of training rows.
        """

    @classmethod
    @abstractmethod
    def from_state(
        cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int, image: ImageShape | None
    ) -> Self:
        """Restore the member from a state, which is checked.

        Args:
            content: JSON content from :meth:`state`.
            arrays: arrays from :meth:`state`.
            width: number of columns of the rows.
            image: shape of the image whose pixels are the columns, or None.

        Raises:
            FileError: if :meth:`fit` could not have made the state.
        """


def standard(anomaly: Array, weights: Array) -> tuple[float, float]:
    """Return mean and deviation of weighted anomalies; the deviation is 1 if all are equal.

    >>> standard(np.array([1.0, 3.0]), np.ones(2))
    (2.0, 1.0)
    """
    center = float(np.average(anomaly, weights=weights))
    spread = math.sqrt(float(np.average((anomaly - center) ** 2, weights=weights)))
    return center, spread if spread > 1e-12 else 1.0


def robust_standard(anomaly: Array, weights: Array) -> tuple[float, float]:
    """Return the median and half the range of the middle 68 %, or mean and deviation if that range is zero.

    >>> robust_standard(np.arange(101.0), np.ones(101))
    (50.0, 34.0)
    """
    low, middle, high = (weighted_quantile(anomaly, weights, level) for level in (0.16, 0.5, 0.84))
    return (middle, (high - low) / 2) if high - low > 1e-12 else standard(anomaly, weights)


def row_fractions(values: Array) -> Array:
    """Divide each row by its sum; a row of zeros gives equal fractions.

    >>> row_fractions(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    total = values.sum(1, keepdims=True)
    return np.where(total > 0, values / np.where(total > 0, total, 1.0), 1 / values.shape[1])


def part_of(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names begin with ``prefix`` and a dot, with this prefix removed.

    >>> part_of({"0.a": np.ones(1), "1.a": np.zeros(1)}, "1")
    {'a': array([0.])}
    """
    return {name.removeprefix(f"{prefix}."): x for name, x in arrays.items() if name.startswith(f"{prefix}.")}


def prefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Add ``prefix`` and a dot to the names of arrays."""
    return {f"{prefix}.{name}": value for name, value in arrays.items()}
