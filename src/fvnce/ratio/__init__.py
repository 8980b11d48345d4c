"""Density ratios p/q from samples, without either density.

======================  ===============================================================
``direct``              one ratio by kernels, settings chosen by K-fold cross-validation
``concave``             the fit behind it: a concave problem for every double-ELBO rule
``bridges``             a ratio of distributions far apart, as a sum over bridges
``chain``               the bridges: from a distribution to its Gaussian reference
======================  ===============================================================
"""

from .bridges import BridgeReport, Telescope, telescope
from .direct import DensityRatio, density_ratio

__all__ = ["BridgeReport", "DensityRatio", "Telescope", "density_ratio", "telescope"]
