"""The page of a run: what it learnt, what it thinks strange and why, whether to trust it, and how to make it again.

It is drawn from plain numbers (``run.json``, ``study.json``, ``config.toml``), so it can be drawn without the data.
Each section has a file of its own.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from ....pages.charts import Chart
from ....pages.escape import markup
from ....pages.page import Section, Table, write_page
from ....serialization import write_text
from .. import explorer
from .contrast import contrast_section
from .plane import plane_section
from .rebuilding import rebuilding_section
from .rule import rule_section
from .scores import anomalies_section, scores_section
from .training import training_section

__all__ = ["write_run_page"]

_STYLE = """
.sheet { image-rendering: pixelated; width: 100%; max-width: 34rem; border-radius: 0; }
.thumb { image-rendering: pixelated; width: 64px; height: 64px; object-fit: contain; margin-right: .3rem; }
#plane-info { min-height: 4.6rem; display: flex; gap: .8rem; align-items: center; color: var(--soft); }
#plane-picture { flex: none; image-rendering: pixelated; background-repeat: no-repeat; }
.anomalies { padding-left: 1.4rem; columns: 2 20rem; column-gap: 3rem; }
.anomalies li { margin: 0 0 .9rem; break-inside: avoid; }
.bar { display: inline-block; height: .7em; background: var(--c1); border-radius: .15em; vertical-align: baseline; }
"""


def write_run_page(folder: Path, record: dict[str, Any], facts: dict[str, Any], config: str, rule: str) -> Path:
    """Write ``report.html`` and ``figures/`` into the folder of a run."""
    figures: list[Chart] = []
    sections = [
        scores_section(record, facts, figures),
        anomalies_section(facts),
        plane_section(facts, figures),
        training_section(facts, figures),
        contrast_section(facts, figures),
        rebuilding_section(facts),
        rule_section(rule),
        _made(record, config),
    ]
    place = folder / "figures"
    if place.is_symlink():
        raise ValueError(f"{place} must be a folder, found a symbolic link, which is not followed; remove the link")
    place.mkdir(exist_ok=True)
    for chart in figures:
        write_text(place / f"{chart.name}.svg", chart.file())
    kind = "detector" if record["kind"] == "detector" else "latent-variable model"
    known = record["known"]
    introduction = (
        f"A {kind} trained on {record['rows']:,} rows, "
        + (f"{known:,} of them known outliers" if known else "none of them known to be outliers")
        + f". Everything on this page stands in this one file. Made {record['made']}."
    )
    scripts = [explorer.script(), files("fvnce.app.report").joinpath("plane.js").read_text(encoding="utf-8")]
    return write_page(
        folder / "report.html", "Run report", introduction, sections, style=_STYLE + explorer.STYLE, scripts=scripts
    )


def _made(record: dict[str, Any], config: str) -> Section:
    durations = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record.get("seconds", {}).items())
    reading = [f"Durations: {durations}."] if durations else []
    if "members" in record:
        reading.append(f"Members of the detector: {', '.join(record['members']).replace('_', ' ')}.")
    versions = Table("Versions", ["program", "version"], [[k, v] for k, v in record["versions"].items()])
    block = (
        "<p>The settings; <code>fvnce fit --config config.toml --out FOLDER</code> makes the same weights from the "
        f'same data.</p><pre tabindex="0" aria-label="config.toml">{markup(config)}</pre>'
    )
    return Section("How it was made", reading, tables=[versions], blocks=[block])
