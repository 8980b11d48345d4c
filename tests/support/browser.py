"""A headless Chromium of the system, driven by playwright."""

import os
import shutil

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
#: Nothing but the page: no update, no account, no request of the browser's own.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: Milliseconds after which a browser is taken to hang, however busy the machine is.
HANGS = 300_000


def needs_browser(test):
    """Skip a test where there is no Chromium; with CI=true it fails there instead, in :class:`Browser`."""
    missing = CHROMIUM is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(missing, reason="no Chromium on this machine; install one to try pages in it")(test)


class Browser:
    """One page; everything it logs and every request it makes is kept."""

    def __init__(self):
        if CHROMIUM is None:
            pytest.fail("CI=true and there is no Chromium: install chromium or google-chrome, or unset CI to skip")
        from playwright.sync_api import sync_playwright

        self.problems, self.requests = [], []
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=HANGS)
        self._page = self._browser.new_page()
        self._page.set_default_timeout(HANGS)
        self._page.on("pageerror", lambda error: self.problems.append(str(error)))
        self._page.on("console", self._note)
        self._page.on("request", lambda request: self.requests.append(request.url))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._browser.close()
        self._playwright.stop()

    def open(self, url):
        """Load a page; the next look at what it logged is at this page alone."""
        self.problems.clear()
        self.requests.clear()
        self._page.goto(url, wait_until="load")

    def run(self, script):
        """The value of an expression in the page."""
        return self._page.evaluate(script)

    def screen(self, width, height=900, *, dark=False):
        """Set the size of the window and the colours people prefer."""
        self._page.set_viewport_size({"width": width, "height": height})
        self._page.emulate_media(color_scheme="dark" if dark else "light")

    def picture(self, path):
        """The whole page as a PNG file."""
        self._page.screenshot(path=path, full_page=True)

    def _note(self, message):
        if message.type in ("error", "warning"):
            self.problems.append(message.text)
