"""The sink for NATS JetStream.

Each record becomes one message, with its topic as subject.
"""

import asyncio
import base64
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from waltap.base.plugin_errors import needing
from waltap.changes.events.event import Record
from waltap.errors import ConfigurationError, SinkError
from waltap.ports.sink.sink import SinkContext
from waltap.ports.source.connector import PreflightCheck
from waltap_streams.delivery import AcknowledgedSink, StreamServer
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


RIGHTS: Final = (
    "publish to the subjects of the topics, and to $JS.API.> where create-stream is true"
)
# The stream's max_msg_size; the server has a limit of its own.
TOO_LARGE: Final = 10054


class NatsServer(StreamServer["Client"]):
    """Hold one connection and its event loop. The loop runs only during calls."""

    def __init__(self, properties: NatsProperties) -> None:
        self._servers = properties.url.split(",")
        # The profile's url may contain a password, so messages only show hosts.
        addresses = (url.rpartition("://")[2].rpartition("@")[2] for url in self._servers)
        super().__init__(", ".join(addresses))
        self._properties = properties
        self._loop: asyncio.AbstractEventLoop | None = None
        # The client's last asynchronous error, which often says more than a call's exception.
        self._heard = ""

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run ``call`` to its end. Raises: SinkError."""
        assert self._loop is not None, "the connection comes first"
        with self.failing():
            return self._loop.run_until_complete(call)

    def close(self) -> None:
        """Close the connection, even an unfinished one."""
        client, self._client = self._client, None
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run_until_complete(_end(client))
            loop.close()

    def _connect(self) -> "Client":
        with needing("the sink nats-jetstream needs nats-py", extra="nats"):
            from nats.aio.client import Client
        given = self._properties
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self._heard, client = "", Client()
        self._client = client
        self.run(
            client.connect(
                self._servers,
                user=given.user,
                password=given.password,
                token=given.token,
                user_credentials=given.credentials,
                connect_timeout=max(1, given.timeout_ms // 1000),
                allow_reconnect=False,  # the engine opens the sink again
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=self._hear,
            )
        )
        return client

    async def _hear(self, error: Exception) -> None:
        """Store an asynchronous error of the client."""
        self._heard = str(error) or repr(error)

    def meaning(self, error: BaseException, about: str) -> SinkError:
        from nats import errors, js

        heard, self._heard = self._heard, ""
        answer = (
            f"{error}, {heard}" if heard and heard not in str(error) else str(error) or repr(error)
        )
        location, text = self.location, f"{about}: {answer}" if about else answer
        if isinstance(error, js.errors.NoStreamResponseError):
            how = f"nats stream add --subjects '{about}', or create-stream with subjects"
            return StreamMissing(f"no stream takes {about}", how=how, property="subjects")
        # The server's text shows a refusal, whatever the exception's class; a topic may be called so.
        if "authorization" in answer.lower() or "permissions" in answer.lower():
            return StreamRefused(text, location=location, rights=RIGHTS)
        if isinstance(error, js.errors.APIError) and error.err_code in {10023, 10047, 10077}:
            return StreamFull(text, location=location, property="max_bytes, max_msgs")
        unfit = (errors.MaxPayloadError, errors.BadSubjectError, errors.BadHeaderError)
        away = isinstance(error, js.errors.ServiceUnavailableError)  # a cluster has no leader
        if isinstance(error, (js.errors.APIError, *unfit)) and not away:
            return StreamUnfit(text, location=location, property="topic.prefix")
        return StreamUnavailable(text, location=location)


async def _end(client: "Client | None") -> None:
    """Close the connection and cancel the pending tasks."""
    if client is not None:
        with suppress(AssertionError):  # it has not begun to connect
            await client.close()
        transport = client._transport  # noqa: SLF001 - close() leaves a refused connection open
        if transport is not None:
            transport.close()  # type: ignore[no-untyped-call]
    waiting = asyncio.all_tasks() - {asyncio.current_task()}
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


class NatsSink(AcknowledgedSink):
    """Publish records and wait for acknowledgements.

    Delivery is at least once, in order.
    """

    def __init__(self, properties: NatsProperties, context: SinkContext) -> None:
        """Raises: ConfigurationError."""
        if properties.credentials is not None:
            try:
                import nkeys  # type: ignore[import-not-found] # noqa: F401 - nats-py imports it late
            except ImportError as cause:
                what = "needs nkeys, which is not installed: pip install nkeys"
                raise ConfigurationError.of("sink.auth.credentials", what) from cause
        self._server = NatsServer(properties)
        super().__init__(self._server.location, context)
        self._properties = properties
        self._stream: JetStreamContext | None = None

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[PreflightCheck]:
        """Check that the server accepts the login. Raises: SinkError, LibraryMissing."""
        try:
            client = self._server.connected()
            found = f"{self._location}: NATS {client.connected_server_version}"
        finally:
            self.close()
        return [PreflightCheck.ok("sink nats-jetstream", found)]

    def open(self) -> None:
        """Connect, and create the stream if configured. Raises: SinkError, LibraryMissing."""
        self._write_stop.reset()
        self._stream = self._server.connected().jetstream(
            timeout=self._properties.timeout_ms / 1000
        )
        if self._properties.create:
            self._server.run(self._make())

    def maintain(self) -> None:
        """Let the client answer the server's pings."""
        if self._stream is not None:
            # The client's loop only runs during calls; without one the server would miss its
            # answers.
            self._server.run(self._server.connected().flush(timeout=10))

    def close(self) -> None:
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
        from nats.errors import BadHeaderError, BadSubjectError, MaxPayloadError
        from nats.js.errors import APIError, NoStreamResponseError

        assert self._stream is not None, "open comes first"
        calls = [
            self._stream.publish(record.topic, record.value or b"", headers=_headers(record))
            for record in records
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for record, answer in zip(records, answers, strict=True):
            if isinstance(answer, BaseException):
                if isinstance(answer, NoStreamResponseError) and await self._exists(record.topic):
                    text = f"the stream of {record.topic} does not answer"
                    raise StreamUnavailable(text, location=self._location) from answer
                failure = self._server.meaning(answer, record.topic)
                large = isinstance(answer, APIError) and answer.err_code == TOO_LARGE
                if large or isinstance(answer, (MaxPayloadError, BadHeaderError, BadSubjectError)):
                    raise self._refusal(failure) from answer
                raise failure from answer
            self._sent += 1

    async def _exists(self, topic: str) -> bool:
        """Return whether a stream takes ``topic``, or true while that is unknown."""
        from nats.errors import Error
        from nats.js.errors import NotFoundError

        assert self._stream is not None
        try:
            await self._stream.find_stream_name_by_subject(topic)
        except Error as error:
            return not isinstance(error, NotFoundError)
        return True

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


def _headers(record: Record) -> dict[str, str]:
    """Return the headers of a message. A value that a header cannot hold is base64."""
    given = [("waltap-key", record.key), *((f"header-{n}", v) for n, v in record.headers)]
    found: dict[str, str] = {}
    for header, value in given:
        if value is not None:
            plain = value.isascii() and value.decode().isprintable() and value == value.strip()
            text = value.decode() if plain and value else base64.b64encode(value).decode()
            found[header if plain and value else f"{header}-base64"] = text
    if record.value is None:
        found["waltap-tombstone"] = "true"
    return found
