"""Where a step's noise comes from: drawn afresh where that is cheap, else from a pool; and log p_n of all data, once.

Fresh noise is best and costs a density evaluation for every row. A pool is used where the rows of a step, drawn afresh,
would cost more than a fifth of the step, counted in floating-point operations. A kernel density with 60,000 centres
always does; a Gaussian never does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..noise import NoisePool, draw_with_log_prob, log_prob_of_rows, row_flops
from ..objectives.base import BatchShare, gather
from .distributed import bounds

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .batches import Rows

#: Rows of a pool, unless a step needs more than an eighth of it.
POOL_ROWS = 8192
#: Share of the time that fresh noise may cost.
FRESH_SHARE = 0.2
#: Share of the time that the renewal of a pool may cost.
RENEWAL_SHARE = 0.08
_ROWS_AT_ONCE = 8192


class NoiseSampler:
    """Noise for every step: fresh draws, or those of a pool, which is renewed only while the noise teaches something.

    Renewal keeps a flexible model from learning the pool by heart. Samples whose gradient is exactly zero cannot be
    learnt by heart.
    """

    def __init__(self, noise: Distribution, generator: torch.Generator, pool: NoisePool | None = None) -> None:
        self.noise, self.generator, self.pool = noise, generator, pool

    def batch(self, n: int, *, live: bool = True) -> tuple[Tensor, Tensor]:
        """n samples and their log densities; ``live`` tells whether any of the last step's had a gradient."""
        if self.pool is None:
            return draw_with_log_prob(self.noise, n, self.generator)
        return self.pool.batch(n, renew=live)

    def state_dict(self) -> dict[str, Any]:
        """The generator's state, and the rows of the pool."""
        return {"generator": self.generator.get_state()} if self.pool is None else dict(self.pool.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        if self.pool is None:
            self.generator.set_state(state["generator"].cpu())
        else:
            self.pool.load_state_dict(state)


def make_noise_sampler(
    noise: Distribution,
    rows: int,
    step_flops: float,
    generator: torch.Generator,
    *,
    pool: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NoiseSampler:
    """What gives ``rows`` noise samples a step.

    Args:
        noise: p_n.
        rows: samples that a step takes.
        step_flops: floating-point operations of a step.
        generator: seeds everything.
        pool: rows of the pool, 0 for fresh noise, None to choose.
        progress: called with (rows drawn, rows in all) while a pool is filled.
    """
    if pool is None:
        cost = row_flops(noise)
        fresh = cost is not None and cost * rows <= FRESH_SHARE / (1 - FRESH_SHARE) * step_flops
        pool = 0 if fresh else max(POOL_ROWS, 8 * rows)
    if pool == 0:
        return NoiseSampler(noise, generator)
    if pool < rows:
        raise ValueError(f"noise_pool must hold the {rows} noise samples of a step, found {pool}")
    made = NoisePool(noise, pool, generator, refresh_share=RENEWAL_SHARE, step_flops=step_flops, progress=progress)
    return NoiseSampler(noise, generator, made)


def tabulate(
    noise: Distribution, rows: Rows, fabric: Fabric, name: str, progress: Callable[[int, int], None] | None = None
) -> Tensor:
    """log p_n of all rows, shape (n,): each process evaluates its part, and all share the table.

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
    return gather(torch.cat(parts), BatchShare() if fabric.world_size > 1 else None)


def noise_samples(objective: object) -> float:
    """Noise samples that an objective wants for each row of data; one of another make may know no more than its ν."""
    return float(getattr(objective, "noise_samples", getattr(objective, "noise_ratio", 1.0)))
