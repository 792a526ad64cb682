"""What every decoder makes of one history, and what each refuses: one table, in the words of each plugin."""

from typing import Any

import msgspec
import pytest
from tests.harness.captures import reported
from tests.harness.decoder_wires import LSN, WIRES, Known, frames, table

from waltap.changes.decode import (
    ABSENT,
    UNCHANGED,
    Message,
    OldTuple,
    Relation,
    RelationSeen,
    Skipped,
)
from waltap.errors import DecodeError

T = "public.t"
COLUMNS = (("id", 25, True), ("v", 25, False))
B, C = ("B",), ("C",)
PLUGINS = pytest.mark.parametrize("plugin", WIRES)
WITH_BEGIN = ["pgoutput", "wal2json 2", "decoderbufs"]
"""Plugins whose transactions have a message for their begin and their end."""


def relation(identity: str = "d") -> Relation:
    keyed = "without" not in identity
    return table([(name, oid, keyed and key) for name, oid, key in COLUMNS], identity[0])


def decode(plugin: str, made: Relation, steps: list[Any], **more: Any) -> list[Message]:
    return WIRES[plugin][0](catalogue=Known(made), **more).feed(frames(plugin, made, steps))


HISTORIES: dict[str, tuple[str, list[Any], list[OldTuple]]] = {
    "new rows": ("d", [("I", ("1", "a")), ("I", ("", None))], []),
    "no old row": ("d", [("U", ("1", "x"), ()), ("U", ("1", None), ())], [OldTuple.NONE] * 2),
    "a value that is not sent": ("d", [("U", ("1", UNCHANGED), ())], [OldTuple.NONE]),
    "old keys": ("d", [("U", ("2", "x"), ("1", ABSENT)), ("D", ("2", ABSENT))], [OldTuple.KEY] * 2),
    "whole old rows": ("f", [("U", ("1", "x"), ("1", "w")), ("D", ("1", "x"))], [OldTuple.FULL] * 2),
    "the same whole row": ("f", [("U", ("1", "x"), ("1", "x"))], [OldTuple.FULL]),
    "null in a whole old row": ("f without key", [("U", ("2", "x"), ("1", None)), ("D", ("2", None))], [OldTuple.FULL] * 2),
    "a whole row of nulls": ("f without key", [("U", ("1", None), (None, None)), ("D", (None, "x"))], [OldTuple.FULL] * 2),
    "long and odd texts": ("d", [("I", ("é" * 65536, 'q"\\\x01\n😀,[{')), ("I", ("x" * 256, "t\x01n"))], []),
}  # fmt: skip


@PLUGINS
@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_is_reported_as_it_was(plugin: str, name: str) -> None:
    """Twice: the first of a kind is read with care, those after it by a compiled reader."""
    identity, steps, kinds = HISTORIES[name]
    messages = decode(plugin, relation(identity), [B, *steps, *steps, C])
    changes = [(kind, T, *rows) for kind, *rows in steps]
    assert reported(messages) == [*changes, *changes, ("C",)]
    assert [m.old_kind for m in messages if hasattr(m, "old_kind")] == kinds * 2
    assert len({id(m.relation) for m in messages if hasattr(m, "relation")}) == 1


@PLUGINS
def test_rows_of_tables_that_are_not_captured_are_counted_and_not_read(plugin: str) -> None:
    steps = [B, ("I", ("1", "a")), ("D", ("1", ABSENT)), C]
    messages = decode(plugin, relation(), steps, captures=lambda _schema, _table: False)
    assert [type(m).__name__ for m in messages if not isinstance(m, RelationSeen)] == [
        "Begin", "Skipped", "Commit",
    ]  # fmt: skip
    assert [m.count for m in messages if isinstance(m, Skipped)] == [2]


@PLUGINS
def test_a_relation_is_described_once(plugin: str) -> None:
    asked: list[Relation] = []

    def describe(given: Relation) -> Relation:
        asked.append(given)
        return msgspec.structs.replace(given, primary_key=("id",))

    steps = [B, ("I", ("1", "a")), ("U", ("1", UNCHANGED), ()), ("D", ("1", ABSENT)), C]
    found = [
        m.relation
        for m in decode(plugin, relation(), steps, describe=describe)
        if hasattr(m, "relation")
    ]
    assert {(id(each), each.primary_key) for each in found} == {(id(found[0]), ("id",))}
    assert len(asked) == 1


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("lacks", [UNCHANGED, None])
@PLUGINS
def test_a_new_row_without_a_value_that_identifies_it_is_refused(
    plugin: str, lacks: object, rows: int
) -> None:
    """Other values may be left out: a row filter makes an INSERT of an UPDATE."""
    known = [("I", ("a", None if "1" in plugin or "chunks" in plugin else UNCHANGED))] * rows
    assert len(reported(decode(plugin, relation(), [B, *known, C]))) == rows + 1
    with pytest.raises(DecodeError, match="which identifies the new row"):
        decode(plugin, relation(), [B, *known, ("I", (lacks, "b")), C])


def test_an_insert_that_lacks_a_value_is_the_update_that_it_was() -> None:
    """An update moved the row into a row filter: PostgreSQL sends an INSERT, whose large values may be missing."""
    found = decode("pgoutput", relation(), [B, ("I", ("1", UNCHANGED)), ("I", ("2", "b")), C])
    assert reported(found) == [("U", T, ("1", UNCHANGED), ()), ("I", T, ("2", "b")), ("C",)]


@pytest.mark.parametrize("plugin", WITH_BEGIN)
@pytest.mark.parametrize(
    "steps",
    [[C], [("I", ("1", "a"))], [B, B], [B, C, C], [B, C, ("D", ("1", ABSENT))]],
    ids=["commit alone", "row alone", "begin twice", "commit twice", "row behind"],
)
def test_messages_out_of_order_are_refused(plugin: str, steps: list[Any]) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(plugin, relation(), steps)
    assert caught.value.lsn == LSN
