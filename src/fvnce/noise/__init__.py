"""Noise distributions p_n: kernel densities, mixtures, simple fits, pools of draws, and their storage."""

from .bandwidth import select_bandwidth
from .binary import BernoulliNoise
from .drawing import draw, draw_with_log_prob, jitter, log_prob_of_rows, log_prob_or_minus_inf
from .empirical import EmpiricalNoise
from .fitted import fit_gaussian, smoothed
from .flow import FlowNoise
from .kde import KernelDensity
from .mixture import NoiseMixture
from .pool import NoisePool, row_flops
from .state import from_state, load_noise, save_noise, to_state
from .steps import BitFlips, GaussianSteps

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
