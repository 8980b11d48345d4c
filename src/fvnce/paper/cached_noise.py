"""A kernel density that keeps its values on disk: log p_n of 60,000 images is the same for every row.

A value is found again by the content of the points, the centres and the bandwidth, so that a table is made once for all
rows, networks and processes. Small requests are not worth a file and are passed on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..noise import KernelDensity
from ..serialization import atomic_write

#: Fewer points than this are evaluated anew.
FEWEST_POINTS = 1024


class CachedKernelDensity(KernelDensity):
    """A kernel density whose values are cached in a folder.

    Args:
        centres: shape (n, D).
        bandwidth: standard deviation of the kernel.
        folder: where values are kept.

    >>> import tempfile
    >>> centres = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     noise = CachedKernelDensity(centres, 0.5, Path(folder))
    ...     first, again = noise.log_prob(centres), noise.log_prob(centres)
    ...     files = len(list(Path(folder).iterdir()))
    >>> bool((first == again).all()), files
    (True, 1)
    """

    def __init__(self, centres: Tensor, bandwidth: float, folder: Path) -> None:
        super().__init__(centres, bandwidth)
        self.folder = folder
        self._own_key = hashlib.sha256(_bytes(self.centres) + repr(float(bandwidth)).encode()).hexdigest()

    def log_prob(self, value: Tensor) -> Tensor:
        """log p_n, from the cache if it is there."""
        if value.dim() != 2 or len(value) < FEWEST_POINTS or value.requires_grad:
            return super().log_prob(value)
        return self._cached("points", value, lambda: KernelDensity.log_prob(self, value))

    def draw_with_log_prob(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """n draws and their log density, cached if the same were drawn before."""
        if generator is None or n < FEWEST_POINTS:
            return super().draw_with_log_prob(n, generator)
        before = generator.get_state()
        x = self.draw(n, generator)

        def evaluate() -> Tensor:
            again = torch.Generator(generator.device).set_state(before)
            return KernelDensity.draw_with_log_prob(self, n, again)[1]

        return x, self._cached("draws", x, evaluate)

    def _cached(self, kind: str, x: Tensor, make: Callable[[], Tensor]) -> Tensor:
        key = hashlib.sha256(f"{self._own_key} {kind} {x.dtype}".encode() + _bytes(x)).hexdigest()[:24]
        path = self.folder / f"{key}.npy"
        if path.exists():
            return torch.from_numpy(np.load(path, allow_pickle=False)).to(x.device)
        value = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            np.save(file, value.detach().cpu().numpy())
        return value


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().numpy().tobytes()
