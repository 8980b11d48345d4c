"""One step: the objective on one batch, for whatever the objective accepts, and whether what came out is finite.

Lightning Fabric casts the tensors it is handed to the working precision; log p_n in bfloat16 would be off by nats. So a
batch travels inside an object that Fabric passes through untouched: the networks' products run in the working
precision, densities and ratios stay in float32.

A gradient may be NaN while the loss is not (the root of 0, times 0), and one such step spoils every weight it reaches.
So all gradients are asked before the optimiser takes its step, in one kernel, the one that loss scaling uses, with a
scale of 1, which changes no bit of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..objectives import Batch, Objective

#: Absent or with other arguments in a torch to come, the plain way is taken.
_KERNEL: Callable[..., None] | None = getattr(torch, "_amp_foreach_non_finite_check_and_unscale_", None)


class StepOutput:
    """A batch on its way through the objective, and what comes out: the loss, and the terms of one that has them."""

    __slots__ = ("batch", "loss", "terms")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.terms: Any = None
        self.loss: Tensor | None = None


class Step(nn.Module):
    """The objective as a module that fills a :class:`StepOutput` and returns the loss."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective
        parameters = inspect.signature(objective.forward).parameters.values()
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = {p.name for p in parameters}
        self.takes_noise = getattr(objective, "noise", None) is not None and ("x_noise" in names or anything)
        self.densities = tuple(n for n in ("log_noise_x", "log_noise_noise") if n in names or anything)
        terms = getattr(objective, "terms", None)
        self.has_terms = callable(terms)
        # Whoever has put terms of their own in the place of ours wants those to be trained.
        self.takes_batch = getattr(terms, "__func__", None) is Objective.terms

    def forward(self, output: StepOutput) -> Tensor:
        """The loss, a scalar."""
        objective: Any = self.objective
        loss: Tensor
        if self.takes_batch:
            output.terms = objective.terms_of(output.batch)
            loss = output.terms.loss
        else:
            loss = self._of_another_make(output)
        # Fabric casts what a module returns to the default dtype: good enough to start a backward pass from.
        output.loss = loss.detach()
        return loss

    def _of_another_make(self, output: StepOutput) -> Tensor:
        objective: Any = self.objective
        batch = output.batch
        arguments: tuple[Tensor | None, ...] = (batch.x,)
        densities: dict[str, Tensor | None] = {}
        if self.takes_noise:
            arguments = (batch.x, batch.x_noise)
            densities = {name: getattr(batch, name) for name in self.densities}
        if self.has_terms:
            output.terms = objective.terms(*arguments, **densities)
            loss = output.terms.loss
        else:
            loss = objective(*arguments, **densities)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"objective must return a scalar tensor, found {found}")
        loss = loss if loss.ndim == 0 else loss.reshape(())
        # A loss that knows nothing of processes is taken for a mean over x.
        return loss if batch.share is None else loss * batch.share.data


class GradientCheck:
    """Notices a gradient that is not finite.

    Args:
        module: the parameters' owner, by which they are named.
        device: where they are.

    >>> layer = nn.Linear(2, 1)
    >>> check = GradientCheck(layer, torch.device("cpu"))
    >>> layer(torch.tensor([[1.0, torch.inf]])).sum().backward()
    >>> check.note()
    >>> check.found(), check.names()
    (True, ['weight'])
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        # Embeddings give sparse gradients always or never; the kernel knows neither those nor other dtypes.
        kinds = [isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse for part in module.modules()]
        known = {p.dtype for _, p in self._named} <= {torch.float32, torch.float64}
        self._groups: dict[torch.dtype, list[Tensor]] = {}
        for _, parameter in self._named:
            self._groups.setdefault(parameter.dtype, []).append(parameter)
        self._fused = known and not any(kinds)
        # The kernel wants float32 for these two, whatever the gradients and the default are.
        self._found = torch.zeros((), device=device, dtype=torch.float32)
        self._one = torch.ones((), device=device, dtype=torch.float32)

    def note(self) -> None:
        """Look at the gradients as they are now; an accelerator is not waited for."""
        for parameters in self._groups.values():
            gradients = [gradient for p in parameters if (gradient := p.grad) is not None]
            if self._fused and _KERNEL is not None:
                _KERNEL(gradients, self._found, self._one)
            else:
                for gradient in gradients:
                    self._found.add_((~torch.isfinite(_dense(gradient))).any())

    def found(self) -> bool:
        """Whether any gradient that was looked at was not finite."""
        return self._found.item() != 0

    def names(self) -> list[str]:
        """Parameters whose gradient is not finite now."""
        return [n for n, p in self._named if p.grad is not None and not bool(torch.isfinite(_dense(p.grad)).all())]


def describe_batch(batch: Batch) -> str:
    """A batch in numbers, for an error."""
    named = {
        "x": batch.x,
        "x_noise": batch.x_noise,
        "log_noise_x": batch.log_noise_x,
        "log_noise_noise": batch.log_noise_noise,
    }
    return "; ".join(f"{name}: {_describe(value)}" for name, value in named.items() if value is not None)


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


def _dense(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
