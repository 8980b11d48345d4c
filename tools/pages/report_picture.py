"""The picture of a run's page that the README shows: the run of the quickstart, as Chromium draws it.

Of a long page it shows the verdict, the curve of the first list and its first row with all parts.

python -m tools.pages.report_picture
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from . import run_page

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT = 620, 985
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
            page.screenshot(path=ROOT / "docs" / "images" / "report.png")
            browser.close()
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
