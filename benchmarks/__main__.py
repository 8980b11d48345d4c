"""List the benchmarks: what each measures and how long it takes, from its docstring.

python benchmarks
"""

from __future__ import annotations

import ast
from pathlib import Path


def listed(folder: Path) -> list[tuple[str, str, str]]:
    """Return (file, what it measures, how long it takes), from the first sentence and the one with "Takes"."""
    programs = []
    for path in sorted(folder.glob("[a-z]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        takes = next((line for line in text.splitlines() if line.startswith("Takes ")), "Takes an unknown time.")
        programs.append((path.name, text.splitlines()[0], takes))
    return programs


if __name__ == "__main__":
    for name, what, takes in listed(Path(__file__).resolve().parent):
        print(f"benchmarks/{name}: {what} {takes}")
    print("Run one with .venv/bin/python benchmarks/NAME.py; --help prints its options.")
