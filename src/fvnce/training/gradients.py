"""Whether every gradient is finite, asked before the optimiser takes its step.

A gradient may be NaN while the loss is not (the root of 0, times 0), and one such step spoils every weight it reaches.
The question is put to all gradients in one kernel, the one that loss scaling uses, with a scale of 1, which changes no
bit of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

#: Absent or with other arguments in a torch to come, the plain way is taken.
_KERNEL: Callable[..., None] | None = getattr(torch, "_amp_foreach_non_finite_check_and_unscale_", None)


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


def _dense(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
