r"""Restricted Boltzmann machine with its exact posterior, and exact log Z for small machines.

    log p⁰(v, h) = aᵀv + bᵀh + vᵀWh,     v ∈ {0,1}^D,  h ∈ {0,1}^M

is unnormalized: log p⁰(v) = aᵀv + Σ_j softplus(b_j + W_jᵀv). log Z is a sum over 2^min(D, M) states, feasible for small
machines. The posterior is a product of Bernoulli distributions with logits b + Wᵀv.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from .._random import place
from .distributions import BinaryVector, binary_states, wide


class RestrictedBoltzmannMachine(nn.Module):
    """Restricted Boltzmann machine p⁰(v, h) = exp(aᵀv + bᵀh + vᵀWh).

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
        """Return the unnormalized log-density log p⁰(v, h) of both layers."""
        return wide(v) @ wide(self.visible) + (h * self.field(v)).sum(-1)

    def log_prob(self, v: Tensor) -> Tensor:
        """Return the unnormalized log marginal density of v."""
        return wide(v) @ wide(self.visible) + softplus(self.field(v)).sum(-1)

    def field(self, v: Tensor) -> Tensor:
        """Return the logits b + Wᵀv of the hidden units."""
        return wide(self.hidden) + wide(v) @ wide(self.weight)

    def posterior(self, v: Tensor) -> BinaryVector:
        """Return the exact posterior p(h|v)."""
        return BinaryVector(self.field(v))

    def log_partition(self) -> Tensor:
        """Compute log Z by summing over all states of the smaller layer."""
        visible, hidden = self.weight.shape
        if visible <= hidden:
            return self.log_prob(binary_states(visible).to(wide(self.weight))).logsumexp(0)
        weight = wide(self.weight)
        h = binary_states(hidden).to(weight)
        return (h @ wide(self.hidden) + softplus(wide(self.visible) + h @ weight.T).sum(-1)).logsumexp(0)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n exact samples of v from the enumerated distribution."""
        states = binary_states(len(self.visible)).to(self.weight)
        probs = self.log_prob(states).softmax(0).to(place(generator, states.device))
        return states[torch.multinomial(probs, n, replacement=True, generator=generator).to(states.device)]
