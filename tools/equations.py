"""Numbered equations: defined once in docs/theory, cited by name in docstrings and pages, linked in the site.

An equation is a block of plain text whose title gives its number and its name:

    ```text title="Eq. 12, fvNCE"
    J = …
    ```

Wherever a page or a docstring says "Eq. fvNCE", the built page says "Eq. 12, fvNCE" and links to the block. This file
is a hook of MkDocs; it also brings the pictures of ``results`` into the site, and leaves out of the navigation the
pages that are made from results that are not there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
THEORY = ROOT / "docs" / "theory"

#: A definition, and a citation: a name begins with a letter, so "Eq. 12" is none.
DEFINITION = re.compile(r'^```text title="Eq\. (\d+), ([A-Za-z]\w*)"$', re.MULTILINE)
CITATION = re.compile(r"\bEq\. ([A-Za-z]\w*)")
_TAG_OR_CITATION = re.compile(r"<[^>]*>|\bEq\. ([A-Za-z]\w*)")


def definitions(folder: Path = THEORY) -> dict[str, tuple[int, str]]:
    """The name of each equation, with its number and its page relative to docs."""
    found: dict[str, tuple[int, str]] = {}
    for page in sorted(folder.rglob("*.md")):
        for number, name in DEFINITION.findall(page.read_text("utf-8")):
            if name in found:
                raise ValueError(f"an equation must be defined once, found Eq. {name} twice, in {page} again")
            found[name] = int(number), page.relative_to(folder.parent).as_posix()
    return found


def citations(text: str) -> set[str]:
    """The names of the equations that a text cites."""
    return set(CITATION.findall(text))


def linked(html: str, known: dict[str, tuple[int, str]], address: str) -> str:
    """A built page at ``address`` with its citations made links."""

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return match.group(0)
        if name not in known:
            raise ValueError(f"{address} cites Eq. {name}, which no page of docs/theory defines")
        number, page = known[name]
        target = page.removesuffix("index.md") if page.endswith("index.md") else page.removesuffix(".md") + "/"
        here = address if address.endswith("/") or not address else posixpath.dirname(address)
        relative = posixpath.relpath(target or ".", here or ".")
        return f'<a class="equation" href="{relative}/#eq-{name}">Eq. {number}, {name}</a>'

    return _TAG_OR_CITATION.sub(replace, html)


# What MkDocs calls.


def on_config(config: Any) -> Any:
    """Leave out pages that are not there yet because their results are not."""
    folder = Path(config["docs_dir"])
    config["nav"] = _existing(config["nav"], folder)
    return config


def _existing(items: list[Any], folder: Path) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        (title, content), *_ = {"": item}.items() if isinstance(item, str) else item.items()
        if isinstance(content, list):
            kept.append({title: _existing(content, folder)})
        elif content not in GENERATED or (folder / content).exists():
            kept.append(item)
    return kept


#: Pages that are made from results.
GENERATED = ("reproduction.md", "benchmarks.md")


def on_files(files: Any, config: Any) -> Any:
    """Add the pictures of results."""
    from mkdocs.structure.files import File

    for picture in sorted((ROOT / "results").rglob("*.png")):
        name = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Give each equation an anchor, pictures of results their place in the site, and the changelog its page."""
    if page.file.src_uri == "changelog.md":
        return (ROOT / "CHANGELOG.md").read_text("utf-8").replace("](docs/", "](")
    depth = page.file.src_uri.count("/")
    markdown = markdown.replace("](../results/", "](" + "../" * depth + "results/")
    return DEFINITION.sub(lambda match: f'<span id="eq-{match.group(2)}"></span>\n\n{match.group(0)}', markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Make citations links, once docstrings are part of the page."""
    return linked(output, definitions(), page.url)
