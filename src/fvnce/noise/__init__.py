"""Noise distributions p_n, and draws of them.

======================  ===============================================================
``kde``                 Gaussian kernel densities, exact over all centres
``bandwidth``           their bandwidths, learned from data
``simple``              fitted Gaussians, independent bits, draws alone, steps from a point
``mixture``             mixtures of any distributions
``flow``                normalising flows
``drawing``             draws and densities of any distribution, whatever it lacks
``pool``                a pool of draws, renewed as it is used
``state``               noise on disk
======================  ===============================================================
"""

from .bandwidth import select_bandwidth
from .drawing import draw, draw_with_log_prob, jitter, log_prob_of_rows, log_prob_or_minus_inf
from .flow import FlowNoise
from .kde import KernelDensity, smoothed
from .mixture import NoiseMixture
from .pool import NoisePool, row_flops
from .simple import BernoulliNoise, BitFlips, EmpiricalNoise, GaussianSteps, fit_gaussian
from .state import from_state, load_noise, save_noise, to_state

__all__ = [
    "BernoulliNoise",
    "BitFlips",
    "EmpiricalNoise",
    "FlowNoise",
    "GaussianSteps",
    "KernelDensity",
    "NoiseMixture",
    "NoisePool",
    "draw",
    "draw_with_log_prob",
    "fit_gaussian",
    "from_state",
    "jitter",
    "load_noise",
    "log_prob_of_rows",
    "log_prob_or_minus_inf",
    "row_flops",
    "save_noise",
    "select_bandwidth",
    "smoothed",
    "to_state",
]
