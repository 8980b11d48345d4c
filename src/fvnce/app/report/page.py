"""Self-contained HTML pages of sections with embedded figures.

A page loads nothing from elsewhere, and its content policy forbids it. It follows the light or dark theme of the
browser and is readable on narrow screens. The Jinja2 templates in ``templates/`` escape every value that is not
:class:`markupsafe.Markup`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ...io import write_text
from ..escaping import markup

_PACKAGE = "fvnce.app"


@dataclass(frozen=True)
class PageTable:
    """Table of text with a caption and a header."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class PageFigure:
    """PNG file with a caption and an alternative text for screen readers."""

    path: Path
    caption: str
    alt: str


@dataclass(frozen=True)
class Section:
    """Section of a page; its parts are shown in the order of the attributes.

    Attributes:
        title: its heading.
        reading: sentences on the results.
        figures: PNG files.
        charts: SVG charts from :mod:`fvnce.app.report.charts`.
        blocks: HTML made by :func:`block` or :func:`render`.
        tables: tables of text.
        settings: settings that were used, shown in a collapsed element with ``seconds``.
        seconds: duration of the computation.
        appendix: whether the section belongs to the appendix at the end of the page.
    """

    title: str
    reading: Sequence[str] = ()
    figures: Sequence[PageFigure] = ()
    charts: Sequence[Markup] = ()
    blocks: Sequence[Markup] = ()
    tables: Sequence[PageTable] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0
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


def png_uri(content: bytes) -> str:
    """Return a PNG image as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        # Escapes HTML as Jinja2 does, and also shows control characters, which Jinja2 passes on.
        finalize=lambda value: value if isinstance(value, Markup) else Markup(markup(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["png_uri"] = lambda path: png_uri(path.read_bytes())
    return environment
