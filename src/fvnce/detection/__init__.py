"""Outlier detection with a few known outliers: a scikit-learn estimator on noise-contrastive estimation.

==================  ===============================================================
``estimator``       the detector
``members``         what it averages
``forest``          piecewise-constant ratios, in closed form for every rule
``network``         ratio networks and latent-variable models
``noise``           what rows are told apart from
``table``, ``images``, ``rows``   real data as matrices; labels and weights
``calibration``     P(outlier | x), π, the threshold
``explanation``     the score as a sum over columns
``metrics``         scorers with the right sign
``storing``         files without pickle
==================  ===============================================================
"""

from .estimator import NoiseContrastiveDetector
from .explanation import Explanation
from .ensemble import NAMES as MEMBERS
from .metrics import outlier_auroc, outlier_average_precision

__all__ = ["MEMBERS", "Explanation", "NoiseContrastiveDetector", "outlier_auroc", "outlier_average_precision"]
