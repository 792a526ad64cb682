"""What the server is told: only what the sink's flush returned and the offset store kept."""

from contextlib import suppress

from waltap.errors import ConnectionLost
from waltap.pipeline.delivery import Delivery
from waltap.pipeline.run import Run
from waltap.source.connector import ChangeStream
from waltap.source.position import Position, Positions, lsn_text
from waltap.transactions.assembly import Assembler

__all__ = ["Confirmation"]


class Confirmation:
    """Flushes, stores and confirms, for one stream: that of ``partition``."""

    def __init__(
        self,
        run: Run,
        stream: ChangeStream,
        assembler: Assembler,
        delivery: Delivery,
        partition: str,
    ) -> None:
        self._run, self._stream, self._partition = run, stream, partition
        self._assembler, self._delivery = assembler, delivery
        self._flush_s = run.profile.engine.flush_interval_ms / 1000

    def flush_if_due(self) -> None:
        """Flush what has waited for ``offset.flush.interval.ms``, and confirm it."""
        if self._delivery.due(self._flush_s):
            self._confirm(self._flushed())

    def last(self) -> None:
        """Make durable what was written, also when the link is gone: then nothing is confirmed.

        Nothing at all after a failure of the sink, which would promise what it has lost, and where another
        process may run the pipeline by now.
        """
        if self._delivery.failed or not self._run.tenure.held:
            return
        moved = self._flushed()
        with suppress(ConnectionLost):
            self._confirm(moved)

    def idle(self) -> bool:
        """When nothing captured is pending, what the server has read counts as delivered: a quiet
        table beside busy ones never holds WAL. False while something is.

        Never after a failure or a cut: what was received may then not have been written.
        """
        delivery = self._delivery
        if delivery.unflushed_since is not None or not self._assembler.idle:
            return False
        stored = delivery.offset.partitions[self._partition].position
        if delivery.written[self._partition] != stored:
            return False
        lsn = self._assembler.confirmable(self._stream.idle_lsn())
        if lsn > stored.end_lsn:
            delivery.advance(self._partition, Position(lsn))
            self._tell(lsn)
        return True

    def _flushed(self) -> Positions:
        self._delivery.check()
        self._assembler.secure()
        return self._delivery.flush()

    def _confirm(self, moved: Positions) -> None:
        position = moved.get(self._partition)
        if position is not None:
            self._tell(self._assembler.confirmable(position.end_lsn))

    def _tell(self, lsn: int) -> None:
        partition = self._delivery.offset.partitions[self._partition]
        stored = partition.position.end_lsn
        assert lsn <= stored, f"would confirm {lsn_text(lsn)}, stored is {lsn_text(stored)}"
        if not self._stream.confirms:
            return
        self._stream.confirm(lsn)
        self._run.confirmed_lsn = lsn
        self._run.slot_notice("confirmed", partition, lsn)
