"""Whether the values of tensors can be looked at: not under torch.compile, nor under vmap and its kin."""

from __future__ import annotations

import torch


def values_are_hidden() -> bool:
    """True while a compiler or a function transform is tracing."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
