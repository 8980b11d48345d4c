"""The program ``fvnce``: its list of commands, their common options, and error handling.

Each command imports what it needs when it runs, so ``--help`` is fast. Messages and the progress bar go to standard
error, results to standard output. Exit codes: 0 success, 1 failure, 2 usage error, 3 outliers found by ``score
--check`` or a change found by ``monitor``, 130 interrupted.

A command is a function of the same name. Its help is its entry in :data:`SUMMARIES`, followed by its docstring. Modules
of commands do not use postponed annotations, which typer would evaluate three times at every start.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..._version import __version__

if TYPE_CHECKING:
    from ...tables.frame import Part
    from ..runs.settings import DataSettings

#: The first sentence of each command's help, in the order in which they are listed.
SUMMARIES = {
    "fit": "Train on DATA and write a run folder: the model, config.toml, report.html and card.md.",
    "score": "Score the rows of DATA; write row, score, probability, p_value and outlier as csv or JSON lines.",
    "evaluate": "Measure how well a run finds the outliers marked in LABELED.",
    "monitor": "Test whether the rows of DATA differ from the training rows; exit with 3 if they do.",
    "rules": "List the scoring rules, or check one for the double-ELBO property.",
    "data": "Describe how a file is read, download a data set (mnist), or list the data sets.",
    "reproduce": "Reproduce the given items of the paper; by default all of them, with a page, report.html.",
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
    """Group of commands that imports a command only when it is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(SUMMARIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, and import it at first use."""
        if cmd_name in SUMMARIES and self.commands[cmd_name] is None:
            module = import_module(f".{MODULES[cmd_name]}", __package__)
            function = getattr(module, cmd_name)
            alone = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
            text = f"{SUMMARIES[cmd_name]}\n\n{cleandoc(function.__doc__)}\n"
            alone.command(cmd_name, help=text)(function)
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names and summaries of all commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


app = typer.Typer(
    name="fvnce",
    cls=DeferredGroup,
    help="Find outliers in tables and images, and reproduce the paper on fully variational NCE.\n\n"
    "Start with: fvnce fit table.csv --out run, then fvnce score run new.csv, and open run/report.html.\n\n"
    "Exit codes: 0 success, 1 failure, 2 usage error, 3 outliers found by score --check or a change found by "
    "monitor, 130 interrupted.",
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
        bool, typer.Option("--debug", help="Show the traceback of an error; allowed anywhere on the line.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; print an error as one line on standard error, and exit with its code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:cut]
    # Accepted anywhere on the line, since people add it to the end of the line that failed.
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
        # The reader, such as head, has closed the pipe, so a message would reach nobody.
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
    if code == 130:  # also how typer reports Ctrl-C
        _report("interrupted")
    sys.exit(code if isinstance(code, int) else 0)


def _renamed(words: list[str]) -> list[str]:
    """Replace options of earlier versions, with a message.

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
        return f"{error.name} cannot be read unambiguously: {len(error.rows) - 1} to decide", 1
    if isinstance(error, OSError):
        return (f"{error.strerror or error}: {error.filename}" if error.filename else text), 1
    if isinstance(error, ValueError | TypeError | RuntimeError) and text:
        return text, 1
    if isinstance(error, MemoryError):
        return "out of memory: use fewer rows, or smaller settings", 1
    return f"unexpected {type(error).__name__}: {text or 'no message'}; run it again with --debug for the traceback", 1


def _problems(error: Any) -> list[str]:
    """Return the table of problems of an error, if it has one, and the options that would resolve them."""
    if len(getattr(error, "rows", "")) <= 2:
        return []
    paste = [f"to settle it, check and paste: {error.paste}"] if error.paste else []
    return [*text_table("", error.rows, left=True).split("\n"), *paste]


def _report(message: str) -> None:
    make_echo(False)(f"fvnce: {message}")


def option(metavar: str | None, help: str, *names: str, **how: Any) -> Any:
    """Return an option with its placeholder and its help."""
    return typer.Option(*names, metavar=metavar, help=help, **how)


def _one_character(delimiter: str | None) -> str | None:
    """Return the character that a delimiter or its name, such as "tab", means.

    >>> _one_character("tab"), _one_character(";")
    ('\\t', ';')
    """
    named = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}
    delimiter = None if delimiter is None else named.get(delimiter.lower(), delimiter)
    if delimiter is not None and len(delimiter) != 1:
        raise typer.BadParameter(f"must be one character or its name, found {delimiter!r}")
    return delimiter


def _point_or_comma(decimal: str | None) -> str | None:
    if decimal not in (None, ".", ","):
        raise typer.BadParameter(f"must be . or , found {decimal!r}")
    return decimal


Delimiter = Annotated[
    str | None,
    option(None, "Separate columns of a text table by this character; detected by default.", callback=_one_character),
]
Header = Annotated[
    bool | None,
    option(
        None,
        "Read column names from the first line, or not; detected by default.",
        "--header/--no-header",
        show_default=False,
    ),
]
Missing = Annotated[
    list[str] | None,
    option("TEXT", "Read TEXT as a missing value, in addition to '', NA, NaN, null, none and ?; repeatable."),
]
Decimal = Annotated[
    str | None,
    option(".|,", "Set the decimal mark where the values of the file do not show it.", callback=_point_or_comma),
]
Categorical = Annotated[
    list[str] | None, option("COLUMN", "Read this column as text although it holds numbers; repeatable.")
]
Array = Annotated[str | None, option("NAME", "Read the rows from this array of an npz file.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


def writable(path: str | Path, option: str, inputs: Iterable[str | Path] = ()) -> None:
    """Raise BadParameter if ``path`` is a folder or an input file; else create its parent, unless it is -."""
    if str(path) == "-":
        return
    if Path(path).is_dir():
        raise typer.BadParameter(f"{option} must name a file, '{path}' is a folder")
    for read in ("/dev/stdin" if str(read) == "-" else read for read in inputs):
        if Path(read).exists() and Path(path).is_file() and os.path.samefile(path, read):
            raise typer.BadParameter(f"{option} must not name a file that is read, found '{path}'; choose another name")
    Path(path).parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(name: str | Path) -> Iterator[IO[str]]:
    """Open a text file that appears under its name once it is complete; write to devices and - (stdout) directly."""
    if str(name) == "-":
        yield sys.stdout
        return
    path = Path(name)
    from ...io import atomic_write

    if path.parent == Path("/dev") or (path.exists() and not path.is_file()):
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    with atomic_write(path, "w") as file:
        yield file


def like_training(data: "DataSettings", given: Mapping[str, Any]) -> "DataSettings":
    """Return the settings for reading new data: those of the options, and otherwise those of training."""
    from dataclasses import replace

    # Another file may use another delimiter or decimal mark, but marks missing values as the training file does.
    own = {name: given[name] for name in ("delimiter", "header", "decimal")}
    return replace(data, **own, missing=tuple(given["missing"] or data.missing), array=given["array"] or data.array)


def make_echo(quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line to standard error, or does nothing if ``quiet``."""

    def say(text: str) -> None:
        # Imported here to keep the start of the program fast.
        from ..escaping import visible

        typer.echo(visible(text), err=True)

    return (lambda text: None) if quiet else say


def text_table(caption: str, rows: Sequence[Sequence[str]], *, left: bool = False) -> str:
    """Format a table for a terminal, with its header as the first row; ``left`` aligns all columns to the left.

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
            c.ljust(w) if left or i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join([*([visible(caption)] if caption else []), *map(str.rstrip, lines)])


def progress(parts: Iterable["Part"], quiet: bool) -> Iterator["Part"]:
    """Yield parts of a file, with a progress bar of the rows done if standard error is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield from parts
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("scoring"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, rows=0)
        for part in parts:
            yield part
            total = None if part.done is None else 1.0
            bar.update(task, rows=part.start + len(part.rows), total=total, completed=part.done or 0.0)
