"""Batch shapes of distributions that have one set of parameters: a larger batch repeats the same law."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

Noise = TypeVar("Noise", bound=Distribution)


def expanded(noise: Noise, batch_shape: Iterable[int]) -> Noise:
    """The same noise with another batch shape; tensors are shared."""
    new = copy.copy(noise)
    Distribution.__init__(new, torch.Size(batch_shape), noise.event_shape, validate_args=False)
    return new


def over_batch(noise: Distribution, x: Tensor) -> Tensor:
    """Points broadcast against batch_shape + event_shape."""
    if not noise.batch_shape:
        return x
    return x + x.new_zeros(()).expand(noise.batch_shape + noise.event_shape)
