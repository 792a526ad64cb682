"""NATS JetStream: a message for each record, with the topic as its subject."""

import asyncio
import base64
import uuid
from collections.abc import Coroutine, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from waltap.errors import SinkError
from waltap.format.record import Record
from waltap.plugin_errors import LibraryMissing
from waltap.sink.sink import SinkContext
from waltap.source.connector import Check
from waltap_streams.delivery import AcknowledgedSink
from waltap_streams.errors import (
    StreamFull,
    StreamMissing,
    StreamRefused,
    StreamUnavailable,
    StreamUnfit,
)
from waltap_streams.properties import NatsProperties

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

__all__ = ["NatsSink"]

RIGHTS: Final = (
    "publish to the subjects of the topics, and to $JS.API.> where create-stream is true"
)


class NatsSink(AcknowledgedSink):
    """Publishes records and waits for the stream's acknowledgements. At least once, in order.

    A message that is published again since its acknowledgement got lost has the same id: the stream
    leaves it out. Those behind it get new ones, so that the last of a key stays the last. The client's
    loop runs while a call lasts; `tend` lets it answer the server's pings.
    """

    def __init__(self, properties: NatsProperties, context: SinkContext) -> None:
        self._servers = properties.url.split(",")
        super().__init__(", ".join(url.rpartition("@")[2] for url in self._servers), context)
        self._properties = properties
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._name, self._tries = uuid.uuid4().hex, count()
        self._heard = self._lost = ""
        """Id of the first message whose acknowledgement did not come."""

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[Check]:
        """Look whether the server lets us in. Raises: SinkError, LibraryMissing."""
        try:
            client = self._connected()
            found = f"{self._place}: NATS {client.connected_server_version}"
        finally:
            self.close()
        return [Check(name="sink nats-jetstream", verdict="ok", found=found)]

    def open(self) -> None:
        """Connect, and make the stream where that is asked for. Raises: SinkError, LibraryMissing."""
        self._gap.reset()
        self._stream = self._connected().jetstream(timeout=self._properties.timeout_ms / 1000)
        if self._properties.create:
            self._run(self._make())

    def tend(self) -> None:
        """Let the client answer. Raises: SinkError."""
        if self._client is not None:
            self._run(self._client.flush(timeout=10))

    def close(self) -> None:
        """Let go; may be called twice."""
        client, self._client, self._stream = self._client, None, None
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run_until_complete(_end(client))
            loop.close()

    # --- messages ---------------------------------------------------------------------------------

    def _send(self, records: Sequence[Record]) -> None:
        window = self._properties.window
        for at in range(0, len(records), window):
            self._run(self._publish(records[at : at + window]))

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
                raise self._failure(answer, record.topic) from answer
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

    # --- the server -------------------------------------------------------------------------------

    def _connected(self) -> "Client":
        try:
            from nats.aio.client import Client
        except ImportError as cause:
            raise LibraryMissing("the sink nats-jetstream needs nats-py", extra="nats") from cause
        given = self._properties
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        client = self._client = Client()
        self._run(
            client.connect(
                self._servers,
                user=given.user,
                password=given.password,
                token=given.token,
                user_credentials=given.credentials,
                connect_timeout=max(1, given.timeout_ms // 1000),
                allow_reconnect=False,  # the engine makes the sink anew
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=self._hear,
            )
        )
        return client

    async def _hear(self, error: Exception) -> None:
        """Keep what the client has to say besides: calls raise less than that."""
        self._heard = str(error) or repr(error)

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        assert self._loop is not None, "open comes first"
        try:
            return self._loop.run_until_complete(call)
        except SinkError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: BaseException, topic: str = "") -> SinkError:
        from nats import errors, js

        heard, self._heard = self._heard, ""
        text = f"{error}, {heard}" if heard and heard not in str(error) else str(error)
        place, text = self._place, f"{topic}: {text}" if topic else text
        if isinstance(error, js.errors.NoStreamResponseError):
            how = f"nats stream add --subjects '{topic}', or create-stream with subjects"
            return StreamMissing(f"no stream takes {topic}", how=how, property="subjects")
        if "authorization" in text.lower() or "permissions" in text.lower():
            return StreamRefused(text, place=place, rights=RIGHTS)
        if isinstance(error, js.errors.APIError) and error.err_code in {10023, 10047, 10077}:
            return StreamFull(text, place=place, property="max_bytes, max_msgs")
        if isinstance(error, (js.errors.APIError, errors.MaxPayloadError, errors.BadSubjectError)):
            return StreamUnfit(text, place=place, property="topic.prefix")
        return StreamUnavailable(text or repr(error), place=place)


async def _end(client: "Client | None") -> None:
    """Close the connection, also one that was never agreed on, and end what is still under way."""
    if client is not None:
        await client.close()
        transport = client._transport  # noqa: SLF001 - a connection that was refused stays open
        if transport is not None:
            transport.close()  # type: ignore[no-untyped-call]
    waiting = asyncio.all_tasks() - {asyncio.current_task()}
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


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
