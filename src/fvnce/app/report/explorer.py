"""The rule explorer: sliders for α, β and T that redraw f1, f0, the losses and G, with the double-ELBO verdict.

Plain HTML and a script without libraries; its formulas are those of :class:`fvnce.PowerRule`. The sliders for α reach
beyond [0, 1] so that one can see the property fail.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ...pages.escape import markup
from ...pages.page import Section, write_page

STYLE = """
#explorer .sliders { display: grid; grid-template-columns: auto 1fr 3.5rem; gap: .4rem .8rem; align-items: center;
  max-width: 34rem; }
#explorer input[type=range] { width: 100%; min-height: 1.8rem; accent-color: var(--c0); }
#explorer output { font-variant-numeric: tabular-nums; text-align: right; }
#explorer button { font: inherit; padding: .25rem .7rem; margin: .15rem .2rem .15rem 0; color: var(--ink);
  background: var(--tint); border: 1px solid var(--soft); border-radius: .3rem; cursor: pointer; }
#x-verdict { border-left: .3rem solid var(--c0); padding: .4rem .8rem; background: var(--tint); }
#x-verdict[data-holds=false] { border-color: var(--c1); }
"""
_PRESETS = {
    "VAE (0, 0)": (0, 0),
    "(1/64, 0)": (1 / 64, 0),
    "(0, 1)": (0, 1),
    "(1/2, 0)": (0.5, 0),
    "least squares (1, 0)": (1, 0),
}


def explorer(alpha: float = 0.0, beta: float = 0.0, clip: float | None = 10.0) -> str:
    """The explorer's HTML, set to a rule; the page also needs :data:`STYLE`, the charts' and :func:`script`."""
    buttons = "".join(
        f'<button type="button" data-rule="{a},{b}">{markup(name)}</button>' for name, (a, b) in _PRESETS.items()
    )
    panels = "".join(
        f'<figure><svg class="chart" id="x-{name}" viewBox="0 0 440 270" role="img" aria-label="{alt}" data-x="{axis}" '
        f'data-curves="{curves}"></svg><figcaption>{caption}</figcaption></figure>'
        for name, axis, curves, caption, alt in (
            (
                "pair",
                "r = p_θ / p_n",
                "f1 (data)|f0 (noise)",
                "The pair against the ratio: both concave for a double-ELBO rule.",
                "Curves of f1 and f0 against r; the verdict below says whether both are concave",
            ),
            (
                "losses",
                "Δ = log r",
                "−f1 (data)|−f0 (noise)",
                "As losses of the logit Δ.",
                "Curves of minus f1 and minus f0 against the logit",
            ),
            (
                "generator",
                "μ = r / (1 + r)",
                "G",
                "The convex function G(μ) = μ f1 + (1 − μ) f0 that generates the rule.",
                "Curve of G against the probability of data",
            ),
        )
    )
    return (
        '<div id="explorer"><noscript><p>The explorer needs JavaScript; nothing is loaded from anywhere.</p></noscript>'
        f'<p>{buttons}</p><div class="sliders">'
        + _slider("alpha", "α", -0.5, 1.5, 1 / 64, alpha)
        + _slider("beta", "β", 0, 4, 1 / 16, beta)
        + _slider("clip", "T", 0, 20, 0.25, 10.0 if clip is None else clip)
        + f'</div><p><label><input type="checkbox" name="clipped"{"" if clip is None else " checked"}> clip above T '
        "(the dashed line is where the clip begins to break the laws)</label></p>"
        f'<p id="x-verdict" role="status" aria-live="polite"></p><div class="charts">{panels}</div></div>'
    )


def script() -> str:
    """The explorer's script."""
    return files("fvnce.app.report").joinpath("explorer.js").read_text(encoding="utf-8")


def write_explorer(path: Path, alpha: float = 0.0, beta: float = 0.0, clip: float | None = 10.0) -> Path:
    """A page that holds the explorer alone."""
    section = Section(
        "Explore scoring rules",
        [
            "A rule is a pair of functions of the ratio r of model to noise: f1 is what a data sample earns, f0 what a "
            "noise sample earns."
        ],
        blocks=[explorer(alpha, beta, clip)],
    )
    introduction = "The two-parameter family of double-ELBO scoring rules, drawn live in this page."
    return write_page(path, "Scoring rules", introduction, [section], style=STYLE, scripts=[script()])


def _slider(name: str, label: str, low: float, high: float, step: float, value: float) -> str:
    return (
        f'<label for="x-{name}">{label}</label><input type="range" id="x-{name}" name="{name}" min="{low}" '
        f'max="{high}" step="{step}" value="{value}"><output id="x-{name}-out" for="x-{name}"></output>'
    )
