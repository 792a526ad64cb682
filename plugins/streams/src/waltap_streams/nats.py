"""The sink for NATS JetStream.

Each record becomes one message, with its topic as subject.
"""

import asyncio
import base64
import uuid
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from waltap.format.record import Record
from waltap.sink.sink import SinkContext
from waltap.source.connector import PreflightCheck
from waltap_streams.delivery import AcknowledgedSink
from waltap_streams.nats_server import NatsServer
from waltap_streams.properties import NatsProperties

if TYPE_CHECKING:
    from nats.js import JetStreamContext

__all__ = ["NatsSink"]


class NatsSink(AcknowledgedSink):
    """Publish records and wait for acknowledgements.

    Delivery is at least once, in order.
    """

    def __init__(self, properties: NatsProperties, context: SinkContext) -> None:
        self._server = NatsServer(properties)
        super().__init__(self._server.place, context)
        self._properties = properties
        self._stream: JetStreamContext | None = None
        # Ids of messages, unique to this instance.
        self._name, self._tries = uuid.uuid4().hex, count()
        # Id of the first message whose acknowledgement is missing. It is published again with the
        # same id, so that the stream drops a duplicate. Later messages get new ids, so that the
        # last message of a key stays the last.
        self._lost = ""

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[PreflightCheck]:
        """Check that the server accepts the login.

        Raises: SinkError, LibraryMissing.
        """
        try:
            client = self._server.connected()
            found = f"{self._place}: NATS {client.connected_server_version}"
        finally:
            self.close()
        return [PreflightCheck(name="sink nats-jetstream", verdict="ok", found=found)]

    def open(self) -> None:
        """Connect, and create the stream if configured.

        Raises: SinkError, LibraryMissing.
        """
        self._gap.reset()
        self._stream = self._server.connected().jetstream(
            timeout=self._properties.timeout_ms / 1000
        )
        if self._properties.create:
            self._server.run(self._make())

    def tend(self) -> None:
        """Let the client answer the server's pings.

        Raises: SinkError.
        """
        if self._stream is not None:
            # The client's loop only runs during calls; without one the server would miss its
            # answers.
            self._server.run(self._server.connected().flush(timeout=10))

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._stream = None
        self._server.close()

    # --- messages ---------------------------------------------------------------------------------

    def _send(self, records: Sequence[Record]) -> None:
        window = self._properties.window
        for at in range(0, len(records), window):
            self._server.run(self._publish(records[at : at + window]))

    async def _publish(self, records: Sequence[Record]) -> None:
        """Publish some records concurrently.

        They leave in order. No record after the first failure counts.
        """
        assert self._stream is not None, "open comes first"
        names = [f"{self._name}-{next(self._tries)}" for _ in records]
        names[0], self._lost = self._lost or names[0], ""
        calls = [
            self._stream.publish(record.topic, record.value or b"", headers=_headers(record, name))
            for record, name in zip(records, names, strict=True)
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for record, name, answer in zip(records, names, answers, strict=True):
            if isinstance(answer, BaseException):
                self._lost = name
                raise self._server.meaning(answer, record.topic) from answer
            self._acknowledged(1)

    async def _make(self) -> None:
        from nats.js.api import StorageType, StreamConfig
        from nats.js.errors import NotFoundError

        assert self._stream is not None
        given = self._properties
        try:
            await self._stream.stream_info(given.stream)
        except NotFoundError:
            storage = StorageType.FILE if given.storage == "file" else StorageType.MEMORY
            made = StreamConfig(name=given.stream, subjects=list(given.subjects), storage=storage)
            await self._stream.add_stream(made)


def _headers(record: Record, name: str) -> dict[str, str]:
    """Return the headers of a message.

    A value that a header cannot hold is base64.
    """
    given = [("waltap-key", record.key), *((f"header-{n}", v) for n, v in record.headers)]
    found = {"Nats-Msg-Id": name}
    for header, value in given:
        if value is not None:
            plain = value.isascii() and value.decode().isprintable() and value == value.strip()
            text = value.decode() if plain and value else base64.b64encode(value).decode()
            found[header if plain and value else f"{header}-base64"] = text
    if record.value is None:
        found["waltap-tombstone"] = "true"
    return found
