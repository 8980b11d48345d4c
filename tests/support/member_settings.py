"""Small settings of members, and the detector's settings in the form that its constructor takes."""

from __future__ import annotations

from typing import Any

from fvnce.detection.estimator import EXPERT
from fvnce.detection.members.base import MemberSettings

SMALL: dict[str, Any] = {
    "members": (),
    "clean": False,
    "n_neighbors": None,
    "n_trees": 5,
    "min_samples_leaf": 3,
    "n_networks": 2,
    "steps": 10,
    "alpha": 0.3,
    "outlier_share": 0.8,
    **EXPERT,
    "hidden": (8,),
    "batch_size": 16,
    "weight_decay": 0.0,
}


def member_settings(**changes: Any) -> MemberSettings:
    """Return settings that train in no time, with some of them changed."""
    return MemberSettings(**SMALL | changes)
