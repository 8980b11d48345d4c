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
   are below the fraction ε. These few centers are evaluated again from differences in float64. With a sketch of the
   centers, certified bounds find them without computing all scores.
3. *double*: a float32 row with too many such centers is computed again in float64.
4. *direct*: a float64 row with too many such centers is computed from differences to all centers.

On an accelerator every choice that depends on values would synchronize, so it uses the first method in float64 and sums
every tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: Largest allowed distance in bandwidths: its square is within the range of float32.
LONGEST_DISTANCE = 1e15
#: Number r of coordinates that a sketch keeps unchanged.
AXES = 128
#: Number of centers, and of rows, in one tile of scores.
TILE_COLUMNS, MOST_ROWS = 512, 4096

#: Approximate working memory of one evaluation.
BLOCK_BYTES = 128 * 2**20
_CACHE_BYTES = 64 * 2**20
_ROWS_AT_ONCE = 1024
_SAMPLE = 4096
_NEAREST = 256
_BOUNDED = 512
_TRIAL = 128
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

    def at(self, index: slice | Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
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

    def scores(self, y: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return t_ij = y_i · c'_j + b_j of listed pairs, in the dtype of y, shape (pairs,)."""
        parts = [y.new_empty(0)]
        for i, j in zip(rows.split(2048), columns.split(2048), strict=True):
            vectors, offset = self.at(j, y.dtype)
            parts.append(torch.linalg.vecdot(y[i], vectors).add_(offset))
        return torch.cat(parts)

    def tiles(self, y: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (first center, centers, scores) tile by tile."""
        return _tiles(y, self.size, lambda part: self.at(part, y.dtype))

    def error_bound(self, half: Tensor, dtype: torch.dtype) -> Tensor:
        """Return e of the scores of points with |y|²/2 = half."""
        unit = torch.finfo(dtype).eps / 2
        length = (2.0 * half).sqrt()
        return unit * ((0.5 * math.sqrt(self.width) + 6.0) * length * self.reach + self.reach**2)

    def spread(self, dtype: torch.dtype) -> float:
        """Return how far below the best score n centers must be to sum to less than ε, a quarter of an ulp."""
        return math.log(self.size) - math.log(torch.finfo(dtype).eps / 4)


def _tiles(
    y: Tensor, size: int, block: Callable[[slice], tuple[Tensor, Tensor]]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (first column, vectors, y · vectors + offset) tile by tile, with the products in a reused buffer."""
    buffer = y.new_empty(len(y) * min(TILE_COLUMNS, size))
    for low in range(0, size, TILE_COLUMNS):
        vectors, offset = block(slice(low, low + TILE_COLUMNS))
        products = buffer[: len(y) * len(vectors)].view(len(y), len(vectors))
        torch.addmm(offset, y, vectors.T, out=products)
        yield low, vectors, products


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


@dataclass(frozen=True)
class Task:
    """Options of one evaluation: whether to compute ``slope``, the accuracy of which ``dtype``, an optional sketch."""

    slope: bool
    dtype: torch.dtype
    sketch: Sketch | None

    @property
    def absolute(self) -> float:
        """The allowed error in nats: 1e-9 in float64, 8e-4 in float32, which leaves 2e-4 for the final rounding."""
        return 8e-4 if self.dtype == torch.float32 else 1e-9

    def tolerance(self, centers: Centers, half: Tensor) -> Tensor:
        """Return the allowed error of each point: :attr:`absolute`, or an ulp of the result if that is larger."""
        # No center is closer than |y| − reach, which bounds the size of the result, up to the kernel's constant.
        nearest = ((2.0 * half).sqrt() - centers.reach).clamp_min(0.0)
        size = (0.5 * nearest.square() - abs(centers.log_height)).clamp_min(0.0)
        return (torch.finfo(self.dtype).eps * size).clamp_min(self.absolute)


def log_sums(
    centers: Centers,
    x: Tensor,
    *,
    slope: bool,
    sketch: Sketch | None = None,
    near: Tensor | None = None,
) -> LogSums:
    """Compute log sums of points x (q, D), float32 or float64, in blocks of rows.

    Args:
        centers: the centers.
        x: the points.
        slope: whether to compute the gradient as well.
        sketch: finds the relevant centers without computing all scores; for float32 only.
        near: index of a center near each point, shape (q,).
    """
    task = Task(slope, x.dtype, sketch if x.dtype == torch.float32 else None)
    x = x if x.device.type == "cpu" else x.double()
    # Memory of a row: its part of two or three tiles, and its copies in float64, squared, and in the dtype of x.
    per_row = 3 * TILE_COLUMNS * x.element_size() + 24 * centers.width
    step = max(1, min(MOST_ROWS, BLOCK_BYTES // (2 * per_row)))
    out = LogSums.empty(x, slope)
    for low in range(0, len(x), step):
        part = slice(low, low + step)
        out.put(part, _rows(centers, x[part], task, None if near is None else near[part]))
    return out


def _rows(centers: Centers, x: Tensor, task: Task, near: Tensor | None = None) -> LogSums:
    scaled = centers.scaled(x)
    half = 0.5 * scaled.square().sum(1)
    y = scaled.to(x.dtype)
    del scaled
    if near is not None and x.device.type != "cpu":
        # A draw is not much farther out than its center, so the host can bound its error without synchronizing.
        farthest = torch.tensor(0.5 * (centers.reach + math.sqrt(centers.width) + 10) ** 2, dtype=torch.float64)
        if centers.error_bound(farthest, x.dtype) <= task.absolute:
            return _sum(centers, y, half, task.slope)
    accurate = centers.error_bound(half, x.dtype) <= task.tolerance(centers, half)
    done = int(accurate.sum())
    if done == len(x):
        return _sum(centers, y, half, task.slope)
    if done == 0:
        return _nearest(centers, x, y, half, task, near)
    out = LogSums.empty(x, task.slope)
    first, second = accurate.nonzero()[:, 0], (~accurate).nonzero()[:, 0]
    out.put(first, _sum(centers, y[first], half[first], task.slope))
    near = None if near is None else near[second]
    out.put(second, _nearest(centers, x[second], y[second], half[second], task, near))
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


def _nearest(centers: Centers, x: Tensor, y: Tensor, half: Tensor, task: Task, near: Tensor | None) -> LogSums:
    if task.sketch is not None:
        pairs, crowded = task.sketch.nearest(centers, y, half, near)
    else:
        margin = (2.0 * centers.error_bound(half, y.dtype) + centers.spread(task.dtype)).to(y.dtype)
        known = y.new_full((len(y),), -math.inf)
        pairs, crowded = _within(margin, centers.tiles(y), known, _NEAREST)
    out = _sums_of_pairs(centers, x, pairs, task.slope)
    left = crowded.nonzero()[:, 0]
    if not len(left):
        return out
    if task.sketch is not None:
        out.put(left, _nearest(centers, x[left], y[left], half[left], replace(task, sketch=None), None))
    elif x.dtype == torch.float32:
        # Half the number of rows at a time, as they take twice the memory.
        for part in left.split((len(left) + 1) // 2):
            out.put(part, _rows(centers, x[part].double(), task))
    else:
        # From differences to all centers: slow, but always accurate.
        every = torch.arange(centers.size, device=x.device)
        for row in left.split(1):
            out.put(row, _sums_of_pairs(centers, x[row], torch.stack([torch.zeros_like(every), every]), task.slope))
    return out


def _within(
    margin: Tensor,
    tiles: Iterator[tuple[int, Tensor, Tensor]],
    known: Tensor,
    limit: int,
    score: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    fixed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the pairs (row, center) whose values are within ``margin`` of the row's best score, shape (2, p).

    Args:
        margin: shape (q,).
        tiles: values of all pairs, tile by tile: scores, or upper bounds of them.
        known: a lower bound of each row's best score, shape (q,).
        limit: rows with more pairs than this are abandoned.
        score: gives lower bounds of the scores of pairs if ``tiles`` holds upper bounds; None if it holds scores.
        fixed: whether to use ``known`` without improving it.

    Returns:
        The pairs, with the centers of each row in ascending order, and a mask (q,) of abandoned rows.
    """
    count = torch.zeros(len(known), dtype=torch.int64, device=known.device)
    kept = [(count[:0], count[:0], known[:0])]
    for low, _, numbers in tiles:
        best = numbers.amax(1)
        if score is None:
            known = torch.maximum(known, best)
        hit = ((best >= known - margin) & (count <= limit)).nonzero()[:, 0]
        if not len(hit):
            if bool((count > limit).all()):
                break
            continue
        part = numbers[hit]
        if score is not None and not fixed:
            # The score of the tile's most promising center may raise the lower bound of the row's best score.
            known[hit] = torch.maximum(known[hit], score(hit, part.argmax(1) + low))
        rows, columns = (part >= (known - margin)[hit][:, None]).nonzero(as_tuple=True)
        count[hit] += torch.bincount(rows, minlength=len(hit))
        within = (count[hit] <= limit)[rows]
        rows, columns = rows[within], columns[within]
        kept.append((hit[rows], columns + low, part[rows, columns]))
    rows, columns, values = (torch.cat(parts) for parts in zip(*kept, strict=True))
    crowded = count > limit
    keep = (values >= (known - margin)[rows]) & ~crowded[rows]
    return torch.stack([rows[keep], columns[keep]]), crowded


class Sketch:
    r"""Certified upper bounds of scores from a few coordinates, which exclude most centers for a point.

    Rotate kernel units by the principal axes of the centers and split the axes into the first r and groups g of
    the others. By the Cauchy-Schwarz inequality in each group

        y · c' <= Σ_{k<=r} y_k c'_k + Σ_g |y_g| |c'_g|,

    a product of vectors with r + G entries. It costs a fraction of the full product and bounds every score
    t_ij = y_i · c'_j + b_j from above. A center cannot matter if its bound is below the score of a known good center by
    more than the margin. This excludes most centers of images, which vary mostly along few axes. For a draw, the good
    center is the one it was drawn from.

    ``reduced`` holds the vectors (c'_1 … c'_r, |c'_g| …) of all centers, shape (n, r + G) in float32.
    """

    def __init__(self, centers: Centers) -> None:
        step = max(1, centers.size // _SAMPLE)
        some = centers.scaled(centers.raw[::step][:_SAMPLE])
        _, axes = torch.linalg.eigh(some.T @ some)
        self.axes = axes.flip(1).float()
        inner = [edge for edge in (AXES * 3 // 2, AXES * 2, AXES * 3) if edge < centers.width]
        self._edges = [AXES, *inner, centers.width]
        self.reduced = torch.empty(centers.size, AXES + len(self._edges) - 1, device=centers.raw.device)
        for low in range(0, centers.size, 2 * _ROWS_AT_ONCE):
            part = slice(low, low + 2 * _ROWS_AT_ONCE)
            self.reduced[part] = self.reduce(centers.at(part, torch.float32)[0])

    @staticmethod
    def slack(centers: Centers, half: Tensor) -> Tensor:
        """Return the rounding error of the bound, ten times the worst observed where it is tight (y parallel to c')."""
        relative = 1.5e-7 * math.sqrt(centers.width)
        return relative * (2.0 * half).sqrt() * centers.reach + 1e-7 * centers.reach**2

    def reduce(self, y: Tensor) -> Tensor:
        """Return reduced vectors (q, r + G) of points (q, D) in kernel units."""
        rotated = y @ self.axes
        groups = zip(self._edges[:-1], self._edges[1:], strict=True)
        rest = [rotated[:, low:high].norm(dim=1, keepdim=True) for low, high in groups]
        return torch.cat([rotated[:, :AXES], *rest], dim=1)

    def nearest(self, centers: Centers, y: Tensor, half: Tensor, near: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the pairs that can matter, shape (2, p), and a mask (q,) of rows with too many pairs or loose bounds.

        Args:
            centers: the centers, for full scores.
            y: points in kernel units, float32, shape (q, D).
            half: |y|²/2, shape (q,).
            near: index of a good center for each row, shape (q,), if known.
        """
        error = centers.error_bound(half, y.dtype).to(y.dtype)
        spread = centers.spread(y.dtype)
        margin = self.slack(centers, half).to(y.dtype) + spread
        offset = centers.offset.float()

        def score(rows: Tensor, columns: Tensor) -> Tensor:
            return centers.scores(y, rows, columns) - error[rows]

        def search(q: int) -> tuple[Tensor, Tensor]:
            known = y.new_full((q,), -math.inf)
            if near is not None:
                known = centers.scores(y[:q], torch.arange(q, device=y.device), near[:q]) - error[:q]
            tiles = _tiles(self.reduce(y[:q]), centers.size, lambda part: (self.reduced[part], offset[part]))
            return _within(margin[:q], tiles, known, _BOUNDED, score, fixed=near is not None)

        # A few rows show whether bounds help at this bandwidth: a pair costs as much as hundreds of scores.
        if len(y) > 2 * _TRIAL:
            pairs, crowded = search(_TRIAL)
            if 4 * int(crowded.sum()) > _TRIAL or 400 * pairs.shape[1] > _TRIAL * centers.size:
                return pairs[:, :0], torch.ones(len(y), dtype=torch.bool, device=y.device)
        pairs, crowded = search(len(y))
        scores = centers.scores(y, *pairs)
        top = y.new_full((len(y),), -math.inf).scatter_reduce_(0, pairs[0], scores, "amax")
        pairs = pairs[:, scores >= (top - 2 * error - spread)[pairs[0]]]
        crowded |= torch.bincount(pairs[0], minlength=len(y)) > _NEAREST
        return pairs[:, ~crowded[pairs[0]]], crowded


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
