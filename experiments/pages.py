"""All pages that are made from results or from the program, written or compared.

python tools/pages.py            # write them
python tools/pages.py --check    # fail if one differs from what it is made from
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import benchmark_page
import commands_page
import readme_results

ROOT = Path(__file__).resolve().parent.parent

#: What each file should hold.
PAGES: dict[str, Callable[[], str]] = {
    "docs/benchmarks.md": lambda: benchmark_page.page(ROOT / "results" / "bench"),
    "docs/reference/commands.md": commands_page.page,
    "README.md": lambda: readme_results.readme((ROOT / "README.md").read_text("utf-8"), ROOT / "results"),
}


def main() -> None:
    """Write or compare."""
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text("utf-8") != text:
                sys.exit(f"{name} is not what it is made from: run make pages")
            continue
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)


if __name__ == "__main__":
    main()
