"""Encoders: modules from x to the distribution q(z|x). Any module that returns a torch distribution is one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.distributions import Categorical, Distribution, constraints
from torch.nn.functional import hardtanh

from .. import _validation
from .distributions import BinaryVector, DiagonalNormal, PointMass, log_prob_inside, run, wide
from .fixed import FixedDistribution
from .networks import given, mlp

#: σ of a Gaussian encoder stays within e^±7: wide of what a unit prior needs, short of what overflows.
LOG_SCALE_LIMIT = 7.0
#: |s| of one layer stays below this, so that no layer can blow up by itself.
LARGEST_LOG_SCALE = 2.0
#: A file of a few bytes must not make its reader build layers without end.
MOST_LAYERS = 1000


class _NetworkEncoder(nn.Module):
    """An encoder of one network, which is also handed a context if it takes one."""

    context_part = "network"

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network


class PointEncoder(_NetworkEncoder):
    """q(z|x) = 1[z = network(x)], with log q = 0: the deterministic encoder of an autoencoder.

    It makes p_θ(x, g(x)) an unnormalized density of x, which is why a noise term can steer an autoencoder at all;
    the noise term is then a penalty, not a bound, because q misses mass of p_θ(x, ·).

    >>> PointEncoder(nn.Linear(5, 2))(torch.zeros(3, 5)).rsample().shape
    torch.Size([3, 2])
    """

    def forward(self, x: Tensor, context: Tensor | None = None) -> PointMass:
        """Return q(z|x) for rows x."""
        return PointMass(run(self.network, x, *given(context)))


class GaussianEncoder(_NetworkEncoder):
    """q(z|x) = N(m(x), diag s(x)²), reparameterized; the network gives m and log s side by side.

    Draws of z follow ``generator``, by default torch's global one.

    >>> GaussianEncoder(nn.Linear(5, 4))(torch.zeros(3, 5)).event_shape
    torch.Size([2])
    """

    def __init__(self, network: nn.Module, *, generator: torch.Generator | None = None) -> None:
        super().__init__(network)
        self._generator = generator

    def forward(self, x: Tensor, context: Tensor | None = None) -> DiagonalNormal:
        """Return q(z|x), or q(z|x, c) if the network takes a context, for rows x."""
        output = run(self.network, x, *given(context))
        if output.shape[-1] % 2:
            raise ValueError(f"network must give means and log-scales, an even number, found {output.shape[-1]}")
        mean, log_scale = output.chunk(2, dim=-1)
        # A clamp whose backward pass is one operation.
        log_scale = hardtanh(log_scale, -LOG_SCALE_LIMIT, LOG_SCALE_LIMIT)
        return DiagonalNormal(mean, log_scale.exp(), log_scale=log_scale, generator=self._generator)


class CategoricalEncoder(_NetworkEncoder):
    """q(z|x) over z = 0 … C−1, with the network giving logits. Objectives sum over z exactly.

    >>> CategoricalEncoder(nn.Linear(5, 4))(torch.zeros(3, 5)).enumerate_support().shape
    torch.Size([4, 3])
    """

    def forward(self, x: Tensor, context: Tensor | None = None) -> Categorical:
        """Return q(z|x) for rows x."""
        return Categorical(logits=run(self.network, x, *given(context)), validate_args=False)


class BinaryEncoder(_NetworkEncoder):
    """q(h|x) = Π_j Bernoulli(h_j; σ(network(x)_j)), over which objectives sum exactly.

    >>> BinaryEncoder(nn.Linear(5, 3))(torch.zeros(2, 5)).event_shape
    torch.Size([3])
    """

    def forward(self, x: Tensor, context: Tensor | None = None) -> BinaryVector:
        """Return q(h|x) for rows x."""
        return BinaryVector(run(self.network, x, *given(context)))


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
        self.inputs = _validation.count("inputs", inputs)
        self.latent = _validation.count("latent", latent, low=2)
        self.layers = _validation.count("layers", layers, low=2, high=MOST_LAYERS)
        self.hidden = _validation.count("hidden", hidden)
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
        return CoupledNormal(self, wide(x))

    def _affine(self, x: Tensor, layer: int | None = None, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return shift and log-scale of a layer, or without one of the start."""
        if layer is None or kept is None:
            output = run(self.start, x)
        else:
            output = run(self.networks[layer], torch.cat([kept, x.expand(*kept.shape[:-1], -1)], -1))
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


class CoveringEncoder(nn.Module):
    """An encoder that covers the prior, q_0(z|x) = (1 − w) q(z|x) + w p_Z(z), for the noise term or for log Z.

    The noise term of fvNCE is a bound only if q_0 covers p_θ(x, ·). A learned q that misses mass sees ratios near 0, is
    rewarded for it, and runs away: the term it should bound is then dead. With a share w of the prior
    p_θ(x, z)/q_0(z|x) is at most p_θ(x|z)/w, so every draw tells the truth (defensive importance sampling).

    Args:
        encoder: q(z|x), reparameterized.
        prior: p_Z, or any distribution of z that is wide enough, over vectors.
        share: w, in (0, 1).

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import GaussianEncoder
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> q = CoveringEncoder(GaussianEncoder(nn.Linear(5, 4)), prior)(torch.zeros(3, 5))
    >>> q.log_prob(q.rsample((4,))).shape
    torch.Size([4, 3])
    """

    context_part = "encoder"

    def __init__(self, encoder: nn.Module, prior: Distribution, *, share: float = 0.5) -> None:
        super().__init__()
        _validation.distribution("prior", prior)
        if len(prior.event_shape) != 1:
            raise ValueError(f"prior must be over vectors, found event shape {tuple(prior.event_shape)}")
        self.encoder = encoder
        self._prior = FixedDistribution(prior)
        self.share = _validation.number("share", share, low=0.0, high=1.0, open_low=True)
        if self.share == 1:
            raise ValueError("share must be below 1, found 1.0: nothing of the encoder would be left")

    @property
    def prior(self) -> Distribution:
        """The distribution p_Z that covers."""
        return self._prior.distribution

    def forward(self, x: Tensor, context: Tensor | None = None) -> Covered:
        """Return q_0(z|x) for rows x."""
        q = self.encoder(x, *given(context))
        _validation.latents(q, self.prior)
        return Covered(q, self.prior, self.share)


class Covered(Distribution):
    """The distribution of a :class:`CoveringEncoder` at given x."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, q: Distribution, prior: Distribution, share: float) -> None:
        self._q, self._prior, self._share = q, prior, share
        super().__init__(q.batch_shape, q.event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The weighted mean of both means."""
        return (1 - self._share) * self._q.mean + self._share * self._prior.mean

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """Return draws from either by a coin, which depends on no parameter: the gradient is exact."""
        z = self._q.rsample(sample_shape)
        wide = self._prior.sample(z.shape[:-1]).to(z.dtype)
        coin = torch.rand(z.shape[:-1], device=z.device).unsqueeze(-1)
        return torch.where(coin < self._share, wide, z)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log of the weighted mean of both densities."""
        near: Tensor = self._q.log_prob(value)
        wide = log_prob_inside(self._prior, value)
        return torch.logaddexp(near + math.log1p(-self._share), wide + math.log(self._share))
