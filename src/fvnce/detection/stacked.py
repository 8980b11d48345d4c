r"""Networks of the same layers side by side: one batched product for a layer of all of them.

    z_m ← activation(z_m W_m + b_m),   m = 1 … M.

They are trained together, each on rows and noise of its own. The loss is the mean of theirs, and AdamW moves a weight
by its own gradient alone, so that each network goes its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from .. import _random as randomness

#: Rows of a product. Always as many, the last block filled up: products of another shape may differ in the last bit,
#: and the score of a row must not depend on the rows beside it.
BLOCK = 256


class Stack(nn.Module):
    """M networks of linear layers and activations as one, with weights of its own.

    >>> networks = [nn.Sequential(nn.Linear(2, 3), nn.SiLU(), nn.Linear(3, 1)) for _ in range(4)]
    >>> Stack(networks)(torch.zeros(4, 5, 2)).shape
    torch.Size([4, 5, 1])
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        alike = list(zip(*(linear_layers(network) for network in networks), strict=True))
        self.weights = nn.ParameterList(torch.stack([layer.weight.detach().T for layer in same]) for same in alike)
        self.biases = nn.ParameterList(torch.stack([layer.bias.detach()[None] for layer in same]) for same in alike)
        #: The layers of one network in their order, None for those that are stacked.
        self.order = [
            None if isinstance(layer, nn.Linear) else layer
            for layer in networks[0].modules()
            if not list(layer.children())
        ]

    def forward(self, x: Tensor) -> Tensor:
        """From the inputs of each network, shape (M, n, inputs), to its outputs, (M, n, outputs)."""
        stacked = zip(self.weights, self.biases, strict=True)
        for activation in self.order:
            if activation is None:
                weight, bias = next(stacked)
                x = torch.baddbmm(bias, x, weight)
            else:
                x = activation(x)
        return x

    @torch.no_grad()
    def copy_to(self, networks: Sequence[nn.Module]) -> None:
        """Give the networks, which are as those of the start, the weights that they have here."""
        for member, network in enumerate(networks):
            for layer, weight, bias in zip(linear_layers(network), self.weights, self.biases, strict=True):
                layer.weight.copy_(weight[member].T)
                layer.bias.copy_(bias[member, 0])


class OwnDraws(nn.Module):
    """A module that draws from generators of its own: one for training, one that begins anew at every validation."""

    _generator: torch.Generator | None

    def begin(self, seed: int) -> None:
        """Seed both, and choose that of training."""
        self._for_training = randomness.generator(seed, randomness.GLOBAL, 0, 0)
        self._seed = seed
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Choose the generator."""
        fresh = randomness.generator(self._seed, randomness.VALIDATION, 0, 0)
        self._generator = self._for_training if mode else fresh
        return super().train(mode)


class StackedRatios(OwnDraws):
    r"""The loss of M networks f_m, relative to the noise, each at its own rows and its own noise:

        mean_m  −(1/α) log A_m + log B_m/(1 + α),    A_m = mean_data e^(α f_m),   B_m = mean_noise e^((1+α) f_m),

    which at α = 0 is −mean_data f_m + log B_m (:mod:`fvnce.objectives.profiled`). In training each network draws its
    rows by weight, as many as the batch has entries; in validation the batch holds the numbers of rows. As many noise
    rows are drawn.

    Args:
        networks: f_1 … f_M.
        rows: data, shape (n, D).
        weights: how often each network sees each row, shape (M, n).
        noise: draws of p_n, shape (p, D).
        allowed: which of them each network may see, shape (M, p).
        alpha: of the scoring rule.
        seed: of the draws.
    """

    rows: Tensor
    noise: Tensor

    def __init__(
        self,
        networks: Sequence[nn.Module],
        rows: Tensor,
        weights: Tensor,
        noise: Tensor,
        allowed: Tensor,
        alpha: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.stack, self.alpha = Stack(networks), alpha
        self.register_buffer("rows", rows)
        self.register_buffer("noise", noise)
        # Draws are made where the generator is, whatever the device: it may know no float64.
        self._cumulative = weights.cumsum(1)
        self._order = torch.argsort(~allowed, dim=1, stable=True)  # those allowed come first
        self._counts = allowed.sum(1, keepdim=True)
        self.begin(seed)

    def forward(self, index: Tensor) -> Tensor:
        """The loss at a batch of n row numbers, or in training at n other rows."""
        n, members = len(index), len(self._counts)
        level = torch.rand(2, members, n, generator=self._generator, dtype=torch.float64)
        chosen = index.expand(members, n)
        if self.training:
            # Right of a row's own weight, so that a row of weight zero is never found.
            chosen = torch.searchsorted(self._cumulative, level[0] * self._cumulative[:, -1:], right=True)
            chosen = chosen.clamp_max(len(self.rows) - 1)
        other = self._order.gather(1, (level[1] * self._counts).long())
        x = torch.cat([self.rows[chosen.to(index.device)], self.noise[other.to(index.device)]], 1)
        values = self.stack(x).squeeze(-1)
        return losses(values[:, :n], values[:, n:], self.alpha).mean()


def losses(data: Tensor, noise: Tensor, alpha: float) -> Tensor:
    """The loss of each network, shape (M,), from f at its data and at its noise, shapes (M, n) and (M, p)."""
    log_b = _log_mean_exp((1 + alpha) * noise) / (1 + alpha)
    return log_b - (data.mean(1) if alpha == 0 else _log_mean_exp(alpha * data) / alpha)


def in_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function`` of rows, in blocks of one size.

    >>> in_blocks(lambda rows: rows.sum(1), torch.ones(300, 2)).shape
    torch.Size([300])
    """
    filled = torch.cat([x, x.new_zeros(-len(x) % BLOCK, *x.shape[1:])]) if len(x) % BLOCK or not len(x) else x
    # Each block in memory of torch's own, which is aligned: the last bit may depend on where factors lie as well.
    return torch.cat([function(block.clone()) for block in filled.split(BLOCK)])[: len(x)]


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """Its linear layers, from the input on."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def _log_mean_exp(values: Tensor) -> Tensor:
    return values.logsumexp(1) - math.log(values.shape[1])
