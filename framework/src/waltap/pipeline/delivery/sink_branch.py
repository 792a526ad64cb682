"""Render batches for one sink and write them without refused events.

A pipeline has one branch for each of its sinks, mostly one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Final

import msgspec

from waltap.base.plugin_errors import UnusableResult, usable
from waltap.changes.events import EventTransform
from waltap.changes.events.event import Record
from waltap.changes.transactions.order import NOTHING_COUNTED, TransactionCounts, TransactionOrder
from waltap.changes.transactions.position import SOLE, Position, Positions
from waltap.changes.transactions.transaction import (
    Batch,
    Notification,
    SnapshotRows,
    position_after,
    transactions_in,
    undelivered,
    within,
)
from waltap.clock import Clock
from waltap.config.pipeline_properties import SinkBranchProperties
from waltap.config.profile import Component
from waltap.encoders.format.format import Format
from waltap.encoders.format.record_stage import RecordStep
from waltap.errors import RecordError, RetryVerdict, SinkError, WaltapError
from waltap.ports.offsets.offset import SinkProgress
from waltap.ports.sink.refusal import RecordsRefused
from waltap.ports.sink.roles import RelationCachingSink, flush_acknowledged, stored_position_of
from waltap.ports.sink.sink import Sink
from waltap.ports.sink.stored_position import require_stored
from waltap.ports.specs import FormatSpec, SinkSpec
from waltap.ports.transforms.applied import transformed
from waltap.services.dead_letters.poison_events import PoisonEventHandler

Attempt = Callable[[Callable[[Batch], None], Batch], None]
"""Calls the write of a sink with a batch, as often as it takes."""

PARTS: Final = {bytes, NoneType}
"""The classes of a record's key and value."""


def plain(write: Callable[[Batch], None], batch: Batch) -> None:
    """Write ``batch`` once."""
    write(batch)


def positions_of(sink: object, call: str, given: object, partition: str) -> Positions:
    """Return the positions that ``call`` of a sink returned.

    A single position is of ``partition``. Raises: UnusableResult.
    """
    try:
        return Positions.of(given, partition)  # type: ignore[arg-type] # it checks the type
    except TypeError as error:
        raise UnusableResult(sink, call, str(error)) from error


@dataclass(slots=True, kw_only=True)
class TransformChain:
    """Hold the transforms before a sink, by stage."""

    # The engine calls these, before all others.
    batches: list[Callable[[Batch], Batch]] = field(default_factory=list)
    # The format calls these two; events have the transform's name beside them.
    events: list[tuple[str, EventTransform]] = field(default_factory=list)
    records: list[RecordStep] = field(default_factory=list)

    def forget(self, oid: int) -> None:
        """Drop the state that batch transforms keep of a dropped relation."""
        for transform in self.batches:
            forget = getattr(transform, "forget", None)
            if forget is not None:
                forget(oid)


@dataclass(slots=True, kw_only=True, eq=False)
class SinkBranch:
    """Render batches for one sink, and write them. Single-threaded.

    `renew` makes the sink; the other parts outlive it.
    """

    # The sink's name in the profile, "" for the only one.
    name: str
    component: Component[SinkSpec]
    format_component: Component[FormatSpec]
    make: Callable[[], Sink]
    make_format: Callable[[], Format]
    # The pipeline's transforms and then the sink's own.
    chain: TransformChain
    undeliverable: PoisonEventHandler
    order: TransactionOrder
    clock: Clock
    properties: SinkBranchProperties = field(default_factory=SinkBranchProperties)
    # None as long as no sink was made, and where the sink takes changes.
    format: Format | None = None
    sink: Sink = field(init=False)
    # How many events each batch transform left out of the last batch.
    left_out: list[int] = field(init=False)

    def renew(self) -> None:
        """Make an unopened sink, and its format once."""
        self.sink, self.left_out = self.make(), [0] * len(self.chain.batches)
        if self.format is None and self.sink.capabilities.records:
            self.format = self.make_format()

    @property
    def renders(self) -> bool:
        """Return whether the sink takes records that a format renders."""
        return self.format is not None

    notifies = renders  # notifications are records
    takes_rows = True

    @property
    def transforms(self) -> bool:
        """Return whether transforms or converters see the rows before the sink."""
        return bool(self.chain.batches)

    def begin(self, offset: Positions, storable: Callable[[Positions], Positions]) -> None:
        """Record that the changes after ``offset`` come next.

        Of durable positions the pipeline stores ``storable``.
        """

    def advance(self, partition: str, lsn: int) -> None:
        """Record that no change for the sink is left before ``lsn``."""

    def forget(self, oid: int) -> None:
        """Drop the state of a dropped relation, here and in the sink."""
        if self.format is not None:
            self.format.forget(oid)
        self.chain.forget(oid)
        if isinstance(self.sink, RelationCachingSink):
            self.sink.forget(oid)

    def rendered(self, given: Batch) -> Batch:
        """Return the batch for the sink, without events that cannot be rendered.

        Raises: what transforms and formats raise, if the failure policy is to stop.
        """
        savepoint = self.order.savepoint() if self.order.counting else NOTHING_COUNTED
        try:
            return self.render(given)
        except RecordError:
            return self.undeliverable.made_without(given, self.render, savepoint)

    def render(self, batch: Batch) -> Batch:
        """Apply transforms and format to a copy of ``batch``.

        Raises: RecordError.
        """
        own = msgspec.structs.replace(batch)
        for index, transform in enumerate(self.chain.batches):
            before = own.events
            own = transformed(transform, own)
            self.left_out[index] = before - own.events
        if self.format is not None:
            records = self.format.render(own.parts, self.clock.time_ns())
            # Each batch passes here, so calls only for a wrong result.
            if not isinstance(records, Sequence):
                usable(records, Sequence, self.format, "render")
            elif records.__class__ is list and records:
                last = records[-1]
                if {getattr(last, "key", 0).__class__, getattr(last, "value", 0).__class__} - PARTS:
                    self._require_bytes(records)
            own.records = records
        return own

    def _require_bytes(self, records: Sequence[Record]) -> None:
        """Refuse records with other parts than bytes. Raises: UnusableResult."""
        assert self.format is not None
        for record in records:
            usable(record, Record, self.format, "render")
            headers = [("header", text) for _, text in record.headers]
            for name, part in (("key", record.key), ("value", record.value), *headers):
                usable(part, (bytes, NoneType), *self.format.writer(name))

    def give(self, given: Batch, own: Batch, attempt: Attempt = plain) -> None:
        """Write ``own``, rendered from ``given``, without events that the sink refuses.

        Raises: SinkError; UnusableResult, if records are to blame for the sink's error.
        """
        while True:
            try:
                attempt(self.sink.write, own)
            except RecordsRefused as error:
                self.undeliverable.refused(given, own, self.render, error)
            except Exception as error:
                if own.records and not isinstance(error, WaltapError):
                    self._require_bytes(own.records)
                raise
            else:
                return

    def notify(
        self,
        notifications: Sequence[Notification],
        topic: str,
        batch: Batch,
        attempt: Attempt = plain,
    ) -> Batch:
        """Write notifications as records in a copy of the empty ``batch``.

        Return that copy. Only for a sink of records: one of changes has no place for them. Raises:
        SinkError.
        """
        assert self.format is not None, "only records can be notifications"
        records = self.format.notifications(notifications, topic)
        own = msgspec.structs.replace(batch, records=records)
        self.give(own, own, attempt)
        return own


class PositionedBranch(SinkBranch):
    """One of several branches, with the positions of its sink."""

    def renew(self) -> None:
        super().renew()
        # By partition, the last position that the branch took, the last with anything for the sink, and
        # the last that the sink made durable.
        self.written = self._given = self.durable = Positions()
        # The positions that the sink had stored when it was asked last.
        self._stored_positions = Positions()
        # The failure that paused the sink; None: it gets batches.
        self.paused: SinkError | None = None
        self.retry_at, self.unflushed = 0.0, False
        # Whether snapshot rows, which no stream repeats, may not be durable.
        self.holds_rows = False
        # The number of the last batch that the sink took.
        self._last = 0
        self.flushed_ms: int | None = None
        self._counted: dict[tuple[str, Position], TransactionCounts] = {}
        # Where the counting of events is, by partition: the sink itself may be ahead.
        self._counted_to = Positions()
        # A batch that was not written yet, its events that the sink lacks, and these as rendered.
        self._waiting: tuple[Batch, Batch, Batch] | None = None

    def open(
        self, progress: SinkProgress | None, stored: Positions, *, repairs: bool = False
    ) -> None:
        """Open the sink and find its position.

        The sink continues from its own position, else from ``progress``, else from ``stored``, the
        pipeline's positions. With ``repairs`` the sink may have lost data. Raises: SinkError; then the
        sink's own position is unknown.
        """
        self.continue_from(progress, stored)
        stored_position = positions_of(
            self.sink, "open", self.sink.open(), next(iter(stored), SOLE)
        )
        if stored and progress is not None and not repairs:
            require_stored(
                self.name,
                progress.sink_positions,
                stored_position,
            )
        self.continue_from(progress, stored, stored_position)

    def continue_from(
        self,
        progress: SinkProgress | None,
        stored: Positions,
        stored_position: Position | Positions | None = None,
    ) -> None:
        own = Positions.of(stored_position, next(iter(stored))) if stored else Positions()
        self._counted_to = _latest(stored, progress.positions if progress else {})
        self.written = self._given = self.durable = _latest(self._counted_to, own)
        self._stored_positions = Positions(progress.sink_positions if progress else {})
        counted = progress.counted if progress else None
        for name, first in [*self._counted_to.items()][:1]:
            self.order.restore(counted, first)
            self._note_counts(name)

    def begin_again(self) -> None:
        """Forget positions: a new snapshot begins."""
        self.written = self._given = self.durable = self._stored_positions = Positions()

    def advance(self, partition: str, lsn: int) -> None:
        # The sink may be ahead: it would get twice what it has.
        self.written = self.written.passed(partition, lsn)
        self.durable = self.durable.passed(partition, lsn)
        self._counted_to = self._counted_to.passed(partition, lsn)
        self._note_counts(partition)

    def pause(self, error: SinkError) -> None:
        """Write nothing for a while, because of ``error``."""
        if error.retry is RetryVerdict.SAME_BATCH:
            error.retry = RetryVerdict.RECONNECT  # the sink is closed, and another gets the batch
        self.paused = error
        self.retry_at = self.clock.monotonic() + self.properties.retry_ms / 1000

    def write(self, batch: Batch) -> None:
        """Give the sink the events of ``batch`` that it lacks.

        The same batch may come again after a SinkError. Raises: SinkError; what transforms and formats
        raise.
        """
        if self._waiting is None or self._waiting[0] is not batch:
            missing = self._missing(batch)
            self._waiting = batch, missing, self.rendered(missing)
        _batch, missing, own = self._waiting
        position = missing.position
        if own.parts or batch.snapshot:
            self.give(missing, own)
            self.unflushed, self._last = True, batch.number
            self.holds_rows = self.holds_rows or reads_rows(batch)
            self._given = self._given.advanced(batch.partition, position)
        self._waiting = None
        self.written = self.written.advanced(batch.partition, position)
        if transactions_in(missing.parts):
            self._counted_to = self._counted_to.advanced(batch.partition, position)
        self._note_counts(batch.partition)

    def _note_counts(self, partition: str) -> None:
        position = self._counted_to.get(partition)
        counts = None if position is None else self.order.counts_at(position)
        if counts is not None and position is not None:
            self._counted[partition, position] = counts

    def _missing(self, batch: Batch) -> Batch:
        """Return the events of ``batch`` that the sink lacks."""
        written = self.written.get(batch.partition)
        missing = batch if written is None else undelivered(batch, written)
        if written is not None and written.index and self.renders:
            self._count(batch, written)
        # A list of its own: transforms may change it.
        return msgspec.structs.replace(missing, parts=list(missing.parts), records=None)

    def _count(self, batch: Batch, written: Position) -> None:
        """Count the events of a transaction that the sink itself has."""
        before = self._counted_to.get(batch.partition, written)
        if before < written and (left_out := within(batch, before, written)).parts:
            self.rendered(left_out)
            reached = position_after(transactions_in(left_out.parts), before)
            reached = written if reached.index == written.index else reached
            self._counted_to = self._counted_to.advanced(batch.partition, reached)
            self._note_counts(batch.partition)

    def notify(
        self,
        notifications: Sequence[Notification],
        topic: str,
        batch: Batch,
        attempt: Attempt = plain,
    ) -> Batch:
        made = super().notify(notifications, topic, self._missing(batch), attempt)
        self.unflushed, self._last = True, batch.number
        return made

    def flush(self) -> None:
        """Make the written batches durable. Raises: SinkError."""
        if not self.unflushed:
            self.durable = self.written
            return
        first = next(iter(self.written), SOLE)
        flushed = flush_acknowledged(self.sink, self._last, self._given)
        promised = positions_of(self.sink, "flush", flushed, first)
        self.flushed_ms = self.clock.time_ns() // 1_000_000
        for name, position in promised.items():
            self.durable = self.durable.raised(name, position)
        # It may promise less than it was given, as within a transaction.
        durable = self.durable
        self.unflushed = any(n not in durable or durable[n] < p for n, p in self._given.items())
        self.holds_rows = self.holds_rows and self.unflushed

    def own_progress(self) -> SinkProgress:
        """Return the progress that a later run must know.

        Counts behind the durable position are dropped.
        """
        counted, reached = None, dict(self.durable)
        for name, position in self._counted_to.items():
            if name in reached and reached[name].index:
                # The sink itself knows what it has beyond; the events there are not counted yet.
                reached[name] = min(reached[name], position)
        for key in list(self._counted):
            name, position = key
            durable = reached.get(name)
            if durable == position:
                counted = self._counted[key]
            if durable is not None and position < durable:
                del self._counted[key]
        if self.paused is None:  # else the sink is closed, and may have forgotten it
            self._stored_positions = Positions.of(
                stored_position_of(self.sink), next(iter(self.durable), SOLE)
            )
        return SinkProgress(
            positions=reached,
            counted=counted,
            sink_positions=dict(self._stored_positions),
        )

    def close(self) -> None:
        self.sink.close()


def reads_rows(batch: Batch) -> bool:
    """Return whether a batch has snapshot rows, which no stream repeats."""
    return batch.snapshot or any(isinstance(part, SnapshotRows) for part in batch.parts)


def _latest(stored: Mapping[str, Position], positions: Mapping[str, Position]) -> Positions:
    """Return ``stored`` with each later position of ``positions``."""
    found = dict(stored)
    for name, position in positions.items():
        before = found.get(name, position)
        found[name] = max(before, position.passed(before.end_lsn))
    return Positions(found)
