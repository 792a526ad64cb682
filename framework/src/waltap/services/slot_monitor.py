"""Monitor a slot: forecast its WAL, warn and act.

The engine passes each of its own readings to `SlotMonitor.take`. Without a reading for a while,
because a snapshot runs or a sink blocks, the monitor's thread reads the slot over its own
connection. The same thread acts on the server. The monitor never moves a position: the engine
confirms only durable positions.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from waltap.base.text import full_in, size
from waltap.clock import Clock
from waltap.config.pipeline_properties import EngineProperties, budget_bytes, octets
from waltap.errors import SourceError, StopRequested, WaltapError
from waltap.ports.source.slot_status import SlotStatus, SlotWatch
from waltap.services.monitor.status import SlotHealth

log = logging.getLogger(__name__)

SlotGivenUp = SourceError.define("SlotGivenUp", "WT-2030")

# Forecast: when the retained WAL reaches a limit, from the mean rates of a window. Sans-IO.
#
# Retained WAL grows while the server writes and shrinks when the slot releases WAL. The first of
# three limits counts: ``max_slot_wal_keep_size``, the budget of the profile, and the disk.

# Retained WAL falls in steps at checkpoints: the window must be long enough to hold several.
WINDOW_S = 900.0

SlotReading = tuple[float, SlotStatus]
"""One reading of a slot, with its time in seconds of a monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalLimit:
    """A limit of the WAL that a slot may retain."""

    # slot, budget or disk
    kind: str
    # bytes that the slot may retain in all
    total: int
    # bytes that it may retain in addition, never below 0
    remaining: int

    @property
    def used(self) -> float:
        """Return the used share, 0 to 1."""
        return 1.0 if self.total <= 0 else 1.0 - self.remaining / self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class WalForecast:
    """Rates of a slot's WAL and the time until its limit."""

    # growth of the retained WAL, bytes per second, mean of the window
    growth: float
    # WAL that the server writes, bytes per second, mean of the window
    written: float
    limit: WalLimit | None
    # seconds until the limit at this growth; None: never, or no limit is known
    seconds: float | None
    # the same if the slot releases nothing from now on
    stalled_seconds: float | None


def tightest(slot: SlotStatus, budget: int | None) -> WalLimit | None:
    """Return the limit with the fewest bytes left.

    None: no limit is known.
    """
    retained = slot.retained_bytes
    found = []
    if slot.safe_bytes is not None:
        remaining = max(0, slot.safe_bytes)
        found.append(WalLimit(kind="slot", total=retained + remaining, remaining=remaining))
    if budget is not None:
        found.append(WalLimit(kind="budget", total=budget, remaining=max(0, budget - retained)))
    if slot.free_bytes is not None:
        remaining = max(0, slot.free_bytes)
        found.append(WalLimit(kind="disk", total=retained + remaining, remaining=remaining))
    return min(found, key=lambda limit: limit.remaining, default=None)


def forecast(readings: Sequence[SlotReading], budget: int | None) -> WalForecast:
    """Return the forecast from readings, the oldest first.

    There must be at least one reading.
    """
    end, last = readings[-1]
    begin, first = next((at, slot) for at, slot in readings if end - at <= WINDOW_S)
    written = max(0.0, _rate(last.server_lsn - first.server_lsn, end - begin))
    growth = _rate(last.retained_bytes - first.retained_bytes, end - begin)
    # a slot that was created again within the window seems to grow faster than the server writes
    growth = min(growth, written)
    limit = tightest(last, budget)
    return WalForecast(
        growth=growth,
        written=written,
        limit=limit,
        seconds=_until(limit, growth),
        stalled_seconds=_until(limit, written),
    )


def _rate(octets: int, seconds: float) -> float:
    return octets / seconds if seconds > 0 else 0.0


def _until(limit: WalLimit | None, rate: float) -> float | None:
    if limit is None or (limit.remaining and rate <= 0):
        return None
    return limit.remaining / rate if limit.remaining else 0.0


# A threshold counts as crossed again only after the share fell this far below it. Retained WAL
# rises and falls, and each swing would warn otherwise.
SLACK = 0.05


@dataclass(frozen=True, slots=True)
class ThresholdCrossing:
    """The thresholds that one reading crossed."""

    # the highest newly crossed threshold, None for none
    warns: float | None
    # the share is at or above ``act_at``
    acts: bool
    # the share is below every threshold again
    calms: bool


class WalThresholds:
    """Remember the crossed thresholds.

    ``warn_at`` and ``act_at`` are shares of a limit.
    """

    def __init__(self, warn_at: Sequence[float], act_at: float) -> None:
        self._act_at = act_at
        self._all = sorted({*warn_at, act_at})
        self._passed: set[float] = set()

    def update(self, used: float) -> ThresholdCrossing:
        """Record the used share and return its crossings."""
        before = set(self._passed)
        new = {each for each in self._all if used >= each} - before
        self._passed = {each for each in before if used >= each - SLACK} | new
        return ThresholdCrossing(
            warns=max(new, default=None),
            acts=used >= self._act_at,
            calms=bool(before) and not self._passed,
        )

    @property
    def level(self) -> str:
        """Return ok, warned, or acted."""
        if not self._passed:
            return "ok"
        return "acted" if self._act_at in self._passed else "warned"


MOST_READINGS = 400
JOIN_S = 10.0

_POLICY: Final = attrgetter("wal_budget", "wal_disk", "wal_warn_at", "wal_act_at", "wal_action")


class SlotMonitor:
    """Monitor the slot of one run.

    Only the engine's thread calls `check` and `must_confirm`; any thread may read `health`. ``notify``
    sends a notification (kind, members). ``gave_up`` records the gap up to the end of WAL after a dropped
    slot, and returns the run's error. ``open_watch`` connects to the source; with None only the engine's
    readings count. ``every_s`` is the time between readings. The thread calls ``warn_if_stalled``
    regularly, also while the engine or the source is blocked.
    """

    def __init__(
        self,
        properties: EngineProperties,
        *,
        pipeline: str,
        clock: Clock,
        notify: Callable[..., None],
        gave_up: Callable[[SlotHealth, int], WaltapError],
        open_watch: Callable[[], SlotWatch] | None,
        every_s: float,
        warn_if_stalled: Callable[[], None],
    ) -> None:
        self._properties, self._clock, self._every_s = properties, clock, every_s
        self._notify, self._gave_up, self._open_watch = notify, gave_up, open_watch
        self._warn_if_stalled, self._extra = warn_if_stalled, {"pipeline": pipeline}
        self._thresholds = WalThresholds(properties.wal_warn_at, properties.wal_act_at)
        self._lock = threading.Lock()
        # Between two readings, under the lock.
        self._readings: deque[SlotReading] = deque(maxlen=MOST_READINGS)
        self._read_at = -math.inf
        self._due = self._paused = self._disk_reported = False
        self._action = self._reported = ""
        self._confirm_now = threading.Event()
        self._wake, self._end = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._given_up: WaltapError | None = None
        self.health: SlotHealth | None = None
        self.server_lsn: int | None = None
        """The end of the server's WAL at the last reading, of the engine or of the monitor."""

    # --- the engine's -----------------------------------------------------------------------------

    def take(self, slot: SlotStatus | None, orphans: Sequence[str] | None = None) -> None:
        """Record a reading of the slot and act on it.

        ``orphans`` names inactive slots without an offset; None keeps the known ones.
        """
        if slot is None:
            return
        self.server_lsn = slot.server_lsn
        with self._lock:
            readings, now = self._readings, self._clock.monotonic()
            while readings and now - readings[0][0] > WINDOW_S:
                readings.popleft()
            if len(readings) > 1 and now - readings[-2][0] < WINDOW_S / MOST_READINGS:
                readings.pop()  # faster ones replace the last one, so that the window fits the deque
            readings.append((now, slot))
            self._read_at = now
            predicted = forecast(readings, self._budget(slot))
            limit = predicted.limit
            crossing = None if limit is None else self._thresholds.update(limit.used)
            known = () if self.health is None else self.health.orphans
            health = self._health(slot, predicted, known if orphans is None else tuple(orphans))
            self.health = health
            if crossing is not None:
                self._act(health, crossing)

    def check(self) -> None:
        """Raise SlotGivenUp if the monitor dropped the slot."""
        if self._given_up is not None:
            raise self._given_up

    def must_confirm(self) -> bool:
        """Return whether the engine must confirm at once.

        Each request of the monitor returns True once.
        """
        wanted = self._confirm_now.is_set()
        self._confirm_now.clear()
        return wanted

    def pauses_snapshots(self) -> bool:
        """Return whether incremental snapshots must wait; any thread may call it."""
        return self._paused

    def apply_properties(self, properties: EngineProperties) -> None:
        """Apply the properties ``waltap.wal.*`` from the next reading on.

        Any thread may call it.
        """
        with self._lock:
            if _POLICY(properties) == _POLICY(self._properties):
                return
            if properties.wal_action != "pause":
                self._paused = False
            self._properties = properties
            self._action, self._disk_reported = "", False
            self._thresholds = WalThresholds(properties.wal_warn_at, properties.wal_act_at)

    # --- its own thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread that watches sink and source."""
        self._thread = threading.Thread(target=self._run, name="waltap-slot-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; may be called without `start`."""
        self._end.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def stopping(self) -> bool:
        """Return whether waits of the watch must end."""
        return self._end.is_set()

    def _run(self) -> None:
        watch: SlotWatch | None = None
        while not self._end.is_set():
            self._wake.wait(self._every_s / 2)
            self._wake.clear()
            if self._end.is_set():
                break
            self._warn_if_stalled()
            if self._open_watch is None or not (self._due or self._outdated()):
                continue
            try:
                watch = watch or self._open_watch()
                self._read_slot(watch)
            except StopRequested:
                break
            except WaltapError as error:
                self._warn_once(str(error))
                if watch is not None:
                    watch.close()
                watch = None
        if watch is not None:
            watch.close()

    def _read_slot(self, watch: SlotWatch) -> None:
        if self._outdated():
            self.take(watch.read())
        with self._lock:
            due, self._due = self._due, False
            health = self.health
        if not due or health is None:
            return
        if self._properties.wal_action == "advance":
            why = watch.log_standby_snapshot()
            if why:
                self._warn_once(f"the server could not be made to let go of WAL: {why}")
        elif self._properties.wal_action == "drop" and self._given_up is None:
            self._given_up = self._gave_up(health, watch.drop())
            log.error("%s", self._given_up, extra=self._extra)
            self._notify("SLOT_DROPPED", **_members(health), gap=self._given_up.problem)

    def _outdated(self) -> bool:
        return self._clock.monotonic() - self._read_at >= 1.5 * self._every_s

    # --- judging, under the lock -------------------------------------------------------------------

    def _health(
        self, slot: SlotStatus, predicted: WalForecast, orphans: tuple[str, ...]
    ) -> SlotHealth:
        limit = predicted.limit
        return SlotHealth(
            name=slot.name,
            at_ms=self._clock.time_ns() // 1_000_000,
            wal_status=slot.wal_status,
            retained_bytes=slot.retained_bytes,
            limit_kind="" if limit is None else limit.kind,
            limit_bytes=None if limit is None else limit.total,
            left_bytes=None if limit is None else limit.remaining,
            growth_per_s=predicted.growth,
            written_per_s=predicted.written,
            seconds_left=predicted.seconds,
            stalled_seconds_left=predicted.stalled_seconds,
            level=self._thresholds.level,
            action=self._action,
            invalidation=slot.invalidation,
            orphans=orphans,
        )

    def _budget(self, slot: SlotStatus) -> int | None:
        properties = self._properties
        disk = slot.disk_bytes if properties.wal_disk is None else octets(properties.wal_disk)
        budget = budget_bytes(properties.wal_budget, disk)
        if budget is None and properties.wal_budget is not None and not self._disk_reported:
            self._disk_reported = True
            log.warning(
                "waltap.wal.budget is %s, and the size of the disk that the server's WAL is on is not "
                "known here: set waltap.wal.disk",
                properties.wal_budget,
                extra=self._extra,
            )
        return budget

    # --- acting, under the lock --------------------------------------------------------------------

    def _act(self, health: SlotHealth, crossing: ThresholdCrossing) -> None:
        if crossing.warns is not None:
            log.warning("%s", _warning(health, crossing.warns), extra=self._extra)
            self._notify("WAL_WARNING", **_members(health))
        if crossing.calms:
            log.info("slot %s keeps little WAL again", health.name, extra=self._extra)
            self._notify("WAL_CALM", **_members(health))
        if crossing.acts:
            self._begin_to_act(health)
        elif self._paused and health.level != "acted":
            self._paused, self._action = False, ""
            log.info("incremental snapshots continue", extra=self._extra)
        elif health.level == "ok":
            self._action = ""

    def _begin_to_act(self, health: SlotHealth) -> None:
        action = self._properties.wal_action
        if action == "advance":
            self._done("what is delivered is confirmed at once; what is not is kept", health)
            self._confirm_now.set()
        elif action == "pause" and not self._paused:
            self._paused = True
            self._done("incremental snapshots are paused", health)
        elif action == "drop":
            self._done("the slot is dropped", health)
        if action in {"advance", "drop"}:
            self._due = True
            self._wake.set()

    def _done(self, what: str, health: SlotHealth) -> None:
        """Log and notify an action once."""
        if self._action != what:
            self._action = what
            self.health = replace(health, action=what)
            log.warning("slot %s: %s", health.name, what, extra=self._extra)
            self._notify("WAL_ACTION", **_members(health), action=self._properties.wal_action)

    def _warn_once(self, what: str) -> None:
        if self._reported != what:
            self._reported = what
            log.warning("the slot monitor: %s", what, extra=self._extra)


def _warning(health: SlotHealth, share: float) -> str:
    text = (
        f"slot {health.name} keeps {size(health.retained_bytes)} of WAL, {share:.0%} or more of what it "
        f"may ({size(health.limit_bytes)}: {LIMITS[health.limit_kind]})"
    )
    if health.seconds_left is not None:
        return f"{text}; as things go: {full_in(health.seconds_left)}"
    return text


LIMITS = {
    "slot": "max_slot_wal_keep_size of the server, behind which the slot is lost",
    "budget": "waltap.wal.budget",
    "disk": "the server's disk",
}


def _members(health: SlotHealth) -> dict[str, str]:
    """Return the members of notifications about a slot."""
    found = {
        "slot": health.name,
        "retained_bytes": str(health.retained_bytes),
        "limit": health.limit_kind,
        "limit_bytes": str(health.limit_bytes),
    }
    if health.seconds_left is not None:
        found["seconds_left"] = f"{health.seconds_left:.0f}"
    return found
