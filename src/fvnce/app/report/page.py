"""The page of a run: what it learnt, what it thinks strange and why, whether to trust it, and how to make it again.

It is drawn from plain numbers (``run.json``, ``analysis.json``, ``config.toml``), so it can be drawn without the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ...pages.page import Section, Table, render, write_page
from ...serialization import write_text
from ..runs.settings import RunSettings
from . import contrast, plane, reconstruction, scores, top_anomalies, training
from .context import Context
from .explorer import asset, explorer_section


class ReportSection(Protocol):
    """A section that has something to compute; each is a module."""

    def build(self, context: Context) -> dict[str, Any]:
        """Its entries of ``analysis.json``: plain numbers, and PNG images as text."""

    def check(self, content: Any, place: str) -> None:
        """Compare the entries that a file holds with what :meth:`show` needs."""

    def show(self, facts: dict[str, Any], record: dict[str, Any]) -> Section:
        """The section, from ``analysis.json`` and ``run.json``."""


#: In the order of the page.
SECTIONS: tuple[ReportSection, ...] = (scores, top_anomalies, plane, training, contrast, reconstruction)


def analyse(context: Context) -> dict[str, Any]:
    """What the page tells of a run: the content of ``analysis.json``."""
    return {name: entry for section in SECTIONS for name, entry in section.build(context).items()}


def check_analysis(content: Any) -> None:
    """Refuse an ``analysis.json`` that could not be drawn, with a sentence that names the entry."""
    for section in SECTIONS:
        section.check(content, "")


def rule_of(config: RunSettings) -> str:
    """The scoring rule of a run as text."""
    return config.model.rule if config.kind == "latent" else f"power({config.detector.get('alpha', 0.3)})"


def write_run_page(folder: Path, record: dict[str, Any], facts: dict[str, Any], config: str, rule: str) -> Path:
    """Write ``report.html`` and ``figures/`` into the folder of a run."""
    sections = [*(section.show(facts, record) for section in SECTIONS), explorer_section(rule), _made(record, config)]
    place = folder / "figures"
    if place.is_symlink():
        raise ValueError(f"{place} must be a folder, found a symbolic link, which is not followed; remove the link")
    place.mkdir(exist_ok=True)
    for chart in (chart for section in sections for chart in section.charts):
        write_text(place / f"{chart.name}.svg", chart.file())
    kind = "detector" if record["kind"] == "detector" else "latent-variable model"
    known = record["known"]
    introduction = (
        f"A {kind} trained on {record['rows']:,} rows, "
        + (f"{known:,} of them known outliers" if known else "none of them known to be outliers")
        + f". Everything on this page stands in this one file. Made {record['made']}."
    )
    return write_page(
        folder / "report.html",
        "Run report",
        introduction,
        sections,
        style=asset("run.css") + asset("explorer.css"),
        scripts=[asset("explorer.js"), asset("plane.js")],
    )


def _made(record: dict[str, Any], config: str) -> Section:
    durations = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record.get("seconds", {}).items())
    reading = [f"Durations: {durations}."] if durations else []
    if "members" in record:
        reading.append(f"Members of the detector: {', '.join(record['members']).replace('_', ' ')}.")
    versions = Table("Versions", ["program", "version"], [[k, v] for k, v in record["versions"].items()])
    block = render("fvnce.app", "settings.html", config=config)
    return Section("How it was made", reading, tables=[versions], blocks=[block])
