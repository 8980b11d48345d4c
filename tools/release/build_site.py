"""Build the documentation's site with Zensical: stage pages, link equations, check links.

python -m tools.release.build_site

Zensical has no hooks, so what the pages need besides Markdown is done before and after it: the changelog and the
pictures of ``results`` are brought in, equations become numbered blocks, and citations, those in docstrings too, links.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from fvnce import __version__

from . import check_site, equations

ROOT = equations.ROOT
STAGED = ROOT / "build" / "docs"
SITE = ROOT / "site"


def stage(target: Path) -> None:
    """Write the pages as Zensical reads them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(equations.DOCS, target)
    for picture in sorted((ROOT / "results").rglob("*.png")):
        copy = target / picture.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, copy)
    (target / "changelog.md").write_text((ROOT / "CHANGELOG.md").read_text("utf-8").replace("](docs/", "]("), "utf-8")
    known = equations.definitions()
    for page in sorted(target.rglob("*.md")):
        depth = len(page.relative_to(target).parts) - 1
        text = page.read_text("utf-8").replace("](../results/", "](" + "../" * depth + "results/")
        page.write_text(equations.displayed(text, known), "utf-8")


def source(address: str) -> str:
    """Return the file that a built page is made from.

    >>> source("."), source("changelog"), source("theory/tour")
    ('docs/index.md', 'CHANGELOG.md', 'docs/theory/tour.md')
    """
    return "CHANGELOG.md" if address == "changelog" else f"docs/{'index' if address == '.' else address}.md"


def link(site: Path) -> None:
    """Make citations links in every built page, and break lines where they may be broken."""
    known = equations.definitions()
    for page in sorted(site.rglob("*.html")):
        address = page.parent.relative_to(site).as_posix()
        text = page.read_text("utf-8").replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
        # In a narrow column of a table the error may stand below its value.
        text = re.sub(r"<td.*?</td>", lambda cell: cell.group().replace("\N{NO-BREAK SPACE}±", " ±"), text, flags=re.S)
        text = text.replace("@VERSION@", __version__).replace("@SOURCE@", source(address))
        page.write_text(equations.linked(text, known, "" if address == "." else address), "utf-8")


def main() -> None:
    """Build the site; fail on a warning, a broken link, an unknown equation or anything fetched from elsewhere."""
    stage(STAGED)
    zensical = Path(sys.executable).with_name("zensical")
    built = subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    link(SITE)
    broken = list(check_site.problems(SITE))
    sys.exit("\n".join(broken) if broken else 0)


if __name__ == "__main__":
    main()
