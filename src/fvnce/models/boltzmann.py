r"""Restricted Boltzmann machines, and encoders of binary latents.

    log p⁰(v, h) = aᵀv + bᵀh + vᵀWh,     v ∈ {0,1}^D,  h ∈ {0,1}^M

The hidden units can be summed out, log p⁰(v) = aᵀv + Σ_j softplus(b_j + W_jᵀv), and their posterior is a product of
Bernoullis with logits b + Wᵀv. log Z is a sum over 2^min(D, M) states, which is exact while that is small.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, constraints
from torch.nn.functional import logsigmoid, softplus

from .fixed import wide
from .networks import run

#: 2 to this many states are enumerated at most.
MOST_BITS = 20


def binary_states(bits: int) -> Tensor:
    """All vectors of zeros and ones, shape (2^bits, bits).

    >>> binary_states(2)
    tensor([[0., 0.],
            [0., 1.],
            [1., 0.],
            [1., 1.]])
    """
    if not 0 <= bits <= MOST_BITS:
        raise ValueError(f"bits must lie in [0, {MOST_BITS}] to enumerate 2^bits states, found {bits}")
    index = torch.arange(2**bits).unsqueeze(-1)
    return (index >> torch.arange(bits - 1, -1, -1)).bitwise_and(1).to(torch.get_default_dtype())


class BinaryVector(Distribution):
    """Independent bits with the given logits, as one event; with few bits an objective sums over all states.

    >>> q = BinaryVector(torch.zeros(5, 3))
    >>> q.enumerate_support().shape
    torch.Size([8, 5, 3])
    >>> q.log_prob(q.enumerate_support()).exp().sum(0)
    tensor([1., 1., 1., 1., 1.])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    has_enumerate_support = True

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        super().__init__(logits.shape[:-1], logits.shape[-1:], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of zeros and ones."""
        return constraints.independent(constraints.boolean, 1)

    @property
    def mean(self) -> Tensor:
        """Probabilities of ones."""
        return self.logits.sigmoid()

    def log_prob(self, value: Tensor) -> Tensor:
        """Σ_j h_j log μ_j + (1 − h_j) log(1 − μ_j)."""
        return (logsigmoid(-self.logits) + value * self.logits).sum(-1)

    def sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """Draws of zeros and ones."""
        return torch.bernoulli(self.mean.detach().expand(Size(sample_shape) + self.logits.shape))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All states, shape (2^M, …, M)."""
        states = binary_states(self.logits.shape[-1]).to(self.logits)
        states = states.reshape(len(states), *[1] * len(self.batch_shape), -1)
        return states.expand(-1, *self.batch_shape, -1) if expand else states


class BinaryEncoder(nn.Module):
    """q(h|x) = Π_j Bernoulli(h_j; σ(network(x)_j)), over which objectives sum exactly.

    >>> BinaryEncoder(nn.Linear(5, 3))(torch.zeros(2, 5)).event_shape
    torch.Size([3])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> BinaryVector:
        """q(h|x)."""
        return BinaryVector(run(self.network, x))


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

    normalised = False

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
        """log p⁰(v, h)."""
        return wide(v) @ wide(self.visible) + (h * self.field(v)).sum(-1)

    def log_prob(self, v: Tensor) -> Tensor:
        """log p⁰(v), unnormalised."""
        return wide(v) @ wide(self.visible) + softplus(self.field(v)).sum(-1)

    def field(self, v: Tensor) -> Tensor:
        """b + Wᵀv, the logits of the hidden units."""
        return wide(self.hidden) + wide(v) @ wide(self.weight)

    def posterior(self, v: Tensor) -> BinaryVector:
        """p(h|v), exactly."""
        return BinaryVector(self.field(v))

    def log_partition(self) -> Tensor:
        """log Z, by summing over all states of the smaller layer."""
        visible, hidden = self.weight.shape
        if visible <= hidden:
            return self.log_prob(binary_states(visible).to(wide(self.weight))).logsumexp(0)
        weight = wide(self.weight)
        h = binary_states(hidden).to(weight)
        return (h @ wide(self.hidden) + softplus(wide(self.visible) + h @ weight.T).sum(-1)).logsumexp(0)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n exact draws of v, from the enumerated distribution."""
        states = binary_states(len(self.visible)).to(self.weight)
        chosen = torch.multinomial(self.log_prob(states).softmax(0), n, replacement=True, generator=generator)
        return states[chosen]
