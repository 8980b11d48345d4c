"""What a file may make its reader build: which classes, and how much memory.

Torch's layers and plain distributions are registered here, and every room of the package registers its own classes
where it defines them. Nothing else can be named in a file, so a file cannot make its reader run code. An object is
described by the arguments of its constructor, read from attributes of the same names, and rebuilt by calling it:

    register(KernelDensity, stand_ins={"weights": lambda noise: noise.given_weights})

A file of a few hundred bytes can name a layer of 30,000 × 30,000 weights. What an honest file makes its reader allocate
is what the file itself holds, so a constructor may ask for a few times that and a small allowance. A tensor that a
constructor asks for is first made on the meta device, which has shapes and no memory, and counted there. What it draws
at random is zero in its place: the file's weights overwrite it, and a global generator is neither read nor changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal, Normal, Uniform
from torch.overrides import TorchFunctionMode

from .records import RecordError


@dataclass(frozen=True)
class Kind:
    """How the objects of one name in a file are taken apart and built.

    Args:
        name: what the file calls it.
        cls: the class.
        arguments: from an object to the arguments it is built with; what it raises is said of the object.
        build: what is called with them.
        names: the arguments that a file may give; None if they are names of parts.
        methods: those of its methods that a file may refer to.
        retired: arguments and attributes in files of earlier versions, which are left out.
    """

    name: str
    cls: type
    arguments: Callable[[Any], Mapping[str, Any]]
    build: Callable[..., Any]
    names: frozenset[str] | None = None
    methods: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()


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
    check: Callable[[Any], None] | None = None,
    retired: Iterable[str] = (),
) -> None:
    """Let files name these classes, by the arguments of their constructors.

    Args:
        classes: each has an attribute for every argument that matters.
        prefix: put before the class's name in the file.
        omit: arguments that the state restores, or that do not matter once it has.
        stand_ins: arguments that are not attributes of the same name; where the state restores one, anything valid
            will do until then.
        methods: methods that another object may have been given, as an objective is given a model's posterior.
        check: raises for an object that cannot be saved; the message goes on from the object's name.
        retired: arguments and attributes in files of earlier versions that have no effect any more.

    >>> class Shift:
    ...     def __init__(self, by: float) -> None:
    ...         self.by = by
    >>> register(Shift)
    >>> kind_of_class(Shift).arguments(Shift(2.0))
    {'by': 2.0}
    """
    given, left_out = dict(stand_ins or {}), frozenset(omit)
    for cls in classes:
        names = tuple(name for name in inspect.signature(cls).parameters if name not in left_out)

        def arguments(made: Any, names: tuple[str, ...] = names) -> dict[str, Any]:
            if check is not None:
                check(made)
            found = {name: given[name](made) for name in names if name in given}
            return {n: found[n] if n in found else getattr(made, n) for n in names if n in found or hasattr(made, n)}

        add(Kind(prefix + cls.__name__, cls, arguments, cls, frozenset(names), frozenset(methods), frozenset(retired)))


def add(kind: Kind, *, subclasses: bool = False) -> None:
    """Register a kind that is not described by its constructor; with ``subclasses``, for them all."""
    known = _by_name.setdefault(kind.name, kind)
    if known.cls is not kind.cls and (known.cls.__module__, known.cls.__qualname__) != (
        kind.cls.__module__,
        kind.cls.__qualname__,
    ):
        raise ValueError(f"kind must have a name of its own, found {kind.name!r} registered for {known.cls.__name__}")
    _by_name[kind.name] = kind
    if subclasses:
        _families.append(kind)
    else:
        _by_class[kind.cls] = kind


def register_alias(cls: type, replace: Callable[[Any], Any]) -> None:
    """Describe objects of a class as what ``replace`` makes of them, from which their owner makes them again."""
    _aliases[cls] = replace


def resolve_alias(made: Any) -> Any:
    """What an object is described as."""
    while type(made) in _aliases:
        made = _aliases[type(made)](made)
    return made


def kind_of_class(cls: type) -> Kind | None:
    """The kind of a class, if it is registered."""
    found = _by_class.get(cls)
    return found if found is not None else next((kind for kind in _families if issubclass(cls, kind.cls)), None)


def kind_named(name: str) -> Kind | None:
    """The kind that a file calls so, if there is one."""
    return _by_name.get(name)


def names_of(base: type) -> list[str]:
    """Names of the registered classes that derive from ``base``, those of this package first."""
    found = [kind for kind in _by_name.values() if issubclass(kind.cls, base)]
    return [kind.cls.__name__ for kind in sorted(found, key=lambda kind: kind.name.startswith("torch."))]


#: Layers that a network may be made of.
_LAYERS = (
    *("AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Conv1d", "Conv2d"),
    *("Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Dropout", "Dropout2d", "ELU", "Flatten"),
    *("GELU", "GroupNorm", "Hardtanh", "Identity", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "MaxPool1d"),
    *("MaxPool2d", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh", "Unflatten"),
    "Upsample",
)


def _parts(network: nn.Sequential) -> dict[str, nn.Module]:
    # named_children would leave out a layer that stands in a second place.
    return {name: part for name, part in network.named_modules(remove_duplicate=False) if name and "." not in name}


def _sequential(**parts: nn.Module) -> nn.Sequential:
    network = nn.Sequential()
    for name, part in parts.items():
        network.add_module(name, part)
    return network


register(
    *(getattr(nn, name) for name in _LAYERS),
    prefix="torch.",
    omit=("device", "dtype", "inplace"),
    stand_ins={"bias": lambda layer: layer.bias is not None},
)
add(Kind("torch.Sequential", nn.Sequential, _parts, _sequential))


def _factor(noise: MultivariateNormal) -> Tensor:
    """The factor as it may have been given: torch spreads one over the whole batch."""
    found = noise.scale_tril
    while found.ndim > 2 and bool((found == found[:1]).all()):
        found = found[0]
    return found


# An attribute without a public name; without it, what torch does unless told.
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
    fvnce.serialization.records.RecordError: the file asks for 3,600,004,096 bytes more than it holds weights for, of \
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
