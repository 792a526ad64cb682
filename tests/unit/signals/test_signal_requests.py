"""What an ``execute-snapshot`` signal asks for."""

import json

import pytest
from waltap.signals.signal import Signal, SignalUnusable, SnapshotRequest, requests

KNOWN = [("public", "orders"), ("public", "order_lines"), ("audit", "orders"), ("Odd", "T.x")]


def asked(**data: object) -> list[SnapshotRequest]:
    named = {name.replace("_", "-"): value for name, value in data.items()}
    return requests(Signal("s1", "execute-snapshot", json.dumps(named)), KNOWN)


@pytest.mark.parametrize(
    ("entries", "tables"),
    [
        pytest.param(["public.orders"], ["public.orders"], id="a table"),
        pytest.param([r"public\.order.*"], ["public.orders", "public.order_lines"], id="a pattern"),
        pytest.param([r".*\.orders", "public.orders"], ["public.orders", "audit.orders"], id="each once"),
        pytest.param(["audit.orders", "public.orders"], ["audit.orders", "public.orders"], id="in their order"),
        pytest.param(["PUBLIC.orders"], ["PUBLIC.orders"], id="case counts"),
        pytest.param(["public.new"], ["public.new"], id="unknown is taken literally"),
        pytest.param(["public.(", "Odd.T.x"], ["public.(", "Odd.T.x"], id="no pattern"),
        pytest.param([], [], id="nothing"),
        pytest.param(["orders"], [], id="no schema"),
    ],
)  # fmt: skip
def test_tables_are_found_by_name_or_pattern(entries: list[str], tables: list[str]) -> None:
    assert [r.name for r in asked(data_collections=entries)] == tables


def test_conditions_go_with_their_tables() -> None:
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


def test_a_surrogate_key_goes_with_all() -> None:
    assert [r.surrogate_key for r in asked(data_collections=["a.b", "a.c"], surrogate_key="k")] == [
        "k",
        "k",
    ]
    assert asked(data_collections=["a.b"], surrogate_key="")[0].surrogate_key is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("{", id="no JSON"),
        pytest.param("7", id="no object"),
        pytest.param('{"data-collections": [1]}', id="no names"),
        pytest.param('{"data-collections": {"a": 1}}', id="no list"),
        pytest.param('{"data-collections": [], "type": "blocking-ish"}', id="no such type"),
        pytest.param('{"data-collections": [], "additional-conditions": {}}', id="conditions no list"),
        pytest.param('{"data-collections": [], "additional-conditions": ["x"]}', id="condition no object"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_used_says_why(data: str) -> None:
    with pytest.raises(SignalUnusable, match=r"\w+"):
        requests(Signal("s1", "execute-snapshot", data), KNOWN)


def test_empty_data_asks_for_nothing() -> None:
    assert requests(Signal("s1", "execute-snapshot", "  "), KNOWN) == []
