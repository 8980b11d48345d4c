"""Random streams: seeds for the parts of a run, and exclusive use of the global generators.

Initial weights, dropout and ``rsample`` of torch's distributions know no generator but the global one, which all
threads share. So code that seeds the global generators holds a lock, and restores them: fits in several threads take
turns, and each gives the bits it gives alone. Threads that draw from the global generators without this lock disturb a
run, and are disturbed by it; use processes to train several models at once.

The random streams of a run each have a name, and all follow from one seed. The order of the rows in an epoch is a
function of (seed, epoch), the same on every process. What an objective draws from the global generators, and the noise,
differ from process to process.

A draw that follows a generator is made on the generator's device and then moved to where it is needed, without waiting.
Generators of a run are on the CPU. So equal seeds give equal noise on every device, a checkpoint can be resumed on
another, rows that depend on a draw are known to the host without asking the device, and no device must have generators
or float64 of its own. For faster draws, pass a generator of the device. Torch's own distributions, dropout and latents
draw on their device, from its global generator.
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

#: Held by the thread that uses the global generators; functions that it calls may take it again.
_alone = threading.RLock()


def _forked() -> None:
    # A child has one thread, and the one that held the lock may have stayed in the parent.
    global _alone
    _alone = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def alone() -> AbstractContextManager[object]:
    """Return the lock of the global generators."""
    return _alone


def _accelerator() -> tuple[str | None, Any]:
    """Return the machine's accelerator and torch's module for it, or None and None unless it is in use."""
    device = torch.accelerator.current_accelerator()
    module: Any = None if device is None else torch.get_device_module(device)
    if device is None or not getattr(module, "is_initialized", module.is_available)():
        return None, None
    return device.type, module


def seed_torch(seed: int) -> None:
    """Seed torch's global generators on every device that is in use."""
    torch.default_generator.manual_seed(seed)
    # torch.manual_seed would note, with a stack trace, what to seed should CUDA be started later.
    _, module = _accelerator()
    if module is not None:
        getattr(module, "manual_seed_all", module.manual_seed)(seed)


@contextmanager
def plain_mode() -> Iterator[None]:
    """Compute in the block with gradients, without inference mode and autocast, whatever mode the caller is in.

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
    """Return :func:`seeded` with a seed drawn from a generator; without a generator, nothing is done."""
    if generator is None:
        return nullcontext()
    return seeded(int(torch.randint(2**62, (), generator=generator, device=generator.device)))


ORDER, GLOBAL, NOISE, VALIDATION, HELD_OUT_NOISE, REFIT = range(6)


def stream(seed: int, *path: int) -> int:
    """Return a 63-bit seed for the stream that ``path`` names.

    >>> stream(0, ORDER, 1) == stream(0, ORDER, 1), stream(0, ORDER, 1) == stream(0, ORDER, 2)
    (True, False)
    """
    low, high = np.random.SeedSequence([seed, *path]).generate_state(2, np.uint32)
    return int(low) | (int(high) >> 1) << 32


def generator(seed: int, *path: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded for one stream."""
    return torch.Generator(device=device).manual_seed(stream(seed, *path))


def place(generator: torch.Generator | None, device: torch.device) -> torch.device:
    """Return where a draw is made: on the device of its generator, or without one where it is needed.

    >>> place(torch.Generator(), torch.device("cuda")), place(None, torch.device("cuda"))
    (device(type='cpu'), device(type='cuda'))
    """
    return device if generator is None else generator.device


def order(seed: int, epoch: int, n: int) -> torch.Tensor:
    """Return the rows 0..n−1 in the order of an epoch."""
    return torch.randperm(n, generator=generator(seed, ORDER, epoch))


def seed_everything(seed: int, *path: int) -> None:
    """Seed the global generators of torch (on every device that is in use), numpy and Python."""
    seed_torch(stream(seed, *path, 0))
    np.random.seed(stream(seed, *path, 1) % 2**32)  # noqa: NPY002 (the legacy generator is the global one)
    random.seed(stream(seed, *path, 2))


def capture(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators."""
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
    """Put the global generators into the states of :func:`capture`."""
    torch.set_rng_state(state["torch"].cpu())
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type].cpu(), device)


@contextmanager
def preserve_rng_state(device: torch.device | None = None, enabled: bool = True) -> Iterator[None]:
    """Restore the global generators after the block, during which no other thread can take their lock.

    Unless ``enabled``, nothing is done.

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
