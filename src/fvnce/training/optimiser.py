"""The optimiser and the learning rate's course, from a name or from the user's own function."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from .normalised import NormalisedSGD

OptimizerLike = str | Callable[[list[dict[str, Any]]], Optimizer]
ScheduleLike = str | Callable[[Optimizer, int], LRScheduler] | None

_OPTIMISERS: dict[str, type[Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "normalised-sgd": NormalisedSGD,
}

#: Factor of the learning rate as a function of the share of the steps that are done.
_SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    "warmup-cosine": lambda done: done / 0.05 if done < 0.05 else 0.5 * (1 + math.cos(math.pi * (done - 0.05) / 0.95)),
}


def make_optimizer(optimizer: OptimizerLike, objective: nn.Module, lr: float, *, fused: bool) -> Optimizer:
    """An optimiser for the objective's parameters.

    Args:
        optimizer: "adam", "adamw", "sgd" or "normalised-sgd", or a function from parameter groups to an optimiser.
        objective: its ``parameter_groups(lr)``, where it has that method, may give parts of it their own rates.
        lr: learning rate.
        fused: use the fused kernels where every parameter has a type they know.
    """
    own = getattr(objective, "parameter_groups", None)
    groups: list[dict[str, Any]]
    if own is not None:
        groups = list(own(lr))
    else:
        groups = [{"params": [p for p in objective.parameters() if p.requires_grad], "lr": lr}]
    parameters = [p for group in groups for p in group["params"]]
    if not parameters:
        raise ValueError(f"objective must have parameters to train, found none in {type(objective).__name__}")
    if not isinstance(optimizer, str):
        made = optimizer(groups)
        if not isinstance(made, Optimizer):
            raise TypeError(f"optimizer must return a torch optimiser, found {type(made).__name__}")
        return made
    if optimizer not in _OPTIMISERS:
        raise ValueError(
            f"optimizer must be one of {', '.join(map(repr, _OPTIMISERS))} or a function, found {optimizer!r}"
        )
    known = optimizer != "normalised-sgd" and all(
        p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in parameters
    )
    make: Callable[..., Optimizer] = _OPTIMISERS[optimizer]
    return make(groups, lr=lr, fused=True) if fused and known else make(groups, lr=lr)


def make_schedule(schedule: ScheduleLike, optimizer: Optimizer, total_steps: int | None) -> LRScheduler | None:
    """A scheduler that is stepped once after every training step, or None for a constant rate.

    >>> optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> make_schedule("cosine", optimizer, 10).get_last_lr()
    [1.0]
    """
    if schedule is None or schedule == "constant":
        return None
    if total_steps is None:
        raise ValueError(f"schedule must be None for data of unknown length, found {schedule!r}")
    if not isinstance(schedule, str):
        made = schedule(optimizer, total_steps)
        if not isinstance(made, LRScheduler):
            raise TypeError(f"schedule must return a torch LRScheduler, found {type(made).__name__}")
        return made
    if schedule not in _SCHEDULES:
        names = ", ".join(map(repr, ("constant", *_SCHEDULES)))
        raise ValueError(f"schedule must be one of {names}, None or a function, found {schedule!r}")
    course = _SCHEDULES[schedule]
    # A warm-up that began at rate 0 would waste its first step.
    shift = 1 if schedule.startswith("warmup") else 0
    return LambdaLR(optimizer, lambda step: course(min(1.0, (step + shift) / total_steps)))


def take_over(optimizer: Optimizer, schedule: LRScheduler | None, saved: dict[str, Any], steps: int) -> None:
    """Go on from an optimiser's saved state with other settings: its moments stay, its rates and the like do not.

    Args:
        optimizer: as it was just made.
        schedule: as it was just made; it is led to where it stands after ``steps`` steps.
        saved: state of the optimiser before; one of another kind, with other moments, is not taken over.
        steps: steps done.
    """
    own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    aside = {"params", "initial_lr"}  # the latter is a schedule's
    if [group.keys() - aside for group in own] == [group.keys() - aside for group in saved["param_groups"]]:
        optimizer.load_state_dict(saved)
        for group, values in zip(optimizer.param_groups, own, strict=True):
            group.update(values)
    if schedule is not None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            for _ in range(steps):
                schedule.step()
