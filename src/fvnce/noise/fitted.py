r"""Simple noise fitted to data: Gaussians with shrunk covariance, and a kernel density on some of the rows.

Shrinkage of intensity s draws a covariance towards its mean variance: (1 − s) S + s (tr S / D) I. The
default of the full Gaussian is Ledoit and Wolf's (2004) estimate of the best s, which needs only fourth
moments of the data.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal

from .. import _checks
from .kde import KernelDensity


def fit_gaussian(
    X: Tensor, covariance: str = "diagonal", shrinkage: float | None = None
) -> Independent[Normal] | MultivariateNormal:
    """A Gaussian with the mean and (shrunk) covariance of the rows of X.

    Args:
        X: shape (n, D), n >= 2; for ``"diagonal"`` also (n,) + event_shape.
        covariance: ``"diagonal"`` gives an ``Independent(Normal)``, ``"full"`` a ``MultivariateNormal``.
        shrinkage: intensity in [0, 1] towards the mean variance. None stands for 0 if diagonal and for the
            estimate of Ledoit and Wolf if full.

    A covariance that stays singular, such as a constant column without shrinkage, is an error.

    >>> X = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 3.0])
    >>> fit_gaussian(X).base_dist.scale
    tensor([0.9972, 2.0031, 3.0261])
    >>> fit_gaussian(X, "full").event_shape
    torch.Size([3])
    """
    _checks.choice("covariance", covariance, ("diagonal", "full"))
    data = _checks.table("X", X, rows=2) if covariance == "full" else _checks.samples("X", X, rows=2)
    if shrinkage is not None:
        shrinkage = _checks.number("shrinkage", shrinkage, low=0, high=1)
    mean = data.double().mean(0)
    centred = data.double() - mean
    variances = centred.square().mean(0)
    if not bool((variances > 0).any()):
        raise ValueError("X must vary, found every row equal to the first")
    if covariance == "diagonal":
        share = shrinkage or 0.0
        scale = ((1 - share) * variances + share * variances.mean()).sqrt()
        _checks.varying(scale, "without shrinkage", "drop them or pass shrinkage=0.01")
        return Independent(Normal(mean.to(data.dtype), scale.to(data.dtype)), data.ndim - 1)
    matrix = centred.T @ centred / len(data)
    share = _ledoit_wolf(centred) if shrinkage is None else shrinkage
    matrix = (1 - share) * matrix
    matrix.diagonal().add_(share * variances.mean())
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info):
        raise ValueError(
            f"the covariance of X must be positive definite, found it singular with shrinkage={share:g}; "
            "use a larger shrinkage"
        )
    return MultivariateNormal(mean.to(data.dtype), scale_tril=factor.to(data.dtype))


def smoothed(
    X: Tensor,
    bandwidth: float | str | Tensor,
    *,
    max_centres: int = 10_000,
    generator: torch.Generator | None = None,
) -> KernelDensity:
    """Smoothed data: a kernel density on at most ``max_centres`` rows of X, chosen at random without
    replacement.

    As a component of a mixture it makes the noise cover the data, which keeps objectives bounded.

    >>> X = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    >>> smoothed(X, 0.5, max_centres=30, generator=torch.Generator().manual_seed(0)).centres.shape
    torch.Size([30, 2])
    """
    data = _checks.samples("X", X)
    limit = _checks.count("max_centres", max_centres)
    if len(data) > limit:
        device = data.device if generator is None else generator.device
        chosen = torch.randperm(len(data), generator=generator, device=device)[:limit]
        data = data[chosen.sort().values.to(data.device)]
    return KernelDensity.from_data(data, bandwidth)


def _ledoit_wolf(centred: Tensor) -> float:
    # Not at the top: nothing else in this room needs scikit-learn.
    from sklearn.covariance import ledoit_wolf_shrinkage

    return float(ledoit_wolf_shrinkage(centred.cpu().numpy(), assume_centered=True))
