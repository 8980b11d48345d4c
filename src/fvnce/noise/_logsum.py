r"""log Σ_j w_j exp(−|x − c_j|²/(2h²)) over all centres, in bounded memory, to a stated accuracy.

The scores t_ij = y_i · c'_j + b_j come from matrix products, a tile at a time. Their rounding error is at
most about

    e_i = u (√D + 4) |y_i| max|c'| + u max|c'|²,      u = half an ulp of 1

(the probabilistic form of the classical bound: the rounding errors of a sum of D products add like √D, and
this is four standard deviations for the worst arrangement of signs; errors seen on images are twenty times
smaller). A row takes the cheapest route that is accurate enough:

1. *sum*: e_i within the tolerance. Running maximum and running sum of exponentials over the tiles.
2. *nearest*: else only centres whose score is within 2 e_i + log n + log(1/ε) of the row's best can matter,
   the others together being below the fraction ε. These few are evaluated again from differences x − c in
   float64.
3. *double*: a float32 row with too many such centres is done again in float64.
4. *direct*: a float64 row for which even that fails is evaluated from differences to all centres.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ._centres import LIMIT, Centres

_NEAREST = 256
_TILE_COLUMNS = 512


@dataclass(frozen=True)
class Precision:
    """What a result must be accurate to: ``absolute`` nats or one spacing ``relative`` of the number
    itself."""

    absolute: float
    relative: float
    dropped: float

    @staticmethod
    def of(dtype: torch.dtype) -> Precision:
        """The promise made for a dtype: 7.5e-4 nats in float32 (the last rounding takes the rest of 1e-3),
        1e-9 in float64."""
        spacing = torch.finfo(dtype).eps
        return Precision(7.5e-4 if dtype == torch.float32 else 1e-9, spacing, spacing / 4)


@dataclass
class LogSums:
    """Results of a set of rows: ``value`` (q,) in float64 and, on request, ``slope`` (q, D) = d value / d
    y."""

    value: Tensor
    slope: Tensor | None

    @staticmethod
    def empty(rows: int, x: Tensor, slope: bool) -> LogSums:
        """Room for ``rows`` results beside points ``x``."""
        value = torch.empty(rows, dtype=torch.float64, device=x.device)
        return LogSums(value, torch.empty(rows, x.shape[1], dtype=x.dtype, device=x.device) if slope else None)

    def put(self, rows: Tensor | slice, part: LogSums) -> None:
        """Write the results of some rows."""
        self.value[rows] = part.value
        if self.slope is not None and part.slope is not None:
            self.slope[rows] = part.slope.to(self.slope.dtype)


def log_sums(centres: Centres, x: Tensor, *, slope: bool, block_bytes: int) -> LogSums:
    """Log sums of points x (q, D), float32 or float64, a block of rows at a time."""
    precision = Precision.of(x.dtype)
    # A row holds its tile row, the row in float64 twice over and its slope.
    per_row = _TILE_COLUMNS * x.element_size() * 2 + 32 * x.shape[1]
    rows = max(1, min(4096, block_bytes // (2 * per_row)))
    if x.shape[0] <= rows:
        out = _rows(centres, x, slope, precision, block_bytes)
    else:
        out = LogSums.empty(x.shape[0], x, slope)
        for part in _slices(x.shape[0], rows):
            out.put(part, _rows(centres, x[part], slope, precision, block_bytes))
    far = out.value < -0.5 * LIMIT**2 * (1 + 1e-6)
    if bool(far.any()):
        row = int(far.nonzero()[0])
        distance = float((-2.0 * out.value[row]).sqrt())
        raise ValueError(f"x must lie within 1e15 bandwidths of a centre, found row {row} at {distance:.3g} bandwidths")
    return out


def _rows(centres: Centres, x: Tensor, slope: bool, precision: Precision, block_bytes: int) -> LogSums:
    scaled = centres.scaled(x)
    half = 0.5 * scaled.square().sum(1)
    _check_reach(centres, half)
    y = scaled.to(x.dtype)
    del scaled
    accurate = _error_bound(centres, half, x.dtype) <= _tolerance(centres, half, precision)
    done = int(accurate.sum())
    if done == len(x):
        return _sum(centres, y, half, slope)
    if done == 0:
        return _nearest(centres, x, y, half, slope, precision, block_bytes)
    out = LogSums.empty(len(x), x, slope)
    first, second = accurate.nonzero()[:, 0], (~accurate).nonzero()[:, 0]
    out.put(first, _sum(centres, y[first], half[first], slope))
    out.put(second, _nearest(centres, x[second], y[second], half[second], slope, precision, block_bytes))
    return out


def _check_reach(centres: Centres, half: Tensor) -> None:
    # Farther than this no centre is within the limit, and squares of float32 numbers may overflow.
    length = (2.0 * half).sqrt()
    far = length - centres.reach > LIMIT * (1 + 1e-6)
    if bool(far.any()):
        found = float(length[far][0])
        raise ValueError(
            "x must lie within 1e15 bandwidths of a centre, "
            f"found a row at {found:.3g} bandwidths from the mean of the centres"
        )


def _error_bound(centres: Centres, half: Tensor, dtype: torch.dtype) -> Tensor:
    unit = torch.finfo(dtype).eps / 2
    length = (2.0 * half).sqrt()
    return unit * ((math.sqrt(centres.width) + 4.0) * length * centres.reach + centres.reach**2)


def _tolerance(centres: Centres, half: Tensor, precision: Precision) -> Tensor:
    # No centre is nearer than |y| − reach, so the result is at least this large, up to the kernel's constant.
    nearest = ((2.0 * half).sqrt() - centres.reach).clamp_min(0.0)
    constant = float(centres.inverse.log().expand(centres.width).sum()) - 0.92 * centres.width
    size = (0.5 * nearest.square() - abs(constant)).clamp_min(0.0)
    return (precision.relative * size).clamp_min(precision.absolute)


def _sum(centres: Centres, y: Tensor, half: Tensor, slope: bool) -> LogSums:
    margin = math.log(centres.size) - math.log(torch.finfo(y.dtype).eps / 4)
    top = y.new_full((len(y),), -math.inf)
    total = torch.zeros_like(top)
    drift = torch.zeros_like(y) if slope else None
    tile = y.new_empty(len(y) * min(_TILE_COLUMNS, centres.size))
    for low in range(0, centres.size, _TILE_COLUMNS):
        high = min(low + _TILE_COLUMNS, centres.size)
        block, offset = centres.block(low, high, y.dtype)
        scores = tile[: len(y) * (high - low)].view(len(y), high - low)
        torch.addmm(offset, y, block.T, out=scores)
        best = scores.amax(1)
        new = torch.maximum(top, best)
        decay = (top - new).exp_()
        total.mul_(decay)
        if drift is not None:
            drift.mul_(decay[:, None])
        top = new
        # A tile far below a row's maximum adds less than rounding does: most rows skip most tiles in high
        # dimensions.
        hit = (best > top - margin).nonzero()[:, 0]
        if 4 * len(hit) > 3 * len(y):
            scores.sub_(top[:, None]).exp_()
            total.add_(scores.sum(1))
            if drift is not None:
                drift.addmm_(scores, block)
        elif len(hit):
            part = scores[hit].sub_(top[hit][:, None]).exp_()
            total[hit] += part.sum(1)
            if drift is not None:
                drift[hit] += part @ block
    if drift is not None:
        drift.div_(total[:, None]).sub_(y)
    return LogSums(top.double() + total.double().log() - half, drift)


def _nearest(
    centres: Centres, x: Tensor, y: Tensor, half: Tensor, slope: bool, precision: Precision, block_bytes: int
) -> LogSums:
    rows, columns, crowded = _candidates(centres, y, half, precision)
    out = _from_pairs(centres, x, rows, columns, slope, block_bytes)
    left = crowded.nonzero()[:, 0]
    if len(left):
        again = x[left]
        if x.dtype == torch.float32:
            # Half as many rows at a time: they are twice as wide.
            middle = (len(left) + 1) // 2
            for part in (slice(0, middle), slice(middle, None)):
                if len(again[part]):
                    wide = again[part].double()
                    out.put(left[part], _rows(centres, wide, slope, precision, block_bytes))
        else:
            out.put(left, _direct(centres, again, slope, block_bytes))
    return out


def _candidates(centres: Centres, y: Tensor, half: Tensor, precision: Precision) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs (row, centre) that carry all but a fraction ``dropped`` of each row's sum, and rows with too
    many."""
    spread = 2.0 * _error_bound(centres, half, y.dtype) + (math.log(centres.size) - math.log(precision.dropped))
    margin = spread.to(y.dtype)
    top = y.new_full((len(y),), -math.inf)
    found = torch.zeros(len(y), dtype=torch.int64, device=y.device)
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    tile = y.new_empty(len(y) * min(_TILE_COLUMNS, centres.size))
    for low in range(0, centres.size, _TILE_COLUMNS):
        high = min(low + _TILE_COLUMNS, centres.size)
        block, offset = centres.block(low, high, y.dtype)
        scores = tile[: len(y) * (high - low)].view(len(y), high - low)
        torch.addmm(offset, y, block.T, out=scores)
        best = scores.amax(1)
        top = torch.maximum(top, best)
        floor = top - margin
        hit = ((best >= floor) & (found <= _NEAREST)).nonzero()[:, 0]
        if not len(hit):
            continue
        part = scores[hit]
        near = part >= floor[hit][:, None]
        found[hit] += near.sum(1)
        near &= (found[hit] <= _NEAREST)[:, None]
        pairs = near.nonzero()
        kept.append((hit[pairs[:, 0]], pairs[:, 1] + low, part[pairs[:, 0], pairs[:, 1]]))
        if bool((found > _NEAREST).all()):
            break
    crowded = found > _NEAREST
    rows, columns, scores = (torch.cat(parts) for parts in zip(*kept, strict=True))
    keep = (scores >= (top - margin)[rows]) & ~crowded[rows]
    return rows[keep], columns[keep], crowded


def _from_pairs(centres: Centres, x: Tensor, rows: Tensor, columns: Tensor, slope: bool, block_bytes: int) -> LogSums:
    """Log sums over listed pairs only, from differences in float64; rows without pairs are left at −inf."""
    step = max(1, min(2048, block_bytes // (64 * centres.width)))
    scores = torch.cat(
        [
            torch.linalg.vecdot(gap, gap).mul_(-0.5)
            for gap in (_gaps(centres, x, rows[s], columns[s]) for s in _slices(len(rows), step))
        ]
        or [x.new_empty(0, dtype=torch.float64)]
    )
    scores += centres.log_weight(columns)
    top = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
    top.scatter_reduce_(0, rows, scores, "amax")
    share = (scores - top[rows]).exp_()
    total = torch.zeros_like(top).index_add_(0, rows, share)
    out = LogSums(top + total.log(), None)
    if slope:
        share /= total[rows]
        drift = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for s in _slices(len(rows), step):
            drift.index_add_(0, rows[s], _gaps(centres, x, rows[s], columns[s]).mul_(-share[s][:, None]))
        out.slope = drift.to(x.dtype)
    return out


def _gaps(centres: Centres, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return (x[rows].double() - centres.raw[columns].double()).div_(centres.bandwidth)


def _direct(centres: Centres, x: Tensor, slope: bool, block_bytes: int) -> LogSums:
    every = torch.arange(centres.size, device=x.device)
    parts = [_from_pairs(centres, row[None], torch.zeros_like(every), every, slope, block_bytes) for row in x]
    drift = torch.cat([p.slope for p in parts if p.slope is not None]) if slope else None
    return LogSums(torch.cat([p.value for p in parts]), drift)


def _slices(length: int, step: int) -> list[slice]:
    return [slice(low, low + step) for low in range(0, length, step)]
