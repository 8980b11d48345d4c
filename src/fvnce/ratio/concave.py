r"""Fitting a ratio that is linear in its coefficients, r = Kθ with θ ≥ 0.

    maximise over θ ≥ 0:   mean_num f1(log r) + mean_den f0(log r) − (λ/2)‖θ‖²

The double-ELBO property says that f1 and f0 are concave *in r*, and r is linear in θ: the problem is concave for every
such rule. α = 0 is the Kullback–Leibler importance estimation procedure, α = 1 least-squares importance fitting, whose
solution without the sign constraint is one linear system. Others are solved by Newton's method with a log-barrier.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.ratios import SMALLEST_RATIO
from ..scoring import PowerRule, ScoringRule

#: The barrier of each round of Newton steps; a warm start skips the first.
_BARRIERS = (1e-1, 1e-3, 1e-5)


def value_of(rule: ScoringRule, r_num: Tensor, r_den: Tensor) -> Tensor:
    """mean f1 + mean f0 at the given ratios: the criterion of cross-validation."""
    log_num, log_den = (r.clamp(min=SMALLEST_RATIO).log() for r in (r_num, r_den))
    return rule.f1(log_num).mean() + rule.f0(log_den).mean()


def fit_coefficients(
    rule: ScoringRule, k_num: Tensor, k_den: Tensor, penalty: float, start: Tensor | None = None
) -> Tensor:
    """θ for kernels of shape (n, L) at the numerator's samples and (m, L) at the denominator's.

    >>> k = torch.rand(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> least_squares = fit_coefficients(PowerRule(1), k[:25], k[25:], 0.1)
    >>> nearly = fit_coefficients(PowerRule(1 - 1e-9, clip=None), k[:25], k[25:], 0.1)
    >>> bool((least_squares - nearly).abs().max() < 1e-3)
    True
    """
    if isinstance(rule, PowerRule) and rule.alpha == 1 and rule.beta == 0:
        return _least_squares(k_num, k_den, penalty)
    theta = (
        k_den.new_full((k_den.shape[1],), 1 / float(k_den.sum(1).mean().clamp(min=1e-6))) if start is None else start
    )
    theta = theta.clamp(min=1e-4 * float(theta.max()))
    for barrier in _BARRIERS if start is None else _BARRIERS[1:]:
        for _ in range(20):
            theta, moved = _newton(rule, k_num, k_den, penalty, barrier, theta)
            if moved < 1e-4:
                break
    return theta


def _least_squares(k_num: Tensor, k_den: Tensor, penalty: float) -> Tensor:
    square = k_den.T @ k_den / len(k_den)
    square.diagonal().add_(penalty)
    found: Tensor = torch.linalg.solve(square, k_num.mean(0))
    return found.clamp(min=0.0)


def _newton(
    rule: ScoringRule, k_num: Tensor, k_den: Tensor, penalty: float, barrier: float, theta: Tensor
) -> tuple[Tensor, float]:
    """One damped step; how far it went, relative to θ."""
    r_num, r_den = (k @ theta + SMALLEST_RATIO for k in (k_num, k_den))
    (log1, rate1), (log0, rate0) = rule.log_slope(r_num.log()), rule.log_slope(r_den.log())
    phi1, phi0 = log1.exp(), log0.exp()
    # With φ = df1/dΔ: df1/dr = φ/r, d²f1/dr² = φ(rate − 1)/r², df0/dr = −φ, d²f0/dr² = −φ·rate/r.
    gradient = k_num.T @ (phi1 / r_num) / len(k_num) - k_den.T @ phi0 / len(k_den) - penalty * theta + barrier / theta
    curvature = (k_num * (phi1 * (1 - rate1) / r_num.square()).unsqueeze(1)).T @ k_num / len(k_num)
    curvature += (k_den * (phi0 * rate0 / r_den).unsqueeze(1)).T @ k_den / len(k_den)
    curvature.diagonal().add_(penalty + barrier / theta.square())
    step: Tensor = torch.linalg.solve(curvature, gradient)
    # Not all the way to the nearest wall.
    inward = torch.where(step < 0, -0.95 * theta / step, torch.inf)
    length = min(1.0, float(inward.min()))
    before = _barred(rule, k_num, k_den, penalty, barrier, theta)
    slope = float(gradient @ step)
    for _ in range(30):
        proposal = theta + length * step
        if _barred(rule, k_num, k_den, penalty, barrier, proposal) >= before + 1e-4 * length * slope:
            return proposal, float((length * step).abs().max() / theta.max())
        length /= 2
    return theta, 0.0


def _barred(rule: ScoringRule, k_num: Tensor, k_den: Tensor, penalty: float, barrier: float, theta: Tensor) -> float:
    inside = value_of(rule, k_num @ theta + SMALLEST_RATIO, k_den @ theta + SMALLEST_RATIO)
    return float(inside - penalty / 2 * theta.square().sum() + barrier * theta.log().sum())
