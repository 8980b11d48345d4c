"""Self-contained HTML pages of sections with embedded figures.

A page loads nothing from elsewhere, and its content policy forbids it. It follows the light or dark theme of the
browser and is readable on narrow screens. The Jinja2 templates in ``templates/`` escape every value that is not
:class:`markupsafe.Markup`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ...detection.trust.evidence import shown_count
from ...io import write_text
from ..escaping import markup, visible

_PACKAGE = "fvnce.app"


@dataclass(frozen=True)
class PageTable:
    """Table of text with a caption and a header."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """Section of a page; its parts are shown in the order of the attributes.

    Attributes:
        title: its heading.
        reading: sentences on the results.
        charts: SVG charts from :mod:`fvnce.app.report.charts`.
        blocks: HTML made by :func:`block` or :func:`render`.
        tables: tables of text.
        appendix: whether the section belongs to the appendix at the end of the page.
    """

    title: str
    reading: Sequence[str] = ()
    charts: Sequence[Markup] = ()
    blocks: Sequence[Markup] = ()
    tables: Sequence[PageTable] = ()
    appendix: bool = False


def write_page(
    path: Path,
    title: str,
    introduction: str,
    sections: Sequence[Section],
    *,
    style: str = "",
    scripts: Sequence[str] = (),
) -> Path:
    """Write a page atomically; ``style`` and ``scripts`` are trusted and not escaped."""
    page = render(
        "page.html",
        title=title,
        introduction=introduction,
        sections=sorted(sections, key=lambda section: section.appendix),
        style=Markup(asset("page.css") + style),
        scripts=list(map(Markup, scripts)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def asset(name: str, package: str = _PACKAGE) -> str:
    """Return the text of a style or a script in the templates of a package."""
    return files(package).joinpath("templates", name).read_text(encoding="utf-8")


def block(name: str, **values: Any) -> Markup:
    """Render the macro of this name in ``blocks.html``."""
    return Markup(getattr(_environment(_PACKAGE).get_template("blocks.html").module, name)(**values))


def render(template: str, package: str = _PACKAGE, **values: Any) -> Markup:
    """Render a template of a package; raise an error if a value is missing."""
    return Markup(_environment(package).get_template(template).render(values))


def plain(template: str, **values: Any) -> str:
    """Render a template of text; control characters of values are shown as text, on one line."""
    return _environment(_PACKAGE, html=False).get_template(template).render(values)


def png_uri(content: bytes) -> str:
    """Return a PNG image as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


@cache
def _environment(package: str, *, html: bool = True) -> Environment:
    # Escapes HTML as Jinja2 does, and also shows control characters, which Jinja2 passes on.
    escape = (lambda value: value if isinstance(value, Markup) else Markup(markup(value))) if html else visible
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=html,
        finalize=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"plural": plural, "percent": percent, "shown_count": shown_count}
    environment.filters["png_uri"] = lambda path: png_uri(path.read_bytes())
    return environment


def percent(fraction: float) -> str:
    """Format a fraction in per cent with two significant digits and a non-breaking space.

    >>> percent(0.0143), percent(0.78), percent(1.0), percent(0.0)
    ('1.4\\xa0%', '78\\xa0%', '100\\xa0%', '0\\xa0%')
    """
    return f"{float(f'{100 * fraction:.2g}') if fraction < 0.995 else 100:g}\u00a0%"


def plural(number: float, noun: str) -> str:
    """Format a number with a noun in singular or plural; a sum of weights need not be whole.

    >>> plural(1, "row"), plural(0, "row"), plural(1963, "label")
    ('1 row', '0 rows', '1,963 labels')
    """
    return f"{shown_count(number)} {noun}{'' if number == 1 else 's'}"
