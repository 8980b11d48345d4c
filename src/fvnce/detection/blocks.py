"""Evaluation of torch modules that is reproducible to the last bit whatever the other rows, as in ``products``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

#: Rows of a product; the last block is filled up with zeros.
BLOCK = 256
#: Sizes of the factors of a product are multiples of this.
EVEN = 16

_MATMUL = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


def in_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return ``function`` of rows, computed in blocks of one size and with even products.

    >>> in_blocks(lambda rows: rows.sum(1), torch.ones(300, 2)).shape
    torch.Size([300])
    """
    filled = torch.cat([x, x.new_zeros(-len(x) % BLOCK, *x.shape[1:])]) if len(x) % BLOCK or not len(x) else x
    with EvenProducts():
        # Each block is a copy in aligned memory: the last bit may depend on the address of factors as well.
        return torch.cat([function(block.clone()) for block in filled.split(BLOCK)])[: len(x)]


class EvenProducts(TorchFunctionMode):
    """Context in which factors of products are padded with zeros to sizes that are multiples of :data:`EVEN`.

    >>> with EvenProducts():
    ...     (torch.ones(2, 3) @ torch.ones(3, 4)).shape
    torch.Size([2, 4])
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pad the factors of products; call other functions unchanged."""
        if func is functional.linear and not kwargs:
            x, weight, *bias = args
            bias = [_even(b, 1) for b in bias if b is not None]
            return func(_even(x, 1), _even(weight, 2), *bias)[..., : len(weight)]
        if func in _MATMUL and args[0].ndim > 1 and args[1].ndim > 1:
            return func(_even(args[0], 1), _even(args[1], 2))[..., : args[1].shape[-1]]
        return func(*args, **(kwargs or {}))


def _even(x: Tensor, dims: int) -> Tensor:
    """Pad the last dimensions with zeros at their ends."""
    padding = [added for size in reversed(x.shape[-dims:]) for added in (0, -size % EVEN)]
    return functional.pad(x, padding) if any(padding) else x
