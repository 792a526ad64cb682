"""One run of a profile: what lasts over its reconnects, and what its surroundings are told."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from waltap.base.files.private_file import private, private_folder
from waltap.base.text import duration
from waltap.changes.decode.relation import Relation, difference
from waltap.changes.transactions.position import Position
from waltap.clock import Clock, RandomSource
from waltap.config.profile import Profile
from waltap.errors import ConfigurationError, PropertyProblem
from waltap.pipeline.backoff import RetryBackoff
from waltap.pipeline.channels import PipelineChannels
from waltap.pipeline.gap_notes import GapNotes
from waltap.pipeline.leadership import Leadership, leases_of
from waltap.pipeline.redelivery import ReplayDesk
from waltap.pipeline.sink_writer import SinkWriter
from waltap.pipeline.slot_monitor_setup import guardian_of, orders_of
from waltap.pipeline.stages import chosen_password
from waltap.pipeline.stop_conditions import Limits
from waltap.plugins.hookspecs import hookimpl
from waltap.plugins.host import Host
from waltap.ports.offsets.gaps import GapCertificates
from waltap.ports.offsets.offset import PartitionOffset
from waltap.ports.snapshot.incremental_state import IncrementalState
from waltap.ports.source.connector import MadeByRun
from waltap.ports.source.lease import LeaseContext
from waltap.ports.specs import EventTransformSpec, RecordTransformSpec
from waltap.services.monitor.counts import (
    RATE_WINDOWS_S,
    RunCounters,
    SinkCalls,
    SnapshotTimes,
    StreamGauges,
)
from waltap.services.monitor.status import (
    IncrementalProgress,
    PartitionStatus,
    PipelineStatus,
    RecentFailure,
    SchemaChange,
)

__all__ = [
    "PipelineRun",
    "RecentEvents",
    "StopFlag",
]

log = logging.getLogger(__name__)


# The newest of what people ask for first: failures with their remedies, and changes of tables.

KEPT: Final = 20

JOINED: Final = {
    "joined": "joined; nothing is missing",
    "snapshot": "joined; an incremental snapshot reads its rows",
    "incomplete": "joined; rows from before are missing",
    "created": "created; captured from then on",
    "uncaptured": "not captured before the next start",
    "interrupted": "the server streams no more of it, or not all",
}


class RecentEvents:
    """An observer of one run. What it has is replaced, never changed, so that any thread may read."""

    def __init__(self, pipeline: str, now_ms: Callable[[], int]) -> None:
        self._pipeline, self._now_ms = pipeline, now_ms
        self.failures: tuple[RecentFailure, ...] = ()
        self.schema_changes: tuple[SchemaChange, ...] = ()

    @hookimpl
    def on_failure(self, pipeline: str, error: Exception, retried: bool) -> None:
        """Keep it; one that was the last already is counted."""
        if pipeline != self._pipeline:
            return
        found, others = RecentFailure.of(error, self._now_ms(), retried=retried), self.failures
        if others and (others[0].code, others[0].problem) == (found.code, found.problem):
            found, others = replace(found, times=others[0].times + 1), others[1:]
        self.failures = (found, *others)[:KEPT]

    @hookimpl
    def on_schema_change(self, pipeline: str, old: Relation | None, new: Relation) -> None:
        """Keep what is different of a relation that was known."""
        if old is not None and pipeline == self._pipeline:
            for each in difference(old, new):
                self._changed(new.name, each)

    @hookimpl
    def on_new_table(self, pipeline: str, table: str, event: str) -> None:
        """Keep that a table is new."""
        if pipeline == self._pipeline:
            self._changed(table, JOINED.get(event, event))

    def _changed(self, table: str, what: str) -> None:
        made = SchemaChange(at_ms=self._now_ms(), table=table, what=what)
        self.schema_changes = (made, *self.schema_changes)[:KEPT]


# The wish to stop, set from a signal handler or another thread.


class StopFlag:
    """As `threading.Event`, without a lock: a signal handler runs inside whatever its own thread was
    doing, and would wait for ever for a lock that this thread holds. Who waits asks it now and then
    (`Clock.wait`)."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Ask for the end."""
        self._set = True

    def is_set(self) -> bool:
        """Tell whether the end was asked for."""
        return self._set


class PipelineRun:
    """State of one run, from its start to its end.

    ``linked``: a connection has stood. ``sink_open``: the sink was opened once. ``sink_stale``: it
    is to be opened before the next connection delivers. ``started``: rows were read, or the stream begun.
    ``cut``: the limit of records left out what had been received.
    ``delivery`` is that of the present connection, or of the last one, ``streaming`` the present stream.
    ``may_write`` raises where this process may write no more, to sink or state (`Leadership`,
    `PipelineLock`).
    ``made`` is the connector's, ``channels`` are signals' and notifications', ``replays`` waits for dead
    letters. ``guard`` guards the slot,
    ``gaps`` keeps what was lost; with ``repairs`` a lost position is no reason not to start.
    ``confirmable`` gives, of an LSN that may be confirmed, what whoever runs this lets go of. ``entered``
    is the state and since when. The rest is for `status`.
    """

    def __init__(
        self,
        profile: Profile,
        host: Host,
        limits: Limits,
        clock: Clock,
        chance: RandomSource,
        ready_file: Path | None,
        *,
        repairs: bool = False,
        confirmable: Callable[[int], int] | None = None,
    ) -> None:
        self.profile, self.host, self.limits = profile, host, limits
        self.clock, self.chance = clock, chance
        self.channels = PipelineChannels(profile, host, clock, chance)
        self.replays = ReplayDesk()
        self.stop = StopFlag()
        self.entered: tuple[str, int] = ("new", clock.time_ns())
        self.started_ns = clock.time_ns()
        self.transform_names = tuple(
            use.spec.name
            for use in profile.transforms
            if not isinstance(use.spec, EventTransformSpec | RecordTransformSpec)
        )
        self.counts = RunCounters(
            filtered=[0] * len(self.transform_names),
            snapshot=SnapshotTimes(clock.monotonic),
            calls=SinkCalls(clock),
        )
        self._next_word_s = 0.0
        self.journal = RecentEvents(profile.name, lambda: clock.time_ns() // 1_000_000)
        self.delivery: SinkWriter | None = None
        self.streaming: StreamGauges | None = None
        self.captured_tables: tuple[str, ...] = ()
        self.received_lsn = self.confirmed_lsn = 0
        self.last_failure: RecentFailure | None = None
        self.reconnects = self.backoff()
        self.linked = self.sink_open = self.started = self.cut = False
        self.sink_stale = True
        self.midway = False
        """Whether the end of a transaction is to be written yet (`Limits.whole_transactions`)."""
        self.made = MadeByRun()
        self.repairs, self.confirmable = repairs, confirmable
        self.tenure = self._tenure()
        self.may_write: Callable[[], None] = self.tenure.check
        self.gaps = GapNotes(GapCertificates(self.state_dir), profile.name)
        self.guard = guardian_of(self)
        self._ready_file = ready_file
        self._began = clock.monotonic()

    def begin(self) -> None:
        """Count ``max_seconds`` from now. Raises: ConfigurationError when the ready file is of no use."""
        self._began, self.started_ns = self.clock.monotonic(), self.clock.time_ns()
        if self._ready_file is not None:
            with _usable(self._ready_file):  # an earlier run's says nothing of this one
                self._ready_file.unlink(missing_ok=True)
        self.enter("checking", self.profile.name)

    @property
    def flush_s(self) -> float:
        """Return how long what was written may wait for its flush, in seconds."""
        return self.profile.engine.flush_interval_ms / 1000

    def obey(self, profile: Profile) -> None:
        """Go by a profile that was read again, of which only reloadable properties differ. Any thread may
        call it: whoever uses one of them asks the profile."""
        self.profile = profile
        self.channels.obey(profile)
        self.guard.obey(orders_of(profile))

    @property
    def state_dir(self) -> Path:
        """Return the pipeline's own folder."""
        return self.profile.engine.state_dir / self.profile.name

    def _tenure(self) -> Leadership:
        engine, component = self.profile.engine, self.profile.connector
        if not engine.standby:
            open_lease = None
        else:
            seconds = engine.lease_ms / 1000
            context = LeaseContext(
                seconds=seconds,
                stopping=self.stopping,
                password=chosen_password(self.host),
            )
            open_lease = partial(leases_of(component), component.properties, context)
        return Leadership(
            open_lease,
            seconds=engine.lease_ms / 1000,
            wait=self.wait,
            backoff=self.backoff,
            tell=self.stand_by,
        )

    def stand_by(self, why: str) -> None:
        """Wait as a standby; ``why`` says what for."""
        if self.entered[0] != "standby":
            log.warning("waits as a standby: %s", why, extra={"pipeline": self.profile.name})
            self.enter("standby", why)

    def stopping(self) -> bool:
        """Tell whether the run is to end: a stop was asked for, or ``max_seconds`` have passed."""
        if self._time_is_over():
            self.stop.set()
        return self.stop.is_set()

    def ends(self) -> bool:
        """Tell whether waits are to end: with the run, or because the lease is lost."""
        return self.stopping() or not self.tenure.held

    def begin_anew(self) -> None:
        """Forget what belongs to the connections and the sink so far: another process may have run the
        pipeline meanwhile."""
        self.channels = PipelineChannels(self.profile, self.host, self.clock, self.chance)
        self.replays = ReplayDesk()
        self.delivery = self.streaming = None
        self.linked = self.sink_open = self.started = self.cut = self.midway = False
        self.sink_stale = True
        self.made = MadeByRun()
        self.reconnects = self.backoff()
        self.guard = guardian_of(self)

    # --- its ends -----------------------------------------------------------------------------

    def backoff(self) -> RetryBackoff:
        """Return new waits between tries, as the profile wants them."""
        engine = self.profile.engine
        return RetryBackoff(
            self.wait,
            retries=engine.max_retries,
            ceiling_s=engine.retry_delay_ms / 1000,
            chance=self.chance,
        )

    def wait(self, seconds: float) -> bool:
        """Wait; False when a stop, or the end of ``max_seconds``, came in the meantime."""
        most = self.limits.max_seconds
        if most is not None:
            left = most - (self.clock.monotonic() - self._began)
            if left < seconds:
                self.clock.wait(max(0.0, left), self.stop.is_set)
                self.stop.set()
        return not self.clock.wait(seconds, self.stop.is_set)

    def left(self) -> int | None:
        """Return how much may still be delivered, None without a limit."""
        if self.limits.max_records is None or self.delivery is None:
            return self.limits.max_records
        delivery = self.delivery
        counted = self.counts.records if delivery.counts_records else self.counts.events
        return self.limits.max_records - counted

    def over(self) -> bool:
        """Tell whether so much was delivered, or so much time has passed, as the limits allow."""
        left = self.left()
        if left is not None and left <= 0 and not self.midway:
            return True
        return self._time_is_over()

    def _time_is_over(self) -> bool:
        most = self.limits.max_seconds
        return most is not None and self.clock.monotonic() - self._began >= most

    def let_go(self, lsn: int) -> int:
        """Return what of ``lsn``, which may be confirmed, the owner of the run lets go of."""
        return lsn if self.confirmable is None else min(lsn, self.confirmable(lsn))

    # --- what its surroundings are told -------------------------------------------------------

    def enter(self, state: str, detail: str) -> None:
        """Be in ``state`` from now on; ``detail`` is one line for people."""
        if state != self.entered[0]:  # each try enters it again
            self.entered = state, self.clock.time_ns()
        log.info(state, extra={"pipeline": self.profile.name})
        self.host.notify("on_state", pipeline=self.profile.name, state=state, detail=detail)

    def failed(self, error: Exception, *, retried: bool) -> None:
        """Tell observers of a failure."""
        at_ms = self.clock.time_ns() // 1_000_000
        self.last_failure = RecentFailure.of(error, at_ms, retried=retried)
        self.host.notify("on_failure", pipeline=self.profile.name, error=error, retried=retried)

    def look_on(self) -> None:
        """Say what the sink does not come to an end with: after `waltap.sink.stall.ms`, and then whenever
        that time has doubled."""
        found = self.counts.calls.in_flight()
        if found is None or not self._stalls(found):
            if self._next_word_s:
                log.info("the pipeline goes on", extra={"pipeline": self.profile.name})
            self._next_word_s = 0.0
        elif found[1] >= self._next_word_s:
            what, seconds = found
            self._next_word_s = 2 * seconds
            if (awaited := self.counts.calls.awaited) is not None:
                log.warning(
                    "%s has not answered; the pipeline has waited %s for it",
                    awaited,
                    duration(seconds),
                    extra={"pipeline": self.profile.name},
                )
                return
            log.warning(
                "sink %s has not come to an end with %s for %s; the pipeline waits for it",
                ", ".join(each.name for each in self.profile.outlets)
                or self.profile.sink.spec.name,
                what,
                duration(seconds),
                extra={"pipeline": self.profile.name},
            )

    def slot_notice(self, event: str, partition: PartitionOffset, lsn: int) -> None:
        """Tell observers what became of the slot."""
        self.host.notify(
            "on_slot", pipeline=self.profile.name, event=event, slot=partition.slot, lsn=lsn
        )

    def status(self) -> PipelineStatus:
        """Return the status now. May be called from any thread."""
        counts, streaming, delivery = self.counts, self.streaming, self.delivery
        now, now_ns = self.clock.monotonic(), self.clock.time_ns()
        state, since_ns = self.entered
        waiting = None if delivery is None else delivery.waiting_since
        in_flight = counts.calls.in_flight()
        by_table = counts.by_table
        return PipelineStatus(
            pipeline=self.profile.name,
            at_ms=now_ns // 1_000_000,
            started_ms=self.started_ns // 1_000_000,
            state=state,
            state_since_ms=since_ns // 1_000_000,
            partitions=() if delivery is None else self._partitions(delivery),
            events=counts.events,
            records=counts.records,
            snapshot_rows=counts.snapshot_rows,
            transactions=counts.transactions,
            batches=counts.batches,
            filtered=tuple(zip(self.transform_names, tuple(counts.filtered), strict=True)),
            events_per_second=tuple((s, counts.meter.per_second(now, s)) for s in RATE_WINDOWS_S),
            queued_events=0 if streaming is None else streaming.queued_events,
            unflushed_ms=None if waiting is None else max(0, round((now - waiting) * 1000)),
            write_ms=None if in_flight is None else round(in_flight[1] * 1000),
            stalled=in_flight is not None and self._stalls(in_flight),
            open_transactions=0 if streaming is None else streaming.open_transactions,
            held_bytes=0 if streaming is None else streaming.held_bytes,
            spilled_bytes=0 if streaming is None else streaming.spilled_bytes,
            captured_tables=self.captured_tables,
            snapshot=tuple(counts.tables.values()),
            reconnects=counts.reconnects,
            batch_retries=counts.batch_retries,
            left_out=counts.left_out,
            dead_letters=counts.dead_letters,
            notifications_lost=self.channels.lost,
            last_failure=self.last_failure,
            slot=self.guard.health,
            open_gaps=self.gaps.open,
            failures=self.journal.failures,
            schema_changes=self.journal.schema_changes,
            onward=() if delivery is None or not self.sink_open else delivery.onward(),
            snapshot_run=counts.snapshot.status(),
            incremental=None if delivery is None else _waiting(delivery.signals),
            tables=() if by_table is None else by_table.status(),
            last_event=None if by_table is None else by_table.last,
            last_transaction=counts.last_xid,
            lag_least_ms=counts.lag_least_ms,
            lag_most_ms=counts.lag_most_ms,
            queue_events=self.profile.engine.batch_events,
            spill_memory_bytes=self.profile.engine.spill_memory_bytes,
            metric_tables=self.profile.engine.metric_tables,
        )

    def _partitions(self, delivery: SinkWriter) -> tuple[PartitionStatus, ...]:
        confirmed = self.confirmed_lsn  # what comes last is read first (status.py)
        durable, written = delivery.offset.positions, delivery.written
        received, server = self.received_lsn, self.guard.server_lsn
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
        """Return how old the last change was when the sink took it; while the sink is at a call, or the
        pipeline is not connected, how old the oldest is that is not durable. Where that was never
        received, how long ago it came to the end of what the server had."""
        calls, lag_ms = self.counts.calls, self.counts.lag_ms
        oldest_ms, in_flight = calls.oldest_commit_ms, calls.in_flight()
        if in_flight is None and self.entered[0] == "streaming":
            return lag_ms
        held = self.entered[0] == "reconnecting" or (
            in_flight is not None and self._stalls(in_flight)
        )
        if oldest_ms is None and held and (server_lsn or 0) > durable.end_lsn:
            oldest_ms = calls.current_ms
        if oldest_ms is None:
            return lag_ms
        return max(lag_ms or 0, self.clock.time_ns() // 1_000_000 - oldest_ms)

    def _stalls(self, in_flight: tuple[str, float]) -> bool:
        return in_flight[1] * 1000 >= self.profile.engine.stall_ms

    def ready(self) -> None:
        """Write the ready file: what is committed from now on is captured."""
        if self._ready_file is not None:
            with _usable(self._ready_file):
                private_folder(self._ready_file.parent)
                os.close(private(self._ready_file, os.O_WRONLY | os.O_CREAT))
                os.utime(self._ready_file)


def _waiting(signals: Mapping[str, object]) -> IncrementalProgress | None:
    """Return what of incremental snapshots is to be read, of the state that goes into the offset."""
    state = IncrementalState.restored(signals)
    if not state.queue:
        return None
    return IncrementalProgress(
        table=state.queue[0].name, queued=len(state.queue) - 1, paused=state.paused
    )


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = PropertyProblem(str(path), f"cannot be written: {error.strerror}")
        raise ConfigurationError([problem], origin="the ready file") from error
