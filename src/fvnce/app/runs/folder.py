"""The folder of a run: one writer at a time, and a new run takes the place of an old one file by file.

What lies in the folder and was written by no run, notes or scores of the user's, is never touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...serialization import locked
from .run import HISTORY, MODEL, RECORD, RunError

ANALYSIS = "analysis.json"
#: Files that a run writes, beside its figures.
WRITTEN = (RECORD, MODEL, "config.toml", HISTORY, ANALYSIS, "report.html")
FIGURES = "figures"
#: How every figure of a run begins; another svg beside them is the user's.
_FIGURE = '<svg class="chart"'


@contextmanager
def sole_writer(out: Path) -> Iterator[None]:
    """Be the only one who makes the run ``out``, which need not exist yet."""
    with locked(out.parent / f".{out.name}.lock", out):
        yield


def check_replaceable(out: Path, *, overwrite: bool) -> None:
    """Refuse a place where something is that may not be replaced."""
    if out.exists() and not overwrite:
        raise RunError(f"{out} exists already; choose another folder with --out, or pass --overwrite")
    if out.exists() and not (out / RECORD).is_file():
        raise RunError(
            f"{out} exists and is no run, so --overwrite will not replace it; choose another folder with --out"
        )
    if (out / FIGURES).is_symlink():
        raise RunError(f"{out / FIGURES} is a link, and --overwrite does not write through it; remove it first")


def put_in_place(made: Path, out: Path) -> None:
    """Move the run ``made`` to ``out``; of a run that is there, its own files go and all others stay."""
    if not out.exists():
        made.chmod(0o755)
        made.rename(out)
        return
    new = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    for path in new:
        if (out / path).is_dir():
            raise RunError(f"{out / path} is a folder where a run has a file; move it away first")
    # Without its record the folder is no run, so nobody reads a mixture of two; the new record comes last.
    (out / RECORD).unlink()
    for path in _written(out):
        path.unlink()
    for path in sorted(new, key=lambda path: path.name == RECORD):
        (out / path.parent).mkdir(exist_ok=True)
        (made / path).replace(out / path)
    shutil.rmtree(made)


def _written(out: Path) -> list[Path]:
    """The files in ``out`` that a run wrote."""
    figures = [path for path in (out / FIGURES).glob("*.svg") if path.is_file() and _is_figure(path)]
    return [path for path in (out / name for name in WRITTEN) if path.is_file()] + figures


def _is_figure(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_FIGURE)) == _FIGURE.encode()
