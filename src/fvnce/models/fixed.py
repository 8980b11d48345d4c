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
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform, constraints

from .. import _checks

TensorMap = Callable[[Tensor], Tensor]


class FixedDistribution(nn.Module):
    """A distribution without parameters of its own, as a module.

    Networks inside the distribution, such as those of a flow, are copied, and the copies fixed: in evaluation mode
    whatever the mode of the objective, not among the ``parameters()`` that an optimiser is given, and without
    gradients, so that p_n stays what it was. Their weights are in ``state_dict()``. To learn the distribution instead,
    train the module it comes from and give the result to a new objective.

    Nothing is kept in half precision, whose log-densities would be off by whole nats: asked for it, the distribution is
    in float32.
    """

    distribution: Distribution

    def __init__(self, distribution: Distribution) -> None:
        super().__init__()
        self._networks: list[nn.Module] = []
        copies: dict[int, Any] = {}

        def own(module: nn.Module) -> nn.Module:
            known = id(module) in copies
            made = copy.deepcopy(module, copies)  # one memory for all, so that what is shared stays so
            if not known:
                self._networks.append(made.requires_grad_(False).eval()._apply(wide))
            return made

        self._hold(map_parts(distribution, wide, own))

    def _hold(self, distribution: Distribution) -> None:
        # Not by setattr: a distribution that is itself a module would be taken for a part to train.
        self.__dict__["distribution"] = distribution

    def _apply(self, fn: TensorMap, recurse: bool = True) -> FixedDistribution:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        function = at_least_single(fn)
        for network in self._networks:
            network._apply(function)
        self._hold(map_parts(self.distribution, function, lambda module: module))
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for position, network in enumerate(self._networks):
            network.state_dict(destination=destination, prefix=f"{prefix}{position}.", keep_vars=keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        known: set[str] = set()
        for position, network in enumerate(self._networks):
            start = f"{prefix}{position}."
            inside = {name.removeprefix(start): value for name, value in state_dict.items() if name.startswith(start)}
            known |= {start + name for name in inside}
            try:
                found = network.load_state_dict(
                    inside, strict=False, assign=bool(local_metadata.get("assign_to_params_buffers", False))
                )
            except RuntimeError as error:  # a tensor of another shape
                error_msgs.append(str(error))
                continue
            network.requires_grad_(False)
            missing_keys += [start + name for name in found.missing_keys]
            unexpected_keys += [start + name for name in found.unexpected_keys]
        if strict:
            unexpected_keys += [name for name in state_dict if name.startswith(prefix) and name not in known]

    def forward(self) -> Distribution:
        """The distribution."""
        return self.distribution

    def extra_repr(self) -> str:
        """The distribution's own."""
        return repr(self.distribution)


def wide(tensor: Tensor) -> Tensor:
    """The tensor, in float32 if it was in half precision.

    >>> wide(torch.zeros(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if _checks.is_half(tensor) else tensor


def at_least_single(function: TensorMap) -> TensorMap:
    """A function that moves a tensor, without taking it, or rounding it, below float32."""

    def moved(tensor: Tensor) -> Tensor:
        found = function(tensor)
        return tensor.to(found.device, torch.float32) if _checks.is_half(found) else found

    return moved


def map_tensors(distribution: Distribution, function: TensorMap) -> Distribution:
    """A copy of a distribution with every tensor in it passed through ``function``, also those of its modules.

    The copy does not validate what it is asked: objectives do, with words that name the row.
    """
    return map_parts(distribution, function, lambda module: copy.deepcopy(module)._apply(function))


def map_parts(distribution: Distribution, tensor: TensorMap, module: Callable[[nn.Module], nn.Module]) -> Distribution:
    """A copy of a distribution with every tensor and every module in it replaced."""
    made: Distribution = _Walk(tensor, module).value(distribution)
    return made


class _Walk:
    def __init__(self, tensor: TensorMap, module: Callable[[nn.Module], nn.Module]) -> None:
        self.tensor, self.module = tensor, module
        # What was met, and its copy: a part may refer back to the whole.
        self.made: dict[int, tuple[Any, Any]] = {}

    def value(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, nn.Module):
            return self.module(value)
        if isinstance(value, Distribution) and hasattr(value, "mapped"):  # it holds more than its tensors
            return value.mapped(self.tensor)
        if isinstance(value, (Distribution, Transform, constraints.Constraint)):
            return self._copied(value)
        if type(value) in (list, tuple):
            return type(value)(self.value(item) for item in value)
        if type(value) is dict:
            return {key: self.value(item) for key, item in value.items()}
        if isinstance(value, functools.partial):
            arguments = {name: self.value(item) for name, item in value.keywords.items()}
            return functools.partial(self.value(value.func), *map(self.value, value.args), **arguments)
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.value(value.__self__))
        return value

    def _copied(self, value: Any) -> Any:
        if id(value) in self.made:
            return self.made[id(value)][1]
        held = dict(vars(value))
        if isinstance(value, Transform):
            # Its inverse, once asked for, is referred to weakly and refers back to it; a new one is made when asked.
            held = {name: None if isinstance(item, weakref.ref) else item for name, item in held.items()}
        moved = copy.copy(value)
        self.made[id(value)] = (value, moved)
        alone = getattr(value, "kept_as_is", ())
        moved.__dict__.update({name: item if name in alone else self.value(item) for name, item in held.items()})
        if isinstance(value, Distribution):
            moved._validate_args = False
        return moved
