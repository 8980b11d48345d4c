"""``fvnce score``, ``evaluate`` and ``report``: what is done with a run that is there."""

import json as json_module
import sys
from pathlib import Path
from typing import Annotated

import typer

from . import Array, Delimiter, Header, Missing, Quiet, like_training, make_echo, plot_file, progress, writable, writing


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
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    array: Array = None,
    quiet: Quiet = False,
) -> None:
    """Rows are numbered from 1; images go by their file's name. Higher scores are stranger; outlier is 1 above the
    threshold of the run. p_value is the share of rows like those of training that are at least as strange: below
    0.01, one in a hundred usual rows lies. DATA may be larger than memory, and - reads csv or npy from standard
    input.

    A column that is empty, texts that were never seen and numbers far from those of training are warned of at the end;
    with --json a last line, its only entry "summary", tells of them, and with --strict they are an error.

    In csv, a name that a spreadsheet would compute (one that begins with =, +, - or @) has ' before it, and control
    characters are shown as \\x1b; --json gives names as they are.

    Examples:

    fvnce score run new.csv --out scores.csv --explain

    fvnce score run huge.npy --top 20 --json

    cat new.csv | fvnce score run - --check > scores.csv || echo outliers found
    """
    from contextlib import closing, nullcontext

    from ..runs import load_run
    from ..runs.evaluation import labels_in
    from ..runs.scoring import add_id, stream_scores
    from ..runs.training_data import read_like

    fitted = load_run(run)
    settings = like_training(fitted.config.data, delimiter, header, missing, array)
    source = read_like(fitted.layout, data, settings)
    say = make_echo(quiet)
    with closing(source):
        label = labels_in(source, data, fitted)
        if label is not None:
            say(
                f"{label!r} of {data} holds labels, which are ignored; fvnce evaluate {run} {data} tells how well they "
                "are found"
            )
        name = add_id(source, id or fitted.config.data.id, say, asked=id is not None)
        if out != "-":
            writable(out, "--out")
        with (
            progress("scoring", quiet) as tick,
            nullcontext(sys.stdout) if out == "-" else writing(Path(out)) as file,
        ):
            summary = stream_scores(
                fitted, source, file, top=top, explain=explain, as_json=json, id=name, strict=strict, tick=tick
            )
    for warning in summary.warnings:
        say(f"warning: {warning}")
    where = "" if out == "-" else f", written to {out}"
    unlike = f"; {len(summary.warnings)} warnings above" if summary.warnings else ""
    say(f"{summary.rows:,} rows, {summary.outliers:,} above the threshold {fitted.threshold:.4g}{where}{unlike}")
    if check and summary.outliers:
        raise typer.Exit(3)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that fvnce fit wrote.")],
    labelled: Annotated[
        str, typer.Argument(metavar="LABELLED", help="Rows with labels, laid out as in training; - for standard input.")
    ],
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[=VALUE]",
            help="The column that marks outliers by 1, or by VALUE; by default that of the run.",
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(min=1, help="How many of the strangest rows are looked at; by default as many as outliers."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw scores and both curves into a png, pdf or svg file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The numbers as JSON.")] = False,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    array: Array = None,
    quiet: Quiet = False,
) -> None:
    """AUROC, average precision, and precision and recall at the threshold of the run and among the k strangest rows,
    each with a 95 % interval from 1,000 bootstrap samples. LABELLED should hold rows that had no part in training:
    on rows that it has seen, a model looks better than it is. Rows without a label count as no outliers.

    Examples:

    fvnce evaluate run labelled.csv

    fvnce evaluate run labelled.csv --label fraud=yes --k 50 --plot found.png

    fvnce evaluate run labelled.npz --label y --json
    """
    plot_file(plot)
    from ..runs import load_run
    from ..runs.evaluation import evaluate as measure
    from ..runs.evaluation import read_labelled
    from ..runs.settings import fingerprint

    fitted, say = load_run(run), make_echo(quiet)
    data = fitted.config.data
    with progress("scoring", quiet) as tick:
        settings = like_training(data, delimiter, header, missing, array)
        scores, outlier = read_labelled(fitted, labelled, label, settings, say, tick)
    found = measure(scores, outlier, fitted.threshold, k, fitted.config.seed)
    if data.sha256 is not None and fingerprint(labelled) == data.sha256:
        say(f"{labelled} is what {run} was trained on: on rows that it has seen, a model looks better than it is")
    typer.echo(json_module.dumps(found.content()) if json else found.text())
    if plot is not None:
        typer.echo(found.plot(plot), err=json)


def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that fvnce fit wrote.")]) -> None:
    """Example: fvnce report run"""
    from ..report import make_page

    typer.echo(make_page(run))
