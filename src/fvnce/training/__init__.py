"""Training: fit an objective, watch it, stop it, resume it, scale it.

======================  ===============================================================
``fitting``             ``fit`` and its settings
``loop``                epochs of steps, until all is done or something goes wrong
``batches``             rows of data, with noise samples and log-densities of both
``noise_sampler``       where a step's noise comes from, and log p_n of all rows
``evaluation``          the objective on a batch, and on held-out rows
``optimiser``           optimisers, schedules, and gradients that are not finite
``history``             what happened, by step and by epoch
``callbacks``           early stopping, logs, a user's functions; the progress bar
``checkpoint``          the files of a run; ``save`` and ``load``
``resume``              taking a run up again, if it is the same run
``distributed``         devices, precision and processes
``refit``               noise that follows the model
``flow``                a normalising flow fitted to data
======================  ===============================================================
"""

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
