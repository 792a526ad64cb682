"""The contract of a connector that reads chunks."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.ports.signals.signal import SnapshotRequest


class SnapshotChunk(abc.ABC):
    """Read rows of a table in one snapshot.

    `SnapshotSharingSource.chunks` creates chunks. A chunk can be pickled, and another process can read
    it if it can reach the source. It is valid until the connector ends the snapshot or is closed. A chunk
    contains the password of the source: protect it as such.
    """

    # The table.
    relation: Relation
    # Index among the `count` chunks of the table.
    index: int
    count: int
    # Same as `SnapshotRows.visible` of its pieces.
    visible: str = ""

    @abc.abstractmethod
    def read(self) -> Iterator[SnapshotRows]:
        """Yield the rows, in pieces without markers.

        The last piece has ``ends_chunk``. Every call reads again. Raises: SnapshotError,
        ConnectionLost (also if the snapshot no longer exists), SourceError.
        """


# Smallest chunk that the time of reading causes: each chunk costs a pair of watermarks.
LEAST = 100


class ChunkSize:
    """Adapt the number of rows to the time of reading them.

    ``rows`` begins at ``most``, its maximum. A ``target_s`` of 0 keeps it there.
    """

    def __init__(self, most: int, target_s: float) -> None:
        self._most, self._least, self._target_s = most, min(most, LEAST), target_s
        self.rows = most

    def record_duration(self, seconds: float) -> None:
        target = self._target_s
        if not target:
            return
        if seconds > target:
            # In proportion to the excess, but never by more than to a quarter or by less than a quarter.
            share = min(0.75, max(0.25, target / seconds))
            self.rows = max(self._least, int(self.rows * share))
        # Only a chunk well below the target grows: otherwise the size would swing around it.
        elif seconds < target / 2:
            self.rows = min(self._most, self.rows * 2)

    def restart(self) -> None:
        """Begin with another table, whose rows may have another width."""
        self.rows = self._most


class ReadChunk(msgspec.Struct):
    """Hold rows that were read in one snapshot."""

    rows: list[Tuple]
    # Returns whether a committed transaction is visible in the snapshot. None if the source cannot find
    # out: then every change between the watermarks counts as newer.
    saw: Callable[[int], bool] | None
    # All transactions visible in the snapshot had committed before this LSN. None if watermarks are
    # written, or if the source has no such position.
    until: int | None = None
    # Nothing was read: another session locks the table, or changed it. The engine streams and tries again.
    locked: bool = False
    # Returns whether the table had no other name since. None: the stream's relations have its OID.
    keeps_name: Callable[[], bool] | None = None
    # Order of the last row, as for `ChunkSource.chunk`.
    order: Sequence[int] = ()


class NamedTable(NamedTuple):
    """Name a table of the source."""

    schema: str
    table: str
    # As in `Relation`; 0: the source does not know.
    oid: int = 0

    @property
    def table_id(self) -> tuple[str, str]:
        return self.schema, self.table


class ChunkSource(Protocol):
    """Read tables and write watermarks for an incremental snapshot."""

    def known_tables(self) -> Mapping[tuple[str, str], Sequence[NamedTable]]:
        """Return every captured table, as (schema, table) → tables to read.

        These are the table itself, or the tables under which its rows stream, such as its partitions.
        """

    def table(self, request: SnapshotRequest) -> Relation | None:
        """Return the relation to read, None if it is not captured.

        The table of `SnapshotRequest.oid` may have another name by now.
        """

    def maximum(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> ReadChunk:
        """Return the last of the requested rows, if any.

        The order follows ``key``, or is one of the source's choice in `ReadChunk.order`.
        """

    def chunk(
        self,
        request: SnapshotRequest,
        relation: Relation,
        key: tuple[int, ...],
        *,
        after: Tuple | None,
        maximum: Tuple,
        limit: int,
        order: Sequence[int] = (),
    ) -> ReadChunk:
        """Return the next ``limit`` rows in the order of ``key``.

        There may be more rows, so that equal values of a key are not split. Fewer rows do not mean the end
        of the table; no rows do. ``order`` is from `maximum`: numbers (`Column.number`) of the columns
        whose hash is before the key in the order of rows.
        """

    def rows(
        self,
        request: SnapshotRequest,
        relation: Relation,
        key: tuple[int, ...],
        keys: Sequence[Tuple],
    ) -> ReadChunk:
        """Return the requested rows whose ``key`` is one of ``keys``."""

    def watermark(self, identifier: str, kind: str, data: str) -> bool:
        """Write a signal row, or delete it without ``kind``.

        Return False if another session locks the table. Raises: SourceError.
        """

    def advance_wal(self) -> None:
        """Make the server's WAL reach `ReadChunk.until` soon.

        An idle server may leave WAL unwritten for seconds. Writes no row. Raises: SourceError.
        """


class TableReading(Protocol):
    """Tables in one snapshot of the source, which exists until `close`."""

    # The present relations of the tables, by schema.table.
    relations: Mapping[str, Relation]
    # Every transaction in the snapshot had committed before this LSN. None: the source has no such LSN,
    # and the engine delivers the rows immediately.
    until: int | None

    def saw(self, xid: int, commit_lsn: int) -> bool | None:
        """Return whether the snapshot contains a committed transaction.

        ``commit_lsn`` is 0 for an earlier one, which has streamed. None: the source does not know.
        """

    def pieces(self) -> Iterator[SnapshotRows]:
        """Yield the rows, with the markers of an initial snapshot.

        `SnapshotRows` has the contract. Raises: ConnectionLost, StopRequested.
        """

    def close(self) -> None:
        """End the snapshot. May be called twice."""
