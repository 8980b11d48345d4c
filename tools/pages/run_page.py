"""Run the code of pages from top to bottom, and compare or write its output and pictures.

    python -m tools.pages.run_page docs/models/*.md    # write outputs and pictures anew

A page holds Python blocks, each of which goes on where the one before left off. A block of ``text`` right after one is
what it prints. A block of ``console`` holds commands, ``$ fvnce …``, each followed by what it writes. A picture
``images/gallery-NAME.png`` that the page shows is the file of that name that its code saves.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"\]\((?:\.\./)*images/(gallery-[\w-]+\.png)\)")
NUMBER = re.compile(r"[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


def rendered(page: Path) -> str:
    """Return the page with all outputs renewed; files are written to the working directory."""
    text = page.read_text("utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    parts, end, printed = [], 0, None
    for match in BLOCK.finditer(text):
        kind, body = match.groups()
        between = text[end : match.start()]
        parts.append(between)
        end = match.end()
        if kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(body, str(page), "exec"), names)
        elif kind == "console":
            body = "".join(_session(body))
        elif printed is not None and not between.strip():
            body = _ending_in_a_line(printed.getvalue())
        parts.append(f"```{kind}\n{body}```")
    return "".join([*parts, text[end:]])


def _session(body: str) -> Iterator[str]:
    from fvnce.app.cli import main

    for line in body.splitlines():
        if not line.startswith("$ "):
            continue
        yield f"{line}\n"
        program, *arguments = shlex.split(line[2:], comments=True)
        if program != "fvnce":
            raise ValueError(f"a console block must hold commands of fvnce, found {line!r}")
        written = io.StringIO()
        # A page has lines of its own length, whatever the terminal of whoever makes it.
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            try:
                main(arguments)
            except SystemExit as stopped:
                if stopped.code not in (0, None):
                    raise ValueError(f"{line!r} ended with {stopped.code}: {written.getvalue()}") from stopped
        yield _ending_in_a_line(written.getvalue())


def _ending_in_a_line(text: str) -> str:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


def differences(shown: str, rendered: str) -> list[str]:
    """Return lines of a page that differ from the output: other words, or numbers off by more than a quarter.

    Arithmetic differs from machine to machine, so that numbers need not be the same to the last digit; what a page
    claims of them it asserts.
    """
    before, after = shown.splitlines(), rendered.splitlines()
    if len(before) != len(after):
        return [f"{len(before)} lines are shown and {len(after)} were found"]
    return [f"{old!r} is shown and {new!r} was found" for old, new in zip(before, after, strict=True) if _far(old, new)]


def _far(old: str, new: str) -> bool:
    if " ".join(NUMBER.sub("#", old).split()) != " ".join(NUMBER.sub("#", new).split()):
        return True
    pairs = zip(_numbers(old), _numbers(new), strict=True)
    return not all(math.isclose(one, other, rel_tol=0.25, abs_tol=0.1) for one, other in pairs)


def _numbers(line: str) -> list[float]:
    return [float(number.replace(",", "").replace("−", "-")) for number in NUMBER.findall(line)]


def rewrite(page: Path) -> None:
    """Run the page in a folder of its own, write its outputs into it and its pictures next to it."""
    images = next(folder for folder in page.resolve().parents if folder.name == "docs") / "images"
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            text = rendered(home / page)
            for name in PICTURE.findall(text):
                shutil.copyfile(name, images / name)
        finally:
            os.chdir(home)
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        rewrite(Path(argument))
