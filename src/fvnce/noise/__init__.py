"""Noise distributions p_n: densities, sampling and files.

======================  ===============================================================
``base``                the base class; draws, densities and files of any distribution
``kde``                 Gaussian kernel densities, evaluated exactly
``bandwidth``           bandwidth selection for kernel densities
``simple``              fitted Gaussians, Bernoulli noise, noise known by samples only, conditional steps
``mixture``             mixtures of distributions
``flow``                normalizing flows
``pool``                a pool of samples that is renewed during training
======================  ===============================================================
"""

from .bandwidth import select_bandwidth
from .base import (
    draw,
    draw_with_log_prob,
    jitter,
    load_noise,
    log_prob_of_rows,
    log_prob_or_minus_inf,
    row_flops,
    save_noise,
)
from .flow import FlowNoise
from .kde import KernelDensity, smoothed
from .mixture import NoiseMixture
from .pool import NoisePool
from .simple import BernoulliNoise, BitFlips, EmpiricalNoise, GaussianSteps, fit_gaussian

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
    "jitter",
    "load_noise",
    "log_prob_of_rows",
    "log_prob_or_minus_inf",
    "row_flops",
    "save_noise",
    "select_bandwidth",
    "smoothed",
]
