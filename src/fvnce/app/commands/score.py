"""``fvnce score``: scores of rows, as a stream."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import terminal

HELP = """\
Rows are numbered from 1; images go by their file's name. Higher scores are stranger; outlier is 1 above the threshold
of the run. p_value is the share of rows like those of training that are at least as strange: below 0.01, one in a
hundred usual rows lies. DATA may be larger than memory, and - reads csv or npy from standard input.

A column that is empty, texts that were never seen and numbers far from those of training are warned of at the end; with
--json a last line, its only entry "summary", tells of them, and with --strict they are an error.

In csv, a name that a spreadsheet would compute (one that begins with =, +, - or @) has ' before it, and control
characters are shown as \\x1b; --json gives names as they are.

Examples:

fvnce score run new.csv --out scores.csv --explain

fvnce score run huge.npy --top 20 --json

cat new.csv | fvnce score run - --check > scores.csv || echo outliers found
"""


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that fvnce fit wrote.")],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="The rows, laid out as in training; - for standard input.")
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to write; - for standard output.")] = "-",
    top: Annotated[int | None, typer.Option(min=1, help="Only so many of the strangest rows, strangest first.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Name the three columns that add most to a score.")
    ] = False,
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that names rows; by default that of the run.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="An error instead of a warning if DATA is unlike the training rows.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON, one object a line, instead of csv.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 if a row is above the threshold.")] = False,
    delimiter: terminal.Delimiter = None,
    header: terminal.Header = None,
    missing: terminal.Missing = None,
    array: terminal.Array = None,
    quiet: terminal.Quiet = False,
) -> None:
    """Score rows."""
    from contextlib import closing, nullcontext

    from ..runs.evaluation import labels_in
    from ..runs.run import load_run
    from ..runs.scoring import add_id, stream_scores
    from ..runs.training_data import read_like

    fitted = load_run(run)
    settings = terminal.like_training(fitted.config.data, delimiter, header, missing, array)
    source = read_like(fitted.scorer.layout, data, settings)
    say = terminal.make_echo(quiet)
    with closing(source):
        label = labels_in(source, data, fitted)
        if label is not None:
            say(
                f"{label!r} of {data} holds labels, which are ignored; fvnce evaluate {run} {data} tells how well they "
                "are found"
            )
        name = add_id(source, id or fitted.config.data.id, say, asked=id is not None)
        if out != "-":
            terminal.writable(out, "--out")
        with (
            terminal.progress("scoring", quiet) as tick,
            nullcontext(sys.stdout) if out == "-" else terminal.writing(Path(out)) as file,
        ):
            summary = stream_scores(
                fitted.scorer, source, file, top=top, explain=explain, as_json=json, id=name, strict=strict, tick=tick
            )
    for warning in summary.warnings:
        say(f"warning: {warning}")
    where = "" if out == "-" else f", written to {out}"
    unlike = f"; {len(summary.warnings)} warnings above" if summary.warnings else ""
    say(f"{summary.rows:,} rows, {summary.outliers:,} above the threshold {fitted.scorer.threshold:.4g}{where}{unlike}")
    if check and summary.outliers:
        raise typer.Exit(3)
