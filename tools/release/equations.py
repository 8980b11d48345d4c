r"""Numbered equations: defined once in docs, cited by name in docstrings and pages, linked in the site.

An equation is a block of TeX whose title gives the name by which it is cited and the one that people read:

    ```math title="fvNCE: both bounds"
    J = …
    ```

They are numbered in the order of the pages. Wherever a page or a docstring says "Eq. fvNCE", the built page says
"Eq. 12" with a link to the block. In the source of a page a citation is a link to the section with the block, for those
who read it elsewhere; `make pages` writes these links.
"""

from __future__ import annotations

import html
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

#: A definition, and a citation: a name begins with a letter, so "Eq. 12" is none.
DEFINITION = re.compile(r'^```math title="([A-Za-z]\w*): ([^"\n]+)"\n(.*?)\n```$', re.MULTILINE | re.DOTALL)
CITATION = re.compile(r"\bEq\. ([A-Za-z]\w*)")
_TAG_OR_CITATION = re.compile(r"<a\b[^>]*>Eq\. ([A-Za-z]\w*)</a>|<[^>]*>|\bEq\. ([A-Za-z]\w*)")
#: Code, which is left as it is, a citation that is a link in the source of a page, and one that is not.
_CODE_OR_CITATION = re.compile(
    r"^```.*?^```$|`[^`\n]+`|\[Eq\. ([A-Za-z]\w*)\]\([^)\n]*\)|\bEq\. ([A-Za-z]\w*)", re.MULTILINE | re.DOTALL
)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Equation(NamedTuple):
    """Equation: its number, its title, its page relative to docs, and the anchor of the section that defines it."""

    number: int
    title: str
    page: str
    section: str


def pages() -> list[str]:
    """Return every page of the navigation, in order."""
    with (ROOT / "zensical.toml").open("rb") as file:
        return list(_leaves(tomllib.load(file)["project"]["nav"]))


def _leaves(item: Any) -> list[str]:
    if isinstance(item, str):
        return [item]
    parts = item.values() if isinstance(item, dict) else item
    return [page for part in parts for page in _leaves(part)]


def definitions(names: list[str] | None = None, folder: Path = DOCS) -> dict[str, Equation]:
    """Return all equations by name; ``names`` are the pages to read, by default all, in order."""
    defined: dict[str, Equation] = {}
    for page in pages() if names is None else names:
        path = folder / page
        text = path.read_text("utf-8") if path.exists() else ""
        for match in DEFINITION.finditer(text):
            name, title = match[1], match[2]
            if name in defined:
                raise ValueError(f"an equation must be defined once, found Eq. {name} twice, in {page} again")
            heading = ["", *_HEADING.findall(text[: match.start()])][-1]
            section = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            defined[name] = Equation(len(defined) + 1, title, page, section)
    return defined


def citations(text: str) -> set[str]:
    """Return the names of the equations that a text cites."""
    return set(CITATION.findall(text))


def sourced(text: str, page: str, known: dict[str, Equation]) -> str:
    """Return the source of a page with every citation as a link to the section that defines the equation.

    ``page`` is relative to the root of the checkout.
    """

    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in known:
            return match[0]
        target = f"docs/{known[name].page}"
        path = "" if target == page else posixpath.relpath(target, posixpath.dirname(page) or ".")
        return f"[Eq. {name}]({path}#{known[name].section})"

    return _CODE_OR_CITATION.sub(replace, text)


def displayed(markdown: str, known: dict[str, Equation]) -> str:
    """Return a page with its equations as numbered blocks for KaTeX."""

    def block(match: re.Match[str]) -> str:
        name, title, formula = match.groups()
        label = f'<a href="#eq-{name}">({known[name].number}) {html.escape(title)}</a>'
        body = html.escape(formula, quote=False)
        return f'<div class="equation" id="eq-{name}">{label}<div class="arithmatex">\\[{body}\\]</div></div>'

    return DEFINITION.sub(block, markdown)


def linked(text: str, known: dict[str, Equation], address: str) -> str:
    """Return a built page at ``address`` with its citations as links."""

    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name is None:
            return match[0]
        if name not in known:
            raise ValueError(f"{address} cites Eq. {name}, which no page of docs defines")
        number, title, page, _ = known[name]
        target = page.removesuffix("index.md") if page.endswith("index.md") else page.removesuffix(".md") + "/"
        relative = posixpath.relpath(target or ".", address or ".")
        return f'<a class="equation" href="{relative}/#eq-{name}" title="{html.escape(title)}">Eq. {number}</a>'

    return _TAG_OR_CITATION.sub(replace, text)
