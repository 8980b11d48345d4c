"""The members of the detector: to add one, write its file and list its class.

==================  ========================================================================================
``outlier_forest``  piecewise-constant ratio of the known outliers to the rows
``mixture_forest``  piecewise-constant ratio of the mixture noise to the rows
``broad_forest``    the same for the box, on few rows a tree: what is left without known outliers
``marginal_forest`` the same for the product of the columns' own distributions: which columns go together?
``network``         ratio networks against the mixture noise
``neighbours``      ratio of densities by nearest neighbours, in closed form: far, far for its place, far for its warps
``autoencoder``     latent-variable model with a deterministic encoder
``variational``     latent-variable model with a stochastic encoder
==================  ========================================================================================
"""

from .base import Member
from .forest import BroadForest, MarginalForest, MixtureForest, OutlierForest
from .latent_model import AutoencoderMember, VariationalMember
from .neighbours import NeighbourMember
from .pca import PCAMember
from .ratio_network import RatioNetworks

CLASSES: dict[str, type[Member]] = {
    member.name: member
    for member in (
        OutlierForest,
        MixtureForest,
        BroadForest,
        MarginalForest,
        RatioNetworks,
        NeighbourMember,
        AutoencoderMember,
        VariationalMember,
    )
}
NAMES = tuple(CLASSES)

__all__ = ["CLASSES", "NAMES", "Member", "PCAMember"]
