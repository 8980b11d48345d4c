"""Check the built site: every link and anchor exists, and no page fetches anything from another host.

python -m tools.release.check_site site
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes by which a page makes a browser fetch something, as opposed to a link that a person may follow.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
#: Links of these kinds fetch nothing.
HARMLESS = {"canonical", "prev", "next", "alternate"}


class Page(HTMLParser):
    """Parser for the anchors, links and fetched addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record what the tag refers to."""
        given = {name: value for name, value in attrs if value}
        if "id" in given:
            self.anchors.add(given["id"] or "")
        if tag == "a" and "name" in given:
            self.anchors.add(given["name"] or "")
        if tag == "a" and "href" in given:
            self.links.append(given["href"] or "")
        name = FETCHED.get(tag)
        if name in given and not (tag == "link" and given.get("rel") in HARMLESS):
            self.fetched.append(given[name] or "")


def problems(site: Path) -> Iterator[str]:
    """Yield the problems of the site, one line each."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for address in page.fetched:
            if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
                yield f"{name} fetches {address}"
        if name.name == "404.html":  # its addresses begin at the root of the server
            continue
        for address in {*page.links, *page.fetched}:
            parts = urlsplit(address)
            if parts.scheme or address.startswith("//"):
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name} links to {address}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name} links to {address}, which has no such anchor"


def main() -> None:
    """Print the problems; fail if there is one."""
    site = Path(sys.argv[1]).resolve()
    if not (site / "index.html").is_file():
        sys.exit(f"{site} must hold a built site, found no index.html")
    broken = list(problems(site))
    sys.exit("\n".join(broken) if broken else 0)


if __name__ == "__main__":
    main()
