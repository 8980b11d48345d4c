"""``fvnce report``: the page of a run, drawn anew."""

from pathlib import Path
from typing import Annotated

import typer

from .deferred import SUMMARIES

HELP = f"""{SUMMARIES["report"]}

Example: fvnce report run
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help=HELP)(report)


def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that fvnce fit wrote.")]) -> None:
    """Draw the page."""
    from ..report.page import make_page

    typer.echo(make_page(run))
