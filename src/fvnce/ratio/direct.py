r"""Density ratio r = p/q from samples of p and of q: ``fvnce.density_ratio``.

A kernel ratio maximizes the rule's J; bandwidth and penalty are chosen by K-fold cross-validation of the same J on
held-out samples, whose own kernels are left out: a kernel on a held-out sample is at distance zero from it,
which would favor narrow kernels. The ratio is linear in its coefficients, r = Kθ with θ ≥ 0, of which each fit finds

    max over θ ≥ 0:   mean_num f1(log r) + mean_den f0(log r) − (λ/2)‖θ‖².

The double-ELBO property says that f1 and f0 are concave *in r*, and r is linear in θ: the problem is concave for every
such rule, and strictly so for λ > 0. α = 0 is the Kullback–Leibler importance estimation procedure, α = 1 least-squares
importance fitting (LSIF). Each Newton step maximizes the quadratic model *under the constraint*,

    max over θ ≥ 0:   gᵀ(θ − θ₀) − ½ (θ − θ₀)ᵀ H (θ − θ₀)   ⇔   min over θ ≥ 0:   ‖Aθ − b‖²,   AᵀA = H,  Aᵀb = Hθ₀ + g,

a non-negative least-squares problem, which an active-set method solves exactly. At α = 1 the quadratic model is
exact, and one step is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from .. import _validation
from ..models.energy import SMALLEST_RATIO, KernelRatio, gaussian_kernels
from ..scoring import PowerRule, ScoringRule

#: Bandwidths tried, in multiples of the median distance between samples and centers.
BANDWIDTHS = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5)
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
#: Newton stops where its model promises less than this, in units of J.
PROMISE = 1e-12
MOST_STEPS = 100


@dataclass(frozen=True)
class DensityRatio:
    """Estimated density ratio r = p/q.

    Attributes:
        model: the ratio as a module; :func:`fvnce.save` writes it.
        bandwidth: of the kernels, as chosen.
        penalty: λ, as chosen.
        value: mean held-out J of the chosen settings, slightly too high because it chose them; or, if there was nothing
            to choose, J on the training samples, which is higher still. No standard error is given.
        tried: (bandwidth, penalty, mean held-out J) of all settings tried.

    >>> x = torch.linspace(-1, 1, 50)[:, None]
    >>> ratio = density_ratio(x, x, bandwidth=1.0, penalty=0.1)
    >>> ratio.bandwidth, ratio(x).shape, bool((ratio.log_ratio(x).exp() - ratio(x)).abs().max() < 1e-5)
    (1.0, torch.Size([50]), True)
    """

    model: KernelRatio
    bandwidth: float
    penalty: float
    value: float
    tried: tuple[tuple[float, float, float], ...]

    def __call__(self, x: Any) -> Tensor:
        """Return r(x) for rows x, shape (n,)."""
        ratio: Tensor = self.model(self._rows(x))
        return ratio

    def log_ratio(self, x: Any) -> Tensor:
        """Return log r(x) for rows x, shape (n,)."""
        return self.model.log_ratio(self._rows(x))

    def _rows(self, x: Any) -> Tensor:
        centres: Any = self.model.centres
        rows = _validation.array("x", x).to(centres)
        rows = rows.unsqueeze(1) if rows.ndim == 1 and centres.shape[1] == 1 else rows
        return _validation.finite_rows("x", _validation.points("x", rows, centres.shape[1]))


def density_ratio(
    x_num: Any,
    x_den: Any,
    *,
    alpha: float = 1.0,
    rule: ScoringRule | None = None,
    bandwidth: float | Sequence[float] | None = None,
    penalty: float | Sequence[float] = PENALTIES,
    centres: int = 100,
    folds: int = 5,
    seed: int = 0,
) -> DensityRatio:
    """Estimate r(x) = p(x)/q(x) from rows of p (``x_num``) and of q (``x_den``).

    Args:
        x_num: samples of p, shape (n, D), or (n,) for numbers.
        x_den: samples of q, shape (m, D).
        alpha: the rule (α, 0): 1 is least squares, 0 is Kullback–Leibler.
        rule: any double-ELBO rule instead; its clip is ignored.
        bandwidth: of the kernels, or several to choose from; None tries multiples of the median distance.
        penalty: λ of (λ/2)‖θ‖², or several to choose from.
        centres: kernels, placed on samples of p at random.
        folds: K of the cross-validation, if there is something to choose.
        seed: of the choice of centers and folds.

    >>> generator = torch.Generator().manual_seed(0)
    >>> p = torch.randn(400, 1, generator=generator)
    >>> q = 2 * torch.randn(400, 1, generator=generator)
    >>> ratio = density_ratio(p, q)
    >>> bool((ratio([[0.0]]) - 2.0).abs() < 0.3)  # N(0; 0, 1)/N(0; 0, 4) = 2
    True
    """
    num, den = _table("x_num", x_num), _table("x_den", x_den)
    if num.shape[1] != den.shape[1]:
        raise ValueError(f"x_num and x_den must have equally many columns, found {num.shape[1]} and {den.shape[1]}")
    rule = PowerRule(_validation.number("alpha", alpha, low=0.0, high=1.0)) if rule is None else rule
    if not isinstance(rule, ScoringRule) or not rule.variational:
        raise ValueError(
            f"rule must have the double-ELBO property, which makes the problem concave in r, found {rule!r}"
        )
    rule = rule.unclipped()
    generator = torch.Generator().manual_seed(_validation.count("seed", seed, low=0))
    index = torch.randperm(len(num), generator=generator)[: _validation.count("centres", centres)]
    distances = torch.cdist(torch.cat([num[:1000], den[:1000]]), num[index])
    median = float(distances.median()) or 1e-6 * (float(distances.max()) or 1.0)  # most rows may be equal
    widths = _settings("bandwidth", [multiple * median for multiple in BANDWIDTHS] if bandwidth is None else bandwidth)
    penalties = _settings("penalty", penalty)
    folds = _validation.count("folds", folds, low=2)
    tried: list[tuple[float, float, float]] = []
    width, lam, value = widths[0], penalties[0], float("nan")
    if len(widths) * len(penalties) > 1:
        parts = [folds_of("x_num", num, folds, generator), folds_of("x_den", den, folds, generator)]
        for width in widths:
            kernels = [gaussian_kernels(x, num[index], width) for x in (num, den)]
            values = _cross_validated(rule, kernels, index, penalties, parts)
            tried += [(width, lam, value) for lam, value in zip(penalties, values, strict=True)]
        width, lam, value = max(tried, key=lambda row: row[2])
    k_num, k_den = (gaussian_kernels(x, num[index], width) for x in (num, den))
    theta = fit_coefficients(rule, k_num, k_den, lam)
    if not tried:
        value = float(value_of(rule, k_num @ theta, k_den @ theta))
    return DensityRatio(KernelRatio(num[index], theta, width), width, lam, value, tuple(tried))


def _cross_validated(
    rule: ScoringRule, kernels: Sequence[Tensor], index: Tensor, penalties: Sequence[float], parts: Sequence[Tensor]
) -> list[float]:
    """Return the mean held-out J of each penalty; the solution of one penalty starts the next, from the largest down.

    ``kernels`` and ``parts``, the fold of each row, are those of the numerator and of the denominator; ``index`` says
    on which row of the numerator each kernel sits.
    """
    totals = dict.fromkeys(penalties, 0.0)
    folds = 1 + int(parts[0].max())
    for fold in range(folds):
        inside_num, inside_den = (part != fold for part in parts)
        kept = inside_num[index] if inside_num[index].any() else slice(None)
        num, den = (k[:, kept] for k in kernels)
        start: Tensor | None = None
        for lam in sorted(penalties, reverse=True):
            start = fit_coefficients(rule, num[inside_num], den[inside_den], lam, start)
            totals[lam] += float(value_of(rule, num[~inside_num] @ start, den[~inside_den] @ start)) / folds
    return [totals[lam] for lam in penalties]


def folds_of(name: str, x: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """Return the fold of each row, at random and of even size, shape (n,)."""
    if len(x) < folds:
        raise ValueError(f"{name} must have at least as many rows as folds, {folds}, found {len(x)}")
    return torch.randperm(len(x), generator=generator) % folds


def _settings(name: str, given: Any) -> list[float]:
    # A string is one wrong value, not a row of letters.
    values = [given] if isinstance(given, str) or np.ndim(given) == 0 else list(given)
    if not values:
        raise ValueError(f"{name} must hold at least one number, found none")
    return [_validation.number(name, value, low=0.0, open_low=True) for value in values]


def _table(name: str, value: Any) -> Tensor:
    table = _validation.array(name, value)
    return _validation.table(name, table.unsqueeze(1) if table.ndim == 1 else table, rows=2).double()


def value_of(rule: ScoringRule, r_num: Tensor, r_den: Tensor) -> Tensor:
    """Return mean f1 + mean f0 at the given ratios: the criterion of cross-validation."""
    log_num, log_den = (r.clamp(min=SMALLEST_RATIO).log() for r in (r_num, r_den))
    return rule.f1(log_num).mean() + rule.f0(log_den).mean()


def fit_coefficients(
    rule: ScoringRule, k_num: Tensor, k_den: Tensor, penalty: float, start: Tensor | None = None
) -> Tensor:
    """Return θ for kernels of shape (n, L) at the numerator's samples and (m, L) at the denominator's.

    ``start`` is the solution of a similar problem, if there is one.

    >>> k = torch.rand(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> least_squares = fit_coefficients(PowerRule(1), k[:25], k[25:], 0.1)
    >>> nearly = fit_coefficients(PowerRule(1 - 1e-9, clip=None), k[:25], k[25:], 0.1)
    >>> bool((least_squares - nearly).abs().max() < 1e-7)
    True
    """
    if isinstance(rule, PowerRule) and rule.alpha == 1 and rule.beta == 0:
        return _constrained(k_den.T @ k_den / len(k_den), k_num.mean(0), penalty)
    if start is None:
        start = k_den.new_full((k_den.shape[1],), 1 / float(k_den.sum(1).mean().clamp(min=1e-6)))
    theta = start
    for _ in range(MOST_STEPS):
        theta, promise = _newton(rule, k_num, k_den, penalty, theta)
        if promise < PROMISE:
            break
    return theta


def _constrained(square: Tensor, linear: Tensor, penalty: float) -> Tensor:
    """Return the argmax over θ ≥ 0 of linear·θ − ½ θᵀ(square + λ)θ, for a positive semidefinite square."""
    values, vectors = torch.linalg.eigh(square)
    # No eigenvalue is below 0 but by rounding, so none of the sum is below λ.
    root = (values.clamp(min=0.0) + penalty).sqrt()
    matrix, vector = (root * vectors).T.cpu().numpy(), (vectors.T @ linear / root).cpu().numpy()
    return torch.from_numpy(nnls(matrix, vector, maxiter=30 * len(linear))[0]).to(linear)


def _newton(rule: ScoringRule, k_num: Tensor, k_den: Tensor, penalty: float, theta: Tensor) -> tuple[Tensor, float]:
    """Take one damped step and return what it promised: the slope of J along the whole of it."""
    r_num, r_den = (k @ theta + SMALLEST_RATIO for k in (k_num, k_den))
    (log1, rate1), (log0, rate0) = rule.log_slope(r_num.log()), rule.log_slope(r_den.log())
    phi1, phi0 = log1.exp(), log0.exp()
    # With φ = df1/dΔ: df1/dr = φ/r, d²f1/dr² = φ(rate − 1)/r², df0/dr = −φ, d²f0/dr² = −φ·rate/r.
    gradient = k_num.T @ (phi1 / r_num) / len(k_num) - k_den.T @ phi0 / len(k_den)
    curvature = (k_num * (phi1 * (1 - rate1) / r_num.square()).unsqueeze(1)).T @ k_num / len(k_num)
    curvature += (k_den * (phi0 * rate0 / r_den).unsqueeze(1)).T @ k_den / len(k_den)
    step = _constrained(curvature, curvature @ theta + gradient, penalty) - theta
    promise = float((gradient - penalty * theta) @ step)
    before = _penalized(rule, k_num, k_den, penalty, theta)
    length = 1.0
    for _ in range(40):
        proposal = theta + length * step
        if _penalized(rule, k_num, k_den, penalty, proposal) >= before + 1e-4 * length * promise:
            return proposal, promise
        length /= 2
    # Not even a tiny step gains: what is promised is rounding.
    return theta, 0.0


def _penalized(rule: ScoringRule, k_num: Tensor, k_den: Tensor, penalty: float, theta: Tensor) -> float:
    inside = value_of(rule, k_num @ theta + SMALLEST_RATIO, k_den @ theta + SMALLEST_RATIO)
    return float(inside - penalty / 2 * theta.square().sum())
