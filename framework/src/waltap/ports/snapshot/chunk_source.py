"""The contract of a connector that reads chunks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.ports.signals.signal import SnapshotRequest

__all__ = ["ChunkSource", "ReadChunk"]


class ReadChunk(msgspec.Struct):
    """Hold rows that were read in one snapshot."""

    rows: list[Tuple]
    # Returns whether a committed transaction is visible in the snapshot. None if the source cannot find
    # out: then every change between the watermarks counts as newer.
    saw: Callable[[int], bool] | None
    # All transactions visible in the snapshot had committed before this LSN. None if watermarks are
    # written, or if the source has no such position.
    until: int | None = None
    # Another session has locked the table, and nothing was read. The engine streams and tries again.
    locked: bool = False
    # Order of the last row, as for `ChunkSource.chunk`.
    order: Sequence[int] = ()


class ChunkSource(Protocol):
    """Read tables and write watermarks for an incremental snapshot."""

    def known_tables(self) -> Mapping[tuple[str, str], Sequence[tuple[str, str]]]:
        """Return every captured table, as (schema, table) → tables to read.

        These are the table itself, or the tables under which its rows stream, such as its partitions.
        """

    def table(self, request: SnapshotRequest) -> Relation | None:
        """Return the relation to read, None if it is not captured."""

    def maximum(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> ReadChunk:
        """Return the last of the requested rows, if any.

        The order is that of ``key``, or one of the source's choice in `ReadChunk.order`.
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

    def watermark(self, identifier: str, kind: str, data: str) -> None:
        """Write a row into the signal table."""

    def hasten(self) -> None:
        """Make the server's WAL reach `ReadChunk.until` soon.

        An idle server may leave WAL unwritten for seconds. Writes no row. Raises: SourceError.
        """
