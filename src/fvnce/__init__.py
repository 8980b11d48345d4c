"""Latent-variable and energy-based models, estimated by telling data from noise.

Public names are imported when first used, so that ``import fvnce`` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import scoring
    from .scoring import Logarithmic, PowerRule, Quadratic, Spherical

_HOME = {
    "Logarithmic": "scoring",
    "PowerRule": "scoring",
    "Quadratic": "scoring",
    "Spherical": "scoring",
}
_MODULES = ("scoring",)

__all__ = ["Logarithmic", "PowerRule", "Quadratic", "Spherical", "__version__", "scoring"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
