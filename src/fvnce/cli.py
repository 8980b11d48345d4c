"""The command line. Everything heavy is imported by the command that needs it, so ``--help`` starts at once."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ._version import __version__
from .paper import GROUPS, ITEMS, PREDECESSOR

app = typer.Typer(
    name="fvnce",
    help="Estimate latent-variable and energy-based models by telling data from noise.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


class Data(StrEnum):
    """The data sets of the reproduction."""

    digits = "digits"
    mnist = "mnist"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fvnce {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(
    help="Reproduce the paper: the items named, or all of its own and a page, report.html.\n\n"
    + "\n\n".join(f"{name}: {what}" for name, what in ITEMS.items())
    + "\n\nOnly when named, as they take minutes: the problems of variational NCE (vnce: all five).\n\n"
    + "\n\n".join(f"{name}: {what}" for name, what in PREDECESSOR.items())
)
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
    known = {**ITEMS, **PREDECESSOR}
    named = [member for item in items or ITEMS for member in GROUPS.get(item, (item,))]
    wanted = list(dict.fromkeys(named))
    for item in wanted:
        if item not in known:
            raise typer.BadParameter(f"unknown item {item!r}; the items are {', '.join([*known, *GROUPS])}")
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"--out must be a folder, {str(out)!r} is a file")
    from .paper.reproduce import reproduce as run
    from .paper.study import Options
    from .paper.workers import WorkError

    options = Options(data.value, seeds, epochs, quick, jobs)
    try:
        for path in run(wanted, out, options, page=not items, say=lambda text: typer.echo(text, err=True)):
            typer.echo(path)
    except WorkError as error:
        _fail(str(error), 1)


@app.command("data")
def fetch(name: Annotated[str, typer.Argument(metavar="NAME", help="mnist")]) -> None:
    """Fetch a data set, check it, and print the folder it is in."""
    if name != "mnist":
        raise typer.BadParameter(f"unknown data set {name!r}; the data sets are mnist")
    from .data import fetch_mnist

    typer.echo(fetch_mnist(lambda sentence: typer.echo(sentence, err=True)))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what the user got wrong is one line on stderr and exit code 2."""
    try:
        code = app(args=arguments, standalone_mode=False)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error), 1)
    except Exception as error:
        # Click's own errors, whichever package they come from: typer ships click inside since 0.20.
        if not hasattr(error, "format_message"):
            raise
        message = " ".join(error.format_message().split()).rstrip(".")
        _fail(f"{message}. Try 'fvnce --help'.", 2)
    if code == 130:  # so typer reports Ctrl-C
        _fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    typer.echo(f"fvnce: {message}", err=True)
    sys.exit(code)
