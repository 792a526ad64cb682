"""Generated code has a name, its lines show in tracebacks, and it goes with its functions."""

import gc
import linecache
import traceback

import pytest

from waltap.base.generated import define, sources


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


def test_two_of_one_title_are_distinguished():
    kept = [define(f"def nth():\n    return {n}\n", "test of two", {}) for n in range(2)]
    found = {name: text for name, text in sources() if "test of two" in name}
    assert len(found) == len(kept)
    assert [text.count(f"return {n}") for n, text in enumerate(found.values())] == [1, 1]


def test_equal_code_is_compiled_once_and_keeps_its_own_names():
    one, two = (
        define("def value():\n    return number\n", "test of sharing", {"number": number})["value"]
        for number in (1, 2)
    )
    assert (one(), two()) == (1, 2)
    assert one.__code__ is two.__code__
    assert len([name for name, _ in sources() if "test of sharing" in name]) == 1
