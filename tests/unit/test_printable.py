"""What others wrote, as a terminal or a log may have it."""

import io
import json
import logging

import pytest
from rich.table import Table

from waltap.base.text import in_brief, printable, printable_lines
from waltap.cli.log_output import FORMS, LineHandler
from waltap.services.monitor.views import SafeConsole

EVIL = "a\x1b[31m\x9b2J\u202e\u2028\x7f\U000e0001\r\nb"


def test_nothing_is_left_that_is_not_printable():
    assert printable(EVIL) == r"a\x1b[31m\u009b2J\u202e\u2028\u007f\udb40\udc01\r\nb"
    assert len(in_brief(KeyError("row" * 9000))) < 2100
    assert printable("Größe → 日本 😀") == "Größe → 日本 😀"
    assert printable_lines("a\n\tb\x1b") == "a\n\tb\\x1b"


def test_a_document_of_json_stays_what_it_is():
    """Control characters are escapes there already."""
    text = json.dumps({"table": EVIL}, indent=2, ensure_ascii=False)
    assert printable_lines(text).replace("\n", "").isprintable()
    assert json.loads(printable_lines(text)) == {"table": EVIL}


def test_a_console_draws_with_escapes_and_prints_none():
    screen = io.StringIO()
    console = SafeConsole(
        file=screen, force_terminal=True, width=100, color_system="standard", highlight=False
    )
    table = Table("name")
    table.add_row(EVIL, style="red")
    console.print(table)
    console.print(EVIL, markup=False)
    text = screen.getvalue()
    assert "\x1b[31m" in text  # our own red
    assert r"a\x1b[31m\u009b2J" in text
    assert not {"\x9b", "\u202e", "\x7f"} & set(text)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_line_is_one_line(form):
    lines: list[str] = []
    record = logging.LogRecord("waltap", 20, "", 1, "table %s joined", (EVIL,), None)
    LineHandler(lines.append, FORMS[form]).emit(record)
    assert lines[0].isprintable()
    assert r"\u202e" in lines[0]
