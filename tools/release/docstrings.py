"""Docstrings as Markdown: an extension of Griffe for what this project writes in them.

Examples become blocks of Python, tables of reStructuredText become lists, and references such as ``:func:`fvnce.fit` ``
become links; formulas are indented and are left as they are.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):`(~?)([\w.]+)`")
_RULE = re.compile(r"^ *=+(?: +=+)+ *$")


def markdown(text: str) -> str:
    """The docstring in Markdown."""
    lines = _examples(_tables(text.split("\n")))
    return _ROLE.sub(_reference, "\n".join(lines))


def _reference(match: re.Match[str]) -> str:
    path = match.group(2)
    shown = path.rpartition(".")[2] if match.group(1) else path
    return f"[`{shown}`][{path}]" if path.startswith("fvnce.") else f"`{shown}`"


def _tables(lines: list[str]) -> list[str]:
    """Each row of a two-column table as an item of a list."""
    result, inside = [], False
    for line in lines:
        if _RULE.match(line):
            inside = not inside
            result.append("")
        elif inside and line.strip():
            left, _, right = line.strip().partition("``  ")
            result.append(f"* {left}``: {right.strip()}" if right else f"* {line.strip()}")
        else:
            result.append(line)
    return result


def _examples(lines: list[str]) -> list[str]:
    """A fence around each run of lines that begins with a prompt and ends with a blank line."""
    result: list[str] = []
    indent: str | None = None
    for line in lines:
        if indent is None and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            result += ["", f"{indent}```pycon"]
        elif indent is not None and not line.strip():
            result.append(f"{indent}```")
            indent = None
        result.append(line)
    return result if indent is None else [*result, f"{indent}```"]


class Docstrings(griffe.Extension):
    """Every docstring of the package, turned into Markdown before it is parsed."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
