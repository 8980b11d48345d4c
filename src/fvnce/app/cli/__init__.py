"""The program ``fvnce``: its commands, what they share, and how errors reach the user.

Everything heavy is imported by the command that needs it, so ``--help`` starts at once. Messages and a progress bar go
to standard error, results to standard output. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 outliers found by ``score
--check`` or a change by ``monitor``, 130 interrupted.

A command is a function of its name, whose docstring follows its summary in the help. Modules of commands do without
postponed annotations, which typer would evaluate three times at every start.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..._version import __version__

if TYPE_CHECKING:
    from ..runs.settings import DataSettings

#: The first sentence of each command's help, in the order in which they are listed.
SUMMARIES = {
    "fit": "Train on DATA and write a run folder: the model, config.toml, report.html and card.md.",
    "score": "Score the rows of DATA with a run: csv (or JSON lines) of row, score, probability, p_value and outlier.",
    "evaluate": "Measure how well a run finds the outliers that the labels of LABELLED mark.",
    "monitor": "Test whether the rows of DATA have changed since training, and exit with 3 if so.",
    "rules": "List the scoring rules, or check one for the double-ELBO property.",
    "data": "Describe how a file is read; or fetch a data set (mnist) and print its folder; or list the data sets.",
    "reproduce": "Reproduce the paper: the items named, or all and a page, report.html.",
}
#: The module of each command.
MODULES = dict.fromkeys(("fit", "score", "evaluate", "monitor"), "runs")
MODULES |= {"rules": "paper", "data": "data", "reproduce": "paper"}
#: Options of ``fvnce fit`` until 0.2, and the settings of the detector that ``--set`` gives now.
RENAMED = {
    "--trees": "n_trees",
    "--networks": "n_networks",
    **{f"--{name.replace('_', '-')}": name for name in ("steps", "members", "hidden", "batch_size", "learning_rate")},
}


class DeferredGroup(TyperGroup):
    """The group of all commands, whose names and summaries are known without importing any."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(SUMMARIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, made when it is needed."""
        if cmd_name in SUMMARIES and self.commands[cmd_name] is None:
            module = import_module(f".{MODULES[cmd_name]}", __package__)
            function = getattr(module, cmd_name)
            alone = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
            text = f"{SUMMARIES[cmd_name]}\n\n{cleandoc(function.__doc__)}\n"
            alone.command(cmd_name, help=text)(function)
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the names and summaries of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


app = typer.Typer(
    name="fvnce",
    cls=DeferredGroup,
    help="Estimate latent-variable and energy-based models by telling data from noise.\n\n"
    "Start with: fvnce fit table.csv --out run, then fvnce score run new.csv, and open run/report.html.\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 outliers found by score --check or a change by monitor, "
    "130 interrupted.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
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
    """Run the command line; an error is one line on standard error and an exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:cut]
    # Anywhere on the line: people add it to the end of the line that failed.
    words = [word for word in words[:cut] if word != "--debug"] + words[cut:]
    words = _renamed(words) if words[:1] == ["fit"] else words
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: _report(" ".join(str(message).split()))
            code = app(args=words, prog_name="fvnce", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # The reader has seen enough, and nobody is left to read a message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        # Click's own errors, whichever package they come from: typer ships click inside since 0.20.
        usage = hasattr(error, "format_message")
        if debug and not usage:
            raise
        message, code = _explained(error, usage)
        _report(message)
        for line in _problems(error):
            make_echo(False)(line)
        sys.exit(code)
    if code == 130:  # typer's own report of Ctrl-C too
        _report("interrupted")
    sys.exit(code if isinstance(code, int) else 0)


def _renamed(words: list[str]) -> list[str]:
    """Replace options of earlier versions, and say so.

    >>> _renamed(["fit", "t.csv", "--set", "n_trees=5"])
    ['fit', 't.csv', '--set', 'n_trees=5']
    """
    words = [part for word in words for part in (word.split("=", 1) if word.split("=")[0] in RENAMED else [word])]
    for i, word in enumerate(words[:-1]):
        if word in RENAMED:
            words[i : i + 2] = ["--set", f"{RENAMED[word]}={words[i + 1]}"]
            _report(f"{word} is deprecated and will be removed; write --set {words[i + 1]}")
    return words


def _explained(error: Any, usage: bool) -> tuple[str, int]:
    """Return one line for an error, and the exit code."""
    if usage:
        problem = " ".join(error.format_message().split())
        end = "" if problem.endswith(("?", ".")) else "."
        context = getattr(error, "ctx", None)
        return f"{problem}{end} Try '{'fvnce' if context is None else context.command_path} --help'.", 2
    text = " ".join(str(error).split())
    if len(getattr(error, "rows", "")) > 2:
        return f"{error.name} cannot be read as it is: {len(error.rows) - 1} to decide", 1
    if isinstance(error, OSError):
        return (f"{error.strerror or error}: {error.filename}" if error.filename else text), 1
    if isinstance(error, ValueError | TypeError | RuntimeError) and text:
        return text, 1
    if isinstance(error, MemoryError):
        return "out of memory: use fewer rows, or smaller settings", 1
    return f"unexpected {type(error).__name__}: {text or 'no message'}; run it again with --debug for the traceback", 1


def _problems(error: Any) -> list[str]:
    """Return the lines of the table of problems, if the error has one, and the options that would settle them."""
    if len(getattr(error, "rows", "")) <= 2:
        return []
    paste = [f"to settle it, check and paste: {error.paste}"] if error.paste else []
    return [*text_table("", error.rows, left=True).split("\n"), *paste]


def _report(message: str) -> None:
    make_echo(False)(f"fvnce: {message}")


Delimiter = Annotated[
    str | None, typer.Option(help="Separate columns of a text table by this character; found if not given.")
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Take the first line for the names of columns.", show_default=False),
]
Missing = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Read TEXT as a missing value, like '', NA, NaN, null, none, ?; repeatable."),
]
Decimal = Annotated[
    str | None, typer.Option(metavar=".|,", help="Take . or , for the decimal mark where no value of a file shows it.")
]
Categorical = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Read a column of numbers as text; repeatable.")
]
Array = Annotated[str | None, typer.Option(metavar="NAME", help="Read the rows from this array of an npz file.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


def writable(path: str, option: str, inputs: Sequence[str | Path] = ()) -> None:
    """Refuse a folder, or a file that is read, before any work is done, and make the folder of the file."""
    if Path(path).is_dir():
        raise typer.BadParameter(f"{option} must name a file, {path!r} is a folder")
    for read in ("/dev/stdin" if str(read) == "-" else read for read in inputs):
        if Path(read).exists() and Path(path).is_file() and os.path.samefile(path, read):
            raise typer.BadParameter(f"{option} must not name a file that is read, found {path!r}; choose another name")
    Path(path).parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[IO[str]]:
    """Open a text file that appears when it is whole; a link is replaced, a device or a pipe written to."""
    from ...io import atomic_write

    if path.parent == Path("/dev") or (path.exists() and not path.is_file()):
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    with atomic_write(path, "w") as file:
        yield file


def one_character(delimiter: str | None) -> str | None:
    """Return a delimiter from how people write it.

    >>> one_character("tab"), one_character(";")
    ('\\t', ';')
    """
    named = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}
    delimiter = None if delimiter is None else named.get(delimiter.lower(), delimiter)
    if delimiter is not None and len(delimiter) != 1:
        raise typer.BadParameter(f"--delimiter must be one character or its name, found {delimiter!r}")
    return delimiter


def point_or_comma(decimal: str | None) -> str | None:
    """Return a decimal mark that is one."""
    if decimal not in (None, ".", ","):
        raise typer.BadParameter(f"--decimal must be . or , found {decimal!r}")
    return decimal


def like_training(
    data: "DataSettings", *, delimiter: str | None, missing: list[str] | None, decimal: str | None, **given: Any
) -> "DataSettings":
    """Return how another file than that of training is read: by the options, and else as in training."""
    from dataclasses import replace

    # The delimiter and the decimal mark of the training file say nothing about this one; its gaps do.
    given |= {"missing": tuple(missing or data.missing), "array": given["array"] or data.array}
    return replace(data, delimiter=one_character(delimiter), decimal=point_or_comma(decimal), **given)


def make_echo(quiet: bool) -> Callable[[str], None]:
    """Return a function that writes a line to standard error, or does nothing."""

    def say(text: str) -> None:
        # Imported here: the program starts without it, and most runs of it need no message.
        from ..escaping import visible

        typer.echo(visible(text), err=True)

    return (lambda text: None) if quiet else say


def text_table(caption: str, rows: Sequence[Sequence[str]], *, left: bool = False) -> str:
    """Return a table for a terminal, its header the first row: names to the left, numbers to the right unless ``left``.

    >>> print(text_table("nats", [["row", "value"], ["a", "1"]]))
    nats
    row  value
    a        1
    """
    from ..escaping import visible

    cells = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.ljust(w) if left else c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in cells
    ]
    return "\n".join([*([visible(caption)] if caption else []), *(line.rstrip() for line in lines)])


@contextmanager
def progress(title: str, quiet: bool) -> Iterator[Callable[[int, float | None], None] | None]:
    """Show a bar for rows done and the share of all, if standard error is a terminal."""
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
