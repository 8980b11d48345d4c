"""Outlier detection with a few known outliers: scikit-learn estimators on noise-contrastive estimation.

==================  ===============================================================
``estimator``       the detector: an ensemble with calibrated probabilities
``latent``          a latent-variable model as a detector
``base``            what both do alike, on scikit-learn's contract
``frame``, ``reading``, ``identifiers``   tables of any library; what their texts say
``preprocessing``, ``table``, ``rows``   real data as matrices; labels and weights
``members``         what the detector averages, one file each
``ensemble``        their average, and the score as a sum over columns
``plan``, ``settings``   what is trained, and how
``networks``        shapes, first weights and training of networks
``noise``           what rows are told apart from
``calibration``     P(outlier | x), π, the threshold
``metrics``         scorers with the right sign
``stored``          how files that no fit could have made are refused
==================  ===============================================================
"""

from .ensemble import Explanation
from .estimator import NoiseContrastiveDetector
from .latent import LatentDetector
from .members import NAMES as MEMBERS
from .metrics import outlier_auroc, outlier_average_precision

__all__ = [
    "MEMBERS",
    "Explanation",
    "LatentDetector",
    "NoiseContrastiveDetector",
    "outlier_auroc",
    "outlier_average_precision",
]
