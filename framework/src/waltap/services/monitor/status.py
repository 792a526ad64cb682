"""The status of a running pipeline: a snapshot that does not change, for any thread that asks.

The engine's thread counts per batch, per pull and per period, never per row, into plain fields.
`Run.status` reads them, in an order in which what is confirmed was stored, what is stored was written,
and what was written was received. Nothing is locked, and nothing is computed until somebody asks.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from waltap.changes.transactions.position import Position
from waltap.errors import WaltapError
from waltap.ports.sink.downstream import DownstreamProgress
from waltap.services.monitor.counts import (
    LastEvent,
    SnapshotStatus,
    SnapshotTableProgress,
    TableStatus,
)
from waltap.services.slot_monitor.health import SlotHealth

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.ports.signals.inbox import SignalAnswer

__all__ = [
    "IncrementalProgress",
    "ObservedEngine",
    "PartitionStatus",
    "PipelineStatus",
    "RecentFailure",
    "SchemaChange",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentFailure:
    """Something that went wrong; ``at_ms`` since 1970 UTC, ``retried``: the run went on. ``times``: how
    often in a row, ``remedy``: what to do."""

    at_ms: int
    code: str
    problem: str
    retried: bool
    remedy: str = ""
    times: int = 1

    @classmethod
    def of(cls, error: BaseException, at_ms: int, *, retried: bool) -> "RecentFailure":
        """Return what is told of an error."""
        if isinstance(error, WaltapError):
            return cls(
                at_ms=at_ms,
                code=error.code,
                problem=error.problem,
                retried=retried,
                remedy=error.advice(),
            )
        problem = f"{type(error).__name__}: {error}"
        return cls(at_ms=at_ms, code=WaltapError.code, problem=problem, retried=retried)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A table changed its shape, or joined; ``what``, in words."""

    at_ms: int
    table: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalProgress:
    """The incremental snapshot that is under way: the table that is read, and how many wait behind it.
    Keys of rows are no part of a status."""

    table: str
    queued: int
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """How far one partition of the source has come; the name of an only one is empty.

    ``received_lsn``: of the last transaction of which something has arrived. ``written``: taken
    by the sink; ``durable``: flushed and stored; ``confirmed_lsn``: told to the server in this run, 0 for
    nothing. ``committed_ms``: when the last transaction committed that was written, since 1970 UTC.
    ``server_lsn`` and ``lag_bytes``, the WAL that is not confirmed, are those of the last look,
    None before it. ``lag_ms`` is how old the last change was when the sink took it, None before any; while
    the sink does not come to an end with it, how old the oldest is that is not durable.
    """

    name: str
    received_lsn: int
    written: Position
    durable: Position
    confirmed_lsn: int
    server_lsn: int | None
    lag_bytes: int | None
    lag_ms: int | None
    committed_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """What a pipeline does and has done in this run. Times are ms since 1970 UTC.

    ``state`` as `on_state` names it, since ``state_since_ms``. ``events`` are changes and snapshot rows
    that the sink took, ``snapshot_rows`` the latter; ``transactions`` ended in what it took. ``records``
    are what a format made, ``filtered`` the events that transforms of changes left out, by name.
    ``events_per_second``: over the last so many seconds, the one at hand left out. ``queued_events`` wait
    for ``waltap.linger.ms``;
    ``unflushed_ms``: how long the oldest batch has waited for its flush, None when nothing does;
    ``write_ms``: how long the sink has been at a call, or has owed an acknowledgement, None where it does
    neither; ``stalled``: longer than ``waltap.sink.stall.ms``.
    ``open_transactions`` have begun and not ended; ``held_bytes`` of transactions are kept,
    ``spilled_bytes`` of those in files. ``snapshot`` has the tables of the initial snapshot of this run,
    as far as it has come. ``left_out`` are events that could not be delivered, ``dead_letters`` those of
    them that are kept as such, both of this run. ``reconnects`` and ``batch_retries`` count tries,
    ``notifications_lost`` those that a channel did not take. ``slot`` is the slot as of the last look,
    None before it. ``open_gaps`` counts gap certificates that are open. ``failures`` and
    ``schema_changes`` are the newest, the last one first. ``onward``: how far those have come who read
    on from the sink. ``snapshot_run`` is the snapshot that runs or the last one, None where none was
    begun. ``tables`` and ``last_event`` are there where somebody watches (`Engine.watch`).
    ``lag_least_ms`` and ``lag_most_ms`` are of this run. ``queue_events`` and ``spill_memory_bytes`` are
    what ``queued_events`` and ``held_bytes`` in memory are bounded by. ``metric_tables``: how many tables
    have metrics of their own.
    """

    pipeline: str
    at_ms: int
    started_ms: int
    state: str
    state_since_ms: int
    partitions: tuple[PartitionStatus, ...] = ()
    events: int = 0
    records: int = 0
    snapshot_rows: int = 0
    transactions: int = 0
    batches: int = 0
    filtered: tuple[tuple[str, int], ...] = ()
    events_per_second: tuple[tuple[int, float], ...] = ()
    queued_events: int = 0
    unflushed_ms: int | None = None
    write_ms: int | None = None
    stalled: bool = False
    open_transactions: int = 0
    held_bytes: int = 0
    spilled_bytes: int = 0
    captured_tables: tuple[str, ...] = ()
    snapshot: tuple[SnapshotTableProgress, ...] = ()
    reconnects: int = 0
    batch_retries: int = 0
    left_out: int = 0
    dead_letters: int = 0
    notifications_lost: int = 0
    last_failure: RecentFailure | None = None
    slot: SlotHealth | None = None
    open_gaps: int = 0
    failures: tuple[RecentFailure, ...] = ()
    schema_changes: tuple[SchemaChange, ...] = ()
    onward: tuple[DownstreamProgress, ...] = ()
    snapshot_run: SnapshotStatus | None = None
    incremental: IncrementalProgress | None = None
    tables: tuple[TableStatus, ...] = ()
    last_event: LastEvent | None = None
    last_transaction: int | None = None
    lag_least_ms: int | None = None
    lag_most_ms: int | None = None
    queue_events: int = 0
    spill_memory_bytes: int = 0
    metric_tables: int = 100

    @property
    def changes(self) -> int:
        """Return how many events came of the stream."""
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
        ...

    def watch(self) -> None:
        """Count the events of each table from now on."""
        ...

    def signal(
        self, kind: str, data: Mapping[str, object] | str = "", *, identifier: str = ""
    ) -> "Future[SignalAnswer]":
        """Pass a signal to the run. Any thread may call it."""
        ...
