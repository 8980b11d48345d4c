"""Markov chains, for pictures of a trained model and for a second opinion on log Z. Training never uses them.

======================  ===============================================================
``chains``              Langevin draws of x, or of x and z, from an unnormalised model
``annealed``            log Z by annealed importance sampling
======================  ===============================================================
"""

from .annealed import annealed_log_partition
from .chains import Chain, langevin

__all__ = ["Chain", "annealed_log_partition", "langevin"]
