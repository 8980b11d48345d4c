"""``fvnce evaluate``: how well a run finds outliers that are labelled."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import terminal
from .deferred import SUMMARIES

if TYPE_CHECKING:
    from ..runs.evaluation import Evaluation

HELP = f"""{SUMMARIES["evaluate"]}

AUROC, average precision, and precision and recall at the threshold of the run and among the k strangest rows, each with
a 95 % interval from 1,000 bootstrap samples. LABELLED should hold rows that had no part in training: on rows that it
has seen, a model looks better than it is. Rows without a label count as no outliers.

Examples:

fvnce evaluate run labelled.csv

fvnce evaluate run labelled.csv --label fraud=yes --k 50 --plot found.png

fvnce evaluate run labelled.npz --label y --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate", help=HELP)(evaluate)


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
    delimiter: terminal.Delimiter = None,
    header: terminal.Header = None,
    missing: terminal.Missing = None,
    array: terminal.Array = None,
    quiet: terminal.Quiet = False,
) -> None:
    """Evaluate a run."""
    if plot is not None and plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise typer.BadParameter(f"--plot must name a png, pdf or svg file, found {str(plot)!r}")
    if plot is not None:
        terminal.writable(str(plot), "--plot")
    from ..runs.evaluation import evaluate as measure
    from ..runs.evaluation import read_labelled
    from ..runs.run import load_run
    from ..runs.settings import fingerprint

    fitted, say = load_run(run), terminal.make_echo(quiet)
    data = fitted.config.data
    with terminal.progress("scoring", quiet) as tick:
        settings = terminal.like_training(data, delimiter, header, missing, array)
        scores, outlier = read_labelled(fitted, labelled, label, settings, say, tick)
    found = measure(scores, outlier, fitted.scorer.threshold, k, fitted.config.seed)
    if data.sha256 is not None and fingerprint(labelled) == data.sha256:
        say(f"{labelled} is what {run} was trained on: on rows that it has seen, a model looks better than it is")
    typer.echo(json_module.dumps(found.content()) if json else _text(found))
    if plot is not None:
        from ..report.evaluation_figure import draw

        typer.echo(draw(found, plot), err=json)


def _text(found: "Evaluation") -> str:
    from ...pages.page import Table

    named = {
        "auroc": "AUROC",
        "average_precision": "average precision",
        "precision_at_threshold": f"precision at the threshold {found.threshold:.4g}",
        "recall_at_threshold": "recall at the threshold",
        "precision_at_k": f"precision at k = {found.k:,}",
        "recall_at_k": f"recall at k = {found.k:,}",
    }
    rows = []
    for name, text in named.items():
        number = found.numbers[name]
        rows.append(
            [text, "–", "no row is flagged"]
            if number is None
            else [text, f"{number.value:.3f}", f"{number.low:.3f} to {number.high:.3f}"]
        )
    outliers = int(found.outlier.sum())
    caption = (
        f"{found.found:,} of {outliers:,} outliers are found, {found.flagged - found.found:,} of "
        f"{len(found.scores) - outliers:,} other rows are flagged"
    )
    lines = [Table(caption, ["", "value", "95 % interval"], rows).text()]
    if any(number is not None and number.low == number.high for number in found.numbers.values()):
        lines.append("An interval without width: no resample of these rows can differ, which is no proof.")
    return "\n".join(lines)
