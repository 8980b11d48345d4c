"""Latent-variable and energy-based models, estimated by telling data from noise.

Public names are imported when first used, so that ``import fvnce`` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import detection, diagnostics, models, noise, objectives, ratio, sampling, scoring, tables, training
    from .app.runs import load
    from .detection import NoiseContrastiveDetector
    from .models import (
        BernoulliDecoder,
        CategoricalEncoder,
        ContinuousBernoulliDecoder,
        CouplingEncoder,
        CoveringEncoder,
        EnergyDecoder,
        EnergyModel,
        GaussianDecoder,
        GaussianEncoder,
        LatentVariableModel,
        PointEncoder,
        mlp,
    )
    from .noise import BernoulliNoise, KernelDensity, NoiseMixture, NoisePool, fit_gaussian, smoothed
    from .objectives import (
        IWAE,
        NCE,
        VAE,
        Autoencoder,
        ConditionalNCE,
        FullyVariationalNCE,
        RankingNCE,
        VariationalNCE,
        log_marginal,
    )
    from .ratio import density_ratio, multinomial_bridges, telescope
    from .sampling import annealed_log_partition, annealed_nce, langevin
    from .scoring import Exponential, Logarithmic, PowerRule, Quadratic, Spherical
    from .training import History, fit, save

#: Where each public name lives.
_NAMES = {
    "detection": ["NoiseContrastiveDetector"],
    "models": [
        "BernoulliDecoder",
        "CategoricalEncoder",
        "ContinuousBernoulliDecoder",
        "CouplingEncoder",
        "CoveringEncoder",
        "EnergyDecoder",
        "EnergyModel",
        "GaussianDecoder",
        "GaussianEncoder",
        "LatentVariableModel",
        "PointEncoder",
        "mlp",
    ],
    "noise": ["BernoulliNoise", "KernelDensity", "NoiseMixture", "NoisePool", "fit_gaussian", "smoothed"],
    "objectives": [
        "Autoencoder",
        "ConditionalNCE",
        "FullyVariationalNCE",
        "IWAE",
        "NCE",
        "RankingNCE",
        "VAE",
        "VariationalNCE",
        "log_marginal",
    ],
    "ratio": ["density_ratio", "multinomial_bridges", "telescope"],
    "sampling": ["annealed_log_partition", "annealed_nce", "langevin"],
    "scoring": ["Exponential", "Logarithmic", "PowerRule", "Quadratic", "Spherical"],
    "training": ["History", "fit", "save"],
}
_MODULES = ("diagnostics", "tables", *_NAMES)
_HOME = {name: module for module, names in _NAMES.items() for name in names} | {"load": "app.runs"}
#: Modules whose names moved, kept for one version.
_OLD_MODULES = ("data", "runs")

__all__ = [
    "IWAE",
    "NCE",
    "VAE",
    "Autoencoder",
    "BernoulliDecoder",
    "BernoulliNoise",
    "CategoricalEncoder",
    "ConditionalNCE",
    "ContinuousBernoulliDecoder",
    "CouplingEncoder",
    "CoveringEncoder",
    "EnergyDecoder",
    "EnergyModel",
    "Exponential",
    "FullyVariationalNCE",
    "GaussianDecoder",
    "GaussianEncoder",
    "History",
    "KernelDensity",
    "LatentVariableModel",
    "Logarithmic",
    "NoiseContrastiveDetector",
    "NoiseMixture",
    "NoisePool",
    "PointEncoder",
    "PowerRule",
    "Quadratic",
    "RankingNCE",
    "Spherical",
    "VariationalNCE",
    "__version__",
    "annealed_log_partition",
    "annealed_nce",
    "density_ratio",
    "detection",
    "diagnostics",
    "fit",
    "fit_gaussian",
    "langevin",
    "load",
    "log_marginal",
    "mlp",
    "models",
    "multinomial_bridges",
    "noise",
    "objectives",
    "ratio",
    "sampling",
    "save",
    "scoring",
    "smoothed",
    "tables",
    "telescope",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _OLD_MODULES:
        return import_module(f".{name}", __name__)
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    # Imported here: no command of the program needs it.
    from ._moved import moved

    return moved(__name__, {"SNCE": "fvnce.objectives.NCE"}, stacklevel=3)(name)


def __dir__() -> list[str]:
    return sorted(__all__)
