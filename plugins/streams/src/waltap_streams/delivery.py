"""A server of message streams, and at-least-once delivery to it."""

import abc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from waltap.base.plugin_errors import LibraryMissing
from waltap.base.redaction import without_frames
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Positions
from waltap.changes.transactions.transaction import Batch
from waltap.errors import RetryVerdict, SinkError
from waltap.ports.sink.refusal import FailStop, RecordsRefused, RefusedEvent
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext

Client = TypeVar("Client")


class StreamServer(abc.ABC, Generic[Client]):
    """Hold a connection, opened at its first use, and translate its errors."""

    def __init__(self, location: str) -> None:
        # The address in messages.
        self.location = location
        self._client: Client | None = None

    @abc.abstractmethod
    def _connect(self) -> Client:
        """Return a new client. Raises: LibraryMissing; exceptions of the client."""

    @abc.abstractmethod
    def meaning(self, error: BaseException, about: str) -> SinkError | None:
        """Translate an error of the client.

        None means that the error is not the client's. ``about`` is the stream or topic, or empty.
        """

    def connected(self) -> Client:
        """Return the client, connecting it if necessary.

        Raises: SinkError, LibraryMissing.
        """
        if self._client is None:
            with self.failing():
                self._client = self._connect()
        return self._client

    def close(self) -> None:
        """Close the connection; may be called twice."""
        client: Any = self._client
        self._client = None
        if client is not None:
            client.close()

    @contextmanager
    def failing(self, about: str = "") -> Iterator[None]:
        """Translate exceptions of the client to errors of waltap."""
        try:
            yield
        except (SinkError, LibraryMissing):
            raise
        except Exception as error:
            failure = self.meaning(error, about)
            if failure is None:
                raise
            # Frames of a client library may contain passwords.
            raise failure from without_frames(error)


class AcknowledgedSink(Sink):
    """Deliver records at least once, with one acknowledgement each.

    `write` returns when the server has acknowledged every record, so `flush` only reports. The
    sink is single-threaded.
    """

    def __init__(self, location: str, context: SinkContext, *, json_only: bool = False) -> None:
        self.capabilities = SinkCapabilities(
            partitions=True, resumes_snapshots=True, json_only=json_only
        )
        self._context, self._location = context, location
        self._write_stop = FailStop(location)
        self._accepted = Positions()
        # A batch that failed may come again (`RetryVerdict.SAME_BATCH`); then it resumes after its
        # acknowledged records.
        self._pending: Batch | None = None
        self._sent = 0

    @abc.abstractmethod
    def _send(self, records: Sequence[Record]) -> None:
        """Send ``records`` in the order of their keys.

        `_sent` counts the records of the batch that need not be sent again. Raises: SinkError.
        """

    def _refusal(self, error: SinkError) -> RecordsRefused:
        """Return the refusal of the first record without an acknowledgement."""
        return RecordsRefused([RefusedEvent(index=self._sent, error=error)])

    def write(self, batch: Batch) -> None:
        self._write_stop.check()
        if self._pending is not batch:
            self._pending, self._sent = batch, 0
        records = batch.records or ()
        try:
            if self._sent < len(records):
                self._context.may_write()
                self._send(records[self._sent :])
        except RecordsRefused:
            raise  # the batch comes again without the record
        except BaseException as error:
            # Only a retry of the same batch keeps the order; after any other failure the sink
            # refuses all writes.
            if not isinstance(error, SinkError) or error.retry is not RetryVerdict.SAME_BATCH:
                self._write_stop.fail(error)
            raise
        self._pending = None
        self._accepted = self._accepted.advanced(batch.partition, batch.position)

    def flush(self) -> Positions | None:
        return self._accepted or None
