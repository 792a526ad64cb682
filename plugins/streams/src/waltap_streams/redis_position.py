"""The position that stands in Redis with the entries, written in one transaction with them."""

from collections.abc import Callable
from typing import Any

import msgspec

from waltap.source.position import Position, Positions
from waltap_streams.errors import StreamFenced, StreamUnfit
from waltap_streams.redis_server import RedisServer

__all__ = ["RedisPosition"]


class Kept(msgspec.Struct, frozen=True):
    """What stands under ``position.key``: positions, and how often the pipeline began."""

    positions: dict[str, Position] = {}
    generation: int = 0


class RedisPosition:
    """The positions of one pipeline, under ``key``: only the instance that began last moves them."""

    def __init__(self, server: RedisServer, key: str, pipeline: str) -> None:
        self._server, self._key, self._pipeline = server, key, pipeline
        self._kept = Kept()

    @property
    def stored(self) -> Positions:
        """Return the positions that are committed."""
        return Positions(self._kept.positions)

    def begin(self, *, resumes: bool, may_write: Callable[[], None]) -> None:
        """Be the instance that writes; without ``resumes`` what is kept counts for nothing."""
        client = self._server.connected()
        before = self._read(client.get(self._key))
        positions = before.positions if resumes else {}
        self._kept = Kept(positions, before.generation + 1)
        may_write()
        client.set(self._key, msgspec.json.encode(self._kept))

    def commit(self, positions: Positions, add: Callable[[Any], None]) -> None:
        """Execute what ``add`` puts into a transaction, with ``positions``. Raises: StreamFenced."""
        from redis import WatchError

        kept = Kept(dict(positions), self._kept.generation)
        with self._server.connected().pipeline(transaction=True) as transaction:
            transaction.watch(self._key)  # type: ignore[no-untyped-call]
            if self._read(transaction.get(self._key)) != self._kept:
                raise self._fenced()
            transaction.multi()
            add(transaction)
            transaction.set(self._key, msgspec.json.encode(kept))
            try:
                transaction.execute()
            except WatchError as error:
                raise self._fenced() from error
        self._kept = kept

    def _read(self, found: Any) -> Kept:
        try:
            return Kept() if found is None else msgspec.json.decode(found, type=Kept)
        except msgspec.DecodeError as error:
            text = f"{self._key} holds no position of waltap: {error}"
            raise StreamUnfit(text, place=self._server.place, property="position.key") from error

    def _fenced(self) -> StreamFenced:
        return StreamFenced(f"{self._key} was set by another", pipeline=self._pipeline)
