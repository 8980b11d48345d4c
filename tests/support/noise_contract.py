"""Laws that every noise distribution must obey, and the members they are run over.

A member is a name, a way to make the noise in D dimensions, and its log density written a second time in
NumPy from the textbook formula. Adding a member to MEMBERS is all it takes to test it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special, stats
from torch.distributions import Distribution, Independent, Uniform

from fvnce.noise import BernoulliNoise, KernelDensity, NoiseMixture, fit_gaussian, smoothed

Formula = Callable[[Distribution, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Member:
    name: str
    make: Callable[[int, torch.dtype], Distribution]
    formula: Formula
    binary: bool = False
    smooth: bool = True

    def points(self, width: int, dtype: torch.dtype, n: int = 40) -> torch.Tensor:
        generator = torch.Generator().manual_seed(5)
        if self.binary:
            return torch.randint(2, (n, width), generator=generator).to(dtype)
        return 1.5 * torch.randn(n, width, generator=generator, dtype=torch.float64).to(dtype)


def data(n: int, width: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Two clusters with correlated columns of different spread."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=generator, dtype=torch.float64)
    x = x * torch.linspace(0.5, 1.2, width, dtype=torch.float64) + 0.3 * x[:, :1]
    x[: n // 3] += 1.5
    return x.to(dtype)


def kernel_formula(noise: Distribution, x: np.ndarray) -> np.ndarray:
    assert isinstance(noise, KernelDensity)
    centres = noise.centres.double().numpy()
    width = np.broadcast_to(noise.bandwidth.double().numpy(), centres.shape[1:])
    weights = np.full(len(centres), 1 / len(centres)) if noise.weights is None else noise.weights.numpy()
    parts = stats.norm.logpdf(x[:, None, :], centres[None], width).sum(-1)
    return special.logsumexp(parts, axis=1, b=weights)


def gaussian_formula(noise: Distribution, x: np.ndarray) -> np.ndarray:
    if isinstance(noise, Independent):
        base = noise.base_dist
        return stats.norm.logpdf(x, base.loc.double().numpy(), base.scale.double().numpy()).sum(-1)
    factor = noise.scale_tril.double().numpy()
    return np.atleast_1d(stats.multivariate_normal(noise.loc.double().numpy(), factor @ factor.T).logpdf(x))


def box_formula(noise: Distribution, x: np.ndarray) -> np.ndarray:
    low, high = noise.base_dist.low.double().numpy(), noise.base_dist.high.double().numpy()
    inside = ((x >= low) & (x <= high)).all(-1)
    return np.where(inside, -np.log(high - low).sum(), -np.inf)


def mixture_formula(noise: Distribution, x: np.ndarray) -> np.ndarray:
    assert isinstance(noise, NoiseMixture)
    kernel, gaussian, box = noise.components
    parts = [kernel_formula(kernel, x), gaussian_formula(gaussian, x), box_formula(box, x)]
    return special.logsumexp(np.stack(parts), axis=0, b=noise.weights.numpy()[:, None])


def bernoulli_formula(noise: Distribution, x: np.ndarray) -> np.ndarray:
    return stats.bernoulli.logpmf(x.astype(int), noise.probs.double().numpy()).sum(-1)


def weighted_kernel(width: int, dtype: torch.dtype) -> KernelDensity:
    weights = torch.linspace(0.0, 1.0, 30)
    return KernelDensity(data(30, width, dtype), torch.linspace(0.4, 0.9, width), weights)


def mixture(width: int, dtype: torch.dtype) -> NoiseMixture:
    box = Independent(Uniform(torch.full((width,), -2.0, dtype=dtype), torch.full((width,), 2.5, dtype=dtype)), 1)
    parts = [KernelDensity(data(40, width, dtype), 0.6), fit_gaussian(data(90, width, dtype)), box]
    return NoiseMixture(parts, [0.5, 0.3, 0.2])


MEMBERS = [
    Member("kernel", lambda d, t: KernelDensity(data(50, d, t), 0.8), kernel_formula),
    Member("kernel-weighted", weighted_kernel, kernel_formula),
    Member("kernel-scott", lambda d, t: KernelDensity.from_data(data(60, d, t)), kernel_formula),
    Member(
        "smoothed",
        lambda d, t: smoothed(data(200, d, t), 0.8, max_centres=25, generator=torch.Generator().manual_seed(3)),
        kernel_formula,
    ),
    Member("gaussian-diagonal", lambda d, t: fit_gaussian(data(80, d, t)), gaussian_formula),
    Member("gaussian-full", lambda d, t: fit_gaussian(data(80, d, t), "full"), gaussian_formula),
    Member("mixture", mixture, mixture_formula, smooth=False),
    Member(
        "bernoulli",
        lambda d, t: BernoulliNoise(torch.linspace(0.1, 0.8, d, dtype=t)),
        bernoulli_formula,
        binary=True,
    ),
]
CONTINUOUS = [member for member in MEMBERS if not member.binary]
