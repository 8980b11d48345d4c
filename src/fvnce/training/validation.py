"""Validation: the objective on held-out rows, with noise of its own, the same at every epoch.

Latents are drawn from a stream of validation's own, so validating changes nothing in training, and two epochs are
compared at the same draws. A contrastive objective is evaluated on the whole set at once (see
``fvnce.objectives.evaluation``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..noise import draw_with_log_prob
from ..objectives import Batch, ContrastiveObjective
from ..objectives.evaluation import comparable, evaluate
from . import randomness
from .distributed import bounds
from .noise_sampler import noise_samples
from .step import Step, StepOutput

if TYPE_CHECKING:
    from .batches import Rows

#: Noise samples a validation set has at most.
MOST_NOISE = 10_000
_CHUNK = 2048


class Validation:
    """The criteria on held-out data.

    Args:
        rows: held-out data.
        log_noise: log p_n of every row, or None without noise.
        step: the objective.
        seed: of the run.
        rank: of this process.
        world: number of processes; each evaluates its part.
        seed_globals: whether the objective draws from the global generators, which are then seeded here.
    """

    def __init__(
        self,
        rows: Rows,
        log_noise: Tensor | None,
        step: Step,
        seed: int,
        rank: int,
        world: int,
        *,
        seed_globals: bool,
    ) -> None:
        self.seed, self.rank, self.step = seed, rank, step
        self.seed_globals = seed_globals
        self.total = len(rows)
        if self.total < world:
            raise ValueError(f"validation must have a row for each of the {world} processes, found {self.total}")
        self.rows = rows
        self.low, self.high = bounds(self.total, rank, world)
        self.log_noise = log_noise
        self.noise: tuple[Tensor, Tensor] | None = None
        if log_noise is not None:
            objective: Any = step.objective
            wanted = max(2, min(round(noise_samples(objective) * self.total), MOST_NOISE))
            low, high = bounds(max(wanted, world), rank, world)
            drawn = draw_with_log_prob(
                objective.noise, high - low, randomness.generator(seed, randomness.HELD_OUT_NOISE, rank)
            )
            self.noise = (drawn[0].to(rows.device, rows.dtype), drawn[1].to(rows.device))

    def __call__(
        self,
        autocast: Callable[[], AbstractContextManager[Any]],
        total_of: Callable[[Tensor], Tensor],
    ) -> dict[str, float]:
        """Criteria by name, the same on every process.

        Args:
            autocast: the context in which networks run.
            total_of: the sum over processes of a tensor.
        """
        objective: nn.Module = self.step.objective
        was_training = objective.training
        objective.eval()
        try:
            with randomness.preserve_rng_state(self.rows.device, self.seed_globals), torch.no_grad(), autocast():
                if self.seed_globals:
                    randomness.seed_everything(self.seed, randomness.VALIDATION, self.rank)
                if isinstance(objective, ContrastiveObjective) and not getattr(objective, "variance_reduced", False):
                    return self._contrastive(objective)
                return self._mean(total_of)
        finally:
            objective.train(was_training)

    def _contrastive(self, objective: ContrastiveObjective) -> dict[str, float]:
        assert self.noise is not None
        x, log_noise = self.noise
        noise = zip(torch.split(x, _CHUNK), torch.split(log_noise, _CHUNK), strict=True)
        data = ((part, density) for part, density in self._chunks() if density is not None)
        terms = evaluate(objective, data, noise)
        found = {"loss": float(terms.loss), **{name: float(value) for name, value in terms.statistics.items()}}
        return found | comparable(objective, terms)

    def _mean(self, total_of: Callable[[Tensor], Tensor]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for x, density in self._chunks():
            batch = Batch(x, log_noise_x=density)
            if self.noise is not None:
                count = min(len(x), len(self.noise[0]))
                batch.x_noise, batch.log_noise_noise = self.noise[0][:count], self.noise[1][:count]
            output = StepOutput(batch)
            named = {"loss": float(self.step(output))}
            if output.terms is not None:
                named |= {name: float(value) for name, value in output.terms.statistics.items()}
            for name, value in named.items():
                sums[name] = sums.get(name, 0.0) + value * len(x)
        names = sorted(sums)
        totals = total_of(torch.tensor([sums[name] for name in names], dtype=torch.float64))
        means = {name: float(value) / self.total for name, value in zip(names, totals, strict=True)}
        return {"loss": means.pop("loss", math.nan), **means}

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for low in range(self.low, self.high, _CHUNK):
            high = min(low + _CHUNK, self.high)
            yield self.rows.slice(low, high), None if self.log_noise is None else self.log_noise[low:high]
