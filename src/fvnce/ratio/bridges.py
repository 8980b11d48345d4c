r"""Bridges between data and noise that are too far apart to be told from each other and learn anything.

Between x ~ data (p_0) and y ~ noise (p_K) lie waypoints x_k = √(1 − a_k²) x + a_k y, a_0 = 0 < … < a_K = 1, with
distributions p_k. Each neighbouring pair is a contrastive problem of its own, easy because the two overlap, and

    log p_0/p_K = Σ_k log p_k/p_{k+1}                                                      (telescoping)

(Rhodes, Xu & Gutmann 2020). A single step between distant distributions is solved by any ratio that separates them:
its noise samples carry no weight (live share near 0) and the estimate says little about p_0. So each bridge reports the
live share and the effective share of its noise weights; ``bridges="auto"`` splits those that are not alive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks
from .._estimates import log_mean_exp
from ..models import mlp
from ..models.ratios import TelescopedRatio
from ..noise import EmpiricalNoise, draw
from ..objectives import SNCE
from ..objectives.statistics import effective_share, ratio_statistics
from ..scoring import PowerRule, ScoringRule
from ..training import fit

#: A bridge whose noise weights have a smaller effective share than this is too long.
ALIVE = 0.1
MOST_BRIDGES = 32


@dataclass(frozen=True)
class BridgeReport:
    """How one bridge fares on samples that it was not trained on.

    Attributes:
        live_noise: share of noise samples that can be felt in the gradient.
        ess_noise: effective share of the ratio weights on noise samples.
        gain: E_num[log r] − log E_den[r], a lower bound on KL(p_k‖p_{k+1}) in nats.
    """

    live_noise: float
    ess_noise: float
    gain: float

    @property
    def alive(self) -> bool:
        """Whether enough noise samples count."""
        return self.ess_noise >= ALIVE


@dataclass(frozen=True)
class Telescope:
    """A telescoped ratio and what is known of its bridges.

    Attributes:
        model: ``log_ratio(x)``, and ``log_prob(x)`` where the noise has a density.
        reports: one for each bridge, from the data to the noise.
        shares: a_k of the waypoints, one more than bridges.
        split: reports of bridges that were found too long and split, the first being one step all the way.
    """

    model: TelescopedRatio
    reports: tuple[BridgeReport, ...]
    shares: tuple[float, ...]
    split: tuple[BridgeReport, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether one step alone is too far; known if one was tried."""
        return bool(self.split) or (len(self.reports) == 1 and not self.reports[0].alive)

    @property
    def advice(self) -> list[str]:
        """What to change, in plain words; empty if every bridge is alive."""
        dead = [k for k, report in enumerate(self.reports) if not report.alive]
        if not dead:
            return []
        return [
            f"{len(dead)} of {len(self.reports)} bridges are too long (effective share of the noise under {ALIVE:.0%}) "
            f"at {', '.join(map(str, dead))}, counted from the data. Use bridges='auto' or more of them"
        ]


def telescope(
    x: Tensor,
    noise: Distribution | Tensor,
    *,
    bridges: int | Literal["auto"] = "auto",
    network: Callable[[], nn.Module] | None = None,
    rule: ScoringRule | None = None,
    epochs: int = 40,
    batch_size: int = 256,
    lr: float = 2e-3,
    copies: int = 4,
    seed: int = 0,
) -> Telescope:
    """Estimate log p/q between data and distant noise, bridge by bridge.

    Args:
        x: data, shape (n, D). A fifth is kept for the reports.
        noise: q: a distribution, or samples of it.
        bridges: how many; 1 is an ordinary ratio; "auto" starts with 1 and splits what is not alive.
        network: makes a network from x to one number; by default an MLP of 64-64.
        rule: a double-ELBO rule, by default (0, 0); each bridge is profiled.
        epochs: passes over the waypoints of each bridge.
        batch_size: rows of a step.
        lr: learning rate.
        copies: waypoints made of each data row, with noise of their own.
        seed: for everything.

    >>> from torch.distributions import Independent, Normal
    >>> noise = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    >>> data = 0.5 * torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    >>> telescope(data, noise, epochs=2).needed
    False
    """
    data = _checks.table("x", x, rows=10)
    source = noise if isinstance(noise, Distribution) else EmpiricalNoise(_checks.table("noise", noise))
    if tuple(source.event_shape) != tuple(data.shape[1:]):
        raise ValueError(f"noise must have rows of {data.shape[1]} numbers like x, found {tuple(source.event_shape)}")
    seed = _checks.count("seed", seed, low=0)
    make = network or (lambda: mlp([data.shape[1], 64, 64, 1], nn.SiLU))
    how: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "lr": lr}
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    held = max(2, len(data) // 5)
    parts = data[order[held:]].repeat(copies, 1), data[order[:held]].repeat(copies, 1)

    def built(low: float, high: float) -> _Bridge:
        # A seed of its own for every bridge, whatever others there are.
        own = seed + round(1e6 * low) + 7 * round(1e6 * high)
        return _build(parts, source, (low, high), make, PowerRule(0) if rule is None else rule, own, how)

    count = 1 if bridges == "auto" else _checks.count("bridges", bridges)
    # In equal steps of the angle: neighbours of equal correlation.
    angles = [math.pi / 2 * k / count for k in range(count + 1)]
    chain = [built(math.sin(low), math.sin(high)) for low, high in pairwise(angles)]
    split: list[BridgeReport] = []
    while bridges == "auto" and len(chain) < MOST_BRIDGES and not all(bridge.report.alive for bridge in chain):
        worst = min(range(len(chain)), key=lambda k: chain[k].report.ess_noise)
        low, high = chain[worst].shares
        middle = math.sin((math.asin(low) + math.asin(high)) / 2)
        split.append(chain[worst].report)
        chain[worst : worst + 1] = [built(low, middle), built(middle, high)]
    model = TelescopedRatio(
        [bridge.network for bridge in chain],
        torch.stack([bridge.offset for bridge in chain]),
        source if isinstance(noise, Distribution) else None,
    )
    shares = (chain[0].shares[0], *(bridge.shares[1] for bridge in chain))
    return Telescope(model, tuple(bridge.report for bridge in chain), shares, tuple(split))


def waypoints(x: Tensor, y: Tensor, share: float) -> Tensor:
    """√(1 − a²) x + a y, row by row; a = 0 is the data and a = 1 the noise.

    >>> waypoints(torch.ones(1, 1), torch.zeros(1, 1), 0.6)
    tensor([[0.8000]])
    """
    return math.sqrt(1 - share**2) * x + share * y


@dataclass(frozen=True)
class _Bridge:
    shares: tuple[float, float]
    network: nn.Module
    offset: Tensor
    report: BridgeReport


def _build(
    parts: tuple[Tensor, Tensor],
    noise: Distribution,
    shares: tuple[float, float],
    make: Callable[[], nn.Module],
    rule: ScoringRule,
    seed: int,
    how: dict[str, Any],
) -> _Bridge:
    """Train one bridge on the first part of the rows and judge it on the second."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = make().to(parts[0].dtype)
    train, test = (
        [waypoints(rows, draw(noise, len(rows), generator).to(rows.dtype), share) for share in shares] for rows in parts
    )
    objective = SNCE(_LogRatio(network), EmpiricalNoise(train[1]), rule, partition="profiled")
    fit(objective, train[0], seed=seed, schedule="cosine", **how)
    with torch.no_grad():
        offset = log_mean_exp(network(train[1]).squeeze(-1))
        num, den = (network(rows).squeeze(-1) - offset for rows in test)
    (live,) = ratio_statistics(rule.unclipped(), num[None], den[None])["live_noise"]
    report = BridgeReport(live, effective_share(den), float(num.mean() - log_mean_exp(den)))
    return _Bridge(shares, network, offset, report)


class _LogRatio(nn.Module):
    """A network read as the log-density of the data with respect to the noise."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def log_prob(self, x: Tensor) -> Tensor:
        found: Tensor = self.network(x)
        return found.squeeze(-1)
