"""What rebuilding an object may allocate, decided before it is allocated.

A file of a few hundred bytes can name a layer of 30,000 × 30,000 weights. What an honest file makes its reader allocate
is what the file itself holds, so a constructor may ask for a few times that and a small allowance. A tensor that a
constructor asks for is first made on the meta device, which has shapes and no memory, and counted there.

What a constructor draws at random is zero in its place: the file's weights overwrite it, and a global generator is
neither read nor changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .errors import RecordError

#: Bytes that the smallest file may make its reader allocate.
ALLOWANCE = 64 * 2**20
#: Times what a file holds: a constructor works in float32 where the file may hold half of that, and keeps constants.
FACTOR = 4

#: What a tensor and the layer it belongs to take, however small: a file must not ask for millions of them either.
OVERHEAD = 4096

#: Makers of tensors whose size is an argument.
_FACTORIES: frozenset[Callable[..., Any]] = frozenset(
    getattr(torch, name)
    for name in (
        *("arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand", "randint"),
        *("randn", "randperm", "tril_indices", "triu_indices", "zeros"),
    )
)
#: Methods that enlarge a tensor by an argument.
_METHODS: frozenset[Callable[..., Any]] = frozenset(
    getattr(Tensor, name) for name in ("new_empty", "new_full", "new_ones", "new_zeros", "repeat", "tile")
)
_DRAWS: frozenset[Callable[..., Any]] = frozenset((torch.rand, torch.randn))
_DRAWS_IN_PLACE: frozenset[Callable[..., Any]] = frozenset(
    getattr(Tensor, name) for name in ("bernoulli_", "exponential_", "normal_", "random_", "uniform_")
)
#: Initialisations of weights, which are functions of their own to whoever watches.
_INITIALISATIONS: frozenset[Callable[..., Any]] = frozenset(
    getattr(torch.nn.init, name)
    for name in (
        *("kaiming_normal_", "kaiming_uniform_", "normal_", "orthogonal_", "sparse_", "trunc_normal_", "uniform_"),
        *("xavier_normal_", "xavier_uniform_"),
    )
)
#: Arguments that the meta device does not take or that only say where.
_WHERE = ("device", "generator", "out", "pin_memory")


class Budget(TorchFunctionMode):
    """Within the block, tensors that are made may take so many bytes in all.

    Args:
        max_bytes: how many.
        what: what an error calls the source of the numbers.

    >>> with Budget(1000):
    ...     torch.nn.Linear(30_000, 30_000)
    Traceback (most recent call last):
    fvnce.serialization.errors.RecordError: the file asks for 3,600,004,096 bytes more than it holds weights for, of \
1,000 allowed; if you trust it, raise max_bytes
    """

    def __init__(self, max_bytes: int, what: object = "the file") -> None:
        super().__init__()
        self.max_bytes, self.what = max_bytes, what
        self.taken = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count, then call."""
        named = dict(kwargs or {})
        if func in _FACTORIES:
            self._take(func(*args, **{k: v for k, v in named.items() if k not in _WHERE}, device="meta"))
        elif func in _METHODS:
            self._take(func(args[0].to("meta"), *args[1:], **{k: v for k, v in named.items() if k not in _WHERE}))
        if func in _DRAWS:
            named.pop("generator", None)
            return torch.zeros(*args, **named)
        if func in _DRAWS_IN_PLACE or func in _INITIALISATIONS:
            return (named["tensor"] if "tensor" in named else args[0]).detach().zero_()
        return func(*args, **named)

    def _take(self, tensor: Tensor) -> None:
        wanted = self.taken + _size(tensor)
        if wanted > self.max_bytes:
            raise RecordError(
                f"{self.what} asks for {wanted:,} bytes more than it holds weights for, of {self.max_bytes:,} allowed; "
                "if you trust it, raise max_bytes"
            )
        self.taken = wanted


def allowed(tensors: Mapping[str, Tensor], max_bytes: int | None) -> int:
    """The budget of a file with these tensors, unless told."""
    if max_bytes is not None:
        return max_bytes
    return ALLOWANCE + FACTOR * sum(map(_size, tensors.values()))


def _size(tensor: Tensor) -> int:
    return OVERHEAD + tensor.numel() * tensor.element_size()
