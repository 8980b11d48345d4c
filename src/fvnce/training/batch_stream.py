"""What a step is fed: rows of data, noise samples, and the log densities of both."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..noise import log_prob_or_minus_inf
from ..objectives import BatchShare
from . import randomness
from .batches import Batch, IndexBatches, LoaderBatches, Rows, bounds
from .step import Inputs, Step
from .noise_sampler import make_supply
from .tabulate import tabulate
from .validation import Validation, noise_samples

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .progress import Quiet


class Feed:
    """The inputs of every step, on this process.

    Args:
        data: rows or a DataLoader.
        step: the objective.
        fabric: devices and processes.
        seed: of the run.
        batch_size: rows of a step on each process.
        noise_pool: rows of the pool, 0 for fresh noise, None to choose.
        progress: shows the tabulation and the filling of the pool.
        notes: how long these took is noted here.
    """

    def __init__(
        self,
        data: object,
        step: Step,
        fabric: Fabric,
        seed: int,
        *,
        batch_size: int,
        noise_pool: int | None,
        progress: Quiet,
        notes: dict[str, Any],
    ) -> None:
        self.step, self.fabric, self.seed = step, fabric, seed
        self.rank, self.world = fabric.global_rank, fabric.world_size
        self.device: torch.device = fabric.device
        objective: Any = step.objective
        floating = (p.dtype for p in objective.parameters() if p.is_floating_point())
        self.dtype = next(floating, torch.get_default_dtype())
        self.noise = objective.noise if step.takes_noise else None
        self.noise_samples = noise_samples(objective)
        self.progress, self.notes = progress, notes
        self.fingerprint = "DataLoader"
        self.log_noise: Tensor | None = None
        self.batches: IndexBatches | LoaderBatches
        if isinstance(data, DataLoader):
            loader: Any = fabric.setup_dataloaders(data, move_to_device=False) if self.world > 1 else data
            self.batches = LoaderBatches(loader, self.dtype, self.device, world=self.world)
            wide = (data.batch_size or batch_size) * self.world
        else:
            rows = Rows(data, self.dtype)
            self.fingerprint = rows.fingerprint()
            self.log_noise = self._tabulated(rows, "data")
            self.batches = IndexBatches(rows.to(self.device), batch_size, seed, rank=self.rank, world=self.world)
            wide = min(batch_size * self.world, len(rows))
        self.supply = None if self.noise is None else self._supply(wide, noise_pool)

    @property
    def steps(self) -> int | None:
        """Steps in an epoch, or None for a stream of unknown length."""
        return self.batches.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Inputs, int]]:
        """(inputs, rows over all processes) of the steps ``start``, ``start`` + 1, … of an epoch."""
        for batch in self.batches.epoch(epoch, start):
            yield self._inputs(batch), batch.total

    def held_out(self, validation: object) -> Validation:
        """The validation on these rows."""
        if isinstance(validation, DataLoader):
            raise TypeError("validation must be a tensor, an array or a memory map, found DataLoader")
        rows = Rows(validation, self.dtype, name="validation")
        table = self._tabulated(rows, "validation")
        return Validation(rows.to(self.device), table, self.step, self.seed, self.rank, self.world)

    def state_dict(self) -> dict[str, Any]:
        """What the next step's inputs depend on, beside (seed, epoch, step)."""
        supply = None if self.supply is None else self.supply.state_dict()
        return {"batches": self.batches.state_dict(), "supply": supply}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.batches.load_state_dict(state["batches"])
        if self.supply is not None:
            self.supply.load_state_dict(state["supply"])

    def _inputs(self, batch: Batch) -> Inputs:
        inputs = Inputs(batch.x)
        if self.supply is not None:
            if self.log_noise is not None and batch.index is not None:
                inputs.log_noise_x = self.log_noise.index_select(0, batch.index.to(self.log_noise.device))
            else:
                with torch.no_grad():
                    inputs.log_noise_x = log_prob_or_minus_inf(self.noise, batch.x)  # type: ignore[arg-type]
            share = getattr(self.step.objective, "live_share", None)
            live = share is None or float(share) > 0
            x_noise, log_noise = self.supply.batch(self._noise_rows(batch.total)[1], live=live)
            inputs.x_noise = x_noise.to(self.device, self.dtype, non_blocking=True)
            inputs.log_noise_noise = log_noise.to(self.device, non_blocking=True)
        if self.world > 1:
            inputs.share = self._share(batch)
        return inputs

    def _share(self, batch: Batch) -> BatchShare:
        data, equal = len(batch.x) * self.world / batch.total, batch.total % self.world == 0
        if self.supply is None:
            return BatchShare(data, equal=equal)
        wide, own = self._noise_rows(batch.total)
        return BatchShare(data, own * self.world / wide, equal and wide % self.world == 0)

    def _noise_rows(self, data_rows: int) -> tuple[int, int]:
        """Noise samples that go with so many rows of data: of all processes, and of this one."""
        wide = max(self.world, round(self.noise_samples * data_rows))
        low, high = bounds(wide, self.rank, self.world)
        return wide, high - low

    def _tabulated(self, rows: Rows, name: str) -> Tensor | None:
        if self.noise is None:
            return None
        begun = time.perf_counter()
        with self.progress.stage(f"log p_n of the {name}") as report:
            table = tabulate(self.noise, rows, self.fabric, name, report)
        self.notes[f"seconds_tabulating_{name}"] = time.perf_counter() - begun
        return table.to(self.device)

    def _supply(self, wide: int, pool: int | None) -> Any:
        rows = self._noise_rows(wide)[1]
        parameters = sum(p.numel() for p in self.step.parameters())
        flops = 6.0 * parameters * (math.ceil(wide / self.world) + rows)
        begun = time.perf_counter()
        generator = randomness.generator(self.seed, randomness.NOISE, self.rank)
        with self.progress.stage("pool of noise") as report:
            supply = make_supply(self.noise, rows, flops, generator, pool=pool, progress=report)  # type: ignore[arg-type]
        self.notes["seconds_filling_pool"] = time.perf_counter() - begun
        return supply
