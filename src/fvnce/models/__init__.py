"""Models p_θ(x, z), normalized or not, and encoders q(z|x).

======================  ===============================================================
``latent``              latent-variable models and decoders
``encoders``            encoders q(z|x)
``networks``            networks for encoders and decoders
``exact``               restricted Boltzmann machines, with their exact posterior
``energy``              energy-based models, and models of a density ratio
``distributions``       a fast diagonal Gaussian, a point mass, a vector of bits
``fixed``               modules that hold a distribution without training it
======================  ===============================================================
"""

from torch.distributions import Independent

from ..io import register, register_alias
from .distributions import BinaryVector, DiagonalNormal, PointMass
from .encoders import (
    BinaryEncoder,
    CategoricalEncoder,
    CoveringEncoder,
    GaussianEncoder,
    PointEncoder,
)
from .energy import (
    AveragedRatio,
    DistributionRatio,
    EnergyModel,
    KernelRatio,
    MultinomialRatio,
    TelescopedRatio,
)
from .exact import RestrictedBoltzmannMachine
from .fixed import FixedDistribution
from .latent import (
    BernoulliDecoder,
    ContinuousBernoulliDecoder,
    GaussianDecoder,
    LatentVariableModel,
    is_normalized,
)
from .networks import WithContext, convolutional_pair, mlp

__all__ = [
    "AveragedRatio",
    "BernoulliDecoder",
    "BinaryEncoder",
    "BinaryVector",
    "CategoricalEncoder",
    "ContinuousBernoulliDecoder",
    "CoveringEncoder",
    "DiagonalNormal",
    "DistributionRatio",
    "EnergyModel",
    "GaussianDecoder",
    "GaussianEncoder",
    "KernelRatio",
    "LatentVariableModel",
    "MultinomialRatio",
    "PointEncoder",
    "PointMass",
    "RestrictedBoltzmannMachine",
    "TelescopedRatio",
    "WithContext",
    "convolutional_pair",
    "is_normalized",
    "mlp",
]

# Classes that a file may name. A scale is a parameter, which the state restores.
register(
    *(BinaryEncoder, CategoricalEncoder, CoveringEncoder, GaussianEncoder, KernelRatio, PointEncoder),
    *(AveragedRatio, DistributionRatio, MultinomialRatio, TelescopedRatio),
)
register(GaussianDecoder, omit=("scale",), retired=("event_dims",), sized=True)
register(BernoulliDecoder, ContinuousBernoulliDecoder, EnergyModel, retired=("event_dims",))
register(RestrictedBoltzmannMachine, methods=("posterior",))
# Both are made again by the model that they are given to.
register_alias(FixedDistribution, lambda module: module.distribution)
register_alias(DiagonalNormal, lambda normal: Independent(normal.base_dist, len(normal.event_shape)))
