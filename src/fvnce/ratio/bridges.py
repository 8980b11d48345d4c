r"""Ratios of distant distributions: bridges that are learned one by one and summed, or one softmax over all levels.

``telescope`` splits log p/q at distributions between p and q (Eq. telescoping), so that each step is a contrastive
problem whose two sides overlap. What is known is not learned: log p/q = log p/g + log g/q, with g the Gaussian that has
the mean and covariance of the data. g/q is known where q has a density, however far it is; where there are only samples
of q, their Gaussian h takes part, log p/q = log p/g + log g/h − log q/h. What is left is the shape of p: p/g is one
step, or several between waypoints (``chain``) if one is not alive. Everything is repeated for every fold, which is
held out to stop the training and to evaluate it. The estimate is the mean of the log-ratios, with
the error of Eq. ratio_error.

``multinomial_bridges`` trains one classifier of all levels (Eq. multinomial), which is evaluated at points of p and of
q having been trained at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import cross_entropy

from .. import _validation
from .._random import seeded
from .._stats import log_mean_exp
from ..models.energy import AveragedRatio, DistributionRatio, MultinomialRatio, TelescopedRatio
from ..noise import EmpiricalNoise, draw
from ..noise.base import inside_support
from ..objectives.batch import effective_fraction, ratio_statistics
from ..scoring import PowerRule, ScoringRule
from ..training import fit
from ..training.callbacks import Progress
from .chain import (
    ALIVE,
    DRAWS_PER_ROW,
    ENOUGH_ROWS,
    PATIENCE,
    UNKNOWN,
    Bridge,
    BridgeReport,
    BridgeTrainer,
    Gain,
    MatchedGaussian,
    Steps,
    data_and_noise,
    density_of,
    equal_steps,
    missed,
    rows_that_count,
    waypoints,
    whitened_mlp,
)
from .direct import folds_of

#: Draws with which the estimate is normalized.
NOISE_DRAWS = 20_000


@dataclass(frozen=True)
class Telescope:
    """Telescoped density ratio, with reports on its bridges.

    Attributes:
        model: ``log_ratio(x)``, and ``log_prob(x)`` where the noise has a density.
        reports: one for each bridge, from the data to the noise, averaged over the folds.
        shares: a_k of the waypoints between the data and the noise, or the data's Gaussian.
        error: upper estimate, in nats, of the root mean square of log r̂ − log r over fresh rows of p, meant to hold for
            nine data sets in ten (results/coverage/README.md counts). NaN if nothing bounds it, with the reason in
            ``advice``: a bridge is too long, boosted trees find what the ratio misses, a few far rows carry the mean
            square, or the noise is known by samples alone and they are far from the data.
        missed: held-out gain, in nats, of boosted trees that distinguish fresh rows from the estimate, with its
            standard error: a lower bound on KL(p‖r̂q). NaN if it was not measured.
        doubts: why there is no error, empty if there is one.
        split: reports of bridges that were found too long and split, the first being one step all the way.

    >>> x = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    >>> ratio = telescope(x, x + 1, bridges=1, epochs=1)
    >>> len(ratio.reports), ratio.model.log_ratio(x).shape
    (1, torch.Size([60]))
    """

    model: TelescopedRatio
    reports: tuple[BridgeReport, ...]
    shares: tuple[float, ...]
    error: float
    missed: Gain = UNKNOWN
    doubts: tuple[str, ...] = ()
    split: tuple[BridgeReport, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether one step alone is too far; known if one was tried."""
        return bool(self.split) or (len(self.reports) == 1 and not self.reports[0].alive)

    @property
    def advice(self) -> list[str]:
        """Suggested changes; empty if something was learned and there is an error."""
        learned = [report.learned for report in self.reports if not report.exact]
        if any(gain.significant for gain in learned):
            return list(self.doubts)
        known = "that of the Gaussian with the data's mean and covariance, right if the data are Gaussian"
        if len(self.reports) == 1:
            known = "1: data and noise are one distribution, or the network cannot tell them apart"
        text = f"nothing was learned (held-out gain {max(learned)} nats), and the ratio is {known}"
        return [f"{text}. Try another network or more rows", *self.doubts]


def telescope(
    x: Tensor,
    noise: Distribution | Tensor,
    *,
    bridges: int | Literal["auto"] = "auto",
    network: Callable[[], nn.Module] | None = None,
    rule: ScoringRule | None = None,
    epochs: int = 40,
    batch_size: int = 256,
    lr: float = 5e-3,
    copies: int = 4,
    folds: int = 4,
    seed: int = 0,
    progress: bool | None = None,
) -> Telescope:
    """Estimate log p/q between data and distant noise, bridge by bridge.

    Args:
        x: data, shape (n, D).
        noise: q: a distribution, or samples of it.
        bridges: number of bridges. 1 is an ordinary ratio. More lead from the data to their Gaussian, and the last,
            which is exact, from there to the noise. "auto" tries 1, then 2, and splits what is not alive.
        network: makes a network from x to one number; by default an MLP of 64-64 of whitened rows.
        rule: by default (0, 0); each bridge is profiled.
        epochs: passes over the waypoints of each bridge, at most: held-out rows decide which was best.
        batch_size: rows of a step.
        lr: learning rate.
        copies: waypoints made of each data row, with noise of their own.
        folds: repetitions, each with another part of the rows held out.
        seed: of all random draws.
        progress: show a bar of the folds; by default if standard error is a terminal.

    >>> from torch.distributions import Independent, Normal
    >>> noise = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    >>> data = 3 + 0.1 * torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    >>> ratio = telescope(data, noise, epochs=5)
    >>> ratio.needed
    True
    >>> truth = Normal(3.0, 0.1).log_prob(data).sum(-1)
    >>> bool((ratio.model.log_prob(data) - truth).square().mean().sqrt() < 0.15)
    True
    """
    data, source = data_and_noise(x, noise)
    seed, copies = _validation.count("seed", seed, low=0), _validation.count("copies", copies)
    training = {"epochs": epochs, "batch_size": batch_size, "lr": lr}
    trainer = BridgeTrainer(network, PowerRule(0) if rule is None else rule, copies, seed, training)
    folds = _validation.count("folds", folds, low=2)
    if isinstance(source, EmpiricalNoise) and isinstance(source.samples, Distribution):
        # As rows, of which some can be held out; by a stream that decides nothing else.
        source = EmpiricalNoise(draw(source, len(data), torch.Generator().manual_seed(seed + 1)))
    generator = torch.Generator().manual_seed(seed)
    sides: dict[str, Any] = {"x": data} | ({"noise": source.samples} if isinstance(source, EmpiricalNoise) else {})
    parts = [(rows, folds_of(name, rows, folds, generator)) for name, rows in sides.items()]
    plan: _Plan | None = None
    if bridges != "auto":
        count = _validation.count("bridges", bridges)
        # All bridges but the exact one belong to the data's side; the noise's side, if there is one, has its own.
        plan = (equal_steps(count - 1), equal_steps(1))[: len(sides)] if count > 1 else ()
    runs: list[_Fold] = []
    with closing(Progress(progress)) as bar, bar.stage("folds") as report:
        for fold in range(folds):
            split_sides = [(rows[part != fold], rows[part == fold]) for rows, part in parts]
            runs.append(_fit_fold(replace(trainer, seed=seed + 1009 * fold), split_sides, source, plan))
            plan = runs[0].plan
            if report is not None:
                report(fold + 1, folds)
    return _averaged(runs, data, source, seed, "more rows" if bridges == "auto" else "bridges='auto'")


#: Training and held-out rows of the data and, where it is known by samples alone, of the noise.
_Sides = Sequence[tuple[Tensor, Tensor]]
#: The shares between which the bridges of each side lie; empty for one step all the way.
_Plan = tuple[Steps, ...]


@dataclass(frozen=True)
class _Fold:
    """Results of training on one fold.

    Attributes:
        bridges: from the data to the noise.
        matched: the Gaussian of each side; none for one step all the way.
        plan: by which other folds are trained.
        split: reports of bridges that were too long.
        check: rows of p, draws, and the log-weights that make the draws rows of r̂q.
    """

    bridges: list[Bridge]
    matched: list[MatchedGaussian]
    plan: _Plan
    split: list[BridgeReport]
    check: tuple[Tensor, Tensor, Tensor] | None


def _fit_fold(trainer: BridgeTrainer, sides: _Sides, source: Distribution, plan: _Plan | None) -> _Fold:
    """Train all bridges of one fold by a plan, or make one."""
    split: list[BridgeReport] = []
    held_out = sides[0][1]
    if not plan:
        noises = [EmpiricalNoise(rows) for rows in sides[1]] if len(sides) > 1 else [source, source]
        direct = trainer.bridge(*sides[0], noises[0], held_out_noise=noises[1])
        if plan == () or direct.report.alive:
            drawn = sides[1][1] if len(sides) > 1 else _drawn(source, held_out, trainer.seed)
            return _Fold([direct], [], (), split, (held_out, drawn, _log_weights([direct], drawn)))
        split.append(direct.report)
    # Where noise is known by samples alone, the data lie in its tails, of which no noise around it would tell more.
    matched = [MatchedGaussian.of(train, tails=k == 0) for k, (train, _) in enumerate(sides)]
    chains = []
    for k, (side, gaussian) in enumerate(zip(sides, matched, strict=True)):
        if plan is None:
            chain, too_long = trainer.living_chain(*side, gaussian)
            split += too_long
        else:
            chain = trainer.chain(*side, gaussian, plan[k])
        chains.append(chain)
    target = matched[1].gaussian if len(matched) > 1 else source
    exact = _exact(trainer.rule, held_out, matched[0].gaussian, target, trainer.seed)
    back = [_inverted(bridge) for bridge in reversed(chains[1])] if len(chains) > 1 else []
    bridges = [*chains[0], exact, *back]
    check = None
    if len(sides) == 1:
        drawn = _drawn(matched[0].noise, held_out, trainer.seed)
        drawn = drawn[inside_support(source, drawn)]  # elsewhere r̂q is 0
        base = source.log_prob(drawn) - matched[0].noise.log_prob(drawn)
        check = held_out, drawn, _log_weights(bridges, drawn, base)
    plan = tuple((chain[0].shares[0], *(bridge.shares[1] for bridge in chain)) for chain in chains)
    return _Fold(bridges, matched, plan, split, check)


def _drawn(noise: Distribution, held_out: Tensor, seed: int) -> Tensor:
    """Draw noise to compare the held-out rows with, from its own stream."""
    return draw(noise, DRAWS_PER_ROW * len(held_out), torch.Generator().manual_seed(seed + 2)).to(held_out)


def _log_weights(bridges: list[Bridge], drawn: Tensor, base: Tensor | float = 0.0) -> Tensor:
    with torch.no_grad():
        log_weights = torch.stack([bridge.log_ratio(drawn) for bridge in bridges]).sum(0) + base
    return log_weights - log_mean_exp(log_weights)


def _exact(rule: ScoringRule, held_out: Tensor, gaussian: Distribution, target: Distribution, seed: int) -> Bridge:
    """Return the bridge from the data's Gaussian to the noise, or to the noise's Gaussian."""
    ratio = DistributionRatio(gaussian, target)
    with torch.no_grad():
        drawn = draw(target, len(held_out), torch.Generator().manual_seed(seed)).to(held_out)
        at_num, at_den = ratio(held_out).squeeze(-1), ratio(drawn).squeeze(-1)
    live = ratio_statistics(rule.unclipped(), at_num, at_den)["live_noise"]
    report = BridgeReport(live, effective_fraction(at_den), float(at_num.mean()), exact=True)
    return Bridge((1.0, 1.0), ratio, held_out.new_zeros(()), report)


def _inverted(bridge: Bridge) -> Bridge:
    """Return the bridge of log p_{k+1}/p_k."""
    minus = nn.Linear(1, 1, bias=False)
    nn.init.constant_(minus.weight, -1.0)
    minus.to(bridge.offset.dtype).requires_grad_(False)
    return replace(bridge, network=nn.Sequential(bridge.network, minus), offset=-bridge.offset)


def _averaged(runs: list[_Fold], data: Tensor, source: Distribution, seed: int, instead: str) -> Telescope:
    """Return the mean of the folds' log-ratios, normalized, with its error (Eq. ratio_error)."""
    columns = list(zip(*(run.bridges for run in runs), strict=True))
    offsets = torch.stack([torch.stack([bridge.offset for bridge in column]).mean(0) for column in columns])
    networks = [AveragedRatio([bridge.network for bridge in column]) for column in columns]
    with torch.no_grad():
        offsets[0] += _log_total(TelescopedRatio(networks, offsets), runs, source, seed)
        each = torch.stack([torch.stack([bridge.log_ratio(data) for bridge in run.bridges]).sum(0) for run in runs])
        # Delete a group: Var = (M − 1)/M Σ (log r_j − mean)².
        jackknife = ((len(runs) - 1) * (each - each.mean(0)).square().mean()).sqrt()
    reports = tuple(_mean_report([bridge.report for bridge in column]) for column in columns)
    rest = UNKNOWN
    if checks := [run.check for run in runs if run.check is not None]:
        rows, drawn, log_weights = (torch.cat(parts) for parts in zip(*checks, strict=True))
        rest = missed(rows, drawn, log_weights, seed)
    doubts = _doubts(reports, rest, rows_that_count(data), instead)
    error = math.nan if doubts else math.hypot(2 * float(jackknife), math.sqrt(2 * max(rest.value + 2 * rest.error, 0)))
    shares = runs[0].plan[0] if runs[0].plan else (0.0, 1.0)
    model = TelescopedRatio(networks, offsets, density_of(source))
    return Telescope(model, reports, shares, error, rest, doubts, tuple(runs[0].split))


def _doubts(reports: Sequence[BridgeReport], rest: Gain, carrying: float, instead: str) -> tuple[str, ...]:
    """Say why no error can be reported; ``instead`` is what to try if not more bridges."""
    dead = [str(k) for k, report in enumerate(reports) if not report.alive]
    doubts = {
        f"bridges {', '.join(dead)} of {len(reports)}, counted from the data, are too long (effective fraction of the "
        f"noise under {ALIVE:.0%}). Use bridges={len(reports) + 1}, or {instead}": bool(dead),
        "no error is reported: the noise is known by samples alone, and none of them shows its density where the data "
        "are. Pass noise with a density": math.isnan(rest.value),
        f"no error is reported: {_MISSED.format(rest)}": rest.significant,
        f"no error is reported: the tails are heavy or the rows few, {carrying:.0f} rows carry the mean square and at "
        f"least {ENOUGH_ROWS} must. Transform the columns or use more rows": carrying < ENOUGH_ROWS,
    }
    return tuple(text for text, applies in doubts.items() if applies)


_MISSED = (
    "boosted trees find {} nats in held-out rows that the ratio misses. Use another network, more epochs or more rows"
)


def _log_total(model: TelescopedRatio, runs: list[_Fold], source: Distribution, seed: int) -> Tensor:
    """Return log E_q[r̂], from draws of the data's Gaussian, under which the weights are even, if there is one."""
    generator = torch.Generator().manual_seed(seed)
    if not runs[0].matched:
        drawn = source.samples if isinstance(source, EmpiricalNoise) else draw(source, NOISE_DRAWS, generator)
        return log_mean_exp(model.log_ratio(drawn.to(model.offsets)))  # type: ignore[union-attr,arg-type]
    totals = []
    # p̂ is the part before the exact bridge and q̂ the part after it, each with its Gaussian.
    exact = [bridge.report.exact for bridge in runs[0].bridges].index(True)
    for side, (low, high) in enumerate(((0, exact), (exact + 1, len(model.bridges)))[: len(runs[0].matched)]):
        noise, sign = runs[0].matched[side].noise, 1 - 2 * side
        drawn = draw(noise, NOISE_DRAWS, generator)
        part = TelescopedRatio(model.bridges[low:high], model.offsets[low:high])  # type: ignore[arg-type,index]
        densities = torch.stack([run.matched[side].gaussian.log_prob(drawn) for run in runs]).mean(0)
        log_weights = sign * part.log_ratio(drawn) + densities - noise.log_prob(drawn)
        if side == 0 and density_of(source) is not None:
            log_weights = log_weights.masked_fill(~inside_support(source, drawn), -math.inf)
        totals.append(sign * log_mean_exp(log_weights))
    return torch.stack(totals).sum(0)


def _mean_report(reports: list[BridgeReport]) -> BridgeReport:
    live, share, gain, learned = (
        math.fsum(values) / len(reports)
        for values in zip(*((r.live_noise, r.ess_noise, r.gain, r.learned.value) for r in reports), strict=True)
    )
    # The folds hold out different rows.
    error = math.hypot(*(report.learned.error for report in reports)) / len(reports)
    return BridgeReport(live, share, gain, Gain(learned, error), reports[0].exact)


# One softmax over all levels.


@dataclass(frozen=True)
class MultinomialBridges:
    """Density ratio by multinomial bridges, with checks of its quality.

    Attributes:
        model: ``log_ratio(x)``, and ``log_prob(x)`` where the noise has a density.
        shares: a_k of the levels, from 0, the data, to 1, the noise.
        log_loss: of the classifier on held-out rows, in nats; log(K + 1) is that of a guess.
        learned: log(K + 1) − log_loss with its standard error over held-out rows.
        missed: held-out gain, in nats, of boosted trees that distinguish held-out rows from the estimate, with its
            standard error: a lower bound on KL(p‖r̂q). NaN if the weights of the noise are too uneven.

    No error of log r̂ is reported, because a single fit does not show it; :func:`~fvnce.telescope` reports one.

    >>> x = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    >>> ratio = multinomial_bridges(x, x + 1, levels=2, epochs=1)
    >>> len(ratio.shares), ratio.model.log_ratio(x).shape
    (3, torch.Size([60]))
    """

    model: MultinomialRatio
    shares: tuple[float, ...]
    log_loss: float
    learned: Gain
    missed: Gain

    @property
    def advice(self) -> list[str]:
        """Suggested changes; empty if something was learned and nothing is found to be missed."""
        advice = {
            f"nothing was learned (held-out gain {self.learned} nats): the levels are one distribution, or the network "
            "cannot tell them apart. Try another network or more rows": not self.learned.significant,
            f"the ratio cannot be checked: the effective fraction of the noise is under {ALIVE:.0%}, few draws are "
            "where the data are. Use telescope": math.isnan(self.missed.value),
            _MISSED.format(self.missed): self.missed.significant,
        }
        return [text for text, applies in advice.items() if applies]


def multinomial_bridges(
    x: Tensor,
    noise: Distribution | Tensor,
    *,
    levels: int = 4,
    network: Callable[[int], nn.Module] | None = None,
    epochs: int = 40,
    batch_size: int = 256,
    lr: float = 5e-3,
    copies: int = 4,
    held_out: float = 0.25,
    seed: int = 0,
    progress: bool | None = None,
) -> MultinomialBridges:
    """Estimate log p/q between data and distant noise by one softmax over K + 1 levels.

    Args:
        x: data, shape (n, D).
        noise: q: a distribution, or samples of it.
        levels: K, steps from the data to the noise; 1 is an ordinary classifier of the two.
        network: makes a network from x to a given number of logits; by default an MLP of 64-64 of whitened rows.
        epochs: passes over all levels, at most: held-out rows decide which was best.
        batch_size: rows of a step.
        lr: learning rate.
        copies: rows made of each data row at every level.
        held_out: fraction of the data rows that stops the training.
        seed: of all random draws.
        progress: show a bar; by default if standard error is a terminal.

    >>> from torch.distributions import Independent, Normal
    >>> noise = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    >>> data = 3 + torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    >>> ratio = multinomial_bridges(data, noise, epochs=10)
    >>> truth = Normal(3.0, 1.0).log_prob(data).sum(-1) - noise.log_prob(data)
    >>> bool((ratio.model.log_ratio(data) - truth).square().mean().sqrt() < 1.0)
    True
    """
    data, source = data_and_noise(x, noise)
    shares = equal_steps(_validation.count("levels", levels))
    copies = _validation.count("copies", copies)
    held_out = _validation.number("held_out", held_out, low=0.0, high=0.5, open_low=True)
    seed = _validation.count("seed", seed, low=0)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data), generator=generator)
    cut = max(1, round(held_out * len(data)))
    held, train = (
        _labelled(data[part].repeat(copies, 1), source, shares, generator) for part in (order[:cut], order[cut:])
    )
    with seeded(seed):
        made = whitened_mlp(train[:, :-1], len(shares)) if network is None else network(len(shares)).to(data.dtype)
    training: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "progress": progress}
    loss = _LevelLoss(made, len(shares))
    fit(loss, train, validation=held, early_stopping=PATIENCE, schedule="cosine", seed=seed, **training)
    model = MultinomialRatio(made, density_of(source))
    rows = data[order[:cut]]
    drawn = draw(source, DRAWS_PER_ROW * cut, generator).to(rows)
    with torch.no_grad():
        # A held-out row is in every level and copy: its losses are one observation.
        losses = cross_entropy(made(held[:, :-1]), held[:, -1].long(), reduction="none").reshape(-1, cut).mean(0)
        log_weights = model.log_ratio(drawn)
    spread = float(losses.std()) / math.sqrt(cut) if cut > 1 else math.inf
    learned = Gain(math.log(len(shares)) - float(losses.mean()), spread)
    rest = missed(rows, drawn, log_weights, seed) if effective_fraction(log_weights) >= ALIVE else UNKNOWN
    return MultinomialBridges(model, shares, float(losses.mean()), learned, rest)


def _labelled(rows: Tensor, source: Distribution, shares: Steps, generator: torch.Generator) -> Tensor:
    """Return rows of every level, as many of each, with the level as their last column."""
    parts = []
    for level, share in enumerate(shares):
        at = waypoints(rows, draw(source, len(rows), generator).to(rows), share)
        parts.append(torch.cat([at, at.new_full((len(at), 1), level)], 1))
    return torch.cat(parts)


class _LevelLoss(nn.Module):
    """The cross-entropy of rows whose last column is their level."""

    def __init__(self, network: nn.Module, levels: int) -> None:
        super().__init__()
        self.network, self.levels = network, levels

    def forward(self, rows: Tensor) -> Tensor:
        logits = self.network(rows[:, :-1])
        if logits.shape[-1] != self.levels:
            raise ValueError(
                f"network must give {self.levels} logits, one for each level, found {logits.shape[-1]}; it is called "
                "with their number"
            )
        return cross_entropy(logits, rows[:, -1].long())
