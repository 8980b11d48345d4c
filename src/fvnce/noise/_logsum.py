r"""log Σ_j w_j exp(−|x − c_j|²/(2h²)) over all centres, in bounded memory, to a stated accuracy.

The scores t_ij = y_i · c'_j + b_j come from matrix products, a tile at a time, with a rounding error of about

    e_i = u (√D/2 + 6) |y_i| max|c'| + u max|c'|²,      u = half an ulp of 1,

at most. This is the probabilistic form of the classical bound, not a worst case: rounding errors of a sum of
D products add like √D. Its constant is set from measurements: the largest error seen was 2/3 of it where it
is tight (y parallel to c', D = 30; less than half at D = 2, 784, 4000) and 1/5 of it on images.
Few numbers are evaluated from differences at once. Else a row takes the cheapest route that is accurate
enough:

1. *sum*: e_i is within the tolerance. Running maximum and running sum of exponentials over the tiles.
2. *nearest*: only centres whose score is within 2 e_i + log n + log(1/ε) of the row's best can matter, the
   others together being below the fraction ε. They are few, and evaluated again from differences in float64.
   Where there is a sketch of the centres, its certified bounds find them without computing all scores.
3. *double*: a float32 row with too many such centres is done again in float64.
4. *direct*: a float64 row for which that fails too is evaluated from differences to all centres.

An accelerator, which would have to wait at every choice that depends on values, takes the first route in float64 and
sums every tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._checks import are_deferred
from ._centres import LIMIT, TILE_COLUMNS, Centres, Gathering, Pairs, Sketch

_FEW = 2**18
_NEAREST = 256
_BOUNDED = 512
_TRIAL = 128
_MOST_ROWS = 4096
_LEAST_EXPONENT = -80.0  # e^-80 is nothing beside 1, and arithmetic with the subnormal numbers below it is slow


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
class Precision:
    """Accurate to ``absolute`` nats or ``relative`` of the result; ``dropped`` is the fraction ε above."""

    absolute: float
    relative: float
    dropped: float

    @staticmethod
    def of(dtype: torch.dtype) -> Precision:
        """8e-4 nats or an ulp in float32, where the last rounding needs the rest; 1e-9 in float64."""
        spacing = torch.finfo(dtype).eps
        return Precision(8e-4 if dtype == torch.float32 else 1e-9, spacing, spacing / 4)


@dataclass(frozen=True)
class Task:
    """What is wanted of every row alike."""

    slope: bool
    precision: Precision
    sketch: Sketch | None


def log_sums(
    centres: Centres,
    x: Tensor,
    *,
    slope: bool,
    block_bytes: int,
    sketch: Sketch | None = None,
    own: Tensor | None = None,
) -> LogSums:
    """Log sums of points x (q, D), float32 or float64, a block of rows at a time.

    Args:
        centres: the centres.
        x: the points.
        slope: whether to compute the gradient too.
        block_bytes: bound on working memory.
        sketch: finds the few centres that matter at less cost than all scores; for float32 only.
        own: a centre known to be near each point, shape (q,).
    """
    if len(x) * centres.raw.numel() <= _FEW:
        few = _sums_of_few(centres, x, slope)
        return few if own is not None else _checked(few)
    task = Task(slope, Precision.of(x.dtype), sketch if x.dtype == torch.float32 else None)
    x = x if x.device.type == "cpu" else x.double()
    # A row needs its part of two or three tiles, and itself in float64, its square and in the dtype of x.
    per_row = 3 * TILE_COLUMNS * x.element_size() + 24 * x.shape[1]
    step = max(1, min(_MOST_ROWS, block_bytes // (2 * per_row)))
    if len(x) <= step:
        out = _rows(centres, x, task, own)
    else:
        out = LogSums.empty(x, slope)
        for low in range(0, len(x), step):
            part = slice(low, low + step)
            out.put(part, _rows(centres, x[part], task, None if own is None else own[part]))
    return out if own is not None else _checked(out)


def _checked(out: LogSums) -> LogSums:
    far = out.value < -0.5 * LIMIT**2 * (1 + 1e-6)
    if not are_deferred() and bool(far.any()):
        row = int(far.nonzero()[0])
        distance = float((-2.0 * out.value[row]).sqrt())
        raise ValueError(f"x must lie within 1e15 bandwidths of a centre, found row {row} at {distance:.3g} bandwidths")
    return out


def _rows(centres: Centres, x: Tensor, task: Task, own: Tensor | None = None) -> LogSums:
    scaled = centres.scaled(x)
    half = 0.5 * scaled.square().sum(1)
    y = scaled.to(x.dtype)
    del scaled
    if own is not None and x.device.type != "cpu":
        # A draw is not much farther out than its centre, so that the host knows its error without asking.
        farthest = torch.tensor(0.5 * (centres.reach + math.sqrt(centres.width) + 10) ** 2, dtype=torch.float64)
        if _error_bound(centres, farthest, x.dtype) <= task.precision.absolute:
            return _sum(centres, y, half, task.slope)
    _check_reach(centres, half)
    accurate = _error_bound(centres, half, x.dtype) <= _tolerance(centres, half, task.precision)
    done = int(accurate.sum())
    if done == len(x):
        return _sum(centres, y, half, task.slope)
    if done == 0:
        return _nearest(centres, x, y, half, task, own)
    out = LogSums.empty(x, task.slope)
    first, second = accurate.nonzero()[:, 0], (~accurate).nonzero()[:, 0]
    out.put(first, _sum(centres, y[first], half[first], task.slope))
    near = None if own is None else own[second]
    out.put(second, _nearest(centres, x[second], y[second], half[second], task, near))
    return out


def _check_reach(centres: Centres, half: Tensor) -> None:
    # Farther than this no centre is within the limit, and squares of float32 numbers may overflow.
    length = (2.0 * half).sqrt()
    far = length - centres.reach > LIMIT * (1 + 1e-6)
    if not are_deferred() and bool(far.any()):
        found = float(length[far][0])
        raise ValueError(
            "x must lie within 1e15 bandwidths of a centre, "
            f"found a row at {found:.3g} bandwidths from the mean of the centres"
        )


def _error_bound(centres: Centres, half: Tensor, dtype: torch.dtype) -> Tensor:
    unit = torch.finfo(dtype).eps / 2
    length = (2.0 * half).sqrt()
    return unit * ((0.5 * math.sqrt(centres.width) + 6.0) * length * centres.reach + centres.reach**2)


def _tolerance(centres: Centres, half: Tensor, precision: Precision) -> Tensor:
    # No centre is nearer than |y| − reach, so the result is at least this large, up to the kernel's constant.
    nearest = ((2.0 * half).sqrt() - centres.reach).clamp_min(0.0)
    size = (0.5 * nearest.square() - abs(centres.log_height)).clamp_min(0.0)
    return (precision.relative * size).clamp_min(precision.absolute)


def _spread(centres: Centres, precision: Precision) -> float:
    """How far below the best score n centres may lie to add up to less than the fraction ``dropped``."""
    return math.log(centres.size) - math.log(precision.dropped)


def _tiles(centres: Centres, y: Tensor) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """(first column, block of centres, scores, best score of each row), tile by tile in one buffer."""
    tile = y.new_empty(len(y) * min(TILE_COLUMNS, centres.size))
    for low in range(0, centres.size, TILE_COLUMNS):
        block, offset = centres.block(low, low + TILE_COLUMNS, y.dtype)
        scores = tile[: len(y) * len(block)].view(len(y), len(block))
        torch.addmm(offset, y, block.T, out=scores)
        yield low, block, scores, scores.amax(1)


def _sum(centres: Centres, y: Tensor, half: Tensor, slope: bool) -> LogSums:
    margin = _spread(centres, Precision.of(y.dtype))
    top = y.new_full((len(y),), -math.inf)
    total = torch.zeros_like(top)
    drift = torch.zeros_like(y) if slope else None
    for _, block, scores, best in _tiles(centres, y):
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
                drift.addmm_(scores, block)
        elif len(hit):
            part = scores[hit].sub_(top[hit][:, None]).clamp_min_(_LEAST_EXPONENT).exp_()
            total[hit] += part.sum(1)
            if drift is not None:
                drift[hit] += part @ block
    if drift is not None:
        drift.div_(total[:, None]).sub_(y)
    return LogSums(top.double() + total.double().log() - half, drift)


def _nearest(centres: Centres, x: Tensor, y: Tensor, half: Tensor, task: Task, own: Tensor | None) -> LogSums:
    if task.sketch is None:
        pairs, crowded = _candidates(centres, y, half, task.precision)
    else:
        pairs, crowded = _sketched(task.sketch, centres, y, half, task.precision, own)
    out = _sums_of_pairs(centres, x, pairs, task.slope)
    left = crowded.nonzero()[:, 0]
    if not len(left):
        return out
    if task.sketch is not None:
        plain = replace(task, sketch=None)
        out.put(left, _nearest(centres, x[left], y[left], half[left], plain, None))
    elif x.dtype == torch.float32:
        # Half as many rows at a time, as they are twice as wide.
        step = (len(left) + 1) // 2
        for part in (left[:step], left[step:]):
            if len(part):
                out.put(part, _rows(centres, x[part].double(), task))
    else:
        out.put(left, _sums_of_all(centres, x[left], task.slope))
    return out


def _candidates(centres: Centres, y: Tensor, half: Tensor, precision: Precision) -> tuple[Pairs, Tensor]:
    """Pairs that carry all but a fraction ``dropped`` of each row's sum, and a mask of rows with too many."""
    margin = (2.0 * _error_bound(centres, half, y.dtype) + _spread(centres, precision)).to(y.dtype)
    top = y.new_full((len(y),), -math.inf)
    gathering = Gathering(y, _NEAREST)
    for low, _, scores, best in _tiles(centres, y):
        top = torch.maximum(top, best)
        floor = top - margin
        hit = ((best >= floor) & (gathering.found <= _NEAREST)).nonzero()[:, 0]
        if len(hit):
            gathering.add(hit, scores[hit], floor[hit], low)
        elif bool((gathering.found > _NEAREST).all()):
            break
    return gathering.above(top - margin)


def _sketched(
    sketch: Sketch, centres: Centres, y: Tensor, half: Tensor, precision: Precision, own: Tensor | None
) -> tuple[Pairs, Tensor]:
    """The pairs of :func:`_candidates` from bounds alone; rows with bounds too loose count as crowded."""
    spread = _spread(centres, precision)
    error = _error_bound(centres, half, y.dtype).to(y.dtype)
    margin = sketch.slack(centres, half).to(y.dtype) + spread

    def search(part: slice) -> tuple[Pairs, Tensor]:
        near = None if own is None else own[part]
        return sketch.candidates(centres, y[part], margin[part], error[part], _BOUNDED, near)

    # A few rows tell whether bounds are of use at this bandwidth: a pair costs what hundreds of scores do.
    if len(y) > 2 * _TRIAL:
        pairs, crowded = search(slice(_TRIAL))
        if 4 * int(crowded.sum()) > _TRIAL or 400 * len(pairs) > _TRIAL * centres.size:
            return Pairs.none(y), torch.ones(len(y), dtype=torch.bool, device=y.device)
    pairs, crowded = search(slice(None))
    scores = centres.scores(y, pairs.rows, pairs.columns)
    top = y.new_full((len(y),), -math.inf).scatter_reduce_(0, pairs.rows, scores, "amax")
    pairs = pairs[scores >= (top - 2 * error - spread)[pairs.rows]]
    crowded |= torch.bincount(pairs.rows, minlength=len(y)) > _NEAREST
    return pairs[~crowded[pairs.rows]], crowded


# Sums from differences in float64. A difference x − c of two nearby numbers is exact or nearly so, while
# |x|² − 2 x·c + |c|² cancels: this is the exact part, affordable for the few pairs that carry a sum.


def _sums_of_pairs(centres: Centres, x: Tensor, pairs: Pairs, slope: bool) -> LogSums:
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


def _sums_of_few(centres: Centres, x: Tensor, slope: bool) -> LogSums:
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


def _sums_of_all(centres: Centres, x: Tensor, slope: bool) -> LogSums:
    """Log sums over all centres from differences: slow, and right where everything else fails."""
    out = LogSums.empty(x, slope)
    every = torch.arange(centres.size, device=x.device)
    for row in range(len(x)):
        part = slice(row, row + 1)
        out.put(part, _sums_of_pairs(centres, x[part], Pairs(torch.zeros_like(every), every), slope))
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
