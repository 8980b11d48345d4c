"""The shapes of the detector's networks: a ratio network, and the encoder and decoder of a latent-variable model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..models import convolutional_pair, mlp

#: Inputs of networks are cut here: a row a thousand deviations away is an outlier, not a thousand times one.
LIMIT = 4.0
#: Channels of the first feature map of images.
CHANNELS = 16


def ratio_network(width: int, hidden: Sequence[int]) -> nn.Module:
    """f of a row with ``width`` columns."""
    return nn.Sequential(nn.Hardtanh(-LIMIT, LIMIT), mlp([width, *hidden, 1], nn.SiLU))


def table_pair(width: int, hidden: Sequence[int], latent: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """From a row to ``outputs`` numbers about its code, and from a code of size ``latent`` to a row."""
    return (
        nn.Sequential(nn.Hardtanh(-LIMIT, LIMIT), mlp([width, *hidden, outputs], nn.SiLU)),
        mlp([latent, *reversed(hidden), width], nn.SiLU),
    )


def image_pair(image: tuple[int, int, int], latent: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """The same for flattened images of shape ``image``, by convolutions."""
    channels, height, across = image
    encoder, decoder = convolutional_pair(
        latent, channels=channels, width=CHANNELS, outputs=outputs, size=(height, across)
    )
    return nn.Sequential(nn.Unflatten(-1, image), encoder), nn.Sequential(decoder, nn.Flatten(-3))
