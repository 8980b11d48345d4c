"""Training: fit an objective, watch it, stop it, resume it, scale it."""

from ..serialization import FolderInUse, RecordError
from .callbacks import Callback, CSVLog, EarlyStopping, TensorBoardLog
from .checkpoint import load, load_weights, save
from .fitting import fit
from .flow import fit_flow
from .history import History, Table
from .loop import Interrupted, NonFiniteLoss
from .optimiser import NormalisedSGD
from .refit import DecodedNoise, FlowRefit, RefitNoise

__all__ = [
    "CSVLog",
    "Callback",
    "DecodedNoise",
    "EarlyStopping",
    "FlowRefit",
    "FolderInUse",
    "History",
    "Interrupted",
    "NonFiniteLoss",
    "NormalisedSGD",
    "RecordError",
    "RefitNoise",
    "Table",
    "TensorBoardLog",
    "fit",
    "fit_flow",
    "load",
    "load_weights",
    "save",
]
