"""The model p_θ(x, z), possibly unnormalised, and the encoder q(z|x).

======================  ===============================================================
``latent``              a prior and a decoder make a latent-variable model
``decoders``            modules from z to p(x|z)
``encoders``            modules from x to q(z|x)
``networks``            the networks inside
``exact``               models whose posterior and marginal are known
``distributions``       a lean diagonal Gaussian, a point mass
======================  ===============================================================
"""

from .decoders import BernoulliDecoder, ContinuousBernoulliDecoder, GaussianDecoder
from .distributions import DiagonalNormal, PointMass
from .encoders import CategoricalEncoder, GaussianEncoder, PointEncoder
from .exact import GaussianMixtureModel, LinearGaussianModel
from .latent import LatentVariableModel
from .networks import convolutional_pair, mlp

__all__ = [
    "BernoulliDecoder",
    "CategoricalEncoder",
    "ContinuousBernoulliDecoder",
    "DiagonalNormal",
    "GaussianDecoder",
    "GaussianEncoder",
    "GaussianMixtureModel",
    "LatentVariableModel",
    "LinearGaussianModel",
    "PointEncoder",
    "PointMass",
    "convolutional_pair",
    "mlp",
]
