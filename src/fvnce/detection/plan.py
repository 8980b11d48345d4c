"""What the members of a detector are trained on, and how: rows, the plan of the ensemble, the training of networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TrainingRows:
    """Preprocessed training rows and known outliers, with weights.

    Attributes:
        X: rows without a label, shape (n, D).
        weights: how often each counts, shape (n,).
        outliers: known outliers, shape (m, D); m may be 0.
        outlier_weights: how often each counts, shape (m,).
    """

    X: Array
    weights: Array
    outliers: Array
    outlier_weights: Array

    def without(self, rows: NDArray[np.bool_], outliers: NDArray[np.bool_]) -> TrainingRows:
        """All but those marked."""
        return TrainingRows(
            self.X[~rows], self.weights[~rows], self.outliers[~outliers], self.outlier_weights[~outliers]
        )

    def transformed(self, transform: Callable[[Array], Array]) -> TrainingRows:
        """The same rows and weights in other columns."""
        return replace(self, X=transform(self.X), outliers=transform(self.outliers))


@dataclass(frozen=True)
class Folds:
    """In which part of the training data each row is, so that some model of an ensemble has not seen it.

    Attributes:
        count: K.
        rows: fold of each row without a label, 0 … K − 1, shape (n,).
        outliers: fold of each known outlier, shape (m,); −1 for the only one there is, which nothing can do without.
    """

    count: int
    rows: NDArray[np.int64]
    outliers: NDArray[np.int64]

    @classmethod
    def drawn(cls, count: int, rows: int, outliers: int, rng: np.random.Generator) -> Folds:
        """Folds of equal size, give or take one row.

        >>> Folds.drawn(3, 6, 1, np.random.default_rng(0)).outliers
        array([-1])
        """
        of_row, of_outlier = (rng.permutation(np.arange(n) % count) for n in (rows, outliers))
        return cls(count, of_row, np.full(1, -1) if outliers == 1 else of_outlier)


@dataclass(frozen=True)
class HeldOutScores:
    """Anomalies of training rows, each by models that were trained without it.

    Attributes:
        rows: of the rows without a label, shape (n,).
        outliers: of the known outliers, shape (m,); NaN for one that no model was trained without.
    """

    rows: Array
    outliers: Array

    @classmethod
    def by(cls, anomaly: Callable[[Array, int], Array], data: TrainingRows, folds: Folds) -> HeldOutScores:
        """From ``anomaly(X, fold)``, by what was trained without that fold."""
        found = []
        for X, of in ((data.X, folds.rows), (data.outliers, folds.outliers)):
            own = np.full(len(X), np.nan)
            for fold in range(folds.count):
                mine = of == fold
                if mine.any():
                    own[mine] = anomaly(X[mine], fold)
            found.append(own)
        return cls(*found)

    def standardised(self, centre: float, scale: float) -> HeldOutScores:
        """Less the centre, in units of the scale."""
        return HeldOutScores((self.rows - centre) / scale, (self.outliers - centre) / scale)


@dataclass(frozen=True)
class TrainConfig:
    """How networks are trained.

    Attributes:
        steps: of the optimiser.
        batch_size: rows of a step; as many noise samples.
        learning_rate: of AdamW, with a warm-up and a cosine decay.
        weight_decay: of AdamW.
        alpha: of the scoring rule.
        early_stopping: tenths of the steps without a better held-out loss after which to stop, or None.
        device: "cpu", "cuda", "auto", …
        precision: as Lightning Fabric has it.
        progress: show a bar.
    """

    steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    alpha: float
    early_stopping: int | None
    device: str
    precision: str | None
    progress: bool


@dataclass(frozen=True)
class Plan:
    """What to train.

    Attributes:
        members: names.
        trees: of each forest.
        leaf: fewest samples in a cell.
        networks: ratio networks that are averaged.
        hidden: sizes of hidden layers.
        latent: size of the code.
        image: (channels, height, width), or None for a table.
        outlier_share: λ.
        outlier_bandwidth: largest bandwidth around known outliers.
        data_bandwidth: typical bandwidth around rows.
        training: how networks are trained.
        jobs: threads, as joblib counts them.
        neighbours: k of the density by nearest neighbours; 0 for what suits the data.
        clean: whether the rows are known to hold no outlier.
    """

    members: tuple[str, ...]
    trees: int
    leaf: int
    networks: int
    hidden: tuple[int, ...]
    latent: int
    image: tuple[int, int, int] | None
    outlier_share: float
    outlier_bandwidth: float
    data_bandwidth: float
    training: TrainConfig
    jobs: int | None = None
    neighbours: int = 0
    clean: bool = False

    def for_calibration(self) -> Plan:
        """The same at less cost, for the folds of a calibration: a third of the trees, one network, half the steps."""
        training = replace(self.training, progress=False, steps=-(-self.training.steps // 2))
        return replace(self, trees=-(-self.trees // 3), networks=1, training=training)
