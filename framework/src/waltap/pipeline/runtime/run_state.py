"""Keep the phase, limits and progress of a run over its reconnects."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from waltap.base.network.retry import RetryBackoff
from waltap.base.plugin_errors import usable
from waltap.changes.transactions.position import Position, Positions
from waltap.clock import Clock, RandomSource
from waltap.config.profile import Profile
from waltap.errors import SnapshotError, SourceError, WaltapError
from waltap.pipeline.runtime.leadership import Leadership, leases_of
from waltap.plugins.host import Host
from waltap.ports.offsets.offset import PartitionOffset
from waltap.ports.source.connector import MadeByRun
from waltap.ports.source.lease import LeaseContext
from waltap.ports.source.password import Password
from waltap.ports.specs import EventTransformSpec, RecordTransformSpec
from waltap.services.monitor.counts import RunCounters, SinkCalls, SnapshotTimes
from waltap.services.monitor.status import RecentFailure

log = logging.getLogger(__name__)


class StopFlag:
    """Hold the request to stop a run.

    It has no lock, unlike `threading.Event`: a signal handler interrupts its own thread, and would wait
    forever for a lock that this thread holds. A waiter polls the flag (`Clock.wait`).
    """

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limit a run; None is no limit."""

    # Seconds without a change while streaming, after everything that was there at the start.
    until_idle: float | None = None
    # Everything up to this LSN is delivered.
    until_lsn: int | None = None
    # Delivered records, or changes for sinks that take changes.
    max_records: int | None = None
    # Seconds since the start.
    max_seconds: float | None = None
    # ``max_records`` ends with a transaction, after a few more.
    whole_transactions: bool = False


class IdleDetector:
    """Decide when a silent stream is idle. Sans-IO.

    A server that still works through old WAL is silent, too. Until it has read up to ``target``, or to a
    position that rows wait for, its progress ends the silence, and only a much longer one (PATIENCE_S
    more) is idle: the server may be in the middle of something that it does not report, and a standby of
    an idle primary does not reach the position. So it is while rows wait for a watermark, which may be
    lost.
    """

    PATIENCE_S = 30.0

    def __init__(self, seconds: float, target: int, *, now: float) -> None:
        """Start now; ``target`` is the WAL's end, 0 if unknown."""
        self._seconds, self._target = seconds, target
        self._since, self._read = now, 0
        self._awaited: int | None = None
        self.caught_up = not target

    def broken(self, now: float) -> None:
        """Record a change."""
        self._since = now

    def lasted(self, now: float, read: int, awaited: int | None = None) -> bool:
        """Return whether the silence is long enough.

        ``read`` is the server's position, ``awaited`` the place that read rows wait for.
        """
        if awaited != self._awaited:
            self._awaited, self._since = awaited, now
        if (awaited or not self.caught_up) and read > self._read:
            self._read, self._since = read, now
        self.caught_up = self.caught_up or read >= self._target
        patiently = awaited is not None or not self.caught_up
        wanted = self._seconds + (self.PATIENCE_S if patiently else 0.0)
        return now - self._since >= wanted


Phase = Literal[
    "new", "checking", "standby", "snapshot", "streaming", "reconnecting", "stopped", "failed"
]
"""The phases of a run, as observers get them (`on_state`)."""

SinkPhase = Literal["new", "unusable", "open"]
"""Whether the sink was never opened, must be replaced before the next connection delivers, or takes
batches."""


class RunState:
    """Hold phase, limits and progress of one run.

    Only its own methods change it. The engine's thread calls them; any thread may read.
    """

    def __init__(
        self,
        profile: Profile,
        host: Host,
        limits: Limits,
        clock: Clock,
        chance: RandomSource,
        *,
        password: Password | None = None,
        repairs: bool = False,
        confirmable: Callable[[int], int] | None = None,
    ) -> None:
        self.profile, self.host, self.limits = profile, host, limits
        self.clock, self.chance = clock, chance
        # A lost position does not refuse the start: the run reads lost tables again.
        self.repairs = repairs
        # Returns how much of a confirmable LSN the owner of the run releases.
        self.confirmable = confirmable
        self.stop = StopFlag()
        # When the process ends as if killed, in seconds of the monotonic clock.
        self.killed_at = math.inf
        # The phase, and since when.
        self.entered: tuple[Phase, int] = ("new", clock.time_ns())
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
        self.captured_tables: tuple[str, ...] = ()
        self.received_lsn = self.confirmed_lsn = 0
        self.last_failure: RecentFailure | None = None
        seconds, open_lease = profile.engine.lease_ms / 1000, None
        if profile.engine.standby:
            context = LeaseContext(seconds=seconds, stopping=self.stopping, password=password)
            component = profile.connector
            open_lease = partial(leases_of(component), component.properties, context)
        self.leadership = Leadership(
            open_lease,
            seconds=seconds,
            wait=self.wait,
            backoff=self.backoff,
            report=self.stand_by,
        )
        self._began = clock.monotonic()
        self.restart()

    def restart(self) -> None:
        """Forget the connections and the sink.

        Another process may have run the pipeline meanwhile.
        """
        self.reconnects = self.backoff()
        # Retries after other failures than the source's: that it sends again proves nothing, until
        # something is durable.
        self.sink_retries = self.backoff()
        # What the run made on the server.
        self.made = MadeByRun()
        # A connection was made.
        self.linked = False
        # A plugin observes the slot.
        self._observes_slot = False
        # Rows were read, or the stream began.
        self.started = False
        self.sink: SinkPhase = "new"
        # The open sink's own position at its opening; None: another stream began since.
        self.sink_position: Position | Positions | None = None
        # The limit of records left out changes that had been received.
        self.cut = False
        # The end of a transaction must still be written (`Limits.whole_transactions`).
        self.midway = False
        self._counts_records = False

    # --- transitions --------------------------------------------------------------------------

    def begin(self) -> None:
        """Count ``max_seconds`` from now on."""
        self._began, self.started_ns = self.clock.monotonic(), self.clock.time_ns()

    def apply_profile(self, profile: Profile) -> None:
        """Replace the profile by one of which only reloadable properties differ."""
        self.profile = profile

    def enter(self, phase: Phase, detail: str) -> None:
        """Enter ``phase``; ``detail`` is one line for people."""
        if phase != self.entered[0]:  # each try enters it again
            self.entered = phase, self.clock.time_ns()
        log.info(phase, extra={"pipeline": self.profile.name})
        self.host.notify("on_state", pipeline=self.profile.name, state=phase, detail=detail)

    def stand_by(self, why: str) -> None:
        """Wait as a standby for the reason ``why``."""
        if self.entered[0] != "standby":
            log.warning("waits as a standby: %s", why, extra={"pipeline": self.profile.name})
            self.enter("standby", why)

    def connected(self) -> None:
        """Note that a connection was made: a broken one may come back."""
        self.linked, self._observes_slot = True, self.host.implements("on_slot")

    def delivers(self, *, records: bool) -> None:
        """Note whether limits count the sink's ``records``, or changes."""
        self._counts_records = records

    def capturing(self) -> None:
        """Record the first rows: failures are retried now."""
        self.started = True

    def captures(self, tables: tuple[str, ...]) -> None:
        self.captured_tables = tables

    def received(self, lsn: int) -> None:
        """Note the LSN of the last transaction of which something arrived."""
        self.received_lsn = lsn

    def cut_off(self, *, cut: bool, midway: bool) -> None:
        """Record changes beyond the limit, and a missing end."""
        self.cut, self.midway = cut, midway

    def confirmed(self, partition: PartitionOffset, lsn: int) -> None:
        """Note the LSN that the server got, and notify observers."""
        self.confirmed_lsn = lsn
        if self._observes_slot:
            self.slot_notice("confirmed", partition, lsn)

    def sink_enters(
        self, phase: SinkPhase, stored_position: Position | Positions | None = None
    ) -> None:
        """Note whether the sink may be written to, and its own position at its opening."""
        self.sink, self.sink_position = phase, stored_position

    def forget_sink_position(self) -> None:
        """Note that another stream begins."""
        self.sink_position = None

    def sink_failed(self) -> None:
        """Note that the next connection needs a new sink."""
        if self.sink == "open":
            self.sink = "unusable"

    def failed(self, error: Exception, *, retried: bool) -> None:
        """Notify observers of a failure."""
        at_ms = self.clock.time_ns() // 1_000_000
        self.last_failure = RecentFailure.of(error, at_ms, retried=retried)
        self.host.notify("on_failure", pipeline=self.profile.name, error=error, retried=retried)

    def slot_notice(self, event: str, partition: PartitionOffset, lsn: int) -> None:
        self.host.notify(
            "on_slot", pipeline=self.profile.name, event=event, slot=partition.slot, lsn=lsn
        )

    # --- waits and ends -----------------------------------------------------------------------

    @property
    def flush_s(self) -> float:
        """Return the seconds that a batch may wait for its flush."""
        return self.profile.engine.flush_interval_ms / 1000

    def now_ms(self) -> int:
        return self.clock.time_ns() // 1_000_000

    def stopping(self) -> bool:
        """Return whether the run must end, by a stop or ``max_seconds``."""
        if self._time_has_passed():
            self.stop.set()
        return self.stop.is_set()

    def end_within(self, seconds: float) -> None:
        """Request the end, which the operator awaits for ``seconds``, perhaps infinity."""
        self.killed_at = min(self.killed_at, self.clock.monotonic() + seconds)
        self.stop.set()

    def time_left(self) -> float:
        """Return the seconds until the process ends as if killed, perhaps infinity."""
        return self.killed_at - self.clock.monotonic()

    def ends(self) -> bool:
        """Return whether waits must end: run or lease is over."""
        return self.stopping() or not self.leadership.held

    def backoff(self) -> RetryBackoff:
        """Return new waits between tries, as the profile has them."""
        engine = self.profile.engine
        return RetryBackoff(
            self.wait,
            retries=engine.max_retries,
            ceiling_s=engine.retry_delay_ms / 1000,
            chance=self.chance,
        )

    def retries_after(self, error: WaltapError) -> RetryBackoff:
        """Return the waits between tries that ``error`` counts for."""
        by_source = isinstance(error, SourceError | SnapshotError)
        return self.reconnects if by_source else self.sink_retries

    def wait(self, seconds: float) -> bool:
        """Wait; return False if the run must end."""
        most = self.limits.max_seconds
        if most is not None:
            remaining = most - (self.clock.monotonic() - self._began)
            if remaining < seconds:
                self.clock.wait(max(0.0, remaining), self.stop.is_set)
                self.stop.set()
        return not self.clock.wait(seconds, self.stop.is_set)

    def remaining(self) -> int | None:
        """Return the remaining records or changes, None without a limit."""
        most = self.limits.max_records
        if most is None:
            return None
        return most - (self.counts.records if self._counts_records else self.counts.events)

    def is_finished(self) -> bool:
        remaining = self.remaining()
        if remaining is not None and remaining <= 0 and not self.midway:
            return True
        return self._time_has_passed()

    def _time_has_passed(self) -> bool:
        most = self.limits.max_seconds
        return most is not None and self.clock.monotonic() - self._began >= most

    def release(self, lsn: int) -> int:
        """Return the part of ``lsn`` that the owner releases."""
        if self.confirmable is None:
            return lsn
        return min(lsn, usable(self.confirmable(lsn), int, self.confirmable))
