"""Images as PNG text: one, many side by side, and many in one to be found by their number."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: Pictures of a sheet.
SHEET = 24


def grey_or_colour(image: Array, low: float, high: float) -> Array:
    """A picture in [0, 1], its channels last."""
    scaled = np.clip((image - low) / ((high - low) or 1.0), 0, 1)
    return scaled if scaled.ndim == 2 else np.moveaxis(scaled, 0, -1)


def sheet(images: Array, across: int, low: float, high: float) -> dict[str, Any]:
    """Images side by side in rows, with a thin gap."""
    tiles = [grey_or_colour(image, low, high) for image in images]
    height, width = tiles[0].shape[:2]
    down = math.ceil(len(tiles) / across)
    whole = np.full((down * (height + 1) - 1, across * (width + 1) - 1, *tiles[0].shape[2:]), 0.5)
    for i, tile in enumerate(tiles):
        top, left = (i // across) * (height + 1), (i % across) * (width + 1)
        whole[top : top + height, left : left + width] = tile
    return {"png": png(whole), "width": whole.shape[1], "height": whole.shape[0]}


def sprite(images: Array, low: float, high: float, side: int = 32) -> dict[str, Any]:
    """Small pictures in one, found by their number."""
    step = max(1, math.ceil(max(images.shape[-2:]) / side))
    tiles = [grey_or_colour(image[..., ::step, ::step], low, high) for image in images]
    across = math.ceil(math.sqrt(len(tiles)))
    height, width = tiles[0].shape[:2]
    whole = np.zeros((math.ceil(len(tiles) / across) * height, across * width, *tiles[0].shape[2:]))
    for i, tile in enumerate(tiles):
        top, left = (i // across) * height, (i % across) * width
        whole[top : top + height, left : left + width] = tile
    return {"png": png(whole), "across": across, "width": width, "height": height, "count": len(tiles)}


def png(image: Array) -> str:
    """A grey or RGB picture in [0, 1] as base64."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    # Without the name of the program, the same picture is the same text. The range matters to grey ones alone.
    metadata: dict[str, Any] = {"Software": None}
    imsave(buffer, image, format="png", metadata=metadata, cmap="gray", vmin=0, vmax=1)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
