r"""log Σ_j w_j exp(−|x − c_j|²/(2h²)) over all centers, in bounded memory, to a stated accuracy.

With shift m (the mean of the centers) and bandwidth h, everything works with

    y = (x − m) / h,   c'_j = (c_j − m) / h,   b_j = log w_j − |c'_j|² / 2,

so that log w_j − |x − c_j|²/(2h²) = t_j − |y|²/2 with the *scores* t_j = y · c'_j + b_j: one matrix product gives the
scores of a tile of centers. Subtracting the mean shortens both vectors. The rounding error of the product is at most
about

    e = u (√D/2 + 6) |y| max|c'| + u max|c'|²,      u = half an ulp of 1.

This is the probabilistic form of the classical bound, not a worst case: rounding errors of a sum of D products add like
√D. The constant was set from measurements: the largest error observed was 2/3 of the bound where it is tight (y
parallel to c', D = 30; less than half at D = 2, 784, 4000) and 1/5 of it on images.

Each row uses the cheapest method that is accurate enough:

1. *sum*, if e is within the tolerance: running maximum and running sum of exponentials over the tiles.
2. *nearest*: only centers whose score is within 2e + log n + log(1/ε) of the row's best can matter; all others together
   are below the fraction ε. These few centers are evaluated again from differences in float64.
3. *double*: a float32 row with too many such centers is computed again in float64.
4. *direct*: a float64 row with too many such centers is computed from differences to all centers.

On an accelerator every choice that depends on values would synchronize, so it uses the first method in float64 and sums
every tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Largest allowed distance in bandwidths: its square is within the range of float32.
LONGEST_DISTANCE = 1e15
#: Number of centers, and of rows, in one tile of scores.
TILE_COLUMNS, MOST_ROWS = 512, 4096

#: Approximate working memory of one evaluation.
BLOCK_BYTES = 128 * 2**20
_CACHE_BYTES = 64 * 2**20
_ROWS_AT_ONCE = 1024
_NEAREST = 256
_LEAST_EXPONENT = -80.0  # 1 + e^-80 rounds to 1, and arithmetic with subnormal numbers is slow


class Centers:
    """Centers of a kernel density in kernel units: offsets b_j, reach max |c'_j|, log height of the kernel.

    Args:
        raw: centers, shape (n, D); not copied.
        bandwidth: scalar or shape (D,).
        log_weights: float64, shape (n,), or None for equal weights (their log n is left out of b_j).
    """

    def __init__(self, raw: Tensor, bandwidth: Tensor, log_weights: Tensor | None) -> None:
        self.raw, self.log_weights = raw, log_weights
        self.size, self.width = raw.shape
        self.bandwidth = bandwidth.double()
        total = torch.zeros(self.width, dtype=torch.float64, device=raw.device)
        for part in raw.split(_ROWS_AT_ONCE):
            total += part.double().sum(0)
        self.shift = total / self.size
        log_width = self.bandwidth.log().expand(self.width).sum()
        self.log_height = float(-log_width) - 0.5 * self.width * math.log(2 * math.pi)
        half = torch.cat([0.5 * self.scaled(part).square().sum(1) for part in raw.split(_ROWS_AT_ONCE)])
        self.reach = float((2.0 * half.max()).sqrt())
        if not self.reach <= LONGEST_DISTANCE:
            raise ValueError(
                "centres must lie within 1e15 bandwidths of their mean, "
                f"found one at {self.reach:.3g} bandwidths; use a larger bandwidth"
            )
        self.offset = -half if log_weights is None else log_weights - half
        self._kept: dict[torch.dtype, tuple[Tensor | None, Tensor]] = {}

    def scaled(self, x: Tensor) -> Tensor:
        """Return points (k, D) in kernel units, (x − m)/h in float64."""
        # Divided by h, as the rounding error of 1/h would be the same in every dimension and not average out.
        return (x.double() - self.shift).div_(self.bandwidth)

    def at(self, index: slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (c'_j, b_j) of the indexed centers, shapes (k, D) and (k,)."""
        if dtype not in self._kept:
            # Only a few centers are cached: a second copy of many would dominate memory use.
            small = self.raw.numel() * dtype.itemsize <= _CACHE_BYTES
            parts = [self.scaled(part).to(dtype) for part in self.raw.split(_ROWS_AT_ONCE)] if small else []
            self._kept[dtype] = torch.cat(parts) if small else None, self.offset.to(dtype)
        kept, offset = self._kept[dtype]
        if kept is not None:
            return kept[index], offset[index]
        part = self.raw[index].to(dtype) - self.shift.to(dtype)
        return part.mul_((1.0 / self.bandwidth).to(dtype)), offset[index]

    def tiles(self, y: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (first center, centers, scores) tile by tile, with the scores in a reused buffer."""
        buffer = y.new_empty(len(y) * min(TILE_COLUMNS, self.size))
        for low in range(0, self.size, TILE_COLUMNS):
            vectors, offset = self.at(slice(low, low + TILE_COLUMNS), y.dtype)
            scores = buffer[: len(y) * len(vectors)].view(len(y), len(vectors))
            torch.addmm(offset, y, vectors.T, out=scores)
            yield low, vectors, scores

    def error_bound(self, half: Tensor, dtype: torch.dtype) -> Tensor:
        """Return e of the scores of points with |y|²/2 = half."""
        unit = torch.finfo(dtype).eps / 2
        length = (2.0 * half).sqrt()
        return unit * ((0.5 * math.sqrt(self.width) + 6.0) * length * self.reach + self.reach**2)

    def tolerance(self, half: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the allowed error of each point in nats: :func:`_absolute`, or an ulp of the result if larger."""
        # No center is closer than |y| − reach, which bounds the size of the result, up to the kernel's constant.
        nearest = ((2.0 * half).sqrt() - self.reach).clamp_min(0.0)
        size = (0.5 * nearest.square() - abs(self.log_height)).clamp_min(0.0)
        return (torch.finfo(dtype).eps * size).clamp_min(_absolute(dtype))

    def spread(self, dtype: torch.dtype) -> float:
        """Return how far below the best score n centers must be to sum to less than ε, a quarter of an ulp."""
        return math.log(self.size) - math.log(torch.finfo(dtype).eps / 4)


@dataclass
class LogSums:
    """Log sums of q rows: ``value`` (q,) in float64 and, on request, ``slope`` = d value / d y, (q, D)."""

    value: Tensor
    slope: Tensor | None

    @staticmethod
    def empty(x: Tensor, slope: bool) -> LogSums:
        """Allocate the results of points x."""
        value = torch.empty(len(x), dtype=torch.float64, device=x.device)
        return LogSums(value, torch.empty_like(x) if slope else None)

    def put(self, rows: Tensor | slice, part: LogSums) -> None:
        """Store the results of the given rows."""
        self.value[rows] = part.value
        if self.slope is not None and part.slope is not None:
            self.slope[rows] = part.slope.to(self.slope.dtype)


def _absolute(dtype: torch.dtype) -> float:
    """Return the allowed error in nats: 1e-9 in float64, 8e-4 in float32, which leaves 2e-4 for the final rounding."""
    return 8e-4 if dtype == torch.float32 else 1e-9


def log_sums(centers: Centers, x: Tensor, *, slope: bool, drawn: bool = False) -> LogSums:
    """Compute log sums of points x (q, D), float32 or float64, in blocks of rows.

    Args:
        centers: the centers.
        x: the points.
        slope: whether to compute the gradient as well.
        drawn: whether the points are draws of the density.
    """
    dtype = x.dtype
    x = x if x.device.type == "cpu" else x.double()
    # Memory of a row: its part of two or three tiles, and its copies in float64, squared, and in the dtype of x.
    per_row = 3 * TILE_COLUMNS * x.element_size() + 24 * centers.width
    step = max(1, min(MOST_ROWS, BLOCK_BYTES // (2 * per_row)))
    out = LogSums.empty(x, slope)
    for low in range(0, len(x), step):
        part = slice(low, low + step)
        out.put(part, _rows(centers, x[part], slope, dtype, drawn=drawn))
    return out


def _rows(centers: Centers, x: Tensor, slope: bool, dtype: torch.dtype, *, drawn: bool = False) -> LogSums:
    """Return the log sums of some points, as accurate as ``dtype`` requires."""
    scaled = centers.scaled(x)
    half = 0.5 * scaled.square().sum(1)
    y = scaled.to(x.dtype)
    del scaled
    if drawn and x.device.type != "cpu":
        # A draw is not much farther out than its center, so the host can bound its error without synchronizing.
        farthest = torch.tensor(0.5 * (centers.reach + math.sqrt(centers.width) + 10) ** 2, dtype=torch.float64)
        if centers.error_bound(farthest, x.dtype) <= _absolute(dtype):
            return _sum(centers, y, half, slope)
    accurate = centers.error_bound(half, x.dtype) <= centers.tolerance(half, dtype)
    done = int(accurate.sum())
    if done == len(x):
        return _sum(centers, y, half, slope)
    if done == 0:
        return _nearest(centers, x, y, half, slope, dtype)
    out = LogSums.empty(x, slope)
    first, second = accurate.nonzero()[:, 0], (~accurate).nonzero()[:, 0]
    out.put(first, _sum(centers, y[first], half[first], slope))
    out.put(second, _nearest(centers, x[second], y[second], half[second], slope, dtype))
    return out


def _sum(centers: Centers, y: Tensor, half: Tensor, slope: bool) -> LogSums:
    margin = centers.spread(y.dtype)
    top = y.new_full((len(y),), -math.inf)
    total = torch.zeros_like(top)
    drift = torch.zeros_like(y) if slope else None
    for _, vectors, scores in centers.tiles(y):
        best = scores.amax(1)
        new = torch.maximum(top, best)
        decay = (top - new).exp_()
        total.mul_(decay)
        if drift is not None:
            drift.mul_(decay[:, None])
        top = new
        # A tile far below a row's best adds less than rounding, so in high dimensions most rows skip most tiles.
        # Not ">": far from all centers the margin is less than the spacing of scores in this dtype.
        hit = (best >= top - margin).nonzero()[:, 0] if y.device.type == "cpu" else y
        if 4 * len(hit) > 3 * len(y):
            scores.sub_(top[:, None]).clamp_min_(_LEAST_EXPONENT).exp_()
            total.add_(scores.sum(1))
            if drift is not None:
                drift.addmm_(scores, vectors)
        elif len(hit):
            part = scores[hit].sub_(top[hit][:, None]).clamp_min_(_LEAST_EXPONENT).exp_()
            total[hit] += part.sum(1)
            if drift is not None:
                drift[hit] += part @ vectors
    if drift is not None:
        drift.div_(total[:, None]).sub_(y)
    return LogSums(top.double() + total.double().log() - half, drift)


def _nearest(centers: Centers, x: Tensor, y: Tensor, half: Tensor, slope: bool, dtype: torch.dtype) -> LogSums:
    margin = (2.0 * centers.error_bound(half, y.dtype) + centers.spread(dtype)).to(y.dtype)
    pairs, crowded = _within(margin, centers.tiles(y))
    out = _sums_of_pairs(centers, x, pairs, slope)
    left = crowded.nonzero()[:, 0]
    if not len(left):
        return out
    if x.dtype == torch.float32:
        # Half the number of rows at a time, as they take twice the memory.
        for part in left.split((len(left) + 1) // 2):
            out.put(part, _rows(centers, x[part].double(), slope, dtype))
    else:
        # From differences to all centers: slow, but always accurate.
        every = torch.arange(centers.size, device=x.device)
        for row in left.split(1):
            out.put(row, _sums_of_pairs(centers, x[row], torch.stack([torch.zeros_like(every), every]), slope))
    return out


def _within(margin: Tensor, tiles: Iterator[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the pairs (row, center) whose scores are within ``margin`` of the row's best score, shape (2, p).

    Args:
        margin: shape (q,).
        tiles: scores of all pairs, tile by tile.

    Returns:
        The pairs, with the centers of each row in ascending order, and a mask (q,) of abandoned rows, with too many.
    """
    best = torch.full_like(margin, -math.inf)
    count = torch.zeros(len(margin), dtype=torch.int64, device=margin.device)
    kept = [(count[:0], count[:0], best[:0])]
    for low, _, scores in tiles:
        best_here = scores.amax(1)
        best = torch.maximum(best, best_here)
        hit = ((best_here >= best - margin) & (count <= _NEAREST)).nonzero()[:, 0]
        if not len(hit):
            if bool((count > _NEAREST).all()):
                break
            continue
        part = scores[hit]
        rows, columns = (part >= (best - margin)[hit][:, None]).nonzero(as_tuple=True)
        count[hit] += torch.bincount(rows, minlength=len(hit))
        within = (count[hit] <= _NEAREST)[rows]
        rows, columns = rows[within], columns[within]
        kept.append((hit[rows], columns + low, part[rows, columns]))
    rows, columns, values = (torch.cat(parts) for parts in zip(*kept, strict=True))
    crowded = count > _NEAREST
    keep = (values >= (best - margin)[rows]) & ~crowded[rows]
    return torch.stack([rows[keep], columns[keep]]), crowded


# Sums from differences in float64. A difference x − c of two nearby numbers is exact or nearly so, while
# |x|² − 2 x·c + |c|² cancels. This is affordable for the few pairs that dominate a sum.


def _sums_of_pairs(centers: Centers, x: Tensor, pairs: Tensor, slope: bool) -> LogSums:
    """Return log sums of each row's pairs; −inf for a row without any."""
    rows, columns = pairs
    # At most four megabytes of differences, which fit in the cache.
    step = max(1, 2**19 // centers.width)

    def gaps() -> Iterator[tuple[Tensor, Tensor]]:
        for part in torch.arange(len(rows), device=x.device).split(step):
            yield part, (x[rows[part]].double() - centers.raw[columns[part]].double()).div_(centers.bandwidth)

    squares = [g.square().sum(-1) if x.dtype == torch.float64 else torch.linalg.vecdot(g, g) for _, g in gaps()]
    scores = torch.cat([*squares, x.new_empty(0, dtype=torch.float64)]).mul_(-0.5)
    if centers.log_weights is not None:
        scores += centers.log_weights[columns]
    top = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
    top.scatter_reduce_(0, rows, scores, "amax")
    weights = (scores - top[rows]).exp_()
    total = torch.zeros_like(top).index_add_(0, rows, weights)
    if not slope:
        return LogSums(top + total.log(), None)
    weights /= total[rows]
    drift = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for part, gap in gaps():
        drift.index_add_(0, rows[part], gap.mul_(-weights[part][:, None]))
    return LogSums(top + total.log(), drift.to(x.dtype))
