"""Density ratios p/q from samples, without either density.

======================  ===============================================================
``density_ratio``       one ratio by kernels, settings chosen by K-fold cross-validation
``concave``             the fit behind it: a concave problem for every double-ELBO rule
``telescope``           a ratio of distributions far apart, as a sum over bridges
======================  ===============================================================
"""

from .density_ratio import DensityRatio, density_ratio
from .telescope import BridgeReport, Telescope, telescope

__all__ = ["BridgeReport", "DensityRatio", "Telescope", "density_ratio", "telescope"]
