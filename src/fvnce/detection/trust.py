r"""Which members are taken, and how much each of them is trusted.

Members that put known outliers to use learn what those look like: the more there are, the better. The neighbours need
none, and see what is like no known outlier. With m known outliers the neighbours' share of the weight is

    w(m) = m₀ / (m₀ + m),

as if they were worth m₀ known outliers; the others share what is left evenly. The rest follows from the score being a
mean of standardised anomalies. Members that somebody names count evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

from .members import CLASSES

#: Members that put known outliers to use.
WITH_OUTLIERS = ("outlier_forest", "mixture_forest", "network")
#: Members that need none.
WITHOUT = ("neighbours",)
#: m₀.
WORTH = 1.0


def names_on(*, outliers: bool, chosen: Sequence[str]) -> tuple[str, ...]:
    """The members that are chosen, or those that "auto" stands for where none is."""
    for name in chosen:
        if CLASSES[name].needs_outliers and not outliers:
            raise ValueError(f"members must not name {name} without a known outlier (y = 1), found it")
    return tuple(chosen) or ((*WITH_OUTLIERS, *WITHOUT) if outliers else WITHOUT)


def trust(names: Sequence[str], known: int) -> list[float]:
    """The weight of each member, with sum one.

    >>> trust(("network", "neighbours"), 3)
    [0.75, 0.25]
    >>> trust(("network", "autoencoder"), 9)
    [0.5, 0.5]
    """
    alone = [name for name in names if name in WITHOUT]
    others = len(names) - len(alone)
    if not alone or not others:
        return [1 / len(names)] * len(names)
    share = WORTH / (WORTH + known)
    return [share / len(alone) if name in WITHOUT else (1 - share) / others for name in names]
