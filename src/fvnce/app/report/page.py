"""A self-contained HTML page of sections, with figures inside it.

It fetches nothing, which its content policy forbids; it is light or dark and readable on a narrow screen. The markup is
in ``templates/``, by Jinja2, which escapes every value that is not :class:`markupsafe.Markup` already.
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
    """Rows of text under a header."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class PageFigure:
    """A PNG file, its caption, and its description for readers who do not see it."""

    path: Path
    caption: str
    alt: str


@dataclass(frozen=True)
class Section:
    """A section of a page, in the order in which it is shown.

    Attributes:
        title: its heading.
        reading: sentences that say what came out.
        figures: PNG files.
        charts: of :mod:`fvnce.app.report.charts`.
        blocks: HTML made by :func:`block` or :func:`render`.
        tables: rows of text.
        settings: how it was made, with the seconds it took; folded.
        seconds: how long it took.
        appendix: whether it comes last, under a common heading.
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
    """Write a page, whole or not at all; ``style`` and ``scripts`` are trusted and not escaped."""
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
    """Return HTML of a section, by the macro of that name in ``blocks.html``."""
    return Markup(getattr(_environment(_PACKAGE).get_template("blocks.html").module, name)(**values))


def render(template: str, package: str = _PACKAGE, **values: Any) -> Markup:
    """Return HTML from a template of a package; a value that it needs and is not given raises an error."""
    return Markup(_environment(package).get_template(template).render(values))


def png_uri(content: bytes) -> str:
    """Return a PNG image as an address that a page can hold."""
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        # Escapes what Jinja2 would, and shows control characters, which it would pass on.
        finalize=lambda value: value if isinstance(value, Markup) else Markup(markup(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["png_uri"] = lambda path: png_uri(path.read_bytes())
    return environment
