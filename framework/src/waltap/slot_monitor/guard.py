"""The guardian of a run: it looks at the slot, foretells, warns, and acts as the profile says.

The engine hands it every look of its own (`SlotMonitor.take`). Where none has come for a while, because a
snapshot is read or a sink waits, a thread of the guardian's looks over a connection of its own; that
thread is also the one that acts on the server. Whatever it does, no position moves by it: what is
confirmed is what was durable before.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from waltap.amounts import full_in, size
from waltap.errors import WaltapError
from waltap.slot_monitor.budget import budget_bytes, octets
from waltap.slot_monitor.health import SlotHealth
from waltap.source.connector import StopRequested
from waltap.source.slot_status import SlotStatus
from waltap.source.slot_watch import SlotWatch

__all__ = [
    "WINDOW_S",
    "SlotMonitor",
    "SlotMonitorDependencies",
    "SlotReading",
    "ThresholdCrossing",
    "WalBudgetPolicy",
    "WalForecast",
    "WalLimit",
    "WalThresholds",
    "forecast",
    "tightest",
]

log = logging.getLogger(__name__)


# How long until the WAL that a slot keeps is too much, from the mean rates of a window. Sans-IO.
#
# What is kept grows by what the server writes and shrinks by what the slot lets go of. Three
# things may be full first: what ``max_slot_wal_keep_size`` leaves the slot, the budget of the
# profile, and the disk.

WINDOW_S = 900.0
"""What is older counts for nothing. What is kept is a saw whose teeth are checkpoints: it has some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReading:
    """One look at a slot: seconds of a clock that never goes back, LSNs, and what the server says may be
    written before the slot is in danger (``safe_bytes``), or is free on its disk; None: unknown."""

    at_s: float
    server_lsn: int
    restart_lsn: int
    safe_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def retained_bytes(self) -> int:
        """Return how much WAL the slot keeps."""
        return max(0, self.server_lsn - self.restart_lsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalLimit:
    """What would be full: ``kind`` is slot, budget or disk, ``whole`` what the slot may keep, ``left``
    what it may keep beyond what it does, never below 0."""

    kind: str
    whole: int
    left: int

    @property
    def used(self) -> float:
        """Return the share that is used, 0 to 1."""
        return 1.0 if self.whole <= 0 else 1.0 - self.left / self.whole


@dataclass(frozen=True, slots=True, kw_only=True)
class WalForecast:
    """``growth`` and ``written`` are bytes a second, in the mean of the window: by how much more is kept,
    and what the server writes. ``seconds``: until the limit, as things go; None: never, or no limit is
    known. ``stalled_seconds``: were nothing let go of from now on."""

    growth: float
    written: float
    limit: WalLimit | None
    seconds: float | None
    stalled_seconds: float | None


def tightest(reading: SlotReading, budget: int | None) -> WalLimit | None:
    """Return the limit of which the least is left, None where none is known."""
    kept = reading.retained_bytes
    found = []
    if reading.safe_bytes is not None:
        left = max(0, reading.safe_bytes)
        found.append(WalLimit(kind="slot", whole=kept + left, left=left))
    if budget is not None:
        found.append(WalLimit(kind="budget", whole=budget, left=max(0, budget - kept)))
    if reading.free_bytes is not None:
        left = max(0, reading.free_bytes)
        found.append(WalLimit(kind="disk", whole=kept + left, left=left))
    return min(found, key=lambda limit: limit.left, default=None)


def forecast(readings: Sequence[SlotReading], budget: int | None) -> WalForecast:
    """Return what is to come after ``readings``, the oldest first, at least one."""
    last = readings[-1]
    first = next(each for each in readings if last.at_s - each.at_s <= WINDOW_S)
    written = max(0.0, _rate(last.server_lsn - first.server_lsn, last.at_s - first.at_s))
    growth = _rate(last.retained_bytes - first.retained_bytes, last.at_s - first.at_s)
    # What is kept seems to grow faster than what is written where a slot was made anew in the window.
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
    if limit is None or (limit.left and rate <= 0):
        return None
    return limit.left / rate if limit.left else 0.0


# When the guardian warns, and when it acts. Sans-IO.

SLACK = 0.05
"""So much below a threshold its next crossing counts again: what is kept goes up and down."""


@dataclass(frozen=True, slots=True)
class ThresholdCrossing:
    """What a look brought. ``warns``: the highest threshold that was passed anew, None for none;
    ``acts``: the share is at or above that of acting; ``calms``: it is below every threshold again."""

    warns: float | None
    acts: bool
    calms: bool


class WalThresholds:
    """Remembers which thresholds were passed. ``warn_at`` are shares of a limit, ``act_at`` is one."""

    def __init__(self, warn_at: Sequence[float], act_at: float) -> None:
        self._act_at = act_at
        self._all = sorted({*warn_at, act_at})
        self._passed: set[float] = set()

    def look(self, used: float) -> ThresholdCrossing:
        """Take note of the share that is used now."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WalBudgetPolicy:
    """What the profile says: the properties ``waltap.wal.*``."""

    budget: str | None = None
    disk: str | None = None
    warn_at: Sequence[float] = (0.5, 0.8)
    act_at: float = 0.9
    action: str = "nothing"


@dataclass(slots=True, kw_only=True)
class SlotMonitorDependencies:
    """What the guardian reaches of its run. ``monotonic`` in seconds, ``now_ms`` since 1970 UTC. ``tell``
    sends a notification (kind, members). ``look_on`` is called now and then by the guardian's thread,
    whatever the engine waits for and whether or not the source can be looked at. ``pause`` holds
    incremental snapshots (True), or lets them go on. ``gave_up`` gets the end of WAL behind a slot that
    was dropped, keeps the gap, and returns what the run ends with. ``open_watch`` connects; None: the
    source has no watch, and only the engine's looks count. ``every_s`` is how often a look is due."""

    pipeline: str
    monotonic: Callable[[], float]
    now_ms: Callable[[], int]
    tell: Callable[..., None]
    pause: Callable[[bool], None]
    gave_up: Callable[[SlotHealth, int], WaltapError]
    open_watch: Callable[[], SlotWatch] | None = None
    every_s: float = 10.0
    look_on: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _MonitorState:
    """What changes from look to look."""

    readings: deque[SlotReading] = field(default_factory=lambda: deque(maxlen=MOST_READINGS))
    due: bool = False
    paused: bool = False
    action: str = ""
    told: str = ""
    disk_told: bool = False


class SlotMonitor:
    """Guards one run. `take`, `check` and `hurries` are the engine's; `health` anybody's."""

    def __init__(self, orders: WalBudgetPolicy, surroundings: SlotMonitorDependencies) -> None:
        self._orders, self._about = orders, surroundings
        self._thresholds = WalThresholds(orders.warn_at, orders.act_at)
        self._lock = threading.Lock()
        self._memory = _MonitorState()
        self._hurry = threading.Event()
        self._wake, self._end = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._given_up: WaltapError | None = None
        self.health: SlotHealth | None = None
        self.server_lsn: int | None = None
        """The end of the server's WAL as of the last look, whoever looked."""

    # --- the engine's -----------------------------------------------------------------------------

    def take(self, slot: SlotStatus | None, orphans: Sequence[str] | None = None) -> None:
        """Take note of a look at the slot; ``orphans`` are named, None: as before."""
        if slot is None:
            return
        self.server_lsn = slot.server_lsn
        with self._lock:
            known = () if self.health is None else self.health.orphans
            health, crossing = self._judged(slot, known if orphans is None else tuple(orphans))
            self.health = health
            self._act(health, crossing)

    def check(self) -> None:
        """Raises: SlotGivenUp, where the guardian dropped the slot."""
        if self._given_up is not None:
            raise self._given_up

    def hurries(self) -> bool:
        """Tell whether what can be confirmed is to be confirmed now; once for each time."""
        wanted = self._hurry.is_set()
        self._hurry.clear()
        return wanted

    def obey(self, orders: WalBudgetPolicy) -> None:
        """Go by other orders from the next look on. Any thread may call it."""
        with self._lock:
            if orders == self._orders:
                return
            if self._memory.paused and orders.action != "pause":
                self._memory.paused = False
                self._about.pause(False)
            self._orders, self._memory.action, self._memory.disk_told = orders, "", False
            self._thresholds = WalThresholds(orders.warn_at, orders.act_at)

    # --- its own thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look: at the sink, and where that can be done beside the engine, at the source."""
        self._thread = threading.Thread(target=self._run, name="waltap-guardian", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; may be called without `start`."""
        self._end.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def stopping(self) -> bool:
        """Tell whether waits of the watch are to end."""
        return self._end.is_set()

    def _run(self) -> None:
        watch: SlotWatch | None = None
        while not self._end.is_set():
            self._wake.wait(self._about.every_s / 2)
            self._wake.clear()
            if self._end.is_set():
                break
            self._about.look_on()
            if self._about.open_watch is None or not (self._memory.due or self._stale()):
                continue
            try:
                watch = watch or self._about.open_watch()
                self._look(watch)
            except StopRequested:
                break
            except WaltapError as error:
                self._tell_once(str(error))
                if watch is not None:
                    watch.close()
                watch = None
        if watch is not None:
            watch.close()

    def _look(self, watch: SlotWatch) -> None:
        if self._stale():
            self.take(watch.look())
        with self._lock:
            due, self._memory.due = self._memory.due, False
            health = self.health
        if not due or health is None:
            return
        if self._orders.action == "advance":
            why = watch.hasten()
            if why:
                self._tell_once(f"the server could not be made to let go of WAL: {why}")
        elif self._orders.action == "drop" and self._given_up is None:
            self._drop(watch, health)

    def _drop(self, watch: SlotWatch, health: SlotHealth) -> None:
        end = watch.drop()
        self._given_up = self._about.gave_up(health, end)
        log.error("%s", self._given_up, extra=self._extra())
        self._about.tell("SLOT_DROPPED", **_members(health), gap=self._given_up.problem)

    def _stale(self) -> bool:
        readings = self._memory.readings
        return (
            not readings or self._about.monotonic() - readings[-1].at_s >= 1.5 * self._about.every_s
        )

    # --- judging, under the lock -------------------------------------------------------------------

    def _judged(
        self, slot: SlotStatus, orphans: tuple[str, ...]
    ) -> tuple[SlotHealth, ThresholdCrossing | None]:
        memory, now = self._memory, self._about.monotonic()
        reading = SlotReading(
            at_s=now,
            server_lsn=slot.server_lsn,
            restart_lsn=slot.restart_lsn or slot.server_lsn,
            safe_bytes=slot.safe_bytes,
            free_bytes=slot.free_bytes,
        )
        readings = memory.readings
        while readings and now - readings[0].at_s > WINDOW_S:
            readings.popleft()
        if len(readings) > 1 and now - readings[-2].at_s < WINDOW_S / MOST_READINGS:
            readings.pop()  # looks that come faster take the place of the last one
        readings.append(reading)
        told = forecast(readings, self._budget(slot))
        crossing = None if told.limit is None else self._thresholds.look(told.limit.used)
        return self._health(slot, reading, told, orphans), crossing

    def _health(
        self, slot: SlotStatus, reading: SlotReading, told: WalForecast, orphans: tuple[str, ...]
    ) -> SlotHealth:
        limit = told.limit
        return SlotHealth(
            name=slot.name,
            at_ms=self._about.now_ms(),
            wal_status=slot.wal_status,
            retained_bytes=reading.retained_bytes,
            limit_kind="" if limit is None else limit.kind,
            limit_bytes=None if limit is None else limit.whole,
            left_bytes=None if limit is None else limit.left,
            growth_per_s=told.growth,
            written_per_s=told.written,
            seconds_left=told.seconds,
            stalled_seconds_left=told.stalled_seconds,
            level=self._thresholds.level,
            action=self._memory.action,
            invalidation=slot.invalidation,
            orphans=orphans,
        )

    def _budget(self, slot: SlotStatus) -> int | None:
        orders = self._orders
        disk = slot.disk_bytes if orders.disk is None else octets(orders.disk)
        budget = budget_bytes(orders.budget, disk)
        if budget is None and orders.budget is not None and not self._memory.disk_told:
            self._memory.disk_told = True
            log.warning(
                "waltap.wal.budget is %s, and the size of the disk that the server's WAL is on is not "
                "known here: set waltap.wal.disk",
                orders.budget,
                extra=self._extra(),
            )
        return budget

    # --- acting, under the lock --------------------------------------------------------------------

    def _act(self, health: SlotHealth, crossing: ThresholdCrossing | None) -> None:
        if crossing is None:
            return
        if crossing.warns is not None:
            log.warning("%s", _warning(health, crossing.warns), extra=self._extra())
            self._about.tell("WAL_WARNING", **_members(health))
        if crossing.calms:
            log.info("slot %s keeps little WAL again", health.name, extra=self._extra())
            self._about.tell("WAL_CALM", **_members(health))
        if crossing.acts:
            self._begin_to_act(health)
        elif self._memory.paused and health.level != "acted":
            self._memory.paused, self._memory.action = False, ""
            log.info("incremental snapshots go on", extra=self._extra())
            self._about.pause(False)
        elif health.level == "ok":
            self._memory.action = ""

    def _begin_to_act(self, health: SlotHealth) -> None:
        action, memory = self._orders.action, self._memory
        if action == "advance":
            self._done("what is delivered is confirmed at once; what is not is kept", health)
            self._hurry.set()
        elif action == "pause" and not memory.paused:
            memory.paused = True
            self._done("incremental snapshots are paused", health)
            self._about.pause(True)
        elif action == "drop":
            self._done("the slot is dropped", health)
        if action in {"advance", "drop"}:
            memory.due = True
            self._wake.set()

    def _done(self, what: str, health: SlotHealth) -> None:
        """Tell once what is done."""
        if self._memory.action != what:
            self._memory.action = what
            self.health = replace(health, action=what)
            log.warning("slot %s: %s", health.name, what, extra=self._extra())
            self._about.tell("WAL_ACTION", **_members(health), action=self._orders.action)

    def _tell_once(self, what: str) -> None:
        if self._memory.told != what:
            self._memory.told = what
            log.warning("the guardian of the slot: %s", what, extra=self._extra())

    def _extra(self) -> dict[str, str]:
        return {"pipeline": self._about.pipeline}


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
    """Return what notifications say of it."""
    found = {
        "slot": health.name,
        "retained_bytes": str(health.retained_bytes),
        "limit": health.limit_kind,
        "limit_bytes": str(health.limit_bytes),
    }
    if health.seconds_left is not None:
        found["seconds_left"] = f"{health.seconds_left:.0f}"
    return found
