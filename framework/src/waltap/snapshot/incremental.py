"""Incremental snapshots: tables are read in chunks while the stream goes on. Sans-IO: the database is
behind `ChunkSource`, the clock is an argument.

Theory of operation. Signals queue tables. For the table at the head: read the next chunk by key, write
a pair of watermarks, and go on streaming. Changes that stream by and are not in the chunk drop rows of
it (window.py); when the high watermark streams by, the rows left are delivered just before it, and the
next chunk is read. The state (queue, last key delivered, greatest key) is part of the offset: after a
restart the chunk that was not delivered is read again.

A change can stream before a reader of the table can see it: a commit is in the WAL first and visible
after, by a moment or, with synchronous replication, by much more. So a chunk counts only if it saw
every transaction that had streamed before; else it is read again a little later.

What the database refuses (a condition that is no SQL, a table that may not be read) ends the request,
with a warning, never the pipeline: the signal would be read again at every start.
"""

import json
import logging
import re
import uuid
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from waltap.decode.message import Change, Delete, Insert
from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple
from waltap.errors import DecodeError, Retry, SourceError
from waltap.events.transaction import SnapshotRows, TransactionPart
from waltap.signals.signal import Signal, SignalUnusable, SnapshotRequest, names, requests
from waltap.snapshot.window import TextOf, Window

__all__ = ["Chunk", "ChunkSource", "IncrementalSnapshots", "State"]

log = logging.getLogger(__name__)

OPEN, CLOSE = "snapshot-window-open", "snapshot-window-close"
RECENT = 4096
"""So many of the last transactions are looked after until they are visible."""


class Chunk(msgspec.Struct):
    """Rows read in one snapshot. ``saw`` tells whether a committed transaction is visible in it."""

    rows: list[Tuple]
    saw: Callable[[int], bool]


class ChunkSource(Protocol):
    """What an incremental snapshot needs of a database."""

    def known_tables(self) -> list[tuple[str, str]]:
        """Return (schema, table) of every captured table."""

    def table(self, request: SnapshotRequest) -> Relation | None:
        """Return the relation to read, None when no such table is captured."""

    def chunk_key(self, request: SnapshotRequest, relation: Relation) -> tuple[int, ...]:
        """Return the indexes of the columns to order and cut by; () when there is no key."""

    def maximum(self, request: SnapshotRequest, relation: Relation) -> Tuple | None:
        """Return the values of the chunk key in the last row, None when the table is empty."""

    def chunk(
        self, request: SnapshotRequest, relation: Relation, after: Tuple | None, maximum: Tuple
    ) -> "Chunk":
        """Return the next rows in key order, ``incremental.snapshot.chunk.size`` of them; more where
        that many would not end between two values of a key that is not unique."""

    def watermark(self, identifier: str, kind: str, data: str) -> None:
        """Write a row into the signal table."""


class State(msgspec.Struct):
    """What survives a restart: tables to read, the head first, and the key of the last row of the
    head's last chunk that was delivered."""

    queue: list[SnapshotRequest] = []
    last_key: list[str | None] | None = None
    maximum: list[str | None] | None = None
    paused: bool = False


class IncrementalSnapshots:
    """Watches the stream for signals and watermarks, and puts chunks into it.

    ``report`` is told of signals that will be acted on: (kind, identifier, data). ``text_of`` as for
    `Window`. ``waiting``: the next chunk could not be read yet; call `resume` soon.
    """

    def __init__(
        self,
        source: ChunkSource,
        signal_table: str,
        *,
        report: Callable[[str, str, str], None],
        offset: Callable[[], str],
        text_of: TextOf,
        delete_closes: bool = False,
        state: State | None = None,
    ) -> None:
        self._source, self._signal_table = source, signal_table
        self._report, self._offset, self._text_of = report, offset, text_of
        self._delete_closes = delete_closes
        self.waiting = False
        self._recent: deque[int] = deque(maxlen=RECENT)
        self.state = state or State()
        self._window: Window | None = None
        self._saw: Callable[[int], bool] = lambda _xid: False
        self._chunk_end: list[str | None] | None = None
        self._chunk_relation: Relation | None = None
        self._signal_relations: dict[Relation, bool] = {}

    def resume(self, now: int) -> None:
        """Go on with what the state holds, after a restart or a wait. ``now`` as for `process`."""
        if self.state.queue and self._window is None and not self.state.paused:
            self._next_chunk(now)

    def process(
        self, parts: list[TransactionPart], now: int
    ) -> list[TransactionPart | SnapshotRows]:
        """Return ``parts`` with chunks between them; ``now`` is µs since 1970 UTC."""
        out: list[TransactionPart | SnapshotRows] = []
        for part in parts:
            if part.xid is not None and part.complete:
                self._recent.append(part.xid)
            out.extend(self._part(part, now) if self._concerns(part) else (part,))
        return out

    def _concerns(self, part: TransactionPart) -> bool:
        if self._window is not None:
            return bool(part.changes)
        return any(self._is_signal(change) for change in part.changes)

    def _is_signal(self, change: Change) -> bool:
        if not isinstance(change, Insert | Delete):
            return False
        known = self._signal_relations.get(change.relation)
        if known is None:
            known = change.relation.name == self._signal_table
            self._signal_relations[change.relation] = known
        return known

    def _part(self, part: TransactionPart, now: int) -> list[TransactionPart | SnapshotRows]:
        out: list[TransactionPart | SnapshotRows] = []
        rest, watched = part, self._window if self._newer(part) else None
        for index, change in enumerate(part.changes):
            if self._is_signal(change):
                rows = self._signalled(change, now)
                if rows:
                    done = index - (rest.first_index - part.first_index)
                    if done:
                        before, rest = rest.split(done)
                        out.append(before)
                    out.append(self._rows(rows, change, part, now))
                watched = self._window if self._newer(part) else None
            elif watched is not None:
                watched.see(change)
        out.append(rest)
        return out

    def _newer(self, part: TransactionPart) -> bool:
        """Tell whether a part's changes are not in the chunk at hand."""
        return not part.xid or not self._saw(part.xid)

    # --- signals ------------------------------------------------------------------------------

    def _signalled(self, change: Change, now: int) -> list[Tuple]:
        """Act on a row of the signal table; return rows to deliver before it."""
        if isinstance(change, Delete):
            closes = self._delete_closes and self._texts(change)[0] == self._low()
            return self._closed(now) if closes else []
        assert isinstance(change, Insert)
        signal = Signal(*self._texts(change))
        window = self._window
        if signal.kind == OPEN:
            return []
        if signal.kind == CLOSE:
            closes = window is not None and signal.identifier.startswith(window.identifier)
            return self._closed(now) if closes else []
        try:
            self._act(signal, now)
        except SignalUnusable as error:
            log.warning("signal ignored: %s", error, extra={"error_code": "WT-4101"})
        return []

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

    def _low(self) -> str | None:
        return None if self._window is None else f"{self._window.identifier}-open"

    def _act(self, signal: Signal, now: int) -> None:
        state = self.state
        self._report(signal.kind, signal.identifier, signal.data)
        if signal.kind == "execute-snapshot":
            idle = not state.queue
            known = {(r.schema, r.table, r.condition) for r in state.queue}
            wanted = requests(signal, self._source.known_tables())
            state.queue += [r for r in wanted if (r.schema, r.table, r.condition) not in known]
            if idle and not state.paused:
                self._next_chunk(now)
        elif signal.kind == "stop-snapshot":
            self._halt(signal, now)
        elif signal.kind == "pause-snapshot":
            state.paused = True
        elif signal.kind == "resume-snapshot":
            if state.paused:
                state.paused = False
                self.resume(now)
        elif signal.kind == "log":
            message = str(signal.arguments().get("message", ""))
            log.info(message.replace("{}", self._offset()))
        else:
            raise SignalUnusable(f"type {signal.kind!r} is not known")

    def _halt(self, signal: Signal, now: int) -> None:
        patterns = names(signal.arguments()) or [".*"]

        def stopped(request: SnapshotRequest) -> bool:
            return any(p == request.name or re.fullmatch(p, request.name) for p in patterns)

        state = self.state
        if not state.queue:
            return
        head = stopped(state.queue[0])
        state.queue = [request for request in state.queue if not stopped(request)]
        if head:
            state.last_key = state.maximum = None
            self._window = None
            self.resume(now)

    # --- chunks -------------------------------------------------------------------------------

    def _closed(self, now: int) -> list[Tuple]:
        """The high watermark streamed by: deliver what is left, and read on."""
        window, self._window = self._window, None
        assert window is not None
        self._chunk_relation, self.state.last_key = window.relation, self._chunk_end
        rows = window.rows()
        if not self.state.paused:
            self._next_chunk(now)
        return rows

    def _next_chunk(self, now: int) -> None:
        """Read the next chunk that has rows, of the head of the queue or of a later table, between
        one pair of watermarks; without any, the pair stands alone and the snapshot is over."""
        state, source = self.state, self._source
        if not state.queue:
            return
        self.waiting = False
        identifier, opened = str(uuid.uuid4()), _instant(now)
        try:
            while state.queue and not self._read_head(identifier):
                if self.waiting:
                    return
                state.queue = state.queue[1:]
                state.last_key = state.maximum = None
            low = json.dumps({"openWindowTimestamp": opened})
            source.watermark(f"{identifier}-open", OPEN, low)
            if self._delete_closes:
                source.watermark(f"{identifier}-open", "", "")
            else:
                times = {"openWindowTimestamp": opened, "closeWindowTimestamp": _instant(now)}
                source.watermark(f"{identifier}-close", CLOSE, json.dumps(times))
        except SourceError as error:
            if error.retry is not Retry.NEVER:
                raise
            log.warning(
                "incremental snapshots need a signal table that waltap may write to: %s; given up: %s",
                error.problem,
                ", ".join(request.name for request in state.queue) or "nothing",
                extra={"error_code": "WT-4103"},
            )
            self._window = None
            state.queue, state.last_key, state.maximum = [], None, None

    def _read_head(self, identifier: str) -> bool:
        """Read the next chunk of the queue's head; False when there is none, or none yet (`waiting`)."""
        request = self.state.queue[0]
        try:
            relation = self._source.table(request)
            chunk = None if relation is None else self._read(request, relation)
        except (SourceError, DecodeError) as error:
            if error.retry is not Retry.NEVER:
                raise
            _refused(request, error.problem)
            return False
        if relation is None:
            _refused(request, "no such table is captured")
        if relation is None or chunk is None:
            return False
        self.waiting = not all(map(chunk.saw, self._recent))
        if self.waiting or not chunk.rows:
            return False
        key = self._source.chunk_key(request, relation)
        self._chunk_end = [_text(chunk.rows[-1][index]) for index in key]
        self._window = Window(identifier, relation, chunk.rows, self._text_of)
        self._saw = chunk.saw
        return True

    def _read(self, request: SnapshotRequest, relation: Relation) -> Chunk | None:
        state, source = self.state, self._source
        if not source.chunk_key(request, relation):
            _refused(
                request, "the table has no key to read it by; a signal may name a surrogate-key"
            )
            return None
        if state.maximum is None:
            maximum = source.maximum(request, relation)
            if maximum is None:
                return None
            state.maximum = [_text(value) for value in maximum]
        after = None if state.last_key is None else tuple(state.last_key)
        return source.chunk(request, relation, after, tuple(state.maximum))

    def _rows(
        self, rows: list[Tuple], close: Change, part: TransactionPart, now: int
    ) -> SnapshotRows:
        assert self._chunk_relation is not None
        return SnapshotRows(
            relation=self._chunk_relation,
            rows=rows,
            ts=now,
            lsn=close.lsn,
            xid=None,
            previous_end_lsn=part.previous_end_lsn,
            first_marker="incremental",
            last_marker="incremental",
            kind="incremental",
        )


def _refused(request: SnapshotRequest, why: str) -> None:
    log.warning(
        "table %s is not read as signal %s asks: %s",
        request.name,
        request.signal,
        why,
        extra={"relation": request.name, "error_code": "WT-4102"},
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _instant(now: int) -> str:
    return datetime.fromtimestamp(now / 1_000_000, UTC).isoformat().replace("+00:00", "Z")
