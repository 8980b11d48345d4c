"""Noise-contrastive estimation of latent-variable and energy-based models, and an outlier detector.

Public names are imported on first use, which keeps ``import fvnce`` and the command line fast to start. They are listed
twice: in ``_NAMES`` for Python, and as imports for type checkers, which cannot read a table.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from . import detection as detection
    from . import diagnostics as diagnostics
    from . import models as models
    from . import noise as noise
    from . import objectives as objectives
    from . import ratio as ratio
    from . import sampling as sampling
    from . import scorer as scorer
    from . import scoring as scoring
    from . import tables as tables
    from . import training as training
    from .app.runs import load as load
    from .detection import NoiseContrastiveDetector as NoiseContrastiveDetector
    from .diagnostics import diagnose as diagnose
    from .models import BernoulliDecoder as BernoulliDecoder
    from .models import CategoricalEncoder as CategoricalEncoder
    from .models import EnergyModel as EnergyModel
    from .models import GaussianDecoder as GaussianDecoder
    from .models import GaussianEncoder as GaussianEncoder
    from .models import LatentVariableModel as LatentVariableModel
    from .models import PointEncoder as PointEncoder
    from .models import mlp as mlp
    from .noise import KernelDensity as KernelDensity
    from .noise import NoiseMixture as NoiseMixture
    from .noise import fit_gaussian as fit_gaussian
    from .objectives import IWAE as IWAE
    from .objectives import NCE as NCE
    from .objectives import VAE as VAE
    from .objectives import Autoencoder as Autoencoder
    from .objectives import ConditionalNCE as ConditionalNCE
    from .objectives import FullyVariationalNCE as FullyVariationalNCE
    from .objectives import RankingNCE as RankingNCE
    from .objectives import VariationalNCE as VariationalNCE
    from .objectives import log_marginal as log_marginal
    from .ratio import density_ratio as density_ratio
    from .ratio import telescope as telescope
    from .scoring import Logarithmic as Logarithmic
    from .scoring import PowerRule as PowerRule
    from .scoring import Quadratic as Quadratic
    from .training import History as History
    from .training import fit as fit
    from .training import save as save

#: The module of each public name.
_NAMES = {
    "app.runs": ["load"],
    "detection": ["NoiseContrastiveDetector"],
    "diagnostics": ["diagnose"],
    "models": [
        "BernoulliDecoder",
        "CategoricalEncoder",
        "EnergyModel",
        "GaussianDecoder",
        "GaussianEncoder",
        "LatentVariableModel",
        "PointEncoder",
        "mlp",
    ],
    "noise": ["KernelDensity", "NoiseMixture", "fit_gaussian"],
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
    "ratio": ["density_ratio", "telescope"],
    "scoring": ["Logarithmic", "PowerRule", "Quadratic"],
    "training": ["History", "fit", "save"],
}
_HOME = {name: room for room, names in _NAMES.items() for name in names}
_MODULES = (*(room for room in _NAMES if room != "app.runs"), "sampling", "scorer", "tables")
#: Modules and names that moved, served for one version.
_OLD_MODULES = ("data", "runs")
_OLD_NAMES = {
    "BernoulliNoise": "noise.BernoulliNoise",
    "ContinuousBernoulliDecoder": "models.ContinuousBernoulliDecoder",
    "CoveringEncoder": "models.CoveringEncoder",
    "Exponential": "scoring.Exponential",
    "NoisePool": "noise.NoisePool",
    "SNCE": "objectives.NCE",
    "Spherical": "scoring.Spherical",
    "annealed_log_partition": "sampling.annealed_log_partition",
    "annealed_nce": "sampling.annealed_nce",
    "langevin": "sampling.langevin",
    "multinomial_bridges": "ratio.multinomial_bridges",
    "smoothed": "noise.smoothed",
}

if not TYPE_CHECKING:
    __all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _OLD_MODULES:
        return import_module(f".{name}", __name__)
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    # Imported here: no command of the program needs it.
    from ._moved import moved

    return moved(__name__, {old: f"fvnce.{new}" for old, new in _OLD_NAMES.items()}, stacklevel=3)(name)


def __dir__() -> list[str]:
    return sorted(["__version__", *_MODULES, *_HOME])
