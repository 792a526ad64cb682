"""The position that stands in Redis with the entries, written in one transaction with them."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.source.position import Position, Positions
from waltap_streams.errors import StreamFenced, StreamUnfit
from waltap_streams.redis_server import RedisServer

__all__ = ["RedisPosition"]


class StoredRedisPosition(msgspec.Struct, frozen=True):
    """What stands under ``position.key``: positions, and how often the pipeline began."""

    positions: dict[str, Position] = {}
    generation: int = 0


class RedisPosition:
    """The positions of one pipeline, under ``key``: only the instance that began last moves them."""

    def __init__(self, server: RedisServer, key: str, pipeline: str) -> None:
        self._server, self._key, self._pipeline = server, key, pipeline
        self._kept = StoredRedisPosition()
        self._seen: set[str] = set()

    @property
    def stored(self) -> Positions:
        """Return the positions that are committed."""
        return Positions(self._kept.positions)

    def begin(self, *, resumes: bool, may_write: Callable[[], None]) -> None:
        """Be the instance that writes; without ``resumes`` what is kept counts for nothing."""
        from redis import WatchError

        with self._server.connected().pipeline(transaction=True) as transaction:
            transaction.watch(self._key)  # type: ignore[no-untyped-call]
            before = self._read(transaction.get(self._key))
            positions = before.positions if resumes else {}
            self._kept = StoredRedisPosition(positions, before.generation + 1)
            may_write()
            transaction.multi()
            transaction.set(self._key, msgspec.json.encode(self._kept))
            try:
                transaction.execute()
            except WatchError as error:
                raise self._fenced() from error

    def commit(
        self, positions: Positions, streams: Iterable[str], add: Callable[[Any], None]
    ) -> None:
        """Execute what ``add`` appends to ``streams``, in a transaction with ``positions``.

        Redis undoes nothing of a transaction: where one command fails, the others hold. So streams are
        looked at before, and of what fails all the same the position goes back: entries may come twice.
        Raises: StreamFenced, StreamUnfit.
        """
        from redis import WatchError
        from redis.exceptions import ExecAbortError, ResponseError

        kept = StoredRedisPosition(dict(positions), self._kept.generation)
        with self._server.connected().pipeline(transaction=True) as transaction:
            transaction.watch(self._key)  # type: ignore[no-untyped-call]
            if self._read(transaction.get(self._key)) != self._kept:
                raise self._fenced()
            for name in set(streams) - self._seen:
                kind = transaction.type(name)
                if kind not in (b"stream", b"none"):
                    text = f"{name} is there, and no stream"
                    raise StreamUnfit(text, place=self._server.place, property="the topic")
                self._seen.add(name)
            transaction.multi()
            add(transaction)
            transaction.set(self._key, msgspec.json.encode(kept))
            try:
                transaction.execute()
            except WatchError as error:
                raise self._fenced() from error
            except ResponseError as error:
                if not isinstance(error, ExecAbortError):
                    self._server.connected().set(self._key, msgspec.json.encode(self._kept))
                    self._seen.clear()
                raise
        self._kept = kept

    def _read(self, found: Any) -> StoredRedisPosition:
        try:
            return (
                StoredRedisPosition()
                if found is None
                else msgspec.json.decode(found, type=StoredRedisPosition)
            )
        except UNREADABLE as error:
            text = f"{self._key} holds no position of waltap: {error}"
            raise StreamUnfit(text, place=self._server.place, property="position.key") from error

    def _fenced(self) -> StreamFenced:
        return StreamFenced(f"{self._key} was set by another", pipeline=self._pipeline)
