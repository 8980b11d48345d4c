"""``fvnce report``: the page of a run, drawn anew."""

from pathlib import Path
from typing import Annotated

import typer

HELP = "Example: fvnce report run"


def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that fvnce fit wrote.")]) -> None:
    """Draw the page."""
    from ..report.page import make_page

    typer.echo(make_page(run))
