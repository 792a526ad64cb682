"""Access to a NATS server by nats-py, and the meaning of its errors."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from waltap.errors import SinkError
from waltap.plugin_errors import LibraryMissing
from waltap_streams.errors import (
    StreamFull,
    StreamMissing,
    StreamRefused,
    StreamUnavailable,
    StreamUnfit,
)
from waltap_streams.properties import NatsProperties
from waltap_streams.server import StreamServer

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["NatsServer"]

RIGHTS: Final = (
    "publish to the subjects of the topics, and to $JS.API.> where create-stream is true"
)


class NatsServer(StreamServer["Client"]):
    """Hold one connection and its event loop.

    The loop runs only during calls.
    """

    def __init__(self, properties: NatsProperties) -> None:
        self._servers = properties.url.split(",")
        # The profile's url may contain a password, so messages only show hosts.
        places = (url.rpartition("://")[2].rpartition("@")[2] for url in self._servers)
        super().__init__(", ".join(places))
        self._properties = properties
        self._loop: asyncio.AbstractEventLoop | None = None
        # The client's last asynchronous error, which often says more than a call's exception.
        self._heard = ""

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run ``call`` to its end.

        Raises: SinkError.
        """
        assert self._loop is not None, "the connection comes first"
        with self.failing():
            return self._loop.run_until_complete(call)

    def close(self) -> None:
        """Close the connection, even an unfinished one.

        It may be called twice.
        """
        client, self._client = self._client, None
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run_until_complete(_end(client))
            loop.close()

    def meaning(self, error: BaseException, topic: str) -> SinkError:
        """Return the error for a message to ``topic``."""
        return self._meaning(error, topic)

    def _connect(self) -> "Client":
        try:
            from nats.aio.client import Client
        except ImportError as cause:
            raise LibraryMissing("the sink nats-jetstream needs nats-py", extra="nats") from cause
        given = self._properties
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        client = self._client = Client()
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

    def _let_go(self, client: "Client") -> None:
        """Do nothing: `close` closes the client with its loop."""

    async def _hear(self, error: Exception) -> None:
        """Store an asynchronous error of the client."""
        self._heard = str(error) or repr(error)

    def _meaning(self, error: BaseException, about: str) -> SinkError:
        from nats import errors, js

        heard, self._heard = self._heard, ""
        text = f"{error}, {heard}" if heard and heard not in str(error) else str(error)
        place, text = self.place, f"{about}: {text}" if about else text
        if isinstance(error, js.errors.NoStreamResponseError):
            how = f"nats stream add --subjects '{about}', or create-stream with subjects"
            return StreamMissing(f"no stream takes {about}", how=how, property="subjects")
        # The server's text shows a refusal, whatever the exception's class.
        if "authorization" in text.lower() or "permissions" in text.lower():
            return StreamRefused(text, place=place, rights=RIGHTS)
        if isinstance(error, js.errors.APIError) and error.err_code in {10023, 10047, 10077}:
            return StreamFull(text, place=place, property="max_bytes, max_msgs")
        if isinstance(error, (js.errors.APIError, errors.MaxPayloadError, errors.BadSubjectError)):
            return StreamUnfit(text, place=place, property="topic.prefix")
        return StreamUnavailable(text or repr(error), place=place)


async def _end(client: "Client | None") -> None:
    """Close the connection and cancel the pending tasks."""
    if client is not None:
        await client.close()
        transport = client._transport  # noqa: SLF001 - close() leaves a refused connection open
        if transport is not None:
            transport.close()  # type: ignore[no-untyped-call]
    waiting = asyncio.all_tasks() - {asyncio.current_task()}
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
