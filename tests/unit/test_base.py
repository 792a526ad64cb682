"""waltap.base: texts that a terminal or a log may have, generated code, and what a cache keeps."""

import gc
import io
import json
import linecache
import logging
import traceback

import pytest
from rich.table import Table

from waltap.base.cache import BoundedDict
from waltap.base.generated import define, sources
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


def test_a_traceback_shows_the_line_that_failed():
    names = define("def halve(number):\n    return number / 0  # the line\n", "test of lines", {})
    with pytest.raises(ZeroDivisionError) as caught:
        names["halve"](1)
    reported = "".join(traceback.format_exception(caught.value))
    assert "return number / 0  # the line" in reported
    assert "waltap test of lines #" in reported


def test_it_is_listed_while_it_is_used_and_gone_after():
    names = define("def once():\n    return 1\n", "test of life", {})
    once = names["once"]
    del names
    [(name, text)] = [found for found in sources() if "test of life" in found[0]]
    assert text == "def once():\n    return 1\n"
    assert linecache.getline(name, 2) == "    return 1\n"
    del once
    gc.collect()
    assert [found for found in sources() if "test of life" in found[0]] == []
    assert name not in linecache.cache


def test_equal_code_is_compiled_once_and_keeps_its_own_names():
    one, two = (
        define("def value():\n    return number\n", "test of sharing", {"number": number})["value"]
        for number in (1, 2)
    )
    assert (one(), two()) == (1, 2)
    assert one.__code__ is two.__code__
    assert len([name for name, _ in sources() if "test of sharing" in name]) == 1


def test_a_known_key_is_replaced_and_a_new_one_clears_a_full_cache():
    cache = BoundedDict[str, int](2)
    cache["a"], cache["b"] = 1, 2
    cache["b"] = 3
    assert cache == {"a": 1, "b": 3}
    cache["c"] = 4
    assert cache == {"c": 4}
