"""Random streams: a seed for each part of a run, and exclusive use of the global generators.

Initial weights, dropout and ``rsample`` of torch's distributions can only use the global generator, which all threads
share. Code that seeds the global generators therefore holds a lock and restores them afterwards: fits in several
threads run one after the other, and each gives the same bits as alone. A thread that draws from the global generators
without the lock breaks reproducibility; use processes to train several models at once.

All random streams of a run are derived from one seed and a path of names. The order of the rows in an epoch depends on
(seed, epoch) only and is the same on every process. Noise samples, and draws of an objective from the global
generators, differ between processes.

A draw with an explicit generator is made on the generator's device and then copied asynchronously to the device that
needs it. The generators of a run are on the CPU. Equal seeds therefore give equal noise on every device, a checkpoint
can be resumed on another device, the host knows which rows a draw selects without synchronizing, and a device needs
neither generators nor float64. For faster draws, pass a generator of the device. Torch's own distributions, dropout and
latents draw on their device, from its global generator.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

#: Lock of the global generators, re-entrant.
_alone = threading.RLock()


def _forked() -> None:
    # A forked child has one thread only; the thread that held the lock may exist in the parent alone.
    global _alone
    _alone = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def alone() -> AbstractContextManager[object]:
    """Return the lock of the global generators."""
    return _alone


def _accelerator() -> tuple[str | None, Any]:
    """Return the accelerator's name and torch's module for it, or (None, None) if none is in use."""
    device = torch.accelerator.current_accelerator()
    module: Any = None if device is None else torch.get_device_module(device)
    if device is None or not getattr(module, "is_initialized", module.is_available)():
        return None, None
    return device.type, module


def seed_torch(seed: int) -> None:
    """Seed torch's global generators on every device that is in use."""
    torch.default_generator.manual_seed(seed)
    # torch.manual_seed would also queue a seed, with a stack trace, for CUDA to use once it is initialized.
    _, module = _accelerator()
    if module is not None:
        getattr(module, "manual_seed_all", module.manual_seed)(seed)


@contextmanager
def plain_mode() -> Iterator[None]:
    """Enable gradients and disable inference mode and autocast in the block, whatever mode the caller uses.

    >>> with torch.inference_mode(), plain_mode():
    ...     torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    (True, False)
    """
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for device in {"cpu", _accelerator()[0] or "cpu"}:
            if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generators in the block, and restore them afterwards.

    >>> before = torch.get_rng_state()
    >>> with seeded(1):
    ...     first = torch.rand(2)
    >>> with seeded(1):
    ...     again = torch.rand(2)
    >>> torch.equal(first, again), torch.equal(torch.get_rng_state(), before)
    (True, True)
    """
    device_type, module = _accelerator()
    devices = range(0 if module is None else module.device_count())
    with alone(), torch.random.fork_rng(devices, device_type=device_type or "cuda"):
        seed_torch(seed)
        yield


def seeded_by(generator: torch.Generator | None) -> AbstractContextManager[None]:
    """Return :func:`seeded` with a seed drawn from a generator, or a context that does nothing without one."""
    if generator is None:
        return nullcontext()
    return seeded(int(torch.randint(2**62, (), generator=generator, device=generator.device)))


ORDER, GLOBAL, NOISE, VALIDATION, HELD_OUT_NOISE, REFIT = range(6)


def stream(seed: int, *path: int) -> int:
    """Return a 63-bit seed derived from a seed and a path of numbers.

    >>> stream(0, ORDER, 1) == stream(0, ORDER, 1), stream(0, ORDER, 1) == stream(0, ORDER, 2)
    (True, False)
    """
    low, high = np.random.SeedSequence([seed, *path]).generate_state(2, np.uint32)
    return int(low) | (int(high) >> 1) << 32


def generator(seed: int, *path: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded with :func:`stream`."""
    return torch.Generator(device=device).manual_seed(stream(seed, *path))


def place(generator: torch.Generator | None, device: torch.device) -> torch.device:
    """Return the device on which to draw: that of the generator, or ``device`` if there is none.

    >>> place(torch.Generator(), torch.device("cuda")), place(None, torch.device("cuda"))
    (device(type='cpu'), device(type='cuda'))
    """
    return device if generator is None else generator.device


def order(seed: int, epoch: int, n: int) -> torch.Tensor:
    """Return a random permutation of the rows 0..n−1 for an epoch."""
    return torch.randperm(n, generator=generator(seed, ORDER, epoch))


def seed_everything(seed: int, *path: int) -> None:
    """Seed the global generators of torch (on every device that is in use), numpy and Python."""
    seed_torch(stream(seed, *path, 0))
    np.random.seed(stream(seed, *path, 1) % 2**32)  # noqa: NPY002 (the legacy generator is the global one)
    random.seed(stream(seed, *path, 2))


def capture(device: torch.device) -> dict[str, Any]:
    """Return the states of all global generators."""
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    words = torch.from_numpy(np.asarray(keys, dtype=np.int64))
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": (str(name), words, int(position), int(has_gauss), float(cached)),
        "python": random.getstate(),
    }
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(device)
    return state


def restore(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore the states that :func:`capture` returned."""
    torch.set_rng_state(state["torch"].cpu())
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type].cpu(), device)


@contextmanager
def preserve_rng_state(device: torch.device | None = None, enabled: bool = True) -> Iterator[None]:
    """Hold the lock of the global generators in the block, and restore their states afterwards.

    Do nothing if ``enabled`` is False.

    >>> before = torch.get_rng_state()
    >>> with preserve_rng_state():
    ...     seed_everything(0)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    if not enabled:
        yield
        return
    place = torch.device("cpu") if device is None else device
    with alone():
        before = capture(place)
        try:
            yield
        finally:
            restore(before, place)
