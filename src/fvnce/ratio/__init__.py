"""Density ratios p/q from samples, without either density.

======================  ===============================================================
``direct``              one ratio by kernels: a concave problem for every double-ELBO rule
``bridges``             a ratio of distributions far apart, as a sum over bridges, or by
                        one softmax over all the levels between them
``chain``               one bridge, what it learned, and a chain of them to a Gaussian
``information``         mutual information: the ratio of pairs to shuffled pairs, with an error
======================  ===============================================================
"""

from .bridges import MultinomialBridges, Telescope, multinomial_bridges, telescope
from .chain import BridgeReport, Gain
from .direct import DensityRatio, density_ratio
from .information import MutualInformation, mutual_information

__all__ = [
    "BridgeReport",
    "DensityRatio",
    "Gain",
    "MultinomialBridges",
    "MutualInformation",
    "Telescope",
    "density_ratio",
    "multinomial_bridges",
    "mutual_information",
    "telescope",
]
