"""What the program says while it works: sentences and a bar on standard error, and nothing that a script would read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from ...pages.escape import visible


def sayer(quiet: bool) -> Callable[[str], None]:
    """A function that says a sentence, or does nothing."""
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
