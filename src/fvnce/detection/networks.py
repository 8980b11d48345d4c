"""The weights that networks of the detector begin with, from a seed and nothing else.

Torch's layers fill themselves from the global generator as they are made, which every thread of a process shares. Here
they are made without memory, then given some, and filled from a generator of their own with torch's distribution: with
k = 1/√(inputs of a unit), weights and biases are uniform in (−k, k).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn


def initialised(make: Callable[[], Sequence[nn.Module]], seed: int) -> list[nn.Module]:
    """The modules that ``make`` makes, with weights that follow from the seed.

    >>> (first,), (second,) = (initialised(lambda: [nn.Linear(2, 3)], 0) for _ in range(2))
    >>> torch.equal(first.weight, second.weight)
    True
    """
    generator = torch.Generator().manual_seed(seed)
    return [_filled(module.to_empty(device="cpu"), generator) for module in without_memory(make)]


def without_memory(make: Callable[[], Sequence[nn.Module]]) -> Sequence[nn.Module]:
    """The modules that ``make`` makes, with the shapes of their tensors but not the tensors.

    >>> without_memory(lambda: [nn.Linear(10**6, 10**6)])[0].weight.shape
    torch.Size([1000000, 1000000])
    """
    with torch.device("meta"):
        return make()


def _filled(module: nn.Module, generator: torch.Generator) -> nn.Module:
    for layer in module.modules():
        own = dict(layer.named_parameters(recurse=False))
        if not own and not list(layer.buffers(recurse=False)):
            continue
        if not isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            raise TypeError(f"networks of the detector must be linear or convolutional, found {type(layer).__name__}")
        inputs = layer.weight[0].numel()
        with torch.no_grad():
            for name in ("weight", "bias"):
                own[name].uniform_(-1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=generator)
    return module
