"""The documentation keeps its limits: words of all pages, reading ease of how-to pages."""

from scripts import reading


def test_the_documentation_is_short_and_plain() -> None:
    assert reading.faults(reading.pages()) == []


def test_plain_sentences_are_easier_than_long_ones() -> None:
    plain = reading.reading_ease("The engine reads a slot. It writes each row to the sink.")
    dense = reading.reading_ease(
        "Notwithstanding considerable heterogeneity, implementations occasionally demonstrate"
        " fundamentally incompatible transactional characteristics."
    )
    assert plain > reading.EASE > dense


def test_code_tables_and_headings_are_no_prose() -> None:
    text = (
        "# Characteristics\n\n| incompatible | characteristics |\n\n```\nincompatibilities\n```\n"
    )
    assert reading.reading_ease(f"{text}\nIt reads.\n") == reading.reading_ease("It reads.")


def test_syllables() -> None:
    words = {"slot": 1, "table": 2, "replica": 3, "make": 1, "used": 1, "loaded": 2}
    assert {word: reading.syllables(word) for word in words} == words


def test_each_limit_is_found() -> None:
    page = reading.PageFigures("docs/howto/a.md", 90_000, 20.0, is_generated=False)
    record = reading.PageFigures("docs/decisions/0001-a.md", 900, 60.0, is_generated=False)
    changes = reading.PageFigures("CHANGELOG.md", 2_000, 60.0, is_generated=False)
    found = reading.faults([page, record, changes])
    assert [text.partition(":")[0] for text in found] == [
        "all pages",
        "hand-written pages",
        "CHANGELOG.md",
        "docs/howto/a.md",
        "docs/decisions/0001-a.md",
    ]
