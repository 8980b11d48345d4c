"""The report of a run: one file for each part, which computes it, checks it and shows it, and the page made of them.

==================  ===============================================================
``context``         the run and the rows that every section looks at; images
``verdict``         how good it is, why the threshold is there, what to do next; scores and probabilities
``anomalies``       the strangest rows, with every part of their scores; columns, or pixels, by importance
``codes``           codes, or rows, in two dimensions; reconstructions of data, noise and outliers; samples
``health``          how each column was read, what is missing, what was left out
``training``        losses and live noise; data against noise: log-ratios, calibration, log Z
==================  ===============================================================

The page is drawn from plain numbers (``run.json``, ``analysis.json``, ``config.toml``), so it can be drawn without the
data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ...pages import asset
from ...pages.page import Section, Table, render, write_page
from ...scoring import parse
from ...serialization import RecordError, read_document, write_text
from ..explorer import explorer_section
from ..runs import ANALYSIS, RECORD, RunError, check_config, damaged, read_run_record
from ..runs.settings import RunSettings, read_config
from . import anomalies, codes, health, training, verdict
from .context import Context


class ReportPart(Protocol):
    """What one file adds to the page; each is a module."""

    def build(self, context: Context) -> dict[str, Any]:
        """Its entries of ``analysis.json``: plain numbers, and PNG images as text."""

    def check(self, content: Any, place: str) -> None:
        """Compare the entries that a file holds with what :meth:`show` needs."""

    def show(self, facts: dict[str, Any], record: dict[str, Any]) -> list[Section]:
        """Its sections, from ``analysis.json`` and ``run.json``; none if it does not apply to the run."""


#: In the order of the page, on which sections of the appendix come after all others.
PARTS: tuple[ReportPart, ...] = (verdict, anomalies, training, codes, health)


def analyse(context: Context) -> dict[str, Any]:
    """What the page tells of a run: the content of ``analysis.json``."""
    return {name: entry for part in PARTS for name, entry in part.build(context).items()}


def check_analysis(content: Any) -> None:
    """Refuse an ``analysis.json`` that could not be drawn, with a sentence that names the entry."""
    for part in PARTS:
        part.check(content, "")


def rule_of(config: RunSettings, record: dict[str, Any]) -> str | None:
    """The scoring rule of a run as text; None if nothing in it was trained with one."""
    if config.kind == "latent":
        return None if config.model.noise == "none" else config.model.rule
    image = len(record["layout"]["shape"] or []) > 1
    by_rule = {"network"} if image else {"network", "autoencoder", "variational"}
    return f"power({config.detector.get('alpha', 0.3)})" if by_rule & set(record.get("members", [])) else None


def write_run_page(folder: Path, record: dict[str, Any], facts: dict[str, Any], config: str, rule: str | None) -> Path:
    """Write ``report.html`` and ``figures/`` into the folder of a run."""
    sections = [section for part in PARTS for section in part.show(facts, record)]
    if rule is not None:
        try:
            sections.append(explorer_section(parse(rule)))
        except ValueError as error:
            raise RunError(f"{error}; no run was trained with it, so make the run again with fvnce fit") from None
    sections = sorted([*sections, _made(record, config)], key=lambda section: section.appendix)
    place = folder / "figures"
    if place.is_symlink():
        raise ValueError(f"{place} must be a folder, found a symbolic link, which is not followed; remove the link")
    place.mkdir(exist_ok=True)
    for chart in (chart for section in sections for chart in section.charts):
        write_text(place / f"{chart.name}.svg", chart.file())
    kind = "detector" if record["kind"] == "detector" else "latent-variable model"
    known = record["known"]
    introduction = (
        f"{record['rows']:,} rows, "
        + (f"{known:,} of them known outliers" if known else "none of them known to be outliers")
        + f", and a {kind} trained on them. Made {record['made']}. Everything on this page stands in this one file."
    )
    return write_page(
        folder / "report.html",
        record.get("name") or "Run report",
        introduction,
        sections,
        style="".join(asset("fvnce.app", name) for name in ("run.css", "explorer.css")),
        scripts=[asset("fvnce.app", name) for name in ("explorer.js", "plane.js")],
    )


def make_page(folder: Path) -> Path:
    """Draw figures and page of a run anew from its files, which anybody may have written."""
    for name in (RECORD, ANALYSIS, "config.toml"):
        if not (folder / name).is_file():
            raise RunError(f"{folder} is no whole run: {name} is missing; make it with fvnce fit DATA --out {folder}")
    record = read_run_record(folder / RECORD)
    try:
        facts = read_document(folder / ANALYSIS, "analysis")
        check_analysis(facts)
    except RecordError as error:
        raise RunError(f"{error}; make the run again with fvnce fit") from None
    except (ValueError, RecursionError) as error:
        raise damaged(folder / ANALYSIS, error) from None
    settings = read_config(folder / "config.toml")
    check_config(folder, record)
    config = (folder / "config.toml").read_text(encoding="utf-8")
    try:
        return write_run_page(folder, record, facts, config, rule_of(settings, record))
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        # The checksums are right, so somebody made these files by hand.
        raise RunError(
            f"{folder / ANALYSIS} does not hold what the page tells ({type(error).__name__}: {error}); make the "
            "run again with fvnce fit"
        ) from error


def _made(record: dict[str, Any], config: str) -> Section:
    durations = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record.get("seconds", {}).items())
    reading = [f"Durations: {durations}."] if durations else []
    if "members" in record:
        reading.append(f"Members of the detector: {', '.join(record['members']).replace('_', ' ')}.")
    versions = Table("Versions", ["program", "version"], [[k, v] for k, v in record["versions"].items()])
    block = render("fvnce.app", "settings.html", config=config)
    return Section("How it was made", reading, tables=[versions], blocks=[block], appendix=True)
