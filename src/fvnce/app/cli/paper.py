"""The commands ``fvnce rules`` and ``fvnce reproduce``, which need no run."""

import math
import time
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer

from ..._version import __version__
from ...paper import ITEMS
from . import text_table

BUILT_IN = {
    "power(0)": "maximum likelihood, the rule of the VAE",
    "power(1/64)": "data weighted by r^(1/64)",
    "power(1/4)": "data weighted by r^(1/4)",
    "power(1)": "least squares",
    "power(0, 1)": "ignores data with r far below 1",
    "0.9*power(1/64)+0.1*power(0)": "a weighted sum of two rules",
    "logarithmic()": "ordinary noise-contrastive estimation",
    "quadratic()": "Brier's score",
    "spherical()": "the spherical score",
}


def rules(
    expression: Annotated[str | None, typer.Argument(metavar="RULE", help="Rule to check.", show_default=False)] = None,
) -> None:
    """A rule is a sum of terms with factors; a term is power(alpha, beta, clip=T), logarithmic(), quadratic(),
    spherical() or "normalised(rule)". Numbers may be fractions, and clip=none turns clipping off.

    Examples:

    fvnce rules

    fvnce rules "0.5*power(1/64)+0.5*power(0,1)"
    """
    from ...scoring import check_double_elbo, parse

    if expression is not None:
        rule = parse(expression)
        report = check_double_elbo(rule)
        typer.echo(_sentences(str(rule), report))
        return
    reports = {text: check_double_elbo(parse(text)) for text in BUILT_IN}
    lines = [["rule", "double-ELBO", "proper", "valid below Δ", "description"]]
    for text, report in reports.items():
        bound = report.valid_below
        valid = "–" if bound == -math.inf else "∞" if bound == math.inf else f"{bound:.4g}"
        lines.append([text, "yes" if report.holds else "no", "yes" if report.proper else "no", valid, BUILT_IN[text]])
    typer.echo(text_table("", lines))
    typer.echo("\nSums with non-negative factors are rules too. Check one with: fvnce rules RULE", err=True)


def _sentences(name: str, report: Any) -> str:
    text = str(report).split("\n")
    text[0] = f"{name} {'has' if report.holds else 'does not have'} the double-ELBO property"
    if not report.holds:
        text.append(
            "  so the objective would not be a lower bound; use this rule with fvnce.VariationalNCE or fvnce.NCE"
        )
    return "\n".join(text)


#: What the results are of, by data set.
DATA = {
    "digits": "the 8×8 digits that ship with scikit-learn, with networks scaled to them; the paper uses MNIST",
    "mnist": "MNIST, as in the paper",
}


class DataSet(StrEnum):
    """Data sets that the reproduction can train on."""

    digits = "digits"
    mnist = "mnist"


def reproduce(
    items: Annotated[
        list[str] | None, typer.Argument(metavar="ITEM", help="Items to reproduce; by default all.")
    ] = None,
    data: Annotated[
        DataSet, typer.Option(help="Train on digits, part of scikit-learn, or on mnist, which is downloaded.")
    ] = DataSet.digits,
    seeds: Annotated[int, typer.Option(min=1, help="Train with this number of seeds.")] = 1,
    epochs: Annotated[int | None, typer.Option(min=1, help="Replace the number of epochs of every item.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use tiny settings, to check that everything runs.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Use this number of processes; by default 1 for digits, one per core for mnist."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Write into this folder.")] = Path("out"),
) -> None:
    """Examples:

    fvnce reproduce

    fvnce reproduce pairs losses --out figures

    fvnce reproduce table --data mnist --seeds 3 --out out
    """
    chosen = list(dict.fromkeys(items or ITEMS))
    for item in chosen:
        if item not in ITEMS:
            raise typer.BadParameter(f"unknown item {item!r}; the items are {', '.join(ITEMS)}")
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"--out must be a folder, {str(out)!r} is a file")
    from ...paper import reproduce as run
    from ...paper.setting import Options

    start = time.perf_counter()
    options = Options(data.value, seeds, epochs, quick, jobs, say=lambda text: typer.echo(text, err=True))
    results = []
    for result in run(chosen, out, options):
        results.append(result)
        for table in result.tables:
            options.say(f"\n{text_table(table.caption, [table.header, *table.rows])}\n")
        for sentence in result.reading:
            options.say(sentence)
        for path in result.files:
            typer.echo(path)
    if not items:
        typer.echo(_write_page(out / "report.html", results, options, time.perf_counter() - start))


def _write_page(path: Path, results: list[Any], options: Any, seconds: float) -> Path:
    """Write the page of the reproduction, with a section for each result."""
    from ..report.page import Section, block, write_page

    introduction = (
        f"Made by fvnce {__version__} in {seconds:.0f} seconds on {DATA[options.data]}. "
        f"{'Tiny settings: a check that everything runs, not a result. ' * options.quick}"
        "Each section gives the results and how they differ from the paper."
    )
    sections = [Section(result.title, result.reading, blocks=[block("result", result=result)]) for result in results]
    return write_page(path, "Fully variational NCE: the paper, reproduced", introduction, sections)


reproduce.__doc__ = "\n\n".join(
    [*(f"{name}: {what}" for name, what in ITEMS.items()), cleandoc(reproduce.__doc__ or "")]
)
