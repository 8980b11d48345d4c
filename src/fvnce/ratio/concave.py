r"""Fitting a ratio that is linear in its coefficients, r = Kθ with θ ≥ 0.

    maximise over θ ≥ 0:   mean_num f1(log r) + mean_den f0(log r) − (λ/2)‖θ‖²

The double-ELBO property says that f1 and f0 are concave *in r*, and r is linear in θ: the problem is concave for every
such rule, and strictly so for λ > 0. α = 0 is the Kullback–Leibler importance estimation procedure, α = 1 least-squares
importance fitting. Each Newton step maximises the quadratic model *under the constraint*,

    max over θ ≥ 0:   gᵀ(θ − θ₀) − ½ (θ − θ₀)ᵀ H (θ − θ₀)   ⇔   min over θ ≥ 0:   ‖Aθ − b‖²,   AᵀA = H,  Aᵀb = Hθ₀ + g,

a non-negative least-squares problem, which an active-set method solves exactly. At α = 1 the model is the problem,
and one step is the solution.
"""

from __future__ import annotations

import torch
from scipy.optimize import nnls
from torch import Tensor

from ..models.ratios import SMALLEST_RATIO
from ..scoring import PowerRule, ScoringRule

#: Newton stops where its model promises less than this, in units of J.
PROMISE = 1e-12
MOST_STEPS = 100


def value_of(rule: ScoringRule, r_num: Tensor, r_den: Tensor) -> Tensor:
    """mean f1 + mean f0 at the given ratios: the criterion of cross-validation."""
    log_num, log_den = (r.clamp(min=SMALLEST_RATIO).log() for r in (r_num, r_den))
    return rule.f1(log_num).mean() + rule.f0(log_den).mean()


def fit_coefficients(
    rule: ScoringRule, k_num: Tensor, k_den: Tensor, penalty: float, start: Tensor | None = None
) -> Tensor:
    """θ for kernels of shape (n, L) at the numerator's samples and (m, L) at the denominator's.

    ``start`` is the solution of a similar problem, if there is one.

    >>> k = torch.rand(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> least_squares = fit_coefficients(PowerRule(1), k[:25], k[25:], 0.1)
    >>> nearly = fit_coefficients(PowerRule(1 - 1e-9, clip=None), k[:25], k[25:], 0.1)
    >>> bool((least_squares - nearly).abs().max() < 1e-7)
    True
    """
    if isinstance(rule, PowerRule) and rule.alpha == 1 and rule.beta == 0:
        return _constrained(k_den.T @ k_den / len(k_den), k_num.mean(0), penalty)
    theta = (
        k_den.new_full((k_den.shape[1],), 1 / float(k_den.sum(1).mean().clamp(min=1e-6))) if start is None else start
    )
    for _ in range(MOST_STEPS):
        theta, promise = _newton(rule, k_num, k_den, penalty, theta)
        if promise < PROMISE:
            break
    return theta


def _constrained(square: Tensor, linear: Tensor, penalty: float) -> Tensor:
    """argmax over θ ≥ 0 of linear·θ − ½ θᵀ(square + λ)θ, for a positive semidefinite square."""
    values, vectors = torch.linalg.eigh(square)
    # No eigenvalue is below 0 but by rounding, so none of the sum is below λ.
    root = (values.clamp(min=0.0) + penalty).sqrt()
    found, _ = nnls(
        (root * vectors).T.cpu().numpy(), (vectors.T @ linear / root).cpu().numpy(), maxiter=30 * len(linear)
    )
    return torch.from_numpy(found).to(linear)


def _newton(rule: ScoringRule, k_num: Tensor, k_den: Tensor, penalty: float, theta: Tensor) -> tuple[Tensor, float]:
    """One damped step, and what it promised: the slope of J along the whole of it."""
    r_num, r_den = (k @ theta + SMALLEST_RATIO for k in (k_num, k_den))
    (log1, rate1), (log0, rate0) = rule.log_slope(r_num.log()), rule.log_slope(r_den.log())
    phi1, phi0 = log1.exp(), log0.exp()
    # With φ = df1/dΔ: df1/dr = φ/r, d²f1/dr² = φ(rate − 1)/r², df0/dr = −φ, d²f0/dr² = −φ·rate/r.
    gradient = k_num.T @ (phi1 / r_num) / len(k_num) - k_den.T @ phi0 / len(k_den)
    curvature = (k_num * (phi1 * (1 - rate1) / r_num.square()).unsqueeze(1)).T @ k_num / len(k_num)
    curvature += (k_den * (phi0 * rate0 / r_den).unsqueeze(1)).T @ k_den / len(k_den)
    step = _constrained(curvature, curvature @ theta + gradient, penalty) - theta
    promise = float((gradient - penalty * theta) @ step)
    before = _penalised(rule, k_num, k_den, penalty, theta)
    length = 1.0
    for _ in range(40):
        proposal = theta + length * step
        if _penalised(rule, k_num, k_den, penalty, proposal) >= before + 1e-4 * length * promise:
            return proposal, promise
        length /= 2
    # Not even a tiny step gains: what is promised is rounding.
    return theta, 0.0


def _penalised(rule: ScoringRule, k_num: Tensor, k_den: Tensor, penalty: float, theta: Tensor) -> float:
    inside = value_of(rule, k_num @ theta + SMALLEST_RATIO, k_den @ theta + SMALLEST_RATIO)
    return float(inside - penalty / 2 * theta.square().sum())
