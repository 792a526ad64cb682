"""Hooks of MkDocs: what the site has besides the pages of ``docs``.

Documents are written to be read in the repository: they link to its README, its examples, its code. Such
files become pages of the site, in its folder ``repository``, and links are turned to them. Navigation is
what docs/index.md lists, so that it is written once.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
REST = "repository"
LIST = "files.md"
HEADING = re.compile(r"^(##+) (.+)$")
TARGET = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^(?:[-*]|\d+\.) ")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation from the index: headings are groups; a page is below the first that names it."""
    pages = {path.relative_to(ROOT / DOCS).as_posix() for path in (ROOT / DOCS).rglob("*.md")}
    config.nav = navigation((ROOT / DOCS / "index.md").read_text(encoding="utf-8"), pages)
    return config


def navigation(index: str, pages: set[str]) -> list[Any]:
    """Return the groups of ``index``, with every one of ``pages`` in one of them, once."""
    nav: list[Any] = [{"Start": "index.md"}]
    open_groups: list[list[Any]] = [nav]
    left = pages - {"index.md"}
    for line in index.splitlines():
        if heading := HEADING.match(line):
            group: list[Any] = []
            del open_groups[len(heading[1]) - 1 :]
            open_groups[-1].append({heading[2]: group})
            open_groups.append(group)
        elif len(open_groups) > 1:
            for target in TARGET.findall(line):
                named = [target.partition("#")[0]]
                if named[0].endswith("/README.md"):  # the list of a folder
                    named += sorted(p for p in left if p.startswith(posixpath.dirname(named[0])))
                open_groups[-1] += [path for path in dict.fromkeys(named) if path in left]
                left -= set(named)
    return [*nav, {"More": sorted(left)}] if left else nav  # these are linked from other pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Bring in what documents link to and is not below ``docs``."""
    waiting = [f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        for _, path in links(name, repository_page(name)):
            if path in seen or not (ROOT / path).exists():
                continue
            seen.add(path)
            waiting.append(path)
            if not path.startswith(f"{DOCS}/"):
                files.append(
                    File.generated(
                        config,
                        site_uri(path),
                        content=repository_page(path),
                        inclusion=InclusionLevel.NOT_IN_NAV,
                    )
                )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave ``docs``, and let lists begin where a reader sees them begin."""
    uri = page.file.src_uri
    turned = dict(links(repository_path(uri), markdown))

    def turn(match: re.Match[str]) -> str:
        target = match[1]
        if target not in turned or not (ROOT / turned[target]).exists():
            return match[0]
        anchor = f"#{target.partition('#')[2]}" if "#" in target else ""
        return f"]({posixpath.relpath(site_uri(turned[target]), posixpath.dirname(uri))}{anchor})"

    return "\n".join(
        line if fenced else TARGET.sub(turn, line) for fenced, line in spaced(markdown.splitlines())
    )


def links(name: str, markdown: str) -> Iterator[tuple[str, str]]:
    """Give each link of a document, or of a folder's list, with the path of what it leads to."""
    folder = name if (ROOT / name).is_dir() else posixpath.dirname(name)
    if not name.endswith(".md") and folder != name:
        return  # code
    for fenced, line in lines(markdown):
        for target in () if fenced else TARGET.findall(line):
            path = target.partition("#")[0]
            if path and "://" not in path and not path.startswith("mailto:"):
                found = posixpath.normpath(posixpath.join(folder, path))
                yield target, "README.md" if found == "." else found


def site_uri(path: str) -> str:
    """Return where a file of the repository is on the site."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if (ROOT / path).is_dir():
        return f"{REST}/{path}/{LIST}"
    return f"{REST}/{path}" if path.endswith(".md") else f"{REST}/{path}.md"


def repository_path(uri: str) -> str:
    """Return which file of the repository a page of the site was made of."""
    if not uri.startswith(f"{REST}/"):
        return f"{DOCS}/{uri}"
    path = uri.removeprefix(f"{REST}/")
    if path.endswith(f"/{LIST}"):
        return path.removesuffix(f"/{LIST}")
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def repository_page(path: str) -> str:
    """Return a document as it is, code in a block, a folder as the list of its files."""
    file = ROOT / path
    if file.is_dir():
        inside = sorted(each for each in file.iterdir() if not each.name.startswith((".", "__")))
        shown = [f"`{e.name}/`" if e.is_dir() else f"[{e.name}]({e.name})" for e in inside]
        return "\n".join([f"# {path}", "", *(f"- {name}" for name in shown)])
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return f"# {path}\n\nNo text."
    language = file.suffix.removeprefix(".") or "text"
    return f"# {file.name}\n\n`{path}`\n\n````{language}\n{text}\n````\n"


def lines(markdown: str) -> Iterator[tuple[bool, str]]:
    """Give each line, and whether it belongs to a block of code."""
    fenced = False
    for line in markdown.splitlines():
        edge = FENCE.match(line) is not None
        yield fenced or edge, line
        fenced ^= edge


def spaced(text: list[str]) -> Iterator[tuple[bool, str]]:
    """Give the same, with an empty line before a list right below a sentence."""
    before = ""
    for fenced, line in lines("\n".join(text)):
        below_a_sentence = before.strip() and not before.startswith(" ") and not ITEM.match(before)
        if not fenced and ITEM.match(line) and below_a_sentence:
            yield False, ""
        yield fenced, line
        before = line
