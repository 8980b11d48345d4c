"""Pages and model cards. Each module below computes and renders one group of sections.

==================  ===============================================================
``verdict``         number of flagged rows, and quality on held-out rows
``lists``           rows like the known outliers and novel rows, each with a threshold and a curve
``steps``           recommended next steps
``columns``         columns or pixels by importance; how each was read, missing values, columns left out
``appendix``        scores of the training rows, and rows in two dimensions
``card``            the model card, a separate file
``analysis``        shared: the run, the training rows and their scores; images
``summary``         shared: summaries of columns
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
from . import appendix, columns, lists, steps, verdict
from .analysis import Analysis
from .page import PageTable, Section, block, plain, write_page

#: Modules in the order of the page. Their ``sections(analysis)`` yields nothing if it does not apply to the run.
PARTS = (verdict, lists, steps, columns, appendix)


def write_run_page(path: Path, analysis: Analysis) -> Path:
    """Write the page of a run."""
    data, source = analysis.data, analysis.run.config.data.path
    counts = {"rows": len(data.known), "known": int(data.known.sum()), "inliers": int(data.inliers.sum())}
    made, numbered = time.strftime("%Y-%m-%d %H:%M:%S"), data.names is None
    introduction = plain("introduction.md", **counts, made=made, numbered=numbered).strip()
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
