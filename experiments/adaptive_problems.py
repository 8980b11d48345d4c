r"""Three kinds of problem on which noise is compared, each with a log Z that is known at whatever model is reached.

components  p⁰(x) = Π_k sech(b_k·x) in D dimensions:  log Z = D log π − log |det B|. Data from a B* with correlated
            columns, training from a B that is off by 30 %. Error: |B − B*|/|B*|.
factors     z ~ N(0, I), x|z ~ N(Wz + b, σ²I) with D/4 factors, probabilistic PCA, with the exact posterior for an
            encoder: log Z = 0, and log p(x) is known. Training from W, b and σ that are off. Error: |Σ − Σ*|/|Σ*| of
            the covariance Σ = WWᵀ + σ²I, which is what W, known up to a rotation, is good for.
plane       an energy network for one of four densities in the plane: log Z by a grid. Error: KL(truth‖model) in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal, Normal

from fvnce import EnergyModel, GaussianDecoder, LatentVariableModel, mlp
from fvnce.paper.setting import standard_normal

from .toys import TOYS


@dataclass(frozen=True)
class Problem:
    """Data, the model to start from, its encoder if it has latents, and what is known.

    Attributes:
        x: data.
        model: trained in place.
        encoder: q(z|x) or None.
        error: how far the model is from the truth.
        log_partition: log Z of the model as it is.
        lr: learning rate over that of the task.
        likelihood_error: the error of maximum likelihood, where that is known in closed form.
    """

    x: Tensor
    model: Any
    encoder: Callable[[Tensor], Any] | None
    error: Callable[[], float]
    log_partition: Callable[[], float]
    lr: float
    likelihood_error: float | None = None


class Components(nn.Module):
    """log p⁰(x) = −Σ_k log cosh(b_k·x)."""

    def __init__(self, b: Tensor) -> None:
        super().__init__()
        self.b = nn.Parameter(b.clone())

    def log_prob(self, x: Tensor) -> Tensor:
        """The unnormalised log-density, shape (B,)."""
        y = (x @ self.b.T).abs()
        return -(y + nn.functional.softplus(-2 * y) - math.log(2)).sum(1)

    def log_partition(self) -> float:
        """log Z in closed form."""
        return len(self.b) * math.log(math.pi) - float(torch.linalg.slogdet(self.b.detach())[1])


def components(dimensions: int, rows: int, off: float, seed: int) -> Problem:
    """The quantile of sech(y)/π is log tan(πu/2)."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(dimensions, dimensions, generator=generator)

    truth = torch.eye(dimensions) + 0.5 * normal() / math.sqrt(dimensions)
    start = truth + off * truth.norm() * (noise := normal()) / noise.norm()
    u = torch.rand(rows, dimensions, generator=generator, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    x = torch.linalg.solve(truth.double(), (math.pi * u / 2).tan().log().T).T.float()
    model = Components(start)

    def error() -> float:
        return float((model.b.detach() - truth).norm() / truth.norm())

    # Entries of B are of the order of 1/√D.
    return Problem(x, model, None, error, model.log_partition, math.sqrt(2 / dimensions))


class Factors(LatentVariableModel):
    """Probabilistic PCA as a latent-variable model with a Gaussian decoder, and its exact posterior."""

    def __init__(self, weight: Tensor, bias: Tensor, scale: float) -> None:
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        super().__init__(standard_normal(weight.shape[1]), GaussianDecoder(linear, scale=scale, learned="shared"))

    def posterior(self, x: Tensor) -> MultivariateNormal:
        """p(z|x) = N(M⁻¹Wᵀ(x − b), σ²M⁻¹), M = WᵀW + σ²I."""
        weight, bias, variance = self._parts()
        m = weight.T @ weight + variance * torch.eye(weight.shape[1])
        mean = torch.linalg.solve(m, weight.T @ (x - bias).unsqueeze(-1)).squeeze(-1)
        return MultivariateNormal(mean, precision_matrix=m / variance, validate_args=False)

    @torch.no_grad()
    def covariance(self) -> Tensor:
        """WWᵀ + σ²I."""
        weight, _, variance = self._parts()
        return weight @ weight.T + variance * torch.eye(len(weight))

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        decoder: Any = self.decoder
        return decoder.network.weight, decoder.network.bias, decoder.scale.square()


def factors(dimensions: int, rows: int, off: float, seed: int) -> Problem:
    """A quarter as many factors as columns, each as strong as to explain a variance of 1 in a column, and σ = 1/2."""
    generator = torch.Generator().manual_seed(seed)
    count = max(1, dimensions // 4)
    weight = torch.randn(dimensions, count, generator=generator) / math.sqrt(count)
    bias = torch.randn(dimensions, generator=generator)
    z, noise = (torch.randn(rows, width, generator=generator) for width in (count, dimensions))
    x = z @ weight.T + bias + 0.5 * noise
    away = torch.randn(dimensions, count, generator=generator)
    model = Factors(weight + off * weight.norm() * away / away.norm(), bias + off, 0.5 * (1 + off))
    target = Factors(weight, bias, 0.5).covariance()

    def error() -> float:
        return float((model.covariance() - target).norm() / target.norm())

    best = float((most_likely_covariance(x, count) - target).norm() / target.norm())
    return Problem(x, model, model.posterior, error, lambda: 0.0, 1.0, best)


def most_likely_covariance(x: Tensor, count: int) -> Tensor:
    """Σ of probabilistic PCA by maximum likelihood: all but the largest eigenvalues are their mean."""
    values, vectors = torch.linalg.eigh(x.T.cov(correction=0))
    kept = values.clone()
    kept[:-count] = values[:-count].mean()
    covariance: Tensor = vectors * kept @ vectors.T
    return covariance


def plane(name: str, rows: int, seed: int) -> Problem:
    """An energy network with a wide Gaussian for its reference, which makes it integrable."""
    generator = torch.Generator().manual_seed(seed)
    x, test = TOYS[name].sample(rows, generator), TOYS[name].sample(10_000, generator)
    truth = float(TOYS[name].log_prob(test).mean())
    torch.manual_seed(seed)
    wide = Independent(Normal(torch.zeros(2), 3 * torch.ones(2)), 1)
    model = EnergyModel(mlp([2, 64, 64, 1], nn.SiLU), reference=wide)
    # The reference has 1.5 % of its mass outside, and cells are a third as wide as the narrowest ring or moon.
    points = torch.linspace(-8, 8, 401)
    grid, area = torch.cartesian_prod(points, points), float(points[1] - points[0]) ** 2

    @torch.no_grad()
    def log_partition() -> float:
        return float(model.log_prob(grid).double().logsumexp(0)) + math.log(area)

    @torch.no_grad()
    def error() -> float:
        return truth - float(model.log_prob(test).mean()) + log_partition()

    return Problem(x, model, None, error, log_partition, 0.5)
