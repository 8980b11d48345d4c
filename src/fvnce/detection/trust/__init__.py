"""Calibrated probabilities, evaluation on held-out rows, p-values and monitoring (docs/detector/thresholds.md).

=================  ===========================================================================
``calibration``    P(outlier | x), π and the threshold, from scores
``evidence``       AUROC and average precision on held-out rows with intervals; reasons for missing numbers
``conformal``      p-values, and alarms at a false discovery rate
``drift``          warnings about a batch that is far from the training rows
``monitor``        tests of whether columns and scores have changed since training
=================  ===========================================================================
"""

from .calibration import Calibration, Finds
from .conformal import Conformal
from .evidence import Evidence, Findings, Interval, RowScores
from .monitor import Changes

__all__ = ["Calibration", "Changes", "Conformal", "Evidence", "Findings", "Finds", "Interval", "RowScores"]
