"""A server of message streams.

It has one connection, opened at its first use, and translates errors.
"""

import abc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from waltap.base.plugin_errors import LibraryMissing
from waltap.base.redaction import without_frames
from waltap.errors import SinkError

Client = TypeVar("Client")


class StreamServer(abc.ABC, Generic[Client]):
    """Define the connection that every stream sink needs."""

    def __init__(self, location: str) -> None:
        # The address in messages.
        self.location = location
        self._client: Client | None = None

    @abc.abstractmethod
    def _connect(self) -> Client:
        """Return a new client.

        Raises: LibraryMissing; exceptions of the client.
        """

    @abc.abstractmethod
    def _release(self, client: Client) -> None:
        """Close a client."""

    @abc.abstractmethod
    def _meaning(self, error: BaseException, about: str) -> SinkError | None:
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
        client, self._client = self._client, None
        if client is not None:
            self._release(client)

    @contextmanager
    def failing(self, about: str = "") -> Iterator[None]:
        """Translate exceptions of the client to errors of waltap."""
        try:
            yield
        except (SinkError, LibraryMissing):
            raise
        except Exception as error:
            failure = self._meaning(error, about)
            if failure is None:
                raise
            # Frames of a client library may contain passwords.
            raise failure from without_frames(error)
