"""Options that say how a file is to be read, shared by the commands that read one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer

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
