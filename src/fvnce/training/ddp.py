"""Devices, precision and processes, by Lightning Fabric, and the signals that ask a process to end.

Under ``torchrun`` the number of processes is taken from its environment, so the same call runs on one device, on
several, and on several machines.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _validation

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Precisions in which parameters stay float32 or float64; log-ratios of hundreds of nats need no less.
PRECISIONS = ("32-true", "64-true", "bf16-mixed")

#: The signals that ask a process to end; Windows has no SIGHUP.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
#: The variable that passes the main process's number to the processes that it starts.
_MAIN = "FVNCE_MAIN_PROCESS"
#: How long a process that is done waits for the others, and how long it may take to leave them at all.
_LEAVING_SECONDS, _LEFT_SECONDS = 5, 60


def make_fabric(
    accelerator: str,
    precision: str | None = None,
    devices: int | str | list[int] | None = None,
    num_nodes: int | None = None,
    strategy: Any = "auto",
    timeout: float | None = None,
) -> Fabric:
    """Return a launched Fabric; the arguments are those of :func:`fvnce.fit` and of its options."""
    # Imported here: it takes as long as torch itself, and only training needs it.
    with warnings.catch_warnings():
        # lightning-utilities imports pkg_resources, which warns of its own deprecation.
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
        from lightning_fabric import Fabric

    if accelerator == "auto" and torch.backends.mps.is_available():
        accelerator = "cpu"  # MPS has no float64, which kernel densities and profiled log-scales need
    torchrun = os.environ if "TORCHELASTIC_RUN_ID" in os.environ else {}
    local, world = int(torchrun.get("LOCAL_WORLD_SIZE", "1")), int(torchrun.get("WORLD_SIZE", "1"))
    how: dict[str, Any] = {
        "accelerator": accelerator,
        "devices": local if devices is None else devices,
        "num_nodes": world // local if num_nodes is None else num_nodes,
        "precision": _validation.choice("precision", precision or "32-true", PRECISIONS),
    }
    fabric = Fabric(strategy=strategy, **how)
    kind = type(fabric.strategy).__name__
    if kind not in ("SingleDeviceStrategy", "DDPStrategy"):
        raise ValueError(f"strategy must be 'auto' or 'ddp', found {strategy!r}; others are not exact here")
    if timeout is not None and kind == "DDPStrategy" and isinstance(strategy, str):
        from lightning_fabric.strategies.ddp import DDPStrategy

        # Only Fabric knows which strategy "auto" selects; nothing has been started yet.
        fabric = Fabric(strategy=DDPStrategy(timeout=timedelta(seconds=timeout)), **how)
    logger = logging.getLogger("lightning_fabric")
    level = logger.level
    logger.setLevel(logging.WARNING)  # it logs how it starts processes
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    try:
        with _ending_with_main():
            fabric.launch()
    finally:
        logger.setLevel(level)
    if fabric.world_size > 1 and not joined:
        atexit.register(_leave_group)
    return fabric


@contextlib.contextmanager
def _ending_with_main() -> Iterator[None]:
    """End this process if Fabric's main process, which started it, ends before all have joined.

    The main process starts the others and then listens for them. If it fails there, as when another program took its
    port, the others would try to reach it for half an hour.
    """
    # The main process may end while the others still import torch, so its number comes by the environment.
    main, joined = os.environ.pop(_MAIN, None), threading.Event()

    def watch() -> None:
        while not joined.wait(0.5):
            if str(os.getppid()) != main:
                os._exit(1)

    if main is None:
        os.environ[_MAIN] = str(os.getpid())
    else:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        joined.set()
        os.environ.pop(_MAIN, None)


def _leave_group() -> None:
    """End the process group that training began.

    Fabric ends groups of nccl only. The threads of gloo must be joined before the interpreter ends: left running, they
    sometimes abort a finished process, and torchrun then reports the whole run as failed.
    """
    if torch.distributed.is_initialized():
        if sys.__stderr__ is not None:
            # Should a thread of gloo not end, the process does, with the stacks of its threads.
            faulthandler.dump_traceback_later(_LEFT_SECONDS, exit=True, file=sys.__stderr__)
        # An object that still refers to the group, such as a wrapped module in a cycle, would keep its threads alive.
        gc.collect()
        if torch.distributed.get_backend() == "gloo":
            # Aborts were seen where a process outlived the one that holds the store, so all leave together. A process
            # that died is not waited for longer than this.
            with contextlib.suppress(RuntimeError):
                torch.distributed.monitored_barrier(timeout=timedelta(seconds=_LEAVING_SECONDS))
        torch.distributed.destroy_process_group()
        gc.collect()
        faulthandler.cancel_dump_traceback_later()


def first_failure(fabric: Fabric, failure: Exception | None) -> Exception | None:
    """Return the first failure of any process, on every process, so that none waits for one that stopped."""
    if fabric.world_size == 1:
        return failure
    everyone: list[Exception | None] = [None] * fabric.world_size
    torch.distributed.all_gather_object(everyone, failure)
    return next((each for each in everyone if each is not None), None)


def on_main(fabric: Fabric, action: Callable[[], object]) -> None:
    """Call ``action`` on the main process and raise its error on all processes."""
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
    """Return the mean, sum or max of a tensor over processes."""
    result = fabric.all_reduce(value.to(fabric.device), reduce_op=how)
    assert isinstance(result, Tensor)
    return result


def bounds(total: int, rank: int, world: int) -> tuple[int, int]:
    """Return where the part of ``rank`` begins and ends: equal parts, the first ones longer by one if needed.

    >>> [bounds(7, rank, 3) for rank in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    each, extra = divmod(total, world)
    low = rank * each + min(rank, extra)
    return low, low + each + (rank < extra)


@contextlib.contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in a list instead of ending the process; a second SIGINT interrupts at once.

    Signals belong to the main thread: in other threads nothing is collected and Ctrl-C does what it always does.
    """
    received: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            # Only Python's own handlers are replaced, not a user's, nor what nohup ignores.
            if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
                before[number] = signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
