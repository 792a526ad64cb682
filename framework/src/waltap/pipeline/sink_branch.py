"""One of several sinks of a pipeline, with what only it has: transforms, a format, a position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from waltap.clock import Clock
from waltap.config.profile import Component
from waltap.dead_letters.poison_events import PoisonEventHandler
from waltap.errors import SinkError
from waltap.events import EventTransform
from waltap.format.format import Format
from waltap.format.record_stage import RecordStep
from waltap.notifications.notification import Notification
from waltap.offsets.sink_positions import SinkProgress
from waltap.pipeline.sink_branch_properties import OutletProperties
from waltap.sink.held import require_held
from waltap.sink.refusal import RecordsRefused
from waltap.sink.sink import Sink
from waltap.source.position import SOLE, Position, Positions
from waltap.specs import FormatSpec, SinkSpec
from waltap.transactions.order import TransactionCounts, TransactionOrder
from waltap.transactions.remaining import remaining
from waltap.transactions.transaction import Batch, events_in
from waltap.transforms.applied import transformed

__all__ = [
    "OutletStages",
    "SinkBranch",
    "TransformChain",
]


# The transforms before a sink, by the stage that calls them.


@dataclass(slots=True, kw_only=True)
class TransformChain:
    """Transforms in the order of the profile: of batches, which are called first, of events, by name, and
    of records, both of which the format calls."""

    batches: list[Callable[[Batch], Batch]] = field(default_factory=list)
    events: list[tuple[str, EventTransform]] = field(default_factory=list)
    records: list[RecordStep] = field(default_factory=list)

    def forget(self, oid: int) -> None:
        """Have transforms of batches drop what they keep of a relation that is gone."""
        for transform in self.batches:
            forget = getattr(transform, "forget", None)
            if forget is not None:
                forget(oid)

    def made(self, batch: Batch, encoder: Format | None, now: int) -> Batch:
        """Return what transforms and format make of ``batch``, which stays as it is; ``now`` as in
        `Format.render`. Raises: RecordError."""
        own = msgspec.structs.replace(batch)
        for transform in self.batches:
            own = transformed(transform, own)
        if encoder is not None:
            own.records = encoder.render(own.parts, now)
        return own


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletStages:
    """What an outlet keeps while sinks come and go: its name, its sink's kind and factory, and the stages
    before the sink. The transforms of ``chain`` are those of the pipeline and then its own."""

    name: str
    component: Component[SinkSpec]
    format_component: Component[FormatSpec]
    properties: OutletProperties
    make: Callable[[], Sink]
    chain: TransformChain
    undeliverable: PoisonEventHandler
    format: Format | None = None
    order: TransactionOrder = field(default_factory=TransactionOrder)


class SinkBranch:
    """Gives one sink what it lacks, and knows how far it has got. Single-threaded.

    ``reached`` is what the sink has taken and ``durable`` what it has promised, by partition; ``paused``
    is why it gets nothing now, None while it does; ``flushed_ms`` when it was flushed last.
    """

    def __init__(self, stages: OutletStages, clock: Clock) -> None:
        self.stages, self._clock = stages, clock
        self.sink = stages.make()
        self.reached = self.durable = Positions()
        self.paused: SinkError | None = None
        self.retry_at = 0.0
        self.unflushed = False
        self.flushed_ms: int | None = None
        self._counted: dict[tuple[str, Position], TransactionCounts] = {}
        self._rendered: tuple[Batch, Batch, Batch] | None = None
        """A batch that is to be written, what the sink lacks of it, and what that is for the sink."""

    @property
    def name(self) -> str:
        """Return what the profile calls it."""
        return self.stages.name

    def open(self, kept: SinkProgress | None, stored: Positions, *, repairs: bool = False) -> None:
        """Open the sink; it goes on from what it keeps itself, else from ``kept``, else from ``stored``,
        the pipeline's own positions. With ``repairs`` it may have lost what it had. Raises: SinkError."""
        held = self.sink.open()
        if stored and kept is not None and not repairs:
            require_held(self.name, kept.held, Positions.of(held, next(iter(stored))))
        self.go_on(kept, stored, held)

    def go_on(
        self, kept: SinkProgress | None, stored: Positions, held: Position | Positions | None = None
    ) -> None:
        """Take note of how far the sink has got."""
        known = {**stored, **(kept.positions if kept else {})}
        if stored:
            for name, position in Positions.of(held, next(iter(stored))).items():
                known[name] = max(known.get(name, position), position)
        self.reached = self.durable = Positions(known)
        counted = kept.counted if kept else None
        first = next(iter(known.values()), None)
        if first is not None:
            self.stages.order.restore(counted, first)

    def begin_anew(self) -> None:
        """Forget positions: a new snapshot begins."""
        self.reached = self.durable = Positions()

    def lacks(self, batch: Batch) -> bool:
        """Tell whether a batch has anything for this sink."""
        reached = self.reached.get(batch.partition)
        return (
            reached is None
            or batch.snapshot
            or not batch.parts
            or bool(remaining(batch.parts, reached))
        )

    def write(self, batch: Batch) -> None:
        """Give the sink what it lacks of ``batch``; the same batch may be given again after a SinkError.

        Raises: SinkError; what transforms and formats raise.
        """
        if self._rendered is None or self._rendered[0] is not batch:
            lacking = self._lacking(batch)
            own = self.stages.undeliverable.made(lacking, self._made)
            self._rendered = batch, lacking, own
        _batch, lacking, own = self._rendered
        if own.parts or batch.snapshot:
            self._write(lacking, own)
            self.unflushed = True
        self._rendered = None
        position = max(self.reached.get(batch.partition, batch.position), batch.position)
        self.reached = self.reached.moved(batch.partition, position)
        counts = self.stages.order.counts_at(position)
        if counts is not None:
            self._counted[batch.partition, position] = counts

    def _write(self, given: Batch, own: Batch) -> None:
        """Write ``own``, which was made of ``given``, without what the sink refuses of it."""
        while True:
            try:
                self.sink.write(own)
            except RecordsRefused as error:
                self.stages.undeliverable.refused(given, own, self._made, error)
            else:
                return

    def _lacking(self, batch: Batch) -> Batch:
        """Return what the sink lacks of ``batch``."""
        reached = self.reached.get(batch.partition)
        parts = list(batch.parts)
        if reached is not None and not batch.snapshot:
            parts = remaining(parts, reached)
        return msgspec.structs.replace(batch, parts=parts, events=events_in(parts), records=None)

    def _made(self, batch: Batch) -> Batch:
        """Return what transforms and format make of ``batch``. Raises: RecordError."""
        return self.stages.chain.made(batch, self.stages.format, self._clock.time_ns())

    def tell(self, told: Sequence[Notification], topic: str, batch: Batch) -> None:
        """Give notifications to a sink of records; one of changes has no place for them.

        Raises: SinkError.
        """
        form = self.stages.format
        if form is not None:
            records = form.notifications(told, topic)
            made = msgspec.structs.replace(batch, records=records, told=())
            self._write(made, made)
            self.unflushed = True

    def flush(self) -> None:
        """Have the sink make durable what it took. Raises: SinkError."""
        if not self.unflushed:
            self.durable = self.reached
            return
        promised = self.sink.flush()
        self.unflushed, self.flushed_ms = False, self._clock.time_ns() // 1_000_000
        first = next(iter(self.reached), "")
        for name, position in Positions.of(promised, first).items():
            before = self.durable.get(name, position)
            self.durable = self.durable.moved(name, max(before, position))

    def kept(self) -> SinkProgress:
        """Return what a later run must know; what is behind it is let go."""
        counted = None
        for place in list(self._counted):
            name, position = place
            durable = self.durable.get(name)
            if durable == position:
                counted = self._counted[place]
            if durable is not None and position < durable:
                del self._counted[place]
        held = Positions.of(self.sink.held(), next(iter(self.durable), SOLE))
        return SinkProgress(positions=dict(self.durable), counted=counted, held=dict(held))

    def close(self) -> None:
        """Release the sink; may be called twice."""
        self.sink.close()
