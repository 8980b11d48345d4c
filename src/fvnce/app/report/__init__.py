"""The page of a run: one file for each group of sections, which computes them and shows them.

==================  ===============================================================
``verdict``         what was found, and how far to trust it
``lists``           rows like the known outliers and rows unlike anything, each with its line and what moving it costs
``steps``           what to do next
``columns``         columns, or pixels, by importance; how each was read, what is missing, what was left out
``scores``          appendix: scores of the training rows
``plane``           appendix: rows in two dimensions
``card``            the model card, a file of its own
``analysis``        shared: the run, the training rows and their scores; images
``summary``         shared: what columns hold
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

#: In the order of the page. Each has ``sections(analysis)``, which yields none where it does not apply to the run.
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
