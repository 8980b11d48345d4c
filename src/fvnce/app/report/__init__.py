"""The report of a run: one file for each part, which computes it and shows it, and the page made of them.

==================  ===============================================================
``context``         the run and the rows that every section looks at; images
``verdict``         how good it is, why the threshold is there, what to do next; scores and probabilities
``anomalies``       the highest-scoring rows, with every part of their scores; columns, or pixels, by importance
``plane``           rows, or their codes, in two dimensions; reconstructions of images
``health``          how each column was read, what is missing, what was left out
``training``        losses and live noise
==================  ===============================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ...pages import asset
from ...pages.page import Section, Table, render, write_page
from ...serialization import write_text
from . import anomalies, health, plane, training, verdict
from .context import Context


class ReportPart(Protocol):
    """What one file adds to the page; each is a module."""

    def build(self, context: Context) -> dict[str, Any]:
        """Compute its facts: plain numbers, and PNG images as text."""

    def show(self, facts: dict[str, Any], record: dict[str, Any]) -> list[Section]:
        """Return its sections, from its facts and ``run.json``; none if it does not apply to the run."""


#: In the order of the page, on which sections of the appendix come after all others.
PARTS: tuple[ReportPart, ...] = (verdict, anomalies, training, plane, health)


def write_run_page(folder: Path, context: Context, record: dict[str, Any], config: str) -> Path:
    """Write ``report.html`` and ``figures/`` into the folder of a run."""
    sections = [section for part in PARTS for section in part.show(part.build(context), record)]
    sections = sorted([*sections, _made(record, config)], key=lambda section: section.appendix)
    place = folder / "figures"
    place.mkdir(exist_ok=True)
    for chart in (chart for section in sections for chart in section.charts):
        write_text(place / f"{chart.name}.svg", chart.file())
    known = record["known"]
    introduction = (
        f"{record['rows']:,} rows, "
        + (f"{known:,} of them known outliers" if known else "none of them known to be outliers")
        + f", and a detector trained on them. Made {record['made']}. This one file holds the whole page."
    )
    return write_page(
        folder / "report.html",
        record["name"],
        introduction,
        sections,
        style=asset("fvnce.app", "run.css"),
        scripts=[asset("fvnce.app", "plane.js")],
    )


def _made(record: dict[str, Any], config: str) -> Section:
    durations = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record["seconds"].items())
    reading = [
        f"Durations: {durations}.",
        f"Members of the detector: {', '.join(record['members']).replace('_', ' ')}.",
    ]
    versions = Table("Versions", ["program", "version"], [[k, v] for k, v in record["versions"].items()])
    block = render("fvnce.app", "settings.html", config=config)
    return Section("How it was made", reading, tables=[versions], blocks=[block], appendix=True)
