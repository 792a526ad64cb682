"""Read the stream of a partition: receive, assemble, batch, write.

A sink with costly writes gets fewer, larger batches (``waltap.linger.ms``), and a sink that wants it gets
whole transactions.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from waltap.changes.decode.message import Message
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.assembly import TransactionAssembler
from waltap.changes.transactions.position import SOLE
from waltap.changes.transactions.transaction import TransactionPart, TransactionRun
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.runtime.run_state import RunState
from waltap.pipeline.stages.signal_stage import SignalStage
from waltap.ports.offsets.state_folder import SPILL
from waltap.ports.source.connector import ChangeStream, SnapshotOverlap

log = logging.getLogger(__name__)


# To merge partitions, their positions must be comparable: times of one clock. A partition that has
# sent nothing for a while counts as empty, since its server does not report how far it has come.


class PartitionMerge:
    """Hold parts until no other partition can send an earlier commit.

    A partition that is silent for ``quiet_s`` is not waited for; a later transaction of it is delivered
    late, never lost. A partition with ``most`` held changes should receive no others.
    """

    def __init__(self, partitions: list[str], quiet_s: float, most: int, now: float) -> None:
        self._held: dict[str, deque[TransactionPart]] = {name: deque() for name in partitions}
        self._heard = dict.fromkeys(partitions, now)
        self._inside: str | None = None  # the partition whose transaction has begun and not ended
        self._quiet_s, self._most = quiet_s, most

    def __bool__(self) -> bool:
        return any(self._held.values())

    def full(self, partition: str) -> bool:
        """Return whether enough of this partition is held."""
        return sum(len(part.changes) for part in self._held[partition]) >= self._most

    def add(self, partition: str, parts: list[TransactionPart], now: float) -> None:
        """Take the received parts of a partition, perhaps none."""
        if parts:
            self._held[partition] += parts
            self._heard[partition] = now

    def take(self, now: float) -> list[tuple[str, list[TransactionPart]]]:
        """Return the deliverable parts in order, in runs of one partition.

        Parts that remain at an end were not delivered, and come again.
        """
        out: list[tuple[str, list[TransactionPart]]] = []
        while (name := self._next(now)) is not None:
            part = self._held[name].popleft()
            self._inside = None if part.complete else name
            if out and out[-1][0] == name:
                out[-1][1].append(part)
            else:
                out.append((name, [part]))
        return out

    def _next(self, now: float) -> str | None:
        if self._inside is not None:
            return self._inside if self._held[self._inside] else None
        filled = [name for name, held in self._held.items() if held]
        waits = any(
            not held and now - self._heard[name] < self._quiet_s
            for name, held in self._held.items()
        )
        if not filled or waits:
            return None
        return min(filled, key=lambda name: self._held[name][0].commit_lsn)


class PartBatcher:
    """Hold parts until they are written.

    Without linger every `add` is due immediately. With ``whole_transactions``, parts of an unfinished
    transaction wait for its end, up to ``most`` changes: then the result ends with a transaction, unless
    that is larger.
    """

    def __init__(self, seconds: float, most: int, *, whole_transactions: bool = False) -> None:
        """Make parts due after ``seconds``, or with ``most`` changes."""
        self._seconds, self._most, self._whole_transactions = seconds, most, whole_transactions
        self._parts: list[TransactionPart] = []
        # How many changes wait, 0 without linger; the number of parts that may be written.
        self.changes = self._ready = 0
        self._due_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: Sequence[TransactionPart], now: float) -> None:
        if not self._ready:
            self._due_at = now + self._seconds
        before = len(self._parts)
        self._parts += parts
        if self._seconds or self._whole_transactions:
            self.changes += sum(len(part.changes) for part in parts)
        if not self._whole_transactions:
            self._ready = len(self._parts)
            return
        for index in range(len(self._parts), before, -1):
            if self._parts[index - 1].complete:
                self._ready = index
                break
        waiting = self._parts[self._ready :]
        if sum(len(part.changes) for part in waiting) >= self._most:
            self._ready = len(self._parts)

    def take_due(self, now: float) -> list[TransactionPart]:
        """Return the parts to write now; keep the rest."""
        if not self._ready or (now < self._due_at and self.changes < self._most):
            return []
        ready, self._parts = self._parts[: self._ready], self._parts[self._ready :]
        self._ready = 0
        if self.changes:
            self.changes -= sum(len(part.changes) for part in ready)
        return ready

    def wait(self, longest: float, now: float) -> float:
        """Return how long to wait for more, at most ``longest``, in seconds."""
        return min(longest, max(0.0, self._due_at - now)) if self._ready else longest

    def take_all(self) -> list[TransactionPart]:
        """Return everything, and begin again."""
        ready, self._parts = self._parts, []
        self._ready = self.changes = 0
        return ready


FEW_MESSAGES = 256
"""Fewer messages at a time may be large rows:

they are not kept while the next are received. Many are kept, since their memory would be allocated again
immediately (10 % of processor time).
"""


class PartitionReader:
    """Move the changes of one partition's stream to the sink.

    Back-pressure is the absence of a `pull`. ``describe`` completes relations. ``batcher`` waits for
    ``waltap.linger.ms``, for a full batch, or for whole transactions.
    """

    def __init__(
        self,
        state: RunState,
        describe: Callable[[Relation], Relation],
        delivery: SinkWriter,
        partition: str,
        stream: ChangeStream,
    ) -> None:
        engine, folder = state.profile.engine, state.profile.state_dir / SPILL
        self._state, self._delivery, self._batch_events = state, delivery, engine.batch_events
        self.partition, self.stream = partition, stream
        self.assembler = TransactionAssembler(
            resume=delivery.written[partition],
            previous_end_lsn=delivery.previous_end_lsn[partition],
            spill_dir=folder if partition == SOLE else folder / partition,
            spill_memory_bytes=engine.spill_memory_bytes,
            slot_lsn=delivery.offset.partitions[partition].slot_created_lsn,
            two_phase=engine.two_phase_policy,
            describe=describe,
            warn=log.warning,
        )
        whole_transactions = delivery.whole_transactions
        self.batcher = PartBatcher(
            engine.linger_ms / 1000, engine.batch_events, whole_transactions=whole_transactions
        )
        self._runs = not (engine.linger_ms or whole_transactions)
        self._messages: list[Message] = []
        self._parts: list[TransactionPart] = []

    def begin(
        self,
        signals: SignalStage,
        overlap: SnapshotOverlap | None,
        read_xmin: Callable[[], int | None] | None,
        accept: Callable[[list[TransactionPart]], None] | None = None,
    ) -> None:
        """Prepare for the first `pull`.

        ``overlap`` has the changes that a snapshot has read; ``read_xmin`` is the result of
        `WalSource.xmin_reader`. ``accept`` gets received parts instead of `take`.
        """
        self._signals, self._overlap, self._read_xmin = signals, overlap, read_xmin
        self._accept = accept or self.take
        # Runs stay together where nothing looks at single parts before they are written.
        self._runs = self._runs and not (overlap or read_xmin or accept)

    def close(self) -> None:
        """End the stream; may be called twice."""
        self.stream.close()
        self.assembler.close()

    def pull(self, timeout: float) -> bool | None:
        """Receive for at most ``timeout`` seconds; return whether changes came.

        None: nothing came at all.
        """
        backlog = self.assembler.backlog
        messages = self._messages = [] if backlog else self.stream.receive(timeout)
        if not messages and not backlog:
            return None
        self._state.leadership.check()  # before it is assembled: large transactions wait in shared files
        came = self.assembler.runs(messages)
        runs = TransactionRun in set(map(type, came))
        parts: list[TransactionPart]
        parts = self._parts = self._without_runs(came) if runs else came  # type: ignore[assignment]
        wrote = runs and self._runs
        if parts and self._overlap is not None:
            parts = self._overlap.filter(parts)
        if parts:
            xmin = None if self._read_xmin is None else self._read_xmin()
            if xmin is not None:
                for part in parts:
                    part.xmin = xmin
            self._state.received(parts[-1].end_lsn or parts[-1].commit_lsn)
            self._accept(parts)
        if len(messages) < FEW_MESSAGES:
            self._messages, self._parts = [], []
        return wrote or bool(parts)

    def _without_runs(self, came: list[TransactionPart | TransactionRun]) -> list[TransactionPart]:
        """Write runs of transactions and the parts before them; return the rest.

        They become single parts where something looks at these before they are written.
        """
        parts: list[TransactionPart] = []
        for each in came:
            if not isinstance(each, TransactionRun):
                parts.append(each)
            elif self._runs:
                self.take(parts)
                self.write_rest()
                self._write(each)
                self._state.received(each.block.end_lsn)
                parts = []
            else:
                parts += each
        return parts

    def take(self, parts: list[TransactionPart]) -> None:
        self.batcher.add(parts, self._state.clock.monotonic())

    def write_if_due(self, now: float) -> None:
        if parts := self.batcher.take_due(now):
            self._write(parts)

    def write_rest(self) -> None:
        if self.batcher:
            self._write(self.batcher.take_all())

    def _write(self, parts: Sequence[TransactionPart]) -> None:
        """Write ``parts`` in batches, with the rows that signals request between them."""
        delivery, signals = self._delivery, self._signals
        limited = self._state.limits.max_records is not None
        while parts:
            taken, left_out = self._cut(parts) if limited else (parts, ())
            for batch in batches(taken, self._batch_events):
                rest = batch
                while rest:
                    with_rows, rest, noted = signals.process(rest)
                    if with_rows:
                        delivery.write(with_rows, partition=self.partition, signals=noted)
                    if signals.blocking:
                        signals.read_at_once()
            # Transforms and the sink's own position may have left room for more records.
            parts = left_out if taken else ()

    def _cut(
        self, parts: Sequence[TransactionPart]
    ) -> tuple[Sequence[TransactionPart], Sequence[TransactionPart]]:
        """Split ``parts`` at the limit of records."""
        state, remaining = self._state, self._state.remaining()
        assert remaining is not None
        whole_transactions, midway = state.limits.whole_transactions, state.midway
        taken_parts, left_out = cut(
            parts, remaining, whole_transactions=whole_transactions and (remaining > 0 or midway)
        )
        if taken_parts:
            midway = whole_transactions and not taken_parts[-1].complete
        state.cut_off(cut=bool(left_out), midway=midway)
        return taken_parts, left_out


def batches(parts: Sequence[TransactionPart], most: int) -> Iterator[Sequence[TransactionPart]]:
    """Yield batches of at most ``most`` changes."""
    if isinstance(parts, TransactionRun):
        for start in range(0, len(parts), most):
            yield parts[start : start + most]
        return
    batch: list[TransactionPart] = []
    room = most
    for part in parts:
        count = len(part.changes)
        rest = part
        while count > room:
            if room:
                first, rest = rest.split(room)
                batch.append(first)
                count -= room
            yield batch
            batch, room = [], most
        batch.append(rest)
        room -= count
    if batch:
        yield batch


def cut(
    parts: Sequence[TransactionPart], events: int, *, whole_transactions: bool = False
) -> tuple[Sequence[TransactionPart], Sequence[TransactionPart]]:
    """Return the first ``events`` changes, and the rest.

    The last part may then be incomplete. With ``whole_transactions`` the rest of its transaction is
    included.
    """
    if whole_transactions:
        for number, part in enumerate(parts, 1):
            events -= len(part.changes)
            if events <= 0 and part.complete:
                return parts[:number], parts[number:]
        return parts, ()
    taken_parts: list[TransactionPart] = []
    for number, part in enumerate(parts):
        if events <= 0:
            return taken_parts, parts[number:]
        if len(part.changes) > events:
            first, rest = part.split(events)
            return [*taken_parts, first], [rest, *parts[number + 1 :]]
        events -= len(part.changes)
        taken_parts.append(part)
    return taken_parts, ()
