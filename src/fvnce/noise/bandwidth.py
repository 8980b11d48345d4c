r"""Bandwidths learned from data.

Rules of thumb, one bandwidth per column with standard deviation s_k:

    scott       h_k = s_k n^(−1/(D+4))
    silverman   h_k = s_k (4 / ((D+2) n))^(1/(D+4))

``loo``: one bandwidth for all columns, which maximizes the leave-one-out log likelihood

    f(h) = Σ_i log Σ_{j≠i} exp(−d_ij²/(2h²)) − n D log h.

A stationary point satisfies h² = mean_i ⟨d_ij²⟩/D, where ⟨·⟩ weighs neighbors by exp(−d²/(2h²)). Those
weights fall with distance, so every such point lies between the mean nearest and the mean overall squared
distance: a certified bracket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .. import _validation
from ._logsum import Centres

_KEPT = 32
_TILE_ROWS = 1024
_RELATIVE_CHANGE = 1e-6

Moments = tuple[float, float]


def select_bandwidth(X: Tensor, rule: str, *, floor: float | None = None, block_bytes: int = 64 * 2**20) -> Tensor:
    """Return a bandwidth of a Gaussian kernel density on the rows of X.

    Args:
        X: shape (n, D), or (n,) + event_shape with D entries each, n >= 2.
        rule: ``"scott"`` or ``"silverman"``, of the shape of a row, or ``"loo"``, a scalar.
        floor: rules of thumb only: raise the deviation of each column to this share of the root mean square
            deviation of all columns. Without it a constant column is an error, as its bandwidth would be 0.
        block_bytes: working memory for ``"loo"``.

    Duplicated rows count as neighbors at distance 0 in ``"loo"``; it is an error if every row has a
    duplicate, as the likelihood then grows without bound as h falls.

    >>> X = torch.randn(500, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> [round(select_bandwidth(X, rule).item(), 2) for rule in ("scott", "silverman", "loo")]
    [0.29, 0.3, 0.28]
    """
    _validation.choice("bandwidth", rule, ("scott", "silverman", "loo"))
    block_bytes = _validation.count("block_bytes", block_bytes, low=2**16)
    rows = _validation.samples("X", X, rows=2)
    data = rows.flatten(1)
    if rule == "loo":
        if floor is not None:
            raise ValueError(f"floor applies to 'scott' and 'silverman' only, found floor={floor!r} with 'loo'")
        return torch.tensor(_leave_one_out(data, block_bytes), dtype=data.dtype, device=data.device)
    n, width = data.shape
    factor = float(n) if rule == "scott" else n * (width + 2) / 4
    return _deviations(data, floor).mul_(factor ** (-1.0 / (width + 4))).reshape(rows.shape[1:])


def _deviations(data: Tensor, floor: float | None) -> Tensor:
    deviations = data.double().std(0)
    if floor is not None:
        least = _validation.number("floor", floor, low=0, open_low=True) * deviations.square().mean().sqrt()
        deviations = deviations.clamp_min(least)
    remedy = "drop them, pass floor=0.01, or give a number or 'loo' as bandwidth"
    _validation.varying(deviations, "for a rule of thumb", remedy)
    return deviations.to(data.dtype)


def _leave_one_out(data: Tensor, block_bytes: int) -> float:
    n, width = data.shape
    points = Centres(data, torch.ones((), dtype=torch.float64, device=data.device), None)
    overall = float(-2.0 * points.offset.mean()) * 2.0 * n / (n - 1)
    full = 8 * n * n <= 2 * block_bytes
    squares = _all_squares(points) if full else _nearest_squares(points, data, block_bytes)
    low, high = float(squares.amin(1).mean()) / width, overall / width
    if not low > 1e-14 * high:
        raise ValueError(
            "bandwidth='loo' needs rows without exact duplicates, found one for every row of X; "
            "drop duplicates or give a number"
        )
    low, high = 0.5 * math.log(low) - 1e-6, 0.5 * math.log(high) + 1e-6
    best = _root(lambda h: _moments(squares, h), width, low, high)
    if not full and _left_out(squares, n, width, best) > 1e-3:
        # Too many neighbors matter to keep a table of them; the table's answer is where the search starts.
        best = _root(lambda h: _blocked_moments(points, h), width, low, high, start=math.log(best))
    return best


def _root(
    moments: Callable[[float], Moments], width: int, low: float, high: float, start: float | None = None
) -> float:
    """Zero of f'(log h)/n = ⟨d²⟩/h² − D by Newton's method, kept inside a shrinking bracket."""
    at = 0.5 * (low + high) if start is None else start
    for _ in range(60):
        h = math.exp(at)
        mean, variance = moments(h)
        value = mean / h**2 - width
        curve = variance / h**4 - 2.0 * mean / h**2
        if value > 0:
            low = at
        else:
            high = at
        step = at - value / curve if curve < 0 else math.inf
        new = step if low < step < high else 0.5 * (low + high)
        if abs(new - at) < _RELATIVE_CHANGE:
            return math.exp(new)
        at = new
    return math.exp(at)


def _moments(squares: Tensor, h: float) -> Moments:
    """Averages over rows of the weighted mean and variance of squared distances, shape (n, m)."""
    means, variances = 0.0, 0.0
    for low in range(0, len(squares), _TILE_ROWS):
        part = squares[low : low + _TILE_ROWS]
        weights = torch.softmax(part * (-0.5 / h**2), dim=1)
        mean = (weights * part).sum(1)
        means += float(mean.double().sum())
        variances += float((weights * (part - mean[:, None]).square()).sum(1).double().sum())
    return means / len(squares), variances / len(squares)


def _left_out(squares: Tensor, n: int, width: int, h: float) -> float:
    """Certified bound on the relative change of h² by all neighbors not kept.

    The n − 1 − m others are no nearer than the farthest one kept, and v exp(−v/(2h²)) falls for v > 2h².
    """
    scaled = squares * (-0.5 / h**2)
    farthest = squares.amax(1)
    ratio = (n - 1 - squares.shape[1]) * torch.exp(-0.5 * farthest / h**2 - torch.logsumexp(scaled, 1))
    return float((ratio * farthest.clamp_min(2 * h**2)).mean()) / (width * h**2)


def _all_squares(points: Centres) -> Tensor:
    """Squared distances of every row to all others, shape (n, n − 1) in float64."""
    n = points.size
    block, offset = points.at(slice(0, n), torch.float64)
    squares = torch.addmm(offset, block, block.T).mul_(-2.0).sub_(2.0 * offset[:, None]).clamp_min_(0.0)
    # The off-diagonal entries of an n × n matrix are a strided view of its buffer.
    return squares.flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)


def _nearest_squares(points: Centres, data: Tensor, block_bytes: int) -> Tensor:
    """Squared distances of every row to its nearest others, (n, m) in float64, from differences."""
    kept = torch.empty(points.size, _KEPT, dtype=torch.float64, device=data.device)
    step = max(1, min(2048, block_bytes // (64 * points.width)))
    for low in range(0, points.size, _TILE_ROWS):
        high = min(low + _TILE_ROWS, points.size)
        columns = _nearest_columns(points, low, high, data.dtype).flatten()
        rows = torch.arange(low, high, device=data.device).repeat_interleave(_KEPT)
        squares = []
        for start in range(0, len(rows), step):
            gap = data[rows[start : start + step]].double() - data[columns[start : start + step]].double()
            squares.append(torch.linalg.vecdot(gap, gap))
        kept[low:high] = torch.cat(squares).view(-1, _KEPT)
    return kept


def _nearest_columns(points: Centres, low: int, high: int, dtype: torch.dtype) -> Tensor:
    parts = []
    for start, scores, _ in _scores_of_others(points, low, high, dtype, 4 * _TILE_ROWS):
        top = scores.topk(min(_KEPT, scores.shape[1]), dim=1, sorted=False)
        parts.append((top.values, top.indices + start))
    values, columns = (torch.cat(tiles, 1) for tiles in zip(*parts, strict=True))
    return columns.gather(1, values.topk(_KEPT, dim=1, sorted=False).indices)


def _blocked_moments(points: Centres, h: float) -> Moments:
    """The averages of :func:`_moments` over all other rows, without a table."""
    means, variances = 0.0, 0.0
    dtype, device = points.raw.dtype, points.raw.device
    for low in range(0, points.size, _TILE_ROWS):
        high = min(low + _TILE_ROWS, points.size)
        total = torch.zeros(3, high - low, dtype=torch.float64, device=device)
        top = torch.full((high - low,), -math.inf, dtype=dtype, device=device)
        for _, scores, offsets in _scores_of_others(points, low, high, dtype, 2 * _TILE_ROWS):
            tile = scores.add_(offsets[:, None]).clamp_max_(0.0)
            new = torch.maximum(top, tile.amax(1))
            total *= ((top - new) / h**2).exp_().double()
            top = new
            weights = ((tile - top[:, None]) / h**2).exp_()
            square = tile.mul_(-2.0).masked_fill_(weights == 0, 0.0)
            total[0] += weights.sum(1)
            total[1] += weights.mul_(square).sum(1)
            total[2] += weights.mul_(square).sum(1)
        mean = total[1] / total[0]
        means += float(mean.sum())
        variances += float((total[2] / total[0] - mean.square()).sum())
    return means / points.size, variances / points.size


def _scores_of_others(
    points: Centres, low: int, high: int, dtype: torch.dtype, columns: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (first column, scores t_ij of rows low … high, −inf where i = j, offsets b_i of the rows) tile by tile."""
    rows, offsets = points.at(slice(low, high), dtype)
    for start in range(0, points.size, columns):
        stop = min(start + columns, points.size)
        block, offset = points.at(slice(start, stop), dtype)
        scores = torch.addmm(offset, rows, block.T)
        first = max(low, start)
        diagonal = torch.arange(first, max(first, min(high, stop)), device=scores.device)
        scores[diagonal - low, diagonal - start] = -math.inf
        yield start, scores, offsets
