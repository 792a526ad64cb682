"""Confirm positions to the server, after flush and store.

The owner of the run may hold a position back (`RunState.confirmable`).
"""

from collections.abc import Sequence
from contextlib import suppress

from waltap.changes.transactions.position import Position, Positions, lsn_text
from waltap.errors import ConnectionLost
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.runtime.run_state import RunState
from waltap.pipeline.stages.partition_reader import PartitionReader


class SlotAdvancer:
    """Flush, store and confirm for the streams of one connection."""

    def __init__(
        self,
        state: RunState,
        readers: Sequence[PartitionReader],
        delivery: SinkWriter,
    ) -> None:
        self._state, self._readers, self._delivery = state, readers, delivery
        partitions = {} if state.confirmable is None else delivery.offset.partitions
        self._owed = {name: each.position.end_lsn for name, each in partitions.items()}
        """LSNs that the owner may have held back, by partition, also of a start:

        the server gets them when the owner releases them.
        """
        self._confirmed: dict[str, int] = {}
        self._next_look = 0.0

    def flush_if_due(self) -> None:
        """Flush batches that have waited long enough, and confirm them."""
        if self._delivery.due(self._state.flush_s):
            self._confirm(self._flushed())
        elif self._owed and (now := self._state.clock.monotonic()) >= self._next_look:
            self._next_look = now + self._state.flush_s
            self._pay()

    def flush_now(self) -> None:
        """Flush the written batches, and confirm them."""
        if self._delivery.unflushed_since is not None:
            self._confirm(self._flushed())

    def last(self) -> None:
        """Flush at the end, also after a lost link.

        Without a link nothing is confirmed. Nothing is flushed after a failure of the sink, which would
        confirm lost data, or if another process may run the pipeline.
        """
        if self._delivery.failed or not self._state.tenure.held:
            return
        moved = self._flushed()
        with suppress(ConnectionLost):
            self._confirm(moved)
            self._pay()

    def idle(self) -> bool:
        """Store and confirm the server's position if no change is pending.

        So a quiet table beside busy ones never retains WAL. Return False while a change is pending. Not
        for use after a failure or a cut, when received changes may not have been written.
        """
        if self._delivery.unflushed_since is not None:
            return False
        # each one advances, whatever the others do
        idle = [self._idle(reader) for reader in self._readers]
        return all(idle)

    def _idle(self, reader: PartitionReader) -> bool:
        delivery, partition = self._delivery, reader.partition
        if not reader.assembler.idle:
            return False
        stored = delivery.offset.partitions[partition].position
        if delivery.written[partition] != stored:
            return False
        delivery.counts.calls.caught_up(self._state.now_ms())
        lsn = reader.assembler.confirmable(reader.stream.idle_lsn())
        if lsn > stored.end_lsn:
            delivery.advance(partition, Position(lsn))
            self._confirm_one(reader, lsn)
        return True

    def _flushed(self) -> Positions:
        self._delivery.check()
        for reader in self._readers:
            reader.assembler.secure()
        return self._delivery.flush()

    def _confirm(self, moved: Positions) -> None:
        for reader in self._readers:
            position = moved.get(reader.partition)
            if position is not None:
                self._confirm_one(reader, reader.assembler.confirmable(position.end_lsn))

    def _confirm_one(self, reader: PartitionReader, lsn: int) -> None:
        partition = self._delivery.offset.partitions[reader.partition]
        stored = partition.position.end_lsn
        assert lsn <= stored, f"would confirm {lsn_text(lsn)}, stored is {lsn_text(stored)}"
        if not reader.stream.confirms:
            return
        if self._state.confirmable is not None:
            wanted, lsn = lsn, self._state.release(lsn)
            self._owed.pop(reader.partition, None)
            if lsn < wanted:
                self._owed[reader.partition] = wanted
            if lsn <= self._confirmed.get(reader.partition, 0):
                return
            self._confirmed[reader.partition] = lsn
        reader.stream.confirm(lsn)
        self._state.confirmed(partition, lsn)

    def _pay(self) -> None:
        for reader in self._readers:
            owed = self._owed.get(reader.partition)
            if owed is not None:
                self._confirm_one(reader, owed)
