"""Deprecated names: keep a moved name working for one version, with a DeprecationWarning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def moved(module: str, new_places: Mapping[str, str], *, stacklevel: int = 2) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that resolves old names to their new locations.

    Args:
        module: the ``__name__`` of the module whose names moved.
        new_places: the full path of the new name for each old name.
        stacklevel: frames between the warning and the user's code, 3 if a ``__getattr__`` calls the result.

    >>> import warnings
    >>> serve = moved("fvnce", {"old_pi": "math.pi"})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     serve("old_pi")
    3.141592653589793
    >>> print(caught[0].message)
    fvnce.old_pi is deprecated and will be removed in the next version; use math.pi
    """

    def serve(name: str) -> Any:
        if name not in new_places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place = new_places[name]
        warnings.warn(
            f"{module}.{name} is deprecated and will be removed in the next version; use {place}",
            DeprecationWarning,
            stacklevel=stacklevel,
        )
        parent, _, attribute = place.rpartition(".")
        return getattr(import_module(parent), attribute)

    return serve
