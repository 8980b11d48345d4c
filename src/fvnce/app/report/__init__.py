"""Pages and model cards. Each module below computes and renders one group of sections.

==================  ===============================================================
``verdict``         number of flagged rows, and quality on held-out rows
``lists``           rows like the known outliers and novel rows, each with a threshold and a curve
``steps``           recommended next steps
``columns``         columns or pixels by importance; how each was read, missing values, columns left out
``scores``          appendix: scores of the training rows
``plane``           appendix: rows in two dimensions
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
from ...io import write_text
from . import columns, lists, plane, scores, steps, verdict
from .analysis import Analysis, plural
from .card import card
from .page import PageTable, Section, block, write_page

#: Modules in the order of the page. Their ``sections(analysis)`` yields nothing if it does not apply to the run.
PARTS = (verdict, lists, steps, columns, scores, plane)


def write_card(path: Path, analysis: Analysis) -> Path:
    """Write the model card of a run."""
    write_text(path, card(analysis))
    return path


def write_run_page(path: Path, analysis: Analysis) -> Path:
    """Write the page of a run."""
    rows, known = len(analysis.data.known), int(analysis.data.known.sum())
    inliers = int(analysis.data.inliers.sum())
    source = analysis.run.config.data.path
    also = f", {plural(inliers, 'known inlier')}" if inliers else ""
    introduction = (
        f"{rows:,} rows, {f'{known:,} of them' if known else 'none of them'} known outliers{also}, and a detector "
        f"trained on them. Made {time.strftime('%Y-%m-%d %H:%M:%S')}. This one file holds the whole page."
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
