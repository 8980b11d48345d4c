"""Lint of prose: phrases that are not used, docstrings of fewer than five words, American spelling.

    python -m tools.prose

Prints each finding as file:line and exits with 1 if there is any. Quotations are ignored: text in backquotes or
quotation marks, names of parameters in Args, examples, and lines that end in ``noqa: prose``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Files to check: code, pages, and the documents in the root folder.
SOURCES = (
    *("src/**/*.py", "docs/**/*.md", "*.md", "src/**/*.html", "src/**/templates/*.md"),
    *("benchmarks/*.py", "experiments/**/*.py", "tools/**/*.py"),
)
#: Phrases that are not used, and what to write instead.
PHRASES = {
    r"\b(is|are|was|were|be|been|being) told\b": "name who knows what",
    r"\btells? of\b": "says, reports",
    r"\b(has|have|had) (a|no|some) say\b": "is used, is ignored",
    r"\ball the same\b": "still, nevertheless",
    r"\bwhat is no [a-z]": "name it",
    r"\bof another make\b": "of another kind",
    r"\bso many\b": "name the number",
    r"\balike\b": "equally, both",
    r"\bbeside\b": "next to, with, compared with",
    r"\brows to come\b": "new rows",
    r"\bstrang(e|er|est) (ones|things)\b|\bthe strangest\b(?! \w)": "highest-scoring rows",
    r"\bof no use\b": "useless, not needed",
}
_STEMS = (
    "normal|standard|initial|optim|real|general|regular|minim|maxim|factor|parametr|categor|recogn|summar|organ|author|"
    "penal|serial|visual|memor"
)
#: British spellings, and the American ones.
SPELLING = {
    r"\b\w*[a-z]isation(s|al)?\b": "-ization",
    rf"\b(un|re|de)?({_STEMS})is(e|ed|es|ing|er|ers)\b": "-ize",
    r"\bneighbour\w*": "neighbor",
    r"\bcolour\w*": "color",
    r"\bcentre[sd]?\b": "center",
    r"\bbehaviour\w*": "behavior",
    r"\bfavour\w*": "favor",
    r"\b(un)?(model|label|travel|cancel)l(ed|ing)\b": "one l",
    r"\banalys(e|ed|es|ing)\b": "analyze",
    r"\bgrey\b": "gray",
}
#: Text that keeps its spelling: quotations, links, parameters in Args, commands, a paper's title.
KEPT = re.compile(
    r"`[^`\n]*`|\"[^\"\n]*\"|'[a-z_]+'|https?://\S+|\]\([^)]*\)|^ +\w+: |fvnce reproduce [\w-]+|Optimis\w+ Noise"
)


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of prose in a file: docstrings and comments of code, text of pages."""
    lines = path.read_text("utf-8").splitlines()
    if path.suffix != ".py":
        fenced = False
        for number, line in enumerate(lines, 1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced:
                yield number, line
        return
    inside = {number for first, last in docstrings(path) for number in range(first, last + 1)}
    for number, line in enumerate(lines, 1):
        comment = line.partition("#")[2] if line.lstrip().startswith("#") else ""
        text = line if number in inside else comment
        if text and not text.lstrip().startswith((">>>", "... ")):
            yield number, text


def docstrings(path: Path) -> list[tuple[int, int]]:
    """Return the first and last line number of each docstring of a module."""
    return [(node.lineno, node.end_lineno or node.lineno) for _, node in _documented(path)]


def short_docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and text of docstrings of fewer than five words."""
    for text, node in _documented(path):
        if len(text.split()) < 5:
            yield node.lineno, f"docstring of fewer than five words: {text!r}"


def _documented(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield text, node.body[0]


def problems(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number and description of each finding in a file."""
    for number, line in prose_of(path):
        text = "" if line.endswith("noqa: prose") else KEPT.sub("", line.replace('"""', ""))
        for patterns in (PHRASES, SPELLING):
            for pattern, instead in patterns.items():
                for match in re.finditer(pattern, text, re.IGNORECASE):
                    yield number, f"{match.group()!r}; write: {instead}"
    if path.suffix == ".py":
        yield from short_docstrings(path)


def main() -> int:
    """Print all findings, and return 1 if there are any."""
    found = 0
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            for number, what in problems(path):
                found += 1
                print(f"{path.relative_to(ROOT)}:{number}: {what}")
    print(f"{found} findings")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
