"""The rule explorer: sliders for α, β and T that redraw f1, f0, the losses and G, with the double-ELBO verdict.

Plain HTML and a script without libraries; its formulas are those of :class:`fvnce.PowerRule`. The sliders for α reach
beyond [0, 1] so that one can see the property fail.
"""

from __future__ import annotations

import math
import re
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from ...pages.page import Section, render, write_page

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


def explorer_section(rule: str) -> Section:
    """The section of a run's page: the explorer, set to the rule of the run as far as it is one power rule."""
    found = re.search(r"power\(([^)]*)\)", rule)
    reading = [
        f"This run was trained with the rule {rule}. {_WHAT} sample earns. Move the sliders to see what α, β and the "
        "clip T do."
    ]
    return Section("Rule explorer", reading, blocks=[_explorer(*_arguments(found.group(1) if found else ""))])


def write_explorer(path: Path, alpha: float = 0.0, beta: float = 0.0, clip: float | None = 10.0) -> Path:
    """A page that holds the explorer alone."""
    section = Section("Explore scoring rules", [f"{_WHAT} sample earns."], blocks=[_explorer(alpha, beta, clip)])
    introduction = "The two-parameter family of double-ELBO scoring rules, drawn live in this page."
    style, script = asset("explorer.css"), asset("explorer.js")
    return write_page(path, "Scoring rules", introduction, [section], style=style, scripts=[script])


def asset(name: str) -> str:
    """A style or a script of a page, which stands in it as it is."""
    return files("fvnce.app").joinpath("templates", name).read_text(encoding="utf-8")


def _explorer(alpha: float, beta: float, clip: float | None) -> Markup:
    sliders = [
        {"name": name, "label": label, "low": low, "high": high, "step": step, "value": value}
        for name, label, low, high, step, value in (
            ("alpha", "α", -0.5, 1.5, 1 / 64, alpha),
            ("beta", "β", 0, 4, 1 / 16, beta),
            ("clip", "T", 0, 20, 0.25, 10.0 if clip is None else clip),
        )
    ]
    return render("fvnce.app", "explorer.html", presets=_PRESETS, sliders=sliders, clipped=clip is not None)


def _arguments(text: str) -> tuple[float, float, float | None]:
    """α, β and T of a rule written as text, as far as they can be read; the explorer starts there."""
    values: dict[str, float | None] = {"alpha": 0.0, "beta": 0.0, "clip": 10.0}
    positional = [part for part in text.split(",") if part.strip() and "=" not in part]
    for name, argument in zip(values, positional, strict=False):
        values[name] = _fraction(argument)
    for name, argument in re.findall(r"(alpha|beta|clip)\s*=\s*([^,]+)", text):
        values[name] = None if argument.strip().lower() == "none" else _fraction(argument)
    return values["alpha"] or 0.0, values["beta"] or 0.0, values["clip"]


def _fraction(text: str) -> float:
    above, _, below = text.partition("/")
    try:
        value = float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError, OverflowError):
        return 0.0
    return value if math.isfinite(value) else 0.0
