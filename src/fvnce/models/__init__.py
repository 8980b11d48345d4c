"""The model p_θ(x, z), possibly unnormalised, and the encoder q(z|x).

======================  ===============================================================
``latent``              a prior and a decoder make a latent-variable model
``decoders``            modules from z to p(x|z)
``encoders``            modules from x to q(z|x)
``networks``            the networks inside
``exact``               models whose posterior and marginal are known
``energy``              unnormalised models from any network
``boltzmann``           restricted Boltzmann machines, binary latents
``coupling``            an encoder with a flexible posterior
``covering``            an encoder that covers the prior, for the noise term
``ratios``              models of a density ratio itself
``distributions``       a lean diagonal Gaussian, a point mass
======================  ===============================================================
"""

from .boltzmann import BinaryEncoder, BinaryVector, RestrictedBoltzmannMachine
from .coupling import CouplingEncoder
from .covering import CoveringEncoder
from .decoders import BernoulliDecoder, ContinuousBernoulliDecoder, GaussianDecoder
from .distributions import DiagonalNormal, PointMass
from .encoders import CategoricalEncoder, GaussianEncoder, PointEncoder
from .energy import EnergyDecoder, EnergyModel
from .exact import GaussianMixtureModel, LinearGaussianModel
from .latent import LatentVariableModel
from .networks import convolutional_pair, mlp
from .ratios import AveragedRatio, DistributionRatio, KernelRatio, TelescopedRatio

__all__ = [
    "AveragedRatio",
    "BernoulliDecoder",
    "BinaryEncoder",
    "BinaryVector",
    "CategoricalEncoder",
    "ContinuousBernoulliDecoder",
    "CouplingEncoder",
    "CoveringEncoder",
    "DiagonalNormal",
    "DistributionRatio",
    "EnergyDecoder",
    "EnergyModel",
    "GaussianDecoder",
    "GaussianEncoder",
    "GaussianMixtureModel",
    "KernelRatio",
    "LatentVariableModel",
    "LinearGaussianModel",
    "PointEncoder",
    "PointMass",
    "RestrictedBoltzmannMachine",
    "TelescopedRatio",
    "convolutional_pair",
    "mlp",
]
