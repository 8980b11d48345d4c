"""Pieces of a page of a run: charts side by side, sheets of images, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....pages.charts import Chart
from ....pages.escape import markup, png_uri


def grid(charts: Sequence[Chart]) -> str:
    """Charts side by side where there is room."""
    return f'<div class="charts">{"".join(chart.figure() for chart in charts)}</div>'


def sheet_figure(sheet: dict[str, Any], caption: str) -> str:
    """Many images in one, with its caption."""
    return (
        f'<figure><img class="sheet" src="{png_uri(sheet["png"])}" width="{sheet["width"]:d}" '
        f'height="{sheet["height"]:d}" alt="{markup(caption)}">'
        f"<figcaption>{markup(caption)}</figcaption></figure>"
    )


def number(value: float | None, digits: int = 3) -> str:
    """So many digits, or a dash."""
    return "–" if value is None else f"{value:.{digits}g}"
