"""What a log-mean-exp over all processes needs."""

from __future__ import annotations

from torch import Tensor


def gather(values: Tensor) -> Tensor:
    """The values of all processes, one after the other; with one process, the values."""
    return values
