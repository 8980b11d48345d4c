"""``fvnce rules``, ``data`` and ``reproduce``: scoring rules, files and the paper, which need no run."""

import json as json_module
import math
import re
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ...paper import ITEMS
from . import Array, Categorical, Delimiter, Header, Missing, make_echo, one_character, plot_file

if TYPE_CHECKING:
    from ...scoring.rule import ScoringRule

BUILT_IN = {
    "power(0)": "maximum likelihood, the rule of the VAE",
    "power(1/64)": "data weighted by r^(1/64)",
    "power(1/4)": "data weighted by r^(1/4)",
    "power(1)": "least squares",
    "power(0, 1)": "data with r far below 1 cease to matter",
    "0.9*power(1/64)+0.1*power(0)": "a sum of rules is a rule",
    "logarithmic()": "ordinary noise-contrastive estimation",
    "quadratic()": "Brier's score",
    "spherical()": "the spherical score",
}


class RuleCommand(TyperCommand):
    """A command whose word may begin with a minus: -1*power(0) is a rule, if a wrong one, and no option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put rules behind the options, where nothing is taken for one."""
        if "--" not in args:
            rules = [word for word in args if re.match(r"-[^-].*\(", word)]
            args = [*(word for word in args if word not in rules), *(["--"] if rules else []), *rules]
        return super().parse_args(ctx, args)


CLASSES = {"rules": RuleCommand}


def rules(
    expression: Annotated[
        str | None, typer.Argument(metavar="RULE", help="A rule to check.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw f1, f0, the losses and G into a png, pdf or svg file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The verdict as JSON.")] = False,
) -> None:
    """A rule is a sum of power(alpha, beta, clip=T), logarithmic(), quadratic(), spherical() and normalised(rule) with
    factors; numbers may be fractions, and clip=none is the exact rule.

    Examples:

    fvnce rules

    fvnce rules "0.5*power(1/64)+0.5*power(0,1)" --plot rule.png
    """
    if expression is None and plot is not None:
        raise typer.BadParameter("--plot needs a RULE")
    plot_file(plot)
    from ...scoring import check_double_elbo, parse

    rule = None if expression is None else parse(expression)
    if rule is None:
        verdicts = {text: check_double_elbo(parse(text)) for text in BUILT_IN}
        if json:
            typer.echo(json_module.dumps([_verdict(text, found) for text, found in verdicts.items()]))
        else:
            _list(verdicts)
    else:
        found = check_double_elbo(rule)
        typer.echo(json_module.dumps(_verdict(str(rule), found)) if json else _sentences(str(rule), found))
        if plot is not None:
            typer.echo(_plot(rule, plot))


def _list(verdicts: dict[str, Any]) -> None:
    from ...pages.page import Table

    rows = [
        [text, "yes" if v.holds else "no", "yes" if v.proper else "no", _bound(v.valid_below), BUILT_IN[text]]
        for text, v in verdicts.items()
    ]
    lines = Table("", ["rule", "double-ELBO", "proper", "valid below Δ", "what it is"], rows).text().splitlines()
    typer.echo("\n".join(lines[1:]))
    typer.echo("\nSums with non-negative factors are rules too. Check one with: fvnce rules RULE", err=True)


def _sentences(name: str, found: Any) -> str:
    text = str(found).split("\n")
    text[0] = f"{name} {'has' if found.holds else 'does not have'} the double-ELBO property"
    if not found.holds:
        text.append(
            "  so a term of the objective would not be a lower bound; use it with fvnce.VariationalNCE or fvnce.NCE"
        )
    return "\n".join(text)


def _verdict(name: str, found: Any) -> dict[str, Any]:
    laws = {law.name: {"holds": law.holds, "worst": law.worst, "at": law.at} for law in found.laws}
    valid = found.valid_below if math.isfinite(found.valid_below) else None
    return {"rule": name, "double_elbo": found.holds, "proper": found.proper, "valid_below": valid, "laws": laws}


def _bound(value: float) -> str:
    return "–" if value == -math.inf else "∞" if value == math.inf else f"{value:.4g}"


def _plot(rule: "ScoringRule", path: Path) -> Path:
    import torch

    from ...pages import figures

    figure, axes = figures.new_figure(3, width=9.5, height=3.0)
    r, delta, mu = (
        torch.linspace(low, high, 400, dtype=torch.float64) for low, high in ((0.02, 4), (-6, 6), (0.005, 0.995))
    )
    data, noise = figures.Curve("f1 (data)", "#0b2e59"), figures.Curve("f0 (noise)", "#c23b22", "--")
    for panel, x, sign, label in ((axes[0], r, 1, "r"), (axes[1], delta, -1, "Δ = log r")):
        at = x.log() if sign == 1 else x
        figures.plot(panel, x.numpy(), (sign * rule.f1(at)).numpy(), data)
        figures.plot(panel, x.numpy(), (sign * rule.f0(at)).numpy(), noise)
        panel.set(xlabel=label, ylim=(-6, 4) if sign == 1 else (-4, 10))
    axes[0].set_title("scores")
    axes[1].set_title("losses")
    figures.plot(axes[2], mu.numpy(), rule.generator(mu).numpy(), figures.Curve("G", "#555555"))
    axes[2].set(xlabel="μ", title="G(μ)")
    figures.legend(axes[0], "lower right")
    figure.suptitle(str(rule))
    return figures.save_as(figure, path)


def data(
    name: Annotated[
        str | None, typer.Argument(metavar="mnist|FILE", help="A data set, or a file.", show_default=False)
    ] = None,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    categorical: Categorical = None,
    array: Array = None,
    json: Annotated[bool, typer.Option("--json", help="The description of a file as JSON.")] = False,
) -> None:
    """Examples:

    fvnce data

    fvnce data mnist

    fvnce data table.csv
    """
    if name is None:
        typer.echo("digits  8×8 digits, part of scikit-learn: fvnce reproduce --data digits")
        typer.echo("mnist   28×28 digits, fetched and checked: fvnce data mnist")
        return
    if name == "mnist":
        from ...paper.datasets import fetch_mnist

        typer.echo(fetch_mnist(make_echo(False)))
        return
    if name != "-" and not Path(name).exists():
        raise typer.BadParameter(f"{name!r} is neither a data set (mnist) nor a file that exists")
    from ...pages import line_json
    from ..readers import ReadOptions, TableOptions, open_source

    options = TableOptions(one_character(delimiter), header, tuple(missing or ()), tuple(categorical or ()))
    content = _describe(open_source(name, ReadOptions(options, array)))
    typer.echo(line_json(_without_infinity(content)) if json else _described(content))


def _describe(source: Any) -> dict[str, Any]:
    import numpy as np

    from ...detection.frame import Frame
    from ..readers.tables import ColumnSummary

    rows, shape, missing, low, high = 0, None, 0, np.inf, -np.inf
    columns: dict[str, ColumnSummary] = {}
    for part in source.parts():
        rows += len(part.rows)
        if isinstance(part.rows, Frame):
            for name in part.rows.columns.tolist():
                columns.setdefault(name, ColumnSummary()).add(part.rows[name])
            continue
        shape = [int(side) for side in part.rows.shape[1:]]
        gone = np.isnan(part.rows) if part.rows.dtype.kind == "f" else np.zeros((), bool)
        missing += int(gone.sum())
        if not gone.all():
            low, high = min(low, float(np.nanmin(part.rows))), max(high, float(np.nanmax(part.rows)))
    content: dict[str, Any] = {"file": source.name, "kind": source.kind, "rows": rows}
    if shape is not None:
        edges = {"low": low, "high": high} if low <= high else {"low": None, "high": None}
        return content | {"shape": shape, **edges, "missing": missing}
    how = {name: getattr(source.reader, name, None) for name in ("delimiter", "header")}
    kinds = {name: reading.kind for name, reading in source.column_reader.kinds.items()}
    return content | how | {"columns": {name: _column(found, kinds.get(name)) for name, found in columns.items()}}


def _column(found: Any, kind: str | None) -> dict[str, Any]:
    usual = {"O": "text", "M": "time", "m": "duration"}.get(found.kind, "number")
    content = {"kind": kind or usual, "missing": found.missing}
    if usual == "text":
        return content | {"different": len(found.texts)}
    if found.low is None:
        return content
    edges = [str(e.astype("datetime64[s]")) if usual == "time" else float(e) for e in (found.low, found.high)]
    return content | {"low": edges[0], "high": edges[1]}


def _without_infinity(content: Any) -> Any:
    """What JSON can hold: null for a number without bound."""
    if isinstance(content, dict):
        return {name: _without_infinity(value) for name, value in content.items()}
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _described(content: dict[str, Any]) -> str:
    from ...pages import visible
    from ...pages.page import Table

    if "shape" in content:
        size = "×".join(map(str, content["shape"]))
        gone = f", {content['missing']:,} missing" if content["missing"] else ""
        values = "no value" if content["low"] is None else f"values from {content['low']:.6g} to {content['high']:.6g}"
        return f"{visible(content['file'])}: {content['kind']}, {content['rows']:,} rows of {size}, {values}{gone}"
    rows = [[name, entry["kind"], f"{entry['missing']:,}", _span(entry)] for name, entry in content["columns"].items()]
    caption = f"{content['file']}: {content['kind']}, {content['rows']:,} rows"
    if content["delimiter"] is not None:
        caption += f", delimiter {content['delimiter']!r}, {'a header' if content['header'] else 'no header'}"
    return Table(caption, ["column", "kind", "missing", "values"], rows).text()


def _span(entry: dict[str, Any]) -> str:
    if entry["kind"] == "text":
        return f"{entry['different']:,} different"
    if "low" not in entry:
        return "none"
    edges = [edge if isinstance(edge, str) else f"{edge:.6g}" for edge in (entry["low"], entry["high"])]
    return " to ".join(edges) + (" seconds" if entry["kind"] == "duration" else "")


class Data(StrEnum):
    """The data sets of the reproduction."""

    digits = "digits"
    mnist = "mnist"


def reproduce(
    items: Annotated[list[str] | None, typer.Argument(metavar="ITEM", help="Which items.")] = None,
    data: Annotated[Data, typer.Option(help="digits ships with scikit-learn; mnist is fetched.")] = Data.digits,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs, if not the item's own.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny settings, to see that everything runs.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes of one thread each; by default 1 for digits, one per core for mnist."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("out"),
) -> None:
    """Examples:

    fvnce reproduce

    fvnce reproduce pairs losses --out figures

    fvnce reproduce table --data mnist --seeds 3 --out out
    """
    wanted = list(dict.fromkeys(items or ITEMS))
    for item in wanted:
        if item not in ITEMS:
            raise typer.BadParameter(f"unknown item {item!r}; the items are {', '.join(ITEMS)}")
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"--out must be a folder, {str(out)!r} is a file")
    from ...paper import reproduce as run
    from ...paper.setting import Options

    options = Options(data.value, seeds, epochs, quick, jobs)
    for path in run(wanted, out, options, page=not items, say=lambda text: typer.echo(text, err=True)):
        typer.echo(path)


reproduce.__doc__ = "\n\n".join(
    [*(f"{name}: {what}" for name, what in ITEMS.items()), cleandoc(reproduce.__doc__ or "")]
)
