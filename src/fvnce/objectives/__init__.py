"""Objectives: modules from a data batch to the loss −J.

======================  ===============================================================
``ratios``              log-ratios Δ⁰ and expectations over the latent
``batch``               data, noise and their densities, whole or one process's part
``log_partition``       log Z fixed or learned
``budget``              a fixed log Z whose scale finds itself
``profiled``            log Z maximised out
``contrastive``         J itself, and what all that tell data from noise share
``fully_variational``   fully variational NCE
``nce``                 NCE, S-NCE, variational NCE
``conditional``         conditional NCE: noise that starts at the data
``ranking``             ranking NCE: one datum among K noise samples
``elbo``                autoencoder, VAE, IWAE, log p(x) by importance sampling
``terms``               what an objective computes on a batch
``statistics``          is the noise term alive
======================  ===============================================================
"""

from .._estimates import LogPartition
from ..serialization import register
from .base import Objective
from .batch import Batch, BatchShare
from .budget import Budgeted, Reference
from .conditional import ConditionalNCE
from .contrastive import ContrastiveObjective
from .elbo import IWAE, VAE, Autoencoder, log_marginal
from .fully_variational import FullyVariationalNCE
from .log_partition import Fixed, Learned, Partition
from .nce import NCE, SNCE, VariationalNCE
from .profiled import Profiled
from .ranking import RankingNCE
from .terms import Terms

__all__ = [
    "IWAE",
    "NCE",
    "SNCE",
    "VAE",
    "Autoencoder",
    "Batch",
    "BatchShare",
    "Budgeted",
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
    "Reference",
    "Terms",
    "VariationalNCE",
    "log_marginal",
]

# What a file may name. A log-scale is a buffer, which the state restores.
register(
    *(Autoencoder, Budgeted, ConditionalNCE, Fixed, FullyVariationalNCE, IWAE, Learned, NCE, Profiled, RankingNCE),
    *(Reference, SNCE, VAE, VariationalNCE),
    omit=("log_scale",),
)
