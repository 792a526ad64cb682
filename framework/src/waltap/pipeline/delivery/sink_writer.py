"""Write batches to the sink, and store the positions that are durable.

The one rule of offsets: a position is stored after the sink made it durable, and confirmed after it was
stored.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from waltap.base.network.retry import RetryBackoff
from waltap.base.plugin_errors import UnusableResult
from waltap.changes.events.event import Record
from waltap.changes.transactions.order import TransactionCounts
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import (
    Batch,
    Notification,
    Part,
    SnapshotRows,
    TransactionPart,
    TransactionRun,
    events_in,
    position_after,
    transactions_in,
    undelivered,
    within,
)
from waltap.clock import Clock
from waltap.errors import RetryVerdict, SinkError
from waltap.pipeline.delivery.fan_out import FanOut
from waltap.pipeline.delivery.sink_branch import SinkBranch, positions_of
from waltap.plugins.host import Host
from waltap.ports.offsets.offset import Offset, OffsetStore
from waltap.ports.sink.refusal import RecordsRefused
from waltap.ports.sink.roles import (
    AcknowledgingSink,
    DownstreamProgress,
    FlushDelayingSink,
    GapAwareSink,
    MaintainedSink,
    PositionKeepingSink,
    ProgressSink,
    SnapshotChoosingSink,
    SplitReadingSink,
)
from waltap.ports.snapshot.chunk_source import SnapshotChunk
from waltap.services.monitor.counts import ChunkEnd, RunCounters, TablesRead, chunk_ends

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBatch:
    """Describe one written batch for the offset."""

    number: int
    partition: str
    # The batch ends here.
    position: Position
    # The state of signals that belongs to the batch.
    signals: Mapping[str, object]
    # The chunks of an initial snapshot that end in the batch.
    chunk_ends: tuple[ChunkEnd, ...] = ()
    ends_snapshot: bool = False
    # When the sink took it, by the monotonic clock.
    at: float = 0.0
    # When its first change committed.
    commit_ms: int | None = None


POLL_S: Final = 0.2
"""Seconds between two questions whether other readers have read the chunks."""


class SinkWriter:
    """Write batches to the sink, flush it, and own the stored offset.

    A batch belongs to one partition. After a failed flush, a failed store or an unexpected error of a
    write the writer is ``failed``: nothing is flushed, stored or confirmed any longer. ``may_write``
    raises if another process may run the pipeline by now; then the writer is failed, too. The sink gets
    ``notifications`` as records of a topic before the next batch. ``on_written`` gets the written LSN
    after each batch, and returns the OIDs of relations that have ended. ``on_durable`` is called when the
    first batch has become durable. ``delivered`` are the sink's own positions: the stream repeats changes
    up to them, which the sink does not get again.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        branch: SinkBranch | FanOut,
        store: OffsetStore,
        host: Host,
        offset: Offset,
        retries: RetryBackoff,
        clock: Clock,
        counts: RunCounters,
        notifications: deque[Notification] | None = None,
        notification_topic: str = "",
        may_write: Callable[[], None] = lambda: None,
        on_written: Callable[[int], Collection[int]] = lambda _lsn: (),
        on_durable: Callable[[], None] = lambda: None,
        delivered: Mapping[str, Position] | None = None,
    ) -> None:
        self._pipeline, self._branch, self._sink = pipeline, branch, branch.sink
        self._store, self._host, self._retries = store, host, retries
        self._clock, self.counts, self._may_write = clock, counts, may_write
        self._on_written, self._on_durable = on_written, on_durable
        self._was_durable = False
        # The last stored offset.
        self.offset = offset
        # The position after the last batch of each partition.
        self.written = offset.positions
        # By partition, the sink's own position as long as the stream is before it.
        self._ahead = {
            name: ahead
            for name, position in (delivered or {}).items()
            if name in self.written
            and (ahead := position.passed(self.written[name].end_lsn)) > self.written[name]
        }
        # The first or only partition.
        self.partition = next(iter(offset.partitions))
        self.previous_end_lsn = {
            name: each.previous_end_lsn for name, each in offset.partitions.items()
        }
        # Stored with the positions: the state of incremental snapshots after the last batch.
        self.signals: Mapping[str, object] = offset.signals
        # Of each batch with rows of an incremental or blocking snapshot that may not be durable, which
        # no stream repeats: its partition and its end; before it the written positions and the signals.
        self._held = deque[tuple[str, Position, Positions, Mapping[str, object]]]()
        self._counted: list[tuple[str, Position, TransactionCounts]] = []
        self._committed_ms: dict[str, int | None] = {}
        # Of the last made batch: the end and the commit time of its last transaction.
        self._ending: tuple[int | None, int | None] = None, None
        self._restart_lsn = 0
        first = offset.partitions[self.partition]
        branch.order.restore(first.counted or None, first.position)
        branch.begin(self.written, self._before_held)
        # Others add to the queue, so an empty one is kept, too.
        self._notifications = deque[Notification]() if notifications is None else notifications
        self._notification_topic = notification_topic
        self._reading = TablesRead(offset)
        sink = branch.sink
        self._keeper = sink if isinstance(sink, PositionKeepingSink) else None
        self._delayer = sink if isinstance(sink, FlushDelayingSink) else None
        self._acknowledging = sink if isinstance(sink, AcknowledgingSink) else None
        # The batches that are not durable, of a sink that acknowledges batch by batch.
        self._unacknowledged = deque[WrittenBatch]()
        self.unflushed_since: float | None = None
        # Whether the last flush gave a position.
        self.promises, self._warned = True, False
        # After a failure the sink may have lost batches, and would confirm them by the next flush.
        self.failed = False
        self._in_write = False
        # The end of a batch that failed: a sink may keep the first transactions of one.
        self._failed_at: Mapping[str, Position] = {}
        # The last LSN whose changes a snapshot may have seen (`SnapshotOverlap.horizon`).
        self.overlap_until: int | None = None
        self._observes = {
            name: host.implements(name) for name in ("on_batch", "on_flush", "on_transaction")
        }

    def write(
        self,
        parts: Sequence[Part],
        *,
        snapshot: bool = False,
        partition: str | None = None,
        signals: Mapping[str, object] | None = None,
    ) -> None:
        """Write ``parts`` as one batch.

        ``signals`` is the state of signals that belongs to it. Raises: SinkError, DecodeError.
        """
        if self._notifications:
            self.write_notifications()
        started, calls = self._clock.monotonic(), self.counts.calls
        if calls.oldest_commit_ms is None:
            calls.oldest_commit_ms = _first_commit_ms(parts)
        self._in_write = True
        if snapshot and self._reading.begin(parts):
            self.store(self._reading.stored(self.offset, self.partition))
        given = whole = self._batch(parts, partition or self.partition, snapshot=snapshot)
        if self._ahead:
            given = self._undelivered(whole)
        batch: Batch | None = None
        if given is whole or given.parts:  # else the sink has them
            with calls.call("the rendering of a batch"):
                batch = self._branch.rendered(given)
            for index, left_out in enumerate(self._branch.left_out):
                if left_out:  # converters of columns, which come last, leave nothing out
                    self.counts.filtered[index] += left_out
            self._failed_at = {batch.partition: batch.position}
            with self.counts.calls.call("a write"):  # with all its tries
                self._branch.give(given, batch, self._attempt)
            self._failed_at = {}
        self._in_write, reached, name = False, given.position, whole.partition
        if name in self._ahead:
            if whole.position > self._ahead[name] or transactions_in(given.parts):
                del self._ahead[name]
            else:
                reached = whole.position
        before, signals_before = self.written, self.signals
        self.written = self.written.advanced(name, reached)
        if reached.index:
            self._note_counts(name, reached)
        self.previous_end_lsn[name], self._committed_ms[name] = self._ending
        if signals is not None:
            self.signals = signals
        if self.unflushed_since is None:
            self.unflushed_since = started
        if batch is None:
            self._on_written(reached.end_lsn)
            return
        if self._acknowledging is not None:
            self._await_ack(batch, given.parts if snapshot else [])
        elif snapshot:
            self._reading.delivered(chunk_ends(parts))
        read = self._count(batch, started)
        if read and not snapshot and self._acknowledging is None:
            self._held.append((name, reached, before, signals_before))
        if self._observes["on_batch"]:
            seconds = self._clock.monotonic() - started
            self._host.notify("on_batch", pipeline=self._pipeline, batch=batch, seconds=seconds)
        if self._observes["on_transaction"]:
            for part in given.parts:
                if isinstance(part, TransactionPart) and part.complete and part.xid is not None:
                    self._host.notify("on_transaction", pipeline=self._pipeline, part=part)
        gone = self._on_written(reached.end_lsn)
        if gone and self.counts.by_table is not None:
            self.counts.by_table.forget(gone)

    def _undelivered(self, batch: Batch) -> Batch:
        """Return ``batch`` without the changes that the sink's own position covers."""
        ahead = self._ahead.get(batch.partition)
        if ahead is None:
            return batch
        if ahead.index and self._branch.renders:
            counted = within(batch, self.written[batch.partition], ahead)
            if counted.parts:
                self._branch.rendered(counted)
                self._note_counts(batch.partition, ahead)
        return undelivered(batch, ahead)

    def _note_counts(self, partition: str, position: Position) -> None:
        counted = self._branch.order.counts_at(position)
        if counted is not None:
            self._counted.append((partition, position, counted))

    def write_notifications(self) -> None:
        """Write the waiting notifications as a batch. Raises: SinkError."""
        waiting = self._notifications
        if not waiting or not self._branch.notifies:
            return
        notifications, started = list(waiting), self._clock.monotonic()
        with self.counts.calls.call("a write"):
            batch = self._undelivered(self._batch([], self.partition, snapshot=False))
            written = self._branch.notify(
                notifications, self._notification_topic, batch, self._attempt
            )
        self._await_ack(written, [])
        for _ in notifications:
            waiting.popleft()
        self._count(written, started)
        if self.unflushed_since is None:
            self.unflushed_since = started

    def _count(self, batch: Batch, now: float) -> bool:
        """Count ``batch``; return whether it has rows of a snapshot."""
        counts = self.counts
        counts.batches += 1
        counts.events += batch.events
        counts.meter.add(now, batch.events)
        if batch.records is not None:
            counts.records += len(batch.records)
        parts = batch.parts
        last = parts.last if isinstance(parts, TransactionRun) else parts[-1] if parts else None
        if isinstance(last, TransactionPart) and last.commit_ts:
            now_ms = self._clock.time_ns() // 1_000_000
            counts.lag(max(0, now_ms - last.commit_ts // 1000))
            counts.last_xid = last.xid
        if counts.by_table is not None:
            counts.by_table.count(batch.parts, self._clock.time_ns() // 1_000_000)
        transactions = transactions_in(batch.parts)
        if isinstance(transactions, TransactionRun):
            counts.transactions += len(transactions)
            return False
        for part in transactions:
            counts.transactions += part.complete and part.xid is not None
        if len(transactions) == len(batch.parts):
            return False
        read = [part for part in batch.parts if isinstance(part, SnapshotRows)]
        counts.snapshot_rows += sum(len(part.rows) for part in read)
        return bool(read)

    def _batch(self, parts: Sequence[Part], partition: str, *, snapshot: bool) -> Batch:
        run = parts if isinstance(parts, TransactionRun) else None
        transactions = [run.last] if run else transactions_in(parts)
        end_lsn, commit_ms = None, None
        for part in reversed(transactions):
            if part.complete:
                end_lsn = part.end_lsn if end_lsn is None else end_lsn
                if part.commit_ts:
                    commit_ms = part.commit_ts // 1000
                    break
        self._ending = (
            self.previous_end_lsn[partition] if end_lsn is None else end_lsn,
            self._committed_ms.get(partition) if commit_ms is None else commit_ms,
        )
        return Batch(
            parts=run or list(parts),
            position=position_after(run or transactions, self.written[partition]),
            partition=partition,
            number=next(self.counts.numbers),
            events=events_in(parts),
            snapshot=snapshot,
        )

    def check(self) -> None:
        """Raise if this process may not write; nothing is written afterwards."""
        try:
            self._may_write()
        except BaseException:
            self.failed = True
            raise

    def _attempt(self, write: Callable[[Batch], None], batch: Batch) -> None:
        """Write ``batch``, and again if the sink asks for the same batch."""
        tried = 0
        while True:
            try:
                self._may_write()
                write(batch)
            except RecordsRefused:
                raise
            except SinkError as error:
                if error.retry is not RetryVerdict.SAME_BATCH or not self._retries.wait():
                    raise
                tried += 1
                self.counts.batch_retries += 1
                self._host.notify("on_failure", pipeline=self._pipeline, error=error, retried=True)
            except BaseException:  # half a batch may be in there
                self.failed = True
                raise
            else:
                if tried:
                    self._retries.succeeded()
                return

    def flush(self) -> Positions:
        """Make the written batches durable, and store their positions.

        Return the positions that moved: they may be confirmed. Raises: SinkError, OffsetError.
        """
        durable, ended = self._flushed(), False
        signals: Mapping[str, object] = self.signals
        if self._acknowledging is not None:
            number, acked = self._acknowledging.acknowledged(), list[WrittenBatch]()
            while self._unacknowledged and self._unacknowledged[0].number <= number:
                acked.append(self._unacknowledged.popleft())
            durable, ended = Positions(), any(batch.ends_snapshot for batch in acked)
            for batch in acked:
                durable = durable.advanced(batch.partition, batch.position)
                self._reading.delivered(batch.chunk_ends)
            self._note_pending(moved=bool(acked))
            if self._unacknowledged:
                self.unflushed_since = self._clock.monotonic()
                signals = acked[-1].signals if acked else self.offset.signals
        if self._held:
            durable = self._before_held(durable)
            if self._held:  # a later start reads these rows again
                signals = self._held[0][3]
        moved = Positions(
            {
                name: position
                for name, position in durable.items()
                if position > self.offset.partitions[name].position
            }
        )
        if moved:
            self._advance(moved, signals)
            if not self._was_durable:
                self._was_durable = True
                self._on_durable()
        elif self._reading.flushed():
            self.store(self._reading.stored(self.offset, self.partition))
        elif signals != self.offset.signals:
            self.store(msgspec.structs.replace(self.offset, signals=dict(signals)))
        if ended:
            self.store(self._reading.ended(self.offset, self.partition))
        return moved

    def _before_held(self, durable: Positions) -> Positions:
        """Return ``durable``, at most up to rows of snapshots that are not durable.

        Of a sink that promises nothing, rows count that are at the stored position.
        """
        held, stored = self._held, self.offset.partitions
        while held and durable.get(held[0][0], stored[held[0][0]].position) >= held[0][1]:
            held.popleft()
        if not held:
            return durable
        before = held[0][2]  # of all partitions: what came later may have asked for rows
        return Positions({name: min(at, before[name]) for name, at in durable.items()})

    def drain(self) -> None:
        """Wait for pending acknowledgements, before the last flush of a run."""
        if self._acknowledging is not None:
            with self.counts.calls.call("its last writes"):
                self._acknowledging.drain()

    @property
    def awaits_acks(self) -> bool:
        """Return whether written batches wait for acknowledgements."""
        return bool(self._unacknowledged)

    @property
    def waiting_since(self) -> float | None:
        """Return since when the oldest batch is not durable."""
        # A copy: the engine's thread removes batches.
        oldest = next(iter(self._unacknowledged.copy()), None)
        return self.unflushed_since if oldest is None else oldest.at

    def _await_ack(
        self, batch: Batch, read: Sequence[Part], *, ends_snapshot: bool = False
    ) -> None:
        """Add a batch that the sink acknowledges by its number.

        ``read`` are parts of a snapshot.
        """
        if self._acknowledging is None:
            return
        written = WrittenBatch(
            number=batch.number,
            partition=batch.partition,
            position=self.written[batch.partition],
            signals=self.signals,
            chunk_ends=chunk_ends(read),
            ends_snapshot=ends_snapshot,
            at=self._clock.monotonic(),
            commit_ms=_first_commit_ms(batch.parts),
        )
        self._unacknowledged.append(written)
        self._note_pending()

    def _note_pending(self, *, moved: bool = False) -> None:
        """Record which acknowledgement is due from the sink.

        ``moved``: some came just now.
        """
        calls = self.counts.calls
        if not self._unacknowledged:
            calls.unacknowledged_since = None
            if not self._in_write:
                calls.oldest_commit_ms = None
        elif moved or calls.unacknowledged_since is None:
            oldest = self._unacknowledged[0]
            calls.unacknowledged_since = self._clock.monotonic() if moved else oldest.at
            calls.oldest_commit_ms = oldest.commit_ms

    def downstream_progress(self) -> tuple[DownstreamProgress, ...]:
        """Return the progress of the sink's consumers. Any thread may ask."""
        return (
            tuple(self._sink.downstream_progress()) if isinstance(self._sink, ProgressSink) else ()
        )

    def committed_ms(self, partition: str) -> int | None:
        """Return the last commit time, ms since 1970 UTC."""
        return self._committed_ms.get(partition)

    def _flushed(self) -> Positions:
        assert not self.failed, "a sink that failed is never flushed again"
        started = self._clock.monotonic()
        try:
            self._may_write()
            with self.counts.calls.call("a flush"):
                given = self._sink.flush()
            reached = self.written
            more = {**self._ahead, **self._failed_at}
            most = Positions({**reached, **more}) if more else reached
            try:
                # A stored position that no batch reached would skip changes.
                durable = Positions.of(given, self.partition, most)
            except (TypeError, ValueError) as error:
                raise UnusableResult(self._sink, "flush", str(error)) from error
        except BaseException:
            self.failed = True
            raise
        self.unflushed_since, self.promises = None, given is not None
        if self._ahead:  # the stream repeats what the sink has
            self.promises = True
            durable = Positions({**durable, **{name: reached[name] for name in self._ahead}})
        if self._failed_at:  # the signals of that batch are not stored, so it comes again
            durable = Positions({name: min(at, reached[name]) for name, at in durable.items()})
        if self._acknowledging is None and not self._in_write:
            self.counts.calls.oldest_commit_ms = None
        if self._observes["on_flush"]:
            seconds = self._clock.monotonic() - started
            self._host.notify("on_flush", pipeline=self._pipeline, durable=durable, seconds=seconds)
        return durable

    def warn_of_silence(self) -> None:
        """Log once that a flush of whole transactions gave no position."""
        if not (self.promises or self._warned):
            self._warned = True
            log.warning(
                "the sink's flush returns no position, so nothing is stored: the next start "
                "delivers everything since %s again", self.offset.partitions[self.partition].position
            )  # fmt: skip

    def advance(self, partition: str, lsn: int) -> None:
        """Store ``lsn`` without data; it may be confirmed then.

        If no captured change is pending, everything that the server has read is durable, since it holds
        nothing for the sink.
        """
        self.written = self.written.passed(partition, lsn)
        position = self.written[partition]
        ahead = self._ahead.pop(partition, position).passed(lsn)
        if ahead > position:
            self._ahead[partition] = ahead
        self._note_counts(partition, position)
        self._branch.advance(partition, lsn)
        self._committed_ms[partition] = self._clock.time_ns() // 1_000_000
        self.counts.calls.oldest_commit_ms = None
        self._advance(Positions({partition: position}), self.signals)

    def note_restart_lsn(self, lsn: int) -> None:
        """Set the slot's restart LSN for the next stored positions.

        Sources whose offset has none need none.
        """
        sole = self.offset.partitions[self.partition]
        if sole.slot_restart_lsn is not msgspec.UNSET and lsn > sole.slot_restart_lsn:
            self._restart_lsn = lsn

    def _advance(self, moved: Positions, signals: Mapping[str, object]) -> None:
        partitions = dict(self.offset.partitions)
        for name, position in moved.items():
            before, previous = partitions[name], partitions[name].previous_end_lsn
            assert position >= before.position, "an offset never moves backwards"
            as_of_ms = before.as_of_ms
            if position.end_lsn == self.written[name].end_lsn:
                previous = self.previous_end_lsn[name]
                as_of_ms = self._committed_ms.get(name) or as_of_ms
            elif position.end_lsn != before.position.end_lsn:
                previous = position.end_lsn
            passed = self.overlap_until is not None and position.end_lsn > self.overlap_until
            partitions[name] = msgspec.structs.replace(
                before,
                position=position,
                previous_end_lsn=previous,
                counted=self._counted_at(name, position),
                as_of_ms=as_of_ms,
                visible_in={} if passed else before.visible_in,
                slot_restart_lsn=self._restart_lsn or before.slot_restart_lsn,
            )
        self.store(
            msgspec.structs.replace(self.offset, partitions=partitions, signals=dict(signals))
        )

    def _counted_at(
        self, partition: str, position: Position
    ) -> TransactionCounts | msgspec.UnsetType:
        """Return the counts of the transaction around ``position``.

        Older counts are dropped.
        """
        if not self._counted:
            return msgspec.UNSET
        found = [c for p, at, c in self._counted if p == partition and at == position]
        self._counted = [
            (p, at, c) for p, at, c in self._counted if p != partition or at > position
        ]
        return found[-1] if found else msgspec.UNSET

    @property
    def position(self) -> Position:
        """Return the position after the last batch, of the first partition."""
        return self.written[self.partition]

    def note_signals(self, signals: Mapping[str, object]) -> None:
        """Set the state of signals that belongs to the next batches."""
        self.signals = signals

    def expect_overlap(self, until: int) -> None:
        """Keep a snapshot's visibility in the offset until the stream passes ``until``."""
        self.overlap_until = until

    def keep_signals(self) -> None:
        """Store ``signals`` if all rows of snapshots are durable; else a flush does.

        The stream repeats signals that are later than the stored position: they ask for more.
        """
        held = self._held or self._unacknowledged
        if not held and self.signals != self.offset.signals:
            self.store(msgspec.structs.replace(self.offset, signals=dict(self.signals)))

    def maintain(self) -> None:
        """Run the sink's periodic work; an error ends the sink. Raises: SinkError."""
        if isinstance(self._sink, MaintainedSink):
            with self.counts.calls.call("its maintenance"):
                self._sink.maintain()

    def due(self, seconds: float) -> bool:
        """Return whether a batch has waited ``seconds``, and the sink flushes now."""
        since = self.unflushed_since
        if since is None or self._clock.monotonic() - since < seconds:
            return False
        return self._delayer is None or not self._delayer.holds_back()

    @property
    def spent(self) -> bool:
        """Return whether the next connection needs a new sink.

        One that takes everything once may hold the beginning of a transaction that comes again.
        """
        once = self._sink.capabilities.exactly_once
        return self.failed or (once and self.written != self.offset.positions)

    @property
    def whole_transactions(self) -> bool:
        return self._sink.capabilities.whole_transactions

    @property
    def counts_records(self) -> bool:
        """Return whether limits count records: the sink takes them."""
        return self._branch.renders

    @property
    def takes_rows(self) -> bool:
        """Return whether rows that signals ask for may be written now."""
        return self._branch.takes_rows

    def takes_chunks(self) -> bool:
        """Return whether the sink has other readers read an initial snapshot.

        If transforms or converters must see the rows, the engine reads them.
        """
        sink = self._sink
        if not isinstance(sink, SnapshotChoosingSink) or not sink.wants_chunks():
            return False
        if self._branch.transforms:
            log.warning(
                "the engine reads the snapshot: transforms and converters are to see its rows"
            )
        return not self._branch.transforms

    def record_gap(self, table: str) -> None:
        """Record an interrupted table (`GapAwareSink.record_gap`). Raises: SinkError."""
        if not isinstance(self._sink, GapAwareSink):
            return
        with self.counts.calls.call("a note of what it missed"):
            self._sink.record_gap(table)

    def assign_splits(self, chunks: Sequence[SnapshotChunk]) -> str:
        """Give chunks to the sink (`SplitReadingSink.assign_splits`). Raises: SinkError."""
        assert isinstance(self._sink, SplitReadingSink)
        self.check()
        with self.counts.calls.call("the chunks of a snapshot"):
            return self._sink.assign_splits(chunks)

    def await_chunks(self, ends: Callable[[], bool]) -> Mapping[str, int] | None:
        """Wait for durable chunks; return the rows of each table.

        None if ``ends`` was true before. Raises: SinkError.
        """
        assert isinstance(self._sink, SplitReadingSink)
        while (rows := self._sink.split_rows()) is None:
            if self._clock.wait(POLL_S, ends):
                return None
            self.check()
        return rows

    def finish_snapshot(self) -> None:
        """Write the empty batch that ends a snapshot, then store its end."""
        records: list[Record] | None = [] if self.counts_records else None
        end = Batch(
            parts=[],
            position=self.written[self.partition],
            partition=self.partition,
            number=next(self.counts.numbers),
            events=0,
            records=records,
            snapshot=True,
        )
        self.write_notifications()
        with self.counts.calls.call("a write"):
            self._branch.give(end, end, self._attempt)
        if self._acknowledging is not None:
            self._await_ack(end, [], ends_snapshot=True)
            self.flush()
            return
        self._flushed()
        self.store(self._reading.ended(self.offset, self.partition))

    def store(self, offset: Offset) -> None:
        """Replace the stored offset. Raises: OffsetError."""
        stored_position = None
        if self._keeper is not None:
            given = self._keeper.stored_position()
            stored_position = positions_of(self._sink, "stored_position", given, self.partition)
        if stored_position and offset.snapshot is None:
            partitions = {
                name: msgspec.structs.replace(
                    each, sink_position=stored_position.get(name, msgspec.UNSET)
                )
                for name, each in offset.partitions.items()
            }
            offset = msgspec.structs.replace(offset, partitions=partitions)
        try:
            self._may_write()
            with self.counts.calls.call("the storing of its position"):
                self._store.store(offset)
        except BaseException:
            self.failed = True
            raise
        self.offset = offset


def _first_commit_ms(parts: Sequence[Part]) -> int | None:
    """Return the commit time of the first transaction, ms since 1970 UTC."""
    if isinstance(parts, TransactionRun):
        return int(parts.block.commit_ts[0]) // 1000
    for part in parts:
        if isinstance(part, TransactionPart) and part.commit_ts:
            return part.commit_ts // 1000
    return None
