r"""Estimates of many data sets at once, and what theory says of their errors.

For a rule with φ = df1/dΔ and log-ratios Δ = log p⁰_θ − c − log p_n − log ν whose gradient in (θ, c) is g,

    score       s = E_data[φ g] − ν E_noise[rφ g]
    curvature   H = E[φ g gᵀ],                        over data, or noise weighted by νr: equal at the truth
    covariance  V = H⁻¹ Σ H⁻¹/n,   Σ = Cov_data[φ g] + ν Cov_noise[rφ g].

The maximum of J is found by damped steps H⁻¹s, in float64, for all replicas (the leading dimension) together. With
exact posteriors the maximum of the fvNCE bound over q is J itself, so these are its estimates too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fvnce.scoring import ScoringRule


@dataclass(frozen=True)
class Side:
    """Log-ratios Δ, shape (R, n), their gradients, shape (R, n, k), and weights that sum to one, shape (R, n)."""

    delta: Tensor
    gradient: Tensor
    weight: Tensor


#: Parameters, shape (R, k), to the data side and the noise side.
Sides = Callable[[Tensor], tuple[Side, Side]]


def value(rule: ScoringRule, data: Side, noise: Side, noise_ratio: float) -> Tensor:
    """Return J of each replica."""
    earned = (data.weight * rule.f1(data.delta)).sum(1)
    return earned + noise_ratio * (noise.weight * rule.f0(noise.delta)).sum(1)


def score_and_curvature(rule: ScoringRule, data: Side, noise: Side, noise_ratio: float) -> tuple[Tensor, Tensor]:
    """s and H, the latter averaged over its two estimates."""
    phi = data.weight * rule.log_slope(data.delta)[0].exp()
    counter = noise_ratio * noise.weight * (rule.log_slope(noise.delta)[0] + noise.delta).exp()
    score = torch.einsum("rn,rnk->rk", phi, data.gradient) - torch.einsum("rn,rnk->rk", counter, noise.gradient)
    return score, (_gram(phi, data.gradient) + _gram(counter, noise.gradient)) / 2


def covariance(rule: ScoringRule, data: Side, noise: Side, noise_ratio: float, n: Tensor | float) -> Tensor:
    """V for n data samples, shape (R, k, k): by samples the sandwich estimate, by quadrature the asymptotic one."""
    phi = rule.log_slope(data.delta)[0].exp()
    counter = (rule.log_slope(noise.delta)[0] + noise.delta).exp()
    middle = _covariance(data.weight, phi, data.gradient)
    middle = middle + noise_ratio * _covariance(noise.weight, counter, noise.gradient)
    curvature = _gram(data.weight * phi, data.gradient)
    inverse: Tensor = torch.linalg.inv(curvature)
    return inverse @ middle @ inverse / n


def _gram(weight: Tensor, gradient: Tensor) -> Tensor:
    return (gradient * weight.unsqueeze(-1)).transpose(1, 2) @ gradient


def _covariance(weight: Tensor, factor: Tensor, gradient: Tensor) -> Tensor:
    mean = torch.einsum("rn,rnk->rk", weight * factor, gradient)
    return _gram(weight * factor.square(), gradient) - mean.unsqueeze(2) * mean.unsqueeze(1)


#: Parameters, shape (R, k), to J (R,), its score (R, k) and its curvature (R, k, k).
Evaluation = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def maximise(evaluate: Evaluation, start: Tensor, *, steps: int = 40, largest: float = 1.0) -> Tensor:
    """Damped scoring steps for every replica; a step that lowers its J is not taken and the damping grows.

    Args:
        evaluate: J, score and curvature.
        start: shape (R, k).
        steps: at most.
        largest: no parameter moves further in one step.

    >>> def parabola(t):
    ...     return -((t - 2) ** 2).sum(1), 2 * (2 - t), torch.full((len(t), 1, 1), 2.0)
    >>> maximise(parabola, torch.zeros(1, 1)).round(decimals=4)
    tensor([[2.]])
    """
    theta = start.clone()
    damping = theta.new_full((len(theta),), 1e-3)
    best, score, curvature = evaluate(theta)
    for _ in range(steps):
        scale = curvature.diagonal(dim1=1, dim2=2).clamp(min=1e-12)
        damped = curvature + torch.diag_embed(damping.unsqueeze(1) * scale + 1e-12)
        step = torch.linalg.solve(damped, score)
        step = step * (largest / step.abs().amax(1, keepdim=True).clamp(min=largest))
        proposal = theta + step
        new_value, new_score, new_curvature = evaluate(proposal)
        better = new_value >= best - 1e-12 * best.abs()
        theta = torch.where(better[:, None], proposal, theta)
        score = torch.where(better[:, None], new_score, score)
        curvature = torch.where(better[:, None, None], new_curvature, curvature)
        best = torch.where(better, new_value, best)
        damping = torch.where(better, damping / 5, damping * 10).clamp(1e-9, 1e6)
        if float(step.abs().amax()) < 1e-7 and bool(better.all()):
            break
    return theta


def estimate(rule: ScoringRule, sides: Sides, start: Tensor, noise_ratio: float = 1.0, *, steps: int = 40) -> Tensor:
    """The maximum of J near ``start``, for every replica."""

    def evaluate(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        both = sides(theta)
        return value(rule, *both, noise_ratio), *score_and_curvature(rule, *both, noise_ratio)

    return maximise(evaluate, start, steps=steps)


def best_estimate(
    rule: ScoringRule, sides: Sides, starts: list[Tensor], noise_ratio: float = 1.0, *, steps: int = 40
) -> Tensor:
    """The best of the maxima reached from several starts: J need not be concave in θ."""
    estimates = torch.stack([estimate(rule, sides, start, noise_ratio, steps=steps) for start in starts])
    values = torch.stack([value(rule, *sides(theta), noise_ratio) for theta in estimates])
    best = values.argmax(0)
    return estimates[best, torch.arange(estimates.shape[1])]


def coverage(estimates: Tensor, truth: Tensor, errors: Tensor, level: float = 1.959964) -> float:
    """The share of the true parameters inside their interval, estimate ± level·error (95% by default)."""
    return float(((estimates - truth).abs() <= level * errors).double().mean())
