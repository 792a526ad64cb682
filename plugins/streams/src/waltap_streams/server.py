"""A server of message streams: one connection, made at the first use, and what its errors mean."""

import abc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from waltap.config.redaction import without_frames
from waltap.errors import SinkError
from waltap.plugin_errors import LibraryMissing

__all__ = ["StreamServer"]

Client = TypeVar("Client")


class StreamServer(abc.ABC, Generic[Client]):
    """What every sink of streams asks of its server; ``place`` is its address, for people."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._client: Client | None = None

    @abc.abstractmethod
    def _connect(self) -> Client:
        """Return a new client. Raises: LibraryMissing; what the client raises."""

    @abc.abstractmethod
    def _let_go(self, client: Client) -> None:
        """Close a client."""

    @abc.abstractmethod
    def _meaning(self, error: BaseException, about: str) -> SinkError | None:
        """Return what an error of the client means, None where it is none of the client's.
        ``about`` is the stream, or topic, that it came of; "": none."""

    def connected(self) -> Client:
        """Return the client. Raises: SinkError, LibraryMissing."""
        if self._client is None:
            with self.failing():
                self._client = self._connect()
        return self._client

    def close(self) -> None:
        """Let go; may be called twice."""
        client, self._client = self._client, None
        if client is not None:
            self._let_go(client)

    @contextmanager
    def failing(self, about: str = "") -> Iterator[None]:
        """Turn the client's errors into ours."""
        try:
            yield
        except (SinkError, LibraryMissing):
            raise
        except Exception as error:
            failure = self._meaning(error, about)
            if failure is None:
                raise
            raise failure from without_frames(error)
