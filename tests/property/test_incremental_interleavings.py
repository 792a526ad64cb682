"""Incremental snapshots against a model, over random interleavings of writers, visibility, stream, chunks
and restarts: every row of the table arrives, and no event is older than one delivered before for its key.
"""

import itertools
from collections.abc import Mapping, Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from waltap.changes.decode import Insert
from waltap.changes.decode.message import Change, Delete, OldTuple, Update
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, MissingValue, Tuple
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.chunk_source import ChunkSize, ReadChunk
from waltap.ports.snapshot.incremental import IncrementalSnapshots
from waltap.ports.snapshot.incremental_state import IncrementalState

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
Rows = dict[str, Tuple]


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

    def _row(self, key: str) -> Tuple:
        self.version += 1
        return key, f"{self.version:06}", f"large {self.version}"

    def commit(self, changes: list[Change], rows: Rows) -> None:
        self.wal.append(changes)
        self.states.append(rows)

    def write(self, operations: Sequence[tuple[str, str, str]]) -> None:
        """Run operations (what, key, other key) as one transaction."""
        rows, changes, lsn = dict(self.states[-1]), [], self.end + 1
        for what, key, other in operations:
            if key not in rows:
                rows[key] = self._row(key)
                changes.append(Insert(T, lsn, rows[key]))
            elif what == "delete":
                del rows[key]
                changes.append(Delete(T, lsn, (key, ABSENT, ABSENT), OldTuple.KEY))
            elif what == "move" and other not in rows:
                del rows[key]
                rows[other] = self._row(other)
                old = (key, ABSENT, ABSENT)
                changes.append(Update(T, lsn, rows[other], old, OldTuple.KEY))
            elif (
                what == "carry" and other not in rows
            ):  # the large value is not touched, and not sent
                _, version, _ = self._row(other)
                rows[other] = other, version, rows.pop(key)[2]
                old = (key, ABSENT, ABSENT)
                new = other, version, UNCHANGED
                changes.append(Update(T, lsn, new, old, OldTuple.KEY))
            else:
                _, version, _ = self._row(key)
                new = key, version, rows[key][2]
                rows[key] = new
                changes.append(Update(T, lsn, (key, version, UNCHANGED)))
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

    def known_tables(self) -> Mapping[tuple[str, str], Sequence[tuple[str, str]]]:
        return {("public", "t"): [("public", "t")]}

    def table(self, _request: SnapshotRequest) -> Relation | None:
        return T

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

    def watermark(self, identifier: str, kind: str, data: str) -> None:
        self.commit([Insert(SIGNALS, self.end + 1, (identifier, kind, data))], self.states[-1])

    def advance_wal(self) -> None:
        pass


class Consumer:
    """Applies every event; ``rows`` is what it has. Transactions up to ``read`` stream behind a blocking
    snapshot that saw them: they alone may be older than what was delivered."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.read = 0
        self.newest: dict[str, str] = {}
        self.unknown: set[str] = set()
        """Keys whose large value was not sent and is gone: a transaction that the blocking snapshot saw removed the
        row that was read, and moved one there whose former key has another row by now (docs/howto/signals.md)."""

    def take(self, parts: Sequence[TransactionPart | SnapshotRows]) -> None:
        for part in parts:
            if isinstance(part, SnapshotRows):
                for row in part.rows:
                    self._put(row)
                continue
            for change in part.changes:
                if isinstance(change, Delete):
                    self.rows.pop(str(change.old[0]), None)
                elif isinstance(change, Insert | Update) and change.relation is T:
                    key, former, before = str(change.new[0]), "", None
                    seen = (part.xid or 0) <= self.read
                    if isinstance(change, Update) and change.old:
                        former = str(change.old[0])
                        before = self.rows.pop(former, None)
                        if former in self.unknown or (seen and key not in self.rows):
                            self.unknown.add(key)
                    if seen:  # what was read is newer than the row of the key that it had
                        before = self.rows.get(key, before)
                    self._put(change.new, before, seen=seen)

    def _put(self, row: Tuple, before: Tuple | None = None, *, seen: bool = False) -> None:
        """Take a row; what it lacks is as in ``before``, the row of the key that it had."""
        key, version, newest = str(row[0]), str(row[1]), self.newest.get(str(row[0]), "")
        assert version >= newest or seen, "older than what was delivered before"
        self.newest[key] = max(version, newest)
        if not any(isinstance(value, MissingValue) for value in row):
            self.unknown.discard(key)
        known = before or self.rows.get(key, row)
        self.rows[key] = tuple(
            old if isinstance(new, MissingValue) else new
            for new, old in zip(row, known, strict=True)
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
    st.tuples(st.just("block"), st.none()),
)


@given(steps=st.lists(STEPS, max_size=40), positions=st.booleans(), first_writes=st.integers(0, 3))
@example(
    steps=[("write", [("carry", "e", "b"), ("update", "e", "a")]), ("block", None)],
    positions=True,
    first_writes=0,
)
@example(
    steps=[
        ("write", [("update", "a", "a")]),
        ("see", 1),
        ("stream", 1),
        ("write", [("delete", "c", "a"), ("carry", "a", "c"), ("update", "a", "a")]),
        ("block", None),
    ],
    positions=True,
    first_writes=0,
)
@settings(max_examples=400)
def test_every_row_arrives_and_nothing_is_older_than_what_was_delivered(
    steps: list[tuple[str, object]], positions: bool, first_writes: int
) -> None:
    server, consumer = Server(positions=positions), Consumer()
    for number in range(first_writes):
        server.write([("update", KEYS[number], "z")])
    identifiers = itertools.count()

    def made(state: IncrementalState) -> IncrementalSnapshots:
        return IncrementalSnapshots(
            server,
            None if positions else ("public", "signals"),
            writes=not positions,
            read=lambda _signal, _data: "nothing is asked for by a row",
            keys=lambda _relation: (),
            identifying=lambda _relation: (0,),
            clock=lambda: 0.0,
            match_clock=lambda: 0.0,
            identifier=lambda: f"w{next(identifiers)}",
            match_s=1.0,
            size=ChunkSize(CHUNK_ROWS, 0),
            obeyed=False,
            state=state,
        )

    def stream(count: int) -> None:
        out, rest = snapshots.process(server.parts(count), 0)
        assert not rest
        consumer.take(out)
        if server.streamed == len(server.wal):
            consumer.take(snapshots.advance_to(server.end, None, 0))
        if snapshots.waiting:
            snapshots.resume(0)

    snapshots = made(
        IncrementalState(queue=[SnapshotRequest(schema="public", table="t", signal="s")])
    )
    snapshots.resume(0)
    for step, argument in steps:
        if step == "write":
            server.write(argument)  # type: ignore[arg-type]
        elif step == "see":
            server.visible = min(server.visible + int(str(argument)), len(server.wal))
        elif step == "stream":
            stream(int(str(argument)))
        elif step == "block":  # the table is read at once, and nothing of the stream is left out
            server.visible = consumer.read = len(server.wal)
            rows = list(server.states[-1].values())
            consumer.take(
                [SnapshotRows(relation=T, rows=rows, ts=0, lsn=0, xid=None, kind="blocking")]
            )
            snapshots.read_at_once(0)
        else:
            snapshots = made(IncrementalState.restored(snapshots.stored))
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
    assert consumer.rows.keys() == server.states[-1].keys()
    for key, row in server.states[-1].items():
        compared = slice(2 if key in consumer.unknown else 3)
        assert consumer.rows[key][compared] == row[compared]
