r"""Log sums over listed pairs (point, centre), from differences in float64.

A difference x − c of two nearby numbers is exact or nearly so, while |x|² − 2 x·c + |c|² cancels: this is
the exact part of an evaluation, affordable for the few pairs that carry a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ._centres import Centres


@dataclass
class LogSums:
    """Results of some rows: ``value`` (q,) in float64 and, on request, ``slope`` = d value / d y, (q, D)."""

    value: Tensor
    slope: Tensor | None

    @staticmethod
    def empty(x: Tensor, slope: bool) -> LogSums:
        """Room for the results of points x."""
        value = torch.empty(len(x), dtype=torch.float64, device=x.device)
        return LogSums(value, torch.empty_like(x) if slope else None)

    def put(self, rows: Tensor | slice, part: LogSums) -> None:
        """Write the results of some rows."""
        self.value[rows] = part.value
        if self.slope is not None and part.slope is not None:
            self.slope[rows] = part.slope.to(self.slope.dtype)


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows and columns, shape (p,) each; the columns of one row ascend."""

    rows: Tensor
    columns: Tensor

    @staticmethod
    def none(like: Tensor) -> Pairs:
        """No pairs."""
        empty = torch.empty(0, dtype=torch.int64, device=like.device)
        return Pairs(empty, empty)

    def __getitem__(self, chosen: Tensor | slice) -> Pairs:
        return Pairs(self.rows[chosen], self.columns[chosen])

    def __len__(self) -> int:
        return len(self.rows)


class Gathering:
    """Pairs collected tile by tile with a number each, and given up for rows that get more than ``limit``."""

    def __init__(self, like: Tensor, limit: int) -> None:
        self.limit = limit
        self.found = torch.zeros(len(like), dtype=torch.int64, device=like.device)
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, hit: Tensor, part: Tensor, floor: Tensor, low: int) -> None:
        """Entries of ``part`` (k, m) not below ``floor`` (k,): rows ``hit`` of a tile that starts at low."""
        rows, columns = (part >= floor[:, None]).nonzero(as_tuple=True)
        self.found[hit] += torch.bincount(rows, minlength=len(hit))
        if bool((self.found[hit] > self.limit).any()):
            keep = (self.found[hit] <= self.limit)[rows]
            rows, columns = rows[keep], columns[keep]
        self._kept.append((hit[rows], columns + low, part[rows, columns]))

    def above(self, floor: Tensor) -> tuple[Pairs, Tensor]:
        """Pairs not below the final ``floor`` (q,), and a mask (q,) of the rows given up."""
        crowded = self.found > self.limit
        if not self._kept:
            return Pairs.none(floor), crowded
        rows, columns, numbers = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        keep = (numbers >= floor[rows]) & ~crowded[rows]
        return Pairs(rows[keep], columns[keep]), crowded


def sums_of_pairs(centres: Centres, x: Tensor, pairs: Pairs, slope: bool) -> LogSums:
    """Log sums of each row's pairs; −inf for a row without any."""
    parts = [_squared_length(gap, x.dtype) for _, gap in _gaps(centres, x, pairs)]
    scores = torch.cat([*parts, x.new_empty(0, dtype=torch.float64)]).mul_(-0.5)
    scores += centres.log_weight(pairs.columns)
    top = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
    top.scatter_reduce_(0, pairs.rows, scores, "amax")
    share = (scores - top[pairs.rows]).exp_()
    total = torch.zeros_like(top).index_add_(0, pairs.rows, share)
    if not slope:
        return LogSums(top + total.log(), None)
    share /= total[pairs.rows]
    drift = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for part, gap in _gaps(centres, x, pairs):
        drift.index_add_(0, pairs.rows[part], gap.mul_(-share[part][:, None]))
    return LogSums(top + total.log(), drift.to(x.dtype))


def sums_of_few(centres: Centres, x: Tensor, slope: bool) -> LogSums:
    """Log sums over all centres with all differences held at once: the fewest operations for few numbers."""
    points, at = x.double(), centres.raw.double()
    if slope or centres.bandwidth.ndim or x.dtype == torch.float64:
        gap = (points[:, None] - at).div_(centres.bandwidth)
        scores = _squared_length(gap, x.dtype).mul_(-0.5)
    else:
        distance = torch.cdist(points, at, compute_mode="donot_use_mm_for_euclid_dist")
        scores = distance.div_(centres.bandwidth).square_().mul_(-0.5)
    if centres.log_weights is not None:
        scores += centres.log_weights
    value = torch.logsumexp(scores, 1)
    if not slope:
        return LogSums(value, None)
    share = (scores - value[:, None]).exp_()
    return LogSums(value, torch.einsum("ij,ijk->ik", share, gap).neg_().to(x.dtype))


def sums_of_all(centres: Centres, x: Tensor, slope: bool) -> LogSums:
    """Log sums over all centres from differences: slow, and right where everything else fails."""
    out = LogSums.empty(x, slope)
    every = torch.arange(centres.size, device=x.device)
    for row in range(len(x)):
        part = slice(row, row + 1)
        out.put(part, sums_of_pairs(centres, x[part], Pairs(torch.zeros_like(every), every), slope))
    return out


def _squared_length(gap: Tensor, wanted: torch.dtype) -> Tensor:
    """|gap|² in float64, accurate enough for a result of the dtype ``wanted``."""
    if wanted == torch.float64:
        # Summed in a tree: one running sum of a thousand squares is off by ten units in the last place.
        return gap.square().sum(-1)
    product: Tensor = torch.linalg.vecdot(gap, gap)
    return product


def _gaps(centres: Centres, x: Tensor, pairs: Pairs) -> Iterator[tuple[slice, Tensor]]:
    """(x − c)/h of some pairs at a time; four megabytes at most, which stay in cache."""
    step = max(1, 2**19 // centres.width)
    for low in range(0, len(pairs), step):
        part = slice(low, low + step)
        here = pairs[part]
        yield part, (x[here.rows].double() - centres.raw[here.columns].double()).div_(centres.bandwidth)
