"""The rule explorer of the documentation: a rule with its curves and its verdict, and sliders for α, β and T.

    python -m tools.pages.explorer [RULE] [--out FILE]      # by default docs/assets/explorer.html

A rule that is given, a sum or a classical one too, is drawn from numbers of the library and judged by its checker, so
that the page says what ``fvnce rules`` says. Once a slider is moved, a script without libraries draws (α, β, T) by the
formulas of :class:`fvnce.PowerRule`. The slider for α reaches beyond [0, 1], so that one can see the property fail.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from fvnce.app.escaping import script_json
from fvnce.app.report.page import Section, asset, render, write_page
from fvnce.scoring import PowerRule, check_double_elbo
from fvnce.scoring.check import DoubleElboReport
from fvnce.scoring.rule import Combination, ScoringRule

_PRESETS = {
    "VAE (0, 0)": (0, 0),
    "(1/64, 0)": (1 / 64, 0),
    "(0, 1)": (0, 1),
    "(1/2, 0)": (0.5, 0),
    "least squares (1, 0)": (1, 0),
}
_WHAT = (
    "A rule is a pair of functions of the ratio r of model to noise: f1 is what a data sample earns, f0 what a noise"
)
#: Points of a curve, as in the script.
_POINTS = 161


def write_explorer(path: Path, rule: ScoringRule | None = None) -> Path:
    """Write a page with the explorer, opened on a rule, by default that of the VAE."""
    block = _explorer(PowerRule() if rule is None else rule)
    section = Section("Explore scoring rules", [f"{_WHAT} sample earns."], blocks=[block])
    introduction = "The two-parameter family of double-ELBO scoring rules, drawn live in this page."
    style, script = (asset(f"explorer.{kind}", __name__) for kind in ("css", "js"))
    return write_page(path, "Scoring rules", introduction, [section], style=style, scripts=[script])


def _explorer(rule: ScoringRule) -> Markup:
    near = _nearest(rule)
    sliders = (  # name, label, lowest, highest, step, value
        ("alpha", "α", -0.5, 1.5, 1 / 64, near.alpha),
        ("beta", "β", 0, 4, 1 / 16, near.beta),
        ("clip", "T", 0, 20, 0.25, 10.0 if near.clip is None else near.clip),
    )
    given = Markup(script_json(_given(rule)))
    clipped = near.clip is not None
    return render("explorer.html", __name__, presets=_PRESETS, sliders=sliders, clipped=clipped, given=given)


def _nearest(rule: ScoringRule) -> PowerRule:
    """Return the rule of the sliders: the rule itself, or the power rule with the largest weight in a sum."""
    parts = rule.parts if isinstance(rule, Combination) else ((1.0, rule),)
    powers = [(weight, part) for weight, part in parts if isinstance(part, PowerRule)]
    return max(powers, key=lambda pair: pair[0])[1] if powers else PowerRule()


def _given(rule: ScoringRule) -> dict[str, Any]:
    """Return the curves of the three charts, and the verdict."""
    ratio, delta, share = (
        torch.linspace(low, high, _POINTS, dtype=torch.float64) for low, high in ((0.01, 4), (-6, 6), (0.005, 0.995))
    )
    report = check_double_elbo(rule)
    return {
        "name": str(rule),
        "shown": _shown(rule),
        "pair": [_numbers(rule.f1(ratio.log())), _numbers(rule.f0(ratio.log()))],
        "losses": [_numbers(-rule.f1(delta)), _numbers(-rule.f0(delta))],
        "generator": [_numbers(rule.generator(share))],
        "holds": report.holds,
        "validBelow": report.valid_below if math.isfinite(report.valid_below) else None,
        "verdict": _verdict(str(rule), report),
    }


def _shown(rule: ScoringRule) -> list[str]:
    """Return the labels of the sliders for α, β and T: the rule's numbers, or dashes for a rule that has none."""
    if not isinstance(rule, PowerRule):
        return ["–", "–", "–"]
    return [f"{rule.alpha:.4g}", f"{rule.beta:.4g}", "none" if rule.clip is None else f"{rule.clip:.4g}"]


def _numbers(values: Tensor) -> list[float | None]:
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values.tolist()]


def _verdict(name: str, report: DoubleElboReport) -> str:
    """Return the result of the checker as one sentence."""
    if report.holds:
        bound = report.valid_below
        until = "." if bound == math.inf else f", as long as Δ < {bound:.4g}; above it the clip breaks the laws."
        return (
            f"{name} has the double-ELBO property: f1 and f0 are both concave in r, so both terms have a lower bound"
            f"{until}"
        )
    failing = [law.name for law in report.laws if not law.holds]
    terms = [term for law, term in (("f1 concave", "data"), ("f0 concave", "noise")) if law in failing]
    because = (
        f"{' and '.join(law.removesuffix(' concave') for law in failing if law.endswith(' concave'))} "
        f"{'is' if len(terms) == 1 else 'are'} not concave in r, so the {' and the '.join(terms)} term"
        f"{' has' if len(terms) == 1 else 's have'} no lower bound"
        if terms
        else f"it fails {', '.join(failing)}"
    )
    return f"{name} does not have the double-ELBO property: {because}."
