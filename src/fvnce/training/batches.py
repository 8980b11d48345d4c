"""Batches: rows of data by index or from a DataLoader, with noise samples and the log-densities of both.

Data in memory live on the device, and a batch is ``data[index]`` with a piece of the epoch's permutation. A
memory-mapped array stays on the disk, and a batch reads only its own rows. log p_n of all rows is tabulated once.

With W processes the batch of all of them is a piece of W·b rows of the one permutation, of which each takes an equal
part, give or take a row at the end of an epoch. A remainder smaller than W rows is left out of that epoch, since every
process must have a row.

Fresh noise is best, and costs a density evaluation for every row. A pool is used where the noise of a step, drawn
afresh, would cost more than a fifth of the step, counted in floating-point operations: always for a kernel density
with 60,000 centers, never for a Gaussian. A pool is renewed only while its samples have a gradient: a model can
memorize a pool that never changes, but not samples whose gradient is exactly zero.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils.data import DataLoader, TensorDataset

from .. import _random, _validation
from ..noise import NoisePool, draw_with_log_prob, log_prob_of_rows, log_prob_or_minus_inf, row_flops
from ..objectives import Batch, BatchPart
from ..objectives.batch import gather
from .budget import is_automatic
from .callbacks import Progress
from .ddp import bounds

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Rows of a pool, unless a step needs more than an eighth of it.
POOL_ROWS = 8192
#: Fraction of the time that fresh noise may cost.
FRESH_FRACTION = 0.2
#: Fraction of the time that the renewal of a pool may cost.
RENEWAL_FRACTION = 0.08
_ROWS_AT_ONCE = 8192

#: Steps whose rows are taken together, because a call costs more than a small row, and the most numbers in them.
STEPS_AHEAD, NUMBERS_AHEAD = 16, 2**18

#: Rows of a step on this process, their context, their log p_n (None if they come from a DataLoader), and how many rows
#: all processes have.
_Drawn = tuple[Tensor, Tensor | None, Tensor | None, int]


class Rows:
    """Rows of a tensor, an array or a memory map, and their contexts if they have any.

    Args:
        data: shape (n, …), or a pair (x, context) as a tuple or a TensorDataset.
        dtype: of the batches, if the data are floating.
        device: of the batches; data in memory are moved there at once.
        name: of the data in errors.

    Attributes:
        context: the rows of the contexts, or None.

    >>> Rows(np.arange(6.0).reshape(3, 2), torch.float32).take(torch.tensor([2, 0]))
    tensor([[4., 5.],
            [0., 1.]])
    """

    def __init__(self, data: object, dtype: torch.dtype, device: Any = "cpu", *, name: str = "data") -> None:
        data, context = _pair(data, name)
        tensor = _as_tensor(data, name)
        if tensor.ndim == 0 or len(tensor) == 0:
            raise ValueError(f"{name} must have at least one row, found shape {tuple(tensor.shape)}")
        self.on_disk = _is_mapped(data)
        self.device = torch.device(device)
        self.dtype = dtype if tensor.is_floating_point() else tensor.dtype
        self.source = tensor if self.on_disk else tensor.to(self.device, self.dtype)
        self.context = None if context is None else Rows(context, dtype, device, name=f"context of {name}")
        if self.context is not None and len(self.context) != len(self):
            raise ValueError(f"{name} must have a context for each of {len(self)} rows, found {len(self.context)}")

    def take(self, index: Tensor) -> Tensor:
        """Return the rows at ``index``."""
        rows = self.source.index_select(0, index.to(self.source.device, non_blocking=True))
        return rows.to(self.device, self.dtype, non_blocking=True) if self.on_disk else rows

    def slice(self, low: int, high: int) -> Tensor:
        """Return the rows from low to high − 1."""
        return self.source[low:high].to(self.device, self.dtype)

    def fingerprint(self) -> str:
        """Return a digest of shape, dtype and up to 64 rows spread over the data, which a resumed training compares."""
        n = len(self.source)
        index = torch.linspace(0, n - 1, min(n, 64), dtype=torch.float64).round().long()
        rows = self.source.index_select(0, index.to(self.source.device)).cpu().contiguous()
        digest = hashlib.sha256(f"{tuple(self.source.shape)} {self.dtype}".encode())
        digest.update(rows.reshape(-1).view(torch.uint8).numpy().data)
        if self.context is not None:
            digest.update(self.context.fingerprint().encode())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.source)


class BatchStream:
    """The batch of every step, on this process.

    Args:
        data: rows, pairs (x, context), or a DataLoader of either.
        objective: the module that is trained.
        noise: p_n, or None if the objective takes no noise.
        batch_size: rows of a step on each process.
        noise_pool: rows of the pool of noise, 0 for fresh noise at every step, None to choose by cost.
        seed: the seed of the training.
        fabric: devices and processes.
        progress: shows how far the table of log p_n and the pool are; ``notes`` holds the seconds that these took.
        takes_context: whether the objective takes contexts.
    """

    def __init__(
        self,
        data: object,
        objective: nn.Module,
        noise: Distribution | None,
        batch_size: int,
        noise_pool: int | None,
        seed: int,
        fabric: Fabric,
        progress: Progress,
        *,
        takes_context: bool = False,
    ) -> None:
        self.takes_context = takes_context
        self.objective, self.fabric, self.seed, self.progress = objective, fabric, seed, progress
        self.rank, self.world, self.device = fabric.global_rank, fabric.world_size, fabric.device
        self.noise_pool = noise_pool
        # Samples for each row of data; a user's objective may know only its ν.
        self.noise_samples = float(getattr(objective, "noise_samples", getattr(objective, "noise_ratio", 1.0)))
        self.notes: dict[str, float] = {}
        floating = (p.dtype for p in objective.parameters() if p.is_floating_point())
        self.dtype = next(floating, torch.get_default_dtype())
        self.rows: Rows | None = None
        self.loader: _Loader | None = None
        self.steps: int | None = None  # in an epoch; None for a stream of unknown length
        if isinstance(data, DataLoader):
            dealt: Any = fabric.setup_dataloaders(data, move_to_device=False) if self.world > 1 else data
            self.loader = _Loader(dealt, self.dtype, self.device, self.world, takes_context=takes_context)
            self.fingerprint = "DataLoader"
            with contextlib.suppress(TypeError):
                self.steps = len(dealt)
            self.batch_size_of_all = (data.batch_size or batch_size) * self.world
        else:
            self.rows = self.rows_of(data, "data")
            n, self.batch_size_of_all = len(self.rows), batch_size * self.world
            if n < self.world:
                raise ValueError(f"data must have a row for each of the {self.world} processes, found {n}")
            self.steps, self.fingerprint = (
                n // self.batch_size_of_all + (n % self.batch_size_of_all >= self.world),
                self.rows.fingerprint(),
            )
        self.use_noise(noise)

    def rows_of(self, data: object, name: str) -> Rows:
        """Return data as rows of the dtype and on the device of the objective, which must take their contexts."""
        rows = Rows(data, self.dtype, self.device, name=name)
        if rows.context is not None and not self.takes_context:
            objective = f"this {type(self.objective).__name__}, which takes no context"
            raise ValueError(f"{name} must be rows x for {objective}, found pairs (x, context)")
        return rows

    def use_noise(self, noise: Distribution | None, *path: int) -> None:
        """Tabulate log p_n of the data, and choose whether samples are drawn afresh or come from a pool.

        Args:
            noise: p_n, or None if the objective takes no noise.
            path: with the process, the random stream of the samples.
        """
        self.noise, self.pool, self.log_noise = noise, None, None
        self.ahead: tuple[Tensor, Tensor] | None = None
        self.used = 0  # of the rows that were drawn ahead
        if noise is None:
            return
        if self.rows is not None:
            self.log_noise = self.tabulate(self.rows, "data")
        rows_of_all = self.batch_size_of_all if self.rows is None else min(self.batch_size_of_all, len(self.rows))
        samples = self._noise_rows(rows_of_all)[1]
        parameters = sum(p.numel() for p in self.objective.parameters())
        if is_automatic(self.objective):
            parameters *= 2  # a baseline of the same size is trained alongside
        step_flops = 6.0 * parameters * (math.ceil(rows_of_all / self.world) + samples)
        size, row = self.noise_pool, row_flops(noise)
        if size is None:
            fresh = row is not None and row * samples <= FRESH_FRACTION / (1 - FRESH_FRACTION) * step_flops
            size = 0 if fresh else max(POOL_ROWS, 8 * samples)
        if 0 < size < samples:
            raise ValueError(f"noise_pool must hold the {samples} noise samples of a step, found {size}")
        # Torch's own distributions are quick to draw from and slow to call; other noise is drawn when it is due.
        simple = row is not None and not hasattr(noise, "draw")
        self.rows_ahead = samples * _steps_ahead(samples * noise.event_shape.numel()) if simple else 0
        self.generator = _random.generator(self.seed, _random.NOISE, self.rank, *path)
        begun = time.perf_counter()
        if size:
            with self.progress.stage("pool of noise") as report:
                self.pool = NoisePool(
                    noise, size, self.generator, refresh_share=RENEWAL_FRACTION, step_flops=step_flops, progress=report
                )
        self.notes["seconds_filling_pool"] = time.perf_counter() - begun

    def tabulate(self, rows: Rows, name: str) -> Tensor | None:
        """Return log p_n of all rows, shape (n,), or None without noise.

        Each process evaluates its part, and all share the table. Rows are read a block at a time, so that a memory map
        need not fit into memory.

        Raises:
            ValueError: if the noise does not cover a row, with the row.
        """
        if self.noise is None:
            return None
        begun = time.perf_counter()
        low, high = bounds(len(rows), self.rank, self.world)
        parts = []
        with self.progress.stage(f"log p_n of the {name}") as report:
            for start in range(low, high, _ROWS_AT_ONCE):
                stop = min(start + _ROWS_AT_ONCE, high)
                try:
                    parts.append(log_prob_of_rows(self.noise, rows.slice(start, stop)))
                except ValueError as error:
                    error.add_note(f"X begins at row {start} of {name}")
                    raise
                report(stop - low, high - low)
        self.notes[f"seconds_tabulating_{name}"] = time.perf_counter() - begun
        return gather(torch.cat(parts), BatchPart() if self.world > 1 else None)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Batch, int]]:
        """Yield (batch, rows over all processes) of the steps ``start``, ``start`` + 1, … of an epoch."""
        for drawn in self._draw(epoch, start) if self.loader is None else self.loader.draw(epoch, start):
            with _validation.deferred(self.device.type != "cpu"):
                batch = self._batch(*drawn)
            yield batch, drawn[-1]

    def _draw(self, epoch: int, start: int) -> Iterator[_Drawn]:
        assert self.rows is not None
        order = _random.order(self.seed, epoch, len(self.rows))
        if not self.rows.on_disk:
            order = order.to(self.device)
        steps = order.split(self.batch_size_of_all)[start : self.steps]
        ahead = _steps_ahead(self.batch_size_of_all * self.rows.source[0].numel())
        for first in range(0, len(steps), ahead):
            indices = [
                index if self.world == 1 else index[slice(*bounds(len(index), self.rank, self.world))]
                for index in steps[first : first + ahead]
            ]
            all_indices, sizes = torch.cat(indices), [len(index) for index in indices]
            contexts = None if self.rows.context is None else self.rows.context.take(all_indices).split(sizes)
            table, log_noise = None, cast("tuple[Tensor, ...]", ())
            for k, x in enumerate(self.rows.take(all_indices).split(sizes)):
                if table is not self.log_noise:  # the noise may be replaced between two steps
                    table = self.log_noise
                    assert table is not None  # noise is replaced, and not taken away
                    log_noise = table.index_select(0, all_indices.to(table.device, non_blocking=True)).split(sizes)
                context = None if contexts is None else contexts[k]
                yield x, context, None if table is None else log_noise[k], len(steps[first + k])

    def _batch(self, x: Tensor, context: Tensor | None, log_noise_x: Tensor | None, total: int) -> Batch:
        batch = Batch(x, None, log_noise_x, context=context)
        samples_of_all = samples = 0
        if self.noise is not None:
            if log_noise_x is None:
                with torch.no_grad():
                    batch.log_noise_x = log_prob_or_minus_inf(self.noise, x)
            fraction = getattr(self.objective, "live_fraction", None)
            live = fraction is None or fraction.device.type != "cpu" or float(fraction) > 0
            samples_of_all, samples = self._noise_rows(total)
            if context is not None and self.noise_samples.is_integer():  # as many for the context of each row
                samples = int(self.noise_samples) * len(x)
            x_noise, log_noise = self.draw_noise(samples, live=live)
            batch.x_noise = x_noise.to(self.device, self.dtype, non_blocking=True)
            batch.log_noise_noise = log_noise.to(self.device, non_blocking=True)
        if self.world > 1:
            equal = total % self.world == 0 and samples_of_all % self.world == 0
            noise_part = samples * self.world / samples_of_all if samples_of_all else 1.0
            batch.part = BatchPart(len(x) * self.world / total, noise_part, equal)
        return batch

    def draw_noise(self, n: int, *, live: bool = True) -> tuple[Tensor, Tensor]:
        """Return n noise samples and their log densities; ``live`` says whether any of the last had a gradient."""
        if self.pool is not None:
            return self.pool.batch(n, renew=live)
        x, log_prob = self.ahead or self._draw_ahead(max(n, self.rows_ahead))
        if self.used + n > len(x):
            x, log_prob = self._draw_ahead(max(n, self.rows_ahead))
        low, self.used = self.used, self.used + n
        return x[low : self.used], log_prob[low : self.used]

    def _draw_ahead(self, rows: int) -> tuple[Tensor, Tensor]:
        assert self.noise is not None
        self.before, self.used = self.generator.get_state(), 0
        self.ahead = draw_with_log_prob(self.noise, rows, self.generator)
        return self.ahead

    def _noise_rows(self, data_rows: int) -> tuple[int, int]:
        """Return the number of noise samples for a number of data rows: of all processes, and of this one."""
        samples_of_all = max(self.world, round(self.noise_samples * data_rows))
        low, high = bounds(samples_of_all, self.rank, self.world)
        return samples_of_all, high - low

    def sample_rows(self, n: int, generator: torch.Generator) -> Tensor:
        """Return at most n rows of the data, drawn without replacement, the same on every process."""
        if self.rows is None:
            raise ValueError("data must be rows to fit noise to them, found a DataLoader")
        return self.rows.take(torch.randperm(len(self.rows), generator=generator)[:n])

    def state_dict(self) -> dict[str, Any]:
        """Return what the next batch depends on, besides (seed, epoch, step)."""
        noise: Any = None
        if self.noise is not None:
            noise = {"generator": self.generator.get_state()} if self.pool is None else self.pool.state_dict()
            if self.ahead is not None:
                noise = {"generator": self.before, "ahead": len(self.ahead[0]), "used": self.used}
        return {"loader": None if self.loader is None else self.loader.begun, "noise": noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`."""
        if self.loader is not None:
            self.loader.resume(state["loader"])
        if self.pool is not None:
            self.pool.load_state_dict(state["noise"])
        elif self.noise is not None:
            self.generator.set_state(state["noise"]["generator"].cpu())
            if "ahead" in state["noise"]:
                self._draw_ahead(state["noise"]["ahead"])
                self.used = state["noise"]["used"]


class _Loader:
    """The batches of a user's DataLoader.

    A resumed epoch starts the loader again with the random states it had at the epoch's start and skips the batches
    that were done; between two epochs a generator of the loader's own continues from its state. That is bit-identical
    if those states determine the loader's order: those of torch's samplers do, with workers or without. It cannot be
    promised for a dataset with randomness or state of its own, nor for a stream that does not begin again.
    """

    def __init__(
        self, loader: DataLoader[Any], dtype: torch.dtype, device: torch.device, world: int, *, takes_context: bool
    ) -> None:
        self.loader, self.dtype, self.device, self.world = loader, dtype, device, world
        self.takes_context = takes_context
        #: Random states at the start of the epoch that is under way, or of the next.
        self.begun: dict[str, Any] | None = None

    def draw(self, epoch: int, start: int) -> Iterator[_Drawn]:
        now = self._states()
        if start and self.begun is not None:
            _random.restore(self.begun["global"], self.device)
            self.resume(self.begun)
        else:
            self.begun = now
        sampler: Any = getattr(self.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        batches = iter(self.loader)
        for _ in range(start):
            next(batches)
        if start:
            _random.restore(now["global"], self.device)
        for item in batches:
            x, *rest = item if isinstance(item, list | tuple) and item else [item]
            if rest and not self.takes_context:
                message = f"data must give x alone for an objective that takes no context, found {1 + len(rest)} items"
                warnings.warn(f"{message}; the others are ignored, and will be refused", FutureWarning, stacklevel=2)
                rest = []
            if len(rest) > 1:
                raise ValueError(f"data must give x or pairs (x, context), found {1 + len(rest)} items")
            x, context = self._moved(x), self._moved(rest[0]) if rest else None
            yield x, context, None, len(x) * self.world
        self.begun = self._states()

    def _moved(self, value: object) -> Tensor:
        if not isinstance(value, Tensor):
            raise TypeError(f"data must give tensors, or pairs of them, found {type(value).__name__}")
        return value.to(self.device, self.dtype if value.is_floating_point() else value.dtype, non_blocking=True)

    def resume(self, states: dict[str, Any] | None) -> None:
        self.begun = states
        if states is not None and states["loader"] is not None:
            self.loader.generator.set_state(states["loader"])

    def _states(self) -> dict[str, Any]:
        generator = getattr(self.loader, "generator", None)
        state = None if generator is None else generator.get_state()
        return {"global": _random.capture(self.device), "loader": state}


def _steps_ahead(numbers: int) -> int:
    """Return for how many steps, of this many numbers each, rows are taken together."""
    return max(1, min(STEPS_AHEAD, NUMBERS_AHEAD // max(1, numbers)))


def _is_mapped(data: object) -> bool:
    while isinstance(data, np.ndarray) and not isinstance(data, np.memmap):
        data = data.base
    return isinstance(data, np.memmap)


def _pair(data: object, name: str) -> tuple[object, object]:
    """Return x and the context, None if there is none."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    if not isinstance(data, tuple):
        return data, None
    if not 1 <= len(data) <= 2:
        raise ValueError(f"{name} must be x or a pair (x, context), found {len(data)} items")
    return data[0], data[1] if len(data) == 2 else None


def _as_tensor(data: object, name: str) -> Tensor:
    if isinstance(data, Tensor):
        return data.clone() if data.is_inference() else data.detach()
    if not hasattr(data, "__array__"):
        kinds = "a tensor, an array, a memory map, a pair of them or a DataLoader"
        raise TypeError(f"{name} must be {kinds}, found {type(data).__name__}")
    return _validation.as_tensor(name, data)
