r"""Efficiency of noise: the asymptotic variance of a contrastive estimator, compared with others (Eq. variance).

Means over data are means over given rows. Maximum likelihood has the inverse of Fisher's information, I⁻¹. The best
noise is p_n = w p_d with the weights w that make the trace of the covariance smallest, found on the same rows: for NCE
with log Z unknown and K = ν the problem is convex. It depends on the rule, on ν and on K, and is not p_d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from .. import _validation
from .._random import seeded_by
from ..noise import log_prob_or_minus_inf
from ..objectives import ContrastiveObjective, Fixed, RankingNCE
from ..scoring import ScoringRule

#: Steps of the search for the best noise.
_SEARCH = 600
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class NoiseEfficiency:
    """Asymptotic variances, times n, of an estimate from n data and K n noise samples.

    Attributes:
        covariance: of the model's parameters in their own order, shape (P, P).
        variance: its trace.
        likelihood: that of maximum likelihood.
        best: that of the best noise found, or None if it was not computed.
        effective_samples: rows that carry M of Eq. variance, or noise samples that carry log Z if that is estimated and
            they are fewer. Below 100 the variances mean little.

    >>> NoiseEfficiency(2 * torch.eye(2), variance=4.0, likelihood=2.0, best=3.0, effective_samples=900.0).against_best
    0.75
    """

    covariance: Tensor
    variance: float
    likelihood: float
    best: float | None
    effective_samples: float

    @property
    def against_likelihood(self) -> float:
        """Fraction of the data that maximum likelihood needs for the same variance, in (0, 1]."""
        return self.likelihood / self.variance

    @property
    def against_best(self) -> float:
        """Fraction of the data that an estimate with the best noise needs for the same variance."""
        if self.best is None:
            raise ValueError("against_best needs the best noise, found none; pass best=True")
        return self.best / self.variance


def noise_efficiency(
    objective: ContrastiveObjective,
    noise: Distribution | None = None,
    x: Tensor | None = None,
    *,
    samples: int = 4000,
    best: bool = True,
    generator: torch.Generator | None = None,
) -> NoiseEfficiency:
    """Compute the asymptotic variance of an estimator, of maximum likelihood and with the best noise.

    The model is assumed to be the truth, so use a nearly trained model, or one with a guess of its parameters. Among
    several candidates, choose the noise with the smallest variance:

        min(candidates, key=lambda noise: noise_efficiency(objective, noise, x, best=False).variance)

    Args:
        objective: gives the model, the rule, ν, K (``noise_samples``, drawn once), and whether log Z is known
            (``partition="fixed"``). The model must have ``log_prob(x)``, few parameters, and no direction in them that
            leaves the model unchanged.
        noise: p_n, by default the objective's own.
        x: draws of the model, or data, shape (n, …); by default ``model.sample(samples)``.
        samples: number of draws, if x is drawn.
        best: whether to search for the best noise.
        generator: seeds the draws of the model.

    >>> from fvnce import NCE
    >>> from torch.distributions import Independent, Normal
    >>> class Mean(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.mean = torch.nn.Parameter(torch.zeros(1))
    ...
    ...     def log_prob(self, x):
    ...         return Independent(Normal(self.mean, 1.0), 1).log_prob(x)
    >>> normal = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    >>> x = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
    >>> round(noise_efficiency(NCE(Mean(), normal), x=x).against_likelihood, 2)  # noise = data: ν/(1 + ν)
    0.5
    """
    if not isinstance(objective, ContrastiveObjective) or isinstance(objective, RankingNCE):
        raise TypeError(
            "objective must be a sum over data and noise, such as NCE(noise_ratio=K, partition='learned'), found "
            f"{type(objective).__name__}"
        )
    model = objective.model
    noise = objective.noise if noise is None else noise
    _validation.distribution("noise", noise)
    if not hasattr(model, "log_prob"):
        raise TypeError(f"model must have log_prob, the density of x alone, found {type(model).__name__} without it")
    if x is None:
        if not hasattr(model, "sample"):
            raise ValueError(f"x must be given for a model without sample, found {type(model).__name__}")
        with seeded_by(generator):
            x = model.sample(_validation.count("samples", samples, low=2))
    log_model, scores = _scores(model, x)
    log_z, carriers, g = objective.fitted_log_partition(), math.inf, scores
    if not isinstance(objective.partition, Fixed):
        estimate = objective.log_partition(100_000, generator=torch.Generator().manual_seed(0))
        log_z, carriers = estimate.value, estimate.effective_samples
        g = torch.cat([scores, -torch.ones_like(scores[:, :1])], 1)
    log_noise = log_prob_or_minus_inf(noise, x).double()
    _validation.finite_log_noise("x", log_noise)
    nu, free = objective.noise_ratio, scores.shape[1]
    # A noise term in closed form is that of infinitely many samples.
    count = math.inf if getattr(objective, "variance_reduced", False) else objective.noise_samples
    rule = objective.rule.unclipped()
    covariance, weight = _covariance(rule, log_model - float(log_z) - log_noise - math.log(nu), g, nu, count)
    # Fisher's information of the normalized model is the covariance of the scores, whatever their mean.
    centered = scores - scores.mean(0)
    return NoiseEfficiency(
        covariance[:free, :free],
        float(torch.trace(covariance[:free, :free])),
        float(torch.trace(_inverse(centered.T @ centered / len(x)))),
        _best(rule, g, nu, count, free) if best else None,
        min(carriers, float(weight.sum().square() / weight.square().sum())),
    )


def _scores(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p⁰ of each row, shape (n,), and its gradient in the parameters, shape (n, P), in float64."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(f"model must have parameters to estimate, found none in {type(model).__name__}")
    values, rows = [], []
    for part in x.split(_ROWS_AT_ONCE):
        with torch.enable_grad():
            value = model.log_prob(part)
        eye = torch.eye(len(part), dtype=value.dtype, device=value.device)
        gradients = torch.autograd.grad(
            value, parameters, eye, is_grads_batched=True, allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([each.reshape(len(part), -1) for each in gradients], 1).double())
        values.append(value.detach().double())
    return torch.cat(values), torch.cat(rows)


def _covariance(rule: ScoringRule, delta: Tensor, g: Tensor, nu: float, count: float) -> tuple[Tensor, Tensor]:
    """Return the covariance of Eq. variance at rows of data with Δ = log r, and the weight of each row in M."""
    value, slope = rule.log_slope(delta.detach())
    log_phi = value + slope * (delta - delta.detach())  # with its derivative, for the search for the best noise
    phi = log_phi.exp().unsqueeze(1)
    weight = (2 * log_phi).exp() + nu / count * (delta + 2 * log_phi).exp()
    inverse = _inverse((phi * g).T @ g / len(g))
    mean = (phi * g).mean(0)
    second = (weight.unsqueeze(1) * g).T @ g / len(g)
    return inverse @ (second - (1 + 1 / count) * torch.outer(mean, mean)) @ inverse, weight


def _best(rule: ScoringRule, g: Tensor, nu: float, count: float, free: int) -> float:
    """Return the smallest trace over noise w p_d, w ≥ 0 and of mean 1, by Adam on log w from w = 1, p_n = p_d."""
    log_w = torch.zeros(len(g), dtype=g.dtype, requires_grad=True)
    optimizer = torch.optim.Adam([log_w], lr=0.1)
    lowest = math.inf
    for _ in range(_SEARCH):
        normalized = log_w - log_w.logsumexp(0) + math.log(len(g))
        trace = torch.trace(_covariance(rule, -normalized - math.log(nu), g, nu, count)[0][:free, :free])
        lowest = min(lowest, trace.item())
        optimizer.zero_grad()
        trace.backward()
        optimizer.step()
    return lowest


def _inverse(matrix: Tensor) -> Tensor:
    values = torch.linalg.eigvalsh(matrix.detach())
    if not bool(values[0] > 1e-12 * values[-1]):
        raise ValueError(
            "model must be identified by its parameters, found directions in them that leave it as it is (its "
            f"information has eigenvalues from {values[0]:.2g} to {values[-1]:.2g}); freeze a parameter with "
            "requires_grad_(False)"
        )
    inverse: Tensor = torch.linalg.inv(matrix)
    return inverse
