"""``fit``: train an objective, watch it, stop it, resume it.

A run is a function of (objective, data, settings, seed). All that it depends on is in its checkpoints, so a run that is
killed and resumed ends with the bits of one that never was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from .. import _checks
from .._random import alone, preserve_rng_state
from .callbacks import Callback, EarlyStopping, FunctionCallback, make_progress
from .checkpoint import Checkpoints
from .distributed import make_fabric, on_main
from .history import History
from .loop import Run
from .optimiser import OptimizerLike, ScheduleLike


def fit(
    objective: nn.Module,
    data: object,
    *,
    validation: object = None,
    epochs: int = 10,
    batch_size: int = 128,
    optimizer: OptimizerLike = "adam",
    lr: float = 1e-3,
    schedule: ScheduleLike = None,
    grad_clip: float | None = None,
    seed: int | None = None,
    seed_globals: bool = True,
    noise_pool: int | None = None,
    early_stopping: int | EarlyStopping | None = None,
    callbacks: Iterable[Callback | Callable[[Any], None]] = (),
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    keep_last: int = 2,
    resume: bool | str | Path = False,
    accept_changes: bool = False,
    progress: bool | None = None,
    log_every: int = 50,
    validate_every: int = 1,
    accelerator: str = "auto",
    devices: int | str | list[int] | None = None,
    num_nodes: int | None = None,
    strategy: Any = "auto",
    precision: str | None = None,
    timeout: float | None = None,
) -> History:
    """Train ``objective`` in place and return what happened.

    Args:
        objective: a module from a batch of rows to a scalar loss. One with a distribution ``noise`` is also handed
            noise samples and log densities, as ``objective(x, x_noise, log_noise_x=…, log_noise_noise=…)``.
        data: rows as a tensor, an array, a memory map, or a DataLoader that gives tensors or lists that begin with one.
        validation: held-out rows, not a DataLoader; the history gains columns ``val_…``.
        epochs: passes over the data.
        batch_size: rows of a step on each process; a DataLoader has its own.
        optimizer: "adam", "adamw", "sgd", "normalised-sgd", or a function from parameter groups to an optimiser.
        lr: learning rate.
        schedule: None or "constant", "cosine", "linear", "warmup-cosine", or a function (optimizer, total steps) →
            LRScheduler, stepped every step.
        grad_clip: the largest norm of the gradient.
        seed: an integer; by default drawn from torch's global generator. The caller's random states are the same after
            as before.
        seed_globals: False leaves the global generators of torch, numpy and Python alone, neither seeded nor read: for
            objectives that draw from generators of their own, and for runs in several threads, which share them. Then
            a seed must be given, data must be rows, and there are no checkpoints.
        noise_pool: rows of the pool of noise, 0 for fresh noise at every step, None to choose by cost.
        early_stopping: epochs without a better ``val_loss`` after which to stop and take the best weights, or an
            :class:`EarlyStopping`.
        callbacks: :class:`Callback` objects, or functions that are called with the run after each epoch.
        checkpoint_dir: folder for the checkpoints of this run.
        checkpoint_every: steps between checkpoints, by default an epoch.
        keep_last: checkpoints kept.
        resume: True continues from the newest checkpoint in ``checkpoint_dir`` that can be read, if there is one, and
            warns of those that cannot; a path, from that file. Objective, data and settings must be those of the run.
        accept_changes: resume although they are not; a warning says what differs. The weights and the optimiser's
            moments are those of the checkpoint, all else is as asked for now.
        progress: show a bar; by default if standard error is a terminal.
        log_every: steps between two that record the objective's statistics, beside the last of each epoch. The loss is
            recorded at each.
        validate_every: epochs between validations.
        accelerator: "cpu", "cuda", "mps", …, as Lightning Fabric has it, or "auto": CUDA where there is a device, else
            the CPU. MPS has no float64, so kernel densities cannot run on it, and "auto" does not choose it.
        devices: how many devices of this machine, or which; 1 by default, under torchrun its number of processes.
        num_nodes: number of machines; under torchrun found from its environment.
        strategy: "auto" or "ddp".
        precision: "32-true", "64-true", "bf16-mixed" or "16-mixed".
        timeout: seconds that a process waits for the others before it gives up, by default half an hour. It holds from
            the moment processes join, so for all runs of a script.

    Raises:
        NonFiniteLoss: the loss or a gradient became infinite or NaN. The weights and the last checkpoint are from
            before the step.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP ended the run, after its state was saved; a script exits with the
            shell's code.
        FolderInUse: another process writes to ``checkpoint_dir``.

    >>> class Mean(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.mean = nn.Parameter(torch.zeros(()))
    ...
    ...     def forward(self, x):
    ...         return ((x - self.mean) ** 2).mean()
    >>> objective = Mean()
    >>> history = fit(objective, torch.full((100, 1), 3.0), epochs=50, batch_size=10, lr=0.1, seed=0)
    >>> round(objective.mean.item(), 2)
    3.0
    """
    if not isinstance(objective, nn.Module):
        raise TypeError(f"objective must be a torch module with parameters to train, found {type(objective).__name__}")
    settings = Settings(
        epochs, batch_size, optimizer, lr, schedule, grad_clip, noise_pool, log_every, validate_every, checkpoint_every
    )
    checkpoints = None if checkpoint_dir is None else Checkpoints(checkpoint_dir, _checks.count("keep_last", keep_last))
    if resume and checkpoints is None and resume is True:
        raise ValueError("checkpoint_dir must be given to resume from its newest checkpoint, found None")
    chosen = [callback if isinstance(callback, Callback) else FunctionCallback(callback) for callback in callbacks]
    if early_stopping is not None:
        chosen.append(early_stopping if isinstance(early_stopping, EarlyStopping) else EarlyStopping(early_stopping))
    if not seed_globals:
        _check_own_generators(seed, data, checkpoints)
    with ExitStack() as held:
        if seed_globals:
            held.enter_context(alone())
        # Filters of warnings and levels of loggers belong to the whole process: two threads would leave them changed.
        with alone():
            fabric = make_fabric(accelerator, devices, num_nodes, strategy, precision, timeout)
        if seed is None:
            seed = fabric.broadcast(int(torch.randint(2**31 - 1, ())))
        seed = _checks.count("seed", seed, low=0)
        held.enter_context(preserve_rng_state(fabric.device, seed_globals))
        if checkpoints is not None:
            on_main(fabric, lambda: held.enter_context(checkpoints.locked()))
        bar = make_progress(progress, main_process=fabric.is_global_zero)
        held.callback(bar.close)
        run = Run(objective, data, validation, settings, seed, chosen, checkpoints, fabric, bar, seed_globals)
        return run.train(resume, accept_changes=accept_changes)


def _check_own_generators(seed: int | None, data: object, checkpoints: Checkpoints | None) -> None:
    """What needs the global generators is refused where they are to be left alone."""
    if seed is None:
        raise ValueError("seed must be given where seed_globals is False, found None")
    if isinstance(data, DataLoader):
        raise ValueError("data must be rows where seed_globals is False, found a DataLoader, which draws its own seed")
    if checkpoints is not None:
        raise ValueError(
            f"checkpoint_dir must be None where seed_globals is False, found {checkpoints.folder}: it would not hold "
            "an objective's own generators"
        )


@dataclass(frozen=True)
class Settings:
    """What a run is a function of, beside objective, data and seed. See :func:`fit`."""

    epochs: int
    batch_size: int
    optimizer: OptimizerLike
    lr: float
    schedule: ScheduleLike
    grad_clip: float | None
    noise_pool: int | None
    log_every: int
    validate_every: int
    checkpoint_every: int | None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "log_every", "validate_every"):
            _checks.count(name, getattr(self, name))
        _checks.number("lr", self.lr, low=0.0)
        if self.grad_clip is not None:
            _checks.number("grad_clip", self.grad_clip, low=0.0, open_low=True)
        if self.noise_pool is not None:
            _checks.count("noise_pool", self.noise_pool, low=0)
        if self.checkpoint_every is not None:
            _checks.count("checkpoint_every", self.checkpoint_every)

    def validates_after(self, epoch: int) -> bool:
        """Whether validation is due after an epoch: every few of them, and the last."""
        return (epoch + 1) % self.validate_every == 0 or epoch + 1 == self.epochs

    def resume_key(self) -> dict[str, Any]:
        """Settings that a resumed run must share with the one it continues."""
        named: dict[str, Any] = {
            "batch_size": self.batch_size,
            "optimizer": _text(self.optimizer),
            "lr": float(self.lr),
            "schedule": _text(self.schedule),
            "grad_clip": self.grad_clip,
            "noise_pool": self.noise_pool,
        }
        if self.schedule not in (None, "constant"):
            named["epochs"] = self.epochs
        return named


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else getattr(value, "__qualname__", type(value).__name__)
