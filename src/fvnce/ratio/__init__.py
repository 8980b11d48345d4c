"""Density ratios p/q from samples, without either density.

======================  ===============================================================
``direct``              one ratio by kernels: a concave problem for every double-ELBO rule
``bridges``             a ratio of distributions far apart, as a sum over bridges
``chain``               the bridges: from a distribution to its Gaussian reference
``multinomial``         one softmax over all the levels instead
``doubt``               what a ratio misses, as far as boosted trees see
======================  ===============================================================
"""

from .bridges import BridgeReport, Telescope, telescope
from .direct import DensityRatio, density_ratio
from .doubt import Gain
from .multinomial import MultinomialBridges, multinomial_bridges

__all__ = [
    "BridgeReport",
    "DensityRatio",
    "Gain",
    "MultinomialBridges",
    "Telescope",
    "density_ratio",
    "multinomial_bridges",
    "telescope",
]
