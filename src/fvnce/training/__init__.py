"""Training: fit an objective, watch it, stop it, resume it, scale it."""

from ..serialization import FolderInUse, RecordError
from .callbacks import Callback, CSVLog, EarlyStopping, TensorBoardLog
from .checkpoint import load, load_weights, save
from .fitting import fit
from .flow import fit_flow
from .history import History, Table
from .loop import Interrupted, NonFiniteLoss
from .normalised import NormalisedSGD

__all__ = [
    "CSVLog",
    "Callback",
    "EarlyStopping",
    "FolderInUse",
    "History",
    "Interrupted",
    "NonFiniteLoss",
    "NormalisedSGD",
    "RecordError",
    "Table",
    "TensorBoardLog",
    "fit",
    "fit_flow",
    "load",
    "load_weights",
    "save",
]
