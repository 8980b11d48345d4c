"""Distributions that are given and not learned, as modules: they move, and are saved, with what they are part of.

A torch distribution is no module, so ``.double()`` and ``.to(device)`` of an objective would leave its noise behind.
Here every tensor in it, and every module, is found and moved: those of the distributions it is made of, of their
transforms, in lists, tuples and dictionaries, and behind the bound methods and ``functools.partial`` by which flows
call their networks. What hides in the closure of a function is not found.
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
    """A given distribution as a module, or a given function from contexts to distributions.

    Networks inside the distribution, such as those of a flow, are copied, and the copies fixed: in evaluation mode
    whatever the mode of the objective, not among the ``parameters()`` that an optimizer is given, and without
    gradients, so that p_n stays what it was. Their weights are in ``state_dict()``. To learn the distribution instead,
    train the module it comes from and give the result to a new objective.

    Nothing is kept in half precision, whose log-densities would be off by whole nats: asked for it, the distribution is
    in float32.
    """

    distribution: Distribution

    def __init__(self, distribution: Distribution) -> None:
        super().__init__()
        copies: dict[int, Any] = {}

        def fixed(module: nn.Module) -> nn.Module:
            known = id(module) in copies
            copied = copy.deepcopy(module, copies)  # one memory for all, so that what is shared stays so
            if not known:
                self._modules[str(len(self._modules))] = copied.requires_grad_(False).eval()._apply(wide)
            return copied

        # Not by setattr: a distribution that is itself a module would be taken for a part to train.
        self.__dict__["distribution"] = map_parts(distribution, wide, fixed)

    # Networks are among the modules that torch saves and loads, and hidden from all that train or count parameters.

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Return nothing: networks inside are fixed."""
        return iter(())

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Return the module itself, without the networks inside."""
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
        """Return the distribution that is held."""
        return self.distribution

    def __repr__(self) -> str:
        return f"FixedDistribution({self.distribution!r})"


def at_least_single(function: TensorMap) -> TensorMap:
    """Return a function that moves a tensor, without rounding it below float32."""

    def moved(tensor: Tensor) -> Tensor:
        result = function(tensor)
        return result if wide(result) is result else tensor.to(result.device, torch.float32)

    return moved


def map_tensors(distribution: Distribution, function: TensorMap) -> Distribution:
    """Return a copy of a distribution with every tensor in it passed through ``function``, also those of its modules.

    The copy does not validate its arguments: objectives do, and name the row.
    """
    return map_parts(distribution, function, lambda module: copy.deepcopy(module)._apply(function))


def map_parts(distribution: Distribution, tensor: TensorMap, module: Callable[[nn.Module], nn.Module]) -> Distribution:
    """Return a copy of a distribution with every tensor and every module in it replaced."""
    # What was met, and its copy: a part may refer back to the whole.
    copies: dict[int, tuple[Any, Any]] = {}

    def mapped(value: Any) -> Any:
        if isinstance(value, Tensor):
            return tensor(value)
        if isinstance(value, nn.Module):
            return module(value)
        if isinstance(value, Distribution) and hasattr(value, "mapped"):  # it holds more than its tensors
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
            # The inverse of a transform, once asked for, is referred to weakly; a new one is made when asked.
            held[name] = None if isinstance(item, weakref.ref) else item if name in kept_as_is else mapped(item)
        if isinstance(value, Distribution):
            held["_validate_args"] = False
        return copies[id(value)][1]

    result: Distribution = mapped(distribution)
    return result
