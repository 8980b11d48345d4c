"""What scores rows, whichever kind of run it is: one face for the detector and for a latent-variable model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection import NoiseContrastiveDetector
from .latent import LatentDetector
from .training_data import Layout

Array = NDArray[np.float64]


class Scorer(ABC):
    """What scores rows, whichever kind of run it is.

    Attributes:
        layout: what rows look like.
        threshold: the score above which a row is called an outlier.
    """

    def __init__(self, layout: Layout, threshold: float) -> None:
        self.layout, self.threshold = layout, threshold

    @abstractmethod
    def anomaly(self, rows: Any) -> Array:
        """Higher for stranger rows, shape (n,)."""

    @abstractmethod
    def probability(self, anomaly: Array) -> Array | None:
        """P(outlier | score), if the run has one."""

    @abstractmethod
    def contributions(self, rows: Any) -> Array:
        """Parts of the anomaly by column or pixel."""


class DetectorScorer(Scorer):
    """Scores by a :class:`fvnce.NoiseContrastiveDetector`."""

    def __init__(self, detector: NoiseContrastiveDetector, layout: Layout) -> None:
        super().__init__(layout, -float(detector.offset_))
        self.detector = detector

    def anomaly(self, rows: Any) -> Array:  # noqa: D102
        return self.detector.anomaly_score(rows)

    def probability(self, anomaly: Array) -> Array:  # noqa: D102
        return self.detector.calibration_.probability(anomaly)

    def contributions(self, rows: Any) -> Array:  # noqa: D102
        return self.detector.explain(rows).total


class LatentScorer(Scorer):
    """Scores by a latent-variable model, whose threshold is a quantile and which gives no probability."""

    def __init__(self, detector: LatentDetector, layout: Layout) -> None:
        super().__init__(layout, detector.threshold)
        self.detector = detector

    def anomaly(self, rows: Any) -> Array:  # noqa: D102
        return self.detector.anomaly(rows)

    def probability(self, anomaly: Array) -> None:  # noqa: D102
        return None

    def contributions(self, rows: Any) -> Array:  # noqa: D102
        return self.detector.contributions(rows)
