"""Outlier detection with a few known outliers: scikit-learn estimators on noise-contrastive estimation.

=============================  ===============================================================
``estimator``                  the detector: an ensemble with calibrated probabilities
``latent``                     a latent-variable model as a detector
``fitted``                     the detector without training: scores of a saved one
``base``                       what both share when fitted
``contract``                   what both share as estimators, on scikit-learn's contract
``rows``                       labels and weights checked, equal rows merged, arrays read in parts
``preprocessing``              tables and images as the columns that models see
``members``                    what the detector is made of, one file each
``noise``                      what members are trained against
``products``, ``blocks``       products that keep every bit
``ensemble``                   the members together: two scores, the one that ranks, and its explanation
``trust``                      probabilities, held-out evidence, p-values, changes since training
``explanation``                what each column adds to a score, and pictures of both
``scorers``                    for searches and cross-validation, with the right sign
``batch_scorer``               scores of batches, on the workers of an engine
=============================  ===============================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import Scores
from .batch_scorer import BatchScorer
from .explanation import Explanation
from .fitted import FittedEnsemble
from .members import NAMES as MEMBERS
from .trust import Changes, Conformal, Evidence, Finds, Interval
from .trust.drift import UnlikeTrainingWarning

if TYPE_CHECKING:
    from . import scorers
    from .estimator import NoiseContrastiveDetector
    from .latent import LatentDetector
    from .scorers import InvertedScoreWarning
    from .scorers import average_precision as outlier_average_precision
    from .scorers import roc_auc as outlier_auroc

#: Where names are that need scikit-learn or torch; what scores starts without them.
_LATER = {
    "InvertedScoreWarning": ("scorers", "InvertedScoreWarning"),
    "LatentDetector": ("latent", "LatentDetector"),
    "NoiseContrastiveDetector": ("estimator", "NoiseContrastiveDetector"),
    "outlier_auroc": ("scorers", "roc_auc"),
    "outlier_average_precision": ("scorers", "average_precision"),
}

__all__ = [
    "MEMBERS",
    "BatchScorer",
    "Changes",
    "Conformal",
    "Evidence",
    "Explanation",
    "Finds",
    "FittedEnsemble",
    "Interval",
    "InvertedScoreWarning",
    "LatentDetector",
    "NoiseContrastiveDetector",
    "Scores",
    "UnlikeTrainingWarning",
    "outlier_auroc",
    "outlier_average_precision",
    "scorers",
]


def __getattr__(name: str) -> Any:
    if name == "scorers":
        return import_module(".scorers", __name__)
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LATER[name]
    return getattr(import_module(f".{module}", __name__), attribute)
