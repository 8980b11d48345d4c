"""Latent-variable and energy-based models, estimated by telling data from noise."""

from ._version import __version__

__all__ = ["__version__"]
