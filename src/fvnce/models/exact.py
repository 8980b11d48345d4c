r"""Models whose posterior and marginal are known: against these everything else is tested.

All have ``log_joint(x, z)``, the marginal ``log_prob(x)``, and ``posterior(x)``, which serves as the exact encoder.
Those of a restricted Boltzmann machine,

    log p⁰(v, h) = aᵀv + bᵀh + vᵀWh,     v ∈ {0,1}^D,  h ∈ {0,1}^M

are unnormalized: log p⁰(v) = aᵀv + Σ_j softplus(b_j + W_jᵀv), and log Z is a sum over 2^min(D, M) states, which is
exact while that is small. Its posterior is a product of Bernoullis with logits b + Wᵀv.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MultivariateNormal
from torch.nn.functional import softplus

from .. import _validation
from .._random import place
from .distributions import BinaryVector, DiagonalNormal, binary_states, wide


class LinearGaussianModel(nn.Module):
    """z ~ N(0, I), x|z ~ N(Wz + b, σ²I): factor analysis with one noise level.

    p(x) = N(b, WWᵀ + σ²I) and p(z|x) = N(M⁻¹Wᵀ(x−b), σ²M⁻¹) with M = WᵀW + σ²I.

    Args:
        weight: W, a column for each factor.
        bias: b, one number for each column of x.
        scale: σ.

    >>> model = LinearGaussianModel(torch.ones(3, 2), torch.zeros(3), 0.5)
    >>> x = model.sample(4)
    >>> z = model.posterior(x).sample()
    >>> gap = model.log_joint(x, z) - model.posterior(x).log_prob(z) - model.log_prob(x)
    >>> bool(gap.abs().max() < 1e-4)  # log p(x, z) − log p(z|x) = log p(x)
    True
    """

    def __init__(self, weight: Tensor, bias: Tensor, scale: float) -> None:
        super().__init__()
        if weight.dim() != 2 or bias.shape != weight.shape[:1]:
            shapes = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            raise ValueError(f"weight must have shape (D, M) for bias of shape (D,), found {shapes}")
        scale = _validation.number("scale", scale, low=0.0, open_low=True)
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

    Args:
        logits: log π up to a constant, shape (C,).
        means: m, shape (C, D).
        scales: s, shape (C,).

    >>> model = GaussianMixtureModel(torch.zeros(2), torch.tensor([[-1.0], [1.0]]), torch.ones(2))
    >>> model.posterior(torch.zeros(3, 1)).probs
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000],
            [0.5000, 0.5000]], grad_fn=<SoftmaxBackward0>)
    """

    def __init__(self, logits: Tensor, means: Tensor, scales: Tensor) -> None:
        super().__init__()
        if means.dim() != 2 or not logits.shape == scales.shape == means.shape[:1]:
            raise ValueError(
                "means must have shape (C, D) for logits and scales of shape (C,), found "
                f"{tuple(means.shape)}, {tuple(logits.shape)} and {tuple(scales.shape)}"
            )
        _validation.entries("scales", scales, scales > 0, "be > 0")
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


class RestrictedBoltzmannMachine(nn.Module):
    """p⁰(v, h) = exp(aᵀv + bᵀh + vᵀWh), with its marginal, its posterior and, while small, its log Z.

    Args:
        weight: W, shape (D, M).
        visible: a, shape (D,).
        hidden: b, shape (M,).

    >>> machine = RestrictedBoltzmannMachine(torch.ones(3, 2), torch.zeros(3), torch.zeros(2))
    >>> v = binary_states(3)
    >>> torch.allclose(machine.log_prob(v).logsumexp(0), machine.log_partition())
    True
    """

    normalized = False

    def __init__(self, weight: Tensor, visible: Tensor, hidden: Tensor) -> None:
        super().__init__()
        if weight.shape != (*visible.shape, *hidden.shape) or weight.dim() != 2:
            raise ValueError(
                "weight must have shape (D, M) for visible of shape (D,) and hidden of shape (M,), found "
                f"{tuple(weight.shape)}, {tuple(visible.shape)} and {tuple(hidden.shape)}"
            )
        self.weight = nn.Parameter(weight.clone())
        self.visible = nn.Parameter(visible.clone())
        self.hidden = nn.Parameter(hidden.clone())

    def log_joint(self, v: Tensor, h: Tensor) -> Tensor:
        """Return log p⁰(v, h), unnormalized, of both layers."""
        return wide(v) @ wide(self.visible) + (h * self.field(v)).sum(-1)

    def log_prob(self, v: Tensor) -> Tensor:
        """Return the unnormalized log marginal density of v."""
        return wide(v) @ wide(self.visible) + softplus(self.field(v)).sum(-1)

    def field(self, v: Tensor) -> Tensor:
        """Return b + Wᵀv, the logits of the hidden units."""
        return wide(self.hidden) + wide(v) @ wide(self.weight)

    def posterior(self, v: Tensor) -> BinaryVector:
        """Return the exact posterior p(h|v)."""
        return BinaryVector(self.field(v))

    def log_partition(self) -> Tensor:
        """Return log Z, by summing over all states of the smaller layer."""
        visible, hidden = self.weight.shape
        if visible <= hidden:
            return self.log_prob(binary_states(visible).to(wide(self.weight))).logsumexp(0)
        weight = wide(self.weight)
        h = binary_states(hidden).to(weight)
        return (h @ wide(self.hidden) + softplus(wide(self.visible) + h @ weight.T).sum(-1)).logsumexp(0)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Return n exact draws of v, from the enumerated distribution."""
        states = binary_states(len(self.visible)).to(self.weight)
        probs = self.log_prob(states).softmax(0).to(place(generator, states.device))
        return states[torch.multinomial(probs, n, replacement=True, generator=generator).to(states.device)]
