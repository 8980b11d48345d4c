"""Density ratios p/q from samples, without either density.

======================  ===============================================================
``direct``              one ratio by kernels: a concave problem for every double-ELBO rule
``bridges``             a ratio of distributions far apart, as a sum over bridges, or by
                        one softmax over all the levels between them
``chain``               one bridge, what it learned, and a chain of them to a Gaussian
``mutual_information``  of pairs and shuffled pairs: mutual information, with an error
======================  ===============================================================
"""

from .bridges import MultinomialBridges, Telescope, multinomial_bridges, telescope
from .chain import BridgeReport, Gain
from .direct import DensityRatio, density_ratio
from .mutual_information import MutualInformation, mutual_information

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
