"""Objectives: modules from a data batch to the loss −J.

======================  ===============================================================
``batch``               a batch, its log-ratios and its terms; how an objective is called
``ratios``              log-ratios Δ⁰, at latents drawn or summed over
``partition``           treatments of log Z: fixed, learned, a function of the context, maximized out
``contrastive``         J itself, and the base class of contrastive objectives
``nce``                 NCE, variational NCE, fully variational NCE
``relatives``           conditional NCE, ranking NCE
``elbo``                autoencoder, VAE, IWAE, log p(x) by importance sampling
======================  ===============================================================

Symbols are those of ``docs/glossary.md``. An equation cited as "Eq. NCE" is the block of that title in ``docs/theory``.
"""

import inspect

from .._moved import moved
from .._stats import LogPartition
from ..io import Kind, add, register
from .batch import Batch, BatchPart, Objective, Terms
from .contrastive import ContrastiveObjective
from .elbo import IWAE, VAE, Autoencoder, log_marginal
from .nce import NCE, FullyVariationalNCE, VariationalNCE
from .partition import Amortized, Fixed, Learned, Partition, Profiled
from .relatives import ConditionalNCE, RankingNCE

__all__ = [
    "IWAE",
    "NCE",
    "VAE",
    "Amortized",
    "Autoencoder",
    "Batch",
    "BatchPart",
    "ConditionalNCE",
    "ContrastiveObjective",
    "Fixed",
    "FullyVariationalNCE",
    "Learned",
    "LogPartition",
    "Objective",
    "Partition",
    "Profiled",
    "RankingNCE",
    "Terms",
    "VariationalNCE",
    "log_marginal",
]

# The classes that a file may name. Version 0.2 wrote SNCE for an NCE with a rule. The state restores a log-scale.
_CLASSES = (Amortized, Autoencoder, ConditionalNCE, FullyVariationalNCE, IWAE, Learned, NCE, Profiled, RankingNCE, VAE)
add(Kind("SNCE", NCE, vars, NCE, frozenset(inspect.signature(NCE).parameters)))
register(*_CLASSES, VariationalNCE, omit=("log_scale",))
register(Fixed, stand_ins={"log_scale": lambda partition: "auto" if partition.automatic else 0.0})

_BUDGET = "fvnce.training.budget."
_OLD = {
    "BatchShare": "fvnce.objectives.BatchPart",
    "Budgeted": _BUDGET + "Budgeted",
    "Reference": _BUDGET + "Baseline",
    "SNCE": "fvnce.objectives.NCE",
}
__getattr__ = moved(__name__, _OLD)
