"""Define optional roles of a source, each a protocol of the methods that it needs.

A connector has a role if it has its methods: it inherits nothing and declares nothing. The engine asks
with `isinstance`, and does without what the source does not offer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from waltap.changes.decode.decoder import Decoder
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.position import Position, Positions
from waltap.ports.offsets.offset import Offset
from waltap.ports.offsets.owned_objects import OwnedObject
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.chunk_source import ChunkSource, SnapshotChunk, TableReading
from waltap.ports.source.connector import (
    ChangeStream,
    Connector,
    SetupPlan,
    SourceLacks,
    StartPosition,
)
from waltap.ports.source.slot_status import SlotStatus


@runtime_checkable
class PlanningSource(Protocol):
    """A source that reports the setup of a start before the start."""

    def plan(self, offset: Offset | None) -> SetupPlan:
        """Return the setup that `prepare` would do, and the captured tables.

        The method changes nothing. Raises: SourceError, OffsetError, SnapshotError where `prepare` would.
        """


@runtime_checkable
class TakeoverSource(Protocol):
    """A source whose slots another engine reads, too."""

    def offset_at(self, position: Position) -> Offset:
        """Return the offset of a pipeline that resumes from ``position``.

        Another engine has read the slot up to that position. The offset is bound to the present server.
        Raises: SourceError.
        """


@runtime_checkable
class QueryableSource(Protocol):
    """A source with SQL."""

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Return the rows of a read-only statement, for the checks of plugins.

        ``parameters`` replace its ``%s``. Raises: SourceError.
        """


@runtime_checkable
class DecodingSource(Protocol):
    """A source whose decoder can be inspected."""

    def decoder(self) -> Decoder:
        """Return a decoder as a stream would have it. Raises: SourceError."""


@runtime_checkable
class ColumnListingSource(Protocol):
    """A source that lists its columns, for the patterns of a profile."""

    def column_names(self) -> Sequence[tuple[str, str, str | None, str | None]]:
        """Return (schema, table, column, type) of every existing column.

        A table without columns appears once, with None. Raises: SourceError.
        """


@runtime_checkable
class HeartbeatSource(Protocol):
    """A source on which a heartbeat can act."""

    def heartbeat(self) -> None:
        """Run the profile's heartbeat action on the server."""


@runtime_checkable
class WalSource(Protocol):
    """A source whose log has an end, and whose slots may retain row versions."""

    def wal_end(self) -> int | None:
        """Return the end of the source's log, None if this server does not report it.

        Raises: SourceError.
        """

    def xmin_reader(self) -> Callable[[], int | None] | None:
        """Return the function that returns ``source.xmin`` of the changes just received.

        None: changes have none. The engine calls the function for each batch; it queries the server only
        as often as the profile requests, and raises SourceError.
        """


@runtime_checkable
class PartitionedSource(Protocol):
    """A source of several streams, each with a position of its own."""

    # How long a merge of the partitions in commit order waits for a silent one. The commits must
    # be comparable. None: no merge.
    merges_within_s: float | None

    def streams(self, positions: Positions) -> Mapping[str, ChangeStream]:
        """Start streaming every partition; return the streams by partition.

        If one of them fails, none stays open. Raises: as `Connector.stream`.
        """


@runtime_checkable
class SnapshotHoldingSource(Protocol):
    """A source that holds something for the time of a snapshot."""

    def snapshot_ended(self, *, completed: bool) -> None:
        """End the snapshot that `Connector.snapshot` has read.

        With ``completed`` every row is durable; otherwise the snapshot was interrupted. The snapshot
        mode's `Snapshotter.after` runs here. Its errors are raised; the engine logs them.
        """


@runtime_checkable
class SnapshotListingSource(Protocol):
    """A source whose snapshots read other tables than it captures."""

    def snapshot_tables(self) -> list[str]:
        """Return schema.table of the tables that a snapshot reads.

        Raises: SourceError.
        """


@runtime_checkable
class SnapshotSharingSource(SnapshotHoldingSource, Protocol):
    """A source whose snapshot other processes can read."""

    def chunks(self, start: StartPosition) -> Sequence[SnapshotChunk]:
        """Return the rows of `Connector.snapshot` as chunks that other processes can read.

        All chunks see one snapshot. Until `snapshot_ended` or `close` no session can rewrite or truncate
        the tables.

        Raises: SnapshotError, SourceError; SourceLacks where this server cannot share a snapshot.
        """


@runtime_checkable
class RowReadingSource(Protocol):
    """A source that reads present rows by their keys."""

    def rows_now(
        self,
        relation: Relation,
        columns: Sequence[str],
        key: Sequence[str],
        keys: Sequence[Tuple],
    ) -> list[Tuple]:
        """Return ``columns`` of the present rows with one of these ``keys``.

        The values are the server's text, the order is undefined, and deleted rows are absent.

        Raises: ConnectionLost; SourceError where the table was dropped or has other columns by now.
        """


@runtime_checkable
class TableReadingSource(Protocol):
    """A source that takes blocking snapshots."""

    def read_tables(
        self,
        requests: Sequence[SnapshotRequest],
        refused: Callable[[SnapshotRequest, str], None],
    ) -> TableReading | None:
        """Open a snapshot of the database, to read tables for a blocking snapshot.

        A request's condition is a SELECT from outside: it must not write, and it must end within the
        profile's timeout. ``refused`` is called with the reason for each table that cannot be read, now or
        later; the others are read. None: ask again later, since a table is locked. Raises: ConnectionLost,
        SourceError, StopRequested.
        """


@runtime_checkable
class ChunkedSource(Protocol):
    """A source that takes incremental snapshots."""

    def chunk_source(self, signal_table: tuple[str, str] | None) -> ChunkSource:
        """Return the reader of table chunks.

        ``signal_table`` receives the watermarks. Without it, each chunk carries its position in the stream
        (`ReadChunk.until`).
        """


@runtime_checkable
class SlotOwningSource(Protocol):
    """A source whose slots and other objects of pipelines can be listed and dropped."""

    def slots(self) -> list[SlotStatus]:
        """Return every slot of the database, by name. Raises: SourceError."""

    def drop_slot(self) -> bool:
        """Drop the replication slot; False without one. Raises: SourceError."""

    def owned_objects(self, offset: Offset | None) -> list[OwnedObject]:
        """Return the pipeline's objects that exist on this server.

        The stored ``offset`` may name a slot that no other record names. Raises: SourceError.
        """

    def foreign_owned_objects(self) -> list[OwnedObject]:
        """Return the pipeline's known objects on other servers or databases.

        The profile pointed to these servers earlier.
        """

    def drop(self, owned_object: OwnedObject) -> None:
        """Remove an object of the pipeline and its entry. Raises: SourceError."""


@runtime_checkable
class TableListingSource(Protocol):
    """A source that lists its tables; the defaults are of one that lists none."""

    def captured_tables(self) -> dict[str, str]:
        """Return identifier → schema.table of the captured tables.

        An identifier survives a rename and is never used again. Raises: SourceError.
        """
        return {}

    def existing_tables(self) -> dict[str, tuple[str, str]]:
        """Return identifier → (schema, table) of every existing table.

        The call must be cheap. Raises: SourceError.
        """
        return {}

    def estimate(self, relation: Relation) -> int | None:
        """Return a table's estimated number of rows, None if unknown."""
        return None


@runtime_checkable
class PublishingSource(Protocol):
    """A source that streams chosen tables only, by a publication or its like.

    The defaults are of one that streams every table by itself.
    """

    def publish(
        self, tables: Sequence[tuple[str, str]], *, wanted: bool, briefly: bool = False
    ) -> list[tuple[str, str]] | None:
        """Start or stop streaming these (schema, table).

        Return the tables whose state changed. When the method returns, no earlier write is in progress: a
        reader that reads a table afterwards misses nothing. With ``briefly``, nothing changes and None is
        returned while a transaction writes to the tables. A pipeline may be running. Raises: SourceError.
        """
        return []

    def check_publishable(self, tables: Sequence[tuple[str, str]]) -> None:
        """Raise if `publish` would refuse these (schema, table).

        Locks and rights are not checked. Raises: SourceError.
        """
        return

    def adds_tables(self) -> bool:
        """Return whether a start adds captured tables to the stream.

        If so, `publish` may add them before.
        """
        return False

    def streams_new(self, schema: str, table: str) -> bool:
        """Return whether the server streams that new table by itself.

        Raises: SourceError.
        """
        return True

    def writers(self, identifier: str) -> frozenset[str]:
        """Return the open transactions that may have written to a table.

        Their writes before the table's publication are not streamed, and are invisible until the
        transactions end. Raises: SourceError.
        """
        return frozenset()

    def unsent(self) -> frozenset[str]:
        """Return identifiers of captured tables that are not streamed completely.

        Changes that are written to them meanwhile are missing in the stream. The method changes nothing.
        Raises: SourceError.
        """
        return frozenset()

    def streamed_as(self) -> Mapping[str, Sequence[str | None]]:
        """Return how the server streams each table, where that is known.

        The texts are for `streamed_otherwise` and are kept until the next start. Raises: SourceError.
        """
        return {}

    def streamed_otherwise(
        self, before: Mapping[str, Sequence[str | None]], now: Mapping[str, Sequence[str | None]]
    ) -> frozenset[str]:
        """Return tables that may have been streamed incompletely in between.

        ``before`` and ``now`` are results of `streamed_as`; a change that was reverted counts too. Another
        version may have written ``before``. Raises: SourceError.
        """
        return frozenset()


class _NoTables(TableListingSource):
    """Answer for a source that lists no tables."""


class _EverythingStreamed(PublishingSource):
    """Answer for a source that streams every table by itself."""


def tables_of(connector: Connector) -> TableListingSource:
    """Return the source's list of tables, an empty one where it has none."""
    return connector if isinstance(connector, TableListingSource) else _NoTables()


def published_by(connector: Connector) -> PublishingSource:
    """Return the source's publications; without them it streams every table."""
    return connector if isinstance(connector, PublishingSource) else _EverythingStreamed()


def planned(connector: Connector, offset: Offset | None) -> SetupPlan:
    """Return the plan of a start. Raises: as `PlanningSource.plan`; SourceLacks."""
    if not isinstance(connector, PlanningSource):
        raise SourceLacks("this source reports nothing about its setup before the start")
    return connector.plan(offset)
