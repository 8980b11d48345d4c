"""Sections of how the model sees rows: in two dimensions, and images as rebuilt from their codes.

A point of the plane is a row, or its code g(x), the mean of the encoder; an image is rebuilt as the mean of the decoder
at g(x). Known outliers are rebuilt too: a good model does it badly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from ...detection import NoiseContrastiveDetector
from ...detection.preprocessing import ImagePreprocessor
from ...pages import png_uri, script_json, visible
from ...pages.charts import scatter_chart
from ...pages.page import Section, render
from .context import SHEET, Array, Context, sheet, sheet_figure, short, shown, sprite, take

#: Points of the plane; of these at most so many are the strangest rows, and known outliers.
POINTS, STRANGE, KNOWN = 600, 50, 150
#: Columns named for a point.
CELLS = 8


class Autoencoder:
    """An encoder g and a decoder, as functions of encoded rows."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        self._encoder, self._decoder = encoder, decoder

    @classmethod
    def of(cls, detector: NoiseContrastiveDetector) -> Self | None:
        """That of a detector; None if no part of it has latent variables."""
        for member in detector.ensemble_.members:
            if hasattr(member, "encoder") and hasattr(member, "decoder"):
                return cls(member.encoder, member.decoder)
        return None

    @torch.no_grad()
    def codes(self, x: Array) -> Array:
        """g(x)."""
        return np.asarray(self._encoder(torch.from_numpy(x)).mean.numpy())

    @torch.no_grad()
    def reconstruct(self, x: Array) -> Array:
        """The mean of the decoder at g(x)."""
        return np.asarray(self._decoder(self._encoder(torch.from_numpy(x)).mean).mean.numpy())


def build(context: Context) -> dict[str, Any]:
    """Coordinates of some rows, with what to say of each; reconstructions of images."""
    autoencoder = Autoencoder.of(context.run.detector)
    return {"plane": _plane(context, autoencoder), "sheets": _reconstructions(context, autoencoder)}


def show(facts: dict[str, Any], record: dict[str, Any]) -> list[Section]:
    """A chart, with a place for the row under the pointer; sheets of images."""
    caption = "{}: above as given, below rebuilt."
    blocks = [sheet_figure(sheet, caption.format(name.capitalize())) for name, sheet in facts["sheets"].items()]
    rebuilt = [Section("Reconstructions", [], blocks=blocks, appendix=True)] if blocks else []
    return [_show_plane(facts["plane"]), *rebuilt]


def _plane(context: Context, autoencoder: Autoencoder | None) -> dict[str, Any]:
    index = _some(context)
    part = take(context.rows, index)
    detector = context.run.detector
    x = detector.preprocess(part)
    values = x if autoencoder is None else autoencoder.codes(x)
    at, share = principal_plane(values)
    found: dict[str, Any] = {
        "of": "rows" if autoencoder is None else "codes",
        "size": values.shape[1],
        "share": share,
        "x": short(at[:, 0]),
        "y": short(at[:, 1]),
        "known": context.known[index].astype(int).tolist(),
        "score": short(context.anomaly[index]),
        "text": [_item(context, int(i)) for i in index],
    }
    how = detector.preprocessor_
    if isinstance(how, ImagePreprocessor):
        found["sprite"] = sprite(np.asarray(part, dtype=np.float64), how.low, how.high)
    return found


def _show_plane(plane: dict[str, Any]) -> Section:
    codes = plane["of"] == "codes"
    titles = [
        f"{visible(text)} · score {shown(score, 4)}" for text, score in zip(plane["text"], plane["score"], strict=True)
    ]
    names = ["rows", "known outliers"] if any(plane["known"]) else ["rows"]
    chart = scatter_chart(
        "plane",
        plane["x"],
        plane["y"],
        plane["known"],
        names,
        titles,
        labels=("first direction", "second direction"),
        caption="Each point is a row. Point at one, or give the chart the focus and use the arrow keys.",
        alt=f"{len(titles)} rows as points in two dimensions",
    )
    what = (
        f"The {plane['size']}-dimensional codes of rows"
        if codes
        else f"Rows, as the model sees them in {plane['size']} standardised columns,"
    )
    reading = [f"{what} along the two directions in which they vary most, {plane['share']:.0%} of the variance."]
    held = plane.get("sprite")
    size = None if held is None else {key: held[key] for key in ("across", "width", "height")}
    picture = "" if held is None else f"background-image:url({png_uri(held['png'])})"
    items = Markup(script_json({"text": titles, "sprite": size}))
    block = render("fvnce.app", "plane.html", picture=picture, items=items)
    title = "Latent space" if codes else "Rows in two dimensions"
    return Section(title, reading, charts=[replace(chart, attributes='tabindex="0" data-plane')], blocks=[block])


def principal_plane(values: Array) -> tuple[Array, float]:
    """Coordinates along the two directions of most variance, and their share of the variance.

    >>> at, share = principal_plane(np.array([[0.0, 0.0, 5.0], [4.0, 0.0, 5.0]]))
    >>> np.abs(at).round(3).tolist(), round(share, 3)
    ([[2.0, 0.0], [2.0, 0.0]], 1.0)
    """
    centred = values - values.mean(0)
    _, size, directions = np.linalg.svd(centred, full_matrices=False)
    if directions.shape[0] < 2:
        directions = np.vstack([directions, np.zeros_like(directions)])[:2]
        size = np.append(size, 0.0)
    # The sign of a direction is arbitrary; this choice makes it the same everywhere.
    largest = directions[:2][np.arange(2), np.abs(directions[:2]).argmax(1)]
    directions = directions[:2] * np.sign(largest + 1e-300)[:, None]
    total = float((size**2).sum()) or 1.0
    return centred @ directions.T, float((size[:2] ** 2).sum() / total)


def _some(context: Context) -> NDArray[np.int64]:
    """The strangest rows, known outliers, and a random choice of the rest."""
    count = len(context.anomaly)
    order = np.argsort(-context.anomaly, kind="stable")
    some = set(order[:STRANGE].tolist()) | set(np.flatnonzero(context.known)[:KNOWN].tolist())
    for position in context.rng.permutation(count).tolist():
        if len(some) >= min(POINTS, count):
            break
        some.add(position)
    return np.array(sorted(some))


def _item(context: Context, position: int) -> str:
    name = context.name(position) or f"row {int(context.numbers[position]) + 1}"
    if context.image:
        return name
    cells = list(zip(context.data.layout.columns, context.row(position), strict=True))
    told = ", ".join(f"{column} {value}" for column, value in cells[:CELLS])
    return f"{name}: {told}{', …' if len(cells) > CELLS else ''}"


def _reconstructions(context: Context, autoencoder: Autoencoder | None) -> dict[str, dict[str, Any]]:
    """Images above their reconstructions, by group."""
    how = context.run.detector.preprocessor_
    if autoencoder is None or not isinstance(how, ImagePreprocessor):
        return {}
    sheets = {}
    for name, group in (("training rows", ~context.known), ("known outliers", context.known)):
        if group.any():
            some = context.run.detector.preprocess(take(context.rows, np.flatnonzero(group)[: SHEET // 2]))
            both = np.concatenate([some, autoencoder.reconstruct(some)])
            sheets[name] = sheet(how.fold(both), len(some), 0.0, 1.0)
    return sheets
