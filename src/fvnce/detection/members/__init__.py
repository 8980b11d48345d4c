"""The members of the detector: to add one, write its file and list its class.

====================  =========================================================================================
``outlier_forest``    piecewise-constant ratio of the known outliers to the rows
``mixture_forest``    piecewise-constant ratio of the mixture noise to the rows
``network``           ratio networks against the mixture noise
``neighbors``         ratio of densities by nearest neighbors, in closed form
``isolation_forest``  depth in trees of random splits, for groups that neighbors take for normal
====================  =========================================================================================

``base`` is the contract of all of them; ``images`` is how they see images.
"""

from importlib import import_module

from .base import Member

#: Where the class of each member is; it is imported when it is needed, since some need torch.
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
    """Return the class of a member."""
    module, _, attribute = MODULES[name].partition(".")
    kind: type[Member] = getattr(import_module(f".{module}", __name__), attribute)
    return kind
