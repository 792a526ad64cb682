"""The terminal sink: one readable line per change, and nothing that drives a terminal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.json_events import table

from waltap.base.environment import colours
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.message import Delete, Insert, LogicalMessage, OldTuple, Truncate, Update
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, Heartbeat, SnapshotRows, TransactionPart
from waltap.ports.sink.sink import SinkContext
from waltap.ports.sink.terminal import TerminalProperties, TerminalSink

TEXT = 25
ORDERS = table("orders", "note text", "id int4", "total numeric")
Part = TransactionPart | SnapshotRows | Heartbeat


def part(*changes) -> TransactionPart:
    return TransactionPart(
        xid=1, begin_lsn=1, commit_lsn=2, commit_ts=1_700_000_000_123_456, changes=list(changes)
    )


def batch(*parts: Part, **more: Any) -> Batch:
    return Batch(parts=list(parts), position=Position(9), events=1, **more)


@pytest.fixture
def shown(capfd) -> Callable[..., list[str]]:
    """Return what gives the lines for parts, without the clock."""

    def show(*parts: Part, context: SinkContext | None = None, **properties: Any) -> list[str]:
        given = TerminalProperties.model_validate(properties)
        sink = TerminalSink(given, context or SinkContext(pipeline="p", state_dir=Path()))
        sink.open()
        sink.write(batch(*parts))
        assert sink.flush() == Position(9)
        sink.close()
        lines = capfd.readouterr().out.splitlines()
        assert all(line[2] == line[5] == ":" and line[8] == "." for line in lines)
        return [line[13:] for line in lines]

    return show


LINES = [
    (Insert(ORDERS, 1, ("a", "7", "1.50")), "INSERT   public.orders  id=7 note='a' total=1.50"),
    (
        Insert(ORDERS, 1, (None, "7", b"\x01\xff")),
        "INSERT   public.orders  id=7 note=NULL total=\\x01ff",
    ),
    (
        Update(ORDERS, 1, ("b", "7", "1"), ("a", "7", "1"), OldTuple.FULL),
        "UPDATE   public.orders  id=7 note='a' → 'b' total=1",
    ),
    (Update(ORDERS, 1, ("b", "8", UNCHANGED)), "UPDATE   public.orders  id=8 note='b'"),
    (
        Update(ORDERS, 1, (UNCHANGED, "7", "2"), ("long", "7", "1"), OldTuple.FULL),
        "UPDATE   public.orders  id=7 note='long' total=1 → 2",
    ),
    (
        Update(ORDERS, 1, (None, "7", "2"), ("x", "7", "2"), OldTuple.FULL),
        "UPDATE   public.orders  id=7 note='x' → NULL total=2",
    ),
    (Delete(ORDERS, 1, (ABSENT, "7", ABSENT), OldTuple.KEY), "DELETE   public.orders  id=7"),
    (Delete(ORDERS, 1, (), OldTuple.NONE), "DELETE   public.orders "),
    (Truncate((ORDERS, ORDERS), 1), "TRUNCATE public.orders, public.orders"),
    (LogicalMessage(1, True, "p", b"h\xc3\xa9\x1b[2J"), "MESSAGE  p  hé\\x1b[2J"),
]


def test_a_change_is_one_line(shown):
    for change, line in LINES:
        assert shown(part(change)) == [line]


def test_values_cannot_drive_the_terminal_or_break_the_line(shown):
    evil = Relation(
        oid=2, schema="s\x1b[0m", table="t", columns=(Column(name="c\n", type_oid=TEXT),)
    )
    (line,) = shown(part(Insert(evil, 1, ("\x1b]0;x\x07\r\n‮",))))
    assert line.isprintable()
    assert "\\x1b" in line
    (line,) = shown(part(Insert(ORDERS, 1, ("x" * 100, "7", "1"))), width=10)
    assert "note='xxxxxxxxx…'" in line


def test_rows_of_a_snapshot_are_shown_too_and_heartbeats_are_not(shown):
    rows = SnapshotRows(
        relation=ORDERS, rows=[("a", "1", "1"), ("b", "2", "2")], ts=0, lsn=1, xid=1
    )
    assert shown(rows, Heartbeat(ts=1)) == [
        "READ     public.orders  id=1 note='a' total=1",
        "READ     public.orders  id=2 note='b' total=2",
    ]


def context(**properties: object) -> SinkContext:
    capture = CaptureRules(CaptureProperties.model_validate({"topic.prefix": "p", **properties}))
    return SinkContext(pipeline="p", state_dir=Path(), capture=capture)


def test_columns_and_operations_that_the_profile_leaves_out_or_masks_are_not_shown(shown):
    chosen = context(
        **{
            "column.exclude.list": r"public\.orders\.total",
            "column_mask": {"column.mask.with.5.chars": r"public\.orders\.note"},
            "skipped.operations": "t,d",
        }
    )
    changes = [Insert(ORDERS, 1, ("geheim", "7", "1.50")), Truncate((ORDERS,), 1)]
    (line,) = shown(part(*changes), context=chosen)
    assert line == "INSERT   public.orders  id=7 note='*****'"
    (line,) = shown(part(*changes), context=context(**{"skipped.operations": "t,d"}))
    assert line == "INSERT   public.orders  id=7 note='geheim' total=1.50"


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    for unwanted, term, found in (("", "xterm", True), ("1", "xterm", False), ("", "dumb", False)):
        monkeypatch.setenv("NO_COLOR", unwanted)
        monkeypatch.setenv("TERM", term)
        assert colours() is found


def test_an_update_is_compared_with_the_row_that_was_shown_last(shown):
    """The server sends no old row, or its key alone: what was shown shows the rest."""
    lines = shown(
        part(
            Insert(ORDERS, 1, ("a", "7", "1")),
            Update(ORDERS, 1, ("b", "7", "1")),
            Update(ORDERS, 1, (UNCHANGED, "7", "2")),
            Update(ORDERS, 1, ("b", "8", "2"), (ABSENT, "7", ABSENT), OldTuple.KEY),
            Update(ORDERS, 1, ("c", "8", "2")),
            Delete(ORDERS, 1, (ABSENT, "8", ABSENT), OldTuple.KEY),
            Update(ORDERS, 1, ("d", "8", "3")),
            Update(ORDERS, 1, ("d", "9", "3"), (ABSENT, "1", ABSENT), OldTuple.KEY),
        ),
    )
    assert [line.partition("orders  ")[2] for line in lines] == [
        "id=7 note='a' total=1",
        "id=7 note='a' → 'b' total=1",
        "id=7 note='b' total=1 → 2",
        "id=7 → 8 note='b' total=2",
        "id=8 note='b' → 'c' total=2",
        "id=8",
        "id=8 note='d' total=3",
        "id=1 → 9 note='d' total=3",
    ]
