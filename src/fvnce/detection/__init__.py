"""Outlier detection with a few known outliers: a scikit-learn estimator on noise-contrastive estimation.

==================  ===============================================================
``estimator``       the detector
``members``         what it averages
``settings``        what is to be trained, checked
``forest``          piecewise-constant ratios, in closed form for every rule
``network``         ratio networks and latent-variable models
``architecture``    their layers
``initial``         their first weights, from a seed alone
``noise``           what rows are told apart from
``table``, ``images``, ``rows``   real data as matrices; labels and weights
``calibration``     P(outlier | x), π, the threshold
``explanation``     the score as a sum over columns
``metrics``         scorers with the right sign
``storing``         files without pickle
``validity``        whether what a file holds is a detector
==================  ===============================================================
"""

from .estimator import NoiseContrastiveDetector
from .explanation import Explanation
from .members import NAMES as MEMBERS
from .metrics import outlier_auroc, outlier_average_precision

__all__ = ["MEMBERS", "Explanation", "NoiseContrastiveDetector", "outlier_auroc", "outlier_average_precision"]
