r"""What changes the weights: the optimiser, the learning rate's course, and a look at the gradients before each step.

Gradient descent may go a given length at every step, whatever the gradient's:

    θ ← θ − lr · g/‖g‖

The gradient of a contrastive objective vanishes exponentially in the distance of data and noise, and plain descent
stands still there. Its direction is still right. With the exponential rule, whose curvature is then moderate, the
number of steps is polynomial in the distance (Liu et al. 2021). As every step is as long as the last, a schedule that
decays is what makes it converge.

A gradient may be NaN while the loss is not (the root of 0, times 0), and one such step spoils every weight it reaches.
So all gradients are asked before the optimiser takes its step, in one kernel, the one that loss scaling uses, with a
scale of 1, which changes no bit of them.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from .. import _checks

OptimizerLike = str | Callable[[list[dict[str, Any]]], Optimizer]
ScheduleLike = str | Callable[[Optimizer, int], LRScheduler] | None

#: Where it is absent, has other arguments in a torch to come, or is not made for a device, the plain way is taken.
_KERNEL: Callable[..., None] | None = getattr(torch, "_amp_foreach_non_finite_check_and_unscale_", None)


class NormalisedSGD(Optimizer):
    """Steps of length ``lr`` against the gradient; ``fvnce.fit(…, optimizer="normalised-sgd")``.

    The norm is over all parameters, in float64, so that no gradient is too small for it. Groups with a rate of their
    own go their rate's share of the common direction.

    Args:
        params: parameters or groups of them.
        lr: the length of a step.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> (1e-30 * weight.square().sum()).backward()
    >>> NormalisedSGD([weight], lr=5.0).step()
    >>> weight.detach()
    tensor([0., 0.])
    """

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": _checks.number("lr", lr, low=0.0), "weight_decay": 0.0})
        for group in self.param_groups:
            if group["weight_decay"]:
                raise ValueError(f"weight_decay must be 0 for normalised steps, found {group['weight_decay']}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; a gradient that is exactly 0 moves nothing."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients: list[Tensor] = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not gradients:
            return loss
        norm = torch.stack([gradient.double().norm() for gradient in gradients]).norm()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    unit = torch.where(norm > 0, parameter.grad.double() / norm, torch.zeros_like(norm))
                    parameter.sub_((group["lr"] * unit).to(parameter.dtype))
        return loss


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
        if not callable(optimizer):
            raise TypeError(
                f"optimizer must be a name or a function from parameter groups to an optimizer, found "
                f"{type(optimizer).__name__}; pass a function such as lambda groups: torch.optim.SGD(groups, lr=0.1)"
            )
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
        if not _takes_two(schedule):
            raise TypeError(
                "schedule must be a name or a function of two arguments, the optimizer and the total number of steps, "
                f"found {schedule!r}; pass a function such as lambda optimizer, steps: LinearLR(optimizer, 1, 0, steps)"
            )
        made = schedule(optimizer, total_steps)
        if not isinstance(made, LRScheduler):
            raise TypeError(f"schedule must return a torch LRScheduler, found {type(made).__name__}")
        if isinstance(made, ReduceLROnPlateau):
            raise TypeError("schedule must return a scheduler that is stepped by steps alone, found ReduceLROnPlateau")
        return made
    if schedule not in _SCHEDULES:
        names = ", ".join(map(repr, ("constant", *_SCHEDULES)))
        raise ValueError(f"schedule must be one of {names}, None or a function, found {schedule!r}")
    course = _SCHEDULES[schedule]
    # A warm-up that began at rate 0 would waste its first step.
    shift = 1 if schedule.startswith("warmup") else 0
    return LambdaLR(optimizer, lambda step: course(min(1.0, (step + shift) / total_steps)))


def _takes_two(function: object) -> bool:
    """Whether a call with two arguments is possible, as far as Python can see."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # built in, without a signature
        pass
    return True


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


class GradientCheck:
    """Notices a gradient that is not finite.

    Args:
        module: the parameters' owner, by which they are named.
        device: where they are.

    >>> layer = nn.Linear(2, 1)
    >>> check = GradientCheck(layer, torch.device("cpu"))
    >>> layer(torch.tensor([[1.0, torch.inf]])).sum().backward()
    >>> check.note(), check.names()
    (tensor(1.), ['weight'])
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        # Embeddings give sparse gradients always or never; the kernel knows neither those nor other dtypes.
        kinds = [isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse for part in module.modules()]
        known = {p.dtype for _, p in self._named} <= {torch.float32, torch.float64}
        self._groups: dict[torch.dtype, list[Tensor]] = {}
        for _, parameter in self._named:
            self._groups.setdefault(parameter.dtype, []).append(parameter)
        # The kernel wants float32 for these two, whatever the gradients and the default are.
        self._found = torch.zeros((), device=device, dtype=torch.float32)
        self._one = torch.ones((), device=device, dtype=torch.float32)
        self._fused = known and not any(kinds) and self._kernel_works()

    def note(self) -> Tensor:
        """Above 0 if a gradient is not finite, now or at an earlier call; an accelerator is not waited for."""
        for parameters in self._groups.values():
            gradients = [gradient for p in parameters if (gradient := p.grad) is not None]
            if self._fused:
                assert _KERNEL is not None
                _KERNEL(gradients, self._found, self._one)
            else:
                for gradient in gradients:
                    self._found.add_((~torch.isfinite(_dense(gradient))).any())
        return self._found

    def _kernel_works(self) -> bool:
        try:
            _KERNEL([self._one.clone()], self._found, self._one)  # type: ignore[misc]
        except (RuntimeError, TypeError):  # None cannot be called
            return False
        return True

    def names(self) -> list[str]:
        """Parameters whose gradient is not finite now."""
        return [n for n, p in self._named if p.grad is not None and not bool(torch.isfinite(_dense(p.grad)).all())]


def _dense(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
