"""An encoder by affine couplings, for posteriors that a Gaussian cannot follow: bent, skewed or split ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, constraints

from fvnce.models import mlp

#: |s| of one layer stays below this, so that no layer can blow up by itself.
LARGEST_LOG_SCALE = 2.0


class CouplingEncoder(nn.Module):
    r"""q(z|x) as a chain of affine couplings: bent, skewed or split posteriors that a Gaussian cannot follow.

    z = T_L(… T_1(ε)), ε ~ N(0, I). Layer T_l keeps one half of the vector, u, and moves the other,
    w ← w·exp(s(u, x)) + t(u, x), with s and t from a small network; halves take turns. Then
    log q(z|x) = log N(ε; 0, I) − Σ_l Σ s_l, exactly, and z is reparameterized.

    Args:
        inputs: size of x.
        latent: size of z, at least 2.
        layers: couplings; at least 2, so that every dimension moves.
        hidden: hidden units of each layer's network.

    >>> q = CouplingEncoder(3, 2)(torch.zeros(5, 3))
    >>> z = q.rsample((4,))
    >>> z.shape, q.log_prob(z).shape
    (torch.Size([4, 5, 2]), torch.Size([4, 5]))
    """

    by_rows = False  # draws of data and of noise made together are other draws

    def __init__(self, inputs: int, latent: int, *, layers: int = 6, hidden: int = 32) -> None:
        super().__init__()
        self.inputs = inputs
        self.latent = latent
        self.layers = layers
        self.hidden = hidden
        sizes = ((inputs + kept, hidden, hidden, 2 * (latent - kept)) for kept in map(self._kept, range(layers)))
        self.networks = nn.ModuleList(mlp(size, nn.Tanh) for size in sizes)
        self.start = nn.Linear(inputs, 2 * latent)
        # q starts as N(0, I) whatever x: wide, because a q that misses mass does not learn what it misses.
        for layer in [*(network[-1] for network in self.networks), self.start]:  # type: ignore[index]
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def _kept(self, layer: int) -> int:
        return len(range(layer % 2, self.latent, 2))

    def forward(self, x: Tensor) -> CoupledNormal:
        """Return q(z|x) for rows x."""
        return CoupledNormal(self, x)

    def _affine(self, x: Tensor, layer: int | None = None, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return shift and log-scale of a layer, or without one of the start."""
        if layer is None or kept is None:
            output = self.start(x)
        else:
            output = self.networks[layer](torch.cat([kept, x.expand(*kept.shape[:-1], -1)], -1))
        shift, raw = output.chunk(2, -1)
        return shift, LARGEST_LOG_SCALE * torch.tanh(raw / LARGEST_LOG_SCALE)


class CoupledNormal(Distribution):
    """The distribution of a :class:`CouplingEncoder` at given x."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, encoder: CouplingEncoder, x: Tensor) -> None:
        self._encoder, self._x = encoder, x
        super().__init__(x.shape[:-1], Size((encoder.latent,)), validate_args=False)

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """Return draws with gradients in the parameters."""
        return self.rsample_from(self.base_sample(sample_shape))[0]

    def base_sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  as rsample
        """Return ε, standard normal: all that is random about a draw."""
        shape = Size(sample_shape) + self.batch_shape + self.event_shape
        return torch.randn(shape, dtype=self._x.dtype, device=self._x.device)

    def rsample_from(self, base_sample: Tensor) -> tuple[Tensor, Tensor]:
        """Return the draw z that is made of ε, and log q(z|x), which is known on the way."""
        encoder = self._encoder
        shift, scale = encoder._affine(self._x)
        z = shift + scale.exp() * base_sample
        log_q = _standard_log_prob(base_sample) - scale.sum(-1)
        for layer in range(encoder.layers):
            kept, moved = z[..., layer % 2 :: 2], z[..., 1 - layer % 2 :: 2]
            shift, scale = encoder._affine(self._x, layer, kept)
            z = _interleaved(kept, moved * scale.exp() + shift, layer % 2)
            log_q = log_q - scale.sum(-1)
        return z, log_q

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log q(z|x), by running the couplings backwards."""
        encoder, z = self._encoder, value
        total = z.new_zeros(z.shape[:-1])
        for layer in reversed(range(encoder.layers)):
            kept, moved = z[..., layer % 2 :: 2], z[..., 1 - layer % 2 :: 2]
            shift, scale = encoder._affine(self._x, layer, kept)
            z = _interleaved(kept, (moved - shift) * (-scale).exp(), layer % 2)
            total = total - scale.sum(-1)
        shift, scale = encoder._affine(self._x)
        return total + _standard_log_prob((z - shift) * (-scale).exp()) - scale.sum(-1)


def _interleaved(kept: Tensor, moved: Tensor, start: int) -> Tensor:
    result = kept.new_empty(*kept.shape[:-1], kept.shape[-1] + moved.shape[-1])
    result[..., start::2] = kept
    result[..., 1 - start :: 2] = moved
    return result


def _standard_log_prob(epsilon: Tensor) -> Tensor:
    return -epsilon.square().sum(-1) / 2 - epsilon.shape[-1] / 2 * math.log(2 * math.pi)
