"""Outlier detection with a few known outliers: scikit-learn estimators on noise-contrastive estimation.

=============================  ===============================================================
``estimator``                  the detector: an ensemble with calibrated probabilities
``latent``                     a latent-variable model as a detector
``fitted``                     a saved detector, which scores without training code
``base``                       base class of fitted detectors
``contract``                   base class of detectors as scikit-learn estimators
``rows``                       validation of labels and weights, merging of equal rows, reading in parts
``preprocessing``              encoding of tables and images as columns
``members``                    the models of the ensemble, one file each
``noise``                      noise that members are trained against
``products``, ``blocks``       matrix products that are reproducible to the last bit
``ensemble``                   all members together: their combined scores and explanations
``trust``                      probabilities, held-out evidence, p-values, changes since training
``explanation``                contributions of columns to a score, and plots
``scorers``                    scorers for searches and cross-validation, with the right sign
``batch_scorer``               scoring of batches on the workers of an engine
=============================  ===============================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import scorers
from .base import Scores
from .batch_scorer import BatchScorer
from .explanation import Explanation
from .fitted import FittedEnsemble
from .members import NAMES as MEMBERS
from .scorers import InvertedScoreWarning
from .scorers import average_precision as outlier_average_precision
from .scorers import roc_auc as outlier_auroc
from .trust import Changes, Conformal, Evidence, Finds, Interval
from .trust.drift import UnlikeTrainingWarning

if TYPE_CHECKING:
    from .estimator import NoiseContrastiveDetector
    from .latent import LatentDetector

#: Modules of classes that need scikit-learn or torch; they are imported at first use, so that scoring starts fast.
_LATER = {"LatentDetector": "latent", "NoiseContrastiveDetector": "estimator"}

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
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATER[name]}", __name__), name)
