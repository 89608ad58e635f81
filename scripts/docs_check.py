"""Check that a built site has no broken link and loads nothing from elsewhere.

Each link must lead to an existing file and anchor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
NOT_LOADED = ("canonical", "next", "prev", "edit", "alternate")  # <link rel=…> that names a page


class Reader(HTMLParser):
    """Parser of the links of a page, the files that it loads, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src"):
            if name in values:
                is_page = tag == "a" or values.get("rel") in NOT_LOADED
                (self.loads if (tag, name) in LOADED and not is_page else self.links).append(values[name])


def find_faults(site: Path) -> Iterator[str]:
    """Yield a line for each broken link and each file loaded from the network."""
    readers = {page: Reader(page) for page in sorted(site.rglob("*.html"))}
    for page, reader in readers.items():
        name = page.relative_to(site)
        for url in reader.loads:
            if urlsplit(url).netloc:
                yield f"{name} loads {url}; copy it into the site, which is also read offline"
        for url in {*reader.links, *reader.loads}:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc or page.name == "404.html":
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{name} links to {url}, which is not there"
            elif (
                parts.fragment
                and target in readers
                and unquote(parts.fragment) not in readers[target].anchors
            ):
                yield f"{name} links to {url}, which has no such anchor"


if __name__ == "__main__":
    faults = list(find_faults(Path(sys.argv[1]).resolve()))
    print("\n".join(faults))
    sys.exit(bool(faults))
