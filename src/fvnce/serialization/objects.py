"""Nested state and objects of registered classes as JSON and tensors, and back, without pickle.

An optimiser's or a callback's state is a nest of dictionaries, lists, tuples, numbers, text and tensors. JSON takes the
nest with a reference in place of each tensor; the tensors go, by name, into a flat dictionary for safetensors. Floats
survive exactly: JSON writes the shortest decimal that reads back as the same float64.

An object becomes the name of its kind and the arguments it was made with, down to numbers, text and tensors; a module
also gives its state. Objects that occur twice are built once.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from torch import Tensor, nn
from torch.distributions import Distribution

from .records import RecordError, fields, reading, shown
from .registry import Budget, allowed, kind_named, kind_of_class, names_of, resolve_alias

_TENSOR, _TUPLE, _PAIRS = "$tensor", "$tuple", "$pairs"
_RESERVED = (_TENSOR, _TUPLE, _PAIRS)


def flatten(value: object, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """(what JSON holds, tensors by name) of a nest.

    >>> import torch
    >>> flatten({"step": 3, "moment": torch.zeros(2)}, "optimizer")
    ({'step': 3, 'moment': {'$tensor': 'optimizer.moment'}}, {'optimizer.moment': tensor([0., 0.])})
    """
    tensors: dict[str, Tensor] = {}
    return _flatten(value, prefix, tensors), tensors


def unflatten(content: object, tensors: Mapping[str, Tensor]) -> Any:
    """The nest that :func:`flatten` took apart.

    >>> import torch
    >>> unflatten(*flatten({0: (1.5, None, torch.ones(1))}))
    {0: (1.5, None, tensor([1.]))}
    """
    if isinstance(content, list):
        return [unflatten(item, tensors) for item in content]
    if not isinstance(content, dict):
        return content
    if _TENSOR in content:
        name = content[_TENSOR]
        if not isinstance(name, str) or name not in tensors:
            raise RecordError(f"state refers to a tensor {shown(name)} that is not stored with it")
        return tensors[name]
    if _TUPLE in content:
        return tuple(unflatten(item, tensors) for item in content[_TUPLE])
    if _PAIRS in content:
        return {key: unflatten(item, tensors) for key, item in content[_PAIRS]}
    return {key: unflatten(item, tensors) for key, item in content.items()}


def _flatten(value: object, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        name = path or "value"
        while name in tensors:  # {"a.b": …} and {"a": {"b": …}} have the same path
            name += "_"
        tensors[name] = value.detach()
        return {_TENSOR: name}
    if isinstance(value, tuple):
        return {_TUPLE: [_flatten(item, _join(path, i), tensors) for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [_flatten(item, _join(path, i), tensors) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        items = [(key, _flatten(item, _join(path, key), tensors)) for key, item in value.items()]
        if all(isinstance(key, str) and key not in _RESERVED for key, _ in items):
            return dict(items)
        for key, _ in items:
            if not isinstance(key, int | float | str):
                raise TypeError(f"keys of {path or 'state'} must be text or numbers, found {key!r}")
        return {_PAIRS: [list(item) for item in items]}
    raise TypeError(
        f"{path or 'state'} must be made of numbers, text, lists, dictionaries and tensors to be stored without "
        f"pickle, found {type(value).__name__}"
    )


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


T = TypeVar("T")

_REF, _KIND, _ARGUMENTS = "$id", "$kind", "$arguments"
_METHOD = "method"
#: Objects within one another, counted where they stand: a network of two that hold each the same two, and so on, is
#: small in a file and endless to walk through.
MAX_OBJECTS = 100_000


def describe(made: object, name: str = "module") -> tuple[Any, dict[str, Tensor]]:
    """(what JSON can hold, tensors) from which :func:`rebuild` makes the same object.

    Args:
        made: a module or a distribution.
        name: what errors call it.

    >>> content, tensors = describe(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    >>> rebuild(content, tensors)
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )
    """
    found: dict[str, Any] = {"structure": _Describer().value(made, name)}
    if isinstance(made, nn.Module):
        found["state"] = dict(made.state_dict())
        found["frozen"] = [name for name, value in made.named_parameters() if not value.requires_grad]
    return flatten(found)


@overload
def rebuild(
    content: Any, tensors: Mapping[str, Tensor], *, what: object = ..., max_bytes: int | None = ...
) -> nn.Module: ...


@overload
def rebuild(
    content: Any, tensors: Mapping[str, Tensor], of: type[T], *, what: object = ..., max_bytes: int | None = ...
) -> T: ...


def rebuild(
    content: Any,
    tensors: Mapping[str, Tensor],
    of: type[Any] = nn.Module,
    *,
    what: object = "the file",
    max_bytes: int | None = None,
) -> Any:
    """The object that :func:`describe` described; a module is in evaluation mode.

    Args:
        content: from :func:`describe`, perhaps by way of a file.
        tensors: likewise.
        of: the class that it must be of.
        what: what errors call its source.
        max_bytes: what building it may allocate, by default four times what ``tensors`` take and 64 MiB.

    Raises:
        RecordError: if the content is not of that form, names what is not registered, or asks for more than that.
    """
    with reading(what):
        found = unflatten(content, tensors)
        structure = found["structure"]
        with Budget(allowed(tensors, max_bytes), what):
            made = _Builder(what).value(structure)
        if not isinstance(made, of):
            raise RecordError(f"{what} must describe a {of.__name__}, found a {type(made).__name__}")
        if isinstance(made, nn.Module):
            _, state, frozen = fields(found, f"a module of {what}", "structure", "state", "frozen")
            _restore(made, state, frozen)
        else:
            fields(found, f"a distribution of {what}", "structure")
        return made


def _restore(module: nn.Module, state: Mapping[str, Tensor], frozen: list[str]) -> None:
    # Assigned, and not copied into what was built: every tensor comes back in its own precision.
    module.load_state_dict({name: value.clone() for name, value in state.items()}, assign=True)
    for name, value in module.named_parameters():
        value.requires_grad_(name not in frozen)
    module.eval()


class _Describer:
    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        # Objects made on the way must live as long as their ids are remembered.
        self._kept: list[object] = []

    def value(self, value: object, path: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            return value.detach()
        if isinstance(value, tuple | list):
            return tuple(self.value(item, f"{path}[{i}]") for i, item in enumerate(value))
        value = resolve_alias(value)
        if id(value) in self._seen:
            return {_REF: self._seen[id(value)]}
        if inspect.ismethod(value):
            return self._method(value, path)
        kind = kind_of_class(type(value))
        if kind is None:
            raise TypeError(_unknown(value, path))
        try:
            arguments = kind.arguments(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path} {error}") from None
        made = {name: self.value(item, f"{path}.{name}") for name, item in arguments.items()}
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return {_KIND: kind.name, _REF: self._seen[id(value)], _ARGUMENTS: made}

    def _method(self, method: Any, path: str) -> dict[str, Any]:
        kind = kind_of_class(type(method.__self__))
        if id(method.__self__) not in self._seen or kind is None or method.__name__ not in kind.methods:
            raise TypeError(_unknown(method, path))
        return {_KIND: _METHOD, "of": self._seen[id(method.__self__)], "name": method.__name__}


def _unknown(value: object, path: str) -> str:
    if isinstance(value, Distribution):
        known = ", ".join(names_of(Distribution))
        return f"{path} must be one of {known} to be saved, found {type(value).__name__}"
    return (
        f"{path} must be made of fvnce's classes and torch's layers to be rebuilt from a file, found "
        f"{type(value).__name__}"
    )


class _Builder:
    def __init__(self, what: object) -> None:
        self._what = what
        self._made: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        # Objects in what has been built since the count was last set to zero.
        self._count = 0

    def value(self, content: Any) -> Any:
        if isinstance(content, tuple):
            return tuple(self.value(item) for item in content)
        if not isinstance(content, dict):
            return content
        if _KIND not in content:
            (number,) = fields(content, f"a reference in {self._what}", _REF)
            made = self._known(number)
            self._add(self._sizes[number])
            return made
        if content[_KIND] == _METHOD:
            return self._method(content)
        return self._make(content)

    def _make(self, content: dict[str, Any]) -> Any:
        name, number, arguments = fields(content, f"an object in {self._what}", _KIND, _REF, _ARGUMENTS)
        kind = kind_named(name) if isinstance(name, str) else None
        if kind is None:
            raise RecordError(f"{self._what} names a class {shown(name)} that this version of fvnce does not know")
        if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
            raise RecordError(f"{self._what} must name the arguments of {name}, found {type(arguments).__name__}")
        unknown = sorted(arguments.keys() - kind.names) if kind.names is not None else []
        if unknown:
            raise RecordError(f"{self._what} gives {name} an argument {shown(unknown[0])} that it does not take")
        if not isinstance(number, int) or number in self._made:
            raise RecordError(f"{self._what} must number its objects, each once, found {shown(number)} for a {name}")
        before, self._count = self._count, 1
        parts = {key: self.value(item) for key, item in arguments.items() if key not in kind.retired}
        made = self._made[number] = kind.build(**parts)
        self._sizes[number], self._count = self._count, before
        self._add(self._sizes[number])
        return made

    def _method(self, content: dict[str, Any]) -> Any:
        _, number, name = fields(content, f"a method in {self._what}", _KIND, "of", "name")
        owner = self._known(number)
        kind = kind_of_class(type(owner))
        if kind is None or not isinstance(name, str) or name not in kind.methods:
            raise RecordError(f"{self._what} names a method {shown(name)} that {type(owner).__name__} does not lend")
        return getattr(owner, name)

    def _known(self, number: object) -> Any:
        if not isinstance(number, int) or number not in self._made:
            raise RecordError(f"{self._what} refers to an object {shown(number)} that it does not hold")
        return self._made[number]

    def _add(self, objects: int) -> None:
        self._count += objects
        if self._count > MAX_OBJECTS:
            raise RecordError(f"{self._what} must hold at most {MAX_OBJECTS:,} objects within one another, found more")
