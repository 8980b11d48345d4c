"""Training: fit an objective, watch it, stop it, resume it, scale it.

======================  ===============================================================
``trainer``             ``fit`` and its options: the loop over epochs and steps
``batches``             rows of data, with noise samples and log-densities of both
``evaluation``          the objective on a batch, and on held-out rows
``optimizer``           optimizers, schedules, and the norm of gradients
``history``             the record of steps and epochs
``callbacks``           early stopping, a user's functions; the progress bar
``budget``              a log-scale found while training
``checkpoint``          the files of a run; ``save`` and ``load_module``; the checkpoint to continue from
``ddp``                 devices, precision, processes and signals
``refit``               flows fitted to data, and noise that follows the model
======================  ===============================================================
"""

from .._moved import moved
from ..io import FileError, FolderInUse
from .budget import Baseline, ErrorBudget
from .callbacks import Callback, EarlyStopping
from .checkpoint import load_module, load_weights, save
from .history import History, HistoryTable
from .optimizer import NormalizedSGD
from .refit import DecodedNoise, RefitNoise, fit_flow
from .trainer import FitOptions, Interrupted, NonFiniteLoss, fit

__all__ = [
    "Baseline",
    "Callback",
    "DecodedNoise",
    "EarlyStopping",
    "ErrorBudget",
    "FileError",
    "FitOptions",
    "FolderInUse",
    "History",
    "HistoryTable",
    "Interrupted",
    "NonFiniteLoss",
    "NormalizedSGD",
    "RefitNoise",
    "fit",
    "fit_flow",
    "load_module",
    "load_weights",
    "save",
]

_OLD = {"NormalisedSGD": "NormalizedSGD", "RecordError": "FileError", "Table": "HistoryTable"}
__getattr__ = moved(__name__, {old: f"fvnce.training.{new}" for old, new in _OLD.items()} | {"load": "fvnce.load"})
