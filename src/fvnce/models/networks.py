"""The networks inside encoders and decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from .. import _validation
from ..io import register


def mlp(
    sizes: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU, *, output: nn.Module | None = None
) -> nn.Sequential:
    """Return linear layers of these sizes with an activation between them, and ``output`` at the end if given.

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


class _Images(nn.Module):
    """An image network, run over any number of leading dimensions."""

    def __init__(self, network: nn.Module, event_dims: int) -> None:
        super().__init__()
        self.network = network
        self.event_dims = event_dims

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[: x.dim() - self.event_dims]
        result: Tensor = self.network(x.reshape(-1, *x.shape[len(batch) :]))
        return result.reshape(*batch, *result.shape[1:])


register(_Images)


def convolutional_pair(
    latent: int, *, channels: int = 1, width: int = 32, outputs: int | None = None, size: tuple[int, int] = (28, 28)
) -> tuple[nn.Module, nn.Module]:
    """Return a small convolutional encoder and decoder for images of shape (channels, height, width).

    Args:
        latent: the size of the code that the decoder takes.
        channels: color channels of the image.
        width: channels of the first feature map; the second has twice as many.
        outputs: what the encoder gives, by default ``latent``; a Gaussian encoder needs twice that.
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
        raise ValueError(f"size must be multiples of 4, which two layers of stride 2 need, found {tuple(size)}")
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
