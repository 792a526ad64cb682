"""NATS JetStream: a message for each record, with the topic as its subject."""

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
    """Publishes records and waits for the stream's acknowledgements. At least once, in order.

    A message that is published again since its acknowledgement got lost has the same id: the stream
    leaves it out. Those behind it get new ones, so that the last of a key stays the last. The client's
    loop runs while a call lasts; `tend` lets it answer the server's pings.
    """

    def __init__(self, properties: NatsProperties, context: SinkContext) -> None:
        self._server = NatsServer(properties)
        super().__init__(self._server.place, context)
        self._properties = properties
        self._stream: JetStreamContext | None = None
        self._name, self._tries = uuid.uuid4().hex, count()
        self._lost = ""
        """Id of the first message whose acknowledgement did not come."""

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[PreflightCheck]:
        """Look whether the server lets us in. Raises: SinkError, LibraryMissing."""
        try:
            client = self._server.connected()
            found = f"{self._place}: NATS {client.connected_server_version}"
        finally:
            self.close()
        return [PreflightCheck(name="sink nats-jetstream", verdict="ok", found=found)]

    def open(self) -> None:
        """Connect, and make the stream where that is asked for. Raises: SinkError, LibraryMissing."""
        self._gap.reset()
        self._stream = self._server.connected().jetstream(
            timeout=self._properties.timeout_ms / 1000
        )
        if self._properties.create:
            self._server.run(self._make())

    def tend(self) -> None:
        """Let the client answer. Raises: SinkError."""
        if self._stream is not None:
            self._server.run(self._server.connected().flush(timeout=10))

    def close(self) -> None:
        """Let go; may be called twice."""
        self._stream = None
        self._server.close()

    # --- messages ---------------------------------------------------------------------------------

    def _send(self, records: Sequence[Record]) -> None:
        window = self._properties.window
        for at in range(0, len(records), window):
            self._server.run(self._publish(records[at : at + window]))

    async def _publish(self, records: Sequence[Record]) -> None:
        """Publish some side by side; they leave in order. From the first failure on, none counts."""
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
    """Return the headers of a message: values as they are where a header takes that, else as base64."""
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
