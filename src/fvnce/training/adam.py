"""Adam for a CPU, without what torch's does around its kernel.

torch's optimiser collects its tensors anew at every step and counts the step of each apart. For a network of four
layers that costs as much as a small layer. Here they are collected once, and one addition counts for all; the kernel is
torch's, and so is every bit of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Adam(torch.optim.Adam):
    """torch's Adam with ``fused=True`` and its defaults, for parameters that are all on the CPU.

    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> optimizer = Adam([weight], lr=0.1)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight
    Parameter containing:
    tensor([0.9000, 0.9000, 0.9000], requires_grad=True)
    """

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, lr=lr, fused=True)
        self._collected: dict[int, _Collected] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load a state, whose tensors are not the ones that were collected."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._collected = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group."""
        super().add_param_group(param_group)
        self._collected = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for position, group in enumerate(self.param_groups):
            collected = self._collected.get(position)
            if collected is None or any(parameter.grad is None for parameter in collected.parameters):
                collected = _Collected(self, group)
                if len(collected.parameters) == len(group["params"]):
                    collected.count_together(self)
                    self._collected[position] = collected
            collected.step(group)
        return loss


class _Collected:
    """The tensors of those parameters of a group that have a gradient."""

    def __init__(self, optimizer: Adam, group: dict[str, Any]) -> None:
        self.parameters: list[Tensor] = []
        self.means: list[Tensor] = []
        self.squares: list[Tensor] = []
        self.largest: list[Tensor] = []
        self.steps: list[Tensor] = []
        optimizer._init_group(  # type: ignore[no-untyped-call]
            group, self.parameters, [], self.means, self.squares, self.largest, self.steps
        )
        self.together: Tensor | None = None

    def count_together(self, optimizer: Adam) -> None:
        """The steps of all become views of one tensor, so that one addition counts for all."""
        self.together = torch.stack(self.steps)
        self.steps = list(self.together.unbind())
        for parameter, step in zip(self.parameters, self.steps, strict=True):
            optimizer.state[parameter]["step"] = step

    def step(self, group: dict[str, Any]) -> None:
        if not self.parameters:
            return
        if self.together is None:
            torch._foreach_add_(self.steps, 1)
        else:
            self.together.add_(1)
        torch._fused_adam_(
            self.parameters,
            [parameter.grad for parameter in self.parameters],  # type: ignore[misc]
            self.means,
            self.squares,
            self.largest,
            self.steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=group["amsgrad"],
            maximize=group["maximize"],
        )
