"""The members of the detector: to add one, write its file and list its class.

==================  =========================================================================================
``outlier_forest``  piecewise-constant ratio of the known outliers to the rows
``mixture_forest``  piecewise-constant ratio of the mixture noise to the rows
``broad_forest``    the same for noise that is uniform over the box of the data, on few rows a tree
``network``         ratio networks against the mixture noise
``neighbors``       ratio of densities by nearest neighbors, in closed form
==================  =========================================================================================

``base`` is the contract of all of them; ``images`` is how they see images.
"""

from importlib import import_module

from .base import Member

#: Where the class of each member is; it is imported when it is needed, since some need torch.
MODULES = {
    "outlier_forest": "forest.OutlierForest",
    "mixture_forest": "forest.MixtureForest",
    "broad_forest": "forest.BroadForest",
    "network": "ratio_network.RatioNetworks",
    "neighbors": "neighbors.NeighborMember",
}
NAMES = tuple(MODULES)

__all__ = ["NAMES", "Member", "member_class"]


def member_class(name: str) -> type[Member]:
    """Return the class of a member."""
    module, _, attribute = MODULES[name].partition(".")
    kind: type[Member] = getattr(import_module(f".{module}", __name__), attribute)
    return kind
