r"""log Σ_j w_j exp(−|x − c_j|²/(2h²)) over all centres, in bounded memory, to a stated accuracy.

With shift m (the mean of the centres) and bandwidth h, everything works with

    y = (x − m) / h,   c'_j = (c_j − m) / h,   b_j = log w_j − |c'_j|² / 2,

so that log w_j − |x − c_j|²/(2h²) = t_j − |y|²/2 with the *scores* t_j = y · c'_j + b_j: one matrix product gives those
of a tile of centres. Subtracting the mean shortens both vectors, and the product's rounding error is about

    e = u (√D/2 + 6) |y| max|c'| + u max|c'|²,      u = half an ulp of 1,

at most. This is the probabilistic form of the classical bound, not a worst case: rounding errors of a sum of D products
add like √D. Its constant is set from measurements: the largest error seen was 2/3 of it where it is tight (y parallel
to c', D = 30; less than half at D = 2, 784, 4000) and 1/5 of it on images.

A row takes the cheapest route that is accurate enough:

1. *sum*: e is within the tolerance. Running maximum and running sum of exponentials over the tiles.
2. *nearest*: only centres whose score is within 2e + log n + log(1/ε) of the row's best can matter, the others together
   being below the fraction ε. They are few, and evaluated again from differences in float64. Where there is a sketch of
   the centres, its certified bounds find them without computing all scores.
3. *double*: a float32 row with too many such centres is done again in float64.
4. *direct*: a float64 row for which that fails too is evaluated from differences to all centres.

An accelerator, which would have to wait at every choice that depends on values, takes the first route in float64 and
sums every tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: Longest admitted distance in bandwidths: its square is still a float32.
LONGEST_DISTANCE = 1e15
#: Coordinates r of a sketch that are kept as they are.
AXES = 128
#: Centres whose scores are computed at once, and rows at once.
TILE_COLUMNS, MOST_ROWS = 512, 4096

#: Working memory of one evaluation, about.
BLOCK_BYTES = 128 * 2**20
_CACHE_BYTES = 64 * 2**20
_ROWS_AT_ONCE = 1024
_SAMPLE = 4096
_NEAREST = 256
_BOUNDED = 512
_TRIAL = 128
_LEAST_EXPONENT = -80.0  # e^-80 added to 1 is 1, and arithmetic with the subnormal numbers below it is slow


class Centres:
    """The centres of one kernel density in kernel units: offsets b_j, reach max |c'_j|, log height of the kernel.

    Args:
        raw: centres, shape (n, D); kept by reference.
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
        # Divided by h: the rounding of 1/h would be the same in every dimension, and not average out.
        return (x.double() - self.shift).div_(self.bandwidth)

    def at(self, index: slice | Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (c'_j, b_j) of some centres, shapes (k, D) and (k,)."""
        if dtype not in self._kept:
            # A second copy of many centres would dwarf every other use of memory; a few are kept ready.
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
        """Yield (first centre, centres, scores) tile by tile."""
        return _tiles(y, self.size, lambda part: self.at(part, y.dtype))

    def error_bound(self, half: Tensor, dtype: torch.dtype) -> Tensor:
        """Return e of the scores of points with |y|²/2 = half."""
        unit = torch.finfo(dtype).eps / 2
        length = (2.0 * half).sqrt()
        return unit * ((0.5 * math.sqrt(self.width) + 6.0) * length * self.reach + self.reach**2)

    def spread(self, dtype: torch.dtype) -> float:
        """Return how far below the best score n centres may lie to add up to less than ε, a quarter of an ulp."""
        return math.log(self.size) - math.log(torch.finfo(dtype).eps / 4)


def _tiles(
    y: Tensor, size: int, block: Callable[[slice], tuple[Tensor, Tensor]]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (first column, vectors, y · vectors + offset) tile by tile, the products in one buffer."""
    buffer = y.new_empty(len(y) * min(TILE_COLUMNS, size))
    for low in range(0, size, TILE_COLUMNS):
        vectors, offset = block(slice(low, low + TILE_COLUMNS))
        products = buffer[: len(y) * len(vectors)].view(len(y), len(vectors))
        torch.addmm(offset, y, vectors.T, out=products)
        yield low, vectors, products


@dataclass
class LogSums:
    """Results of some rows: ``value`` (q,) in float64 and, on request, ``slope`` = d value / d y, (q, D)."""

    value: Tensor
    slope: Tensor | None

    @staticmethod
    def empty(x: Tensor, slope: bool) -> LogSums:
        """Return room for the results of points x."""
        value = torch.empty(len(x), dtype=torch.float64, device=x.device)
        return LogSums(value, torch.empty_like(x) if slope else None)

    def put(self, rows: Tensor | slice, part: LogSums) -> None:
        """Write the results of some rows."""
        self.value[rows] = part.value
        if self.slope is not None and part.slope is not None:
            self.slope[rows] = part.slope.to(self.slope.dtype)


@dataclass(frozen=True)
class Task:
    """What is asked of every row: ``slope`` or not, as accurate as ``dtype`` needs, perhaps with a sketch."""

    slope: bool
    dtype: torch.dtype
    sketch: Sketch | None

    @property
    def absolute(self) -> float:
        """The error admitted in nats: 8e-4 in float32, where the last rounding needs the rest, 1e-9 in float64."""
        return 8e-4 if self.dtype == torch.float32 else 1e-9

    def tolerance(self, centres: Centres, half: Tensor) -> Tensor:
        """Return the error admitted, that or an ulp of the result."""
        # No centre is nearer than |y| − reach, so the result is at least this large, up to the kernel's constant.
        nearest = ((2.0 * half).sqrt() - centres.reach).clamp_min(0.0)
        size = (0.5 * nearest.square() - abs(centres.log_height)).clamp_min(0.0)
        return (torch.finfo(self.dtype).eps * size).clamp_min(self.absolute)


def log_sums(
    centres: Centres,
    x: Tensor,
    *,
    slope: bool,
    sketch: Sketch | None = None,
    near: Tensor | None = None,
) -> LogSums:
    """Return log sums of points x (q, D), float32 or float64, a block of rows at a time.

    Args:
        centres: the centres.
        x: the points.
        slope: whether to compute the gradient too.
        sketch: finds the few centres that matter at less cost than all scores; for float32 only.
        near: a centre known to be near each point, shape (q,).
    """
    task = Task(slope, x.dtype, sketch if x.dtype == torch.float32 else None)
    x = x if x.device.type == "cpu" else x.double()
    # A row needs its part of two or three tiles, and itself in float64, its square and in the dtype of x.
    per_row = 3 * TILE_COLUMNS * x.element_size() + 24 * centres.width
    step = max(1, min(MOST_ROWS, BLOCK_BYTES // (2 * per_row)))
    out = LogSums.empty(x, slope)
    for low in range(0, len(x), step):
        part = slice(low, low + step)
        out.put(part, _rows(centres, x[part], task, None if near is None else near[part]))
    return out


def _rows(centres: Centres, x: Tensor, task: Task, near: Tensor | None = None) -> LogSums:
    scaled = centres.scaled(x)
    half = 0.5 * scaled.square().sum(1)
    y = scaled.to(x.dtype)
    del scaled
    if near is not None and x.device.type != "cpu":
        # A draw is not much farther out than its centre, so that the host knows its error without asking.
        farthest = torch.tensor(0.5 * (centres.reach + math.sqrt(centres.width) + 10) ** 2, dtype=torch.float64)
        if centres.error_bound(farthest, x.dtype) <= task.absolute:
            return _sum(centres, y, half, task.slope)
    accurate = centres.error_bound(half, x.dtype) <= task.tolerance(centres, half)
    done = int(accurate.sum())
    if done == len(x):
        return _sum(centres, y, half, task.slope)
    if done == 0:
        return _nearest(centres, x, y, half, task, near)
    out = LogSums.empty(x, task.slope)
    first, second = accurate.nonzero()[:, 0], (~accurate).nonzero()[:, 0]
    out.put(first, _sum(centres, y[first], half[first], task.slope))
    near = None if near is None else near[second]
    out.put(second, _nearest(centres, x[second], y[second], half[second], task, near))
    return out


def _sum(centres: Centres, y: Tensor, half: Tensor, slope: bool) -> LogSums:
    margin = centres.spread(y.dtype)
    top = y.new_full((len(y),), -math.inf)
    total = torch.zeros_like(top)
    drift = torch.zeros_like(y) if slope else None
    for _, vectors, scores in centres.tiles(y):
        best = scores.amax(1)
        new = torch.maximum(top, best)
        decay = (top - new).exp_()
        total.mul_(decay)
        if drift is not None:
            drift.mul_(decay[:, None])
        top = new
        # A tile far below a row's best adds less than rounding does: in high dimensions most rows skip most
        # tiles. Not ">": far from all centres the margin is less than the spacing of scores in this dtype.
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


def _nearest(centres: Centres, x: Tensor, y: Tensor, half: Tensor, task: Task, near: Tensor | None) -> LogSums:
    if task.sketch is not None:
        pairs, crowded = task.sketch.nearest(centres, y, half, near)
    else:
        margin = (2.0 * centres.error_bound(half, y.dtype) + centres.spread(task.dtype)).to(y.dtype)
        known = y.new_full((len(y),), -math.inf)
        pairs, crowded = _within(margin, centres.tiles(y), known, _NEAREST)
    out = _sums_of_pairs(centres, x, pairs, task.slope)
    left = crowded.nonzero()[:, 0]
    if not len(left):
        return out
    if task.sketch is not None:
        out.put(left, _nearest(centres, x[left], y[left], half[left], replace(task, sketch=None), None))
    elif x.dtype == torch.float32:
        # Half as many rows at a time, as they are twice as wide.
        for part in left.split((len(left) + 1) // 2):
            out.put(part, _rows(centres, x[part].double(), task))
    else:
        # From differences to all centres: slow, and right where everything else fails.
        every = torch.arange(centres.size, device=x.device)
        for row in left.split(1):
            out.put(row, _sums_of_pairs(centres, x[row], torch.stack([torch.zeros_like(every), every]), task.slope))
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
    """Return the pairs (row, centre) whose numbers are within ``margin`` of the row's best score, shape (2, p).

    Args:
        margin: shape (q,).
        tiles: numbers of all pairs, tile by tile: scores, or upper bounds of them.
        known: a lower bound of each row's best score, shape (q,).
        limit: rows with more pairs than this are given up.
        score: lower bounds of the scores of pairs whose numbers are upper bounds; None if numbers are scores.
        fixed: whether ``known`` is good enough.

    Returns:
        The pairs, the centres of one row ascending, and a mask (q,) of rows given up.
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
            # The most promising centre of the tile raises what is known of the row's best score.
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
    r"""Certified bounds of scores from a few coordinates, which leave few centres that can matter to a point.

    Rotate kernel units by the principal axes of the centres and split the axes into the first r and groups g of
    the others. By the Cauchy-Schwarz inequality in each group

        y · c' <= Σ_{k<=r} y_k c'_k + Σ_g |y_g| |c'_g|,

    a product of vectors with r + G entries. It costs a fraction of the full product and bounds every score
    t_ij = y_i · c'_j + b_j from above. A centre whose bound is farther below the score of one good centre than
    the margin cannot matter, and most are: images vary mostly along few axes. For a draw the good centre is the
    one it came from.

    ``reduced`` holds the vectors (c'_1 … c'_r, |c'_g| …) of all centres, shape (n, r + G) in float32.
    """

    def __init__(self, centres: Centres) -> None:
        step = max(1, centres.size // _SAMPLE)
        some = centres.scaled(centres.raw[::step][:_SAMPLE])
        _, axes = torch.linalg.eigh(some.T @ some)
        self.axes = axes.flip(1).float()
        inner = [edge for edge in (AXES * 3 // 2, AXES * 2, AXES * 3) if edge < centres.width]
        self._edges = [AXES, *inner, centres.width]
        self.reduced = torch.empty(centres.size, AXES + len(self._edges) - 1, device=centres.raw.device)
        for low in range(0, centres.size, 2 * _ROWS_AT_ONCE):
            part = slice(low, low + 2 * _ROWS_AT_ONCE)
            self.reduced[part] = self.reduce(centres.at(part, torch.float32)[0])

    @staticmethod
    def slack(centres: Centres, half: Tensor) -> Tensor:
        """Return the rounding error of the bound, ten times the worst seen where it is tight (y parallel to c')."""
        relative = 1.5e-7 * math.sqrt(centres.width)
        return relative * (2.0 * half).sqrt() * centres.reach + 1e-7 * centres.reach**2

    def reduce(self, y: Tensor) -> Tensor:
        """Return reduced vectors (q, r + G) of points (q, D) in kernel units."""
        rotated = y @ self.axes
        groups = zip(self._edges[:-1], self._edges[1:], strict=True)
        rest = [rotated[:, low:high].norm(dim=1, keepdim=True) for low, high in groups]
        return torch.cat([rotated[:, :AXES], *rest], dim=1)

    def nearest(self, centres: Centres, y: Tensor, half: Tensor, near: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the pairs that can matter, shape (2, p), and a mask (q,) of rows with too many or too loose bounds.

        Args:
            centres: where full scores come from.
            y: points in kernel units, float32, shape (q, D).
            half: |y|²/2, shape (q,).
            near: a good centre of each row, shape (q,), if one is known.
        """
        error = centres.error_bound(half, y.dtype).to(y.dtype)
        spread = centres.spread(y.dtype)
        margin = self.slack(centres, half).to(y.dtype) + spread
        offset = centres.offset.float()

        def score(rows: Tensor, columns: Tensor) -> Tensor:
            return centres.scores(y, rows, columns) - error[rows]

        def search(q: int) -> tuple[Tensor, Tensor]:
            known = y.new_full((q,), -math.inf)
            if near is not None:
                known = centres.scores(y[:q], torch.arange(q, device=y.device), near[:q]) - error[:q]
            tiles = _tiles(self.reduce(y[:q]), centres.size, lambda part: (self.reduced[part], offset[part]))
            return _within(margin[:q], tiles, known, _BOUNDED, score, fixed=near is not None)

        # A few rows tell whether bounds are of use at this bandwidth: a pair costs what hundreds of scores do.
        if len(y) > 2 * _TRIAL:
            pairs, crowded = search(_TRIAL)
            if 4 * int(crowded.sum()) > _TRIAL or 400 * pairs.shape[1] > _TRIAL * centres.size:
                return pairs[:, :0], torch.ones(len(y), dtype=torch.bool, device=y.device)
        pairs, crowded = search(len(y))
        scores = centres.scores(y, *pairs)
        top = y.new_full((len(y),), -math.inf).scatter_reduce_(0, pairs[0], scores, "amax")
        pairs = pairs[:, scores >= (top - 2 * error - spread)[pairs[0]]]
        crowded |= torch.bincount(pairs[0], minlength=len(y)) > _NEAREST
        return pairs[:, ~crowded[pairs[0]]], crowded


# Sums from differences in float64. A difference x − c of two nearby numbers is exact or nearly so, while
# |x|² − 2 x·c + |c|² cancels: this is the exact part, affordable for the few pairs that carry a sum.


def _sums_of_pairs(centres: Centres, x: Tensor, pairs: Tensor, slope: bool) -> LogSums:
    """Return log sums of each row's pairs; −inf for a row without any."""
    rows, columns = pairs
    # Four megabytes of differences at most, which stay in cache.
    step = max(1, 2**19 // centres.width)

    def gaps() -> Iterator[tuple[Tensor, Tensor]]:
        for part in torch.arange(len(rows), device=x.device).split(step):
            yield part, (x[rows[part]].double() - centres.raw[columns[part]].double()).div_(centres.bandwidth)

    squares = [g.square().sum(-1) if x.dtype == torch.float64 else torch.linalg.vecdot(g, g) for _, g in gaps()]
    scores = torch.cat([*squares, x.new_empty(0, dtype=torch.float64)]).mul_(-0.5)
    if centres.log_weights is not None:
        scores += centres.log_weights[columns]
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
