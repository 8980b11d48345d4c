"""Every check of a user's input, and the wording of its error.

An error names the argument, what it must be, and what was found.
"""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor


def number(
    name: str,
    value: object,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
) -> float:
    """A finite real number in [low, high], or in (low, high] with ``open_low``.

    >>> number("alpha", 0.5, low=0, high=1)
    0.5
    >>> number("alpha", 2, low=0, high=1)
    Traceback (most recent call last):
    ValueError: alpha must be a number in [0, 1], found 2
    """
    wanted = f"{name} must be {_interval(low, high, open_low)}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{wanted}, found {value!r} of type {type(value).__name__}")
    found = float(value)
    below = found <= low if open_low else found < low
    if not math.isfinite(found) or below or found > high:
        raise ValueError(f"{wanted}, found {value!r}")
    return found


def _interval(low: float, high: float, open_low: bool) -> str:
    if low == -math.inf and high == math.inf:
        return "a finite number"
    if high == math.inf:
        return f"a finite number {'>' if open_low else '>='} {low:g}"
    if low == -math.inf:
        return f"a finite number <= {high:g}"
    return f"a number in {'(' if open_low else '['}{low:g}, {high:g}]"


def floating(name: str, value: object) -> Tensor:
    """A tensor of floating dtype, half precision upcast to float32.

    >>> floating("delta", torch.zeros(2, dtype=torch.int64))
    Traceback (most recent call last):
    TypeError: delta must be a floating-point tensor, found dtype torch.int64; convert it with .float()
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, found {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(
            f"{name} must be a floating-point tensor, found dtype {value.dtype}; convert it with .float()"
        )
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


def outcome(value: object) -> int:
    """An outcome of the classification: 1 for data, 0 for noise.

    >>> outcome(2)
    Traceback (most recent call last):
    ValueError: outcome must be 1 (data) or 0 (noise), found 2
    """
    if value == 1:
        return 1
    if value == 0:
        return 0
    raise ValueError(f"outcome must be 1 (data) or 0 (noise), found {value!r}")
