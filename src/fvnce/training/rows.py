"""Rows of data, wherever they are: a tensor, an array, or a memory map that stays on the disk."""

from __future__ import annotations

import hashlib
import warnings

import numpy as np
import torch
from torch import Tensor


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
