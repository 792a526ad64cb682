"""The check of names and prose: each fault is found, and plain text passes."""

import re
from pathlib import Path

import pytest
from scripts.prose import (
    Finding,
    class_faults,
    faults_of,
    name_faults,
    page_faults,
    prose_of,
    texts_of,
)

PLAIN = '''"""Read the slot's position.

Raises: SlotMissing.
"""

LIMIT = 16  # the server sends at most 16 frames before it waits for an answer


class SlotReader:
    """One reader of a slot."""
'''

FAULTS = {
    '"""Return what the slot has."""': "“what” in a first line",
    '"""Reads a slot"""': "does not end in a period",
    f'"""Reads {"a very " * 14}long slot."""': "columns, at most 80",
    '"""Read a slot.\n\nNobody else may.\n"""': "“Nobody”: name the actor",
    '"""Read a slot.\n\nIt is to be closed.\n"""': "“is to be”: must be",
    f'"""Read.\n\n{"word " * 41}.\n"""': "a sentence of 41 words",
    '"""Read.\n\nFor those who stand or who asks.\n"""': "“who asks”: name the actor",
    '"""Read.\n\n| `a` | nobody |\n"""': "nobody",
    '"""Set slot.name. Then nobody reads."""': "nobody",
}


def faults(source: str) -> list[str]:
    return [fault for prose in prose_of(source) for fault in faults_of(prose)]


PASSES = {
    "plain prose": PLAIN,
    "names in code": '"""Call `nobody`, or ``told(what)``."""',
    "tables": '"""Read.\n\n' + "| `a` | here |\n" * 30 + '"""',
    "a list of names": f'"""Read.\n\nAs in {", ".join(f"`name{n}`" for n in range(50))}.\n"""',
}


@pytest.mark.parametrize("name", PASSES)
def test_what_is_no_sentence_or_plain_passes(name):
    assert faults(PASSES[name]) == []


@pytest.mark.parametrize(("source", "fault"), FAULTS.items())
def test_a_fault_is_found(source, fault):
    assert any(fault in found for found in faults(source)), faults(source)


def test_texts_are_checked_without_docstrings_and_patterns():
    source = '''
"""Nobody reads this."""
log.info("nobody reads %s", 1)
raise ValueError(f"slot {name} is for nobody")
SHORT = "nobody reads"
PATTERN = "nobody is here|somebody is here"
QUERY = "SELECT 1 WHERE nobody"
'''
    assert [prose.line for prose in texts_of(source)] == [3, 4]
    assert all("nobody" in str([*faults_of(prose)]) for prose in texts_of(source))


def test_a_page_is_checked_outside_of_its_code():
    page = "Nobody reads.\n\n```\nnobody\n```\n\n    nobody\n"
    assert [finding.line for finding in page_faults("a.md", page)] == [1]


def test_two_classes_of_one_name_are_found():
    sources = {"a.py": "class SlotReader: ...", "b.py": "\nclass SlotReader: ..."}
    assert list(class_faults(sources)) == [Finding("b.py", 2, "class SlotReader is also in a.py:1")]


NAMES = {
    "def settle(told): ...\nx = told": ["1, the name settle: compact, apply, drain", "1, the name told: reported"],
    "fold_rows = 1": ["1, the name fold_rows: compact"],
    "class ChunkLane: ...": ["1, the name ChunkLane: reader, shard"],
    "def tell(): ...": ["1, the name tell: report"],
    "size = file.tell()": [],
    "folder = text.casefold(), satellite, extended, understood, ON_READY": [],
}  # fmt: skip
"""Code, and what is found in it: each name once; a file may be asked for its position."""


@pytest.mark.parametrize("source", NAMES)
def test_removed_words_in_names_are_found(source):
    assert [f"{line}, {text}" for line, text in name_faults(source)] == NAMES[source]


ROOT = Path(__file__).parents[2]
WORDS = re.compile(r"yugabyte|yboutput|\byb_|\bybdb", re.IGNORECASE)
KNOW = (
    "plugins/yugabyte/",
    "plugins/decoders/",
)


def test_no_word_of_yugabytedb_stands_elsewhere():
    sources = [*ROOT.glob("framework/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    found = [
        f"{place}:{number}: {line.strip()}"
        for path in sources
        if not (place := str(path.relative_to(ROOT))).startswith(KNOW)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WORDS.search(line)
    ]
    assert len(sources) > 300
    assert found == []
