"""Page of ``fvnce reproduce`` with the results of :mod:`fvnce.paper`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..._version import __version__
from ...paper.setting import Options, Result
from .page import PageFigure, PageTable, Section, write_page

_DATA = {
    "digits": "the 8×8 digits that ship with scikit-learn, with networks scaled to them; the paper uses MNIST",
    "mnist": "MNIST, as in the paper",
}


def write_reproduction_page(path: Path, results: Sequence[Result], options: Options, seconds: float) -> Path:
    """Write the page, with a section for each result."""
    introduction = (
        f"Made by fvnce {__version__} in {seconds:.0f} seconds on {_DATA[options.data]}. "
        f"{'Tiny settings: a check that everything runs, not a result. ' * options.quick}"
        "Each section gives the results and how they differ from the paper."
    )
    sections = [
        Section(
            result.title,
            result.reading,
            figures=[PageFigure(figure.path, figure.caption, figure.alt) for figure in result.figures],
            tables=[PageTable(table.caption, table.header, table.rows) for table in result.tables],
            settings=result.settings,
            seconds=result.seconds,
        )
        for result in results
    ]
    return write_page(path, "Fully variational NCE: the paper, reproduced", introduction, sections)
