r"""Kernel centres in the units of the kernel, served block by block.

With shift m (the mean of the centres) and bandwidth h, everything below works with

    y = (x − m) / h,   c'_j = (c_j − m) / h,   b_j = log w_j − |c'_j|² / 2,

so that log w_j − |x − c_j|²/(2h²) = (y · c'_j + b_j) − |y|²/2: one matrix product gives the scores of a whole
block. Subtracting the mean shortens both vectors, and the product's rounding error is proportional to their
lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

LIMIT = 1e15
"""Longest admitted distance in bandwidths: its square is still a float32."""

_CACHE_BYTES = 64 * 2**20
_ROWS_AT_ONCE = 1024


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
