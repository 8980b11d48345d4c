"""Checks of values that wait until somebody reads the loss, so that no accelerator waits for a check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_deferred: ContextVar[bool] = ContextVar("deferred", default=False)


@contextmanager
def deferred(enabled: bool = True) -> Iterator[None]:
    """Inside, no check makes the host wait for an accelerator: what is bad makes the loss NaN instead of an error.

    Whoever reads that loss evaluates the same batch again outside, where the check raises its error.
    """
    token = _deferred.set(enabled)
    try:
        yield
    finally:
        _deferred.reset(token)


def are_deferred() -> bool:
    """Whether checks are left to whoever reads the loss; never in a compiled graph, which looks at no value."""
    # Dynamo cannot trace a context variable.
    return not torch.compiler.is_compiling() and _deferred.get()
