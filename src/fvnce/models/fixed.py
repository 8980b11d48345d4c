"""Modules that hold a fixed distribution, so that it moves and is saved with the module it belongs to.

A torch distribution is not a module, so ``.double()`` and ``.to(device)`` of an objective would not move its noise.
This module finds and moves every tensor and module in a distribution: in component distributions, transforms, lists,
tuples and dictionaries, and behind bound methods and ``functools.partial``, by which flows call their networks. Tensors
in the closure of a function are not found.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform, constraints

from .distributions import wide

TensorMap = Callable[[Tensor], Tensor]


class FixedDistribution(nn.Module):
    """Module that holds a fixed distribution, or a fixed function from contexts to distributions.

    Networks inside the distribution, such as those of a flow, are copied. The copies stay in evaluation mode, without
    gradients, and are not in ``parameters()``, so p_n does not change. Their weights are in ``state_dict()``. To learn
    the distribution, train the original module and pass the result to a new objective.

    Half precision becomes float32, as the error of log-densities would be whole nats.

    Args:
        distribution: the distribution or function.
    """

    distribution: Distribution

    def __init__(self, distribution: Distribution) -> None:
        super().__init__()
        copies: dict[int, Any] = {}

        def fixed(module: nn.Module) -> nn.Module:
            known = id(module) in copies
            copied = copy.deepcopy(module, copies)  # one memo for all copies, so that shared parts stay shared
            if not known:
                self._modules[str(len(self._modules))] = copied.requires_grad_(False).eval()._apply(wide)
            return copied

        # Not by setattr: a distribution that is itself a module would be registered as a trainable part.
        self.__dict__["distribution"] = map_parts(distribution, wide, fixed)

    # Torch saves and loads the networks, but code that trains or counts parameters must not see them.

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield no children, because the networks inside are fixed."""
        return iter(())

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yield the module itself, without the networks inside."""
        memo = set() if memo is None else memo
        if self not in memo:
            memo.update({self} if remove_duplicate else ())
            yield prefix, self

    def _apply(self, fn: TensorMap, recurse: bool = True) -> FixedDistribution:
        function = at_least_single(fn)
        for network in self._modules.values():
            network._apply(function)  # type: ignore[union-attr]
        self.__dict__["distribution"] = map_parts(self.distribution, function, lambda module: module)
        return self

    def forward(self) -> Distribution:
        """Return the distribution or function."""
        return self.distribution

    def __repr__(self) -> str:
        return f"FixedDistribution({self.distribution!r})"


def at_least_single(function: TensorMap) -> TensorMap:
    """Wrap a function of tensors so that it does not round below float32."""

    def moved(tensor: Tensor) -> Tensor:
        result = function(tensor)
        return result if wide(result) is result else tensor.to(result.device, torch.float32)

    return moved


def map_tensors(distribution: Distribution, function: TensorMap) -> Distribution:
    """Return a copy of a distribution with ``function`` applied to every tensor in it, including those of its modules.

    The copy does not validate its arguments: objectives do, and name the row in the error.
    """
    return map_parts(distribution, function, lambda module: copy.deepcopy(module)._apply(function))


def map_parts(distribution: Distribution, tensor: TensorMap, module: Callable[[nn.Module], nn.Module]) -> Distribution:
    """Return a copy of a distribution with every tensor and every module in it replaced."""
    # Visited objects and their copies, as a part may refer back to the whole.
    copies: dict[int, tuple[Any, Any]] = {}

    def mapped(value: Any) -> Any:
        if isinstance(value, Tensor):
            return tensor(value)
        if isinstance(value, nn.Module):
            return module(value)
        if isinstance(value, Distribution) and hasattr(value, "mapped"):  # it holds state besides its tensors
            return value.mapped(tensor)
        if isinstance(value, (Distribution, Transform, constraints.Constraint)):
            return copied(value)
        if type(value) in (list, tuple):
            return type(value)(mapped(item) for item in value)
        if type(value) is dict:
            return {key: mapped(item) for key, item in value.items()}
        if isinstance(value, functools.partial):
            named = {name: mapped(item) for name, item in value.keywords.items()}
            return functools.partial(mapped(value.func), *map(mapped, value.args), **named)
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, mapped(value.__self__))
        return value

    def copied(value: Any) -> Any:
        if id(value) in copies:
            return copies[id(value)][1]
        copies[id(value)] = value, copy.copy(value)
        held, kept_as_is = copies[id(value)][1].__dict__, getattr(value, "kept_as_is", ())
        for name, item in vars(value).items():
            # A transform holds its inverse by a weak reference; the copy makes a new one when needed.
            held[name] = None if isinstance(item, weakref.ref) else item if name in kept_as_is else mapped(item)
        if isinstance(value, Distribution):
            held["_validate_args"] = False
        return copies[id(value)][1]

    result: Distribution = mapped(distribution)
    return result
