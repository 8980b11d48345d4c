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

``base`` is the contract of all of them, ``trees`` what forests are made of, and ``reference`` the search for
neighbours, on images with ``image_code`` and ``warps``; ``pca`` is how the other members see images.
"""

from collections.abc import Sequence
from typing import Any

from ... import _checks
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

__all__ = ["CLASSES", "NAMES", "Member", "PCAMember", "check_names"]


def check_names(members: Any) -> tuple[str, ...]:
    """The members that are named, none for "auto"."""
    if isinstance(members, str):
        return () if members == "auto" else (_checks.choice("members", members, ("auto", *NAMES)),)
    if not isinstance(members, Sequence) or isinstance(members, bytes) or len(members) == 0:
        raise TypeError(f"members must be 'auto' or names of members, found {members!r}")
    return tuple(_checks.choice("members", name, NAMES) for name in members)
