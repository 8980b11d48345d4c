"""The page of a run: one file for each group of sections, which computes them and shows them.

==================  ===============================================================
``verdict``         how good the run is, why the threshold is there, what to do next; scores
``anomalies``       the highest-scoring rows, with every part of their scores; columns, or pixels, by importance
``plane``           rows in two dimensions
``columns``         how each column was read, what is missing, what was left out
``analysis``        shared: the run, the training rows and their scores; images
``monitoring``      the page of ``fvnce monitor``
``charts``          shared: charts as SVG
``page``            shared: sections as one HTML file
==================  ===============================================================
"""

from __future__ import annotations

import platform
import time
from importlib.metadata import version
from pathlib import Path

from ..._version import __version__
from . import anomalies, columns, plane, verdict
from .analysis import Analysis
from .page import PageTable, Section, block, write_page

#: In the order of the page. Each has ``sections(analysis)``, which yields none where it does not apply to the run.
PARTS = (verdict, anomalies, plane, columns)


def write_run_page(path: Path, analysis: Analysis) -> Path:
    """Write the page of a run."""
    rows, known = len(analysis.data.known), int(analysis.data.known.sum())
    source = analysis.run.config.data.path
    introduction = (
        f"{rows:,} rows, {f'{known:,} of them' if known else 'none of them'} known outliers, and a detector trained on "
        f"them. Made {time.strftime('%Y-%m-%d %H:%M:%S')}. This one file holds the whole page."
    )
    sections = [section for part in PARTS for section in part.sections(analysis)]
    title = "standard input" if source == "-" else Path(source).name
    return write_page(path, title, introduction, [*sections, _made(analysis)])


def _made(analysis: Analysis) -> Section:
    members = ", ".join(analysis.run.detector.ensemble_.names).replace("_", " ")
    versions = {"fvnce": __version__, "python": platform.python_version()}
    versions |= {name: version(name) for name in ("torch", "numpy", "scikit-learn")}
    return Section(
        "How it was made",
        [f"Members of the detector: {members}."],
        blocks=[block("config", text=analysis.run.config.to_toml())],
        tables=[PageTable("Versions", ["program", "version"], list(versions.items()))],
        appendix=True,
    )
