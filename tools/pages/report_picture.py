"""The picture of a run's page that the README shows: the run of the quickstart, as Chromium draws it.

Of a long page it shows the verdict, the curve of the first list and its first row with the largest parts.

python -m tools.pages.report_picture
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from . import run_page

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT, PARTS = 620, 1100, 8
#: What is left out of the picture.
HIDDEN = """main > p, nav, section > p:not(.verdict), figcaption, section:nth-of-type(n + 3),
    .anomalies > li:nth-child(n + 2) { display: none }
    .charts { display: block !important } .charts svg { width: 100% } h2 { margin-top: 1.2rem }"""


def main() -> None:
    """Train as the page does, and write docs/images/report.png."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_page.rendered(ROOT / "docs" / "quickstart-detector.md")
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto((Path(folder) / "run" / "report.html").as_uri())
            page.add_style_tag(content=HIDDEN)
            page.evaluate("document.querySelector('.anomalies details').open = true")
            parts = "document.querySelectorAll('.anomalies .parts .number')"
            end = page.evaluate(f"Math.ceil({parts}[{PARTS - 1}].getBoundingClientRect().bottom) + 2")
            picture = ROOT / "docs" / "images" / "report.png"
            page.screenshot(path=picture, clip={"x": 0, "y": 0, "width": WIDTH, "height": end})
            browser.close()
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
