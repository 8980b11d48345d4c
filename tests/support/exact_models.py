"""Models whose posterior and marginal are known: against these everything else is tested.

Both have ``log_joint(x, z)``, the marginal ``log_prob(x)``, and ``posterior(x)``, which serves as the exact encoder.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MultivariateNormal

from fvnce.io import register
from fvnce.models import DiagonalNormal
from fvnce.models.distributions import wide


class LinearGaussianModel(nn.Module):
    """z ~ N(0, I), x|z ~ N(Wz + b, σ²I): factor analysis with one noise level.

    p(x) = N(b, WWᵀ + σ²I) and p(z|x) = N(M⁻¹Wᵀ(x−b), σ²M⁻¹) with M = WᵀW + σ²I.

    >>> model = LinearGaussianModel(torch.ones(3, 2), torch.zeros(3), 0.5)
    >>> x = model.sample(4)
    >>> z = model.posterior(x).sample()
    >>> gap = model.log_joint(x, z) - model.posterior(x).log_prob(z) - model.log_prob(x)
    >>> bool(gap.abs().max() < 1e-4)  # log p(x, z) − log p(z|x) = log p(x)
    True
    """

    def __init__(self, weight: Tensor, bias: Tensor, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(bias.clone())
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale), dtype=weight.dtype))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """Return log p(x, z) of rows x and latents z."""
        weight, bias, scale = wide(self.weight), wide(self.bias), wide(self.log_scale).exp()
        z = wide(z)
        prior = DiagonalNormal(torch.zeros_like(z), z.new_ones(()))
        return prior.log_prob(z) + DiagonalNormal(z @ weight.T + bias, scale).log_prob(x)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log marginal density of rows x."""
        weight, bias = wide(self.weight), wide(self.bias)
        eye = torch.eye(len(bias), dtype=bias.dtype, device=bias.device)
        covariance = weight @ weight.T + (2 * wide(self.log_scale)).exp() * eye
        result: Tensor = MultivariateNormal(bias, covariance, validate_args=False).log_prob(wide(x))
        return result

    def posterior(self, x: Tensor) -> MultivariateNormal:
        """Return the exact posterior p(z|x)."""
        weight, variance = wide(self.weight), (2 * wide(self.log_scale)).exp()
        m = weight.T @ weight + variance * torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        mean = torch.linalg.solve(m, weight.T @ (wide(x) - wide(self.bias)).unsqueeze(-1)).squeeze(-1)
        return MultivariateNormal(mean, precision_matrix=m / variance, validate_args=False)

    @torch.no_grad()
    def sample(self, n: int) -> Tensor:
        """Return n draws of x."""
        z = torch.randn(n, self.weight.shape[1], dtype=self.weight.dtype, device=self.weight.device)
        noise = torch.randn(n, len(self.bias), dtype=self.weight.dtype, device=self.weight.device)
        return z @ self.weight.T + self.bias + self.log_scale.exp() * noise


class GaussianMixtureModel(nn.Module):
    """z ~ Categorical(π), x|z ~ N(m_z, s_z² I), with z an integer.

    >>> model = GaussianMixtureModel(torch.zeros(2), torch.tensor([[-1.0], [1.0]]), torch.ones(2))
    >>> model.posterior(torch.zeros(3, 1)).probs
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000],
            [0.5000, 0.5000]], grad_fn=<SoftmaxBackward0>)
    """

    def __init__(self, logits: Tensor, means: Tensor, scales: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())
        self.means = nn.Parameter(means.clone())
        self.log_scales = nn.Parameter(scales.log())

    def _log_joint_all(self, x: Tensor) -> Tensor:
        """Return log p(x, z) for every z, last."""
        component = DiagonalNormal(wide(self.means), wide(self.log_scales).exp().unsqueeze(-1))
        return wide(self.logits).log_softmax(-1) + component.log_prob(x.unsqueeze(-2))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """Return log p(x, z) for z of shape (B,) or (K, B)."""
        all_z = self._log_joint_all(x)
        return all_z.expand(*z.shape, -1).gather(-1, z.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log marginal density of rows x."""
        return self._log_joint_all(x).logsumexp(-1)

    def posterior(self, x: Tensor) -> Categorical:
        """Return the exact posterior p(z|x)."""
        return Categorical(logits=self._log_joint_all(x), validate_args=False)

    @torch.no_grad()
    def sample(self, n: int) -> Tensor:
        """Return n draws of x."""
        z = Categorical(logits=wide(self.logits)).sample((n,))
        noise = torch.randn(n, self.means.shape[1], dtype=self.means.dtype, device=self.means.device)
        return self.means[z] + self.log_scales.exp()[z].unsqueeze(-1) * noise


register(LinearGaussianModel, stand_ins={"scale": lambda _: 1.0}, methods=("posterior",))
register(
    GaussianMixtureModel, stand_ins={"scales": lambda model: torch.ones_like(model.log_scales)}, methods=("posterior",)
)
