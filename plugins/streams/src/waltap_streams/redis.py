"""Redis streams: an entry for each record, in the stream of its topic."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from waltap.format.record import Record
from waltap.sink.fail_stop import FailStop
from waltap.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.source.connector import Check
from waltap.source.position import Position, Positions
from waltap.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap_streams.errors import StreamFenced, StreamUnfit
from waltap_streams.properties import RedisProperties
from waltap_streams.redis_server import RedisServer, entry

__all__ = ["RedisSink"]


class Kept(msgspec.Struct, frozen=True):
    """What stands under ``position.key``: positions, and how often the pipeline began."""

    positions: dict[str, Position] = {}
    generation: int = 0


class RedisSink(Sink):
    """Appends records to streams.

    At least once: `write` waits until the server has every entry. Exactly once: entries are held until
    `flush`, and go with the position in one transaction, which fails where another instance has begun.
    How durable an entry is, is the server's affair (appendonly, appendfsync). Single-threaded.
    """

    def __init__(self, properties: RedisProperties, context: SinkContext) -> None:
        self._properties, self._context = properties, context
        self._once = properties.guarantee == "exactly_once"
        self.capabilities = SinkCapabilities(
            exactly_once=self._once, partitions=True, resumes_snapshots=True
        )
        self._fail_stop, self._gap = FailStop(properties.address), FailStop(properties.address)
        """After a failed write nothing follows; what was acknowledged before it stays promised."""
        self._key = properties.position_key.replace("{pipeline}", context.pipeline)
        self._server = RedisServer(properties)
        self._kept = Kept()
        self._begin()

    def _begin(self) -> None:
        self._held: list[Record] = []
        self._accepted = self._there = Positions(self._kept.positions)
        self._in_snapshot = False

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[Check]:
        """Look whether the server lets us in, and say whether it keeps what it gets. Raises: SinkError."""
        try:
            with self._server.failing():
                found: Any = self._server.connected().info()
        finally:
            self.close()
        keeps = "appendonly" if found.get("aof_enabled") else "no appendonly: kept in memory"
        text = f"{self._properties.address}: Redis {found.get('redis_version')}, {keeps}"
        return [Check(name="sink redis", verdict="ok", found=text)]

    def open(self) -> Positions | None:
        """Connect; with exactly once, return the position that stands with the entries.

        Raises: SinkError, LibraryMissing."""
        self._fail_stop.reset()
        self._gap.reset()
        with self._server.failing():
            client = self._server.connected()
            client.ping()
            if self._once:
                before = self._read(client.get(self._key))
                positions = before.positions if self._context.resumes else {}
                self._kept = Kept(positions, before.generation + 1)
                self._context.may_write()
                client.set(self._key, msgspec.json.encode(self._kept))
        self._begin()
        return self._accepted or None if self._once else None

    def close(self) -> None:
        """Let go; what is held is forgotten. May be called twice."""
        self._held = []
        self._server.close()

    # --- batches ----------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Append the batch's records, or hold them. Raises: SinkError."""
        self._fail_stop.check()
        with self._gap, self._server.failing():
            self._take(batch)

    def _take(self, batch: Batch) -> None:
        if self._once and self._is_there(batch):
            return
        if self._in_snapshot and _begins(batch):
            self._held = []
        self._in_snapshot = batch.snapshot and bool(batch.parts)
        records = batch.records or ()
        if self._once:
            self._held += records
        else:
            self._context.may_write()
            self._append(records)
        if not self._in_snapshot:
            self._accepted = self._accepted.moved(batch.partition, batch.position)
        elif self._once:
            self._accepted = Positions()
        if len(self._held) >= self._properties.held_records:
            self._commit()

    def flush(self) -> Positions | None:
        """Commit what is held; return the positions behind it. Raises: SinkError."""
        self._fail_stop.check()
        if not self._once:
            return self._accepted or None
        if not self._gap.failed:
            with self._fail_stop, self._server.failing():
                self._commit()
        return Positions(self._kept.positions) or None

    def _is_there(self, batch: Batch) -> bool:
        """Tell whether the transactions of ``batch`` stood here at `open`."""
        there = self._there.get(batch.partition)
        return (
            there is not None
            and batch.position <= there
            and bool(batch.parts)
            and all(isinstance(part, TransactionPart) for part in batch.parts)
        )

    def _commit(self) -> None:
        if not self._held and dict(self._accepted) == self._kept.positions:
            return
        from redis import WatchError

        kept = Kept(dict(self._accepted), self._kept.generation)
        self._context.may_write()
        with self._server.connected().pipeline(transaction=True) as transaction:
            transaction.watch(self._key)  # type: ignore[no-untyped-call]
            if self._read(transaction.get(self._key)) != self._kept:
                raise self._fenced()
            transaction.multi()
            for record in self._held:
                self._add(transaction, record)
            transaction.set(self._key, msgspec.json.encode(kept))
            try:
                transaction.execute()
            except WatchError as error:
                raise self._fenced() from error
        self._kept, self._held = kept, []

    def _append(self, records: Sequence[Record]) -> None:
        waiting = iter(records)
        while some := list(islice(waiting, self._properties.batch_records)):
            with self._server.connected().pipeline(transaction=False) as pipeline:
                for record in some:
                    self._add(pipeline, record)
                pipeline.execute()

    def _add(self, pipeline: Any, record: Record) -> None:
        bound = self._properties.max_entries or None
        pipeline.xadd(record.topic, entry(record, self._properties), maxlen=bound)

    def _read(self, found: Any) -> Kept:
        try:
            return Kept() if found is None else msgspec.json.decode(found, type=Kept)
        except msgspec.DecodeError as error:
            text = f"{self._key} holds no position of waltap: {error}"
            place = self._properties.address
            raise StreamUnfit(text, place=place, property="position.key") from error

    def _fenced(self) -> StreamFenced:
        return StreamFenced(f"{self._key} was set by another", pipeline=self._context.pipeline)


def _begins(batch: Batch) -> bool:
    """Tell whether a snapshot begins, or goes on: what was not flushed of it comes again."""
    pieces = [part for part in batch.parts if isinstance(part, SnapshotRows)]
    return any(piece.opens or piece.goes_on for piece in pieces)
