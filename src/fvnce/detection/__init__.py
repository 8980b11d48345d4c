"""Outlier detection with a few known outliers: scikit-learn estimators on noise-contrastive estimation.

=============================  ===============================================================
``estimator``                  the detector: an ensemble with calibrated probabilities
``latent``                     a latent-variable model as a detector
``base``                       what both share, on scikit-learn's contract
``rows``                       labels and weights checked, equal rows merged, arrays read in parts
``preprocessing``              tables and images as the columns that models see
``members``                    what the detector is made of, one file each
``noise``, ``blocks``          what members are trained against; products that keep every bit
``ensemble``                   the members together: two scores, the one that ranks, and its explanation
``trust``                      probabilities, held-out evidence, p-values, changes since training
``explanation``                what each column adds to a score, and pictures of both
``scorers``                    for searches and cross-validation, with the right sign
``batch_scorer``               scores of batches, on the workers of an engine
=============================  ===============================================================
"""

from . import scorers
from .base import Scores
from .batch_scorer import BatchScorer
from .estimator import NoiseContrastiveDetector
from .explanation import Explanation
from .latent import LatentDetector
from .members import NAMES as MEMBERS
from .scorers import InvertedScoreWarning
from .scorers import average_precision as outlier_average_precision
from .scorers import roc_auc as outlier_auroc
from .trust import Changes, Conformal, Evidence, Finds, Interval
from .trust.drift import UnlikeTrainingWarning

__all__ = [
    "MEMBERS",
    "BatchScorer",
    "Changes",
    "Conformal",
    "Evidence",
    "Explanation",
    "Finds",
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
