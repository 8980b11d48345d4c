"""Conversion of nested state and objects of registered classes to JSON and tensors, and back, without pickle.

The state of an optimizer or a callback is nested dictionaries, lists, tuples, numbers, text and tensors. JSON holds the
nested structure with a reference in place of each tensor; the tensors go into a flat dictionary for safetensors. Floats
are exact: JSON writes the shortest decimal that reads back as the same float64.

An object is stored as the name of its kind and its constructor arguments, which are read from attributes of the same
names, recursively; a module also stores its state. An object that occurs twice is built once. A file can name
registered classes only, so reading it cannot run code:

    register(KernelDensity, stand_ins={"weights": lambda noise: noise.given_weights})

A file of a few hundred bytes can name a layer of 30,000 × 30,000 weights. Classes whose arguments set the size of their
tensors, such as torch's layers, are therefore built on the meta device, which has shapes but no memory, and then
receive the tensors of the file if the shapes agree.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, Uniform

from .._validation import FileError, fields, reading, short

T = TypeVar("T")

_TENSOR, _TUPLE, _PAIRS = "$tensor", "$tuple", "$pairs"
_KIND, _NUMBER, _ARGUMENTS, _METHOD = "$kind", "$id", "$arguments", "method"
#: Maximum number of nested objects, each counted wherever it occurs: a deep chain of modules that each hold the next
#: one twice is small in a file, but takes exponential time to traverse.
MAX_OBJECTS = 100_000


class Kind(NamedTuple):
    """How the objects of one registered class are stored and rebuilt.

    Args:
        name: name of the class in files.
        cls: the class.
        arguments: from an object to its arguments; its error messages are appended to the object's name.
        build: called with the arguments.
        names: arguments that a file may give; None for any.
        methods: methods that a file may refer to.
        retired: arguments in files of earlier versions, which are ignored.
        sized: whether to build it on the meta device.
    """

    name: str
    cls: type
    arguments: Callable[[Any], Mapping[str, Any]]
    build: Callable[..., Any]
    names: frozenset[str] | None = None
    methods: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()
    sized: bool = False


_by_name: dict[str, Kind] = {}
_by_class: dict[type, Kind] = {}
_families: list[Kind] = []
_aliases: dict[type, Callable[[Any], Any]] = {}


def register(
    *classes: type,
    prefix: str = "",
    omit: Iterable[str] = (),
    stand_ins: Mapping[str, Callable[[Any], Any]] | None = None,
    methods: Iterable[str] = (),
    retired: Iterable[str] = (),
    sized: bool = False,
) -> None:
    """Register classes that files may name, with the arguments of their constructors.

    Args:
        classes: classes with an attribute for every argument to store.
        prefix: prefix of the class's name in files.
        omit: arguments that the state restores, or that have no effect once it is loaded.
        stand_ins: functions for arguments that are not attributes of the same name; for an argument that the state
            restores, any valid value.
        methods: methods that other objects may hold, such as a model's posterior in an objective.
        retired: arguments in files of earlier versions that no longer have an effect.
        sized: whether the arguments set the size of tensors, all of which the state restores.

    >>> class Shift:
    ...     def __init__(self, by: float) -> None:
    ...         self.by = by
    >>> register(Shift)
    >>> content, tensors = describe(Shift(2.0))
    >>> rebuild(content, tensors, Shift).by
    2.0
    """
    given, left_out = dict(stand_ins or {}), frozenset(omit)

    def arguments(names: list[str], made: Any) -> dict[str, Any]:
        there = [name for name in names if name in given or hasattr(made, name)]
        return {name: given[name](made) if name in given else getattr(made, name) for name in there}

    for cls in classes:
        names = [name for name in inspect.signature(cls).parameters if name not in left_out]
        options = frozenset(names), frozenset(methods), frozenset(retired), sized
        add(Kind(prefix + cls.__name__, cls, partial(arguments, names), cls, *options))


def add(kind: Kind, *, subclasses: bool = False) -> None:
    """Register a kind with custom functions; with ``subclasses``, for all subclasses as well."""
    known = _by_name.setdefault(kind.name, kind).cls
    if (known.__module__, known.__qualname__) != (kind.cls.__module__, kind.cls.__qualname__):
        raise ValueError(f"kind must have a name of its own, found {kind.name!r} registered for {known.__name__}")
    _by_name[kind.name] = kind
    if subclasses:
        _families.append(kind)
    else:
        _by_class[kind.cls] = kind


def register_alias(cls: type, replace: Callable[[Any], Any]) -> None:
    """Store objects of a class as the result of ``replace``, from which their owner recreates them."""
    _aliases[cls] = replace


def kind_of_class(cls: type) -> Kind | None:
    """Return the kind of a registered class, or None."""
    return _by_class.get(cls) or next((family for family in _families if issubclass(cls, family.cls)), None)


def flatten(value: object, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Split nested state into (content for JSON, tensors by name).

    >>> flatten({"step": 3, "moment": torch.zeros(2)}, "optimizer")
    ({'step': 3, 'moment': {'$tensor': 'optimizer.moment'}}, {'optimizer.moment': tensor([0., 0.])})
    """
    writer = _Writer(objects=False)
    return writer.value(value, prefix), writer.tensors


def unflatten(content: object, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild nested state from the result of :func:`flatten`.

    >>> unflatten(*flatten({0: (1.5, None, torch.ones(1))}))
    {0: (1.5, None, tensor([1.]))}
    """
    return _Reader(tensors, "state", objects=False).value(content)


def describe(made: object, name: str = "module") -> tuple[Any, dict[str, Tensor]]:
    """Convert an object to (content for JSON, tensors), from which :func:`rebuild` makes the same object.

    Args:
        made: a module or a distribution.
        name: name of the object in errors.

    >>> content, tensors = describe(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    >>> rebuild(content, tensors)
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )
    """
    writer = _Writer(objects=True)
    content = {"structure": writer.value(made, name)}
    if isinstance(made, nn.Module):
        content["state"] = writer.value(dict(made.state_dict()), "state")
        content["frozen"] = [name for name, value in made.named_parameters() if not value.requires_grad]
    return content, writer.tensors


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
    """Rebuild an object from the result of :func:`describe`; a module is in evaluation mode.

    Args:
        content: content of :func:`describe`.
        tensors: tensors of :func:`describe`.
        of: required class of the object.
        what: name of the source in errors.
        max_bytes: maximum size of ``tensors``, by default unlimited.

    Raises:
        FileError: if the content has another form, names an unregistered class, or has shapes that do not fit.
    """
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if max_bytes is not None and held > max_bytes:
        raise FileError(f"{what} must hold at most {max_bytes:,} bytes of tensors, found {held:,}; raise max_bytes")
    with reading(what):
        made = _Reader(tensors, what, objects=True).value(content["structure"])
        if not isinstance(made, of):
            raise FileError(f"{what} must describe a {of.__name__}, found a {type(made).__name__}")
        if not isinstance(made, nn.Module):
            fields(content, f"a distribution of {what}", "structure")
            return made
        _, state, frozen = fields(content, f"a module of {what}", "structure", "state", "frozen")
        state = unflatten(state, tensors)
        # Assigned instead of copied, so that every tensor keeps its precision.
        try:
            made.load_state_dict({name: value.clone() for name, value in state.items()}, assign=True)
        except RuntimeError as error:  # the last of several lines names a tensor
            problem = str(error).splitlines()[-1].strip()[:200]
            raise FileError(f"{what} must hold weights that fit its layers, found {problem}") from None
        for name, value in made.named_parameters():
            value.requires_grad_(name not in frozen)
        return made.eval()


class _Writer:
    """Converter of nested state, or with ``objects`` also objects, to content for JSON and tensors by name."""

    def __init__(self, *, objects: bool) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._objects = objects
        # Numbers of objects by id. Temporary objects are kept alive, as their ids must stay unique.
        self._numbers: dict[int, tuple[int, object]] = {}

    def value(self, value: object, path: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            name = path or "value"
            while name in self.tensors:  # {"a.b": …} and {"a": {"b": …}} have the same path
                name += "_"
            self.tensors[name] = value.detach()
            return {_TENSOR: name}
        if isinstance(value, tuple | list):
            items = [self.value(item, _join(path, i)) for i, item in enumerate(value)]
            return items if isinstance(value, list) and not self._objects else {_TUPLE: items}
        if isinstance(value, Mapping):
            pairs = [[key, self.value(item, _join(path, key))] for key, item in value.items()]
            if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
                return dict(pairs)
            for key, _ in pairs:
                if not isinstance(key, int | float | str):
                    raise TypeError(f"keys of {path or 'state'} must be text or numbers, found {key!r}")
            return {_PAIRS: pairs}
        if self._objects:
            return self._object(value, path)
        raise TypeError(
            f"{path or 'state'} must be made of numbers, text, lists, dictionaries and tensors to be stored without "
            f"pickle, found {type(value).__name__}"
        )

    def _object(self, value: Any, path: str) -> dict[str, Any]:
        while type(value) in _aliases:
            value = _aliases[type(value)](value)
        if id(value) in self._numbers:
            return {_NUMBER: self._numbers[id(value)][0]}
        kind = kind_of_class(type(value))
        if kind is None:
            owner = getattr(value, "__self__", None)
            lender = kind_of_class(type(owner))
            if lender is not None and id(owner) in self._numbers and value.__name__ in lender.methods:
                return {_KIND: _METHOD, "of": self._numbers[id(owner)][0], "name": value.__name__}
            raise TypeError(_unknown(value, path))
        try:
            arguments = kind.arguments(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path} {error}") from None
        content = {name: self.value(item, f"{path}.{name}") for name, item in arguments.items()}
        number = len(self._numbers)
        self._numbers[id(value)] = number, value
        return {_KIND: kind.name, _NUMBER: number, _ARGUMENTS: content}


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _unknown(value: object, path: str) -> str:
    possible = "made of fvnce's classes and torch's layers"
    if isinstance(value, Distribution):
        kinds = [kind.cls.__name__ for kind in _by_name.values() if issubclass(kind.cls, Distribution)]
        possible = f"one of {', '.join(kinds)}"
    return f"{path} must be {possible} to be saved, found {type(value).__name__}"


class _Reader:
    """Converter of the output of :class:`_Writer` to nested state, or with ``objects`` to objects."""

    def __init__(self, tensors: Mapping[str, Tensor], what: object, *, objects: bool) -> None:
        self._tensors, self._what, self._objects = tensors, what, objects
        self._made: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        self._count = 0

    def value(self, content: Any) -> Any:
        if isinstance(content, list):
            return [self.value(item) for item in content]
        if not isinstance(content, dict):
            return content
        if _TENSOR in content:
            name = content[_TENSOR]
            if not isinstance(name, str) or name not in self._tensors:
                raise FileError(f"{self._what} refers to a tensor {short(name)} that is not stored with it")
            return self._tensors[name]
        if _TUPLE in content:
            return tuple(self.value(item) for item in content[_TUPLE])
        if _PAIRS in content:
            return {key: self.value(item) for key, item in content[_PAIRS]}
        if not self._objects:
            return {key: self.value(item) for key, item in content.items()}
        if _KIND not in content:
            (number,) = fields(content, f"a reference in {self._what}", _NUMBER)
            made = self._known(number)
            self._add(self._sizes[number])
            return made
        if content[_KIND] == _METHOD:
            _, number, name = fields(content, f"a method in {self._what}", _KIND, "of", "name")
            owner = self._known(number)
            kind = kind_of_class(type(owner))
            if kind is None or not isinstance(name, str) or name not in kind.methods:
                raise FileError(f"{self._what} names a method {short(name)} that {type(owner).__name__} does not allow")
            return getattr(owner, name)
        return self._object(content)

    def _object(self, content: dict[str, Any]) -> Any:
        name, number, arguments = fields(content, f"an object in {self._what}", _KIND, _NUMBER, _ARGUMENTS)
        kind = _by_name.get(name) if isinstance(name, str) else None
        if kind is None:
            raise FileError(f"{self._what} names a class {short(name)} that this version of fvnce does not know")
        if not isinstance(arguments, dict):
            raise FileError(f"{self._what} must name the arguments of {name}, found {short(arguments)}")
        unknown = sorted(arguments.keys() - kind.names - kind.retired) if kind.names is not None else []
        if unknown:
            raise FileError(f"{self._what} gives {name} an argument {short(unknown[0])} that it does not take")
        if not isinstance(number, int) or number in self._made:
            raise FileError(f"{self._what} must number each object once, found {short(number)} for a {name}")
        before, self._count = self._count, 1
        parts = {key: self.value(item) for key, item in arguments.items() if key not in kind.retired}
        with torch.device("meta") if kind.sized else nullcontext():
            made = self._made[number] = kind.build(**parts)
        self._sizes[number], self._count = self._count, before
        self._add(self._sizes[number])
        return made

    def _known(self, number: object) -> Any:
        if not isinstance(number, int) or number not in self._made:
            raise FileError(f"{self._what} refers to an object {short(number)} that it does not hold")
        return self._made[number]

    def _add(self, objects: int) -> None:
        self._count += objects
        if self._count > MAX_OBJECTS:
            raise FileError(f"{self._what} must hold at most {MAX_OBJECTS:,} nested objects, found more")


#: Torch layers that a file may name.
_LAYERS = (
    *("AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Conv1d", "Conv2d"),
    *("Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Dropout", "Dropout2d", "ELU", "Flatten"),
    *("GELU", "GroupNorm", "Hardtanh", "Identity", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "MaxPool1d"),
    *("MaxPool2d", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh", "Unflatten"),
    "Upsample",
)


def _parts(network: nn.Sequential) -> dict[str, nn.Module]:
    # named_children would omit the second occurrence of a shared layer.
    return {name: part for name, part in network.named_modules(remove_duplicate=False) if name and "." not in name}


def _sequential(**parts: nn.Module) -> nn.Sequential:
    network = nn.Sequential()
    for name, part in parts.items():
        network.add_module(name, part)
    return network


def _factor(noise: MultivariateNormal) -> Tensor:
    """Return the factor without the batch dimensions over which torch expands it."""
    factor = noise.scale_tril
    while factor.ndim > 2 and bool((factor == factor[:1]).all()):
        factor = factor[0]
    return factor


register(
    *(getattr(nn, name) for name in _LAYERS),
    prefix="torch.",
    omit=("device", "dtype", "inplace"),
    stand_ins={"bias": lambda layer: layer.bias is not None},
    sized=True,
)
add(Kind("torch.Sequential", nn.Sequential, _parts, _sequential))
# A private attribute; if torch removes it, the default applies.
_validated = {"validate_args": lambda noise: bool(getattr(noise, "_validate_args", True))}
register(Normal, Uniform, prefix="torch.", stand_ins=_validated)
register(
    MultivariateNormal,
    prefix="torch.",
    omit=("covariance_matrix", "precision_matrix"),
    stand_ins={**_validated, "scale_tril": _factor},
)
register(
    Independent,
    prefix="torch.",
    omit=("validate_args",),
    stand_ins={"base_distribution": lambda noise: noise.base_dist},
)
