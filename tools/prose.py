"""Phrases that the house does not use, docstrings of fewer than five words, and one spelling: `python -m tools.prose`.

Prints each place as file:line and exits with 1 if there is any. Text between backquotes and lines that end in
``# noqa: prose`` are left out: they quote.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Where prose is read: code, pages, and the files that a visitor opens first.
SOURCES = (
    *("src/**/*.py", "docs/**/*.md", "*.md", "src/**/*.html"),
    *("benchmarks/*.py", "experiments/**/*.py", "tools/**/*.py"),
)
#: What is not used, and what to write.
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
    "penal|serial|visual"
)
#: One spelling, the American one.
SPELLING = {
    r"\b\w*[a-z]isation(s|al)?\b": "-ization",
    rf"\b(un|re|de)?({_STEMS})is(e|ed|es|ing|er|ers)\b": "-ize",
    r"\bneighbour\w*": "neighbor",
    r"\bcolour\w*": "color",
    r"\bcentre[sd]?\b": "center",
    r"\bbehaviour\w*": "behavior",
    r"\bfavour\w*": "favor",
    r"\b(model|label|travel|cancel)l(ed|ing)\b": "one l",
    r"\banalys(e|ed|es|ing)\b": "analyze",
    r"\bgrey\b": "gray",
    r"\blabell\w+": "label…",
}
#: Names of arguments, of a field, of a paper or of stored files, which keep their spelling.
KEPT = re.compile(r"^ {4,}\*{0,2}\w+: |`[^`\n]*`|\"[^\"\n]*\"|'[a-z_]+'|https?://\S+|\]\([^)]*\)|Optimis\w+ Noise")
_CODE_BLOCK = re.compile(r"^( {4,}|\t)")


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a file that are prose: docstrings and comments of code, the text of pages."""
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
        if text and ">>>" not in text:
            yield number, text


def docstrings(path: Path) -> list[tuple[int, int]]:
    """Return the first and last lines of the docstrings of a module."""
    return [(node.lineno, node.end_lineno or node.lineno) for _, node in _documented(path)]


def short_docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield docstrings of fewer than five words."""
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
    """Yield the number of each line of a file that has something to mend, and what."""
    for number, line in prose_of(path):
        text = "" if line.endswith("noqa: prose") else KEPT.sub("", line)
        for patterns in (PHRASES, SPELLING):
            for pattern, instead in patterns.items():
                for match in re.finditer(pattern, text, re.IGNORECASE):
                    yield number, f"{match.group()!r}; write: {instead}"
    if path.suffix == ".py":
        yield from short_docstrings(path)


def main() -> int:
    """Print all places, and return 1 if there are any."""
    found = 0
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            for number, what in problems(path):
                found += 1
                print(f"{path.relative_to(ROOT)}:{number}: {what}")
    print(f"{found} places" if found else "prose: nothing to mend")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
