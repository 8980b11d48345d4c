"""The program ``fvnce``: its commands, each imported when it is called, and how errors reach the user.

The module of a command has a function of its name, ``HELP`` to stand below its summary and, if need be, a ``Command``
of its own kind. It does without postponed annotations: typer would evaluate each of them three times at every start.
"""

import os
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..._version import __version__

#: The first sentence of each command's help, in the order in which they are listed.
SUMMARIES = {
    "fit": "Train on DATA and write a run folder: the model, config.toml, history, figures and report.html.",
    "score": "Score the rows of DATA with a run: csv (or JSON lines) of row, score, probability, p_value and outlier.",
    "evaluate": "Tell how well a run finds the outliers that the labels of LABELLED mark.",
    "report": "Draw report.html and figures of a run anew from its files, and print the page's path.",
    "rules": "List the scoring rules, or check one for the double-ELBO property.",
    "data": "Fetch a data set (mnist) and print its folder; or tell how a file will be read; or list the data sets.",
    "reproduce": "Reproduce the paper: the items named, or all and a page, report.html.",
}


class DeferredGroup(TyperGroup):
    """The group of all commands, whose names and summaries are known without importing any."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(SUMMARIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, made when it is asked for."""
        if cmd_name in SUMMARIES and self.commands[cmd_name] is None:
            module = import_module(f".{cmd_name}", __package__)
            alone = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
            named = alone.command(
                cmd_name, help=f"{SUMMARIES[cmd_name]}\n\n{module.HELP}", cls=getattr(module, "Command", None)
            )
            named(getattr(module, cmd_name))
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List names and summaries."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


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
        context = getattr(error, "ctx", None)
        return f"{said}{end} Try '{'fvnce' if context is None else context.command_path} --help'.", 2
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        return (f"{error.strerror or error}: {error.filename}" if error.filename else text), 1
    if isinstance(error, ValueError | TypeError | RuntimeError) and text:
        return text, 1
    if isinstance(error, MemoryError):
        return "out of memory: use fewer rows, or smaller settings", 1
    return f"unexpected {type(error).__name__}: {text or 'no message'}; run it again with --debug for the traceback", 1


def _say(sentence: str) -> None:
    # Not at the top: the program starts without it, and most runs of it go well.
    from ...pages.escape import visible

    typer.echo(f"fvnce: {visible(sentence)}", err=True)


def _warn(message: Any, *_: Any) -> None:
    _say(" ".join(str(message).split()))


def _fail(message: str, code: int) -> None:
    _say(message)
    sys.exit(code)
