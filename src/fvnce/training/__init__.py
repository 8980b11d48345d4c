"""Training: fit an objective, watch it, stop it, resume it, scale it."""

from ..serialization import RecordError
from .callbacks import Callback, CSVLog, EarlyStopping, TensorBoardLog
from .files import load, load_weights, save
from .flow import fit_flow
from .history import History, Table
from .interrupt import Interrupted
from ..serialization.lock import FolderInUse
from .loop import NonFiniteLoss, fit

__all__ = [
    "CSVLog",
    "Callback",
    "EarlyStopping",
    "FolderInUse",
    "History",
    "Interrupted",
    "NonFiniteLoss",
    "RecordError",
    "Table",
    "TensorBoardLog",
    "fit",
    "fit_flow",
    "load",
    "load_weights",
    "save",
]
