r"""Optimizers, learning-rate schedules, and a check of gradients before each step.

:class:`NormalizedSGD` takes steps of a given length whatever the gradient's norm,

    θ ← θ − lr · g/‖g‖.

The gradient of a contrastive objective vanishes exponentially in the distance of data and noise, where plain gradient
descent stands still although the direction is right. With the exponential rule, whose curvature is then moderate, the
number of steps is polynomial in the distance (Liu et al. 2021). All steps are equally long, so a decaying schedule is
what makes it converge.

A gradient may be NaN while the loss is not (the root of 0, times 0), and such a step makes the weights NaN.
The trainer therefore looks at the norm or the sum of all gradients before the optimizer's step, and at each where that
is not finite.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from .. import _validation

OptimizerLike = str | Optimizer | Callable[[list[dict[str, Any]]], Optimizer]
ScheduleLike = str | LRScheduler | Callable[[Optimizer, int], LRScheduler] | None


class NormalizedSGD(Optimizer):
    """Gradient descent with steps of length ``lr``; ``fvnce.fit(…, optimizer="normalized-sgd")``.

    The norm is over all parameters, in float64, so that no gradient is too small for it. Parameter groups with
    their own rate scale the common direction by it.

    Args:
        params: parameters or groups of them.
        lr: the length of a step.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> (1e-30 * weight.square().sum()).backward()
    >>> NormalizedSGD([weight], lr=5.0).step()
    >>> weight.detach()
    tensor([0., 0.])
    """

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": _validation.number("lr", lr, low=0.0), "weight_decay": 0.0})
        for group in self.param_groups:
            if group["weight_decay"]:
                raise ValueError(f"weight_decay must be 0 for normalized steps, found {group['weight_decay']}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; a gradient that is exactly 0 moves nothing."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = [p.grad.double() for group in self.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    unit = torch.where(norm > 0, parameter.grad.double() / norm, torch.zeros_like(norm))
                    parameter.sub_((group["lr"] * unit).to(parameter.dtype))
        return loss


_OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "normalized-sgd": NormalizedSGD,
}

#: Numbers in the gradients of a small network.
_SMALL = 2**16
#: Factor of the learning rate as a function of the fraction of the steps that are done.
_SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    "warmup-cosine": lambda done: done / 0.05 if done < 0.05 else 0.5 * (1 + math.cos(math.pi * (done - 0.05) / 0.95)),
}


def make_optimizer(optimizer: OptimizerLike, objective: nn.Module, lr: float) -> Optimizer:
    """Return an optimizer of the objective's parameters.

    Args:
        optimizer: "adam", "adamw", "sgd" or "normalized-sgd", a function from parameter groups to an optimizer, or an
            optimizer of parameters of the objective.
        objective: the module; if it has a method ``parameter_groups(lr)``, this sets the rates of its parts.
        lr: learning rate.
    """
    grouped: Any = getattr(objective, "parameter_groups", None)
    groups: list[dict[str, Any]] = [{"params": [p for p in objective.parameters() if p.requires_grad], "lr": lr}]
    groups = groups if grouped is None else list(grouped(lr))
    parameters = [p for group in groups for p in group["params"]]
    if not parameters:
        raise ValueError(f"objective must have parameters to train, found none in {type(objective).__name__}")
    if isinstance(optimizer, Optimizer):
        known = {id(p) for p in parameters}
        if not all(id(p) in known for group in optimizer.param_groups for p in group["params"]):
            raise ValueError("optimizer must be of parameters of the objective, found one that also has others")
        return optimizer
    if optimizer == "normalised-sgd":
        warnings.warn(
            "optimizer='normalised-sgd' is deprecated; use 'normalized-sgd'", DeprecationWarning, stacklevel=4
        )
        optimizer = "normalized-sgd"
    if isinstance(optimizer, str):
        make: Callable[..., Optimizer] = _OPTIMIZERS[_validation.choice("optimizer", optimizer, tuple(_OPTIMIZERS))]
        # Fused kernels know these types and devices.
        fused = optimizer != "normalized-sgd" and all(
            p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in parameters
        )
        return make(groups, lr=lr, fused=True) if fused else make(groups, lr=lr)
    made: object = optimizer(groups) if callable(optimizer) else optimizer
    if not callable(optimizer) or not isinstance(made, Optimizer):
        text = "optimizer must be a name or a function such as lambda groups: torch.optim.SGD(groups, lr=0.1)"
        raise TypeError(f"{text}, found {type(made).__name__}")
    return made


def make_schedule(schedule: ScheduleLike, optimizer: Optimizer, total_steps: int | None) -> LRScheduler | None:
    """Return a scheduler that is stepped once after every training step, or None for a constant rate.

    >>> optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> make_schedule("cosine", optimizer, 10).get_last_lr()
    [1.0]
    """
    if schedule is None or schedule == "constant":
        return None
    if isinstance(schedule, LRScheduler):
        made = schedule
    elif total_steps is None:
        raise ValueError(f"schedule must be None for data of unknown length, found {schedule!r}")
    elif isinstance(schedule, str):
        factor = _SCHEDULES[_validation.choice("schedule", schedule, ("constant", *_SCHEDULES))]
        # A warm-up that began at rate 0 would waste its first step.
        shift = 1 if schedule.startswith("warmup") else 0
        return LambdaLR(optimizer, lambda step: factor(min(1.0, (step + shift) / total_steps)))
    else:
        try:
            made = schedule(optimizer, total_steps)
        except TypeError as error:
            example = "lambda optimizer, steps: LinearLR(optimizer, 1, 0, steps)"
            text = f"schedule must be a name, a scheduler of torch, or a function such as {example}"
            raise TypeError(f"{text}, found {schedule!r} ({error})") from error
    if not isinstance(made, LRScheduler) or isinstance(made, ReduceLROnPlateau):
        kind = type(made).__name__
        raise TypeError(f"schedule must return a torch LRScheduler that needs nothing but steps, found {kind}")
    if made.optimizer is not optimizer:
        raise ValueError("schedule must be of the optimizer that is passed to fit, found one of another optimizer")
    return made


def gradient_size(parameters: Iterable[Tensor]) -> Tensor:
    """Return a number, on the device, that is finite only if all gradients are; huge ones may overflow it."""
    gradients = [gradient for p in parameters if (gradient := p.grad) is not None]
    kinds = {(each.dtype, each.layout, each.device) for each in gradients}
    # Of a small network the calls cost more than the copy of its gradients.
    dense = len(kinds) == 1 and gradients[0].layout is torch.strided
    if dense and sum(map(Tensor.numel, gradients)) <= _SMALL:
        flat: Tensor = _flatten_dense_tensors(gradients)
        return flat.sum()
    return get_total_norm([_dense(each) for each in gradients])


def non_finite_gradients(module: nn.Module) -> list[str]:
    """Return the names of the parameters whose gradient is not finite.

    >>> layer = nn.Linear(2, 1)
    >>> layer(torch.tensor([[1.0, torch.inf]])).sum().backward()
    >>> gradient_size(layer.parameters()), non_finite_gradients(layer)
    (tensor(inf), ['weight'])
    """
    gradients = ((name, p.grad) for name, p in module.named_parameters() if p.grad is not None)
    return [name for name, gradient in gradients if not bool(torch.isfinite(_dense(gradient)).all())]


def _dense(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
