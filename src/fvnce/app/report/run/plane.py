"""Rows, or their codes, in two dimensions; a point tells which row it is."""

from __future__ import annotations

from typing import Any

from ....pages.charts import Chart, scatter_chart
from ....pages.escape import png_uri, script_json, visible
from ....pages.page import Section
from .blocks import number


def plane_section(facts: dict[str, Any], figures: list[Chart]) -> Section:
    """The chart, and the place where the row under the pointer is told."""
    plane = facts["plane"]
    codes = plane["of"] == "codes"
    titles = [
        f"{visible(text)} · score {number(score, 4)}" for text, score in zip(plane["text"], plane["score"], strict=True)
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
    figures.append(chart)
    what = (
        f"The {plane['size']}-dimensional codes of rows"
        if codes
        else f"No member of this run has latent variables, so these are the rows themselves, {plane['size']} "
        "standardised columns,"
    )
    reading = [f"{what} along the two directions in which they vary most, {plane['share']:.0%} of the variance."]
    items = script_json({"text": titles, "sprite": _sprite_shape(plane)})
    picture = f"background-image:url({png_uri(plane['sprite']['png'])})" if "sprite" in plane else ""
    figure = chart.figure().replace("<svg ", '<svg tabindex="0" data-plane ', 1)
    block = (
        f'{figure}<div id="plane-info"><span id="plane-picture" hidden style="{picture}"></span>'
        f'<span id="plane-said" role="status" aria-live="polite">No row chosen.</span></div>'
        f'<script type="application/json" id="plane-items">{items}</script>'
    )
    return Section("Latent space" if codes else "Rows in two dimensions", reading, blocks=[block])


def _sprite_shape(plane: dict[str, Any]) -> dict[str, Any] | None:
    sprite = plane.get("sprite")
    return None if sprite is None else {key: sprite[key] for key in ("across", "width", "height")}
