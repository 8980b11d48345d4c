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

from . import benchmarks, commands, explorer, forgetting, readme, reliability, reproduction

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


def _explorer() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return explorer.write_explorer(Path(folder) / "explorer.html").read_text("utf-8")


#: What each file should hold.
PAGES: dict[str, Callable[[], str]] = {
    "docs/benchmarks.md": lambda: benchmarks.page(RESULTS / "bench"),
    "docs/forgetting.md": lambda: forgetting.page(RESULTS / "forgetting"),
    "docs/reproduction.md": lambda: reproduction.page(RESULTS / "paper-mnist"),
    "docs/howto/reliability.md": lambda: reliability.page(RESULTS / "bench"),
    "docs/reference/commands.md": commands.page,
    "docs/assets/explorer.html": _explorer,
    "docs/index.md": lambda: readme.start_page((ROOT / "docs" / "index.md").read_text("utf-8"), RESULTS),
    "README.md": lambda: readme.readme((ROOT / "README.md").read_text("utf-8"), RESULTS),
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
