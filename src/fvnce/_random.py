"""The global generators, borrowed: whoever needs them has them alone, and gives them back as they were.

Initial weights, dropout and the draws of torch's distributions know no generator but the global one, which all threads
share. All that this package does to it is done here or, for a whole run, in ``training.randomness``, one thread at a
time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

#: Held by the thread that has the global generators; what is called meanwhile may itself borrow them.
_alone = threading.RLock()


def _forked() -> None:
    # A child has one thread, and the one that held the lock may have stayed in the parent.
    global _alone
    _alone = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def alone() -> AbstractContextManager[object]:
    """Inside, no other thread that borrows the global generators runs."""
    return _alone


def seed_torch(seed: int) -> None:
    """Seed torch's global generators on every device that is in use."""
    torch.default_generator.manual_seed(seed)
    # torch.manual_seed would note, with a stack trace, what to seed should CUDA be started later.
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's global generators follow a seed; afterwards they are as they were.

    >>> before = torch.get_rng_state()
    >>> with seeded(1):
    ...     first = torch.rand(2)
    >>> with seeded(1):
    ...     again = torch.rand(2)
    >>> torch.equal(first, again), torch.equal(torch.get_rng_state(), before)
    (True, True)
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with alone(), torch.random.fork_rng(devices=devices):
        seed_torch(seed)
        yield


def seeded_by(generator: torch.Generator | None) -> AbstractContextManager[None]:
    """The same with a seed that is drawn from a generator; without one, nothing is done."""
    if generator is None:
        return nullcontext()
    return seeded(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
