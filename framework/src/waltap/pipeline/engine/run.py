"""Keep the services of a run over its reconnects."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from waltap.base.files.durable_file import private, private_folder
from waltap.base.text import duration, size
from waltap.changes.decode.relation import Relation, difference
from waltap.changes.transactions.position import Position, lsn_text
from waltap.changes.transactions.transaction import Notification
from waltap.config.profile import Profile
from waltap.errors import ConfigurationError, WaltapError
from waltap.pipeline.delivery.redelivery import redelivery_inbox
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.engine.build import chosen_password
from waltap.pipeline.engine.process_memory import return_free_memory
from waltap.pipeline.runtime.channels import SLOT, PipelineChannels
from waltap.pipeline.runtime.gap_notes import GapNotes
from waltap.pipeline.runtime.run_state import RunState
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.snapshot.incremental_state import IncrementalState
from waltap.ports.source.slot_status import SlotWatch, SlotWatchContext
from waltap.services.monitor.counts import RATE_WINDOWS_S, TOTALS, StreamGauges
from waltap.services.monitor.status import (
    IncrementalProgress,
    PartitionStatus,
    PipelineStatus,
    RecentFailure,
    SchemaChange,
    SlotHealth,
)
from waltap.services.slot_monitor import SlotGivenUp, SlotMonitor

log = logging.getLogger(__name__)

# Failures and schema changes that a status shows, the newest.
MAX_RECENT: Final = 20

SLOT_POLL_S: Final = 10.0

JOINED: Final = {
    "joined": "joined; nothing is missing",
    "snapshot": "joined; an incremental snapshot reads its rows",
    "incomplete": "joined; rows from before are missing",
    "created": "created; captured from then on",
    "uncaptured": "not captured before the next start",
    "interrupted": "the server no longer streams it, or not all of it",
}


class RecentEvents:
    """Keep the newest failures and schema changes of one run.

    Its tuples are replaced, never changed, so that any thread may read.
    """

    def __init__(self, pipeline: str, now_ms: Callable[[], int]) -> None:
        self._pipeline, self._now_ms = pipeline, now_ms
        self.failures: tuple[RecentFailure, ...] = ()
        self.schema_changes: tuple[SchemaChange, ...] = ()

    @hookimpl
    def on_failure(self, pipeline: str, error: Exception, retried: bool) -> None:
        if pipeline != self._pipeline:
            return
        found, others = RecentFailure.of(error, self._now_ms(), retried=retried), self.failures
        if others and (others[0].code, others[0].problem) == (found.code, found.problem):
            found, others = replace(found, times=others[0].times + 1), others[1:]
        self.failures = (found, *others)[:MAX_RECENT]

    @hookimpl
    def on_schema_change(self, pipeline: str, old: Relation | None, new: Relation) -> None:
        if old is not None and pipeline == self._pipeline:
            for each in difference(old, new):
                self._changed(new.name, each)

    @hookimpl
    def on_new_table(self, pipeline: str, table: str, event: str) -> None:
        if pipeline == self._pipeline:
            self._changed(table, JOINED.get(event, event))

    def _changed(self, table: str, what: str) -> None:
        made = SchemaChange(at_ms=self._now_ms(), table=table, what=what)
        self.schema_changes = (made, *self.schema_changes)[:MAX_RECENT]


class PipelineRun:
    """Hold a run's state and services; answer the status."""

    def __init__(self, state: RunState, ready_file: Path | None) -> None:
        self.state = state
        self.journal = RecentEvents(state.profile.name, state.now_ms)
        self.gaps = GapNotes(state.profile.state_dir, state.now_ms)
        self.listeners: list[Callable[[Notification], object]] = []
        self._ready_file = ready_file
        self._next_word_s = 0.0
        self._thread = 0
        self._serve()

    def _serve(self) -> None:
        """Make the services for a period with the right to run."""
        state = self.state
        # Signals from outside the stream, and the channels of notifications.
        self.channels = PipelineChannels(state, self.listeners)
        # Requests to redeliver dead letters.
        self.redeliveries = redelivery_inbox()
        # The writer of the present connection, or of the last one.
        self.delivery: SinkWriter | None = None
        # Reads the sizes of the stream at hand.
        self._gauges: Callable[[], StreamGauges] = StreamGauges
        # Watches how much WAL the slot keeps.
        self.guard = self._slot_monitor()

    def restart(self) -> None:
        """Forget the connections and the sink.

        Another process may have run the pipeline meanwhile.
        """
        self.state.restart()
        self._serve()

    def begin(self) -> None:
        """Start the clock of the run.

        Raises: ConfigurationError if the ready file cannot be removed.
        """
        self.state.begin()
        self._thread = threading.get_ident()
        if self._ready_file is not None:
            with _usable(self._ready_file):  # an earlier run's says nothing of this one
                self._ready_file.unlink(missing_ok=True)
        self.state.enter("checking", self.state.profile.name)

    def apply_profile(self, profile: Profile) -> None:
        """Apply a profile of which only reloadable properties differ.

        Any thread may call.
        """
        self.state.apply_profile(profile)
        self.guard.apply_properties(profile.engine)

    def deliver_by(self, delivery: SinkWriter) -> None:
        """Answer the status from ``delivery``, which a new connection writes by."""
        self.delivery = delivery
        self.state.delivers(records=delivery.counts_records)

    @contextmanager
    def stream_by(self, gauges: Callable[[], StreamGauges]) -> Iterator[None]:
        """Answer the status from ``gauges`` during the block, thread-safe."""
        self.state.capturing()
        self._gauges = gauges
        try:
            yield
        finally:
            self._gauges = StreamGauges

    # --- the slot monitor ---------------------------------------------------------------------

    def _slot_monitor(self) -> SlotMonitor:
        state, profile = self.state, self.state.profile
        connects = profile.connector.spec.slot_watch is not None
        return SlotMonitor(
            profile.engine,
            pipeline=profile.name,
            clock=state.clock,
            notify=lambda kind, **data: self.channels.notify(SLOT, kind, **data),
            gave_up=self._slot_given_up,
            open_watch=self._open_watch if connects else None,
            every_s=min(profile.engine.status_interval_ms / 1000, SLOT_POLL_S),
            warn_if_stalled=self.warn_if_stalled,
        )

    def _open_watch(self) -> SlotWatch:
        component = self.state.profile.connector
        assert component.spec.slot_watch is not None
        password = chosen_password(self.state.host)
        context = SlotWatchContext(stopping=self.guard.stopping, password=password)
        return component.spec.slot_watch(component.properties, context)

    def _slot_given_up(self, health: SlotHealth, end_lsn: int) -> WaltapError:
        """Store the gap of a dropped slot; return its error."""
        offset = None if self.delivery is None else self.delivery.offset
        begin = (
            "the position at which the slot was made" if offset is None else str(offset.positions)
        )
        problem = (
            f"slot {health.name} kept {size(health.retained_bytes)} of WAL, of "
            f"{size(health.limit_bytes)} that it may, and was dropped as waltap.wal.action = drop has it: "
            "lost for this pipeline is what "
            f"committed behind {begin} up to {lsn_text(end_lsn)}"
        )
        error = SlotGivenUp(problem, certificate="the log")
        tables = self.state.captured_tables or None
        if offset is None:
            return error
        where = self.gaps.lost(error, offset, end_lsn=end_lsn, server=offset.first, tables=tables)
        return SlotGivenUp(problem, certificate=where)

    # --- observers and status ---------------------------------------------------------------------

    def warn_if_stalled(self) -> None:
        """Log a call of the sink or a hook that does not return.

        The first warning comes after `waltap.stall.ms`, others when that time has doubled.
        """
        pending, profile = self.pending_call(), self.state.profile
        if pending is None or not self._stalls(pending):
            if self._next_word_s:
                log.info("the pipeline continues", extra={"pipeline": profile.name})
            self._next_word_s = 0.0
        elif pending[1] >= self._next_word_s:
            what, seconds = pending
            self._next_word_s = 2 * seconds
            text = f"{what} for {duration(seconds)}; the pipeline waits for it"
            log.warning("%s", text, extra={"pipeline": profile.name})

    def pending_call(self, since: float | None = None) -> tuple[str, float] | None:
        """Return a text of the unfinished call and its seconds. Any thread may ask.

        They count from ``since`` of the monotonic clock at the earliest.
        """
        calls, host, profile = self.state.counts.calls, self.state.host, self.state.profile
        hook = host.pending()
        found = hook or (calls.in_flight() if since is None else calls.at_hand())
        if found is None:
            return None
        what, seconds = found
        if since is not None:
            seconds = min(seconds, self.state.clock.monotonic() - since)
        if awaited := what if hook else calls.awaited:
            return f"{awaited} has not answered", seconds
        sinks = ", ".join(each.name for each in profile.branches) or profile.sink.spec.name
        asked = since is not None or self._stalls(found)
        inside = host.at_work(self._thread) if asked and calls.at_hand() else ""
        text = f"sink {sinks} has not come to an end with {what}"
        return f"{text}, in {inside}" if inside else text, seconds

    def status(self) -> PipelineStatus:
        """Return the present status. Any thread may ask."""
        counts, gauges, delivery = self.state.counts, self._gauges(), self.delivery
        now, now_ns = self.state.clock.monotonic(), self.state.clock.time_ns()
        state, since_ns = self.state.entered
        waiting = None if delivery is None else delivery.waiting_since
        in_flight = counts.calls.in_flight()
        pending = self.pending_call()
        by_table = counts.by_table
        return PipelineStatus(
            pipeline=self.state.profile.name,
            at_ms=now_ns // 1_000_000,
            started_ms=self.state.started_ns // 1_000_000,
            state=state,
            state_since_ms=since_ns // 1_000_000,
            partitions=() if delivery is None else self._partitions(delivery),
            filtered=tuple(zip(self.state.transform_names, tuple(counts.filtered), strict=True)),
            events_per_second=tuple((s, counts.meter.per_second(now, s)) for s in RATE_WINDOWS_S),
            **gauges._asdict(),
            **{name: getattr(counts, name) for name in TOTALS},
            unflushed_ms=None if waiting is None else max(0, round((now - waiting) * 1000)),
            write_ms=None if in_flight is None else round(in_flight[1] * 1000),
            stalled=pending is not None and self._stalls(pending),
            captured_tables=self.state.captured_tables,
            snapshot=tuple(counts.tables.values()),
            notifications_lost=self.channels.lost,
            last_failure=self.state.last_failure,
            slot=self.guard.health,
            open_gaps=self.gaps.open,
            failures=self.journal.failures,
            schema_changes=self.journal.schema_changes,
            downstream=()
            if delivery is None or self.state.sink == "new"
            else delivery.downstream_progress(),
            snapshot_run=counts.snapshot.status(),
            incremental=None if delivery is None else self._waiting(delivery),
            tables=() if by_table is None else by_table.status(),
            last_event=None if by_table is None else by_table.last,
            last_transaction=counts.last_xid,
            queue_events=self.state.profile.engine.batch_events,
            spill_memory_bytes=self.state.profile.engine.spill_memory_bytes,
            metric_tables=self.state.profile.engine.metric_tables,
        )

    def _waiting(self, delivery: SinkWriter) -> IncrementalProgress | None:
        """Return the tables that incremental snapshots must still read."""
        state = IncrementalState.restored(delivery.signals)
        if not state.queue:
            return None
        paused = state.paused or self.guard.pauses_snapshots() or not delivery.takes_rows
        return IncrementalProgress(
            table=state.queue[0].name, queued=len(state.queue) - 1, paused=paused
        )

    def _partitions(self, delivery: SinkWriter) -> tuple[PartitionStatus, ...]:
        confirmed = self.state.confirmed_lsn  # what comes last is read first (status.py)
        durable, written = delivery.offset.positions, delivery.written
        received, server = self.state.received_lsn, self.guard.server_lsn
        server = None if server is None else max(server, received)
        return tuple(
            PartitionStatus(
                name=name,
                received_lsn=max(received, written[name].end_lsn),
                written=written[name],
                durable=position,
                confirmed_lsn=confirmed,
                server_lsn=server,
                lag_bytes=None if server is None else max(0, server - position.end_lsn),
                lag_ms=self._lag_ms(position, server),
                committed_ms=delivery.committed_ms(name),
            )
            for name, position in durable.items()
        )

    def _lag_ms(self, durable: Position, server_lsn: int | None) -> int | None:
        """Return the age of the last change when the sink took it.

        While the sink is at a call, or the pipeline is not connected, it is the age of the oldest change
        that is not durable. If that was never received, it is the time since the pipeline had everything
        that the server had.
        """
        calls, lag_ms = self.state.counts.calls, self.state.counts.lag_ms
        oldest_ms, in_flight = calls.oldest_commit_ms, calls.in_flight()
        if in_flight is None and self.state.entered[0] == "streaming":
            return lag_ms
        held = self.state.entered[0] == "reconnecting" or (
            in_flight is not None and self._stalls(in_flight)
        )
        if oldest_ms is None and held and (server_lsn or 0) > durable.end_lsn:
            oldest_ms = calls.current_ms
        if oldest_ms is None:
            return lag_ms
        return max(lag_ms or 0, self.state.now_ms() - oldest_ms)

    def _stalls(self, pending: tuple[str, float]) -> bool:
        return pending[1] * 1000 >= self.state.profile.engine.stall_ms

    def ready(self) -> None:
        """Write the ready file: later commits are captured."""
        return_free_memory()  # of the start and the snapshot
        if self._ready_file is not None:
            with _usable(self._ready_file):
                private_folder(self._ready_file.parent)
                file = private(self._ready_file, os.O_WRONLY | os.O_CREAT)
                try:
                    # By descriptor: a process that waits for the file may remove it at once.
                    os.utime(file)
                finally:
                    os.close(file)


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError.of(
            str(path), f"cannot be written: {error.strerror}", origin="the ready file"
        ) from error
