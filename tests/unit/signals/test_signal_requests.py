"""What an ``execute-snapshot`` signal asks for."""

import itertools
import json
import re
from collections.abc import Callable

import pytest

from waltap.clock import processor_time
from waltap.ports.signals.signal import (
    NamePatterns,
    Signal,
    SignalUnusable,
    SnapshotRequest,
    requests,
)

KNOWN = [("public", "orders"), ("public", "order_lines"), ("audit", "orders"), ("Odd", "T.x")]


def read(
    data: str,
    known: list[tuple[str, str]] = KNOWN,
    clock: Callable[[], float] = lambda: 0.0,
    seconds: float = 5,
) -> list[SnapshotRequest]:
    signal = Signal("s1", "execute-snapshot", data)
    return requests(signal, signal.arguments(1 << 20), known, NamePatterns(clock, seconds))


def asked(**data: object) -> list[SnapshotRequest]:
    return read(json.dumps({name.replace("_", "-"): value for name, value in data.items()}))


@pytest.mark.parametrize(
    ("entries", "tables"),
    [
        pytest.param(["public.orders"], ["public.orders"], id="a table"),
        pytest.param([r"public\.order.*"], ["public.orders", "public.order_lines"], id="a pattern"),
        pytest.param([r".*\.orders", "public.orders"], ["public.orders", "audit.orders"], id="each once"),
        pytest.param(["PUBLIC.orders"], ["PUBLIC.orders"], id="case counts"),
        pytest.param(["public.(", "Odd.T.x"], ["public.(", "Odd.T.x"], id="no pattern"),
        pytest.param(['audit."orders"', "audit.orders"], ["audit.orders"], id="one quoted part"),
        pytest.param(['"a.b"."c""d"'], ['a.b.c"d'], id="dots and quotes inside quotes"),
        pytest.param([r"(?<s>public)\.\p{Lower}+"], ["public.orders"], id="a pattern as Java writes it"),
        pytest.param([], [], id="nothing"),
        pytest.param(["orders"], [], id="no schema"),
    ],
)  # fmt: skip
def test_tables_are_found_by_name_or_pattern(entries, tables):
    assert [r.name for r in asked(data_collections=entries)] == tables


def test_conditions_go_with_their_tables():
    conditions = [
        {"data-collection": r"public\.order.*", "filter": "id > 5"},
        {"data-collection": "audit.orders", "filter": ""},
    ]
    found = asked(data_collections=[r".*\.order.*"], additional_conditions=conditions)
    assert [(r.name, r.condition) for r in found] == [
        ("public.orders", "id > 5"),
        ("public.order_lines", "id > 5"),
        ("audit.orders", None),
    ]


def test_a_surrogate_key_and_a_condition_in_the_older_form_go_with_all():
    found = asked(data_collections=["a.b", "a.c"], surrogate_key="k", additional_condition="id > 5")
    assert [(r.surrogate_key, r.condition) for r in found] == [("k", "id > 5")] * 2
    for blank in ("", "  "):
        assert asked(data_collections=["a.b"], surrogate_key=blank)[0].surrogate_key is None


def test_null_members_count_as_missing_and_blanks_around_names_do_not_count():
    """As in Debezium, whose tools write null for what they leave out."""
    nulls = dict.fromkeys(("type", "additional_conditions", "surrogate_key"))
    (found,) = asked(data_collections=[" a.b ", "a.b"], **nulls)
    assert (found.name, found.condition, found.surrogate_key) == ("a.b", None, None)
    assert not found.blocking
    assert asked(data_collections=None) == []
    assert read("  ") == [], "empty data asks for nothing"


@pytest.mark.parametrize("entry", ['"Odd"."T.x"', "Odd.T.x", r"odd\.t\.X"])
def test_a_condition_finds_its_table_however_it_is_named(entry):
    conditions = [{"data-collection": entry, "filter": "a"}]
    (found,) = asked(data_collections=['"Odd"."T.x"'], additional_conditions=conditions)
    assert (found.schema, found.table, found.condition) == ("Odd", "T.x", "a")


UNUSABLE = [
    pytest.param("{", r"\w+", id="no JSON"),
    pytest.param('{"data-collections": [1]}', r"\w+", id="no names"),
    pytest.param('{"data-collections": [], "type": "blocking-ish"}', r"\w+", id="no such type"),
    pytest.param('{"additional-conditions": {}}', r"\w+", id="conditions no list"),
    pytest.param('{"additional-conditions": ["x"]}', r"\w+", id="condition no object"),
    pytest.param("[" * 200_000, "not JSON", id="nested deep"),
    pytest.param('{"data-collections": ["public.\\ud800"]}', "not JSON", id="a lone surrogate"),
    pytest.param('{"data-collections": ["public.\\u0000"]}', "NUL", id="a NUL character"),
    pytest.param('{"x": "' + "a" * (1 << 20) + '"}', "waltap.signal.max.bytes", id="large"),
    pytest.param(
        json.dumps({"data-collections": ["(" * 4000 + ")" * 4000]}),
        "nested too deep",
        id="parentheses",
    ),
    pytest.param(
        json.dumps({"data-collections": ["a" * 10_001]}), "longer than", id="a long pattern"
    ),
    pytest.param(json.dumps({"data-collections": ["a.b"], "surrogate-key": 7}), "column", id="key"),
    pytest.param(
        json.dumps({"additional-conditions": [{"data-collection": "a", "filter": 7}]}),
        "must be a string",
        id="a filter of another type",
    ),
    pytest.param(
        json.dumps(
            {"additional-conditions": [{"data-collection": "a"}], "additional-condition": "b"}
        ),
        "not both",
        id="conditions in both forms",
    ),
]


@pytest.mark.parametrize(("data", "says"), UNUSABLE)
def test_data_that_cannot_be_used_says_why(data, says):
    with pytest.raises(SignalUnusable, match=says):
        read(data)


def test_a_pattern_that_backtracks_for_ever_is_given_up():
    data = json.dumps({"data-collections": ["(o|oo)+$"]})
    with pytest.raises(SignalUnusable, match="take longer than"):
        read(data, [("o" * 60, "!")], clock=processor_time, seconds=0.2)


def test_what_other_threads_work_takes_nothing_from_a_pattern():
    """The regex package's own limit is over twice before the clock, which is of this thread, says so."""
    clock = iter([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    data = json.dumps({"data-collections": ["(o|oo)+$"]})
    with pytest.raises(SignalUnusable, match="take longer than"):
        read(data, [("o" * 60, "!")], clock=lambda: next(clock), seconds=0.05)
    assert not list(clock)


def test_patterns_together_have_one_limit():
    ticks = itertools.count()
    data = json.dumps({"data-collections": [f"a{n}.*" for n in range(100)]})
    with pytest.raises(SignalUnusable, match="take longer than 50 s"):
        read(data, clock=lambda: float(next(ticks)), seconds=50)


@pytest.mark.parametrize("write", [str, re.escape])
def test_ten_thousand_names_are_looked_up_not_matched(write):
    """The clock is asked at each match: it stands where names are looked up."""
    ticks = itertools.count()
    dash = "" if write is str else "-"
    known = [("public", f"t{dash}{n}") for n in range(1000)]
    data = {"data-collections": [write(f"public.t{dash}{n}") for n in range(10_000)]}
    found = read(json.dumps(data), known, clock=lambda: float(next(ticks)), seconds=1)
    assert {(each.schema, each.table) for each in found} >= set(known)
