"""The picture of a run's page that the README shows: the page of payments in the gallery, as Chromium draws it.

python tools/report_picture.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import run_page

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 760, 740


def main() -> None:
    """Train as the page does, and write docs/images/report.png."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_page.rendered(ROOT / "docs" / "gallery" / "fraud.md")
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto((Path(folder) / "run" / "report.html").as_uri())
            page.screenshot(path=ROOT / "docs" / "images" / "report.png")
            browser.close()
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
