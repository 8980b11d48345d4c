r"""Which members are taken, and how much each of them is trusted.

Members that put known outliers to use learn what those look like: the more there are, the better. The neighbours need
none, and see what is like no known outlier. With m known outliers the neighbours' share of the weight is

    w(m) = m₀ / (m₀ + m)        on a table,   as if they were worth m₀ known outliers,
    w = 0.95                    on images,

and the others share what is left evenly. Columns of a table often hold nothing but what known outliers tell, whereas
the known images are of one kind among many: whoever learns only that kind forgets the others. So the share on images is
that at which known images of one kind cost the other kinds no more than they bring for their own. Members that somebody
names count evenly, but for the neighbours, whose share is the same. They come first, and so are the same neighbours, to
the last bit, with known outliers and without.
"""

from __future__ import annotations

from collections.abc import Sequence

from .members import CLASSES

#: Members that put known outliers to use.
WITH_OUTLIERS = ("outlier_forest", "mixture_forest", "network")
#: Members that need none.
WITHOUT = ("neighbours",)
#: m₀ of tables, and the share on images.
WORTH, ON_IMAGES = 1.0, 0.95


def names_on(*, outliers: bool, chosen: Sequence[str]) -> tuple[str, ...]:
    """The members that are chosen, or those that "auto" stands for where none is."""
    for name in chosen:
        if CLASSES[name].needs_outliers and not outliers:
            raise ValueError(f"members must not name {name} without a known outlier (y = 1), found it")
    return tuple(chosen) or ((*WITHOUT, *WITH_OUTLIERS) if outliers else WITHOUT)


def trust(names: Sequence[str], known: int, *, image: bool) -> list[float]:
    """The weight of each member, with sum one.

    >>> trust(("network", "neighbours"), 3, image=False)
    [0.75, 0.25]
    >>> trust(("network", "autoencoder"), 9, image=False)
    [0.5, 0.5]
    """
    alone = [name for name in names if name in WITHOUT]
    others = len(names) - len(alone)
    if not alone or not others:
        return [1 / len(names)] * len(names)
    share = ON_IMAGES if image else WORTH / (WORTH + known)
    return [share / len(alone) if name in WITHOUT else (1 - share) / others for name in names]
