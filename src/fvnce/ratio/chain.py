r"""One bridge between two waypoints, what it learned, and a chain of bridges to a Gaussian.

The Gaussian of p is g = N(m, S), with its mean and covariance. The noise is ¾ N(m, S) + ¼ N(m, 4S), so that p's tails
meet some of it, and since both densities are known, the network learns log p/g: 0 if p is Gaussian. The waypoints
m + √(1 − a²)(x − m) + a (z − m), x ~ p and z a sample of the noise, have one mean for every a, and covariances between
S and 1.75 S. The shape of p is lost little by little and nothing moves, so every bridge of the chain is evaluated at
points of the kind that it was trained on.

What a ratio r̂ misses is estimated by boosted trees that classify rows of p against rows of q weighted by r̂, on rows
that neither r̂ nor they were trained on (Eq. ratio_error).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal

from .. import _validation
from .._random import seeded
from .._stats import log_mean_exp
from ..models import mlp
from ..models.energy import DistributionRatio
from ..noise import EmpiricalNoise, NoiseMixture, draw, fit_gaussian, log_prob_or_minus_inf
from ..objectives import NCE
from ..objectives.batch import effective_fraction, ratio_statistics
from ..scoring import ScoringRule
from ..training import fit

#: A bridge whose noise weights have a smaller effective fraction than this is too long.
ALIVE = 0.1
MOST_BRIDGES = 32
#: Epochs without a better value on held-out rows after which a bridge goes back to its best.
PATIENCE = 8
#: Weight of the wider Gaussian in the noise, and how much wider it is.
WIDE, WIDER = 0.25, 2.0
#: Draws of the noise for each row of data, and folds of the boosted trees, when a ratio is checked.
DRAWS_PER_ROW, CHECK_FOLDS = 4, 4
#: Rows that must carry the mean of squared log-ratios, so that it does not depend on the few farthest.
ENOUGH_ROWS = 30

Steps = tuple[float, ...]


class Gain(NamedTuple):
    """A held-out gain in nats, and its standard error.

    >>> Gain(0.5, 0.1).significant, Gain(0.1, 0.1).significant
    (True, False)
    """

    value: float
    error: float

    @property
    def significant(self) -> bool:
        """Whether the gain is more than two standard errors above 0."""
        return self.value > 2 * self.error

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f}"


NO_GAIN, UNKNOWN = Gain(0.0, 0.0), Gain(math.nan, math.nan)


@dataclass(frozen=True)
class BridgeReport:
    """Quality of one bridge on held-out samples.

    Attributes:
        live_noise: fraction of noise samples that contribute to the gradient.
        ess_noise: effective fraction of the ratio weights on noise samples.
        gain: E_num[log r] − log E_den[r], a lower bound on KL(p_k‖p_k₊₁) in nats.
        learned: the part of the gain that the network adds to what is known without it (a constant, or the data's
            Gaussian), with its standard error. If it is not significantly above 0, the bridge learned nothing, even
            where ``ess_noise`` is near 1, as it is for every constant.
        exact: whether both densities are known, so that nothing was learned and its length does not matter.

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
    """A network and the constant that normalizes it, between the waypoints of two shares."""

    shares: tuple[float, float]
    network: nn.Module
    offset: Tensor
    report: BridgeReport

    def log_ratio(self, x: Tensor) -> Tensor:
        """Return log p_k/p_{k+1}, shape (n,)."""
        log_ratio: Tensor = self.network(x).squeeze(-1) - self.offset
        return log_ratio


@dataclass(frozen=True)
class MatchedGaussian:
    """The Gaussian with the mean and covariance of some rows, and the noise around it."""

    gaussian: Distribution
    noise: Distribution

    @classmethod
    def of(cls, rows: Tensor, *, tails: bool) -> MatchedGaussian:
        """Match some rows; with ``tails`` the noise has a wider Gaussian in it.

        >>> MatchedGaussian.of(torch.tensor([[-1.0], [1.0]]), tails=True).noise.mean
        tensor([0.])
        """
        core = fit_gaussian(rows, "full")
        if not tails:
            return cls(core, core)
        wide = MultivariateNormal(core.mean, scale_tril=WIDER * core.scale_tril)  # type: ignore[union-attr]
        return cls(core, NoiseMixture([core, wide], [1 - WIDE, WIDE]))


@dataclass(frozen=True)
class BridgeTrainer:
    """Settings and training of bridges.

    Attributes:
        network: makes a network from x to one number, or None for an MLP.
        rule: the scoring rule.
        copies: waypoints made of each row, with noise of their own.
        seed: of all random draws.
        training: arguments of :func:`fvnce.fit`.
    """

    network: Callable[[], nn.Module] | None
    rule: ScoringRule
    copies: int
    seed: int
    training: dict[str, Any]

    def bridge(
        self,
        train: Tensor,
        held_out: Tensor,
        noise: Distribution,
        shares: tuple[float, float] = (0.0, 1.0),
        known: nn.Module | None = None,
        held_out_noise: Distribution | None = None,
    ) -> Bridge:
        """Train on waypoints of the first rows, stop and judge by those of the second.

        ``held_out_noise`` is the noise of the second rows, if it is another. ``known`` is a part of the log-ratio that
        the network need not learn, and that the bridge leaves out.
        """
        # Every bridge has its own seed, independent of the others.
        seed = self.seed + round(1e6 * shares[0]) + 7 * round(1e6 * shares[1])
        generator = torch.Generator().manual_seed(seed)
        # The ends are data and noise as they are; any other station has the mean of both, which is one.
        centre = 0.0 if shares == (0.0, 1.0) else noise.mean.to(train)

        def both_ends(rows: Tensor, source: Distribution) -> list[Tensor]:
            around = rows.repeat(self.copies, 1) - centre
            return [
                centre + waypoints(around, draw(source, len(around), generator).to(rows) - centre, share)
                for share in shares
            ]

        num, den = both_ends(train, noise)
        held = both_ends(held_out, held_out_noise or noise)
        with seeded(seed):
            network = whitened_mlp(torch.cat([num, den]), 1) if self.network is None else self.network().to(num.dtype)
        model = _NetworkDensity(network, known)
        objective = NCE(model, EmpiricalNoise(den), self.rule, partition="profiled")
        schedule: dict[str, Any] = {"early_stopping": PATIENCE, "schedule": "cosine", "progress": False}
        fit(objective, num, validation=held[0], seed=seed, **schedule, **self.training)
        with torch.no_grad():
            offset = log_mean_exp(model.log_prob(den))
            at_num, at_den = (model.log_prob(rows) - offset for rows in held)
            known_num, known_den = (
                at_num.new_zeros(len(rows)) if known is None else known(rows).squeeze(-1) for rows in held
            )
        live = ratio_statistics(self.rule.unclipped(), at_num, at_den)["live_noise"]
        gain = float(at_num.mean() - log_mean_exp(at_den))
        learned = gain_over(at_num, at_den, known_num, known_den, self.copies)
        return Bridge(shares, network, offset, BridgeReport(live, effective_fraction(at_den), gain, learned))

    def chain(self, train: Tensor, held_out: Tensor, matched: MatchedGaussian, steps: Steps) -> list[Bridge]:
        """Train bridges between the given shares, from the rows to their Gaussian."""
        known = DistributionRatio(matched.gaussian, matched.noise)
        return [
            self.bridge(train, held_out, matched.noise, shares, known if shares[1] == 1 else None)
            for shares in pairwise(steps)
        ]

    def living_chain(
        self, train: Tensor, held_out: Tensor, matched: MatchedGaussian
    ) -> tuple[list[Bridge], list[BridgeReport]]:
        """Train as many bridges as it takes for each to be alive; also return the reports of those that were split."""
        bridges, split = self.chain(train, held_out, matched, (0.0, 1.0)), []
        while len(bridges) < MOST_BRIDGES and not all(bridge.report.alive for bridge in bridges):
            worst = min(range(len(bridges)), key=lambda k: bridges[k].report.ess_noise)
            low, high = bridges[worst].shares
            middle = math.sin((math.asin(low) + math.asin(high)) / 2)
            split.append(bridges[worst].report)
            bridges[worst : worst + 1] = self.chain(train, held_out, matched, (low, middle, high))
        return bridges, split


class _NetworkDensity(nn.Module):
    """A network read as the log-density of the data with respect to the noise."""

    def __init__(self, network: nn.Module, known: nn.Module | None) -> None:
        super().__init__()
        self.network, self.known = network, known

    def log_prob(self, x: Tensor) -> Tensor:
        value: Tensor = self.network(x) if self.known is None else self.network(x) + self.known(x)
        return value.squeeze(-1)


def data_and_noise(x: Tensor, noise: Distribution | Tensor) -> tuple[Tensor, Distribution]:
    """Return rows of data, and the noise as a distribution of such rows, also where only samples of it are known."""
    data = _validation.table("x", x, rows=10)
    if noise is None:
        raise TypeError("noise must be a distribution or rows of numbers, found None")
    source = noise if isinstance(noise, Distribution) else EmpiricalNoise(_validation.table("noise", noise, rows=10))
    if tuple(source.event_shape) != tuple(data.shape[1:]):
        raise ValueError(f"noise must have rows of {data.shape[1]} numbers like x, found {tuple(source.event_shape)}")
    if density_of(source) is not None:
        _validation.finite_log_noise("x", log_prob_or_minus_inf(source, data))
    return data, source


def density_of(source: Distribution) -> Distribution | None:
    """Return the noise, if its density is known."""
    return None if isinstance(source, EmpiricalNoise) else source


def equal_steps(count: int) -> Steps:
    """Return shares in equal steps of the angle: neighbors of equal correlation."""
    return tuple(math.sin(math.pi / 2 * k / count) for k in range(count + 1))


def waypoints(x: Tensor, y: Tensor, share: float) -> Tensor:
    """Return √(1 − a²) x + a y, row by row; a = 0 is the data and a = 1 the noise.

    >>> waypoints(torch.ones(1, 1), torch.zeros(1, 1), 0.6)
    tensor([[0.8000]])
    """
    return math.sqrt(1 - share**2) * x + share * y


def whitened_mlp(rows: Tensor, outputs: int) -> nn.Module:
    """Make an MLP of whitened rows whose initial output is 0."""
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


def gain_over(num: Tensor, den: Tensor, known_num: Tensor, known_den: Tensor, copies: int) -> Gain:
    """Return what a log-ratio gains over a known one on held-out rows, each of which occurs ``copies`` times."""
    total, known_total = log_mean_exp(den), log_mean_exp(known_den)
    on_num = (num - total) - (known_num - known_total)
    on_den = (den - total).exp() - (known_den - known_total).exp()
    if len(on_num) < 2 * copies:
        return Gain(float(on_num.mean()), math.inf)
    variance = on_num.var() / len(on_num) + on_den.var() / len(on_den)
    return Gain(float(on_num.mean()), math.sqrt(copies * float(variance)))


def missed(rows: Tensor, draws: Tensor, log_weights: Tensor, seed: int) -> Gain:
    """Return the cross-validated gain of boosted trees that distinguish rows of p from weighted draws of q.

    >>> x = torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    >>> [missed(x[:200] + shift, x[200:], torch.zeros(200), 0).significant for shift in (0, 2)]
    [False, True]
    """
    if min(len(rows), len(draws)) < ENOUGH_ROWS:
        return Gain(0.0, math.inf)
    # Imported here: a second of waiting for those who only import fvnce.
    from sklearn.ensemble import HistGradientBoostingClassifier

    log_weights = log_weights.double().cpu() - log_mean_exp(log_weights.double().cpu())
    x = torch.cat([rows, draws]).cpu().numpy()
    is_row = np.arange(len(x)) < len(rows)
    weights = np.ones(len(x))
    weights[~is_row] = log_weights.exp().numpy() * len(rows) / len(draws)
    part, logits = np.empty(len(x), dtype=int), np.empty(len(x))
    generator = np.random.default_rng([seed, 83])
    for side in (is_row, ~is_row):
        part[side] = generator.permutation(side.sum()) % CHECK_FOLDS
    for fold in range(CHECK_FOLDS):
        inside = part != fold
        trees = HistGradientBoostingClassifier(max_leaf_nodes=8, early_stopping=True, random_state=seed)
        trees.fit(x[inside], is_row[inside], sample_weight=weights[inside])
        logits[~inside] = trees.decision_function(x[~inside])
    at_rows, at_draws = (torch.from_numpy(logits[side]) for side in (is_row, ~is_row))
    return gain_over(at_rows, at_draws + log_weights, torch.zeros_like(at_rows), log_weights, 1)


def rows_that_count(rows: Tensor) -> float:
    """Return how many rows carry the mean of d⁴, d the distance from the mean in standard deviations.

    Log-ratios of Gaussians, and errors of a log-ratio beyond the rows, grow like d².
    """
    centered = (rows - rows.mean(0)).double()
    covariance = centered.T @ centered / len(rows)
    squares = torch.einsum("ni,ij,nj->n", centered, torch.linalg.pinv(covariance, hermitian=True), centered).square()
    return float(squares.sum().square() / squares.square().sum().clamp(min=1e-300))
