r"""Bridges for a model with latents: one network, told the level, from the data to the noise.

Between data p_0 and noise p_K lie waypoints p_k, and every level below K has an unnormalised density of its own,

    φ_k(x) = p(x | z) p_Z(z),      z = g_k(x),

with the weights of one autoencoder, whose code is scaled and shifted and whose output is shifted by what the level has
learnt; φ_K is p_n itself. Neighbours are told apart by the profiled (0, 0),

    J = Σ_k E_k[log φ_k − log φ_{k+1}] − log E_{k+1}[φ_k/φ_{k+1}].

It takes deterministic encoders. With q(z|x) the evidence of φ_{k+1}, which is subtracted, would have to be bounded from
above, and no double bound does that: p_n, whose density is known, is the only level that fvNCE may divide by.

A ratio is the same if both densities are multiplied by anything, so that nothing asks φ_0 to rebuild the data. Where
``held``, φ_{k+1} is no longer trained as a denominator: each level takes the one above for noise of a known density, as
if it were p_n, and the data term of each is its own evidence.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fvnce import GaussianDecoder, LatentVariableModel, PointEncoder, PowerRule
from fvnce.noise import draw
from fvnce.objectives.base import effective_share, ratio_statistics
from fvnce.ratio.bridges import waypoints
from fvnce.ratio.chain import equal_steps


class _Moved(nn.Module):
    """What a shared network gives, scaled and shifted in a way of its own."""

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.network = network
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift."""
        found: Tensor = self.network(x) * self.scale + self.shift
        return found


@dataclass(frozen=True)
class BridgeState:
    """How much of the noise of each bridge is alive, and what share of it carries the noise term."""

    live_noise: list[float]
    ess_noise: list[float]


class LatentBridges(nn.Module):
    """−J as a function of data rows; ``model`` and ``encoder`` are those of level 0.

    Args:
        encode: from x to a code of ``code`` numbers, shared by all levels.
        decode: from a code to the mean of x.
        code: width of the code.
        columns: width of x.
        prior: p_Z.
        noise: p_n.
        levels: K.
        scale: σ of the decoder.
        held: whether a level above is taken for noise of a known density.
    """

    def __init__(
        self,
        encode: nn.Module,
        decode: nn.Module,
        code: int,
        columns: int,
        prior: Distribution,
        noise: Distribution,
        *,
        levels: int,
        scale: float,
        held: bool,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(PointEncoder(_Moved(encode, code)) for _ in range(levels))
        self.models = nn.ModuleList(
            LatentVariableModel(prior, GaussianDecoder(_Moved(decode, columns), scale=scale)) for _ in range(levels)
        )
        self.noise = noise
        self.held = held
        self.shares = equal_steps(levels)

    @property
    def model(self) -> Any:
        """Of the data."""
        return self.models[0]

    @property
    def encoder(self) -> Any:
        """Of the data."""
        return self.encoders[0]

    def log_density(self, x: Tensor, level: int) -> Tensor:
        """log φ_k, shape (B,)."""
        if level == len(self.models):
            return self.noise.log_prob(x)
        model: Any = self.models[level]
        found: Tensor = model.log_joint(x, self.encoders[level](x).mean)
        return found

    def deltas(self, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each bridge log φ_k/φ_{k+1} on waypoints of either end, made of rows x and noise samples y."""
        ends = [waypoints(x, y, share) for share in self.shares]
        found = []
        for level, pair in enumerate(pairwise(ends)):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.held):
                above = [self.log_density(rows, level + 1) for rows in pair]
            own = [self.log_density(rows, level) for rows in pair]
            found.append((own[0] - above[0], own[1] - above[1]))
        return found

    def forward(self, x: Tensor) -> Tensor:
        """−J, with fresh noise."""
        y = draw(self.noise, len(x)).to(x)
        losses = [num_den[1].logsumexp(0) - num_den[0].mean() for num_den in self.deltas(x, y)]
        return torch.stack(losses).sum()

    @torch.no_grad()
    def state_of_bridges(self, x: Tensor, generator: torch.Generator) -> BridgeState:
        """On fresh waypoints of rows x."""
        live, ess = [], []
        for num, den in self.deltas(x, draw(self.noise, len(x), generator).to(x)):
            offset = den.logsumexp(0) - torch.tensor(float(len(den))).log()
            found = ratio_statistics(PowerRule(0, clip=None), (num - offset)[None], (den - offset)[None])
            live.append(statistics.fmean(found["live_noise"]))
            ess.append(effective_share(den))
        return BridgeState(live, ess)
