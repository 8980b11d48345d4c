"""What scores rows, whichever detector a run holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection import LatentDetector, NoiseContrastiveDetector
from .training_data import Layout

Array = NDArray[np.float64]


class Scorer:
    """Scores of a detector, with the layout of the rows that it takes.

    Attributes:
        detector: as it was trained or loaded.
        layout: what rows look like.
        threshold: the score above which a row is called an outlier.
    """

    def __init__(self, detector: NoiseContrastiveDetector | LatentDetector, layout: Layout) -> None:
        self.detector, self.layout = detector, layout
        self.threshold = -float(detector.offset_)

    def anomaly(self, rows: Any) -> Array:
        """Higher for stranger rows, shape (n,)."""
        return self.detector.anomaly_score(rows)

    def probability(self, anomaly: Array) -> Array | None:
        """P(outlier | score); None for a latent-variable model, whose threshold is a quantile."""
        if isinstance(self.detector, LatentDetector):
            return None
        return self.detector.calibration_.probability(anomaly)

    @property
    def has_p_values(self) -> bool:
        """Whether training left rows that can measure how rare a score is."""
        return self.detector.findings_.conformal is not None

    def p_value(self, rows: Any, anomaly: Array) -> Array | None:
        """The conformal p-value of rows whose scores are known; None if there are none."""
        conformal = self.detector.findings_.conformal
        if conformal is None:
            return None
        # Where the detector itself is measured, rows need not be scored again.
        return conformal.p_value(anomaly) if conformal.model is None else self.detector.p_value(rows)

    def contributions(self, rows: Any) -> Array:
        """Parts of the anomaly by column or pixel."""
        return self.detector.explain(rows).total
