"""Torch's own classes that may be rebuilt: the layers of networks, and the plain distributions."""

from __future__ import annotations

from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal, Uniform

from .registry import Kind, add, register

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

_validated = {"validate_args": lambda noise: bool(noise._validate_args)}
register(Normal, Uniform, prefix="torch.", stand_ins=_validated)
register(
    MultivariateNormal,
    prefix="torch.",
    omit=("covariance_matrix", "precision_matrix"),
    # The factor as it was given: the property would spread it over the batch.
    stand_ins={**_validated, "scale_tril": lambda noise: noise._unbroadcasted_scale_tril},
)
register(
    Independent,
    prefix="torch.",
    omit=("validate_args",),
    stand_ins={"base_distribution": lambda noise: noise.base_dist},
)
