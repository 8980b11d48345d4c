"""One evaluation of the objective on one batch, for whatever the objective accepts.

Lightning Fabric casts the tensors it is handed to the working precision; log p_n in bfloat16 would be off by nats. So a
batch travels inside an object that Fabric passes through untouched: the networks' products run in the working
precision, densities and ratios stay in float32.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ..objectives import Batch, BatchShare


class Inputs:
    """A batch of data and noise with their log densities, and what came out."""

    __slots__ = ("log_noise_noise", "log_noise_x", "loss", "share", "terms", "x", "x_noise")

    def __init__(
        self,
        x: Tensor,
        x_noise: Tensor | None = None,
        log_noise_x: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
        share: BatchShare | None = None,
    ) -> None:
        self.x = x
        self.x_noise = x_noise
        self.log_noise_x = log_noise_x
        self.log_noise_noise = log_noise_noise
        self.share = share
        self.terms: Any = None
        self.loss: Tensor | None = None

    def summary(self) -> str:
        """The batch in numbers, for an error."""
        named = {
            "x": self.x,
            "x_noise": self.x_noise,
            "log_noise_x": self.log_noise_x,
            "log_noise_noise": self.log_noise_noise,
        }
        return "; ".join(f"{name}: {_describe(value)}" for name, value in named.items() if value is not None)


class Step(nn.Module):
    """The objective as a module from :class:`Inputs` to the loss."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective
        parameters = inspect.signature(objective.forward).parameters.values()
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = {p.name for p in parameters}
        self.takes_noise = getattr(objective, "noise", None) is not None and ("x_noise" in names or anything)
        self.densities = tuple(n for n in ("log_noise_x", "log_noise_noise") if n in names or anything)
        self.takes_batch = callable(getattr(objective, "terms_of", None))
        self.has_terms = callable(getattr(objective, "terms", None))

    def forward(self, inputs: Inputs) -> Tensor:
        """The loss, a scalar."""
        loss = self._of_batch(inputs) if self.takes_batch else self._of_another_make(inputs)
        # Fabric casts what a module returns to the default dtype: good enough to start a backward pass from.
        inputs.loss = loss.detach()
        return loss

    def _of_batch(self, inputs: Inputs) -> Tensor:
        objective: Any = self.objective
        batch = Batch(inputs.x, inputs.x_noise, inputs.log_noise_x, inputs.log_noise_noise, inputs.share)
        inputs.terms = objective.terms_of(batch)
        loss: Tensor = inputs.terms.loss
        return loss

    def _of_another_make(self, inputs: Inputs) -> Tensor:
        objective: Any = self.objective
        arguments: tuple[Tensor | None, ...] = (inputs.x,)
        densities: dict[str, Tensor | None] = {}
        if self.takes_noise:
            arguments = (inputs.x, inputs.x_noise)
            densities = {name: getattr(inputs, name) for name in self.densities}
        if self.has_terms:
            inputs.terms = objective.terms(*arguments, **densities)
            loss = inputs.terms.loss
        else:
            loss = objective(*arguments, **densities)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"objective must return a scalar tensor, found {found}")
        loss = loss if loss.ndim == 0 else loss.reshape(())
        # A loss that knows nothing of processes is taken for a mean over x.
        return loss if inputs.share is None else loss * inputs.share.data


def _describe(value: Tensor) -> str:
    shape = tuple(value.shape)
    if value.numel() == 0 or not value.is_floating_point():
        return f"shape {shape}"
    finite = value[torch.isfinite(value)]
    bad = value.numel() - finite.numel()
    if finite.numel() == 0:
        return f"shape {shape}, nothing finite"
    text = f"shape {shape}, min {finite.min():.4g}, mean {finite.mean():.4g}, max {finite.max():.4g}"
    return f"{text}, {bad} not finite" if bad else text
