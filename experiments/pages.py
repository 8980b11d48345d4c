"""All pages that are made from results or from the program, written or compared.

    python -m experiments.pages            # write them
    python -m experiments.pages --check    # fail if one differs from what it is made from

No number in them is typed by hand. Results that are not there leave their part out.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fvnce.serialization import write_text

from . import benchmark_page, commands_page, forgetting_page, readme_results, reliability_page, reproduction_page

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def _explorer() -> str:
    """The page of the rule explorer."""
    sys.path.insert(0, str(ROOT / "tools"))
    explorer = importlib.import_module("explorer")
    with tempfile.TemporaryDirectory() as folder:
        text: str = explorer.write_explorer(Path(folder) / "explorer.html").read_text("utf-8")
        return text


#: What each file should hold.
PAGES: dict[str, Callable[[], str]] = {
    "docs/benchmarks.md": lambda: benchmark_page.page(RESULTS / "bench"),
    "docs/forgetting.md": lambda: forgetting_page.page(RESULTS / "forgetting"),
    "docs/reproduction.md": lambda: reproduction_page.page(RESULTS / "paper-mnist"),
    "docs/howto/reliability.md": lambda: reliability_page.page(RESULTS / "bench"),
    "docs/reference/commands.md": commands_page.page,
    "docs/assets/explorer.html": _explorer,
    "docs/index.md": lambda: readme_results.start_page((ROOT / "docs" / "index.md").read_text("utf-8"), RESULTS),
    "README.md": lambda: readme_results.readme((ROOT / "README.md").read_text("utf-8"), RESULTS),
}


def main() -> None:
    """Write or compare."""
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
