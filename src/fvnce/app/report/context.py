"""What every section of a report is built from: the run, the rows that are analysed, and short numbers and images.

All rows are analysed, or a sample that holds the known outliers. Numbers have five digits, images are PNG as base64.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ...detection.frame import Frame
from ...detection.rows import take as take_rows
from ...pages import png_uri
from ...pages.page import render
from ..runs import FittedRun
from ..runs.training_data import TrainingData

Array = NDArray[np.float64]
#: Rows scored for the page.
SCORED = 20_000
#: Bins of a histogram.
BINS = 40
#: Pictures of a sheet.
SHEET = 24


@dataclass(frozen=True)
class Context:
    """Rows of the training data with their scores, and what the run has to show of them."""

    run: FittedRun
    data: TrainingData
    #: The numbers of the analysed rows in the training data, and the rows.
    numbers: NDArray[np.int64]
    rows: Any
    known: NDArray[np.bool_]
    anomaly: Array
    rng: np.random.Generator

    @property
    def image(self) -> bool:
        """Whether rows are pictures."""
        return not isinstance(self.rows, Frame) and self.rows.ndim > 2

    def name(self, position: int) -> str | None:
        """The name of the row at a position, such as that of its file."""
        if self.data.names is None:
            return None
        name = self.data.names[int(self.numbers[position])]
        # An identifier that is a number would be taken for the number of the row.
        return f"id {name}" if self.run.config.data.id is not None and name.isdecimal() else name

    def row(self, position: int) -> list[str]:
        """The values of the row at a position, in words, in the order of the columns."""
        if isinstance(self.rows, Frame):
            return [_cell(value) for value in self.rows.row(position).values()]
        return [_cell(value) for value in self.rows[position].tolist()]

    def fold_channels(self, pixels: Array) -> Array:
        """Numbers of the pixels of one image, summed over its channels, shape (H, W)."""
        shape = self.data.layout.shape
        assert shape is not None
        folded = pixels.reshape(shape)
        return folded if folded.ndim == 2 else folded.sum(0)


def build_context(run: FittedRun, data: TrainingData) -> Context:
    """Choose rows and score them."""
    rng = np.random.default_rng([run.config.seed, 11])
    numbers = _sample(data, rng)
    rows = take(data.rows, numbers)
    anomaly = run.detector.anomaly_score(run.layout.prepare(rows))
    return Context(run, data, numbers, rows, data.known[numbers], anomaly, rng)


def take(rows: Any, chosen: Any) -> Any:
    """Some of the rows, whatever holds them."""
    return rows.take(chosen) if isinstance(rows, Frame) else np.asarray(take_rows(rows, chosen))


def short(values: Any) -> list[float | None]:
    """Five digits, and None for what is not finite."""
    return [None if not math.isfinite(v) else float(f"{v:.5g}") for v in np.asarray(values, dtype=np.float64).tolist()]


def shown(value: float | None, digits: int = 3) -> str:
    """A number for a reader: so many digits, or a dash."""
    return "–" if value is None else f"{value:.{digits}g}"


def histogram(values: dict[str, Array]) -> dict[str, Any]:
    """Counts of each group on common edges, the outermost thousandths gathered in the end bins."""
    together = np.concatenate(list(values.values()))
    low, high = np.quantile(together, [0.001, 0.999])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    return {
        "edges": short(edges),
        "counts": {
            name: np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0].tolist() for name, v in values.items()
        },
    }


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


def _sample(data: TrainingData, rng: np.random.Generator) -> NDArray[np.int64]:
    count = len(data.known)
    if count <= SCORED:
        return np.arange(count)
    known = np.flatnonzero(data.known)[:SCORED]
    rest = rng.choice(np.flatnonzero(~data.known), SCORED - len(known), replace=False)
    return np.sort(np.concatenate([known, rest]))


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "missing"
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[s]")).replace("T", " ").removesuffix(" 00:00:00")
    if isinstance(value, np.timedelta64):
        return f"{value / np.timedelta64(1, 's'):.4g} seconds"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
