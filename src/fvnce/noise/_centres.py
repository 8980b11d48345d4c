r"""Kernel centres in the units of the kernel, served block by block, and which of them can matter to a point.

With shift m (the mean of the centres) and bandwidth h, everything below works with

    y = (x − m) / h,   c'_j = (c_j − m) / h,   b_j = log w_j − |c'_j|² / 2,

so that log w_j − |x − c_j|²/(2h²) = (y · c'_j + b_j) − |y|²/2: one matrix product gives the scores of a whole
block. Subtracting the mean shortens both vectors, and the product's rounding error is proportional to their
lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

LIMIT = 1e15
"""Longest admitted distance in bandwidths: its square is still a float32."""
AXES = 128
"""Coordinates r of a sketch that are kept as they are."""
TILE_COLUMNS = 512
"""Centres whose scores are computed at once."""

_CACHE_BYTES = 64 * 2**20
_ROWS_AT_ONCE = 1024
_SAMPLE = 4096


class Centres:
    """The centres of one kernel density: blocks, offsets b_j, reach max |c'_j|, log height of the kernel.

    Args:
        raw: centres, shape (n, D); kept by reference.
        bandwidth: scalar or shape (D,).
        log_weights: float64, shape (n,), or None for equal weights (their log n is left out of b_j).
    """

    def __init__(self, raw: Tensor, bandwidth: Tensor, log_weights: Tensor | None) -> None:
        self.raw = raw
        self.bandwidth = bandwidth.double()
        self.inverse = 1.0 / self.bandwidth
        self.shift = _mean(raw)
        log_width = self.bandwidth.log().expand(raw.shape[1]).sum()
        self.log_height = float(-log_width) - 0.5 * raw.shape[1] * math.log(2 * math.pi)
        half = torch.cat([0.5 * part.square().sum(1) for part in self._scaled_parts()])
        self.reach = float((2.0 * half.max()).sqrt())
        if not self.reach <= LIMIT:
            raise ValueError(
                "centres must lie within 1e15 bandwidths of their mean, "
                f"found one at {self.reach:.3g} bandwidths; use a larger bandwidth"
            )
        self.log_weights = log_weights
        self.offset = -half if log_weights is None else log_weights - half
        self._offsets: dict[torch.dtype, Tensor] = {}
        self._scaled: dict[torch.dtype, Tensor] = {}

    @property
    def size(self) -> int:
        """Number of centres."""
        return self.raw.shape[0]

    @property
    def width(self) -> int:
        """Number of dimensions."""
        return self.raw.shape[1]

    def scaled(self, x: Tensor) -> Tensor:
        """Points (k, D) in kernel units, (x − m)/h in float64."""
        # Divided by h: the rounding of 1/h would be the same in every dimension, and not average out.
        return (x.double() - self.shift).div_(self.bandwidth)

    def block(self, low: int, high: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(c'_j, b_j) for low <= j < high (as far as there are), shapes (k, D) and (k,)."""
        offset = self._offsets.get(dtype)
        if offset is None:
            offset = self._offsets[dtype] = self.offset.to(dtype)
        return self._block(low, high, dtype), offset[low:high]

    def log_weight(self, columns: Tensor) -> Tensor:
        """log w_j of some centres, zero where weights are equal."""
        if self.log_weights is None:
            return torch.zeros(len(columns), dtype=torch.float64, device=self.raw.device)
        return self.log_weights[columns]

    def scores(self, y: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """t_ij = y_i · c'_j + b_j of listed pairs, in the dtype of y, shape (pairs,)."""
        parts = [y.new_empty(0)]
        for low in range(0, len(rows), 2048):
            i, j = rows[low : low + 2048], columns[low : low + 2048]
            parts.append(torch.linalg.vecdot(y[i], self._picked(j, y.dtype)).add_(self.offset[j].to(y.dtype)))
        return torch.cat(parts)

    def _picked(self, columns: Tensor, dtype: torch.dtype) -> Tensor:
        whole = self._scaled.get(dtype)
        if whole is not None:
            return whole[columns]
        part = self.raw[columns].to(dtype) - self.shift.to(dtype)
        return part.mul_(self.inverse.to(dtype))

    def _block(self, low: int, high: int, dtype: torch.dtype) -> Tensor:
        whole = self._scaled.get(dtype)
        if whole is not None:
            return whole[low:high]
        # A second copy of many centres would dwarf every other use of memory; a few are kept ready.
        if self.raw.numel() * dtype.itemsize <= _CACHE_BYTES:
            whole = self._scaled[dtype] = torch.cat([part.to(dtype) for part in self._scaled_parts()])
            return whole[low:high]
        part = self.raw[low:high].to(dtype) - self.shift.to(dtype)
        return part.mul_(self.inverse.to(dtype))

    def _scaled_parts(self) -> Iterator[Tensor]:
        for low in range(0, self.size, _ROWS_AT_ONCE):
            yield self.scaled(self.raw[low : low + _ROWS_AT_ONCE])


def _mean(raw: Tensor) -> Tensor:
    total = torch.zeros(raw.shape[1], dtype=torch.float64, device=raw.device)
    for low in range(0, raw.shape[0], _ROWS_AT_ONCE):
        total += raw[low : low + _ROWS_AT_ONCE].double().sum(0)
    return total / raw.shape[0]


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


class Sketch:
    r"""Which centres can matter to a point, certified from a few coordinates.

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
        width = centres.width
        inner = [edge for edge in (AXES * 3 // 2, AXES * 2, AXES * 3) if edge < width]
        self._edges = [AXES, *inner, width]
        self.reduced = torch.empty(centres.size, AXES + len(self._edges) - 1, device=centres.raw.device)
        for low in range(0, centres.size, 2 * _ROWS_AT_ONCE):
            high = min(low + 2 * _ROWS_AT_ONCE, centres.size)
            self.reduced[low:high] = self.reduce(centres.block(low, high, torch.float32)[0])

    @staticmethod
    def slack(centres: Centres, half: Tensor) -> Tensor:
        """Rounding error of the bound, ten times the worst seen where it is tight (y parallel to c')."""
        share = 1.5e-7 * math.sqrt(centres.width)
        return share * (2.0 * half).sqrt() * centres.reach + 1e-7 * centres.reach**2

    def reduce(self, y: Tensor) -> Tensor:
        """Reduced vectors (q, r + G) of points (q, D) in kernel units."""
        rotated = y @ self.axes
        rest = [
            rotated[:, low:high].norm(dim=1, keepdim=True)
            for low, high in zip(self._edges[:-1], self._edges[1:], strict=True)
        ]
        return torch.cat([rotated[:, :AXES], *rest], dim=1)

    def candidates(
        self, centres: Centres, y: Tensor, margin: Tensor, error: Tensor, limit: int, own: Tensor | None
    ) -> tuple[Pairs, Tensor]:
        """Pairs (row, centre) that contain every score within ``margin`` of the row's best.

        Args:
            centres: where full scores come from.
            y: points in kernel units, float32, shape (q, D).
            margin: shape (q,); includes the rounding errors of both sides.
            error: rounding error of one full score, shape (q,).
            limit: rows with more candidates than this are given up.
            own: a good centre of each row, shape (q,), if one is known.

        Returns:
            The pairs, and a mask (q,) of rows given up.
        """
        reduced = self.reduce(y)
        every = torch.arange(len(y), device=y.device)
        known = y.new_full((len(y),), -math.inf)
        if own is not None:
            known = centres.scores(y, every, own) - error
        gathering = Gathering(y, limit)
        tile = y.new_empty(len(y) * min(TILE_COLUMNS, centres.size))
        offset = centres.offset.float()
        for low in range(0, centres.size, TILE_COLUMNS):
            high = min(low + TILE_COLUMNS, centres.size)
            bounds = tile[: len(y) * (high - low)].view(len(y), high - low)
            torch.addmm(offset[low:high], reduced, self.reduced[low:high].T, out=bounds)
            best = bounds.amax(1)
            hit = ((best >= known - margin) & (gathering.found <= limit)).nonzero()[:, 0]
            if not len(hit):
                if bool((gathering.found > limit).all()):
                    break
                continue
            part = bounds[hit]
            if own is None:
                # The most promising centre of the tile raises what is known of the row's best score.
                promising = part.argmax(1) + low
                known[hit] = torch.maximum(known[hit], centres.scores(y, hit, promising) - error[hit])
            gathering.add(hit, part, (known - margin)[hit], low)
        return gathering.above(known - margin)
