"""What the server is told: only what the sink's flush returned and the offset store kept."""

from contextlib import suppress

from waltap.errors import ConnectionLost
from waltap.pipeline.delivery import Delivery
from waltap.pipeline.run import Run
from waltap.source.connector import ChangeStream
from waltap.source.position import Position, lsn_text
from waltap.transactions.assembly import Assembler

__all__ = ["Confirmation"]


class Confirmation:
    """Flushes, stores and confirms, for one stream."""

    def __init__(
        self, run: Run, stream: ChangeStream, assembler: Assembler, delivery: Delivery
    ) -> None:
        self._run, self._stream = run, stream
        self._assembler, self._delivery = assembler, delivery
        self._flush_s = run.profile.engine.flush_interval_ms / 1000

    def flush_if_due(self) -> None:
        """Flush what has waited for ``offset.flush.interval.ms``, and confirm it."""
        if self._delivery.due(self._flush_s):
            end_lsn = self._flushed()
            if end_lsn is not None:
                self._confirm(self._assembler.confirmable(end_lsn))

    def last(self) -> None:
        """Make durable what was written, also when the link is gone: then nothing is confirmed.

        Nothing at all after a failure of the sink: it would promise what it has lost.
        """
        if self._delivery.failed:
            return
        end_lsn = self._flushed()
        if end_lsn is not None:
            with suppress(ConnectionLost):
                self._confirm(self._assembler.confirmable(end_lsn))

    def idle(self) -> bool:
        """When nothing captured is pending, what the server has read counts as delivered: a quiet
        table beside busy ones never holds WAL. False while something is.

        Never after a failure or a cut: what was received may then not have been written.
        """
        delivery = self._delivery
        if delivery.unflushed_since is not None or not self._assembler.idle:
            return False
        if delivery.written != delivery.offset.position:
            return False
        lsn = self._assembler.confirmable(self._stream.idle_lsn())
        if lsn > delivery.offset.position.end_lsn:
            self._confirm(delivery.advance(Position(lsn)))
        return True

    def _flushed(self) -> int | None:
        self._assembler.secure()
        return self._delivery.flush()

    def _confirm(self, lsn: int) -> None:
        offset = self._delivery.offset
        stored = offset.position.end_lsn
        assert lsn <= stored, f"would confirm {lsn_text(lsn)}, stored is {lsn_text(stored)}"
        self._stream.confirm(lsn)
        self._run.confirmed_lsn = lsn
        self._run.slot_notice("confirmed", offset, lsn)
