"""The section of the plane: rows, or their codes, in two dimensions; a point tells which row it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ...detection.preprocessing import ImagePreprocessor
from ...pages.charts import scatter_chart
from ...pages.escape import png_uri, script_json, visible
from ...pages.page import Section, render
from .. import shapes
from .context import Array, Context, short, shown, take
from .images import sprite

#: Points of the plane; of these at most so many are the strangest rows, and known outliers.
POINTS, STRANGE, KNOWN = 600, 50, 150
#: Columns that are told of a point.
CELLS = 8

check = shapes.record(
    {
        "plane": shapes.alike(
            {
                "x": shapes.list_of(shapes.number),
                "y": shapes.list_of(shapes.number),
                "known": shapes.list_of(shapes.integer(0, 1)),
                "score": shapes.gaps,
                "text": shapes.names,
            },
            {
                "of": shapes.matching("rows|codes", "'rows' or 'codes'"),
                "size": shapes.integer(),
                "share": shapes.reported,
            },
            {
                "sprite": shapes.record(
                    {"png": shapes.picture, **dict.fromkeys(("across", "width", "height"), shapes.integer(1, 10**6))}
                )
            },
        )
    }
)


def build(context: Context) -> dict[str, Any]:
    """Coordinates of some rows, with what to say of each."""
    index = _some(context)
    part = take(context.rows, index)
    detector = context.run.scorer.detector
    x = detector.preprocess(part)
    values = x if context.autoencoder is None else context.autoencoder.codes(x)
    at, share = principal_plane(values)
    fact: dict[str, Any] = {
        "of": "rows" if context.autoencoder is None else "codes",
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
        fact["sprite"] = sprite(np.asarray(part, dtype=np.float64), how.low, how.high)
    return {"plane": fact}


def show(facts: dict[str, Any], record: dict[str, Any]) -> Section:
    """The chart, and the place where the row under the pointer is told."""
    plane = facts["plane"]
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
