"""At least once, record by record: what the streams without transactions have in common."""

import abc
from collections.abc import Sequence

from waltap.errors import RetryVerdict, SinkError
from waltap.format.record import Record
from waltap.sink.fail_stop import FailStop
from waltap.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.source.position import Positions
from waltap.transactions.transaction import Batch

__all__ = ["AcknowledgedSink"]


class AcknowledgedSink(Sink):
    """`write` returns when the server has acknowledged every record, so `flush` has nothing to do.

    A batch that is given again after a failure that may pass (`RetryVerdict.SAME_BATCH`) goes on
    behind the records that were acknowledged. Single-threaded.
    """

    def __init__(self, place: str, context: SinkContext, *, json_only: bool = False) -> None:
        self.capabilities = SinkCapabilities(
            partitions=True, resumes_snapshots=True, json_only=json_only
        )
        self._context, self._place = context, place
        self._gap = FailStop(place)
        self._accepted = Positions()
        self._pending: Batch | None = None
        self._sent = 0

    @abc.abstractmethod
    def _send(self, records: Sequence[Record]) -> None:
        """Send ``records``, in the order of their keys; `_acknowledged` counts those that need not be sent
        again. Raises: SinkError."""

    def _acknowledged(self, count: int) -> None:
        self._sent += count

    def write(self, batch: Batch) -> None:
        """Send the batch's records. Raises: SinkError."""
        self._gap.check()
        if self._pending is not batch:
            self._pending, self._sent = batch, 0
        records = batch.records or ()
        try:
            if self._sent < len(records):
                self._context.may_write()
                self._send(records[self._sent :])
        except BaseException as error:
            if not isinstance(error, SinkError) or error.retry is not RetryVerdict.SAME_BATCH:
                self._gap.fail(error)
            raise
        self._pending = None
        self._accepted = self._accepted.moved(batch.partition, batch.position)

    def flush(self) -> Positions | None:
        """Return the position of the last batch that was acknowledged, of each partition."""
        return self._accepted or None
