"""Noise as JSON and tensors, and back, bit for bit; in a file with a checksum, without pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from ..serialization import Kind, add, describe, fields, read_record, rebuild, register, write_record
from .flow import FlowNoise
from .kde import KernelDensity
from .mixture import NoiseMixture
from .simple import BernoulliNoise, EmpiricalNoise

FILE_NAME = "noise.safetensors"
KIND = "noise"

Config = dict[str, Any]


def _unbatched(noise: Distribution) -> None:
    if noise.batch_shape:
        raise ValueError(f"must have an empty batch shape to be saved, found {tuple(noise.batch_shape)}")


# What a file may name. Weights are kept as they were given, before they are made to sum to one.
_given = {"weights": lambda noise: noise.given_weights}
register(KernelDensity, NoiseMixture, stand_ins=_given, check=_unbatched)
register(BernoulliNoise, EmpiricalNoise, check=_unbatched)


def _flow_arguments(noise: FlowNoise) -> dict[str, Any]:
    _unbatched(noise)
    settings = {"kind": noise.kind, "transforms": noise.transforms, "hidden": noise.hidden}
    weights = tuple(noise.flow.state_dict().items())
    return {**settings, "shift": noise.shift, "scale": noise.scale, "weights": weights}


def _flow(weights: tuple[tuple[str, Tensor], ...], **arguments: Any) -> FlowNoise:
    noise = FlowNoise(**arguments)
    noise.flow.load_state_dict({name: value.clone() for name, value in weights}, assign=True)
    noise.flow.requires_grad_(False)
    return noise


_settings = ("kind", "transforms", "hidden", "shift", "scale", "weights")
add(Kind("FlowNoise", FlowNoise, _flow_arguments, _flow, frozenset(_settings)))


def to_state(noise: Distribution) -> tuple[Config, dict[str, Tensor]]:
    """(configuration, tensors) of a noise; the configuration is made of what JSON can hold.

    >>> import torch
    >>> config, tensors = to_state(KernelDensity(torch.zeros(2, 1), 0.5))
    >>> config["structure"]["$kind"], len(tensors)
    ('KernelDensity', 2)
    """
    return describe(noise, "noise")


def from_state(config: Config, tensors: Mapping[str, Tensor]) -> Distribution:
    """The noise that :func:`to_state` took apart.

    >>> import torch
    >>> noise = from_state(*to_state(KernelDensity(torch.zeros(2, 1), 0.5)))
    >>> noise
    KernelDensity(centres: 2 x 1, bandwidth: 0.5)
    """
    return rebuild(config, tensors, Distribution, what="config")


def save_noise(noise: Distribution, folder: str | os.PathLike[str]) -> Path:
    """Write the noise to ``folder``/noise.safetensors, all or nothing; the folder is made if needed.

    >>> import tempfile
    >>> import torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_noise(BernoulliNoise(torch.tensor([0.25, 0.5])), folder)
    ...     load_noise(folder).probs
    tensor([0.2500, 0.5000])
    """
    config, tensors = to_state(noise)
    path = Path(folder) / FILE_NAME
    write_record(path, KIND, {"noise": config}, tensors)
    return path


def load_noise(folder: str | os.PathLike[str]) -> Distribution:
    """The noise that :func:`save_noise` wrote to a folder, after its checksum has been compared.

    >>> load_noise("nowhere")
    Traceback (most recent call last):
        ...
    FileNotFoundError: folder must hold noise.safetensors, found no such file in nowhere
    """
    path = Path(folder) / FILE_NAME
    if not path.is_file():
        raise FileNotFoundError(f"folder must hold {FILE_NAME}, found no such file in {folder}")
    content, tensors = read_record(path, KIND)
    (config,) = fields(content, str(path), "noise")
    return rebuild(config, tensors, Distribution, what=path)
