"""A self-contained HTML page: figures inside it, tables, settings, and a plain-language reading of each result.

No request to anywhere, which its content policy forbids; light and dark; readable on a narrow screen.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..serialization import write_text
from . import charts
from .escape import markup, visible

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --soft: #5c5c5c; --line: #d9d9d9; --tint: #f4f5f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181c; --soft: #a9adb5; --line: #3a3e46; --tint: #20242b; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; font: 1rem/1.55 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2.8rem; }
p { max-width: 44rem; } .caption, figcaption, summary { color: var(--soft); font-size: .9rem; }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
a { color: inherit; } figure { margin: 1.2rem 0; }
img { max-width: 100%; height: auto; background: #ffffff; border-radius: .3rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 .6rem; }
.caption { margin: 1.4rem 0 .3rem; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom-width: 2px; }
thead th { white-space: normal; vertical-align: bottom; }
tbody th { font-weight: 400; white-space: normal; min-width: 6.5rem; }
:focus-visible { outline: 2px solid var(--c0, currentColor); outline-offset: 2px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(21rem, 100%), 1fr)); gap: 0 1.5rem; }
details { margin: .8rem 0; } pre { background: var(--tint); padding: .7rem; border-radius: .3rem; overflow-x: auto; }
"""


@dataclass(frozen=True)
class Table:
    """Rows of text under a header."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """The table for a terminal."""
        header, rows = list(map(visible, self.header)), [list(map(visible, row)) for row in self.rows]
        columns = [list(column) for column in zip(header, *rows, strict=True)]
        widths = [max(map(len, column)) for column in columns]

        def line(cells: Sequence[str]) -> str:
            first = cells[0].ljust(widths[0])
            return "  ".join([first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]).rstrip()

        return "\n".join([visible(self.caption), line(header), *map(line, rows)])

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


@dataclass(frozen=True)
class Section:
    """One result: what it is, what it says in plain words, its pictures and tables, how it was made.

    ``blocks`` are HTML of our own making and stand as they are between pictures and tables.
    """

    title: str
    reading: Sequence[str]
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0
    files: Sequence[Path] = ()
    blocks: Sequence[str] = ()


_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_page(
    path: Path,
    title: str,
    introduction: str,
    sections: Sequence[Section],
    *,
    style: str = "",
    scripts: Sequence[str] = (),
) -> Path:
    """Write the page, whole or not at all."""
    own = "".join(f"<script>{text}</script>" for text in scripts)
    looks = _STYLE + charts.COLOURS + charts.STYLE + style
    links = "".join(f'<li><a href="#s{i}">{markup(s.title)}</a></li>' for i, s in enumerate(sections))
    body = "".join(_section(i, section) for i, section in enumerate(sections))
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{markup(title)}</title><style>{looks}</style></head><body><main>"
        f"<h1>{markup(title)}</h1><p>{markup(introduction)}</p>"
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>{body}</main>{own}</body></html>\n'
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def _section(index: int, section: Section) -> str:
    parts = [f'<section id="s{index}"><h2>{markup(section.title)}</h2>']
    parts += [f"<p>{markup(sentence)}</p>" for sentence in section.reading]
    parts += [_picture(picture) for picture in section.pictures]
    parts += section.blocks
    parts += [_table(table) for table in section.tables]
    if section.settings:
        settings = "\n".join(f"{name} = {value}" for name, value in section.settings.items())
        parts.append(
            f"<details><summary>Settings, {section.seconds:.0f} s</summary><pre>{markup(settings)}</pre></details>"
        )
    return "".join([*parts, "</section>"])


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{markup(picture.alt)}">'
        f"<figcaption>{markup(picture.caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{markup(cell)}</th>' for cell in table.header)
    rows = "".join(
        f'<tr><th scope="row">{markup(row[0])}</th>' + "".join(f"<td>{markup(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in table.rows
    )
    caption = markup(table.caption)
    # The caption stays in sight when a wide table is scrolled; the box can be scrolled with the keyboard.
    return (
        f'<p class="caption">{caption}</p><div class="scroll" role="region" aria-label="{caption}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
