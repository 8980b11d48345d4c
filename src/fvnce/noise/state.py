"""Noise as JSON and tensors, and back, bit for bit.

A noise becomes a nested configuration that JSON can hold and a flat dictionary of tensors. On disk both
share one safetensors file, the configuration in its header, so that one atomic replacement never leaves a
torn pair behind. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, Uniform

from .binary import BernoulliNoise
from .flow import FlowNoise
from .kde import KernelDensity
from .mixture import NoiseMixture
from .rows import Rows

FILE_NAME = "noise.safetensors"

Config = dict[str, Any]


@dataclass(frozen=True)
class _Kind:
    """How one class of noise is taken apart and put together."""

    cls: type[Distribution]
    options: Callable[[Any], Config]
    tensors: Callable[[Any], dict[str, Tensor | None]]
    children: Callable[[Any], list[Distribution]]
    build: Callable[[Config, Mapping[str, Tensor], list[Distribution]], Distribution]


def _none(_: Any) -> Config:
    return {}


def _childless(_: Any) -> list[Distribution]:
    return []


def _checked(noise: Any) -> Config:
    return {"validate_args": bool(noise._validate_args)}


_KINDS = (
    _Kind(
        KernelDensity,
        lambda noise: {"block_bytes": noise.block_bytes},
        lambda noise: {
            "centres": noise.centres,
            "bandwidth": noise.bandwidth,
            "weights": noise.given_weights,
        },
        _childless,
        lambda config, t, _: KernelDensity(t["centres"], t["bandwidth"], t.get("weights"), **config),
    ),
    _Kind(
        NoiseMixture,
        _none,
        lambda noise: {"weights": noise.given_weights},
        lambda noise: list(noise.components),
        lambda _, t, children: NoiseMixture(children, t["weights"]),
    ),
    _Kind(
        BernoulliNoise,
        _none,
        lambda noise: {"probs": noise.probs},
        _childless,
        lambda _, t, __: BernoulliNoise(t["probs"]),
    ),
    _Kind(
        FlowNoise,
        lambda noise: {"kind": noise.kind, "transforms": noise.transforms, "hidden": list(noise.hidden)},
        lambda noise: {
            "shift": noise.shift,
            "scale": noise.scale,
            **{f"flow.{name}": value for name, value in noise.flow.state_dict().items()},
        },
        _childless,
        lambda config, t, _: _flow(config, t),
    ),
    _Kind(Rows, _none, lambda noise: {"rows": noise.rows}, _childless, lambda _, t, __: Rows(t["rows"])),
    _Kind(
        Normal,
        _checked,
        lambda noise: {"loc": noise.loc, "scale": noise.scale},
        _childless,
        lambda config, t, _: Normal(t["loc"], t["scale"], **config),
    ),
    _Kind(
        Uniform,
        _checked,
        lambda noise: {"low": noise.low, "high": noise.high},
        _childless,
        lambda config, t, _: Uniform(t["low"], t["high"], **config),
    ),
    _Kind(
        MultivariateNormal,
        _checked,
        lambda noise: {"loc": noise.loc, "scale_tril": noise._unbroadcasted_scale_tril},
        _childless,
        lambda config, t, _: MultivariateNormal(t["loc"], scale_tril=t["scale_tril"], **config),
    ),
    _Kind(
        Independent,
        lambda noise: {"reinterpreted_batch_ndims": noise.reinterpreted_batch_ndims},
        lambda _: {},
        lambda noise: [noise.base_dist],
        lambda config, _, children: Independent(children[0], **config),
    ),
)


def _flow(config: Config, tensors: Mapping[str, Tensor]) -> FlowNoise:
    with torch.random.fork_rng(devices=[]):  # the weights that are drawn first are replaced
        noise = FlowNoise(
            **{**config, "hidden": tuple(config["hidden"])}, shift=tensors["shift"], scale=tensors["scale"]
        )
    weights = {name: value.clone() for name, value in _under("flow.", tensors).items()}
    noise.flow.load_state_dict(weights, assign=True)
    noise.flow.requires_grad_(False)
    return noise


def to_state(noise: Distribution) -> tuple[Config, dict[str, Tensor]]:
    """(configuration, tensors) of a noise; the configuration is made of what JSON can hold.

    >>> config, tensors = to_state(KernelDensity(torch.zeros(2, 1), 0.5))
    >>> config["kind"], sorted(tensors)
    ('KernelDensity', ['bandwidth', 'centres'])
    """
    kind = next((kind for kind in _KINDS if type(noise) is kind.cls), None)
    if kind is None:
        known = ", ".join(kind.cls.__name__ for kind in _KINDS)
        raise TypeError(f"noise must be one of {known} to be saved, found {type(noise).__name__}")
    if noise.batch_shape and kind.cls in (KernelDensity, NoiseMixture, BernoulliNoise, FlowNoise, Rows):
        raise ValueError(f"noise must have an empty batch shape to be saved, found {tuple(noise.batch_shape)}")
    tensors = {name: value for name, value in kind.tensors(noise).items() if value is not None}
    config: Config = {"kind": kind.cls.__name__, "options": kind.options(noise), "children": []}
    for position, child in enumerate(kind.children(noise)):
        below, inner = to_state(child)
        config["children"].append(below)
        tensors.update({f"{position}.{name}": value for name, value in inner.items()})
    return config, tensors


def from_state(config: Config, tensors: Mapping[str, Tensor]) -> Distribution:
    """The noise that :func:`to_state` took apart.

    >>> noise = from_state(*to_state(KernelDensity(torch.zeros(2, 1), 0.5)))
    >>> noise
    KernelDensity(centres: 2 x 1, bandwidth: 0.5)
    """
    found = config.get("kind")
    kind = next((kind for kind in _KINDS if kind.cls.__name__ == found), None)
    if kind is None:
        known = ", ".join(kind.cls.__name__ for kind in _KINDS)
        raise ValueError(f"config['kind'] must be one of {known}, found {found!r}")
    children = [from_state(below, _under(f"{position}.", tensors)) for position, below in enumerate(config["children"])]
    return kind.build(config["options"], tensors, children)


def save_noise(noise: Distribution, folder: str | os.PathLike[str]) -> Path:
    """Write the noise to ``folder``/noise.safetensors, all or nothing; the folder is made if needed.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_noise(BernoulliNoise(torch.tensor([0.25, 0.5])), folder)
    ...     load_noise(folder).probs
    tensor([0.2500, 0.5000])
    """
    config, tensors = to_state(noise)
    # Every tensor gets storage of its own: the format refuses views of one buffer.
    plain = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    content = safetensors.torch.save(plain, metadata={"noise": json.dumps(config)})
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    path = target / FILE_NAME
    handle, temporary = tempfile.mkstemp(dir=target, prefix=".noise-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def load_noise(folder: str | os.PathLike[str]) -> Distribution:
    """The noise that :func:`save_noise` wrote to a folder."""
    path = Path(folder) / FILE_NAME
    if not path.is_file():
        raise FileNotFoundError(f"folder must hold {FILE_NAME}, found no such file in {folder}")
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get("noise")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    if text is None:
        raise ValueError(f"{path} must carry a noise configuration in its header, found none")
    return from_state(json.loads(text), tensors)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
