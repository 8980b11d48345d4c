"""Devices, precision and processes, all from Lightning Fabric.

Under ``torchrun`` the number of processes is taken from its environment, so the same call runs on one device, on
several, and on several machines.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any

from .. import _checks

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Precisions in which parameters stay float32 or float64; log-ratios of hundreds of nats need no less.
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")
_ALONE = threading.Lock()


def make_fabric(
    *,
    accelerator: str = "auto",
    devices: int | str | list[int] | None = None,
    num_nodes: int | None = None,
    strategy: Any = "auto",
    precision: str | None = None,
) -> Fabric:
    """A launched Fabric."""
    # Filters of warnings and levels of loggers belong to the whole process: two threads would leave them changed.
    with _ALONE:
        return _launched(accelerator, devices, num_nodes, strategy, precision)


def _launched(
    accelerator: str, devices: int | str | list[int] | None, num_nodes: int | None, strategy: Any, precision: str | None
) -> Fabric:
    # Imported here: it takes as long as torch itself, and only training needs it.
    with warnings.catch_warnings():
        # lightning-utilities imports pkg_resources, whose deprecation is its own affair.
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
        from lightning_fabric import Fabric

    if precision is not None:
        _checks.choice("precision", precision, PRECISIONS)
    outside = os.environ.get("TORCHELASTIC_RUN_ID") is not None
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if outside else 1
    world = int(os.environ.get("WORLD_SIZE", "1")) if outside else 1
    fabric = Fabric(
        accelerator=accelerator,
        devices=local if devices is None else devices,
        num_nodes=world // local if num_nodes is None else num_nodes,
        strategy=strategy,
        precision=precision or "32-true",  # type: ignore[arg-type]
    )
    if type(fabric.strategy).__name__ not in ("SingleDeviceStrategy", "DDPStrategy"):
        raise ValueError(
            f"strategy must be 'auto' or 'ddp', found {strategy!r}: checkpoints and gradients are only exact with those"
        )
    # What it says about its processes is for those who debug it.
    logger = logging.getLogger("lightning_fabric")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        fabric.launch()
    finally:
        logger.setLevel(before)
    return fabric
