"""The sink for Redis streams.

Each record becomes one entry in the stream of its topic.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from waltap.base.files.durable_file import UNREADABLE
from waltap.base.network.tls import tls_context
from waltap.base.plugin_errors import needing
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch
from waltap.errors import SinkError
from waltap.ports.sink.refusal import FailStop
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.sink.stored_position import DestinationBehind, begins_snapshot
from waltap.ports.source.connector import PreflightCheck
from waltap_streams.delivery import StreamServer
from waltap_streams.errors import (
    StreamFenced,
    StreamFull,
    StreamRefused,
    StreamUnavailable,
    StreamUnfit,
)
from waltap_streams.properties import RedisProperties

if TYPE_CHECKING:
    from redis import Redis


RIGHTS: Final = "XADD and INFO; with exactly_once GET, SET, WATCH, MULTI and EXEC as well"
# Beginnings of errors for which the client has no class.
AWAY: Final = ("BUSY ", "NOREPLICAS ")
FULL: Final = "MISCONF "
# The client's words before an error of a pipeline: name and arguments of the command.
COMMAND: Final = re.compile(r"Command # \d+ \((\S+ \S+).*\) of pipeline caused error: ", re.DOTALL)

Field = str | bytes


class RedisServer(StreamServer["Redis"]):
    """Hold one connection, opened at its first use."""

    def __init__(self, properties: RedisProperties) -> None:
        super().__init__(properties.address)
        self._properties = properties

    def _connect(self) -> "Redis":
        with needing("the sink redis needs redis", extra="redis"):
            from redis import Redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        given = self._properties
        address = urlsplit(f"//{given.address}")
        timeout = given.timeout_ms / 1000
        if given.ssl_ca is not None:
            # redis calls a file that it cannot read a lost link.
            tls_context(("ssl.ca", given.ssl_ca))
        return Redis(
            host=address.hostname or "",
            port=address.port or 6379,
            db=given.db_index,
            username=given.user,
            password=given.password,
            ssl=given.ssl,
            ssl_ca_certs=given.ssl_ca,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),  # an unanswered command may have been executed
        )

    def meaning(self, error: BaseException, about: str) -> SinkError | None:
        import redis

        location, text = self.location, str(error)
        command = COMMAND.match(text)
        kind = text if command is None else text[command.end() :]
        # The values of a command are rows, which no message shows.
        text = kind if command is None else f"{command[1]}: {kind}"
        their = redis.exceptions
        if isinstance(error, (their.AuthenticationError, their.NoPermissionError)):
            return StreamRefused(text, location=location, rights=RIGHTS)
        if isinstance(error, their.OutOfMemoryError) or kind.startswith(FULL):
            return StreamFull(text, location=location, property="stream.max.entries")
        # After a failover the server may be a replica, or lack one. `RedisPosition` says what a
        # changed key means, so a WatchError here is of a lost link.
        gone = (
            *(redis.ConnectionError, redis.TimeoutError, redis.WatchError),
            *(their.ReadOnlyError, their.TryAgainError, their.ClusterDownError),
        )
        if isinstance(error, gone) or kind.startswith(AWAY):
            return StreamUnavailable(f"{location}: {text}", location=location)
        if isinstance(error, redis.RedisError):
            return StreamUnfit(text, location=location, property="the topic")
        return None


def entry(record: Record, properties: RedisProperties) -> dict[Field, Field]:
    """Return the fields of the entry of ``record``."""
    if properties.message_format == "compact":
        key = properties.null_key if record.key is None else record.key
        return {key: properties.null_value if record.value is None else record.value}
    fields: dict[Field, Field] = {}
    if record.key is not None:
        fields["key"] = record.key
    if record.value is not None:
        fields["value"] = record.value
    for name, value in record.headers:
        fields[f"header.{name}"] = value
    return fields or {"value": b""}  # an entry needs at least one field


# The position that Redis stores with the entries: one transaction writes both.


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
        self._stored_position = StoredRedisPosition()
        # Keys that were checked to be streams or free.
        self._seen: set[str] = set()

    @property
    def stored(self) -> Positions:
        return Positions(self._stored_position.positions)

    def begin(self, *, has_offset: bool, may_write: Callable[[], None]) -> None:
        """Fence older instances by a new generation.

        Without ``has_offset`` the stored positions are discarded.
        """
        with self._transaction() as transaction:
            # WATCH fails the transaction if another instance writes the key in between.
            transaction.watch(self._key)
            before = self._read(transaction.get(self._key))
            positions = before.positions if has_offset else {}
            self._stored_position = StoredRedisPosition(positions, before.generation + 1)
            may_write()
            transaction.multi()
            transaction.set(self._key, msgspec.json.encode(self._stored_position))
            transaction.execute()

    def commit(
        self, positions: Positions, streams: Iterable[str], add: Callable[[Any], None]
    ) -> None:
        """Append by ``add`` and store ``positions`` in one transaction.

        ``streams`` are the keys that ``add`` writes. Raises: StreamFenced, StreamUnfit,
        DestinationBehind.
        """
        from redis.exceptions import ExecAbortError, ResponseError

        new_position = StoredRedisPosition(dict(positions), self._stored_position.generation)
        with self._transaction() as transaction:
            transaction.watch(self._key)
            found = self._read(transaction.get(self._key))
            if found != self._stored_position:
                raise self._changed(found)
            for name in set(streams) - self._seen:
                # Redis rolls back nothing: if one command of a transaction fails, the others
                # remain. A key of another type would fail, so check before.
                kind = transaction.type(name)
                if kind not in (b"stream", b"none"):
                    raise StreamUnfit(
                        f"{name} is there, and no stream",
                        location=self._server.location,
                        property="the topic",
                    )
                self._seen.add(name)
            transaction.multi()
            add(transaction)
            transaction.set(self._key, msgspec.json.encode(new_position))
            try:
                transaction.execute()
            except ResponseError as error:
                # Some commands were executed. Restore the old position: entries may arrive twice,
                # but none is missing.
                if not isinstance(error, ExecAbortError):
                    self._server.connected().set(
                        self._key, msgspec.json.encode(self._stored_position)
                    )
                    self._seen.clear()
                raise
        self._stored_position = new_position

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Give a transaction.

        Raises: StreamFenced if another instance writes the watched key.
        """
        import redis

        try:
            with self._server.connected().pipeline(transaction=True) as transaction:
                yield transaction
        except redis.WatchError as error:
            # The client raises this error for a lost link, too.
            if isinstance(error.__context__, (redis.ConnectionError, redis.TimeoutError)):
                raise
            raise self._fenced() from error

    def _read(self, found: Any) -> StoredRedisPosition:
        try:
            return msgspec.json.decode(b"{}" if found is None else found, type=StoredRedisPosition)
        except UNREADABLE as error:
            raise StreamUnfit(
                f"{self._key} holds no position of waltap: {error}",
                location=self._server.location,
                property="position.key",
            ) from error

    def _changed(self, found: StoredRedisPosition) -> SinkError:
        if found.generation > self._stored_position.generation:
            return self._fenced()
        # Another instance counts up: this is an older copy, or the key was removed.
        ends = Positions(found.positions)
        return DestinationBehind(
            f"{self._key} of {self._server.location} has {ends or 'no position'}, and had {self.stored}",
            has=ends,
            replay="",
        )

    def _fenced(self) -> SinkError:
        return StreamFenced(f"{self._key} was set by another", pipeline=self._pipeline)


class RedisSink(Sink):
    """Append records to streams.

    At least once: `write` waits until the server has every entry. Exactly once: entries are
    buffered until `flush` and written with the position in one transaction. The transaction fails
    if another instance has started. The server's settings (appendonly, appendfsync) decide how
    durable an entry is. The sink is single-threaded.
    """

    def __init__(self, properties: RedisProperties, context: SinkContext) -> None:
        self._properties, self._context = properties, context
        self._once = properties.guarantee == "exactly_once"
        self.capabilities = SinkCapabilities(
            exactly_once=self._once, partitions=True, resumes_snapshots=True
        )
        # After a failed write no write may follow. Positions acknowledged before it remain valid,
        # so `flush` has a guard of its own.
        self._fail_stop = FailStop(properties.address)
        self._write_stop = FailStop(properties.address)
        self._server = RedisServer(properties)
        key = properties.position_key.replace("{pipeline}", context.pipeline)
        self._stored_position = RedisPosition(self._server, key, context.pipeline)
        self._begin()

    def _begin(self) -> None:
        self._held: list[Record] = []
        self._accepted = self._stored_position.stored
        self._in_snapshot = False

    # --- life cycle -------------------------------------------------------------------------------

    def check(self) -> list[PreflightCheck]:
        """Check the login and report the server's persistence."""
        try:
            with self._server.failing():
                found: Any = self._server.connected().info()
        finally:
            self.close()
        keeps = "appendonly" if found.get("aof_enabled") else "no appendonly: kept in memory"
        text = f"{self._properties.address}: Redis {found.get('redis_version')}, {keeps}"
        return [PreflightCheck.ok("sink redis", text)]

    def open(self) -> Positions | None:
        """Connect, and with exactly once return the stored position.

        Raises: SinkError, LibraryMissing.
        """
        self._fail_stop.reset()
        self._write_stop.reset()
        with self._server.failing():
            client = self._server.connected()
            client.ping()
            if self._once:
                self._stored_position.begin(
                    has_offset=self._context.has_offset, may_write=self._context.may_write
                )
        self._begin()
        return self._accepted or None if self._once else None

    def stored_position(self) -> Positions | None:
        return self._stored_position.stored or None if self._once else None

    def close(self) -> None:
        """Drop buffered entries and disconnect; may be called twice."""
        self._held = []
        self._server.close()

    # --- batches ----------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        self._fail_stop.check()
        with self._write_stop, self._server.failing():
            # The snapshot started again: its buffered rows come again, too.
            if self._in_snapshot and begins_snapshot(batch):
                self._held = []
            self._in_snapshot = batch.snapshot and bool(batch.parts)
            records = batch.records or ()
            if self._once:
                self._held += records
            else:
                self._context.may_write()
                self._append(records)
            if not self._in_snapshot:
                self._accepted = self._accepted.advanced(batch.partition, batch.position)
            elif self._once:
                # An unfinished snapshot has no position to resume from.
                self._accepted = Positions()
            if len(self._held) >= self._properties.held_records:
                self._commit()

    def flush(self) -> Positions | None:
        self._fail_stop.check()
        if not self._once:
            return self._accepted or None
        if not self._write_stop.failed:
            with self._fail_stop, self._server.failing():
                self._commit()
        return self._stored_position.stored or None

    def _commit(self) -> None:
        if self._held or self._accepted != self._stored_position.stored:
            self._context.may_write()
            streams = {record.topic for record in self._held}
            add = partial(self._add, self._held)
            self._stored_position.commit(self._accepted, streams, add)
            self._held = []

    def _append(self, records: Sequence[Record]) -> None:
        waiting = iter(records)
        while some := list(islice(waiting, self._properties.batch_records)):
            with self._server.connected().pipeline(transaction=False) as pipeline:
                self._add(some, pipeline)
                pipeline.execute()

    def _add(self, records: Sequence[Record], pipeline: Any) -> None:
        bound = self._properties.max_entries or None
        for record in records:
            pipeline.xadd(record.topic, entry(record, self._properties), maxlen=bound)
