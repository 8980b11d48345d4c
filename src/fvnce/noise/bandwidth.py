r"""Bandwidth selection for kernel densities: Scott, Silverman, leave-one-out likelihood.

Rules of thumb, one bandwidth per column with standard deviation s_k:

    scott       h_k = s_k n^(−1/(D+4))
    silverman   h_k = s_k (4 / ((D+2) n))^(1/(D+4))

``loo``: one bandwidth for all columns, which maximizes the leave-one-out log likelihood

    f(h) = Σ_i log Σ_{j≠i} exp(−d_ij²/(2h²)) − n D log h.

A stationary point satisfies h² = mean_i ⟨d_ij²⟩/D, where ⟨·⟩ weights neighbors by exp(−d²/(2h²)). The weights decrease
with distance, so every stationary point lies between the mean nearest and the mean overall squared distance, which
gives a certified bracket. For large tables, about 1,000 rows i are left out in turn, with all rows j as neighbors; this
changes h by 1 or 2 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .. import _validation

#: Number of rows that ``"loo"`` leaves out in turn, evenly spaced.
MOST_LEFT_OUT = 1024
RELATIVE_CHANGE = 1e-6
#: Working memory of a block of distances, and the size up to which all distances are kept between steps of the search.
BLOCK_BYTES, KEPT_BYTES = 64 * 2**20, 512 * 2**20


def select_bandwidth(X: Tensor, rule: str, *, floor: float | None = None) -> Tensor:
    """Select the bandwidth of a Gaussian kernel density on the rows of X.

    Args:
        X: shape (n, D), or (n,) + event_shape with D entries each, n >= 2.
        rule: ``"scott"`` or ``"silverman"`` for one bandwidth per column, or ``"loo"`` for a scalar.
        floor: for Scott and Silverman, raise the deviation of each column to at least this fraction of the root mean
            square deviation of all columns. Without it a constant column is an error, as its bandwidth would be 0.

    Returns:
        The bandwidth, of the shape of a row, or a scalar for ``"loo"``.

    Raises:
        ValueError: if a column is constant and ``floor`` is not given, or if ``rule="loo"`` and every row has an exact
            duplicate, which makes the likelihood unbounded as h decreases.

    >>> X = torch.randn(500, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> [round(select_bandwidth(X, rule).item(), 2) for rule in ("scott", "silverman", "loo")]
    [0.29, 0.3, 0.28]
    """
    _validation.choice("bandwidth", rule, ("scott", "silverman", "loo"))
    rows = _validation.samples("X", X, rows=2)
    data = rows.flatten(1)
    if rule == "loo":
        if floor is not None:
            raise ValueError(f"floor applies to 'scott' and 'silverman' only, found floor={floor!r} with 'loo'")
        return torch.tensor(_leave_one_out(data), dtype=data.dtype, device=data.device)
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


def _leave_one_out(data: Tensor) -> float:
    n, width = data.shape
    points = data.double() - data.double().mean(0)
    chosen = torch.arange(0, n, -(-n // MOST_LEFT_OUT), device=data.device)
    step = max(1, BLOCK_BYTES // (32 * n))

    def distances() -> Iterator[Tensor]:
        """Yield squared distances of chosen rows to all rows, infinite to themselves."""
        for rows in chosen.split(step):
            squares = torch.cdist(points[rows], points).square_()
            yield squares.scatter_(1, rows[:, None], math.inf)

    parts = list(distances()) if 8 * n * len(chosen) <= KEPT_BYTES else None

    def moments(h: float) -> tuple[float, float]:
        """Return the weighted mean and variance of squared distances, averaged over rows."""
        means, variances = 0.0, 0.0
        for squares in parts or distances():
            weights = torch.softmax(squares * (-0.5 / h**2), dim=1)
            squares = squares.masked_fill(squares == math.inf, 0.0)
            mean = (weights * squares).sum(1)
            means += float(mean.sum())
            variances += float((weights * (squares - mean[:, None]).square_()).sum())
        return means / len(chosen), variances / len(chosen)

    low = sum(float(squares.amin(1).sum()) for squares in parts or distances()) / len(chosen) / width
    high = float(points[chosen].square().sum(1).mean() + points.square().sum(1).mean()) * n / (n - 1) / width
    if not low > 1e-14 * high:
        raise ValueError(
            "X must hold a row without an exact duplicate for bandwidth='loo', found a duplicate of every row; "
            "drop duplicates or pass a number"
        )
    return _root(moments, width, 0.5 * math.log(low) - 1e-6, 0.5 * math.log(high) + 1e-6)


def _root(moments: Callable[[float], tuple[float, float]], width: int, low: float, high: float) -> float:
    """Find the zero of f'(log h)/n = ⟨d²⟩/h² − D by Newton's method within a shrinking bracket."""
    at = 0.5 * (low + high)
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
        if abs(new - at) < RELATIVE_CHANGE:
            return math.exp(new)
        at = new
    return math.exp(at)
