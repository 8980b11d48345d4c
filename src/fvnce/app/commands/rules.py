"""``fvnce rules``: lists scoring rules, and checks one."""

import json as json_module
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from . import terminal

if TYPE_CHECKING:
    from ...scoring.rule import ScoringRule

HELP = """\
A rule is a sum of power(alpha, beta, clip=T), logarithmic(), quadratic(), spherical() and normalised(rule) with
factors; numbers may be fractions, and clip=none is the exact rule.

Examples:

fvnce rules

fvnce rules "0.5*power(1/64)+0.5*power(0,1)" --plot rule.png

fvnce rules "power(1/4)" --explore rule.html
"""
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


class Command(TyperCommand):
    """A command whose word may begin with a minus: -1*power(0) is a rule, if a wrong one, and no option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put rules behind the options, where nothing is taken for one."""
        if "--" not in args:
            rules = [word for word in args if re.match(r"-[^-].*\(", word)]
            args = [*(word for word in args if word not in rules), *(["--"] if rules else []), *rules]
        return super().parse_args(ctx, args)


def rules(
    expression: Annotated[
        str | None, typer.Argument(metavar="RULE", help="A rule to check.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw f1, f0, the losses and G into a png, pdf or svg file.")
    ] = None,
    explore: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page that opens on the rule, with sliders for α, β and T."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The verdict as JSON.")] = False,
) -> None:
    """List or check rules."""
    if plot is not None and plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise typer.BadParameter(f"--plot must name a png, pdf or svg file, found {str(plot)!r}")
    if expression is None and plot is not None:
        raise typer.BadParameter("--plot needs a RULE")
    for option, path in (("--plot", plot), ("--explore", explore)):
        if path is not None:
            terminal.writable(str(path), option)
    from ...scoring import check_double_elbo, parse

    if expression is None:
        verdicts = {text: check_double_elbo(parse(text)) for text in BUILT_IN}
        if json:
            typer.echo(json_module.dumps([_content(text, found) for text, found in verdicts.items()]))
        elif explore is None:
            _list(verdicts)
    rule = None if expression is None else parse(expression)
    if rule is not None:
        found = check_double_elbo(rule)
        typer.echo(json_module.dumps(_content(str(rule), found)) if json else _sentences(str(rule), found))
        if plot is not None:
            typer.echo(_plot(rule, plot))
    if explore is not None:
        from ..report.explorer import write_explorer

        typer.echo(write_explorer(explore, rule))


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


def _content(name: str, found: Any) -> dict[str, Any]:
    laws = {law.name: {"holds": law.holds, "worst": law.worst, "at": law.at} for law in found.laws}
    valid = found.valid_below
    return {
        "rule": name,
        "double_elbo": found.holds,
        "proper": found.proper,
        "valid_below": valid if math.isfinite(valid) else None,
        "laws": laws,
    }


def _bound(value: float) -> str:
    return "–" if value == -math.inf else "∞" if value == math.inf else f"{value:.4g}"


def _plot(rule: "ScoringRule", path: Path) -> Path:
    import torch

    from ...pages import figures

    figure, axes = figures.new_figure(3, width=9.5, height=3.0)
    r = torch.linspace(0.02, 4, 400, dtype=torch.float64)
    delta = torch.linspace(-6, 6, 400, dtype=torch.float64)
    mu = torch.linspace(0.005, 0.995, 400, dtype=torch.float64)
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
