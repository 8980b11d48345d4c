"""The program ``fvnce``: its commands, and how errors reach the user.

The modules of commands do without postponed annotations: typer would evaluate each of them three times at every start.
"""

import os
import sys
import warnings
from typing import Annotated, Any

import typer

from ..._version import __version__
from .deferred import DeferredGroup

app = typer.Typer(
    name="fvnce",
    cls=DeferredGroup,
    help="Estimate latent-variable and energy-based models by telling data from noise.\n\n"
    "Start with: fvnce fit table.csv --out run, then fvnce score run new.csv, and open run/report.html.\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 outliers found by score --check, 130 interrupted.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


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
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; anywhere on the line.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what went wrong is one line on stderr and an exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:cut]
    # Wherever it stands: people add it to the end of the line that failed.
    words = [word for word in words[:cut] if word != "--debug"] + words[cut:]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn  # type: ignore[assignment]
            code = app(args=words, prog_name="fvnce", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader has seen enough; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        # Click's own errors, whichever package they come from: typer ships click inside since 0.20.
        usage = hasattr(error, "format_message")
        if debug and not usage:
            raise
        message, status = _explained(error, usage)
        _fail(message, status)
    if code == 130:  # so typer reports Ctrl-C
        _fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _explained(error: Any, usage: bool) -> tuple[str, int]:
    """One line, and the exit code."""
    if usage:
        said = " ".join(error.format_message().split())
        end = "" if said.endswith(("?", ".")) else "."
        return f"{said}{end} Try '{_help_of(error)}'.", 2
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        return (f"{error.strerror or error}: {error.filename}" if error.filename else text), 1
    if isinstance(error, ValueError | TypeError | RuntimeError) and text:
        return text, 1
    if isinstance(error, MemoryError):
        return "out of memory: use fewer rows, or smaller settings", 1
    return f"unexpected {type(error).__name__}: {text or 'no message'}; run it again with --debug for the traceback", 1


def _visible(text: str) -> str:
    # Not at the top: the program starts without it, and most runs of it go well.
    from ...pages.escape import visible

    return visible(text)


def _help_of(error: Any) -> str:
    """The help that belongs to a mistake: that of the command, if it was one's own."""
    context = getattr(error, "ctx", None)
    return f"{'fvnce' if context is None else context.command_path} --help"


def _warn(message: Any, *_: Any) -> None:
    typer.echo(f"fvnce: {_visible(' '.join(str(message).split()))}", err=True)


def _fail(message: str, code: int) -> None:
    typer.echo(f"fvnce: {_visible(message)}", err=True)
    sys.exit(code)
