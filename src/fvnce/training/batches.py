"""Batches of rows: by index from tensors, arrays and memory maps, or from a DataLoader.

In-memory data lives on the device and a batch is ``data[index]`` with a piece of the epoch's permutation; there is no
per-item loading and no collation. A memory-mapped array stays on the disk, and a batch reads its own rows only.

With W processes the batch of all of them is a piece of ⌈W·b⌉ rows of the one permutation, of which each takes an equal
share, give or take a row at the end of an epoch. A remainder smaller than W rows is left out of that epoch, since every
process must have a row.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from . import randomness


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
        rows = self.source.index_select(0, index)
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


@dataclass(frozen=True)
class Batch:
    """A process's share of one step's rows: ``index`` is None if they come from a DataLoader."""

    x: Tensor
    index: Tensor | None
    total: int


class IndexBatches:
    """The batches of every epoch, by index, as a function of (seed, epoch) alone."""

    def __init__(self, rows: Rows, batch_size: int, seed: int, *, rank: int = 0, world: int = 1) -> None:
        self.rows = rows
        self.seed = seed
        self.rank, self.world = rank, world
        self.wide = batch_size * world
        n = len(rows)
        if n < world:
            raise ValueError(f"data must have a row for each of the {world} processes, found {n}")
        tail = n % self.wide
        self.steps = n // self.wide + (tail >= world)
        self.resumable = True

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Batches ``start``, ``start`` + 1, … of an epoch."""
        order = randomness.order(self.seed, epoch, len(self.rows))
        if not self.rows.on_disk:
            order = order.to(self.rows.device)
        for step in range(start, self.steps):
            wide = order[step * self.wide : (step + 1) * self.wide]
            index = share(wide, self.rank, self.world) if self.world > 1 else wide
            yield Batch(self.rows.take(index), index, len(wide))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: (seed, epoch, step) say it all."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to do."""


class LoaderBatches:
    """The batches of a user's DataLoader.

    A resumed epoch starts the loader anew with the random states it had at the epoch's start and passes over the
    batches that were done. That is bit-identical if those states determine the loader's order: torch's own samplers do,
    with workers or without. It cannot be promised for a dataset with randomness or state of its own, nor for a stream
    that does not begin again.
    """

    def __init__(self, loader: DataLoader[Any], dtype: torch.dtype, device: torch.device, *, world: int = 1) -> None:
        self.loader = loader
        self.dtype, self.device, self.world = dtype, device, world
        self._begun: dict[str, Any] | None = None

    @property
    def steps(self) -> int | None:
        """Batches in an epoch, or None for a stream of unknown length."""
        try:
            return len(self.loader)
        except TypeError:
            return None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Batches ``start``, ``start`` + 1, … of an epoch."""
        own = getattr(self.loader, "generator", None)
        after = randomness.capture(self.device)
        if start and self._begun is not None:
            randomness.restore(self._begun["global"], self.device)
            if own is not None:
                own.set_state(self._begun["own"])
        else:
            self._begun = {"global": after, "own": None if own is None else own.get_state()}
        sampler: Any = getattr(self.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        batches = iter(self.loader)
        for _ in range(start):
            next(batches)
        if start:
            randomness.restore(after, self.device)
        for item in batches:
            x = _first(item)
            x = x.to(self.device, self.dtype if x.is_floating_point() else x.dtype, non_blocking=True)
            yield Batch(x, None, len(x) * self.world)

    def state_dict(self) -> dict[str, Any]:
        """Random states at the start of the epoch."""
        return {"begun": self._begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self._begun = state["begun"]


def share(wide: Tensor, rank: int, world: int) -> Tensor:
    """A process's part of the rows of one step: equal parts, the first ones longer by a row where they cannot be.

    >>> [share(torch.arange(5), rank, 2).tolist() for rank in range(2)]
    [[0, 1, 2], [3, 4]]
    """
    low, high = bounds(len(wide), rank, world)
    return wide[low:high]


def bounds(total: int, rank: int, world: int) -> tuple[int, int]:
    """Where the part of ``rank`` begins and ends in ``total`` things.

    >>> [bounds(7, rank, 3) for rank in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    each, extra = divmod(total, world)
    low = rank * each + min(rank, extra)
    return low, low + each + (rank < extra)


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
