"""``fvnce report``: the page of a run, drawn anew."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help="Draw report.html and figures of a run anew from its files, and print the page's path.")(
        report
    )


def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that fvnce fit wrote.")]) -> None:
    """Draw the page."""
    from ..runs.making import make_page

    typer.echo(make_page(run))
