r"""Bridges between data and noise that are too far apart to be told from each other and learn anything.

A ratio of distant distributions is split at distributions between them,

    log p_0/p_K = Σ_k log p_k/p_{k+1}                                                      (telescoping)

(Rhodes, Xu & Gutmann 2020), each step a contrastive problem of its own, easy because the two overlap. A single step is
solved by any ratio that separates data from noise: the noise samples carry no weight (live share near 0) and the
estimate says little about p_0. The stations are chosen such that what is known is not learned:

    log p/q = log p/g + log g/q,      g a Gaussian reference with the mean and covariance of the data

g/q is known where q has a density, however far it is; where there are only samples of q, their own reference h takes
part, log p/q = log p/g + log g/h − log q/h. What is left is the shape of p: p/g is one step, or several between
waypoints (``chain``) if one is not alive.

Everything is done as many times as there are folds, each time without one of them, which stops the training and judges
it. The estimate is the mean of the log-ratios. Its error is made of their spread, by the jackknife, and of what another
learner might still find on held-out rows (``doubt``),

    error² = (2 · jackknife)² + 2 (missed + 2 · its standard error)₊                                        (error)

and is not a number where nothing bounds it: see :class:`Telescope`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks
from .._estimates import log_mean_exp
from ..models.ratios import AveragedRatio, DistributionRatio, TelescopedRatio
from ..noise import EmpiricalNoise, draw
from ..noise.drawing import inside_support
from ..objectives.base import effective_share, ratio_statistics
from ..scoring import PowerRule, ScoringRule
from ..training.callbacks import make_progress
from .chain import (
    ALIVE,
    Bridge,
    BridgeReport,
    Builder,
    Reference,
    Steps,
    data_and_noise,
    density_of,
    equal_steps,
    steps_of,
    waypoints,
)
from .direct import folds_of
from .doubt import DRAWS_PER_ROW, ENOUGH_ROWS, UNKNOWN, Gain, missed, rows_that_count

__all__ = ["ALIVE", "BridgeReport", "Telescope", "telescope", "waypoints"]

#: Draws with which the estimate is normalised.
DRAWS = 20_000


@dataclass(frozen=True)
class Telescope:
    """A telescoped ratio and what is known of its bridges.

    Attributes:
        model: ``log_ratio(x)``, and ``log_prob(x)`` where the noise has a density.
        reports: one for each bridge, from the data to the noise, averaged over the folds.
        shares: a_k of the waypoints between the data and the noise, or the data's reference.
        error: upper estimate, in nats, of the root mean square of log r̂ − log r over fresh rows of p, meant to hold for
            nine data sets in ten (docs/howto/reliability.md counts). NaN if nothing bounds it, with the reason in
            ``advice``: a bridge is too long, boosted trees find what the ratio misses, a few far rows carry the mean
            square, or the noise is known by samples alone and they are far from the data.
        missed: what boosted trees find that tells fresh rows from the estimate, in nats, with its standard error: a
            lower bound on KL(p‖r̂q). NaN where it was not looked for.
        doubts: why there is no error, empty if there is one.
        split: reports of bridges that were found too long and split, the first being one step all the way.

    >>> x = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    >>> found = telescope(x, x + 1, bridges=1, epochs=1)
    >>> len(found.reports), found.model.log_ratio(x).shape
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
        """What to change, in plain words; empty if something was learned and there is an error."""
        learned = [report.learned for report in self.reports if not report.exact]
        if any(gain.significant for gain in learned):
            return list(self.doubts)
        best = max(learned)
        if len(self.reports) == 1:
            known = "data and noise are one distribution, or the network cannot tell them apart"
        else:
            known = (
                "the ratio is that of the Gaussian with the data's mean and covariance, right if the data are Gaussian"
            )
        return [
            f"nothing was learned (held-out gain {best} nats): {known}. Try another network or more rows",
            *self.doubts,
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
        bridges: how many. 1 is an ordinary ratio. More go by way of the data's Gaussian reference, from where the
            last, which is exact, leads to the noise. "auto" tries 1, then 2, and splits what is not alive.
        network: makes a network from x to one number; by default an MLP of 64-64 of whitened rows.
        rule: by default (0, 0); each bridge is profiled.
        epochs: passes over the waypoints of each bridge, at most: held-out rows decide which was best.
        batch_size: rows of a step.
        lr: learning rate.
        copies: waypoints made of each data row, with noise of their own.
        folds: how many times everything is done, each time with another part of the rows held out.
        seed: for everything.
        progress: show a bar; by default if standard error is a terminal.

    >>> from torch.distributions import Independent, Normal
    >>> noise = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    >>> data = 3 + 0.1 * torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    >>> found = telescope(data, noise, epochs=5)
    >>> found.needed
    True
    >>> truth = Normal(3.0, 0.1).log_prob(data).sum(-1)
    >>> bool((found.model.log_prob(data) - truth).square().mean().sqrt() < 0.15)
    True
    """
    data, source = data_and_noise(x, noise)
    builder = Builder(
        network,
        PowerRule(0) if rule is None else rule,
        _checks.count("copies", copies),
        _checks.count("seed", seed, low=0),
        {"epochs": epochs, "batch_size": batch_size, "lr": lr},
    )
    count = bridges if bridges == "auto" else _checks.count("bridges", bridges)
    folds = _checks.count("folds", folds, low=2)
    if isinstance(source, EmpiricalNoise) and isinstance(source.samples, Distribution):
        # As rows, of which some can be held out; by a stream that decides nothing else.
        source = EmpiricalNoise(draw(source, len(data), torch.Generator().manual_seed(builder.seed + 1)))
    generator = torch.Generator().manual_seed(builder.seed)
    rows_of_noise = _rows_of(source)
    sides = [data] if rows_of_noise is None else [data, rows_of_noise]
    # Without rows of noise there is one side only.
    parts = [folds_of(name, rows, folds, generator) for name, rows in zip(("x", "noise"), sides, strict=False)]
    runs: list[_Run] = []
    with closing(make_progress(progress, main_process=True)) as bar, bar.stage("bridges") as report:
        trained = 0

        def done() -> None:
            # The first fold finds out how many bridges there are; the others train those that it kept.
            nonlocal trained
            trained += 1
            if report is not None:
                report(trained, total if runs else folds * trained)

        total = 0
        for fold in range(folds):
            own = replace(builder, seed=builder.seed + 1009 * fold, done=done)
            each = [(rows[part != fold], rows[part == fold]) for rows, part in zip(sides, parts, strict=True)]
            runs.append(_run(own, each, source, count, runs[0].plan if runs else None))
            total = total or trained + (folds - 1) * sum(not bridge.report.exact for bridge in runs[0].bridges)
    return _averaged(runs, data, source, builder, "more rows" if count == "auto" else "bridges='auto'")


#: The shares between which bridges lie, for each side that has a reference; nothing for one step all the way.
Plan = tuple[Steps, ...]
Check = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class _Run:
    """What one fold gave: bridges from the data to the noise, and for each side the reference it ended at."""

    bridges: list[Bridge]
    references: list[Reference]
    plan: Plan
    split: list[BridgeReport]
    check: Check | None


def _run(
    builder: Builder,
    sides: Sequence[tuple[Tensor, Tensor]],
    source: Distribution,
    count: int | Literal["auto"],
    plan: Plan | None,
) -> _Run:
    """All bridges of one fold, by plan, or making one."""
    split: list[BridgeReport] = []
    if plan == () or (plan is None and count in ("auto", 1)):
        noises = [EmpiricalNoise(rows) for rows in sides[1]] if len(sides) > 1 else [source, source]
        direct = builder.bridge(*sides[0], noises[0], held_noise=noises[1])
        if plan == () or count == 1 or direct.report.alive:
            drawn = sides[1][1] if len(sides) > 1 else _drawn(source, sides[0][1], builder.seed)
            return _Run([direct], [], (), split, _check([direct], sides[0][1], drawn))
        split.append(direct.report)
    # Where noise is known by samples alone, the data lie in its tails, of which no noise around it would tell more.
    references = [Reference.of(train, tails=k == 0) for k, (train, _) in enumerate(sides)]
    chains = []
    for k, ((train, held), reference) in enumerate(zip(sides, references, strict=True)):
        if plan is None and count == "auto":
            found, too_long = builder.chain_of_living(train, held, reference)
            split += too_long
        else:
            # All bridges but the exact one are the data's; the noise's side, where it is one, has one of its own.
            steps = plan[k] if plan else equal_steps(max(1, int(count) - 1) if k == 0 else 1)
            found = builder.chain(train, held, reference, steps)
        chains.append(found)
    exact = _exact(builder.rule, sides, references, source, builder.seed)
    back = [_inverted(bridge) for bridge in reversed(chains[1])] if len(chains) > 1 else []
    found = [*chains[0], exact, *back]
    check = None
    if len(sides) == 1:
        drawn = _drawn(references[0].noise, sides[0][1], builder.seed)
        drawn = drawn[inside_support(source, drawn)]  # elsewhere r̂q is 0
        check = _check(found, sides[0][1], drawn, source.log_prob(drawn) - references[0].noise.log_prob(drawn))
    return _Run(found, references, tuple(steps_of(chain) for chain in chains), split, check)


def _drawn(noise: Distribution, held: Tensor, seed: int) -> Tensor:
    """Draw noise to compare the held-out rows with, from a stream of its own."""
    return draw(noise, DRAWS_PER_ROW * len(held), torch.Generator().manual_seed(seed + 2)).to(held)


def _check(bridges: list[Bridge], held: Tensor, drawn: Tensor, base: Tensor | float = 0.0) -> Check:
    """Rows of p, draws, and the log-weights that make the draws rows of r̂q."""
    with torch.no_grad():
        log_weights = torch.stack([bridge.log_ratio(drawn) for bridge in bridges]).sum(0) + base
    return held, drawn, log_weights - log_mean_exp(log_weights)


def _exact(
    rule: ScoringRule,
    sides: Sequence[tuple[Tensor, Tensor]],
    references: Sequence[Reference],
    source: Distribution,
    seed: int,
) -> Bridge:
    """From the data's reference to the noise, or to the noise's reference."""
    held = sides[0][1]
    target = references[1].gaussian if len(references) > 1 else source
    ratio = DistributionRatio(references[0].gaussian, target)
    with torch.no_grad():
        drawn = draw(target, len(held), torch.Generator().manual_seed(seed)).to(held)
        at_num, at_den = ratio(held).squeeze(-1), ratio(drawn).squeeze(-1)
    (live,) = ratio_statistics(rule.unclipped(), at_num[None], at_den[None])["live_noise"]
    report = BridgeReport(live, effective_share(at_den), float(at_num.mean()), exact=True)
    return Bridge((1.0, 1.0), ratio, held.new_zeros(()), report)


def _inverted(bridge: Bridge) -> Bridge:
    """log p_{k+1}/p_k."""
    minus = nn.Linear(1, 1, bias=False)
    nn.init.constant_(minus.weight, -1.0)
    minus.to(bridge.offset.dtype).requires_grad_(False)
    return replace(bridge, network=nn.Sequential(bridge.network, minus), offset=-bridge.offset)


def _averaged(runs: list[_Run], data: Tensor, source: Distribution, builder: Builder, instead: str) -> Telescope:
    """The mean of the folds' log-ratios, normalised, and the jackknife's error of it."""
    columns = list(zip(*(run.bridges for run in runs), strict=True))
    offsets = torch.stack([torch.stack([bridge.offset for bridge in column]).mean(0) for column in columns])
    networks = [AveragedRatio([bridge.network for bridge in column]) for column in columns]
    with torch.no_grad():
        offsets[0] += _log_total(TelescopedRatio(networks, offsets), runs, source, builder)
        each = torch.stack([sum(bridge.log_ratio(data) for bridge in run.bridges) for run in runs])  # type: ignore[misc]
        # Delete a group: Var = (M − 1)/M Σ (log r_j − mean)².
        jackknife = ((len(runs) - 1) * (each - each.mean(0)).square().mean()).sqrt()
    reports = tuple(_mean_report([bridge.report for bridge in column]) for column in columns)
    shares = runs[0].plan[0] if runs[0].plan else (0.0, 1.0)
    model = TelescopedRatio(networks, offsets, density_of(source))
    checks = [run.check for run in runs if run.check is not None]
    if checks:
        rows, drawn, log_weights = (torch.cat(parts) for parts in zip(*checks, strict=True))
        rest = missed(rows, drawn, log_weights, builder.seed)
    else:
        rest = UNKNOWN
    doubts = _doubts(reports, rest, rows_that_count(data), instead)
    error = math.nan if doubts else math.hypot(2 * float(jackknife), math.sqrt(2 * max(rest.value + 2 * rest.error, 0)))
    return Telescope(model, reports, shares, error, rest, doubts, tuple(runs[0].split))


def _doubts(reports: Sequence[BridgeReport], rest: Gain, carrying: float, instead: str) -> tuple[str, ...]:
    """Why no error can be reported; ``instead`` is what to try if not more bridges."""
    doubts = []
    dead = [k for k, report in enumerate(reports) if not report.alive]
    if dead:
        doubts.append(
            f"{len(dead)} of {len(reports)} bridges are too long (effective share of the noise under {ALIVE:.0%}) "
            f"at {', '.join(map(str, dead))}, counted from the data. Use bridges={len(reports) + 1}, or {instead}"
        )
    if math.isnan(rest.value):
        doubts.append(
            "no error is reported: the noise is known by samples alone, and none of them shows its density where the "
            "data are. Pass noise with a density"
        )
    if rest.significant:
        doubts.append(
            f"no error is reported: boosted trees find {rest} nats in held-out rows that the ratio misses. Use another "
            "network, more epochs or more rows"
        )
    if carrying < ENOUGH_ROWS:
        doubts.append(
            f"no error is reported: the tails are heavy or the rows few, {carrying:.0f} rows carry the mean square "
            f"(at least {ENOUGH_ROWS} must). Transform the columns or use more rows"
        )
    return tuple(doubts)


def _log_total(model: TelescopedRatio, runs: list[_Run], source: Distribution, builder: Builder) -> Tensor:
    """log E_q[r̂], from draws of the data's reference, under which the weights are even, if there is one."""
    generator = torch.Generator().manual_seed(builder.seed)
    if not runs[0].references:
        rows = _rows_of(source)
        drawn = draw(source, DRAWS, generator) if rows is None else rows
        return log_mean_exp(model.log_ratio(drawn.to(model.offsets)))  # type: ignore[arg-type]
    totals = []
    # p̂ is the part before the exact bridge and q̂ the part after it, each with its reference.
    exact = [bridge.report.exact for bridge in runs[0].bridges].index(True)
    for side, (low, high) in enumerate(((0, exact), (exact + 1, len(model.bridges)))[: len(runs[0].references)]):
        noise = runs[0].references[side].noise
        drawn = draw(noise, DRAWS, generator)
        part = TelescopedRatio(model.bridges[low:high], model.offsets[low:high])  # type: ignore[arg-type,index]
        learned = part.log_ratio(drawn) * (1 - 2 * side)
        densities = torch.stack([run.references[side].gaussian.log_prob(drawn) for run in runs]).mean(0)
        weights = learned + densities - noise.log_prob(drawn)
        if side == 0 and density_of(source) is not None:
            weights = weights.masked_fill(~inside_support(source, drawn), -math.inf)
        totals.append((1 - 2 * side) * log_mean_exp(weights))
    return torch.stack(totals).sum(0)


def _rows_of(source: Distribution) -> Tensor | None:
    """The rows of noise that is known by them alone."""
    return source.samples if isinstance(source, EmpiricalNoise) and isinstance(source.samples, Tensor) else None


def _mean_report(reports: list[BridgeReport]) -> BridgeReport:
    live, share, gain, learned = (
        math.fsum(values) / len(reports)
        for values in zip(*((r.live_noise, r.ess_noise, r.gain, r.learned.value) for r in reports), strict=True)
    )
    # The folds hold out different rows.
    error = math.hypot(*(report.learned.error for report in reports)) / len(reports)
    return BridgeReport(live, share, gain, Gain(learned, error), reports[0].exact)
