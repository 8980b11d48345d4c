"""Outlier detection with a few known outliers: scikit-learn estimators on noise-contrastive estimation.

=============================  ===============================================================
``estimator``                  the detector: an ensemble with calibrated probabilities
``latent``                     a latent-variable model as a detector
``base``                       what both do alike, on scikit-learn's contract
``frame``, ``reading``         tables of any library; what their texts say
``preprocessing``              real tables and images as matrices
``rows``                       in parts and in memory maps; labels, weights, duplicates
``members``                    what the detector averages, one file each
``ensemble``                   which are taken, their weighted average, and the score as a sum over columns
``plan``                       settings, checked, and what members are trained on
``networks``                   first weights and training of networks
``noise``                      what rows are told apart from
``calibration``                P(outlier | x), π, the threshold
``evidence``                   how good it is, by the scores of held-out rows, and what else a fit finds out
``conformal``                  p-values, and alarms at a false discovery rate
``explanation``                what each column adds to a score, and pictures of both
``scorers``                    for searches and cross-validation, with the right sign
``batch_scorer``               scores of batches, on the workers of an engine
=============================  ===============================================================
"""

from . import scorers
from .batch_scorer import BatchScorer
from .conformal import Conformal
from .estimator import NoiseContrastiveDetector
from .evidence import Evidence
from .explanation import Explanation
from .intervals import Interval
from .latent import LatentDetector
from .members import NAMES as MEMBERS
from .scorers import InvertedScoreWarning
from .scorers import average_precision as outlier_average_precision
from .scorers import roc_auc as outlier_auroc

__all__ = [
    "MEMBERS",
    "BatchScorer",
    "Conformal",
    "Evidence",
    "Explanation",
    "Interval",
    "InvertedScoreWarning",
    "LatentDetector",
    "NoiseContrastiveDetector",
    "outlier_auroc",
    "outlier_average_precision",
    "scorers",
]
