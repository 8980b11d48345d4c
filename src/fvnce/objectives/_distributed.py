r"""Sums over the samples of all processes.

Data-parallel training averages the gradients of W processes. Process k holds n_k of the N samples of a step, so

    mean over all N  =  average over processes of  (W n_k / N) · (mean over its own n_k),

and a mean becomes exact by that weight, which differs from 1 only where the processes hold unequal numbers. A
log-mean-exp is no such average: its values are gathered. Every process then computes the same number from all of them
and passes back the gradient of its own part, W times, since averaging divides by W.

None of this happens outside of :func:`together`: an objective evaluated by one process alone waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass
class Shares:
    """W n_k / N of this process, for data and for noise.

    Attributes:
        equal: whether all processes hold equally many samples.
        used: set once an objective has made its sums exact itself.
    """

    data: float = 1.0
    noise: float = 1.0
    equal: bool = False
    used: bool = False


_shares: Shares | None = None


@contextmanager
def together(shares: Shares) -> Iterator[None]:
    """Inside, all processes evaluate the same objective, each on its part of one batch."""
    global _shares
    before, _shares = _shares, shares
    try:
        yield
    finally:
        _shares = before


def mean_over_data(values: Tensor) -> Tensor:
    """The mean over data samples, weighted so that averaging over processes gives that of all."""
    if _shares is None:
        return values.mean()
    _shares.used = True
    return values.mean() * _shares.data


def mean_over_noise(values: Tensor) -> Tensor:
    """The mean over noise samples, weighted so that averaging over processes gives that of all."""
    if _shares is None:
        return values.mean()
    _shares.used = True
    return values.mean() * _shares.noise


def gather(values: Tensor) -> Tensor:
    """The values of all processes, one after the other along the first dimension; with one process, the values."""
    if _shares is None or not dist.is_initialized():
        return values
    _shares.used = True
    result: Tensor = _Gather.apply(values, _shares.equal)  # type: ignore[no-untyped-call]
    return result


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, equal: bool) -> Tensor:
        world, rank = dist.get_world_size(), dist.get_rank()
        lengths = [len(values)] * world
        if not equal:
            counts = [torch.zeros(1, dtype=torch.int64, device=values.device) for _ in range(world)]
            dist.all_gather(counts, torch.tensor([len(values)], device=values.device))
            lengths = [int(count) for count in counts]
        # Backends want equal shapes: the shorter parts are padded and the padding cut off again.
        longest = max(lengths)
        padded = values.new_zeros((longest, *values.shape[1:]))
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(parts, padded)
        ctx.world, ctx.low = world, sum(lengths[:rank])
        ctx.length = len(values)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return ctx.world * gradient[ctx.low : ctx.low + ctx.length], None
