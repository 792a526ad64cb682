"""The status of a running pipeline: an immutable object for any thread.

The engine's thread counts per batch, per pull and per period, never per row, into plain fields.
`Run.status` reads confirmed, durable, written and received positions in this order, so that none is
ahead of the next. Nothing is locked, and nothing is computed before a status is requested.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from waltap.base.text import in_brief
from waltap.changes.transactions.position import Position, lsn_text
from waltap.errors import WaltapError
from waltap.ports.sink.roles import DownstreamProgress
from waltap.services.monitor.counts import (
    LastEvent,
    SnapshotStatus,
    SnapshotTableProgress,
    TableStatus,
)

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.ports.signals.inbox import SignalAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHealth:
    """The state of a slot at the last reading, with its forecast."""

    name: str
    # time of the reading, ms since 1970 UTC
    at_ms: int
    wal_status: str
    retained_bytes: int
    # slot (``max_slot_wal_keep_size``), budget, disk, or "" without a known limit
    limit_kind: str
    # how much WAL the slot may retain in all
    limit_bytes: int | None
    # how much more WAL the slot may retain
    left_bytes: int | None
    # bytes per second, as in `WalForecast`
    growth_per_s: float
    written_per_s: float
    # seconds until the limit, as in `WalForecast`
    seconds_left: float | None
    stalled_seconds_left: float | None
    # ok, warned or acted
    level: str
    # the monitor's action in words
    action: str
    # why the server invalidated the slot, "" for a valid slot
    invalidation: str
    # inactive slots that belong to no stored offset
    orphans: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentFailure:
    """A failure of the run."""

    # ms since 1970 UTC
    at_ms: int
    code: str
    problem: str
    # Whether the run continued.
    retried: bool
    remedy: str = ""
    # Repetitions in a row.
    times: int = 1

    @classmethod
    def of(cls, error: BaseException, at_ms: int, *, retried: bool) -> "RecentFailure":
        if isinstance(error, WaltapError):
            return cls(
                at_ms=at_ms,
                code=error.code,
                problem=error.problem,
                retried=retried,
                remedy=error.advice(),
            )
        return cls(at_ms=at_ms, code=WaltapError.code, problem=in_brief(error), retried=retried)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A table that changed its columns, or joined."""

    at_ms: int
    table: str
    # The change, in words.
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalProgress:
    """The present incremental snapshot. A status contains no keys of rows."""

    # The table that is read, and the number of tables that wait.
    table: str
    queued: int
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Positions of one partition of the source."""

    # "" for the only one.
    name: str
    # Of the last transaction of which a part has arrived.
    received_lsn: int
    # Taken by the sink.
    written: Position
    # Flushed and stored.
    durable: Position
    # Confirmed to the server in this run, 0 before any.
    confirmed_lsn: int
    # The server's position and the unconfirmed WAL at the last query, None before it.
    server_lsn: int | None
    lag_bytes: int | None
    # Age of the last change when the sink took it, None before any. While the sink hangs, the age of
    # the oldest change that is not durable, so that the lag of a hanging sink grows.
    lag_ms: int | None
    # Commit time of the last written transaction, ms since 1970 UTC.
    committed_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """The state of a pipeline and the totals of this run. Times are ms since 1970 UTC."""

    pipeline: str
    at_ms: int
    started_ms: int
    # As `on_state` names it.
    state: str
    state_since_ms: int
    partitions: tuple[PartitionStatus, ...] = ()
    # Changes and snapshot rows that the sink took.
    events: int = 0
    # Records that a format made of them.
    records: int = 0
    snapshot_rows: int = 0
    # Transactions that ended in these events.
    transactions: int = 0
    batches: int = 0
    # Name of a transform of changes, and the number of events that it left out.
    filtered: tuple[tuple[str, int], ...] = ()
    # Seconds of the window, and its rate; the present second is left out.
    events_per_second: tuple[tuple[int, float], ...] = ()
    # Events that wait for ``waltap.linger.ms``.
    queued_events: int = 0
    # Age of the oldest batch that waits for its flush, None without one.
    unflushed_ms: int | None = None
    # Duration of the sink's present call or missing acknowledgement, None without one.
    write_ms: int | None = None
    # Whether ``write_ms`` is above ``waltap.stall.ms``.
    stalled: bool = False
    open_transactions: int = 0
    # Buffered bytes of transactions, and the part of them in files.
    held_bytes: int = 0
    spilled_bytes: int = 0
    captured_tables: tuple[str, ...] = ()
    # Tables of this run's initial snapshot with their progress.
    snapshot: tuple[SnapshotTableProgress, ...] = ()
    # Attempts.
    reconnects: int = 0
    batch_retries: int = 0
    # Events of this run that could not be delivered, and the dead letters among them.
    left_out: int = 0
    dead_letters: int = 0
    # Notifications that a channel did not take.
    notifications_lost: int = 0
    last_failure: RecentFailure | None = None
    # At the last query, None before it.
    slot: SlotHealth | None = None
    # Gap certificates that are open.
    open_gaps: int = 0
    # The newest ones, the last one first.
    failures: tuple[RecentFailure, ...] = ()
    schema_changes: tuple[SchemaChange, ...] = ()
    # Progress of stages after the sink, such as Spark.
    downstream: tuple[DownstreamProgress, ...] = ()
    # The present snapshot or the last one, None before any.
    snapshot_run: SnapshotStatus | None = None
    incremental: IncrementalProgress | None = None
    # These two are empty unless an observer asked (`Engine.watch`).
    tables: tuple[TableStatus, ...] = ()
    last_event: LastEvent | None = None
    last_transaction: int | None = None
    # The least and the largest lag of this run.
    lag_least_ms: int | None = None
    lag_most_ms: int | None = None
    # Limits of ``queued_events``, and of ``held_bytes`` in memory.
    queue_events: int = 0
    spill_memory_bytes: int = 0
    # The number of tables with metrics of their own.
    metric_tables: int = 100

    @property
    def changes(self) -> int:
        """Return the number of events from the stream."""
        return self.events - self.snapshot_rows


class ObservedEngine(Protocol):
    """The engine as its observers use it: the status page, telemetry and lineage."""

    @property
    def profile(self) -> "Profile": ...

    @property
    def run_id(self) -> str: ...

    @property
    def state(self) -> str: ...

    def status(self) -> "PipelineStatus":
        """Return the run's status. Any thread may call it."""

    def watch(self) -> None:
        """Count the events of each table from now on."""

    def signal(
        self, kind: str, data: Mapping[str, object] | str = "", *, identifier: str = ""
    ) -> "Future[SignalAnswer]":
        """Pass a signal to the run. Any thread may call it."""


def status_document(status: PipelineStatus) -> dict[str, object]:
    """Return a status as JSON has it: LSNs as text, durations and times in ms."""
    document: dict[str, object] = msgspec.to_builtins(status)
    document["partitions"] = [
        {
            "name": each.name,
            "received": lsn_text(each.received_lsn),
            "written": str(each.written),
            "durable": str(each.durable),
            "confirmed": lsn_text(each.confirmed_lsn),
            "server": None if each.server_lsn is None else lsn_text(each.server_lsn),
            "lag_bytes": each.lag_bytes,
            "lag_ms": each.lag_ms,
            "committed_ms": each.committed_ms,
        }
        for each in status.partitions
    ]
    document["tables"] = [_with_lsn(each, "commit_lsn") for each in status.tables]
    document["downstream"] = [
        {
            **_with_lsn(each, "lsn"),
            "lag_ms": each.lag_ms(status.at_ms),
            "tables": [_with_lsn(table, "lsn") for table in each.tables],
        }
        for each in status.downstream
    ]
    if status.last_event is not None:
        document["last_event"] = _with_lsn(status.last_event, "commit_lsn")
    return document


def _with_lsn(value: object, name: str) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(value)
    lsn = found[name]
    assert isinstance(lsn, int)
    found[name] = lsn_text(lsn) if lsn else None
    return found


def _largest(values: Iterable[int | None]) -> int | None:
    """Return the largest known value, None without one."""
    return max((each for each in values if each is not None), default=None)


EVERY_S = 5.0
# samples of one hour
SAMPLES = 720


class StatusSample(msgspec.Struct, frozen=True, rename="camel"):
    """One sample of the status; None is an unknown value."""

    # ms since 1970 UTC
    at_ms: int
    # events per second
    rate: float
    # the largest lag of all partitions
    lag_bytes: int | None
    lag_ms: int | None
    # WAL that the slot retains
    retained_bytes: int | None
    # how far the slowest stage after the sink is behind the sink
    downstream_bytes: int | None


class StatusHistory:
    """Sample the status every five seconds in a thread."""

    def __init__(self, status: Callable[[], PipelineStatus]) -> None:
        self._status = status
        self._points: deque[StatusSample] = deque(maxlen=SAMPLES)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waltap-history", daemon=True)
        self._before: tuple[int, int] | None = None

    def start(self) -> None:
        self._sample()  # here: a run may end before the thread has begun
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(1)

    def points(self, since_ms: int = 0) -> list[StatusSample]:
        """Return the samples after ``since_ms``, the oldest first."""
        # a copy, because the thread adds samples while a request reads them
        return [point for point in self._points.copy() if point.at_ms > since_ms]

    def _run(self) -> None:
        while not self._end.wait(EVERY_S):
            self._sample()

    def _sample(self) -> None:
        status = self._status()
        # the first sample has no predecessor: its rate is 0
        at, events = self._before or (status.at_ms, status.events)
        seconds = (status.at_ms - at) / 1000
        rate = (status.events - events) / seconds if seconds > 0 else 0.0
        self._before = status.at_ms, status.events
        self._points.append(
            StatusSample(
                at_ms=status.at_ms,
                rate=round(rate, 1),
                lag_bytes=_largest(each.lag_bytes for each in status.partitions),
                lag_ms=_largest(each.lag_ms for each in status.partitions),
                retained_bytes=None if status.slot is None else status.slot.retained_bytes,
                downstream_bytes=_largest(each.lag_bytes for each in status.downstream),
            )
        )
