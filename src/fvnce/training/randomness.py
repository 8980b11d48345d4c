"""Random streams of a run: each has a name, and all follow from one seed.

The order of the rows in an epoch is a function of (seed, epoch), the same on every process. What an objective draws
from the global generators, and the noise, differ from process to process. A run leaves the caller's global generators
as it found them.

Dropout and ``rsample`` of torch's distributions know no generator but the global one, which all threads share. So
whoever borrows the global generators has them alone: fits in several threads take turns, and each gives the bits it
gives alone. Threads that draw from the global generators without borrowing them disturb a run, and are disturbed by it;
processes are the way to train several models at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from .._random import alone, seed_torch

ORDER, GLOBAL, NOISE, VALIDATION, HELD_OUT_NOISE, REFIT = range(6)


def stream(seed: int, *path: int) -> int:
    """A 63-bit seed for the stream that ``path`` names.

    >>> stream(0, ORDER, 1) == stream(0, ORDER, 1), stream(0, ORDER, 1) == stream(0, ORDER, 2)
    (True, False)
    """
    low, high = np.random.SeedSequence([seed, *path]).generate_state(2, np.uint32)
    return int(low) | (int(high) >> 1) << 32


def generator(seed: int, *path: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded for one stream."""
    return torch.Generator(device=device).manual_seed(stream(seed, *path))


def order(seed: int, epoch: int, n: int) -> torch.Tensor:
    """The rows 0..n−1 in the order of an epoch."""
    return torch.randperm(n, generator=generator(seed, ORDER, epoch))


def seed_everything(seed: int, *path: int) -> None:
    """Seed the global generators of torch (on every device that is in use), numpy and Python."""
    seed_torch(stream(seed, *path, 0))
    np.random.seed(stream(seed, *path, 1) % 2**32)  # noqa: NPY002 (the legacy generator is the global one)
    random.seed(stream(seed, *path, 2))


def capture(device: torch.device) -> dict[str, Any]:
    """States of the global generators."""
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": (
            str(name),
            torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ),
        "python": random.getstate(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore(state: Mapping[str, Any], device: torch.device) -> None:
    """Put the global generators into the states of :func:`capture`."""
    torch.set_rng_state(state["torch"].cpu())
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


@contextmanager
def preserve_rng_state(device: torch.device | None = None, really: bool = True) -> Iterator[None]:
    """Whatever is done to the global generators inside is undone at the end, and no other borrower sees it.

    Unless ``really``, they are not even looked at.

    >>> before = torch.get_rng_state()
    >>> with preserve_rng_state():
    ...     seed_everything(0)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    if not really:
        yield
        return
    place = torch.device("cpu") if device is None else device
    with alone():
        before = capture(place)
        try:
            yield
        finally:
            restore(before, place)
