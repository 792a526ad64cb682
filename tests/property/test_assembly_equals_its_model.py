"""The assembler against a model: however a history is sent, the same changes come, each once."""

import tempfile
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltap.changes.decode import (
    Begin,
    Commit,
    Insert,
    Message,
    Relation,
    Skipped,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    TransactionBlock,
)
from waltap.changes.transactions import spill
from waltap.changes.transactions.assembly import TransactionAssembler
from waltap.changes.transactions.position import START, Position
from waltap.changes.transactions.transaction import TransactionPart
from waltap_testing.workload import insert_block

TABLE = Relation(oid=1, schema="s", table="t", columns=())

# A transaction is a tree: changes, left-out changes, and savepoints that are kept or rolled back.
NODES = st.recursive(
    st.one_of(st.just("change"), st.integers(1, 3)),
    lambda inner: st.tuples(st.sampled_from(["keep", "abort"]), st.lists(inner, max_size=4)),
    max_leaves=12,
)
TRANSACTIONS = st.lists(
    st.tuples(st.booleans(), st.lists(NODES, max_size=6)), min_size=1, max_size=4
)


def joined(messages: list[Message], draw) -> list[Message]:
    """Return ``messages`` with some neighbouring inserts as blocks."""
    found: list[Message] = []
    for (kind, xid), each in groupby(messages, lambda each: (type(each), _xid(each))):
        run = list(each)
        while run and kind is Insert:
            size = draw(st.integers(1, len(run)))
            some, run = run[:size], run[size:]
            if draw(st.booleans()):
                block = insert_block(TABLE, some)
                block.xid = xid
                some = [block]
            found += some
        found += run
    return found


def _xid(message: Message) -> int:
    return message.xid if isinstance(message, Insert) else 0


def whole(messages: list[Message], draw) -> list[Message]:
    """Return ``messages`` with some transactions of one insert as blocks."""
    found: list[Message] = []
    at = 0
    while at < len(messages):
        some: list[Message] = []
        while [*map(type, messages[at : at + 3])] == [Begin, Insert, Commit]:
            some += messages[at : at + 3]
            at += 3
        if some and draw(st.booleans()):
            begins, inserts, commits = some[::3], some[1::3], some[2::3]
            numbers = partial(np.array, dtype="u8")
            some = [
                TransactionBlock(
                    insert_block(TABLE, inserts),
                    (numbers([b.lsn for b in begins]), numbers([c.lsn for c in commits])),
                    xids=numbers([b.xid for b in begins]),
                    commit_lsns=numbers([c.commit_lsn for c in commits]),
                    end_lsns=numbers([c.end_lsn for c in commits]),
                    commit_ts=numbers([c.commit_ts for c in commits]),
                )
            ]
        found += some
        found += messages[at : at + 1]
        at += 1
    return found


class History:
    """A history of transactions as it was meant, and as a server sends it."""

    def __init__(self, transactions, draw) -> None:
        self.wanted: list[tuple[int, list[int]]] = []
        self.commits: list[tuple[int, ...]] = []
        self.messages: list[Message] = []
        self._serial = 0
        streams = []
        for number, (streamed, nodes) in enumerate(transactions):
            xid = (number + 1) * 1000
            kept: list[int] = []
            events = []
            self._walk(nodes, xid, [xid], kept, events, alive=True)
            (streams if streamed else self.wanted).append((xid, kept, events))
        queue = [(xid, kept, events, True) for xid, kept, events in streams]
        queue += [(xid, kept, events, False) for xid, kept, events in self.wanted]
        self.wanted = []
        end = 100
        opened: set[int] = set()
        waiting = {xid: list(events) for xid, _, events, streamed in queue if streamed}
        order = draw(st.permutations(queue))
        for xid, kept, events, streamed in order:
            for other in list(waiting):
                if other == xid or draw(st.booleans()):
                    some = (
                        len(waiting[other])
                        if other == xid
                        else draw(st.integers(0, len(waiting[other])))
                    )
                    self._stream(other, waiting[other][:some], opened)
                    del waiting[other][:some]
            lsn = end if draw(st.booleans()) else end + 99  # nothing need be between commits
            end = lsn + 1
            if streamed:
                if xid not in opened:
                    self._stream(xid, [], opened, force=True)
                del waiting[xid]
                self.messages.append(StreamCommit(lsn, xid, lsn, end, lsn + 7))
            else:
                rows = [event for event in events if event[0] == "row" and event[3]]
                self.messages.append(Begin(lsn - 50, xid, lsn, lsn + 7))
                self.messages += [self._row(event, 0) for event in rows]
                self.messages.append(Commit(end, lsn, end, lsn + 7, xid))
            self.wanted.append((xid, kept))
            self.commits.append((xid, lsn, end, lsn + 7))
        self.messages = joined(whole(self.messages, draw), draw)

    def _walk(self, nodes, xid, ids, kept, events, *, alive) -> None:
        for node in nodes:
            if node == "change":
                self._serial += 1
                events.append(("row", xid, self._serial, alive))
                if alive:
                    kept.append(self._serial)
            elif isinstance(node, int):
                events.append(("row", xid, -node, alive))
            else:
                fate, inner = node
                ids.append(ids[-1] + 1)
                subxid = ids[-1]
                self._walk(inner, subxid, ids, kept, events, alive=alive and fate == "keep")
                if fate == "abort":  # the server shows each child's abort, too, the child's first
                    below = [other for other in ids if other > subxid]
                    events += [("abort", other, 0, False) for other in [*below, subxid]]

    def _stream(self, xid, events, opened, *, force=False) -> None:
        """Send events in segments; an abort stands between segments."""
        if not events and not force:
            return
        inside = False
        for event in [*events, None] if events else [None]:
            if event is not None and event[0] == "row":
                if not inside:
                    self.messages.append(StreamStart(1, xid, xid not in opened))
                    opened.add(xid)
                    inside = True
                self.messages.append(self._row(event, event[1]))
                continue
            if not inside and (force or event is not None) and xid not in opened:
                self.messages.append(StreamStart(1, xid, True))
                opened.add(xid)
                inside = True
            if inside:
                self.messages.append(StreamStop(1))
                inside = False
            if event is not None:
                self.messages.append(StreamAbort(1, xid, event[1]))

    @staticmethod
    def _row(event, xid) -> Message:
        _, _, serial, _ = event
        return Skipped(-serial, xid) if serial < 0 else Insert(TABLE, serial, (str(serial),), xid)


def deliver(
    messages: list[Message], sizes: list[int], resume: Position, memory: int
) -> list[TransactionPart]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "LEAST_ROWS", 1)
        patch.setattr(spill, "MANY_CHANGES", 2)
        subject = TransactionAssembler(resume, 42, Path(folder), memory)
        parts, at, turn = [], 0, 0
        while at < len(messages):
            size = sizes[turn % len(sizes)]
            parts += subject.feed(messages[at : at + size])
            at, turn = at + size, turn + 1
            assert subject.idle is (not subject.backlog and not in_a_transaction(messages[:at]))
        while subject.backlog:
            parts += subject.feed(())
        assert subject.idle
        subject.close()
        assert list(Path(folder).iterdir()) == []
    return parts


def in_a_transaction(messages: list[Message]) -> bool:
    """Return whether one is open that is sent whole; those in progress hold no position."""
    ends = [type(each) for each in messages if isinstance(each, Begin | Commit)]
    return ends[-1:] == [Begin]


def rows(parts: list[TransactionPart]) -> list[tuple[int, int]]:
    return [(part.xid, change.lsn) for part in parts for change in part.changes]


@settings(max_examples=150)
@given(
    TRANSACTIONS, st.data(), st.lists(st.integers(1, 9), min_size=1), st.sampled_from([0, 99999])
)
def test_every_kept_change_comes_once_in_commit_order_also_after_any_part(
    transactions, data, sizes, memory
):
    history = History(transactions, data.draw)
    parts = deliver(history.messages, sizes, START, memory)
    assert rows(parts) == [(xid, serial) for xid, kept in history.wanted for serial in kept]
    assert [(p.xid, p.commit_lsn, p.end_lsn, p.commit_ts) for p in parts if p.complete] == (
        history.commits
    )
    xids = [xid for xid, _ in history.wanted]
    assert [part.xid for part in parts if part.starts] == xids
    index, previous = 0, 42
    for part in parts:
        assert (part.first_index, part.previous_end_lsn) == (index, previous)
        index += part.wire_count
        if part.complete:
            index, previous = 0, part.end_lsn

    cut = data.draw(st.integers(0, len(parts)))
    position = START
    for part in parts[:cut]:
        position = part.position(position)
    rest = deliver(history.messages, [data.draw(st.integers(1, 9))], position, memory)
    assert rows(parts[:cut]) + rows(rest) == rows(parts)
    assert [part.xid for part in parts[:cut] + rest if part.starts] == xids
