"""A sink in memory, and what outlives its instances."""

from collections.abc import Callable
from dataclasses import dataclass, field

from waltap.decode.message import Insert
from waltap.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.source.position import Positions
from waltap.specs import SinkSpec
from waltap.transactions.transaction import Batch, Heartbeat, SnapshotRows, TransactionPart
from waltap_testing.simulation.clock import VirtualClock

__all__ = ["SimulatedDestination", "sink_of"]


@dataclass(slots=True)
class SimulatedDestination:
    """What arrived. ``durable`` are the serials of rows that a flush promised, in order; what was written
    and not flushed when its instance ended is lost. ``writes`` has the times and sizes of batches,
    ``flushes`` and ``heartbeats`` the times. ``positions`` are those of the last flush.

    ``before_write`` and ``before_flush`` may raise what a sink raises; ``write_s``, ``flush_s`` and
    ``tend_s`` is how long each takes. ``exactly_once``: `Sink.open` returns ``positions``.
    ``partitions``: it takes those of several partitions.
    """

    clock: VirtualClock
    exactly_once: bool = False
    partitions: bool = True
    write_s: float = 0.0
    flush_s: float = 0.0
    tend_s: float = 0.0
    before_write: Callable[[Batch], object] = lambda _batch: None
    before_flush: Callable[[], object] = lambda: None
    durable: list[int] = field(default_factory=list)
    writes: list[tuple[float, int]] = field(default_factory=list)
    flushes: list[float] = field(default_factory=list)
    heartbeats: list[float] = field(default_factory=list)
    positions: Positions = field(default_factory=Positions)
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
            records=False,
            exactly_once=destination.exactly_once,
            partitions=destination.partitions,
        )
        self._pending: list[int] = []
        self._written = Positions()
        self._failed = False

    def open(self) -> Positions | None:
        return self.held()

    def held(self) -> Positions | None:
        destination = self._destination
        return destination.positions or None if destination.exactly_once else None

    def write(self, batch: Batch) -> None:
        destination = self._destination
        assert not self._failed, "written after a failed flush"
        destination.before_write(batch)
        destination.clock.wait(destination.write_s, _never)
        now = destination.clock.now
        for part in batch.parts:
            if isinstance(part, Heartbeat):
                destination.heartbeats.append(now)
            elif isinstance(part, SnapshotRows):
                self._pending += [int(str(row[1])) for row in part.rows]
            else:
                self._pending += _serials(part)
        destination.writes.append((now, batch.events))
        self._written = self._written.moved(batch.partition, batch.position)

    def flush(self) -> Positions | None:
        destination = self._destination
        assert not self._failed, "flushed after a failed flush"
        self._failed = True  # until it is known to have gone well
        destination.before_flush()
        destination.clock.wait(destination.flush_s, _never)
        self._failed = False
        destination.flushes.append(destination.clock.now)
        destination.durable += self._pending
        self._pending = []
        destination.positions = self._written or destination.positions
        return self._written or None

    def tend(self) -> None:
        self._destination.clock.wait(self._destination.tend_s, _never)

    def close(self) -> None:
        self._destination.closed += 1


def _serials(part: TransactionPart) -> list[int]:
    return [int(str(change.new[1])) for change in part.changes if isinstance(change, Insert)]


def _never() -> bool:
    return False
