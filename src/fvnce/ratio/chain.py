r"""One bridge between two waypoints, and a chain of them from a distribution to its Gaussian reference.

The reference of p is g = N(m, S), with its mean and covariance. Told from p are samples of ¾ N(m, S) + ¼ N(m, 4S), so
that p's tails meet some noise, and since both densities are known, log p/g is what is learned: 0 if p is Gaussian. The
waypoints m + √(1 − a²)(x − m) + a (z − m), x ~ p and z such a sample, have one mean for every a, and covariances
between S and 1.75 S. What shape p has is lost little by little and nothing moves, so every bridge of the chain is asked
about points of the kind that it was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal

from .. import _checks
from .._estimates import log_mean_exp
from .._random import seeded
from ..models import mlp
from ..models.ratios import DistributionRatio
from ..noise import EmpiricalNoise, NoiseMixture, draw, fit_gaussian, log_prob_or_minus_inf
from ..objectives import SNCE
from ..objectives.base import effective_share, ratio_statistics
from ..scoring import ScoringRule
from ..training import fit
from .doubt import NO_GAIN, Gain, gain_over

#: A bridge whose noise weights have a smaller effective share than this is too long.
ALIVE = 0.1
MOST_BRIDGES = 32
#: Epochs without a better value on held-out rows after which a bridge goes back to its best.
PATIENCE = 8

#: Share of the wider Gaussian in the noise, and how much wider it is.
WIDE, WIDER = 0.25, 2.0

Steps = tuple[float, ...]


@dataclass(frozen=True)
class BridgeReport:
    """How one bridge fares on samples that it was not trained on.

    Attributes:
        live_noise: share of noise samples that can be felt in the gradient.
        ess_noise: effective share of the ratio weights on noise samples.
        gain: E_num[log r] − log E_den[r], a lower bound on KL(p_k‖p_k₊₁) in nats.
        learned: the part of the gain that the network adds to what is known without it (a constant, or the data's
            Gaussian), with its standard error. If it is not significantly above 0, the bridge learned nothing, even
            where ``ess_noise`` is near 1, as it is for every constant.
        exact: whether both densities are known, so that nothing was learned and any length will do.

    >>> BridgeReport(live_noise=1.0, ess_noise=0.4, gain=0.5).alive
    True
    >>> BridgeReport(live_noise=0.1, ess_noise=0.001, gain=9.0).alive
    False
    """

    live_noise: float
    ess_noise: float
    gain: float
    learned: Gain = NO_GAIN
    exact: bool = False

    @property
    def alive(self) -> bool:
        """Whether enough noise samples count."""
        return self.exact or self.ess_noise >= ALIVE


@dataclass(frozen=True)
class Bridge:
    """A network and the constant that normalises it, between the waypoints of two shares."""

    shares: tuple[float, float]
    network: nn.Module
    offset: Tensor
    report: BridgeReport

    def log_ratio(self, x: Tensor) -> Tensor:
        """log p_k/p_{k+1}, shape (n,)."""
        found: Tensor = self.network(x).squeeze(-1)
        return found - self.offset


@dataclass(frozen=True)
class Builder:
    """How bridges are trained.

    Attributes:
        network: makes a network from x to one number, or None for an MLP.
        rule: the scoring rule.
        copies: waypoints made of each row, with noise of their own.
        seed: for everything.
        training: arguments of :func:`fvnce.fit`.
        done: called after each bridge.
    """

    network: Callable[[], nn.Module] | None
    rule: ScoringRule
    copies: int
    seed: int
    training: dict[str, Any]
    done: Callable[[], None] = lambda: None

    def bridge(
        self,
        train: Tensor,
        held: Tensor,
        noise: Distribution,
        shares: tuple[float, float] = (0.0, 1.0),
        known: nn.Module | None = None,
        held_noise: Distribution | None = None,
    ) -> Bridge:
        """Train on waypoints of the first rows, stop and judge by those of the second.

        ``held_noise`` is the noise of the second rows, if it is another. ``known`` is a part of the log-ratio that the
        network need not learn, and that the bridge leaves out.
        """
        # A seed of its own for every bridge, whatever others there are.
        seed = self.seed + round(1e6 * shares[0]) + 7 * round(1e6 * shares[1])
        generator = torch.Generator().manual_seed(seed)
        # The ends are data and noise as they are; any other station has the mean of both, which is one.
        centre = 0.0 if shares == (0.0, 1.0) else noise.mean.to(train)
        (num, den), (held_num, held_den) = (
            [
                centre + waypoints(rows - centre, draw(source, len(rows), generator).to(rows) - centre, share)
                for share in shares
            ]
            for rows, source in (
                (train.repeat(self.copies, 1), noise),
                (held.repeat(self.copies, 1), noise if held_noise is None else held_noise),
            )
        )
        with seeded(seed):
            network = self._network(torch.cat([num, den]))
        model = _LogRatio(network, known)
        objective = SNCE(model, EmpiricalNoise(den), self.rule, partition="profiled")
        fit(
            objective,
            num,
            validation=held_num,
            early_stopping=PATIENCE,
            seed=seed,
            schedule="cosine",
            progress=False,
            **self.training,
        )
        with torch.no_grad():
            offset = log_mean_exp(model.log_prob(den))
            at_num, at_den = (model.log_prob(rows) - offset for rows in (held_num, held_den))
            known_num, known_den = (
                at_num.new_zeros(len(rows)) if known is None else known(rows).squeeze(-1)
                for rows in (held_num, held_den)
            )
        (live,) = ratio_statistics(self.rule.unclipped(), at_num[None], at_den[None])["live_noise"]
        gain = float(at_num.mean() - log_mean_exp(at_den))
        learned = gain_over(at_num, at_den, known_num, known_den, self.copies)
        self.done()
        report = BridgeReport(live, effective_share(at_den), gain, learned)
        return Bridge(shares, network, offset, report)

    def _network(self, rows: Tensor) -> nn.Module:
        """The user's, or whitened rows through an MLP."""
        return whitened_mlp(rows, 1) if self.network is None else self.network().to(rows.dtype)

    def chain(self, train: Tensor, held: Tensor, reference: Reference, steps: Steps) -> list[Bridge]:
        """Bridges between the given shares, from the rows to their reference."""
        return [
            self.bridge(train, held, reference.noise, shares, reference.known if shares[1] == 1 else None)
            for shares in pairwise(steps)
        ]

    def chain_of_living(
        self, train: Tensor, held: Tensor, reference: Reference
    ) -> tuple[list[Bridge], list[BridgeReport]]:
        """As many bridges as it takes for each to be alive, and the reports of those that had to be split."""
        found, split = self.chain(train, held, reference, (0.0, 1.0)), []
        while len(found) < MOST_BRIDGES and not all(bridge.report.alive for bridge in found):
            worst = min(range(len(found)), key=lambda k: found[k].report.ess_noise)
            low, high = found[worst].shares
            middle = math.sin((math.asin(low) + math.asin(high)) / 2)
            split.append(found[worst].report)
            found[worst : worst + 1] = self.chain(train, held, reference, (low, middle, high))
        return found, split


@dataclass(frozen=True)
class Reference:
    """The Gaussian of some rows, and the noise that is told from them: with a wider one, for tails, or itself."""

    gaussian: Distribution
    noise: Distribution

    @classmethod
    def of(cls, rows: Tensor, *, tails: bool) -> Reference:
        """Of the rows' mean and covariance.

        >>> Reference.of(torch.tensor([[-1.0], [1.0]]), tails=True).noise.mean
        tensor([0.])
        """
        core = fit_gaussian(rows, "full")
        if not tails:
            return cls(core, core)
        wide = MultivariateNormal(core.mean, scale_tril=WIDER * core.scale_tril)  # type: ignore[union-attr]
        return cls(core, NoiseMixture([core, wide], [1 - WIDE, WIDE]))

    @property
    def known(self) -> DistributionRatio:
        """The Gaussian's density over the noise's."""
        return DistributionRatio(self.gaussian, self.noise)


def data_and_noise(x: Tensor, noise: Distribution | Tensor) -> tuple[Tensor, Distribution]:
    """Rows of data, and the noise as a distribution of such rows, also where only samples of it are known."""
    data = _checks.table("x", x, rows=10)
    if noise is None:
        raise TypeError("noise must be a distribution or rows of numbers, found None")
    source = noise if isinstance(noise, Distribution) else EmpiricalNoise(_checks.table("noise", noise, rows=10))
    if tuple(source.event_shape) != tuple(data.shape[1:]):
        raise ValueError(f"noise must have rows of {data.shape[1]} numbers like x, found {tuple(source.event_shape)}")
    if density_of(source) is not None:
        _checks.finite_log_noise("x", log_prob_or_minus_inf(source, data))
    return data, source


def density_of(source: Distribution) -> Distribution | None:
    """The noise, if its density is known."""
    return None if isinstance(source, EmpiricalNoise) else source


def steps_of(bridges: list[Bridge]) -> Steps:
    """The shares between which the bridges lie, one more than bridges."""
    return (bridges[0].shares[0], *(bridge.shares[1] for bridge in bridges))


def equal_steps(count: int) -> Steps:
    """Shares in equal steps of the angle: neighbours of equal correlation."""
    return tuple(math.sin(math.pi / 2 * k / count) for k in range(count + 1))


def waypoints(x: Tensor, y: Tensor, share: float) -> Tensor:
    """√(1 − a²) x + a y, row by row; a = 0 is the data and a = 1 the noise.

    >>> waypoints(torch.ones(1, 1), torch.zeros(1, 1), 0.6)
    tensor([[0.8000]])
    """
    return math.sqrt(1 - share**2) * x + share * y


def whitened_mlp(rows: Tensor, outputs: int) -> nn.Module:
    """Whitened rows through an MLP whose first answer is 0."""
    gaussian = fit_gaussian(rows, "full")
    columns = rows.shape[1]
    whiten, inner = nn.Linear(columns, columns), mlp([columns, 64, 64, outputs], nn.SiLU)
    inverse = torch.linalg.inv(gaussian.scale_tril)  # type: ignore[union-attr]
    with torch.no_grad():
        whiten.weight.copy_(inverse)
        whiten.bias.copy_(-inverse @ gaussian.mean)
        for value in inner[-1].parameters():
            value.zero_()
    whiten.requires_grad_(False)
    return nn.Sequential(whiten, *inner).to(rows.dtype)


class _LogRatio(nn.Module):
    """A network read as the log-density of the data with respect to the noise."""

    def __init__(self, network: nn.Module, known: nn.Module | None) -> None:
        super().__init__()
        self.network, self.known = network, known

    def log_prob(self, x: Tensor) -> Tensor:
        found: Tensor = self.network(x) if self.known is None else self.network(x) + self.known(x)
        return found.squeeze(-1)
