"""A self-contained HTML page: figures inside it, tables, settings, and a plain-language reading of each result.

No request to anywhere, which its content policy forbids; light and dark; readable on a narrow screen. The markup is in
``templates/``, by Jinja2: what a template is given is escaped, unless it is :class:`markupsafe.Markup` already.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..serialization import write_text
from . import charts, markup, visible


@dataclass(frozen=True)
class Table:
    """Rows of text under a header."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """The table for a terminal: names to the left, numbers to the right, as wide as it must be."""
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid(box=None, pad_edge=False, padding=(0, 1), show_header=False)
        for i in range(len(self.header)):
            grid.add_column(justify="right" if i else "left", no_wrap=True)
        for row in (self.header, *self.rows):
            grid.add_row(*(Text(visible(cell)) for cell in row))
        # Wide enough for any table, so that rich cuts nothing off; without colours whatever the terminal is.
        console = Console(width=10**6, color_system=None, force_terminal=False)
        with console.capture() as shown:
            console.print(grid)
        return "\n".join([visible(self.caption), *(line.rstrip() for line in shown.get().splitlines())])

    def markdown(self) -> str:
        """The table for a document."""
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


@dataclass(frozen=True)
class Picture:
    """A PNG file with what it shows, for those who see it and for those who do not."""

    path: Path
    caption: str
    alt: str

    @property
    def uri(self) -> str:
        """The picture itself, as an address."""
        return f"data:image/png;base64,{base64.b64encode(self.path.read_bytes()).decode('ascii')}"


@dataclass(frozen=True)
class Section:
    """One result: what it is, what it says in plain words, its pictures, charts and tables, how it was made.

    ``blocks`` are HTML of our own making, by :func:`render`, and stand between charts and tables. Sections of the
    ``appendix`` come last and have a heading in common.
    """

    title: str
    reading: Sequence[str]
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0
    files: Sequence[Path] = ()
    charts: Sequence[charts.Chart] = ()
    blocks: Sequence[Markup] = ()
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
    """Write the page, whole or not at all; ``style`` and ``scripts`` are our own and stand in it as they are."""
    page = render(
        __package__,
        "page.html",
        title=title,
        introduction=introduction,
        sections=sections,
        style=Markup(style),
        scripts=list(map(Markup, scripts)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def render(package: str, template: str, **values: Any) -> Markup:
    """HTML from a template of a package; a value that it asks for and is not given is an error."""
    return Markup(_environment(package).get_template(template).render(values))


@cache
def _environment(package: str) -> Environment:
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        # Escapes what Jinja2 would, and shows control characters, which it would pass on.
        finalize=lambda value: value if isinstance(value, Markup) else Markup(markup(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
