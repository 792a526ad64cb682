"""Copy dead letters to a sink as records."""

import logging
from collections.abc import Callable

import msgspec

from waltap.changes.events.record import Record
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch
from waltap.errors import SinkError
from waltap.ports.sink.refusal import RecordsRefused, leave_out
from waltap.ports.sink.sink import Sink
from waltap.services.dead_letters.dead_letter import DeadLetter

__all__ = ["LettersCopied"]

log = logging.getLogger(__name__)


class LettersCopied:
    """Write dead letters to a topic of a sink.

    The sink opens with the first letter.
    """

    def __init__(self, make: Callable[[], Sink], topic: str) -> None:
        self._make, self._topic = make, topic
        self._sink: Sink | None = None

    def __call__(self, letters: list[DeadLetter]) -> None:
        """Write letters durably, without the server's values.

        Raises: SinkError.
        """
        # `told` leaves out the change, which has no masks
        records = [
            Record(self._topic, msgspec.json.encode(each.id), msgspec.json.encode(each.told()))
            for each in letters
        ]
        batch = Batch(parts=[], position=Position(0), events=len(records), records=records)
        try:
            if self._sink is None:
                self._sink = self._make()
                if not self._sink.capabilities.records:
                    raise SinkError("[dead_letters] names a sink that takes no records")  # noqa: TRY301
                self._sink.open()
            self._write(self._sink, batch)
            self._sink.flush()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the sink; may be called twice."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    @staticmethod
    def _write(sink: Sink, batch: Batch) -> None:
        while batch.records:
            try:
                sink.write(batch)
            except RecordsRefused as error:
                # the pipeline's own file has the letter already
                log.warning("a dead letter is not copied: %s", error.problem)
                leave_out(batch, error.refused)
            else:
                return
