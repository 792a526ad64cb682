"""Incremental snapshots: tables are read in chunks while changes stream.

Sans-IO: the database is behind `ChunkSource` (chunk_source.py), and the clock is an argument.

Theory of operation. Signals queue tables. For the table at the head, the engine reads the next chunk by
key, writes a pair of watermarks, and continues to stream. Changes that are not in the chunk drop its rows
(window.py). At the high watermark the remaining rows are delivered, just before it, and the next chunk is
read. The state (queue, last delivered key, greatest key) is part of the offset. After a restart the chunk
that was not delivered is read again.

A change can stream before a reader of the table can see it: a commit is in the WAL first and visible
later. With synchronous replication the delay may be long. So a chunk is valid only if it saw every
transaction that had streamed before; otherwise it is read again a little later.

A row whose key changes may be in no chunk. If its update lacks values, it is read later (`MovedRows`).

If nothing may be written (``read.only``, no signal table), a position replaces the high watermark:
everything visible in the chunk had committed before it. The rows are delivered when the stream reaches it,
by a later transaction or by a keepalive of an idle server.

A signal is data from outside and would be read again at every start, so no signal ends the pipeline. An
unreadable signal is ignored. A request that the database refuses ends (a bad condition, a table without
SELECT permission). Each case is logged as a warning.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import msgspec

from waltap.base.text import cut
from waltap.changes.decode.message import Change, Delete, Insert, InsertBlock
from waltap.changes.decode.relation import Relation, schema_and_table
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart, TransactionRun
from waltap.errors import DecodeError, RetryVerdict, SourceError
from waltap.ports.signals.signal import (
    Action,
    NamePatterns,
    Signal,
    SignalTableUnusable,
    SignalUnusable,
    SnapshotRequest,
    names,
    requests,
)
from waltap.ports.snapshot.chunk_source import ChunkSize, ChunkSource, ReadChunk
from waltap.ports.snapshot.incremental_state import IncrementalState, StreamPoint
from waltap.ports.snapshot.requests import (
    NO_POSITION,
    NOT_CAPTURED,
    accepted_of,
    as_streamed,
    key_text,
    listed,
    refusals_text,
    refused,
    some,
    text_of,
    without_key,
)
from waltap.ports.snapshot.window import MovedRows, SnapshotWindow

log = logging.getLogger(__name__)

# Number of the last transactions whose visibility is checked.
RECENT = 4096

# Tables that are looked at before the stream continues: each look takes queries.
TABLES_AT_ONCE = 20


class ChunkReader:
    """Read the next chunk after the one in ``state``.

    ``keys`` and ``clock`` are as for `IncrementalSnapshots`.
    """

    def __init__(
        self,
        source: ChunkSource,
        state: IncrementalState,
        moved: MovedRows,
        size: ChunkSize,
        keys: Callable[[Relation], tuple[int, ...]],
        clock: Callable[[], float],
    ) -> None:
        self._source, self._state, self._moved, self.size = source, state, moved, size
        self._keys, self._clock = keys, clock
        # Transactions that have streamed and that no chunk has seen. `IncrementalSnapshots` adds them.
        self.recent: deque[int] = deque(state.recent, maxlen=RECENT)
        # Whether the last chunk was not valid.
        self.waiting = False

    def key(self, request: SnapshotRequest, relation: Relation) -> tuple[int, ...]:
        """Return the columns that order the chunks, () for no key."""
        indexes = {column.name: index for index, column in enumerate(relation.columns)}
        if request.surrogate_key:
            return (indexes[request.surrogate_key],) if request.surrogate_key in indexes else ()
        return tuple(indexes[name] for name in relation.primary_key or ()) or self._keys(relation)

    def next(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> ReadChunk | None:
        """Return the next chunk, without rows at the table's end.

        None means an empty table, or a chunk that is not valid yet (`waiting`).
        """
        self.waiting = False
        columns = [relation.columns[i].name for i in key]
        begun = self._state.head
        if begun.oid and (begun.oid, begun.columns) != (relation.oid, columns):
            # Another table has the name, or the table has another key.
            self._state.forget_head()
            begun = self._state.head
        if begun.maximum is None and not self._bounded(request, relation, key):
            return None
        found = self._read_moved(request, relation, exhausted=False)
        if self.waiting or found is not None:
            return found
        started = self._clock()
        chunk = self._source.chunk(
            request, relation, key,
            after=None if begun.last_key is None else tuple(begun.last_key),
            maximum=tuple(self._state.head.maximum or ()),
            limit=self.size.rows,
            order=self._state.head.order,
        )  # fmt: skip
        # Only the query of a chunk counts, not the queries for moved rows and the greatest key.
        self.size.record_duration(self._clock() - started)
        if self._counted(chunk) is None:
            return None
        if not chunk.rows:
            chunk = self._read_moved(request, relation, exhausted=True) or chunk
        return None if self.waiting else chunk

    def _read_moved(
        self, request: SnapshotRequest, relation: Relation, *, exhausted: bool
    ) -> ReadChunk | None:
        """Return moved rows, None for no rows or none yet."""
        identity = self._moved.identifying(relation)
        while keys := self._moved.next(exhausted=exhausted):
            # The replica identity may have changed since a key was recorded; such a key finds no row.
            fit = [tuple(key) for key in keys if len(key) == len(identity)]
            chunk = self._source.rows(request, relation, identity, fit) if fit else None
            if chunk is not None and (self._counted(chunk) is None or chunk.rows):
                return None if self.waiting else chunk
            self._moved.mark_absent()
        return None

    def _counted(self, chunk: ReadChunk) -> ReadChunk | None:
        """Return ``chunk`` if it saw everything that has streamed.

        Otherwise the engine must read it again later.
        """
        saw = chunk.saw
        self.waiting = chunk.locked or (saw is not None and not all(map(saw, self.recent)))
        if saw is not None and not self.waiting:
            self.recent.clear()  # a visible transaction stays visible
        return None if self.waiting else chunk

    def _bounded(self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]) -> bool:
        """Query the greatest key, and return whether there is a valid one."""
        # After an outdated maximum, a row that moved beyond it would be in no chunk and not be recorded.
        found = self._counted(self._source.maximum(request, relation, key))
        if found is None or not found.rows:
            return False
        self._state.bounded(
            [text_of(found.rows[0][index]) for index in key],
            found.order,
            oid=relation.oid,
            columns=[relation.columns[index].name for index in key],
        )
        return True


OPEN, CLOSE = "snapshot-window-open", "snapshot-window-close"

Read = Callable[[Signal, Callable[[Signal, dict[str, object]], Action] | None], "Action | str"]


class IncrementalSnapshots:
    """Watch the stream for signals and watermarks, and insert chunks.

    ``read`` returns the action of a signal, or the reason for ignoring it; its argument is the function
    for signals about snapshots. ``keys`` returns the key of a relation's events, for tables without a
    primary key. ``identifying`` returns the columns by which the replica identity knows a row.

    ``match_s`` limits the seconds of ``match_clock``, the processor's time, for matching a signal's
    patterns; ``clock`` times chunks. ``size`` is the size of chunks. ``obeyed`` means that rows of the
    signal table are signals and not only watermarks. ``notice`` receives the notifications of a
    snapshot: kind, signal id, members, and the ``rows`` read of a table.
    ``identifier`` returns a new id for a row of the signal table. ``undecided`` returns the GIDs of
    delivered transactions without a commit. ``suspended`` returns whether no chunk may be read now, which
    is not a pause that an operator asked for.
    """

    def __init__(
        self,
        source: ChunkSource,
        signal_table: tuple[str, str] | None,
        *,
        writes: bool = True,
        read: Read,
        keys: Callable[[Relation], tuple[int, ...]],
        identifying: Callable[[Relation], tuple[int, ...]],
        clock: Callable[[], float],
        match_clock: Callable[[], float],
        identifier: Callable[[], str],
        match_s: float,
        size: ChunkSize,
        delete_closes: bool = False,
        obeyed: bool = True,
        notice: Callable[..., None] = lambda _kind, _identifier, **_data: None,
        state: IncrementalState | None = None,
        undecided: Callable[[], list[str]] = list,
        suspended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._undecided, self._held_by = undecided, ""
        # No chunk may be read now: the engine must call `resume` from time to time.
        self._must_wait, self.suspended = suspended, False
        self._source, self._signal_table, self._writes = source, signal_table, writes
        self._until: int | None = None
        self._identifying = identifying
        self._match_clock, self._match_s = match_clock, match_s
        self._identifier = identifier
        # Cache of `stored`; every change of the state must reset it.
        self._stored: dict[str, object] | None = None
        self._read_signal = read
        self._delete_closes, self._obeyed, self._notice = delete_closes, obeyed, notice
        self._scanned = 0
        # Whether the next chunk could not be read yet: the engine must call `resume` soon.
        self.waiting = False
        # The signal in the stream that requested the blocking snapshot.
        self.point: StreamPoint | None = None
        self.state = state or IncrementalState()
        self.state.read_on(self.state.awaiting_stream)
        self._streamed_by = ""
        self._streamed_at: int | None = None
        # Explains what the signal that is taken does not read.
        self._explained: Callable[[], str] | None = None
        # Watermarks that are not written yet: id, type and data.
        self._marks: list[tuple[str, str, str]] = []
        self._moved = MovedRows(self.state, identifying)
        self._reader = ChunkReader(source, self.state, self._moved, size, keys, clock)
        self._window: SnapshotWindow | None = None
        self._at_end, self._reads = False, True
        self._saw: Callable[[int], bool] | None = None
        self._chunk_end: list[str | None] | None = None
        self._keeps_name: Callable[[], bool] | None = None

    @property
    def stored(self) -> dict[str, object]:
        """Return the state in the form of the offset."""
        if self._stored is None:
            state = self.state
            pending = state.queue or state.blocking or state.awaiting_stream
            state.recent = list(self._reader.recent) if pending else []
            self._stored = msgspec.to_builtins(self.state)
        return self._stored

    @property
    def until(self) -> int | None:
        """Return the LSN for delivering the present chunk.

        None means that there is no chunk, or that a watermark ends it.
        """
        return self._streamed_at if self._window is None else self._until

    @property
    def holds_chunk(self) -> bool:
        """Return whether a chunk was read and waits for its place in the stream."""
        return self._window is not None

    def advance_wal(self) -> None:
        """Make the stream reach `until` soon. Raises: SourceError."""
        self._source.advance_wal()

    def advance_to(self, lsn: int, previous_end_lsn: int | None, now: int) -> list[SnapshotRows]:
        """Return the rows to deliver here.

        Every transaction that had committed before ``lsn`` has streamed. ``previous_end_lsn`` is as in
        `TransactionPart`.
        """
        until = self.until
        if until is None or lsn < until:
            return []
        self._stored = None
        if self._window is None:
            self._all_streamed()
            self.resume(now)
            return []
        return self._closed(now).pieces(until, previous_end_lsn, now)

    def resume(self, now: int) -> None:
        """Resume after a restart or a wait; ``now`` is as for `process`."""
        self._stored = None
        if self._marks:
            self._write_watermarks()
        elif self.state.queue and self._window is None and not self.state.paused:
            self._next_chunk(now)

    def process(
        self, parts: Sequence[TransactionPart], now: int
    ) -> Sequence[TransactionPart | SnapshotRows]:
        """Return ``parts`` with chunks between them.

        ``now`` is in µs since 1970 UTC. A signal for a blocking snapshot adds its tables to
        ``state.blocking``.
        """
        out: list[TransactionPart | SnapshotRows] = []
        at = 0
        while at < len(parts):
            passing = parts[at : self._unconcerned(parts, at)]
            at += len(passing)
            self._passed(passing)
            if len(passing) == len(parts):
                return passing
            out += passing
            if at == len(parts):
                break
            part, at = parts[at], at + 1
            if self.until is not None:
                out += self.advance_to(part.commit_lsn, part.previous_end_lsn, now)
            self._passed([part])
            if not self._concerns(part):
                out.append(part)
                continue
            out += self._part(part, now)
        return out

    def _unconcerned(self, parts: Sequence[TransactionPart], start: int) -> int:
        """Return the end of the parts from ``start`` on that pass unchanged.

        While a chunk waits, each part must be looked at.
        """
        if self._window is not None or self._streamed_at is not None or self.state.chunks:
            return start
        end, table = len(parts), self._signal_table
        if table is None:
            return end
        if isinstance(parts, TransactionRun):
            relations = {parts.block.inserts.relation}
        else:
            relations = {
                change.relation
                for part in (parts[start:] if start else parts)
                for change in _of_tables(part)
                if isinstance(change, Insert | Delete)
            }
        if not any(map(self._is_signal_table, relations)):
            return end
        return next((n for n in range(start, end) if self._concerns(parts[n])), end)

    def _passed(self, parts: Sequence[TransactionPart]) -> None:
        """Record transactions that later chunks must have seen."""
        recent, state = self._reader.recent, self.state
        pending = state.queue or state.blocking or state.awaiting_stream
        if isinstance(parts, TransactionRun):
            recent.extend(parts.block.xids.tolist())
            if pending:
                self._stored = None
            return
        for part in parts:
            if part.xid is not None and (part.starts or part.complete):
                recent.append(part.xid)
                if pending:
                    self._stored = None

    @property
    def recent(self) -> Sequence[int]:
        """Return the last transactions that a new snapshot must contain."""
        return self._reader.recent

    def end_blocking(self, delivered: Sequence[SnapshotRequest]) -> None:
        """Record that the rows of a blocking snapshot were delivered."""
        self._stored, self.point = None, None
        self.state.blocking = [each for each in self.state.blocking if each not in delivered]

    def _concerns(self, part: TransactionPart) -> bool:
        if self._window is not None or self._moved.watching:
            return bool(part.changes)
        if self._signal_table is None:
            return False
        return any(self._is_signal(change) for change in _of_tables(part))

    def _is_signal(self, change: Change) -> bool:
        return isinstance(change, Insert | Delete) and self._is_signal_table(change.relation)

    def _is_signal_table(self, relation: Relation) -> bool:
        return (relation.schema, relation.table) == self._signal_table

    def _part(self, part: TransactionPart, now: int) -> list[TransactionPart | SnapshotRows]:
        """Return ``part`` with chunks in it."""
        self._stored = None
        out: list[TransactionPart | SnapshotRows] = []
        rest, watched = part, self._window if self._newer(part) else None
        cut = 0
        for index, change in enumerate(part.changes):
            if self._is_signal(change):
                closed = self._signalled(change, now)
                pieces = []
                if closed is not None:
                    pieces = closed.pieces(change.lsn, part.previous_end_lsn, now)
                if pieces and index > cut:
                    before, rest = rest.split(index - cut)
                    out.append(before)
                    cut = index
                out += pieces
                if self.state.blocking and self.point is None:
                    self.point = StreamPoint(change.lsn, part.xid, part.previous_end_lsn)
                watched = self._window if self._newer(part) else None
                continue
            self._moved.see(change)
            if watched is not None:
                watched.see(change)
        return [*out, rest]

    def _newer(self, part: TransactionPart) -> bool:
        """Return whether a part's changes are newer than the present chunk."""
        return not (part.xid and self._saw and self._saw(part.xid))

    # --- signals ------------------------------------------------------------------------------

    def _signalled(self, change: Change, now: int) -> SnapshotWindow | None:
        """Process a signal row, and return the window to deliver before it."""
        if isinstance(change, Delete):
            return self._close_window(self._texts(change)[0], now) if self._delete_closes else None
        assert isinstance(change, Insert)
        signal = Signal(*self._texts(change))
        if signal.kind == CLOSE:
            return self._close_window(signal.identifier, now)
        # Visibility replaces the low watermark (window.py).
        if signal.kind != OPEN and self._obeyed:
            self.take(signal, now)
        return None

    def reads(self, name: str) -> bool:
        """Return False for a table without a key to read it by. Raises: SourceError."""
        schema, table = schema_and_table(name) or ("", "")
        return not self._refusal(SnapshotRequest(schema=schema, table=table, signal=""))

    def take(self, signal: Signal, now: int, *, explain: bool = False, reads: bool = True) -> str:
        """Process a signal of any channel.

        Return the reason for ignoring it, or "". With ``explain`` that is also the reason for ignoring
        a part (`PartlyIgnored`), of at most `TABLES_AT_ONCE` tables. Without ``reads`` the next `resume`
        reads: the request must be stored first. Raises: SourceError; then the signal waits.
        """
        self._stored, self._explained, self._reads = None, None, reads
        try:
            found = self._read_signal(signal, self._action)
            ignored = found if isinstance(found, str) else found(now) or ""
        finally:
            self._reads = True
        if not reads:
            self.state.acted = [*self.state.acted, signal.fingerprint]
        return ignored or (self._explained() if explain and self._explained is not None else "")

    def forget_signals(self, repeated: Collection[str]) -> None:
        """Forget all signals but these fingerprints."""
        self._stored = None
        self.state.acted = [each for each in self.state.acted if each in repeated]

    def _texts(self, change: Insert | Delete) -> tuple[str, str, str]:
        """Return id, type and data of a signal, "" for missing ones."""
        row = change.new if isinstance(change, Insert) else change.old
        texts = [value if isinstance(value, str) else "" for value in row[:3]]
        identifier, kind, data = (*texts, "", "", "")[:3]
        return identifier, kind, data

    def _close_window(self, identifier: str, now: int) -> SnapshotWindow | None:
        """Process a high watermark, and return the window to deliver."""
        window = self._window
        if window is not None and identifier.startswith(window.identifier):
            return self._closed(now)
        if self._streamed_by and identifier.startswith(self._streamed_by):
            self._all_streamed()
            self.resume(now)
        return None

    def _all_streamed(self) -> None:
        self._streamed_by, self._streamed_at = "", None
        self.state.all_streamed()

    def _action(self, signal: Signal, arguments: dict[str, object]) -> Action:
        """Return the action of a signal without performing it.

        Raises: SignalUnusable.
        """
        if signal.kind == "execute-snapshot":
            known = self._source.known_tables()
            readable = {each.table_id for tables in known.values() for each in tables}
            streamed = as_streamed(requests(signal, arguments, known, self._patterns()), known)
            if not any((request.schema, request.table) in readable for request in streamed):
                text = some(streamed) or ", ".join(names(arguments)[:3]) or "the signal names none"
                raise SignalUnusable(f"{NOT_CAPTURED}: {text}")
            self._explained = partial(self._refusals, streamed, readable)
            if any(request.blocking for request in streamed):
                return lambda _now: self._block(streamed, readable)
            return lambda now: self._queue(streamed, readable, now)
        if signal.kind == "stop-snapshot":
            stopped = self._to_stop(arguments)
            return lambda now: self._halt(stopped, now)
        if signal.kind == "pause-snapshot":
            if not self.state.queue:  # as in Debezium
                raise SignalUnusable("no incremental snapshot is under way")
            return lambda _now: self._pause(paused=True)
        return self._unpause

    def _patterns(self) -> NamePatterns:
        return NamePatterns(self._match_clock, self._match_s)

    def _block(self, wanted: list[SnapshotRequest], known: set[tuple[str, str]]) -> None:
        state = self.state
        others = [r for r in wanted if (r.schema, r.table) != self._signal_table]  # as in Debezium
        state.blocking = state.blocking + accepted_of(others, state.blocking, known)

    def _queue(self, wanted: list[SnapshotRequest], known: set[tuple[str, str]], now: int) -> None:
        state = self.state
        idle = not state.queue
        if accepted := state.add(wanted, known):
            log.info("incremental snapshot: %s will be read", some(accepted))
            self._notice("STARTED", accepted[0].signal, data_collections=listed(state.queue))
        if idle and not state.paused:
            self._next_chunk(now)

    def _refusals(self, wanted: list[SnapshotRequest], known: set[tuple[str, str]]) -> str:
        """Return which tables of a signal are not read, and why."""
        reasons = [(r, "" if (r.schema, r.table) in known else NOT_CAPTURED) for r in wanted]
        read = [request for request, why in reasons if not (why or request.blocking)]
        if len(read) <= TABLES_AT_ONCE:  # else only the log names them
            with suppress(SourceError, DecodeError):  # the stream notices such an error, too
                reasons += [(request, self._refusal(request)) for request in read]
        return refusals_text(reasons)

    def _refusal(self, request: SnapshotRequest) -> str:
        """Return why a table cannot be read, "" if it can. Raises: SourceError."""
        try:
            relation = self._source.table(request)
        except (SourceError, DecodeError) as error:
            if error.retry is not RetryVerdict.NEVER:
                raise
            return error.problem
        if relation is None:
            return NOT_CAPTURED
        return "" if self._reader.key(request, relation) else without_key(request)

    def _pause(self, *, paused: bool) -> None:
        if self.state.queue and self.state.paused != paused:
            self._notice_pause("PAUSED" if paused else "RESUMED")
        self.state.paused = paused

    def _notice_pause(self, kind: str) -> None:
        queue = self.state.queue
        self._notice(kind, queue[0].signal, data_collections=listed(queue))

    def _unpause(self, now: int) -> None:
        if self.state.paused:
            self._pause(paused=False)
            self.resume(now)

    def _to_stop(self, arguments: dict[str, object]) -> set[SnapshotRequest]:
        """Return the queued requests that a stop names, or all.

        Raises: SignalUnusable.
        """
        queue, patterns = self.state.queue, self._patterns()
        entries = names(arguments)
        if not entries:
            return set(queue)
        stopped: set[SnapshotRequest] = set()
        for entry in entries:
            fits = set(patterns.matching(entry, {request.name for request in queue}))
            literal = schema_and_table(entry)
            found = {r for r in queue if r.name in fits or (r.schema, r.table) == literal}
            if not found and not patterns.readable(entry):
                raise SignalUnusable(
                    f"{entry[:100]!r} is not a pattern and names no table in the queue"
                )
            stopped |= found
        return stopped

    def _halt(self, stopped: set[SnapshotRequest], now: int) -> None:
        """Stop tables before the next chunk is read."""
        # As in Debezium, a chunk that was read is delivered.
        self.state.stopping = [*self.state.stopping, *stopped]
        self.resume(now)

    def _stop(self) -> None:
        """Remove the stopped tables from the queue."""
        state, stopped = self.state, set(self.state.stopping)
        state.stopping = []
        halted = [request for request in state.queue if request in stopped]
        if not halted:
            return
        signal = state.queue[0].signal
        if state.queue[0] in stopped:
            self._reader.size.restart()
            self._scanned = 0
        state.drop(halted)
        # Debezium sends both notifications; the second one is without the signal.
        if not state.queue:
            self._notice("COMPLETED", signal, observed=False)
            signal = ""
        self._notice("ABORTED", signal, data_collections=listed(halted))

    def drop_chunk(self) -> None:
        """Read the present chunk again when `resume` may."""
        if self._window is not None:
            self._window, self._until, self._marks, self.waiting = None, None, [], True

    # --- chunks -------------------------------------------------------------------------------

    def _closed(self, now: int) -> SnapshotWindow:
        """Return the window, and read the next chunk."""
        window = self._window
        assert window is not None
        if self._keeps_name is not None and not self._keeps_name():
            window.renamed = True
        self._window = self._until = None
        if not window.renamed:
            self.state.advance_to(self._chunk_end)
            self._moved.mark_delivered()
        self._all_streamed()
        if not self.state.paused:
            self._next_chunk(now)
        return window

    def _next_chunk(self, now: int) -> None:
        """Read the next chunk with rows, in table order.

        It gets one pair of watermarks. Without such a chunk, the pair ends the snapshot.
        """
        state, self.waiting = self.state, not self._reads
        if self.waiting:
            return
        self._stop()
        if not state.queue:
            self.suspended = False
            return
        before, self.suspended = self.suspended, self._must_wait()
        if self.suspended != before:
            self._notice_pause("PAUSED" if self.suspended else "RESUMED")
        if self.suspended:
            return
        identifier, ended = self._identifier(), 0
        while state.queue and not self._read_head(identifier):
            if self.waiting:
                return
            reported = state.head.end_reported
            done = state.finish_head(waits=self._at_end)
            if not (state.queue or reported):
                self._notice("COMPLETED", done.signal)
            ended += 1
            if state.queue and ended == TABLES_AT_ONCE:
                # Earlier watermarks are not about the tables that have just ended.
                self._streamed_by, self._marks, self.waiting = "", [], True
                return
        if not self._writes:
            return
        self._streamed_by = identifier
        opened = datetime.fromtimestamp(now / 1_000_000, UTC).isoformat().replace("+00:00", "Z")
        times = {"openWindowTimestamp": opened}
        self._marks = [(f"{identifier}-open", OPEN, json.dumps(times))]
        if self._delete_closes:
            self._marks.append((f"{identifier}-open", "", ""))
        else:
            times["closeWindowTimestamp"] = opened
            self._marks.append((f"{identifier}-close", CLOSE, json.dumps(times)))
        self._write_watermarks()

    def _write_watermarks(self) -> None:
        """Write the watermarks around the chunk, or wait while the signal table is locked.

        The chunk stays valid until then. Raises: SourceError.
        """
        try:
            while self._marks and self._source.watermark(*self._marks[0]):
                del self._marks[0]
        except SourceError as error:
            if error.retry is not RetryVerdict.NEVER:
                raise
            state = self.state
            # The signal would be read again at every start, so this error must not end the pipeline.
            log.warning(
                "incremental snapshots need a signal table that waltap may write to: %s; given up: %s",
                error.problem,
                ", ".join(request.name for request in state.queue) or "nothing",
                extra={"error_code": SignalTableUnusable.code},
            )
            self._window, self._marks, self._streamed_by = None, [], ""
            state.stopping = list(state.queue)
            self._stop()
            state.chunks, state.awaiting_stream = {}, []
        self.waiting = bool(self._marks)

    def held(self) -> bool:
        """Return whether transactions delivered at PREPARE are undecided."""
        # A reader would see their tables in the state before them.
        held_by = ", ".join(map(repr, self._undecided()))
        if held_by and held_by != self._held_by:
            log.warning(
                "a requested snapshot waits until prepared transactions are decided whose rows were "
                "delivered at PREPARE: %s",
                cut(held_by),
            )
        self._held_by = held_by
        return bool(held_by)

    def _read_head(self, identifier: str) -> bool:
        """Read the next chunk of the queue's head.

        Return False if there is none, or none yet (`waiting`).
        """
        request, reported = self.state.queue[0], self.state.head.end_reported
        self._at_end = False
        self.waiting = self.held()
        if self.waiting:
            return False
        try:
            relation = self._source.table(request)
            if relation is not None and relation.table_id != (request.schema, request.table):
                request = self.state.rename_head(*relation.table_id)
            key = () if relation is None else self._reader.key(request, relation)
            chunk = self._reader.next(request, relation, key) if relation and key else None
        except (SourceError, DecodeError) as error:
            if error.retry is not RetryVerdict.NEVER:
                raise
            refused([request], error.problem)
            return self._ended(request, "SQL_EXCEPTION")
        self.waiting = relation is not None and bool(key) and self._reader.waiting
        if self.waiting:
            return False
        if relation is None:
            refused([request], NOT_CAPTURED)
            return self._ended(request, "UNKNOWN_SCHEMA")
        if not key:
            refused([request], without_key(request))
            return self._ended(request, "NO_PRIMARY_KEY")
        if chunk is None or not chunk.rows:
            if not reported:
                log.info("incremental snapshot: %s is read to its end", cut(request.name))
            self._at_end = chunk is not None
            self._streamed_at = chunk.until if chunk is not None else self._streamed_at
            return self._ended(request, "EMPTY" if chunk is None else "SUCCEEDED")
        if not self._writes and chunk.until is None:
            refused([request], NO_POSITION)
            return self._ended(request, "SKIPPED")
        last = self.state.head.last_key
        end = last if self._moved.reading else [text_of(chunk.rows[-1][index]) for index in key]
        # The same key again would make an endless loop.
        if end == last and not self._moved.reading:
            refused([request], "a chunk ended where the one before it did: it would have no end")
            return self._ended(request, "SKIPPED")
        self._chunk_end = end
        self._window = SnapshotWindow(identifier, relation, chunk.rows, self._identifying(relation))
        self._saw, self._until = chunk.saw, chunk.until
        self._keeps_name = chunk.keeps_name
        self._scanned += 0 if self._moved.reading else len(chunk.rows)
        if reported:
            return True
        self._notice(
            "IN_PROGRESS",
            request.signal,
            data_collections=listed(self.state.queue),
            current_collection_in_progress=request.name,
            maximum_key=key_text(self.state.head.maximum),
            last_processed_key=key_text(self._chunk_end),
            rows=self._scanned,
        )
        return True

    def _ended(self, request: SnapshotRequest, status: str) -> bool:
        """Report the end of a table, and return False for `_read_head`."""
        self._reader.size.restart()
        if self.state.head.end_reported:
            return False
        scanned, self._scanned = self._scanned, 0
        self._notice(
            "TABLE_SCAN_COMPLETED",
            request.signal,
            data_collections=listed(self.state.queue),
            scanned_collection=request.name,
            total_rows_scanned=str(scanned),
            status=status,
            rows=scanned,
        )
        return False


def _of_tables(part: TransactionPart) -> Sequence[Change]:
    """Return changes of ``part``, at least one of each table."""
    changes = part.changes
    return changes[:1] if isinstance(changes, InsertBlock) else changes
