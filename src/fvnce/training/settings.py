"""The settings of a training: the arguments of ``fit``, and the options that few people need."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ParamSpec, TypeVar

from .. import _validation
from .optimizer import OptimizerLike, ScheduleLike

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of :func:`fvnce.fit` that few people need.

    Args:
        noise_pool: rows of the pool of noise, 0 for fresh noise at every step, None to choose by cost.
        checkpoint_every: steps between checkpoints, by default an epoch.
        keep_last: how many checkpoints are kept.
        log_every: steps between two that record the objective's statistics, besides the last of each epoch. The loss
            is recorded at every step.
        validate_every: epochs between validations; the last epoch is always validated.
        seed_globals: False neither seeds nor reads the global generators of torch, NumPy and Python: for objectives
            that draw from generators of their own, and for trainings in several threads, which share them. Then a seed
            must be given, data must be rows, and there are no checkpoints.
        devices: how many devices of this machine, or which; 1 by default, under torchrun its number of processes.
        num_nodes: number of machines; under torchrun read from its environment.
        strategy: "auto" or "ddp".
        timeout: seconds that a process waits for the others before it gives up, by default half an hour. It holds from
            the moment processes join, so for all trainings of a script.

    >>> FitOptions(noise_pool=-1)
    Traceback (most recent call last):
    ValueError: noise_pool must be an integer >= 0, found -1
    """

    noise_pool: int | None = None
    checkpoint_every: int | None = None
    keep_last: int = 2
    log_every: int = 50
    validate_every: int = 1
    seed_globals: bool = True
    devices: int | str | list[int] | None = None
    num_nodes: int | None = None
    strategy: Any = "auto"
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("keep_last", "log_every", "validate_every", "checkpoint_every", "epochs", "batch_size"):
            if getattr(self, name, None) is not None:
                _validation.count(name, getattr(self, name))
        if self.noise_pool is not None:
            _validation.count("noise_pool", self.noise_pool, low=0)
        for name in ("timeout", "grad_clip"):
            if getattr(self, name, None) is not None:
                _validation.number(name, getattr(self, name), low=0.0, open_low=True)


@dataclass(frozen=True, kw_only=True)
class TrainerSettings(FitOptions):
    """All settings of a training: the options, and the arguments of :func:`fvnce.fit` of these names."""

    epochs: int
    batch_size: int
    optimizer: OptimizerLike
    lr: float
    schedule: ScheduleLike
    grad_clip: float | None

    def __post_init__(self) -> None:
        super().__post_init__()
        _validation.number("lr", self.lr, low=0.0)

    def validates_after(self, epoch: int) -> bool:
        """Return whether validation is due after an epoch."""
        return (epoch + 1) % self.validate_every == 0 or epoch + 1 == self.epochs


def accepts_old_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Let ``fit`` take its options as keywords of its own for one more version, with a DeprecationWarning."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.pop("accept_changes", False):
            raise TypeError("accept_changes must be left out; call load_weights and fit into another folder instead")
        moved: Any = {name: kwargs.pop(name) for name in [field.name for field in fields(FitOptions)] if name in kwargs}
        if moved:
            kwargs["options"] = replace(kwargs.get("options") or FitOptions(), **moved)  # type: ignore[type-var]
            old = f"fit({', '.join(moved)}) is deprecated and will be removed in the next version"
            new = ", ".join(f"{name}={value!r}" for name, value in moved.items())
            warnings.warn(f"{old}; use fit(options=fvnce.training.FitOptions({new}))", DeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    return call
