"""Networks for encoders and decoders, with an optional context."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .. import _validation
from ..io import register


def mlp(
    sizes: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU, *, output: nn.Module | None = None
) -> nn.Sequential:
    """Make a multilayer perceptron: linear layers with an activation between them.

    Args:
        sizes: widths from the input to the output.
        activation: class or function that makes the activation between two layers.
        output: optional module after the last layer.

    >>> mlp([784, 256, 128])
    Sequential(
      (0): Linear(in_features=784, out_features=256, bias=True)
      (1): ReLU()
      (2): Linear(in_features=256, out_features=128, bias=True)
    )
    """
    sizes = [_validation.count(f"sizes[{i}]", size) for i, size in enumerate(sizes)]
    if len(sizes) < 2:
        raise ValueError(f"sizes must hold at least an input and an output size, found {sizes}")
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    layers.pop()
    return nn.Sequential(*layers, *([] if output is None else [output]))


class WithContext(nn.Module):
    """Network of a vector and its context, concatenated: ``network(torch.cat([x, context], -1))``.

    Use it to condition a network of one input. Any module whose ``forward`` has a parameter ``context`` takes one.

    Args:
        network: a module of vectors: a network, an encoder or a decoder.

    >>> network = WithContext(mlp([3 + 2, 16, 1]))
    >>> network(torch.zeros(4, 8, 3), torch.zeros(8, 2)).shape  # four draws for each of eight rows
    torch.Size([4, 8, 1])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, context: Tensor | None = None) -> Any:
        """Return the network's output for x of shape (…, B, D) and a context of shape (B, C)."""
        if context is None:
            raise ValueError("context must be given, one vector for each row of x, found None")
        if context.dim() != 2 or context.shape[:1] != x.shape[-2:-1]:
            raise ValueError(
                f"context must have shape ({', '.join(map(str, x.shape[-2:-1]))}, C), one vector for each row of x of "
                f"shape {tuple(x.shape)}, found shape {tuple(context.shape)}; for other contexts write a module with "
                "forward(x, context)"
            )
        return self.network(torch.cat([x, context.to(x.dtype).expand(*x.shape[:-1], -1)], -1))


def takes_context(part: object, method: str = "forward") -> bool:
    """Return whether a method takes a parameter ``context``; for a module with a ``context_part``, whether that does.

    >>> from fvnce import GaussianEncoder
    >>> takes_context(GaussianEncoder(mlp([5, 4]))), takes_context(GaussianEncoder(WithContext(mlp([7, 4]))))
    (False, True)
    """
    function = getattr(part, method, None)
    if function is None:  # a plain function instead of a module
        function = part
    try:
        declared = "context" in inspect.signature(function).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not a function, or one written in C
        return False
    inner = getattr(part, "context_part", None)
    return declared and (inner is None or takes_context(getattr(part, inner)))


def given(context: Tensor | None) -> tuple[Tensor, ...]:
    """Return the context as a tuple of call arguments, empty if it is None."""
    return () if context is None else (context,)


class _Images(nn.Module):
    """Wrapper that applies an image network over any number of leading dimensions."""

    def __init__(self, network: nn.Module, event_dims: int) -> None:
        super().__init__()
        self.network = network
        self.event_dims = event_dims

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[: x.dim() - self.event_dims]
        result: Tensor = self.network(x.reshape(-1, *x.shape[len(batch) :]))
        return result.reshape(*batch, *result.shape[1:])


register(WithContext, _Images)


def convolutional_pair(
    latent: int, *, channels: int = 1, width: int = 32, outputs: int | None = None, size: tuple[int, int] = (28, 28)
) -> tuple[nn.Module, nn.Module]:
    """Make a small convolutional encoder and decoder for images of shape (channels, height, width).

    Args:
        latent: size of the code.
        channels: color channels of the image.
        width: channels of the first feature map; the second has twice as many.
        outputs: outputs of the encoder, by default ``latent``; a Gaussian encoder needs twice that.
        size: height and width of the image, multiples of 4.

    >>> import torch
    >>> encoder, decoder = convolutional_pair(8)
    >>> decoder(encoder(torch.zeros(5, 1, 28, 28))).shape
    torch.Size([5, 1, 28, 28])
    """
    latent = _validation.count("latent", latent)
    outputs = latent if outputs is None else _validation.count("outputs", outputs)
    small = tuple(_validation.count(f"size[{i}]", side) // 4 for i, side in enumerate(size))
    if any(side % 4 for side in size):
        raise ValueError(f"size must be multiples of 4, found {tuple(size)}; pad or crop the images")
    flat = 2 * width * small[0] * small[1]
    encoder = nn.Sequential(
        nn.Conv2d(channels, width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, outputs),
    )
    decoder = nn.Sequential(
        nn.Linear(latent, flat),
        nn.ReLU(),
        nn.Unflatten(-1, (2 * width, *small)),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1),
    )
    return _Images(encoder, event_dims=3), _Images(decoder, event_dims=1)
