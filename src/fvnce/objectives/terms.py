"""What an objective computes on a batch: its terms per sample, and statistics on request.

A statistic is a few small operations on a few hundred numbers, which one at a time cost far more than their arithmetic.
So those of many batches can be computed together: :meth:`Terms.snapshot` keeps what they need, :func:`statistics_of`
does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from ..scoring import ScoringRule
from .statistics import ratio_statistics


@dataclass(frozen=True)
class ContrastInfo:
    """How Δ came about: the rule that judges it, ν, the shift −c − log ν, and whether c was chosen on these samples.

    If it was, J on them is too high; ``held_out_value`` gives it at a c from other samples.
    """

    rule: ScoringRule
    noise_ratio: float
    shift: Tensor | float
    profiled: bool = False
    held_out_value: Callable[[], float] | None = None


@dataclass(frozen=True)
class Snapshot:
    """The numbers of a batch that statistics are computed from, one for each sample, without any graph."""

    data: Tensor
    evidence: Tensor
    noise: Tensor | None
    delta_data: Tensor | None
    delta_noise: Tensor | None
    contrast: ContrastInfo | None

    @property
    def shapes(self) -> tuple[int, int, bool]:
        """Batches with equal ones can be stacked."""
        return len(self.data), 0 if self.noise is None else len(self.noise), self.contrast is None

    def without_held_out_value(self) -> Snapshot:
        """The same without the costly statistic, and without what it would be computed from."""
        if self.contrast is None or self.contrast.held_out_value is None:
            return self
        return replace(self, contrast=replace(self.contrast, held_out_value=None))


@dataclass(frozen=True)
class Terms:
    """The terms of an objective on a batch. Everything but ``loss`` is for looking at and carries no graph.

    Attributes:
        loss: −J, a scalar with its graph.
        data: what each data sample earns, shape (B,).
        noise: what each noise sample earns, shape (N,), or None without noise.

    >>> from torch.distributions import Independent, Normal
    >>> import fvnce
    >>> noise = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = fvnce.EnergyModel(fvnce.mlp([2, 1]), reference=noise)
    >>> terms = fvnce.SNCE(model, noise, fvnce.PowerRule(alpha=0)).terms(torch.zeros(3, 2))
    >>> terms.data.shape, terms.noise.shape, terms.loss.requires_grad
    (torch.Size([3]), torch.Size([3]), True)
    """

    loss: Tensor
    data: Tensor
    noise: Tensor | None = None
    _evidence: Callable[[], Tensor] | None = field(default=None, repr=False)
    _deltas: Callable[[], tuple[Tensor, Tensor | None]] | None = field(default=None, repr=False)
    _contrast: ContrastInfo | None = field(default=None, repr=False)

    # A training step asks for none of these, so each is computed when it is first asked for.

    @cached_property
    def evidence(self) -> Tensor:
        """log p_θ(x, z) − log q(z|x) of each data sample, less γ for a deterministic encoder, shape (B,).

        It is the data term of (0, 0) up to log p_n, in which autoencoder, VAE and fvNCE can be compared.
        """
        return self.data if self._evidence is None else self._evidence()

    @property
    def delta_data(self) -> Tensor | None:
        """Δ of each data sample, or None without noise."""
        return self._both_deltas[0]

    @property
    def delta_noise(self) -> Tensor | None:
        """Δ of each noise sample, or None without noise."""
        return self._both_deltas[1]

    @cached_property
    def _both_deltas(self) -> tuple[Tensor | None, Tensor | None]:
        return (None, None) if self._deltas is None else self._deltas()

    def snapshot(self) -> Snapshot:
        """What the statistics need, to be computed later."""
        with torch.no_grad():
            return Snapshot(self.data, self.evidence, self.noise, *self._both_deltas, self._contrast)

    @cached_property
    def statistics(self) -> dict[str, float]:
        """By name: means of the terms, and what the log-ratios tell about the noise term."""
        return statistics_of([self.snapshot()])[0]


@torch.no_grad()
def statistics_of(batches: Sequence[Snapshot]) -> list[dict[str, float]]:
    """The statistics of each batch. One that is costly, J at a c from other samples, is that of the last batch only."""
    found: list[dict[str, float]] = []
    for _, group in groupby(batches, key=lambda snapshot: snapshot.shapes):
        found += _statistics_of_equals(list(group))
    last = batches[-1].contrast if batches else None
    if last is not None and last.held_out_value is not None:
        found[-1]["value"] = last.held_out_value()
    return found


def _statistics_of_equals(group: list[Snapshot]) -> list[dict[str, float]]:
    columns = {
        "data_term": torch.stack([snapshot.data for snapshot in group]).mean(1).tolist(),
        "evidence": torch.stack([snapshot.evidence for snapshot in group]).mean(1).tolist(),
    }
    noise = [snapshot.noise for snapshot in group if snapshot.noise is not None]
    if noise:
        columns["noise_term"] = torch.stack(noise).mean(1).tolist()
    contrast = group[0].contrast
    if contrast is not None:
        deltas = [
            torch.stack([delta for delta in side if delta is not None])
            for side in ([snapshot.delta_data for snapshot in group], [snapshot.delta_noise for snapshot in group])
        ]
        columns |= ratio_statistics(contrast.rule, *deltas)
        scales = [snapshot.contrast for snapshot in group if snapshot.contrast is not None]
        offset = math.log(contrast.noise_ratio)
        columns["log_scale"] = [-float(each.shift) - offset for each in scales]
        if not contrast.profiled:
            pairs = zip(columns["data_term"], columns["noise_term"], strict=True)
            columns["value"] = [data + contrast.noise_ratio * noise for data, noise in pairs]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
