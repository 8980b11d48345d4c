r"""A batch: rows of data, noise samples, the log-densities of both, and which part of a larger batch it is.

Data-parallel training averages the gradients of W processes. Process k holds n_k of the N samples of a step, so

    mean over all N  =  average over processes of  (W n_k / N) · (mean over its own n_k),

and a mean becomes exact by that weight, which differs from 1 only where the processes hold unequal numbers. A
log-mean-exp is no such average: its values are gathered. Every process then computes the same number from all of them
and passes back the gradient of its own part, W times, since averaging divides by W.

None of this happens to a batch without a :class:`BatchShare`: whoever evaluates it alone waits for nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class BatchShare:
    """This process holds a part of a batch that all processes evaluate together, with the same objective.

    Attributes:
        data: W n_k / N of the data samples.
        noise: W n_k / N of the noise samples.
        equal: whether all processes hold equally many of both, so that none need tell the others how many.

    >>> BatchShare(data=2 * 30 / 50, noise=2 * 30 / 50)  # 30 of the 50 rows that two processes hold
    BatchShare(data=1.2, noise=1.2, equal=False)
    """

    data: float = 1.0
    noise: float = 1.0
    equal: bool = False


@dataclass
class Batch:
    """What an objective is evaluated on.

    Attributes:
        x: rows of data, shape (B, …).
        x_noise: noise samples, shape (N, …); None lets the objective draw them.
        log_noise_x: log p_n of the data, shape (B,); None lets the objective evaluate it.
        log_noise_noise: log p_n of the noise samples, shape (N,); None lets the objective evaluate it.
        share: the part that this is of a batch over several processes, or None for a batch of its own.

    >>> Batch(torch.zeros(3, 2)).x_noise is None
    True
    """

    x: Tensor
    x_noise: Tensor | None = None
    log_noise_x: Tensor | None = None
    log_noise_noise: Tensor | None = None
    share: BatchShare | None = None


def mean_over_data(values: Tensor, share: BatchShare | None) -> Tensor:
    """The mean over data samples, weighted so that averaging over processes gives that of all.

    >>> mean_over_data(torch.tensor([1.0, 3.0]), BatchShare(data=0.5))
    tensor(1.)
    """
    return values.mean() if share is None else values.mean() * share.data


def mean_over_noise(values: Tensor, share: BatchShare | None) -> Tensor:
    """The mean over noise samples, weighted so that averaging over processes gives that of all."""
    return values.mean() if share is None else values.mean() * share.noise


def gather(values: Tensor, share: BatchShare | None) -> Tensor:
    """The values of all processes, one after the other along the first dimension; with one process, the values."""
    if share is None or not dist.is_initialized():
        return values
    result: Tensor = _Gather.apply(values, share.equal)  # type: ignore[no-untyped-call]
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
