"""Encoders: modules from x to the distribution q(z|x). Any module that returns a torch distribution is one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import hardtanh

from .distributions import DiagonalNormal, PointMass
from .networks import run

#: σ of a Gaussian encoder stays within e^±7: wide of what a unit prior needs, short of what overflows.
LOG_SCALE_LIMIT = 7.0


class PointEncoder(nn.Module):
    """q(z|x) = 1[z = network(x)], with log q = 0: the deterministic encoder of an autoencoder.

    It makes p_θ(x, g(x)) an unnormalised density of x, which is why a noise term can steer an autoencoder at all;
    the noise term is then a penalty, not a bound, because q misses mass of p_θ(x, ·).

    >>> import torch
    >>> PointEncoder(nn.Linear(5, 2))(torch.zeros(3, 5)).rsample().shape
    torch.Size([3, 2])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> PointMass:
        """q(z|x)."""
        return PointMass(run(self.network, x))


class GaussianEncoder(nn.Module):
    """q(z|x) = N(m(x), diag s(x)²), reparameterised; the network gives m and log s side by side.

    Draws of z follow ``generator``, by default torch's global one.

    >>> import torch
    >>> GaussianEncoder(nn.Linear(5, 4))(torch.zeros(3, 5)).event_shape
    torch.Size([2])
    """

    def __init__(self, network: nn.Module, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.network = network
        self._generator = generator

    def forward(self, x: Tensor) -> DiagonalNormal:
        """q(z|x)."""
        output = run(self.network, x)
        if output.shape[-1] % 2:
            raise ValueError(
                "network of a GaussianEncoder must give an even number of outputs, a mean and a log-scale for each "
                f"latent dimension, found {output.shape[-1]}"
            )
        mean, log_scale = output.chunk(2, dim=-1)
        # A clamp whose backward pass is one operation.
        log_scale = hardtanh(log_scale, -LOG_SCALE_LIMIT, LOG_SCALE_LIMIT)
        return DiagonalNormal(mean, log_scale.exp(), log_scale=log_scale, generator=self._generator)


class CategoricalEncoder(nn.Module):
    """q(z|x) over z = 0 … C−1, with the network giving logits. Objectives sum over z exactly.

    >>> import torch
    >>> CategoricalEncoder(nn.Linear(5, 4))(torch.zeros(3, 5)).enumerate_support().shape
    torch.Size([4, 3])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Categorical:
        """q(z|x)."""
        return Categorical(logits=run(self.network, x), validate_args=False)
