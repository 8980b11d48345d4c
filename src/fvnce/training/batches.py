"""Batches: rows of data by index or from a DataLoader, with noise samples and the log-densities of both.

In-memory data live on the device, and a batch is ``data[index]`` with a piece of the epoch's permutation; there is no
per-item loading and no collation. A memory-mapped array stays on the disk, and a batch reads its own rows only.

With W processes the batch of all of them is a piece of W·b rows of the one permutation, of which each takes an equal
share, give or take a row at the end of an epoch. A remainder smaller than W rows is left out of that epoch, since every
process must have a row.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .. import _checks, _random
from ..noise import log_prob_or_minus_inf
from ..objectives import Batch, BatchShare
from .distributed import bounds
from .evaluation import Step, Validation
from .noise_sampler import NoiseSampler, make_noise_sampler, noise_samples, tabulate

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .callbacks import NullProgress


class Rows:
    """Rows of a tensor, an array or a memory map.

    Args:
        data: shape (n, …).
        dtype: floating data are given out in this dtype.

    >>> Rows(np.arange(6.0).reshape(3, 2), torch.float32).take(torch.tensor([2, 0]))
    tensor([[4., 5.],
            [0., 1.]])
    """

    def __init__(self, data: object, dtype: torch.dtype, *, name: str = "data") -> None:
        self.on_disk = _is_mapped(data)
        tensor = _as_tensor(data, name)
        if tensor.ndim == 0 or len(tensor) == 0:
            raise ValueError(f"{name} must have at least one row, found shape {tuple(tensor.shape)}")
        self.dtype = dtype if tensor.is_floating_point() else tensor.dtype
        self.source = tensor if self.on_disk else tensor.to(self.dtype)
        self.device = torch.device("cpu")

    def to(self, device: torch.device) -> Rows:
        """Give out batches on ``device``; data in memory move there now."""
        self.device = device
        if not self.on_disk:
            self.source = self.source.to(device)
        return self

    def take(self, index: Tensor) -> Tensor:
        """The rows at ``index``."""
        rows = self.source.index_select(0, index.to(self.source.device, non_blocking=True))
        return rows.to(self.device, self.dtype, non_blocking=True) if self.on_disk else rows

    def slice(self, low: int, high: int) -> Tensor:
        """The rows low..high−1."""
        return self.source[low:high].to(self.device, self.dtype)

    def fingerprint(self) -> str:
        """A digest of shape, dtype and up to 64 rows spread over the data: what a resumed run checks."""
        n = len(self.source)
        index = torch.linspace(0, n - 1, min(n, 64), dtype=torch.float64).round().long()
        rows = self.source.cpu().index_select(0, index).contiguous()
        digest = hashlib.sha256(f"{tuple(self.source.shape)} {self.dtype}".encode())
        digest.update(rows.reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.source)


class BatchStream:
    """The batch of every step, on this process.

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
        progress: NullProgress,
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
        self.source: _ByIndex | _ByLoader
        if isinstance(data, DataLoader):
            loader: Any = fabric.setup_dataloaders(data, move_to_device=False) if self.world > 1 else data
            self.source = _ByLoader(loader, self.dtype, self.device, world=self.world)
            wide = (data.batch_size or batch_size) * self.world
        else:
            rows = Rows(data, self.dtype)
            self.fingerprint = rows.fingerprint()
            self.log_noise = self._tabulated(rows.to(self.device), "data")
            self.source = _ByIndex(rows, batch_size, seed, rank=self.rank, world=self.world)
            wide = min(batch_size * self.world, len(rows))
        self._wide, self._pool = wide, noise_pool
        self.noise_sampler = None if self.noise is None else self._make_noise_sampler()

    @property
    def steps(self) -> int | None:
        """Steps in an epoch, or None for a stream of unknown length."""
        return self.source.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Batch, int]]:
        """(batch, rows over all processes) of the steps ``start``, ``start`` + 1, … of an epoch."""
        for drawn in self.source.epoch(epoch, start):
            yield self._batch(drawn), drawn.total

    def held_out(self, validation: object, *, seed_globals: bool) -> Validation:
        """Validation on other rows, with the same objective and noise."""
        if isinstance(validation, DataLoader):
            raise TypeError("validation must be a tensor, an array or a memory map, found DataLoader")
        rows = Rows(validation, self.dtype, name="validation").to(self.device)
        table = self._tabulated(rows, "validation")
        return Validation(rows, table, self.step, self.fabric, self.seed, seed_globals=seed_globals)

    def follow_noise(self, epoch: int) -> None:
        """Take up the noise that the objective has now, replaced after an epoch: densities and samples are new."""
        objective: Any = self.step.objective
        self.noise = objective.noise
        if isinstance(self.source, _ByIndex):
            self.log_noise = self._tabulated(self.source.rows, "data")
        self.noise_sampler = self._make_noise_sampler(epoch + 1)

    def sample_rows(self, n: int, generator: torch.Generator) -> Tensor:
        """At most n rows of the data, drawn without replacement, the same on every process."""
        if not isinstance(self.source, _ByIndex):
            raise ValueError("data must be rows to fit noise to them, found a DataLoader")
        rows = self.source.rows
        return rows.take(torch.randperm(len(rows), generator=generator)[:n])

    def state_dict(self) -> dict[str, Any]:
        """What the next batch depends on, beside (seed, epoch, step)."""
        sampler = None if self.noise_sampler is None else self.noise_sampler.state_dict()
        return {"source": self.source.state_dict(), "noise_sampler": sampler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.source.load_state_dict(state["source"])
        if self.noise_sampler is not None:
            self.noise_sampler.load_state_dict(state["noise_sampler"])

    def _batch(self, drawn: _Drawn) -> Batch:
        with _checks.deferred(self.device.type != "cpu"):
            return self._batch_of(drawn)

    def _batch_of(self, drawn: _Drawn) -> Batch:
        batch = Batch(drawn.x)
        if self.noise_sampler is not None:
            if self.log_noise is not None and drawn.index is not None:
                index = drawn.index.to(self.log_noise.device, non_blocking=True)
                batch.log_noise_x = self.log_noise.index_select(0, index)
            else:
                with torch.no_grad():
                    batch.log_noise_x = log_prob_or_minus_inf(self.noise, drawn.x)  # type: ignore[arg-type]
            share = getattr(self.step.objective, "live_share", None)
            live = share is None or share.device.type != "cpu" or float(share) > 0
            x_noise, log_noise = self.noise_sampler.batch(self._noise_rows(drawn.total)[1], live=live)
            batch.x_noise = x_noise.to(self.device, self.dtype, non_blocking=True)
            batch.log_noise_noise = log_noise.to(self.device, non_blocking=True)
        if self.world > 1:
            batch.share = self._share(drawn)
        return batch

    def _share(self, drawn: _Drawn) -> BatchShare:
        data, equal = len(drawn.x) * self.world / drawn.total, drawn.total % self.world == 0
        if self.noise_sampler is None:
            return BatchShare(data, equal=equal)
        wide, own = self._noise_rows(drawn.total)
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
        return table

    def _make_noise_sampler(self, *path: int) -> NoiseSampler:
        assert self.noise is not None
        rows = self._noise_rows(self._wide)[1]
        parameters = sum(p.numel() for p in self.step.parameters())
        flops = 6.0 * parameters * (math.ceil(self._wide / self.world) + rows)
        begun = time.perf_counter()
        generator = _random.generator(self.seed, _random.NOISE, self.rank, *path)
        with self.progress.stage("pool of noise") as report:
            sampler = make_noise_sampler(self.noise, rows, flops, generator, pool=self._pool, progress=report)
        self.notes["seconds_filling_pool"] = time.perf_counter() - begun
        return sampler


@dataclass(frozen=True)
class _Drawn:
    """A process's share of one step's rows: ``index`` is None if they come from a DataLoader."""

    x: Tensor
    index: Tensor | None
    total: int


class _ByIndex:
    """The rows of every step, by index, as a function of (seed, epoch) alone."""

    def __init__(self, rows: Rows, batch_size: int, seed: int, *, rank: int, world: int) -> None:
        self.rows, self.seed = rows, seed
        self.rank, self.world = rank, world
        self.wide = batch_size * world
        n = len(rows)
        if n < world:
            raise ValueError(f"data must have a row for each of the {world} processes, found {n}")
        self.steps = n // self.wide + (n % self.wide >= world)

    def epoch(self, epoch: int, start: int) -> Iterator[_Drawn]:
        order = _random.order(self.seed, epoch, len(self.rows))
        if not self.rows.on_disk:
            order = order.to(self.rows.device)
        for step in range(start, self.steps):
            index = wide = order[step * self.wide : (step + 1) * self.wide]
            if self.world > 1:
                low, high = bounds(len(wide), self.rank, self.world)
                index = wide[low:high]
            yield _Drawn(self.rows.take(index), index, len(wide))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing: (seed, epoch, step) say it all."""


class _ByLoader:
    """The batches of a user's DataLoader.

    A resumed epoch starts the loader anew with the random states it had at the epoch's start and passes over the
    batches that were done; between two epochs a generator of the loader's own is put where it had come to. That is
    bit-identical if those states determine the loader's order: torch's own samplers do, with workers or without. It
    cannot be promised for a dataset with randomness or state of its own, nor for a stream that does not begin again.
    """

    def __init__(self, loader: DataLoader[Any], dtype: torch.dtype, device: torch.device, *, world: int) -> None:
        self.loader = loader
        self.dtype, self.device, self.world = dtype, device, world
        self._begun: dict[str, Any] | None = None

    @property
    def steps(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:
            return None

    def epoch(self, epoch: int, start: int) -> Iterator[_Drawn]:
        now = self._states()
        if start and self._begun is not None:
            _random.restore(self._begun["global"], self.device)
            self._restore_own(self._begun)
        else:
            self._begun = now
        sampler: Any = getattr(self.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        batches = iter(self.loader)
        for _ in range(start):
            next(batches)
        if start:
            _random.restore(now["global"], self.device)
        for item in batches:
            x = _first(item)
            x = x.to(self.device, self.dtype if x.is_floating_point() else x.dtype, non_blocking=True)
            yield _Drawn(x, None, len(x) * self.world)
        self._begun = self._states()

    def state_dict(self) -> dict[str, Any]:
        """Random states at the start of the epoch that is under way, or of the next."""
        return {"begun": self._begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begun = state["begun"]
        if self._begun is not None:
            self._restore_own(self._begun)

    def _states(self) -> dict[str, Any]:
        own = getattr(self.loader, "generator", None)
        return {"global": _random.capture(self.device), "own": None if own is None else own.get_state()}

    def _restore_own(self, states: dict[str, Any]) -> None:
        own = getattr(self.loader, "generator", None)
        if own is not None:
            own.set_state(states["own"])


def _first(item: object) -> Tensor:
    if isinstance(item, list | tuple) and item:
        item = item[0]
    if not isinstance(item, Tensor):
        raise TypeError(f"a DataLoader must give a tensor, or a list that begins with one, found {type(item).__name__}")
    return item


def _is_mapped(data: object) -> bool:
    while isinstance(data, np.ndarray):
        if isinstance(data, np.memmap):
            return True
        data = data.base
    return False


def _as_tensor(data: object, name: str) -> Tensor:
    if isinstance(data, Tensor):
        return data.detach()
    if isinstance(data, np.ndarray):
        if data.dtype == object:
            raise TypeError(f"{name} must be an array of numbers, found dtype object")
        with warnings.catch_warnings():
            # A map opened for reading cannot be written through the tensor; nothing here writes to data.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(data)
    if hasattr(data, "__array__"):
        return _as_tensor(np.asarray(data), name)
    raise TypeError(f"{name} must be a tensor, an array, a memory map or a DataLoader, found {type(data).__name__}")
