"""A sink in memory whose data survives its instances."""

from collections.abc import Callable
from dataclasses import dataclass, field

from waltap.changes.decode.message import Insert
from waltap.changes.transactions.position import Positions
from waltap.changes.transactions.transaction import Batch, Heartbeat, SnapshotRows
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.specs import SinkSpec
from waltap_testing.simulation.clock import VirtualClock


@dataclass(slots=True)
class SimulatedDestination:
    """The delivered rows, and the faults and delays of the sink.

    Rows that were written but not flushed when an instance ends are lost, as in a real sink.
    """

    clock: VirtualClock
    # True: `Sink.open` returns ``positions``.
    exactly_once: bool = False
    # Whether the sink accepts several partitions.
    partitions: bool = True
    # Seconds that each maintain takes.
    maintain_s: float = 0.0
    # Hooks that may raise the errors a sink raises.
    before_write: Callable[[Batch], object] = lambda _batch: None
    before_flush: Callable[[], object] = lambda: None
    # Serials of the flushed rows, in order.
    durable: list[int] = field(default_factory=list)
    # (time, number of events) of each batch.
    writes: list[tuple[float, int]] = field(default_factory=list)
    # Times of flushes and heartbeats.
    flushes: list[float] = field(default_factory=list)
    heartbeats: list[float] = field(default_factory=list)
    # The positions of the last flush.
    positions: Positions = field(default_factory=Positions)
    # Sinks built and closed.
    made: int = 0
    closed: int = 0


def sink_of(destination: SimulatedDestination) -> SinkSpec:
    """Return the spec of a sink that writes to ``destination``."""

    def build(_properties: object, context: SinkContext) -> Sink:
        destination.made += 1
        return _SimulatedSink(destination, context)

    return SinkSpec(name="memory", summary="Memory.", factory=build)


class _SimulatedSink(Sink):
    def __init__(self, destination: SimulatedDestination, context: SinkContext) -> None:
        self._destination, self._stopping = destination, context.stopping
        self.capabilities = SinkCapabilities(
            records=False, exactly_once=destination.exactly_once, partitions=destination.partitions
        )
        self._pending: list[int] = []
        self._written = Positions()
        self._failed = False

    def open(self) -> Positions | None:
        return self.stored_position()

    def stored_position(self) -> Positions | None:
        destination = self._destination
        return destination.positions or None if destination.exactly_once else None

    def write(self, batch: Batch) -> None:
        destination = self._destination
        assert not self._failed, "written after a failed flush"
        destination.before_write(batch)
        now = destination.clock.now
        for part in batch.parts:
            if isinstance(part, Heartbeat):
                destination.heartbeats.append(now)
            elif isinstance(part, SnapshotRows):
                self._pending += [int(str(row[1])) for row in part.rows]
            else:
                inserts = (change for change in part.changes if isinstance(change, Insert))
                self._pending += [int(str(insert.new[1])) for insert in inserts]
        destination.writes.append((now, batch.events))
        self._written = self._written.advanced(batch.partition, batch.position)

    def flush(self) -> Positions | None:
        destination = self._destination
        assert not self._failed, "flushed after a failed flush"
        # The engine must replace a sink whose flush failed: a second flush could promise lost
        # rows.
        self._failed = True  # until it is known to have gone well
        destination.before_flush()
        self._failed = False
        destination.flushes.append(destination.clock.now)
        destination.durable += self._pending
        self._pending = []
        destination.positions = self._written or destination.positions
        return self._written or None

    def maintain(self) -> None:
        self._destination.clock.wait(self._destination.maintain_s, lambda: False)

    def close(self) -> None:
        self._destination.closed += 1
