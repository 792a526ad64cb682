"""The site of the documentation is built without a warning, asks for nothing from elsewhere, and its links hold."""

import os
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.harness.command import run_program

ROOT = Path(__file__).parents[1]


class Html(HTMLParser):
    """What a page of the site links to, loads, and can be linked to at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given.get("href", ""))
        elif "src" in given:
            self.loaded.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a site that is built as `make site` builds it."""
    target = tmp_path_factory.mktemp("site")
    build = sys.executable, "-m", "mkdocs", "build", "--strict", "-d", target
    run_program(*build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> Mapping[Path, Html]:
    return {path: Html(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_document_is_a_page(site: Path) -> None:
    for document in (ROOT / "docs").rglob("*.md"):
        path = document.relative_to(ROOT / "docs").with_suffix(".html")
        made = path.with_name("index.html") if path.name == "README.html" else path
        assert (site / made).exists(), document


def test_pages_load_nothing_from_elsewhere(pages: Mapping[Path, Html]) -> None:
    loaded = {each for page in pages.values() for each in page.loaded}
    assert loaded
    assert [each for each in loaded if urlsplit(each).netloc] == []


def test_links_and_what_is_loaded_are_there(pages: Mapping[Path, Html]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its addresses begin at the root of a server
            continue
        for target in {*page.links, *page.loaded}:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            found = pages.get(there)
            if not there.exists() or (found and unquote(parts.fragment) not in found.anchors):
                broken.append(f"{path.name}: {target}")
    assert broken == []
