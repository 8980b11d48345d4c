"""log p_n of every row, once: each process evaluates its part and all share the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..noise import log_prob_of_rows
from ..objectives.batch import BatchShare, gather
from .batches import Rows, bounds

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_ROWS_AT_ONCE = 8192


def tabulate(
    noise: Distribution,
    rows: Rows,
    fabric: Fabric,
    name: str,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """log p_n of all rows, shape (n,), on every process.

    Rows are read a block at a time, so that a memory map need not fit into memory.

    Raises:
        ValueError: if the noise does not cover a row; the row is named.
    """
    low, high = bounds(len(rows), fabric.global_rank, fabric.world_size)
    parts = []
    for start in range(low, high, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, high)
        try:
            parts.append(log_prob_of_rows(noise, rows.slice(start, stop)))
        except ValueError as error:
            error.add_note(f"X begins at row {start} of {name}")
            raise
        if progress is not None:
            progress(stop - low, high - low)
    return gather(torch.cat(parts), BatchShare())
