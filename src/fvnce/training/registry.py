"""Built-in modules as JSON and tensors, and back, without pickle.

A module of a known class is described by the arguments of its constructor, read from attributes of the same names, and
rebuilt by calling it. A network is made of torch's layers; noise and priors are described by ``fvnce.noise.state``; a
rule is its text. Objects that occur twice are built once. Nothing outside of the list below can be built, so a file
cannot make the reader run code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent

from .. import models, objectives
from ..models.latent import FixedDistribution
from ..models.networks import _Images
from ..noise import from_state, to_state
from ..scoring import ScoringRule, parse
from .tree import flatten, unflatten

#: Classes of this package that can be rebuilt.
_OWN: tuple[type[nn.Module], ...] = (
    models.AveragedRatio,
    models.BernoulliDecoder,
    models.BinaryEncoder,
    models.CategoricalEncoder,
    models.ContinuousBernoulliDecoder,
    models.CouplingEncoder,
    models.CoveringEncoder,
    models.DistributionRatio,
    models.EnergyDecoder,
    models.EnergyModel,
    models.GaussianDecoder,
    models.GaussianEncoder,
    models.GaussianMixtureModel,
    models.KernelRatio,
    models.LatentVariableModel,
    models.LinearGaussianModel,
    models.PointEncoder,
    models.RestrictedBoltzmannMachine,
    models.TelescopedRatio,
    objectives.Autoencoder,
    objectives.Fixed,
    objectives.FullyVariationalNCE,
    objectives.IWAE,
    objectives.Learned,
    objectives.NCE,
    objectives.Profiled,
    objectives.SNCE,
    objectives.VAE,
    objectives.VariationalNCE,
    _Images,
)

#: Layers of torch that a network may be made of.
_LAYERS = [
    "AdaptiveAvgPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Dropout2d",
    "ELU",
    "Flatten",
    "GELU",
    "GroupNorm",
    "Hardtanh",
    "Identity",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "MaxPool1d",
    "MaxPool2d",
    "Mish",
    "ReLU",
    "ReLU6",
    "SELU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "Unflatten",
    "Upsample",
]

_CLASSES: dict[str, type[nn.Module]] = {
    **{cls.__name__: cls for cls in _OWN},
    **{f"torch.{name}": getattr(nn, name) for name in _LAYERS},
}
_NAMES = {cls: name for name, cls in _CLASSES.items()}

#: Arguments that the state restores, or that do not matter once it has.
_LEFT_OUT = {"device", "dtype", "inplace", "log_scale", "scale"}
#: Arguments that are not attributes of the same name; where the state restores one, anything valid will do until then.
_STAND_INS: dict[tuple[type[nn.Module], str], Callable[[Any], Any]] = {
    (models.LinearGaussianModel, "scale"): lambda _: 1.0,
    (models.GaussianMixtureModel, "scales"): lambda model: torch.ones_like(model.logits),
    (models.LatentVariableModel, "highest_log_prior"): lambda model: model._gamma,
}
_REF, _KIND, _ARGUMENTS = "$id", "$kind", "$arguments"


def describe(module: nn.Module) -> tuple[Any, dict[str, Tensor]]:
    """(what JSON can hold, tensors) from which :func:`rebuild` makes the same module.

    >>> content, tensors = describe(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    >>> rebuild(content, tensors)
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )
    """
    structure = _Describer().value(module, "module")
    frozen = [name for name, value in module.named_parameters() if not value.requires_grad]
    floating = [value.dtype for value in module.state_dict().values() if value.is_floating_point()]
    return flatten(
        {
            "structure": structure,
            "state": dict(module.state_dict()),
            "frozen": frozen,
            "double": torch.float64 in floating,
        }
    )


def rebuild(content: Any, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The module that :func:`describe` described, in evaluation mode."""
    found = unflatten(content, tensors)
    module: nn.Module = _Builder().value(found["structure"])
    module = module.to(torch.float64 if found["double"] else torch.float32)
    module.load_state_dict(found["state"])
    frozen = set(found["frozen"])
    for name, value in module.named_parameters():
        value.requires_grad_(name not in frozen)
    return module.eval()


class _Describer:
    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        # Objects made on the way must live as long as their ids are remembered.
        self._kept: list[object] = []

    def value(self, value: object, path: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str | Tensor):
            return value.detach() if isinstance(value, Tensor) else value
        if isinstance(value, tuple | list):
            return tuple(self.value(item, f"{path}[{i}]") for i, item in enumerate(value))
        if isinstance(value, ScoringRule):
            return self._rule(value, path)
        if isinstance(value, FixedDistribution):
            value = value.distribution
        if isinstance(value, models.DiagonalNormal):
            value = Independent(value.base_dist, len(value.event_shape))
        if id(value) in self._seen:
            return {_REF: self._seen[id(value)]}
        found: dict[str, Any]
        if isinstance(value, Distribution):
            config, tensors = to_state(value)
            found = {_KIND: "distribution", "config": config, "tensors": tensors}
        elif inspect.ismethod(value) and id(value.__self__) in self._seen:
            return {_KIND: "method", "of": self._seen[id(value.__self__)], "name": value.__name__}
        elif type(value) is nn.Sequential:
            children = {name: self.value(child, f"{path}.{name}") for name, child in value.named_children()}
            found = {_KIND: "torch.Sequential", _ARGUMENTS: children}
        elif isinstance(value, nn.Module) and type(value) in _NAMES:
            found = {_KIND: _NAMES[type(value)], _ARGUMENTS: self._arguments(value, path)}
        else:
            raise TypeError(
                f"{path} must be made of fvnce's classes and torch's layers to be rebuilt from a file, found "
                f"{type(value).__name__}"
            )
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return {**found, _REF: self._seen[id(value)]}

    def _arguments(self, module: nn.Module, path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in inspect.signature(type(module)).parameters:
            if (type(module), name) in _STAND_INS:
                found[name] = self.value(_STAND_INS[type(module), name](module), f"{path}.{name}")
                continue
            if name in _LEFT_OUT or not hasattr(module, name):
                continue
            value = getattr(module, name)
            if name == "bias" and not isinstance(module, models.LinearGaussianModel):
                value = value is not None
            found[name] = self.value(value, f"{path}.{name}")
        return found

    def _rule(self, rule: ScoringRule, path: str) -> dict[str, Any]:
        try:
            return {_KIND: "rule", "text": str(rule)}
        except ValueError as error:
            raise TypeError(f"{path} must be a built-in rule or a sum of them to be saved: {error}") from None


class _Builder:
    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def value(self, content: Any) -> Any:
        if isinstance(content, tuple):
            return tuple(self.value(item) for item in content)
        if not isinstance(content, dict):
            return content
        if _KIND not in content:
            return self._made[content[_REF]]
        if _REF not in content:
            return self._make_nameless(content)
        made = self._made[content[_REF]] = self._make(content)
        return made

    def _make(self, content: dict[str, Any]) -> Any:
        kind = content[_KIND]
        if kind == "distribution":
            return from_state(content["config"], content["tensors"])
        arguments = {name: self.value(value) for name, value in content[_ARGUMENTS].items()}
        if kind == "torch.Sequential":
            network = nn.Sequential()
            for name, child in arguments.items():
                network.add_module(name, child)
            return network
        if kind not in _CLASSES:
            raise ValueError(f"the file names a class {kind!r} that this version of fvnce does not know")
        return _CLASSES[kind](**arguments)

    def _make_nameless(self, content: dict[str, Any]) -> Any:
        if content[_KIND] == "rule":
            return parse(content["text"])
        if content[_KIND] == "method":
            return getattr(self._made[content["of"]], content["name"])
        raise ValueError(f"the file holds an unknown kind {content[_KIND]!r}")
