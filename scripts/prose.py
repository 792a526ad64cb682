"""Check names everywhere in the product, and prose in the packages that are listed as plain.

Prose is docstrings, comments, pages, and the texts of errors, logs and the terminal.

    python -m scripts.prose             list the findings; exit code 1 where there are any

``[tool.waltap.prose]`` in pyproject.toml lists the folders whose docstrings, comments and
pages must be plain.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).parents[1]
FIRST_LINE_COLUMNS: Final = 80
SENTENCE_WORDS: Final = 40
TEXT_WORDS: Final = 3
ONE_WORD_CLASSES: Final = 0.15

BANNED: Final = {
    r"(?:some|any|no)body": "name the actor: another process, a reader, the user",
    r"who(?:so)?ever": "name the actor",
    r"tells? whether": "return whether",
    r"takes? note": "record",
    r"(?:is|are|was|were) to be": "must be, will be",
    r"(?:no|any) more": "no longer",
    r"go(?:es)? on|went on": "continue, resume",
    r"comes? to nothing|counts? for nothing": "is ignored, is discarded",
    r"of ours": "our",
    r"for good": "permanently",
    r"anew": "again",
    r"told|tells?": "report, notify, show, name",
    r"untold": "unreported",
    r"lacking": "missing",
    r"stands?|stood": "is, is at, represents",
    r"settles?|settled|settling": "compact, apply, drain",
    r"unread": "not read yet",
    r"tends?|tended": "maintain",
    r"adopts?|adopted": "take over, use",
    r"retires?|retired": "expire",
    r"sweeps?": "delete",
    r"grace": "retention time",
    r"owes?|owed": "is due from",
    r"in vain": "without effect, needlessly",
    r"onward": "downstream",
    r"belongings?": "owned object",
    r"spools?": "buffer, private change log",
    r"pumps?|lanes?|desks?": "reader, loop, shard, queue",
    r"kept as": "stored as",
    r"(?:those|that) of": "repeat the noun",
    r"but for": "except for",
    r"comes? of it": "the result",
    r"who (?:asks|reads|looks|writes|has|goes|runs|wants|started|stands?)": "name the actor",
}
"""Shape → the field's words for it."""

BANNED_NAMES: Final = {
    "adopt": "take over",
    "adopts": "takes over",
    "anew": "again",
    "aside": "displaced, spare name",
    "belonging": "owned object",
    "belongings": "owned objects",
    "budgeted": "limits_wal",
    "crossed": "passed",
    "desk": "queue",
    "doubt": "reason for a new snapshot",
    "doubted": "unverified, needs a snapshot",
    "doubts": "reasons for a new snapshot",
    "elsewhere": "in another process or file",
    "fold": "compact",
    "folds": "compacts",
    "goes": "continues, is in progress",
    "grace": "retention",
    "handed": "assigned",
    "kept": "stored, remaining, retained",
    "lacking": "missing",
    "lane": "reader, shard",
    "lanes": "readers, shards",
    "look": "check, poll, read",
    "onward": "downstream",
    "owed": "pending, unacknowledged",
    "pump": "loop",
    "pumps": "loops",
    "rested": "idle",
    "resting": "idle, not loaded",
    "retire": "expire",
    "retires": "expires",
    "said": "text, output",
    "side": "part of a record, row image",
    "sides": "parts of a record, row images",
    "settle": "compact, apply, drain",
    "settled": "compacted",
    "settling": "compacting",
    "spool": "buffer, private log",
    "spools": "buffers, private logs",
    "standing": "current, live, evidence",
    "standings": "name resolution",
    "stands": "is",
    "stood": "was",
    "stretch": "continuity id",
    "stretches": "continuity",
    "sweep": "delete",
    "tell": "report",
    "tells": "reports",
    "tend": "maintain",
    "tended": "maintained",
    "told": "reported",
    "unread": "unreadable",
    "untold": "unreported",
    "upkeep": "compaction, maintenance",
    "urges": "requests a reply",
    "vain": "orphan",
}
"""Word of an identifier → the field's word for it."""

BORROWED_NAMES: Final = frozenset({"tell"})
"""Names of Python's own objects that need such a word: a file's position is ``file.tell()``."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]+")

_BANNED = re.compile(r"\b(?:" + "|".join(f"({shape})" for shape in BANNED) + r")\b", re.IGNORECASE)
_WHAT = re.compile(r"\bwhat\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+")
# A list of names reads as one word, however long it is.
_LIST = re.compile(r"\bx(?:,\s+x\b)+")
# Rows of a table and branches of a tree are no sentences.
_DRAWN = re.compile(r"^[ │]*[|├└].*$", re.MULTILINE)
_QUERY = re.compile(r"\bSELECT\b|\w\|\w")
# Names of properties have dots, and stand without quotes in texts of the terminal.
_CODE = re.compile(r"``[^`]*``|`[^`]*`|```.*?```|\b[a-z][\w-]*(?:\.[a-z][\w-]*)+", re.DOTALL)


class Finding(NamedTuple):
    """One place that a reader would stumble over."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Prose(NamedTuple):
    """A docstring or a comment: its text and its first line's number."""

    line: int
    text: str
    is_docstring: bool


def prose_of(source: str) -> Iterator[Prose]:
    """Yield the docstrings and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield Prose(node.body[0].lineno, text, is_docstring=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(
            ("# type", "#" + " noqa", "#!")
        ):
            yield Prose(token.start[0], token.string.lstrip("# "), is_docstring=False)


def texts_of(source: str) -> Iterator[Prose]:
    """Yield the texts of a module that people read: strings of several words, f-strings too.

    Docstrings are no such texts. Queries and patterns have the words of other programs.
    """
    tree = ast.parse(source)
    skipped: set[ast.AST] = {n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            parts = (n.value if isinstance(n, ast.Constant) else "x" for n in node.values)
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(text.split()) >= TEXT_WORDS and not _QUERY.search(text):
            yield Prose(node.lineno, text, is_docstring=False)


def faults_of(prose: Prose) -> Iterator[str]:
    """Yield what is wrong with one docstring or comment."""
    first = prose.text.partition("\n")[0]
    if prose.is_docstring:
        if len(first) > FIRST_LINE_COLUMNS:
            yield f"the first line has {len(first)} columns, at most {FIRST_LINE_COLUMNS}"
        if not first.endswith((".", ":", "::")):
            yield "the first line does not end in a period"
        if _WHAT.search(_CODE.sub("", first)):
            yield "“what” in a first line: name the noun"
    yield from faults_of_text(prose.text)


def faults_of_text(text: str) -> Iterator[str]:
    """Yield what is wrong with sentences, wherever they are."""
    plain = _CODE.sub("x", text)
    for match in _BANNED.finditer(plain):
        advice = list(BANNED.values())[match.lastindex - 1] if match.lastindex else ""
        yield f"“{match[0]}”: {advice}"
    for sentence in _SENTENCE.split(_LIST.sub("x", _DRAWN.sub("", plain))):
        words = len(re.findall(r"[A-Za-z']+", sentence))
        if words > SENTENCE_WORDS:
            yield f"a sentence of {words} words, at most {SENTENCE_WORDS}: “{sentence[:40]}…”"
        if len(_WHAT.findall(sentence)) > 1:
            yield f"two “what” in a sentence: “{sentence[:40]}…”"


def name_faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, fault) of identifiers that have a banned word, each once."""
    seen: set[str] = set()
    last = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string not in seen:
            seen.add(token.string)
            if last == "." and token.string in BORROWED_NAMES:
                seen.discard(token.string)
            else:
                for word in _WORD.findall(token.string):
                    if advice := BANNED_NAMES.get(word.lower()):
                        yield token.start[0], f"the name {token.string}: {advice}"
        last = token.string


def page_faults(path: str, text: str) -> Iterator[Finding]:
    """Yield the findings of a Markdown page, without its code and tables."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        if fenced or line.startswith(("    ", "|", "```")):
            continue
        for fault in faults_of_text(line):
            yield Finding(path, number, fault)


def class_names(sources: dict[str, str]) -> dict[str, list[Finding]]:
    """Return name → the classes of that name."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(Finding(path, node.lineno, node.name))
    return found


def class_faults(sources: dict[str, str]) -> Iterator[Finding]:
    """Yield classes of one name, and a finding where too many names are one word."""
    names = class_names(sources)
    for name, places in sorted(names.items()):
        for place in places[1:]:
            first = f"{places[0].path}:{places[0].line}"
            yield Finding(place.path, place.line, f"class {name} is also in {first}")
    total = sum(map(len, names.values()))
    single = sum(len(places) for name, places in names.items() if is_one_word(name))
    if total and single / total > ONE_WORD_CLASSES:
        yield Finding("", 0, f"{single} of {total} class names are one word")


def is_one_word(name: str) -> bool:
    """Return whether a class name is a single word, such as `Mark`."""
    return len(re.findall("[A-Z][a-z0-9]*", name.lstrip("_"))) <= 1


def committed(*patterns: str) -> dict[str, str]:
    """Return path → text of the files that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    paths = [name for name in listed.split("\0") if name and not name.endswith("_pb2.py")]
    return {
        name: (ROOT / name).read_text(encoding="utf-8") for name in paths if (ROOT / name).is_file()
    }


def findings(plain: list[str]) -> Iterator[Finding]:
    """Yield every finding of the checkout; prose counts in the folders ``plain``."""
    sources = committed("framework/src/**.py", "plugins/*/src/**.py")
    yield from class_faults(sources)
    for path, source in sources.items():
        for line, fault in name_faults(source):
            yield Finding(path, line, fault)
        if any(path.startswith(folder) for folder in plain):
            for prose in (*prose_of(source), *texts_of(source)):
                for fault in faults_of(prose):
                    yield Finding(path, prose.line, fault)
    for path, text in committed("*.md").items():
        if any(path.startswith(folder) for folder in plain):
            yield from page_faults(path, text)


def main() -> int:
    """Return 0 where nothing is found."""
    argparse.ArgumentParser(prog="python -m scripts.prose", description=__doc__).parse_args()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = list(findings(settings["tool"]["waltap"]["prose"]["plain"]))
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
