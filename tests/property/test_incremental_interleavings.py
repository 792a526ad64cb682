"""Incremental snapshots against a model, over random interleavings of writers, visibility, stream, chunks
and restarts: every row of the table arrives, and no event is older than one delivered before for its key.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from waltap.changes.decode import Insert
from waltap.changes.decode.message import Change, Delete, OldTuple, Update
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, MissingValue, Tuple
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart
from waltap.errors import ConnectionLost
from waltap.ports.signals.signal import Signal, SnapshotRequest
from waltap.ports.snapshot.chunk_source import ChunkSize, NamedTable, ReadChunk
from waltap.ports.snapshot.incremental import IncrementalSnapshots
from waltap.ports.snapshot.incremental_state import IncrementalState
from waltap.ports.snapshot.later_changes import LaterChanges

KEYS = "abcdefghij"
CHUNK_ROWS = 3
STEP = 10
"""Between the LSNs of two transactions."""


def relation(name: str, *columns: str) -> Relation:
    return Relation(
        oid=1, schema="public", table=name, primary_key=columns[:1],
        columns=tuple(Column(name=n, type_oid=25, in_identity=n == columns[0]) for n in columns),
    )  # fmt: skip


T, SIGNALS = relation("t", "id", "version", "large"), relation("signals", "id", "type", "data")
NAMES = [T, *(relation(f"t{n}", "id", "version", "large") for n in range(1, 41))]
"""The table under each of its names."""
Rows = dict[str, Tuple]
REQUEST = SnapshotRequest(schema="public", table="t", signal="s", oid=T.oid)


class Server:
    """A server's WAL, and what readers see of it: a commit may stream before it is visible.

    ``visible`` and ``streamed`` count transactions of ``wal``; ``states`` has the table behind each.
    """

    def __init__(self, *, positions: bool) -> None:
        self.positions = positions
        self.wal: list[list[Change]] = []
        self.visible = self.streamed = 0
        self.version = 0
        start = {key: self._row(key) for key in KEYS[::2]}
        self.states: list[Rows] = [start]
        self.names = [T]

    def _row(self, key: str) -> Tuple:
        self.version += 1
        return key, f"{self.version:06}", f"large {self.version}"

    def commit(self, changes: list[Change], rows: Rows) -> None:
        self.wal.append(changes)
        self.states.append(rows)
        self.names.append(self.names[-1])

    def rename(self, *, locked: bool) -> None:
        if not locked:
            self.commit([], self.states[-1])
            self.names[-1] = NAMES[NAMES.index(self.names[-1]) + 1]

    def write(self, operations: Sequence[tuple[str, str, str]]) -> None:
        """Run operations (what, key, other key) as one transaction."""
        rows, changes, lsn = dict(self.states[-1]), [], self.end + 1
        table = self.names[-1]
        for what, key, other in operations:
            if key not in rows:
                rows[key] = self._row(key)
                changes.append(Insert(table, lsn, rows[key]))
            elif what == "delete":
                del rows[key]
                changes.append(Delete(table, lsn, (key, ABSENT, ABSENT), OldTuple.KEY))
            elif what == "move" and other not in rows:
                del rows[key]
                rows[other] = self._row(other)
                old = (key, ABSENT, ABSENT)
                changes.append(Update(table, lsn, rows[other], old, OldTuple.KEY))
            elif (
                what == "carry" and other not in rows
            ):  # the large value is not touched, and not sent
                _, version, _ = self._row(other)
                rows[other] = other, version, rows.pop(key)[2]
                old = (key, ABSENT, ABSENT)
                new = other, version, UNCHANGED
                changes.append(Update(table, lsn, new, old, OldTuple.KEY))
            else:
                _, version, _ = self._row(key)
                new = key, version, rows[key][2]
                rows[key] = new
                changes.append(Update(table, lsn, (key, version, UNCHANGED)))
        self.commit(changes, rows)

    @property
    def end(self) -> int:
        return len(self.wal) * STEP

    def parts(self, count: int) -> list[TransactionPart]:
        """Stream the next ``count`` transactions."""
        found = []
        for number in range(self.streamed, min(self.streamed + count, len(self.wal))):
            at = number * STEP
            found.append(
                TransactionPart(
                    xid=number + 1,
                    begin_lsn=at + 1,
                    commit_lsn=at + 5,
                    end_lsn=at + STEP,
                    commit_ts=0,
                    changes=self.wal[number],
                )
            )
        self.streamed += len(found)
        return found

    # --- what reads chunks --------------------------------------------------------------------

    def known_tables(self) -> Mapping[tuple[str, str], Sequence[NamedTable]]:
        return {("public", "t"): [NamedTable("public", "t", T.oid)]}

    def table(self, _request: SnapshotRequest) -> Relation | None:
        return self.names[self.visible]

    def maximum(self, _request: SnapshotRequest, _relation: Relation, _key: object) -> ReadChunk:
        return self._read(self.visible, sorted(self.states[self.visible])[-1:])

    def chunk(
        self,
        _request: SnapshotRequest,
        _relation: Relation,
        _key: tuple[int, ...],
        *,
        after: Tuple | None,
        maximum: Tuple,
        limit: int,
        order: Sequence[int] = (),
    ) -> ReadChunk:
        assert not order
        seen, low = self.visible, "" if after is None else str(after[0])
        keys = [key for key in sorted(self.states[seen]) if low < key <= str(maximum[0])]
        return self._read(seen, keys[:limit])

    def rows(
        self,
        _request: SnapshotRequest,
        _relation: Relation,
        _key: tuple[int, ...],
        keys: Sequence[Tuple],
    ) -> ReadChunk:
        rows = self.states[self.visible]
        return self._read(self.visible, [str(key) for (key,) in keys if key in rows])

    def _read(self, seen: int, keys: list[str]) -> ReadChunk:
        rows = [self.states[seen][key] for key in keys]
        return ReadChunk(rows, lambda xid: xid <= seen, seen * STEP if self.positions else None)

    def watermark(self, identifier: str, kind: str, data: str) -> bool:
        self.commit([Insert(SIGNALS, self.end + 1, (identifier, kind, data))], self.states[-1])
        return True

    def advance_wal(self) -> None:
        pass


class Reading:
    """A snapshot of the table as it is visible now; the WAL may have commits that are not. Of the last ``unsure``
    visible ones and of all others the source does not know, as a standby."""

    def __init__(self, server: Server, unsure: int) -> None:
        self._seen, self._rows = server.visible, list(server.states[server.visible].values())
        self._unsure = unsure
        self.relation = server.names[server.visible]
        self.relations = {self.relation.name: self.relation}
        self.request = msgspec.structs.replace(REQUEST, table=self.relation.table)
        self.until: int | None = server.end

    def saw(self, xid: int, _commit_lsn: int) -> bool | None:
        if self._unsure:
            return True if xid <= self._seen - self._unsure else None
        return xid <= self._seen

    def pieces(self) -> Iterator[SnapshotRows]:
        half = len(self._rows) // 2
        for rows, complete in ((self._rows[:half], False), (self._rows[half:], True)):
            yield SnapshotRows(
                relation=self.relation,
                rows=rows,
                ts=0,
                lsn=0,
                xid=None,
                kind="blocking",
                complete=complete,
            )

    def close(self) -> None:
        pass


class Consumer:
    """Applies every event; ``rows`` is what it has."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.newest: dict[str, str] = {}
        self.name = 0

    def take(self, parts: Sequence[TransactionPart | SnapshotRows]) -> None:
        for part in parts:
            if isinstance(part, SnapshotRows):
                name = NAMES.index(part.relation)
                assert name >= self.name, "under a name that the table had before"
                for row in part.rows:
                    self._put(row)
                continue
            for change in part.changes:
                if not isinstance(change, Insert | Update | Delete) or change.relation is SIGNALS:
                    continue
                self.name = NAMES.index(change.relation)
                if isinstance(change, Delete):
                    self.rows.pop(str(change.old[0]), None)
                else:
                    before = None
                    if isinstance(change, Update) and change.old:
                        before = self.rows.pop(str(change.old[0]), None)
                    self._put(change.new, before)

    def _put(self, row: Tuple, before: Tuple | None = None) -> None:
        """Take a row; what it lacks is as in ``before``, the row of the key that it had."""
        key, version, newest = str(row[0]), str(row[1]), self.newest.get(str(row[0]), "")
        assert version >= newest, "older than what was delivered before"
        self.newest[key] = version
        known = before or self.rows.get(key, row)
        self.rows[key] = tuple(
            old if isinstance(new, MissingValue) else new
            for new, old in zip(row, known, strict=True)
        )


def snapshots_of(server: Server, state: IncrementalState, **more: Any) -> IncrementalSnapshots:
    identifiers = itertools.count(len(server.wal))
    more.setdefault("read", lambda _signal, _action: "nothing is asked for by a row")
    return IncrementalSnapshots(
        server,
        None if server.positions else ("public", "signals"),
        writes=not server.positions,
        keys=lambda _relation: (),
        identifying=lambda _relation: (0,),
        clock=lambda: 0.0,
        match_clock=lambda: 0.0,
        identifier=lambda: f"w{next(identifiers)}",
        match_s=1.0,
        size=ChunkSize(CHUNK_ROWS, 0),
        obeyed=False,
        state=state,
        **more,
    )


OPERATIONS = st.tuples(
    st.sampled_from(["update", "delete", "move", "carry"]),
    st.sampled_from(KEYS),
    st.sampled_from(KEYS),
)
STEPS = st.one_of(
    st.tuples(st.just("write"), st.lists(OPERATIONS, min_size=1, max_size=3)),
    st.tuples(st.just("see"), st.integers(1, 4)),
    st.tuples(st.just("stream"), st.integers(1, 4)),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("block"), st.integers(0, 3)),
    st.tuples(st.just("rename"), st.none()),
)


@given(steps=st.lists(STEPS, max_size=40), positions=st.booleans(), first_writes=st.integers(0, 3))
@example(
    steps=[("write", [("carry", "e", "b"), ("update", "e", "a")]), ("block", 0)],
    positions=True,
    first_writes=0,
)
@example(
    steps=[
        ("write", [("update", "a", "a")]),
        ("see", 1),
        ("stream", 1),
        ("write", [("delete", "c", "a"), ("carry", "a", "c"), ("update", "a", "a")]),
        ("block", 0),
    ],
    positions=True,
    first_writes=0,
)
@example(
    steps=[
        ("see", 1),
        ("stream", 2),
        ("see", 1),
        ("restart", None),
        ("see", 2),
        ("write", [("delete", "c", "a"), ("carry", "a", "c")]),
        ("stream", 3),
        ("restart", None),
    ],
    positions=False,
    first_writes=0,
)
@settings(max_examples=400)
def test_every_row_arrives_and_nothing_is_older_than_what_was_delivered(
    steps, positions, first_writes
):
    server, consumer = Server(positions=positions), Consumer()
    for number in range(first_writes):
        server.write([("update", KEYS[number], "z")])

    def stream(count: int) -> None:
        nonlocal later
        before, rest = later.split(server.parts(count)) if later else (server.parts(count), [])
        consumer.take(snapshots.process(before, 0))
        if later and not later.usable:
            later = None
        if later and (later.due or server.streamed == len(server.wal)):
            rows = [later.apply(piece) for piece in later.reading.pieces()]
            at = server.streamed - len(rest)
            found = [row for piece in rows for row in piece.rows]
            assert sorted(found) == sorted(server.states[at].values()), "the table at this place"
            consumer.take(rows)
            snapshots.end_blocking([])
            later = None
        consumer.take(snapshots.process(rest, 0))
        if server.streamed == len(server.wal):
            consumer.take(snapshots.advance_to(server.end, None, 0))
        if snapshots.waiting:
            snapshots.resume(0)

    later: LaterChanges | None = None
    snapshots = snapshots_of(server, IncrementalState(queue=[REQUEST]))
    snapshots.resume(0)
    for step, argument in steps:
        if step == "write":
            server.write(argument)  # type: ignore[arg-type]
        elif step == "see":
            server.visible = min(server.visible + int(str(argument)), len(server.wal))
        elif step == "stream":
            stream(int(str(argument)))
        elif step == "rename":
            server.rename(locked=later is not None)
        elif step == "block":
            named = server.names[server.visible] is server.names[-1]
            if named and all(xid <= server.visible for xid in snapshots.recent):
                reading = Reading(server, int(str(argument)))
                later = LaterChanges(reading, [reading.request], lambda _relation: (0,))
        else:
            later = None
            # A restart takes longer than a commit. Without a request no state is stored.
            if not (snapshots.state.queue or snapshots.state.awaiting_stream):
                server.visible = max(server.visible, server.streamed)
            snapshots = snapshots_of(server, IncrementalState.restored(snapshots.stored))
            snapshots.resume(0)
    for _ in range(200):
        state = snapshots.state
        if not (state.queue or state.awaiting_stream) and server.streamed == len(server.wal):
            break
        server.visible = len(server.wal)
        stream(3)
        if snapshots.state.queue and snapshots.until is None and positions:
            snapshots.resume(0)
    assert not (snapshots.state.queue or snapshots.state.awaiting_stream), "it comes to its end"
    assert not snapshots.state.chunks
    assert consumer.rows == server.states[-1]


class WideServer(Server):
    """A server with ``count`` tables without rows; it counts the looks at one."""

    def __init__(self, count: int, *key: str) -> None:
        super().__init__(positions=True)
        self.states, self.count, self.looks = [{}], count, 0
        self.relation = msgspec.structs.replace(T, primary_key=key)

    def known_tables(self) -> Mapping[tuple[str, str], Sequence[NamedTable]]:
        named = [NamedTable("public", f"t{n}", n) for n in range(self.count)]
        return {("public", table.table): [table] for table in named}

    def table(self, request: SnapshotRequest) -> Relation | None:
        self.looks += 1
        return msgspec.structs.replace(self.relation, table=request.table)


ALL = {"data-collections": ["public.t.*"], "type": "incremental"}


def asked(
    server: Server, state: IncrementalState, **more: bool
) -> tuple[IncrementalSnapshots, str]:
    snapshots = snapshots_of(server, state, read=lambda signal, action: action(signal, ALL))
    return snapshots, snapshots.take(Signal("s", "execute-snapshot", ""), 0, **more)


def test_the_stream_waits_for_looks_at_few_tables_only():
    for count, explain, looks in (20, True, 20), (20, False, 0), (21, True, 0):
        server = WideServer(count)
        snapshots, answer = asked(server, IncrementalState(paused=True), explain=explain)
        assert len(snapshots.state.queue) == count
        assert (server.looks, bool(answer)) == (looks, looks > 0)


@pytest.mark.parametrize("positions", [True, False])
def test_the_stream_goes_on_between_tables_without_rows(positions):
    server = WideServer(50, "id")
    server.positions = positions
    snapshots, answer = asked(server, IncrementalState())
    assert (answer, server.looks, snapshots.waiting) == ("", 20, True)
    snapshots.resume(0)
    assert (server.looks, len(snapshots.state.queue), snapshots.waiting) == (40, 10, True)
    snapshots.resume(0)
    assert (server.looks, snapshots.state.queue, snapshots.waiting) == (50, [], False)


@pytest.mark.parametrize("identifier", ["s", "another"])
def test_tables_that_are_asked_for_after_a_stop_are_read(identifier):
    """The stop takes effect at the next chunk, which is behind the pause."""
    server = WideServer(2, "id")
    snapshots, _ = asked(server, IncrementalState(paused=True))
    for kind in ("stop-snapshot", "execute-snapshot", "resume-snapshot"):
        snapshots.take(Signal(identifier, kind, ""), 0)
    assert (server.looks, snapshots.state.queue) == (2, [])


def test_a_signal_that_fails_does_not_stop_the_reading_of_others():
    def read(signal: Signal, action: Any) -> Any:
        if signal.kind == "stop-snapshot":
            raise ConnectionLost("the catalogue does not answer")
        return action(signal, ALL)

    server = WideServer(2, "id")
    snapshots = snapshots_of(server, IncrementalState(), read=read)
    snapshots.take(Signal("s", "execute-snapshot", ""), 0, reads=False)
    with pytest.raises(ConnectionLost):
        snapshots.take(Signal("s", "stop-snapshot", ""), 0, reads=False)
    snapshots.resume(0)
    assert (server.looks, snapshots.state.queue) == (2, [])
