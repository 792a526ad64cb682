"""The position that Redis stores with the entries.

One transaction writes both.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.errors import SinkError
from waltap.sink.held import DestinationBehind
from waltap.source.position import Position, Positions
from waltap_streams.errors import StreamFenced, StreamUnfit
from waltap_streams.redis_server import RedisServer

__all__ = ["RedisPosition"]


class StoredRedisPosition(msgspec.Struct, frozen=True):
    """Hold the value under ``position.key``."""

    positions: dict[str, Position] = {}
    # Number of starts of the pipeline: an older instance has a lower one and is fenced.
    generation: int = 0


class RedisPosition:
    """Read and write the positions of one pipeline.

    Only the instance that started last may change them.
    """

    def __init__(self, server: RedisServer, key: str, pipeline: str) -> None:
        self._server, self._key, self._pipeline = server, key, pipeline
        self._kept = StoredRedisPosition()
        # Keys that were checked to be streams or free.
        self._seen: set[str] = set()

    @property
    def stored(self) -> Positions:
        """Return the committed positions."""
        return Positions(self._kept.positions)

    def begin(self, *, resumes: bool, may_write: Callable[[], None]) -> None:
        """Fence older instances by a new generation.

        Without ``resumes`` the stored positions are discarded.
        """
        from redis import WatchError

        with self._server.connected().pipeline(transaction=True) as transaction:
            # WATCH fails the transaction if another instance writes the key in between.
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
        """Append by ``add`` and store ``positions`` in one transaction.

        ``streams`` are the keys that ``add`` writes. Raises: StreamFenced, StreamUnfit,
        DestinationBehind.
        """
        from redis import WatchError
        from redis.exceptions import ExecAbortError, ResponseError

        kept = StoredRedisPosition(dict(positions), self._kept.generation)
        with self._server.connected().pipeline(transaction=True) as transaction:
            transaction.watch(self._key)  # type: ignore[no-untyped-call]
            found = self._read(transaction.get(self._key))
            if found != self._kept:
                raise self._changed(found)
            for name in set(streams) - self._seen:
                # Redis rolls back nothing: if one command of a transaction fails, the others
                # remain. A key of another type would fail, so check before.
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
                # Some commands were executed. Restore the old position: entries may arrive twice,
                # but none is missing.
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

    def _changed(self, found: StoredRedisPosition) -> SinkError:
        if found.generation > self._kept.generation:
            return self._fenced()
        # Another instance counts up: this is an older copy, or the key was removed.
        ends = Positions(found.positions)
        return DestinationBehind(
            f"{self._key} of {self._server.place} has {ends or 'no position'}, and had {self.stored}",
            has=ends,
            replay="",
        )

    def _fenced(self) -> StreamFenced:
        return StreamFenced(f"{self._key} was set by another", pipeline=self._pipeline)
