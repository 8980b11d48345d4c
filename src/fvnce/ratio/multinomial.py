r"""A ratio of distant distributions from one classifier of all the distributions between them.

A softmax over K + 1 levels, of which level 0 is the data and level K the noise, is trained to name the level that a row
came from (Srivastava et al. 2023). With as many rows of each, its logits h are log-densities up to what they share, so

    log p_0/p_K = h_0 − h_K                                                            (multinomial bridges)

One network sees all levels, and is asked about a point of p_0 and of p_K having been trained at both ends, where the
bridges of :func:`~fvnce.telescope` are each trained between two neighbours and summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import cross_entropy

from .. import _checks
from .._random import seeded
from ..models.ratios import MultinomialRatio
from ..noise import draw
from ..objectives.base import effective_share
from ..training import fit
from .chain import ALIVE, PATIENCE, data_and_noise, density_of, equal_steps, waypoints, whitened_mlp
from .doubt import DRAWS_PER_ROW, UNKNOWN, Gain, missed


@dataclass(frozen=True)
class MultinomialBridges:
    """A ratio by multinomial bridges and what is known of it.

    Attributes:
        model: ``log_ratio(x)``, and ``log_prob(x)`` where the noise has a density.
        shares: a_k of the levels, from 0, the data, to 1, the noise.
        log_loss: of the classifier on held-out rows, in nats; log(K + 1) is that of a guess.
        learned: log(K + 1) − log_loss with its standard error over held-out rows.
        missed: what boosted trees find that tells held-out rows from the estimate, in nats, with its standard error: a
            lower bound on KL(p‖r̂q). NaN if the weights of the noise are too uneven to look.

    No error of log r̂ is reported: one fit does not show how far it may be off, and :func:`~fvnce.telescope` does.

    >>> x = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    >>> found = multinomial_bridges(x, x + 1, levels=2, epochs=1)
    >>> len(found.shares), found.model.log_ratio(x).shape
    (3, torch.Size([60]))
    """

    model: MultinomialRatio
    shares: tuple[float, ...]
    log_loss: float
    learned: Gain
    missed: Gain

    @property
    def advice(self) -> list[str]:
        """What to change, in plain words; empty if something was learned and nothing is found to be missed."""
        advice = []
        if not self.learned.significant:
            advice.append(
                f"nothing was learned (held-out gain {self.learned} nats): the levels are one distribution, or the "
                "network cannot tell them apart. Try another network or more rows"
            )
        if math.isnan(self.missed.value):
            advice.append(
                f"the ratio cannot be checked: the effective share of the noise is under {ALIVE:.0%}, few draws or "
                "none are where the data are. Use telescope"
            )
        if self.missed.significant:
            advice.append(
                f"boosted trees find {self.missed} nats in held-out rows that the ratio misses. Use another network, "
                "more epochs or more rows"
            )
        return advice


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
        held_out: share of the data rows that stops the training.
        seed: for everything.
        progress: show a bar; by default if standard error is a terminal.

    >>> from torch.distributions import Independent, Normal
    >>> noise = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    >>> data = 3 + torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    >>> found = multinomial_bridges(data, noise, epochs=10)
    >>> truth = Normal(3.0, 1.0).log_prob(data).sum(-1) - noise.log_prob(data)
    >>> bool((found.model.log_ratio(data) - truth).square().mean().sqrt() < 1.0)
    True
    """
    data, source = data_and_noise(x, noise)
    shares = equal_steps(_checks.count("levels", levels))
    copies = _checks.count("copies", copies)
    held_out = _checks.number("held_out", held_out, low=0.0, high=0.5, open_low=True)
    seed = _checks.count("seed", seed, low=0)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data), generator=generator)
    cut = max(1, round(held_out * len(data)))
    held, train = (
        _labelled(data[part].repeat(copies, 1), source, shares, generator) for part in (order[:cut], order[cut:])
    )
    with seeded(seed):
        made = whitened_mlp(train[:, :-1], len(shares)) if network is None else network(len(shares)).to(data.dtype)
    classifier = _Classifier(made, len(shares))
    fit(
        classifier,
        train,
        validation=held,
        early_stopping=PATIENCE,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        schedule="cosine",
        seed=seed,
        progress=progress,
    )
    model = MultinomialRatio(made, density_of(source))
    rows = data[order[:cut]]
    drawn = draw(source, DRAWS_PER_ROW * cut, generator).to(rows)
    with torch.no_grad():
        # A held-out row is in every level and copy: its losses are one observation.
        losses = cross_entropy(made(held[:, :-1]), held[:, -1].long(), reduction="none").reshape(-1, cut).mean(0)
        weights = model.log_ratio(drawn)
    spread = float(losses.std()) / math.sqrt(cut) if cut > 1 else math.inf
    learned = Gain(math.log(len(shares)) - float(losses.mean()), spread)
    rest = missed(rows, drawn, weights, seed) if effective_share(weights) >= ALIVE else UNKNOWN
    return MultinomialBridges(model, shares, float(losses.mean()), learned, rest)


def _labelled(rows: Tensor, source: Distribution, shares: tuple[float, ...], generator: torch.Generator) -> Tensor:
    """Rows of every level, as many of each, with the level as their last column."""
    parts = []
    for level, share in enumerate(shares):
        at = waypoints(rows, draw(source, len(rows), generator).to(rows), share)
        parts.append(torch.cat([at, at.new_full((len(at), 1), level)], 1))
    return torch.cat(parts)


class _Classifier(nn.Module):
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
