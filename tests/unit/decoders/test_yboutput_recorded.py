"""yboutput's decoder on recorded output of the tests' double, in three ways that mean the same.

The double is built from published sources (tests/harness/servers/yboutput); no YugabyteDB server was run.
"""

from typing import Any

import msgspec
import pytest

from tests.harness.captures import context, told
from tests.harness.yboutput_recording import WAYS, recorded
from waltap.decode import ABSENT, UNCHANGED, Delete, Insert, Message, Relation, RelationSeen, Update
from waltap_decoders.yboutput import YbOutput

A, U = ABSENT, UNCHANGED
C = ("C",)
CHANGE, DEFAULT, FULL = "public.by_change", "public.by_default", "public.by_full"
NOTHING, EVOLVES = "public.by_nothing", "public.evolves"
INT4 = 23

EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "insert": [
        ("I", CHANGE, ("1", "a", "10", "ok")),
        ("I", CHANGE, ("2", None, None, None)),
        C,
        ("I", DEFAULT, ("1", "a", "10", "ok")),
        ("I", DEFAULT, ("2", None, None, None)),
        C,
        ("I", FULL, ("1", "a", "10", "ok")),
        ("I", FULL, ("2", None, None, None)),
        C,
        ("I", NOTHING, ("1", "a", "10", "ok")),
        C,
    ],
    "update": [
        ("U", CHANGE, ("1", U, "99", U), ()),
        C,
        ("U", CHANGE, ("1", U, None, U), ()),
        C,
        ("U", CHANGE, ("1", "é", "10", "sad"), ()),
        C,
        ("U", CHANGE, ("1", U, U, None), ()),
        C,
        ("U", DEFAULT, ("1", "a", "99", "ok"), ()),
        C,
        ("U", FULL, ("1", "a", None, "ok"), ("1", "a", "10", "ok")),
        C,
    ],
    "update_key": [
        ("D", CHANGE, ("2", A, A, A)),
        ("I", CHANGE, ("3", "moved", None, None)),
        C,
        ("D", DEFAULT, ("2", A, A, A)),
        ("I", DEFAULT, ("3", None, None, None)),
        C,
        ("D", FULL, ("2", None, None, None)),
        ("I", FULL, ("3", None, None, None)),
        C,
    ],
    "transaction": [
        ("I", CHANGE, ("4", "d", "4", "ok")),
        ("U", CHANGE, ("4", U, "1", U), ()),
        ("D", CHANGE, ("4", A, A, A)),
        C,
    ],
    "delete": [
        ("D", CHANGE, ("1", A, A, A)),
        C,
        ("D", DEFAULT, ("1", A, A, A)),
        C,
        ("D", FULL, ("1", "a", None, "ok")),
        C,
    ],
    "unsent": [],
    "evolution": [
        ("I", EVOLVES, ("1", "1", "x")),
        C,
        ("U", EVOLVES, ("1", "2", U, U), ()),
        C,
        ("U", EVOLVES, ("1", U, "6"), ()),
        C,
    ],
}


def as_text(relation: Relation, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``row`` with send format of int4, text and enum turned to text."""
    return tuple(
        value
        if not isinstance(value, bytes)
        else str(int.from_bytes(value, "big", signed=True))
        if column.type_oid == INT4
        else value.decode()
        for column, value in zip(relation.columns, row, strict=False)
    )


def in_text(message: Message) -> Message:
    if not isinstance(message, Insert | Update | Delete):
        return message
    rows = {
        name: as_text(message.relation, getattr(message, name))
        for name in ("new", "old")
        if hasattr(message, name)
    }
    return msgspec.structs.replace(message, **rows)


def decode(way: str, part: str) -> list[Message]:
    recording = recorded()[f"{way}: {part}"]
    decoder = YbOutput(context(version=recording.version_num))
    binary = YbOutput(context(version=recording.version_num, yboutput__binary=True))
    return (binary if recording.options else decoder).feed(recording.frames)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", EXPECTED)
def test_every_way_of_sending_means_the_same(way: str, part: str) -> None:
    messages = decode(way, part)
    assert told([in_text(message) for message in messages]) == EXPECTED[part]


def test_every_recording_is_looked_at() -> None:
    assert set(recorded()) == {f"{way}: {part}" for way in WAYS for part in EXPECTED}


def test_values_are_bytes_where_asked_for() -> None:
    (insert, _) = (m for m in decode("binary", "insert")[:4] if isinstance(m, Insert))
    assert insert.new == (b"\0\0\0\1", b"a", b"\0\0\0\x0a", b"ok")


def test_relations_tell_identity_key_and_types_of_users() -> None:
    seen = [m.relation for m in decode("text", "insert") if isinstance(m, RelationSeen)]
    assert [(r.table, r.identity) for r in seen] == [
        ("by_change", "c"),
        ("by_default", "d"),
        ("by_full", "f"),
        ("by_nothing", "n"),
    ]
    keys = [[column.in_identity for column in relation.columns] for relation in seen]
    assert keys == [[True, False, False, False]] * 2 + [[True] * 4, [False] * 4]
    assert {relation.columns[3].type_text for relation in seen} == {"public.mood"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", EXPECTED)
def test_frames_may_come_one_by_one(way: str, part: str) -> None:
    recording = recorded()[f"{way}: {part}"]
    decoder = YbOutput(
        context(version=recording.version_num, yboutput__binary=bool(recording.options))
    )
    found = [message for frame in recording.frames for message in decoder.feed([frame])]
    assert told(found) == told(decode(way, part))
