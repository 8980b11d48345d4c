"""Objectives: modules from a data batch to the loss −J.

======================  ===============================================================
``base``                a batch, the calling convention, terms and statistics
``ratios``              log-ratios Δ⁰ and expectations over the latent
``log_partition``       log Z fixed or learned
``budget``              a fixed log Z whose scale finds itself
``profiled``            log Z maximised out
``contrastive``         J itself, and what all that tell data from noise share
``nce``                 NCE, S-NCE, variational NCE, fully variational NCE
``relatives``           conditional NCE, ranking NCE
``elbo``                autoencoder, VAE, IWAE, log p(x) by importance sampling
======================  ===============================================================
"""

from .._estimates import LogPartition
from ..serialization import register
from .base import Batch, BatchShare, Objective, Terms
from .budget import Budgeted, Reference
from .contrastive import ContrastiveObjective
from .elbo import IWAE, VAE, Autoencoder, log_marginal
from .log_partition import Fixed, Learned, Partition
from .nce import NCE, SNCE, FullyVariationalNCE, VariationalNCE
from .profiled import Profiled
from .relatives import ConditionalNCE, RankingNCE

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
