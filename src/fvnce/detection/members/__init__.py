"""Members of the detector; to add one, write its module and list its class here.

====================  =========================================================================================
``outlier_forest``    piecewise-constant ratio of the known outliers to the rows
``mixture_forest``    piecewise-constant ratio of the mixture noise to the rows
``network``           ratio networks against the mixture noise
``neighbors``         ratio of densities by nearest neighbors, in closed form
``isolation_forest``  depth in trees of random splits, for groups of outliers that neighbors miss
====================  =========================================================================================

``base`` defines their interface; ``images`` computes the coordinates of images that they use.
"""

from importlib import import_module

from .base import Member

#: Module of the class of each member, imported at first use, since some need torch.
MODULES = {
    "outlier_forest": "forest.OutlierForest",
    "mixture_forest": "forest.MixtureForest",
    "network": "ratio_network.RatioNetworks",
    "neighbors": "neighbors.NeighborMember",
    "isolation_forest": "forest.IsolationForest",
}
NAMES = tuple(MODULES)

__all__ = ["NAMES", "Member", "member_class"]


def member_class(name: str) -> type[Member]:
    """Return the class of a member by name."""
    module, _, attribute = MODULES[name].partition(".")
    kind: type[Member] = getattr(import_module(f".{module}", __name__), attribute)
    return kind
