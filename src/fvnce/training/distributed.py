"""Devices, precision and processes, all from Lightning Fabric.

Under ``torchrun`` the number of processes is taken from its environment, so the same call runs on one device, on
several, and on several machines.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _checks

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Precisions in which parameters stay float32 or float64; log-ratios of hundreds of nats need no less.
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")

#: How long a process that is done waits for the others.
_LEAVING_SECONDS = 5


def make_fabric(
    accelerator: str,
    devices: int | str | list[int] | None,
    num_nodes: int | None,
    strategy: Any,
    precision: str | None,
    timeout: float | None,
) -> Fabric:
    """A launched Fabric; the arguments are those of :func:`fvnce.fit`."""
    # Imported here: it takes as long as torch itself, and only training needs it.
    with warnings.catch_warnings():
        # lightning-utilities imports pkg_resources, whose deprecation is its own affair.
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
        from lightning_fabric import Fabric

    if precision is not None:
        _checks.choice("precision", precision, PRECISIONS)
    if timeout is not None:
        _checks.number("timeout", timeout, low=0.0, open_low=True)
    if accelerator == "auto" and torch.backends.mps.is_available():
        accelerator = "cpu"  # MPS has no float64, which kernel densities and profiled log-scales need
    outside = os.environ.get("TORCHELASTIC_RUN_ID") is not None
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if outside else 1
    world = int(os.environ.get("WORLD_SIZE", "1")) if outside else 1
    how: dict[str, Any] = {
        "accelerator": accelerator,
        "devices": local if devices is None else devices,
        "num_nodes": world // local if num_nodes is None else num_nodes,
        "precision": precision or "32-true",
    }
    fabric = Fabric(strategy=strategy, **how)
    if timeout is not None and type(fabric.strategy).__name__ == "DDPStrategy" and isinstance(strategy, str):
        from lightning_fabric.strategies.ddp import DDPStrategy

        # Only Fabric knows what "auto" stands for here; nothing has been started yet.
        fabric = Fabric(strategy=DDPStrategy(timeout=timedelta(seconds=timeout)), **how)
    if type(fabric.strategy).__name__ not in ("SingleDeviceStrategy", "DDPStrategy"):
        raise ValueError(
            f"strategy must be 'auto' or 'ddp', found {strategy!r}: checkpoints and gradients are only exact with those"
        )
    # What it says about its processes is for those who debug it.
    logger = logging.getLogger("lightning_fabric")
    before = logger.level
    logger.setLevel(logging.WARNING)
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    try:
        fabric.launch()
    finally:
        logger.setLevel(before)
    if fabric.world_size > 1 and not joined:
        atexit.register(_leave_group)
    return fabric


def _leave_group() -> None:
    """End the process group that training began.

    The threads of gloo must be joined before the interpreter goes: left running, they now and then abort a process
    whose work is done, and torchrun takes the whole run for a failure. Fabric ends groups of nccl alone.
    """
    if torch.distributed.is_initialized():
        # What still refers to the group, a wrapped module in a cycle for one, would keep its threads beyond this.
        gc.collect()
        if torch.distributed.get_backend() == "gloo":
            # Aborted was, wherever it was seen, a process that may have outlived the one that holds the store: they
            # leave together. One that died is not waited for longer than this.
            with contextlib.suppress(RuntimeError):
                torch.distributed.monitored_barrier(timeout=timedelta(seconds=_LEAVING_SECONDS))
        torch.distributed.destroy_process_group()
        gc.collect()


def first_failure(fabric: Fabric, failure: Exception | None) -> Exception | None:
    """What failed on any of the processes, the first of them: all learn of it, so that none waits for one that left."""
    if fabric.world_size == 1:
        return failure
    everyone: list[Exception | None] = [None] * fabric.world_size
    torch.distributed.all_gather_object(everyone, failure)
    return next((found for found in everyone if found is not None), None)


def on_main(fabric: Fabric, action: Callable[[], object]) -> None:
    """Let the main process act; what fails there is raised on all."""
    failure: Exception | None = None
    if fabric.is_global_zero:
        try:
            action()
        except (OSError, RuntimeError) as error:
            failure = error
    failure = first_failure(fabric, failure)
    if failure is not None:
        raise failure


def over_processes(fabric: Fabric, value: Tensor, how: str) -> Tensor:
    """The mean, sum or max of a tensor over processes."""
    result = fabric.all_reduce(value.to(fabric.device), reduce_op=how)
    assert isinstance(result, Tensor)
    return result


def bounds(total: int, rank: int, world: int) -> tuple[int, int]:
    """Where the part of ``rank`` begins and ends in ``total`` things: equal parts, the first longer by one if need be.

    >>> [bounds(7, rank, 3) for rank in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    each, extra = divmod(total, world)
    low = rank * each + min(rank, extra)
    return low, low + each + (rank < extra)
