"""What commands share: the options that say how a file is to be read, files to write, and what is said on the way.

Sentences and a bar go to standard error, so that a script reads nothing but results.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from ...pages.escape import visible

if TYPE_CHECKING:
    from ..runs.settings import DataSettings

Delimiter = Annotated[
    str | None, typer.Option(help="What separates columns of a text table; found by itself if not given.")
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether its first line names the columns.", show_default=False),
]
Missing = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="A text that stands for a missing value, beside '', NA, NaN, null, none, ?."),
]
Categorical = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="A column that is text though it looks like numbers.")
]
Array = Annotated[str | None, typer.Option(metavar="NAME", help="Which array of an npz file holds the rows.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]


def writable(path: str, option: str) -> None:
    """Refuse a folder where a file is to be written before any work is done, and make the folder the file is in."""
    if Path(path).is_dir():
        raise typer.BadParameter(f"{option} must name a file, {path!r} is a folder")
    Path(path).parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[IO[str]]:
    """A text file that is there when it is whole; a link in its place is replaced, a device or a pipe written to."""
    from ...serialization import atomic_write

    if path.parent == Path("/dev") or (path.exists() and not path.is_file()):
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    with atomic_write(path, "w") as file:
        yield file


def one_character(delimiter: str | None) -> str | None:
    """A delimiter as people write it.

    >>> one_character("tab"), one_character(";")
    ('\\t', ';')
    """
    named = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}
    delimiter = None if delimiter is None else named.get(delimiter.lower(), delimiter)
    if delimiter is not None and len(delimiter) != 1:
        raise typer.BadParameter(f"--delimiter must be one character or its name, found {delimiter!r}")
    return delimiter


def like_training(
    data: "DataSettings", delimiter: str | None, header: bool | None, missing: list[str] | None, array: str | None
) -> "DataSettings":
    """How another file than that of training is read: as the line says, and else as training was as far as it tells."""
    from dataclasses import replace

    given = {"header": header, "missing": tuple(missing) if missing else data.missing, "array": array or data.array}
    # How the training file was separated says nothing of this one; what stands for a missing value does.
    return replace(data, delimiter=one_character(delimiter), **given)  # type: ignore[arg-type]


def make_echo(quiet: bool) -> Callable[[str], None]:
    """A function that says a sentence on standard error, or does nothing."""
    return (lambda text: None) if quiet else (lambda text: typer.echo(visible(text), err=True))


@contextmanager
def progress(title: str, quiet: bool) -> Iterator[Callable[[int, float | None], None] | None]:
    """A bar for rows done and the share of all, if standard error is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0, rows=0)

        def tick(rows: int, share: float | None) -> None:
            bar.update(task, rows=rows, total=None if share is None else 1.0, completed=share or 0.0)

        yield tick
