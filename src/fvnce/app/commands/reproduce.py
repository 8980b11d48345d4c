"""``fvnce reproduce``: the paper's figures and tables."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...paper import ITEMS

HELP = (
    "\n\n".join(f"{name}: {what}" for name, what in ITEMS.items())
    + "\n\nExamples:\n\nfvnce reproduce\n\nfvnce reproduce pairs losses --out figures"
    + "\n\nfvnce reproduce table --data mnist --seeds 3 --out out"
)


class Data(StrEnum):
    """The data sets of the reproduction."""

    digits = "digits"
    mnist = "mnist"


def reproduce(
    items: Annotated[list[str] | None, typer.Argument(metavar="ITEM", help="Which items.")] = None,
    data: Annotated[Data, typer.Option(help="digits ships with scikit-learn; mnist is fetched.")] = Data.digits,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs, if not the item's own.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny settings, to see that everything runs.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes of one thread each; by default 1 for digits, one per core for mnist."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("out"),
) -> None:
    """Make the items named, or all and a page."""
    wanted = list(dict.fromkeys(items or ITEMS))
    for item in wanted:
        if item not in ITEMS:
            raise typer.BadParameter(f"unknown item {item!r}; the items are {', '.join(ITEMS)}")
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"--out must be a folder, {str(out)!r} is a file")
    from ...paper import reproduce as run
    from ...paper.setting import Options

    options = Options(data.value, seeds, epochs, quick, jobs)
    for path in run(wanted, out, options, page=not items, say=lambda text: typer.echo(text, err=True)):
        typer.echo(path)
