"""Where a step's noise comes from: drawn afresh where that is cheap, else from a pool.

Fresh noise is best and costs a density evaluation for every row. A pool is used where the rows of a step, drawn afresh,
would cost more than a fifth of the step, counted in floating-point operations. A kernel density with 60,000 centres
always does; a Gaussian never does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..noise import NoisePool, draw_with_log_prob, row_flops

#: Rows of a pool, unless a step needs more than an eighth of it.
POOL_ROWS = 8192
#: Share of the time that fresh noise, or the renewal of a pool, may cost.
SHARE = 0.2


class FreshNoise:
    """New draws for every step."""

    def __init__(self, noise: Distribution, generator: torch.Generator) -> None:
        self.noise = noise
        self.generator = generator

    def batch(self, n: int) -> tuple[Tensor, Tensor]:
        """n samples and their log densities."""
        return draw_with_log_prob(self.noise, n, self.generator)

    def state_dict(self) -> dict[str, Any]:
        """The generator's state."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.generator.set_state(state["generator"].cpu())


def make_supply(
    noise: Distribution,
    rows: int,
    step_flops: float,
    generator: torch.Generator,
    *,
    pool: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FreshNoise | NoisePool:
    """The supply of ``rows`` noise samples a step.

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
        fresh = cost is not None and cost * rows <= SHARE / (1 - SHARE) * step_flops
        pool = 0 if fresh else max(POOL_ROWS, 8 * rows)
    if pool == 0:
        return FreshNoise(noise, generator)
    if pool < rows:
        raise ValueError(f"noise_pool must hold the {rows} noise samples of a step, found {pool}")
    return NoisePool(noise, pool, generator, refresh_share=SHARE, step_flops=step_flops, progress=progress)
