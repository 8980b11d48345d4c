"""``fvnce bench``: the benchmarks of a checkout."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .deferred import SUMMARIES

HELP = f"""{SUMMARIES["bench"]} What follows is passed on to its script.

The scripts are in the folder benchmarks of a checkout, not in the installed package; peers come with the extra "bench".

Examples:

fvnce bench kde --quick

fvnce bench training --repeats 3 --out training.json

FVNCE_DATA=data fvnce bench detection --shares 0.1 --datasets 12_fault

fvnce bench detection -- --help
"""
SCRIPTS = ("kde", "training", "detection")


def register(app: typer.Typer) -> None:
    """Add the command."""
    passing = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("bench", help=HELP, context_settings=passing)(bench)


def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="kde|training|detection", help="Which benchmark.")],
) -> None:
    """Run a benchmark."""
    if name not in SCRIPTS:
        raise typer.BadParameter(f"unknown benchmark {name!r}; the benchmarks are {', '.join(SCRIPTS)}")
    places = [Path(__file__).resolve().parents[3] / "benchmarks", Path.cwd() / "benchmarks"]
    script = next((place / f"{name}.py" for place in places if (place / f"{name}.py").is_file()), None)
    if script is None:
        raise ValueError(
            "the benchmarks are part of a checkout of fvnce and not of the installed package; "
            "run this in the folder of a checkout"
        )
    code = subprocess.run([sys.executable, str(script), *context.args], check=False).returncode
    raise typer.Exit(code)
