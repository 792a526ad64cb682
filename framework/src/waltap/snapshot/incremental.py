"""Incremental snapshots: tables are read in chunks while the stream goes on. Sans-IO: the database is
behind `ChunkSource` (chunk_source.py), the clock is an argument.

Theory of operation. Signals queue tables. For the table at the head: read the next chunk by key, write
a pair of watermarks, and go on streaming. Changes that stream by and are not in the chunk drop rows of
it (window.py); when the high watermark streams by, the rows left are delivered just before it, and the
next chunk is read. The state (queue, last key delivered, greatest key) is part of the offset: after a
restart the chunk that was not delivered is read again.

A change can stream before a reader of the table can see it: a commit is in the WAL first and visible
after, by a moment or, with synchronous replication, by much more. So a chunk counts only if it saw
every transaction that had streamed before; else it is read again a little later.

A row whose key moves can pass the chunks by; what its update leaves out is read later (moved_rows.py).

Where nothing may be written (``read.only``, no signal table) a position takes the place of the high
watermark: whatever the chunk can see had committed before it. The rows are delivered where the stream
is there, by a transaction behind it or, in silence, by the server's word that it has read so far.

A signal is data from outside and would be read again at every start, so none ends the pipeline. What
cannot be read as a signal is left out; what the database refuses (a condition that is no SQL, a table
that may not be read) ends the request; each with a warning.
"""

import json
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from waltap.decode.message import Change, Delete, Insert
from waltap.decode.relation import Relation
from waltap.decode.relation_name import schema_and_table
from waltap.decode.tuple_image import Tuple
from waltap.errors import DecodeError, RetryVerdict, SourceError
from waltap.signals.errors import (
    SignalTableUnusable,
    SignalUnusable,
)
from waltap.signals.name_patterns import NamePatterns
from waltap.signals.signal import (
    Action,
    Signal,
    SnapshotRequest,
    names,
    requests,
)
from waltap.snapshot.chunk_reader import ChunkReader, text_of
from waltap.snapshot.chunk_size import ChunkSize
from waltap.snapshot.chunk_source import ChunkSource
from waltap.snapshot.incremental_state import IncrementalState
from waltap.snapshot.moved_rows import MovedRows
from waltap.snapshot.requests import accepted_of, as_streamed, cut, key_text, listed, refused, some
from waltap.snapshot.window import SnapshotWindow, TextOf
from waltap.transactions.transaction import SnapshotRows, TransactionPart

__all__ = ["IncrementalSnapshots", "StreamPoint"]

log = logging.getLogger(__name__)

NO_POSITION = (
    "the source has no WAL position that tells where the rows belong: signal.data.collection must name a "
    "table for watermarks, and read.only be false"
)
OPEN, CLOSE = "snapshot-window-open", "snapshot-window-close"
NO_KEY = (
    "the table has no key to read it by; message.key.columns may name one for all, "
    "a signal's surrogate-key one for itself"
)


Read = Callable[[Signal, Callable[[Signal, dict[str, object]], Action] | None], "Action | str"]


class StreamPoint(msgspec.Struct, frozen=True):
    """Where in the stream a signal stands: the members of its part, and the LSN of its row."""

    lsn: int
    xid: int | None
    previous_end_lsn: int | None


class IncrementalSnapshots:
    """Watches the stream for signals and watermarks, and puts chunks into it.

    ``read`` says what a signal asks to be done, or why nothing is; it is given what understands signals
    about snapshots. ``keys`` gives the key of events of a relation, by which a table without primary key
    is read, ``identifying`` the columns by which its replica identity knows a row. ``text_of`` as for
    `SnapshotWindow`. The patterns of a signal are not matched longer than ``match_s`` seconds of
    ``clock``. ``size`` is that of chunks.
    ``obeyed``: rows of the table are signals, and not watermarks alone. ``notice`` is told (kind, id of
    the signal, members, and ``rows`` read of a table) what becomes of a snapshot, as notifications say
    it. ``identifier`` gives a new one for a row of the signal table. ``undecided`` gives the GIDs of
    transactions that were delivered and are not committed: a chunk would show their tables as before.
    ``waiting``: the next chunk could not be read yet; call `resume` soon. ``point``: the signal that
    asked for the blocking snapshot which is to be read, where it came by the stream.
    """

    def __init__(
        self,
        source: ChunkSource,
        signal_table: tuple[str, str] | None,
        *,
        writes: bool = True,
        read: Read,
        text_of: TextOf,
        keys: Callable[[Relation], tuple[int, ...]],
        identifying: Callable[[Relation], tuple[int, ...]],
        clock: Callable[[], float],
        identifier: Callable[[], str],
        match_s: float,
        size: ChunkSize,
        delete_closes: bool = False,
        obeyed: bool = True,
        notice: Callable[..., None] = lambda _kind, _identifier, **_data: None,
        state: IncrementalState | None = None,
        undecided: Callable[[], list[str]] = list,
    ) -> None:
        self._undecided, self._held_by = undecided, ""
        self._source, self._signal_table, self._writes = source, signal_table, writes
        self._until: int | None = None
        self._identifying, self._clock = identifying, clock
        self._match_s = match_s
        self._identifier = identifier
        self._stored: dict[str, object] | None = None
        self._read_signal, self._text_of = read, text_of
        self._delete_closes, self._obeyed, self._notice = delete_closes, obeyed, notice
        self._scanned = 0
        self.waiting = False
        self.point: StreamPoint | None = None
        self.state = state or IncrementalState()
        self.state.read_on(self.state.settling)
        self._settled_by = ""
        self._settled_at: int | None = None
        self._moved = MovedRows(self.state, identifying, text_of)
        self._reader = ChunkReader(source, self.state, self._moved, size, keys, clock)
        self._window: SnapshotWindow | None = None
        self._at_end = False
        self._saw: Callable[[int], bool] = _nothing
        self._chunk_end: list[str | None] | None = None
        self._chunk_relation: Relation | None = None
        self._signal_relations: dict[Relation, bool] = {}

    @property
    def stored(self) -> dict[str, object]:
        """Return the state as an offset keeps it."""
        if self._stored is None:
            self.state.recent = list(self._reader.recent) if self.state.queue else []
            self._stored = msgspec.to_builtins(self.state)
        return self._stored

    def ask_for(self, table: str) -> bool:
        """Write a signal that asks for the rows of ``table`` (schema.table); False when the signal table
        does not take it."""
        data = json.dumps({"type": "incremental", "data-collections": [re.escape(table)]})
        try:
            self._source.watermark(self._identifier(), "execute-snapshot", data)
        except SourceError as error:
            if error.retry is not RetryVerdict.NEVER:
                raise
            log.warning("the signal table takes no signal: %s", error.problem)
            return False
        return True

    @property
    def until(self) -> int | None:
        """Return the LSN at which the chunk at hand belongs into the stream, None where none is at hand or
        a watermark will tell."""
        return self._settled_at if self._window is None else self._until

    def hasten(self) -> None:
        """See that the stream comes to `until` soon. Raises: SourceError."""
        self._source.hasten()

    def reached(self, lsn: int, previous_end_lsn: int | None, now: int) -> list[SnapshotRows]:
        """Return what belongs into the stream here: everything that had committed before ``lsn`` has been
        written. ``previous_end_lsn`` as in `TransactionPart`."""
        until = self.until
        if until is None or lsn < until:
            return []
        self._stored = None
        if self._window is None:
            self._settle()
            self.resume(now)
            return []
        return self._rows(self._closed(now), until, previous_end_lsn, now)

    def resume(self, now: int) -> None:
        """Go on with what the state holds, after a restart or a wait. ``now`` as for `process`."""
        self._stored = None
        if self.state.queue and self._window is None and not self.state.paused:
            self._next_chunk(now)

    def process(
        self, parts: list[TransactionPart], now: int
    ) -> tuple[list[TransactionPart | SnapshotRows], list[TransactionPart]]:
        """Return ``parts`` with chunks between them; ``now`` is µs since 1970 UTC.

        Where a signal asks for a blocking snapshot they end behind it: its tables are to be read then
        (``state.blocking``), and what is behind is returned apart.
        """
        out: list[TransactionPart | SnapshotRows] = []
        for index, part in enumerate(parts):
            if self.until is not None:
                out += self.reached(part.commit_lsn, part.previous_end_lsn, now)
            if part.xid is not None and (part.starts or part.complete):
                self._reader.recent.append(part.xid)
                if self.state.queue:
                    self._stored = None
            if not self._concerns(part):
                out.append(part)
                continue
            pieces, rest = self._part(part, now)
            out += pieces
            if rest is not None:
                return out, [rest, *parts[index + 1 :]]
        return out, []

    def read_at_once(self, now: int) -> None:
        """The tables of ``state.blocking`` were read, or never will be. Rows of a chunk that was read
        before them are older: it is read again."""
        self._stored = None
        self.state.blocking, self.point = [], None
        if self._window is not None:
            self._window = None
            self.resume(now)

    def _concerns(self, part: TransactionPart) -> bool:
        if self._window is not None or self._moved.watching:
            return bool(part.changes)
        return self._signal_table is not None and any(
            self._is_signal(change) for change in part.changes
        )

    def _is_signal(self, change: Change) -> bool:
        if not isinstance(change, Insert | Delete):
            return False
        known = self._signal_relations.get(change.relation)
        if known is None:
            known = (change.relation.schema, change.relation.table) == self._signal_table
            self._signal_relations[change.relation] = known
        return known

    def _part(
        self, part: TransactionPart, now: int
    ) -> tuple[list[TransactionPart | SnapshotRows], TransactionPart | None]:
        """Return ``part`` with chunks in it, and what of it is behind a signal that asks for a blocking
        snapshot, None without such a signal."""
        self._stored = None
        out: list[TransactionPart | SnapshotRows] = []
        rest, watched = part, self._window if self._newer(part) else None
        cut = 0
        for index, change in enumerate(part.changes):
            if self._is_signal(change):
                rows = self._signalled(change, now)
                if rows:
                    if index > cut:
                        before, rest = rest.split(index - cut)
                        out.append(before)
                        cut = index
                    out += self._rows(rows, change.lsn, part.previous_end_lsn, now)
                if self.state.blocking:
                    before, rest = rest.split(index + 1 - cut)
                    self.point = StreamPoint(change.lsn, part.xid, part.previous_end_lsn)
                    return [*out, before], rest
                watched = self._window if self._newer(part) else None
                continue
            self._moved.see(change)
            if watched is not None:
                watched.see(change)
        return [*out, rest], None

    def _newer(self, part: TransactionPart) -> bool:
        """Tell whether a part's changes are not in the chunk at hand."""
        return not part.xid or not self._saw(part.xid)

    # --- signals ------------------------------------------------------------------------------

    def _signalled(self, change: Change, now: int) -> list[Tuple]:
        """Act on a row of the signal table; return rows to deliver before it."""
        if isinstance(change, Delete):
            return self._marked(self._texts(change)[0], now) if self._delete_closes else []
        assert isinstance(change, Insert)
        signal = Signal(*self._texts(change))
        if signal.kind == OPEN:
            return []
        if signal.kind == CLOSE:
            return self._marked(signal.identifier, now)
        if self._obeyed:
            self.take(signal, now)
        return []

    def take(self, signal: Signal, now: int) -> str:
        """Act on a signal, whichever channel it came by; return why it was left out, "" where it was not.
        Raises: SourceError, the signal then waits."""
        self._stored = None
        found = self._read_signal(signal, self._action)
        return found if isinstance(found, str) else found(now)

    def _texts(self, change: Insert | Delete) -> tuple[str, str, str]:
        """Return id, type and data of a row of the signal table, "" for what is not there."""
        row = change.new if isinstance(change, Insert) else change.old
        texts = []
        for column, value in zip(change.relation.columns[:3], row, strict=False):
            read = self._text_of(column) if isinstance(value, bytes) else None
            text = read(value) if read else value
            texts.append(text if isinstance(text, str) else "")
        identifier, kind, data = (*texts, "", "", "")[:3]
        return identifier, kind, data

    def _marked(self, identifier: str, now: int) -> list[Tuple]:
        """A high watermark streamed by; return the rows that it lets be delivered."""
        window = self._window
        if window is not None and identifier.startswith(window.identifier):
            return self._closed(now)
        if self._settled_by and identifier.startswith(self._settled_by):
            self._settle()
            self.resume(now)
        return []

    def _settle(self) -> None:
        self._settled_by, self._settled_at = "", None
        self.state.settle()

    def _action(self, signal: Signal, arguments: dict[str, object]) -> Action:
        """Return what a signal asks to be done. Changes nothing. Raises: SignalUnusable."""
        if signal.kind == "execute-snapshot":
            known = self._source.known_tables()
            wanted = requests(signal, arguments, known, self._patterns())
            readable = {place for places in known.values() for place in places}
            streamed = as_streamed(wanted, known)
            if not any((request.schema, request.table) in readable for request in streamed):
                raise SignalUnusable(f"no such table is captured: {some(streamed)}")
            if any(request.blocking for request in streamed):
                return _doing(lambda _now: self._block(streamed, readable))
            return _doing(lambda now: self._queue(streamed, readable, now))
        if signal.kind == "stop-snapshot":
            stopped = self._to_stop(arguments)
            return _doing(lambda now: self._halt(stopped, now))
        if signal.kind == "pause-snapshot":
            return _doing(lambda _now: self._pause(paused=True))
        return _doing(self._unpause)

    def _patterns(self) -> NamePatterns:
        return NamePatterns(self._clock, self._match_s)

    def _block(self, wanted: list[SnapshotRequest], known: set[tuple[str, str]]) -> None:
        state = self.state
        state.blocking = state.blocking + accepted_of(wanted, state.blocking, known)

    def _queue(self, wanted: list[SnapshotRequest], known: set[tuple[str, str]], now: int) -> None:
        state = self.state
        idle = not state.queue
        accepted = accepted_of(wanted, state.queue, known)
        if accepted:
            state.begin_anew({request.name for request in accepted})
            log.info("incremental snapshot: %s will be read", some(accepted))
        state.queue = state.queue + accepted
        if accepted:
            self._notice("STARTED", accepted[0].signal, data_collections=listed(state.queue))
        if idle and not state.paused:
            self._next_chunk(now)

    def _pause(self, *, paused: bool) -> None:
        self.state.paused = paused
        if self.state.queue:
            kind = "PAUSED" if paused else "RESUMED"
            queued = listed(self.state.queue)
            self._notice(kind, self.state.queue[0].signal, data_collections=queued)

    def _unpause(self, now: int) -> None:
        if self.state.paused:
            self._pause(paused=False)
            self.resume(now)

    def _to_stop(self, arguments: dict[str, object]) -> set[SnapshotRequest]:
        """Return the queued requests that a stop names; without names, all. Raises: SignalUnusable."""
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
        """Stop tables before the next chunk is read: one that was read is delivered, as by Debezium."""
        self.state.stopping = [*self.state.stopping, *stopped]
        self.resume(now)

    def _stop(self) -> None:
        """Take the tables that are to be stopped out of the queue."""
        state, stopped = self.state, set(self.state.stopping)
        state.stopping = []
        halted = [request for request in state.queue if request in stopped]
        if not halted:
            return
        signal = state.queue[0].signal
        if state.queue[0] in stopped:
            state.forget_head()
            self._reader.restart()
            self._scanned = 0
        state.queue = [request for request in state.queue if request not in stopped]
        if not state.queue:  # Debezium tells of both, and by then it has forgotten the signal
            self._notice("COMPLETED", signal, observed=False)
            signal = ""
        self._notice("ABORTED", signal, data_collections=listed(halted))

    # --- chunks -------------------------------------------------------------------------------

    def _closed(self, now: int) -> list[Tuple]:
        """The high watermark streamed by: deliver what is left, and read on."""
        window, self._window = self._window, None
        assert window is not None
        self._chunk_relation, self._until = window.relation, None
        self.state.reached(self._chunk_end)
        self._moved.read()
        self._settle()
        rows = window.rows()
        if not self.state.paused:
            self._next_chunk(now)
        return rows

    def _next_chunk(self, now: int) -> None:
        """Read the next chunk that has rows, of the head of the queue or of a later table, between
        one pair of watermarks; without any, the pair stands alone and the snapshot is over."""
        state = self.state
        self._stop()
        if not state.queue:
            return
        self.waiting = False
        identifier, opened = self._identifier(), _instant(now)
        try:
            while state.queue and not self._read_head(identifier):
                if self.waiting:
                    return
                told = state.head.told
                done = state.finish_head(settles=self._at_end)
                if not (state.queue or told):
                    self._notice("COMPLETED", done.signal)
            if self._writes:
                self._mark(identifier, opened, now)
                self._settled_by = identifier
        except SourceError as error:
            if error.retry is not RetryVerdict.NEVER:
                raise
            log.warning(
                "incremental snapshots need a signal table that waltap may write to: %s; given up: %s",
                error.problem,
                ", ".join(request.name for request in state.queue) or "nothing",
                extra={"error_code": SignalTableUnusable.code},
            )
            self._window = None
            state.queue, state.chunks, state.settling = [], {}, []

    def _mark(self, identifier: str, opened: str, now: int) -> None:
        """Write the watermarks around the chunk. Raises: SourceError."""
        source = self._source
        source.watermark(f"{identifier}-open", OPEN, json.dumps({"openWindowTimestamp": opened}))
        if self._delete_closes:
            source.watermark(f"{identifier}-open", "", "")
        else:
            times = {"openWindowTimestamp": opened, "closeWindowTimestamp": _instant(now)}
            source.watermark(f"{identifier}-close", CLOSE, json.dumps(times))

    def _held(self) -> bool:
        """Wait for transactions that were delivered at PREPARE; tell whether there are any."""
        held_by = ", ".join(map(repr, self._undecided()))
        self.waiting = bool(held_by)
        if held_by and held_by != self._held_by:
            log.warning(
                "incremental snapshot: waits until prepared transactions are decided whose rows were "
                "delivered at PREPARE: %s",
                cut(held_by),
            )
        self._held_by = held_by
        return self.waiting

    def _read_head(self, identifier: str) -> bool:
        """Read the next chunk of the queue's head; False when there is none, or none yet (`waiting`)."""
        request, told = self.state.queue[0], self.state.head.told
        self._at_end = False
        if self._held():
            return False
        try:
            relation = self._source.table(request)
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
            refused([request], "no such table is captured")
            return self._ended(request, "UNKNOWN_SCHEMA")
        if not key:
            refused([request], NO_KEY)
            return self._ended(request, "NO_PRIMARY_KEY")
        if chunk is None or not chunk.rows:
            if not told:
                log.info("incremental snapshot: %s is read to its end", cut(request.name))
            self._at_end = chunk is not None
            self._settled_at = chunk.until if chunk is not None else self._settled_at
            return self._ended(request, "EMPTY" if chunk is None else "SUCCEEDED")
        if not self._writes and chunk.until is None:
            refused([request], NO_POSITION)
            return self._ended(request, "SKIPPED")
        last = self.state.head.last_key
        end = last if self._moved.reading else [text_of(chunk.rows[-1][index]) for index in key]
        if end == last and not self._moved.reading:
            refused([request], "a chunk ended where the one before it did: it would have no end")
            return self._ended(request, "SKIPPED")
        self._chunk_end = end
        self._window = SnapshotWindow(
            identifier, relation, chunk.rows, self._identifying(relation), self._text_of
        )
        self._saw, self._until = chunk.saw or _nothing, chunk.until
        self._scanned += 0 if self._moved.reading else len(chunk.rows)
        if told:
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
        """Tell that nothing more is read of a table; return False, as `_read_head` then does."""
        self._reader.restart()
        if self.state.head.told:
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

    def _rows(
        self, rows: list[Tuple], lsn: int, previous_end_lsn: int | None, now: int
    ) -> list[SnapshotRows]:
        """Return ``rows`` as they stand in the stream before ``lsn``."""
        assert self._chunk_relation is not None
        piece = SnapshotRows(
            relation=self._chunk_relation,
            rows=rows,
            ts=now,
            lsn=lsn,
            xid=None,
            previous_end_lsn=previous_end_lsn,
            first_marker="incremental",
            last_marker="incremental",
            kind="incremental",
        )
        return [piece] if rows else []


def _instant(now: int) -> str:
    return datetime.fromtimestamp(now / 1_000_000, UTC).isoformat().replace("+00:00", "Z")


def _doing(do: Callable[[int], None]) -> Action:
    """Return ``do`` as an action that cannot but succeed."""

    def act(now: int) -> str:
        do(now)
        return ""

    return act


def _nothing(_xid: int) -> bool:
    return False
