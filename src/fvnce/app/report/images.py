"""Images as PNG text: one, many side by side, and many in one to be found by their number."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ...pages.escape import png_uri
from ...pages.page import render

Array = NDArray[np.float64]
#: Pictures of a sheet.
SHEET = 24


def grey_or_colour(image: Array, low: float, high: float) -> Array:
    """A picture in [0, 1], its channels last."""
    scaled = np.clip((image - low) / ((high - low) or 1.0), 0, 1)
    return scaled if scaled.ndim == 2 else np.moveaxis(scaled, 0, -1)


def sheet(images: Array, across: int, low: float, high: float) -> dict[str, Any]:
    """Images side by side in rows, with a thin gap."""
    whole = _tiled([grey_or_colour(image, low, high) for image in images], across, gap=1, background=0.5)
    return {"png": png(whole), "width": whole.shape[1], "height": whole.shape[0]}


def sheet_figure(sheet: dict[str, Any], caption: str) -> Markup:
    """The HTML of a sheet."""
    size = {"width": int(sheet["width"]), "height": int(sheet["height"])}
    return render("fvnce.app", "sheet.html", uri=png_uri(sheet["png"]), caption=caption, **size)


def sprite(images: Array, low: float, high: float, side: int = 32) -> dict[str, Any]:
    """Small pictures in one, found by their number."""
    step = max(1, math.ceil(max(images.shape[-2:]) / side))
    tiles = [grey_or_colour(image[..., ::step, ::step], low, high) for image in images]
    across = math.ceil(math.sqrt(len(tiles)))
    height, width = tiles[0].shape[:2]
    whole = _tiled(tiles, across, gap=0, background=0.0)
    return {"png": png(whole), "across": across, "width": width, "height": height, "count": len(tiles)}


def heat_png(values: Array) -> str:
    """Numbers of shape (H, W) as a PNG image: red above zero, blue below, white at zero."""
    share = values / (float(np.abs(values).max()) or 1.0)
    red, blue = np.array([0.75, 0.15, 0.12]), np.array([0.04, 0.31, 0.62])
    ends = np.where(share[..., None] > 0, red, blue)
    return png(1 + np.abs(share)[..., None] * (ends - 1))


def png(image: Array) -> str:
    """A grey or RGB picture in [0, 1] as base64."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    # Without the name of the program, the same picture is the same text. The range matters to grey ones alone.
    metadata: dict[str, Any] = {"Software": None}
    imsave(buffer, image, format="png", metadata=metadata, cmap="gray", vmin=0, vmax=1)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _tiled(tiles: list[Array], across: int, *, gap: int, background: float) -> Array:
    height, width = tiles[0].shape[0] + gap, tiles[0].shape[1] + gap
    down = math.ceil(len(tiles) / across)
    whole = np.full((down * height - gap, across * width - gap, *tiles[0].shape[2:]), background)
    for i, tile in enumerate(tiles):
        top, left = (i // across) * height, (i % across) * width
        whole[top : top + height - gap, left : left + width - gap] = tile
    return whole
