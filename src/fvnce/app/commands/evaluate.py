"""``fvnce evaluate``: how well a run finds outliers that are labelled."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import terminal

if TYPE_CHECKING:
    from ..runs.evaluation import Evaluation

HELP = """\
AUROC, average precision, and precision and recall at the threshold of the run and among the k strangest rows, each with
a 95 % interval from 1,000 bootstrap samples. LABELLED should hold rows that had no part in training: on rows that it
has seen, a model looks better than it is. Rows without a label count as no outliers.

Examples:

fvnce evaluate run labelled.csv

fvnce evaluate run labelled.csv --label fraud=yes --k 50 --plot found.png

fvnce evaluate run labelled.npz --label y --json
"""


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
        typer.echo(_plot(found, plot), err=json)


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


def _plot(found: "Evaluation", path: Path) -> Path:
    """Histograms of scores with the threshold, true against false alarms, and precision against recall."""
    import numpy as np
    from sklearn.metrics import precision_recall_curve, roc_curve

    from ...pages import figures

    outlier, scores = found.outlier, found.scores
    figure, (left, middle, right) = figures.new_figure(3, width=9.0, height=3.0)
    edges = np.histogram_bin_edges(scores, 40).tolist()
    kinds = ((~outlier, "other rows", "#0b2e59", None), (outlier, "outliers", "#c23b22", "////"))  # told apart in grey
    for kind, label, colour, hatch in kinds:
        share = np.full(int(kind.sum()), 1 / kind.sum())
        left.hist(
            scores[kind],
            edges,
            weights=share,
            histtype="stepfilled",
            alpha=0.4,
            color=colour,
            edgecolor=colour,
            hatch=hatch,
            label=label,
        )
    left.axvline(found.threshold, color="0.3", linestyle="--", label="threshold")
    left.set(xlabel="anomaly score", ylabel="share of kind", title="scores\n")
    left.set_axisbelow(True)
    left.legend(frameon=False, fontsize=8)
    false, true, _ = roc_curve(outlier, scores)
    figures.plot(middle, false, true, figures.Curve("", "#0b2e59"))
    middle.plot([0, 1], [0, 1], ":", color="0.5")
    title = f"AUROC\n{found.numbers['auroc']}"
    middle.set(xlabel="share of other rows flagged", ylabel="share of outliers found", title=title)
    precision, recall, _ = precision_recall_curve(outlier, scores)
    figures.plot(right, recall, precision, figures.Curve("", "#0b2e59"))
    right.axhline(float(outlier.mean()), color="0.5", linestyle=":")
    title = f"average precision\n{found.numbers['average_precision']}"
    right.set(xlabel="share of outliers found", ylabel="precision", ylim=(0, 1.05), title=title)
    at = {name: found.numbers[f"{name}_at_threshold"] for name in ("recall", "precision")}
    if at["recall"] is not None and at["precision"] is not None:
        right.plot(at["recall"].value, at["precision"].value, "o", color="#c23b22", label="threshold")
        right.legend(frameon=False, fontsize=8)
    return figures.save_as(figure, path)
