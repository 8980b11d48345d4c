"""What fails on one of two processes, and what both then do. Called with a results folder; each writes what it saw."""

from __future__ import annotations

import errno
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fvnce.training import FitOptions, fit
from fvnce.training.checkpoint import Checkpoints
from training_runs import contrastive, digest, rows

OPTIONS = FitOptions(devices=2, strategy="ddp", timeout=777.0)
HOW: dict[str, Any] = {"accelerator": "cpu", "progress": False, "options": OPTIONS}


def run(folder: Path, epochs: int, **settings: Any) -> str:
    objective = contrastive()
    fit(objective, rows(40), epochs=epochs, batch_size=5, seed=2, checkpoint_dir=folder, **HOW, **settings)
    return digest(objective)


@contextmanager
def full_disk() -> Iterator[None]:
    """On the main process nothing reaches the disk."""
    real = os.fsync

    def full(handle: int) -> None:
        if dist.get_rank() == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    os.fsync = full
    try:
        yield
    finally:
        os.fsync = real


def seen(act: Callable[[], Any]) -> dict[str, Any]:
    """What an action came to: its result or its error, and its warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found: dict[str, Any] = {"result": act()}
        except (OSError, RuntimeError, ValueError) as error:
            found = {"error": type(error).__name__, "says": str(error)}
    return {**found, "warnings": [str(item.message) for item in told]}


def no_space_at_the_end(folder: Path) -> dict[str, Any]:
    """The first checkpoint is good, and the last cannot be written."""
    run(folder, 1)
    with full_disk():
        return seen(lambda: run(folder, 2, resume=True)) | {"steps": Checkpoints(folder).steps()}


def main() -> None:
    torch.set_num_threads(1)
    home = Path(sys.argv[1])
    found: dict[str, Any] = {"full": no_space_at_the_end(home / "full")}
    backend: Any = dist.group.WORLD
    found["timeout"] = backend._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    found["never"] = run(home / "never", 3)
    run(home / "damaged", 2)
    if dist.get_rank() == 0:
        (home / "damaged" / "step-000000008.safetensors").write_bytes(b"torn")
    dist.barrier()
    found["damaged"] = seen(lambda: run(home / "damaged", 3, resume=True))
    with ExitStack() as held:
        if dist.get_rank() == 0:
            held.enter_context(Checkpoints(home / "never").locked())
        dist.barrier()
        found["locked"] = seen(lambda: run(home / "never", 3, resume=True))
    changed = {"resume": True, "lr": 0.5}
    found["changed"] = seen(lambda: run(home / "never", 3, **changed))
    (home / f"{dist.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
