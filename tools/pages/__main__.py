"""Write or compare all pages that are made from results or from the program.

No number in them is typed by hand. Results that are not there leave their part out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fvnce.io import write_text

from ..release import equations
from . import benchmarks, blocks, commands, explorer, forgetting, reliability, reproduction

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


def _explorer() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return explorer.write_explorer(Path(folder) / "explorer.html").read_text("utf-8")


def _filled(name: str) -> Callable[[], str]:
    """Fill in the blocks of a page that a person writes, and make its citations of equations links."""
    known = equations.definitions()
    return lambda: equations.sourced(blocks.filled((ROOT / name).read_text("utf-8"), RESULTS), name, known)


#: Pages that persons write, of which blocks and links are made.
WRITTEN = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")))
#: What each file should hold; of two entries for a page, the later.
PAGES: dict[str, Callable[[], str]] = {
    **{name: _filled(name) for name in WRITTEN},
    "results/bench/README.md": lambda: benchmarks.page(RESULTS / "bench"),
    "results/forgetting/README.md": lambda: forgetting.page(RESULTS / "forgetting"),
    "results/paper-mnist/README.md": lambda: reproduction.page(RESULTS / "paper-mnist"),
    "results/coverage/README.md": lambda: reliability.page(RESULTS / "bench"),
    "docs/reference/commands.md": commands.page,
    "docs/assets/explorer.html": _explorer,
}


def main() -> None:
    """Write the pages, or with ``--check`` compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a page differs from what it is made from")
    check = parser.parse_args().check
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if check:
            if not path.exists() or path.read_text("utf-8") != text:
                sys.exit(f"{name} is not what it is made from: run make pages")
            continue
        write_text(path, text)


if __name__ == "__main__":
    main()
