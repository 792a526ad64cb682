"""What an incremental snapshot needs of a database: the contract of who reads chunks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple
from waltap.signals.signal import SnapshotRequest

__all__ = ["ChunkSource", "ReadChunk"]


class ReadChunk(msgspec.Struct):
    """Rows read in one snapshot. ``saw`` tells whether a committed transaction is visible in it; None
    where nothing tells: then every change between the watermarks counts as newer. ``until``: what is
    visible in it had committed before this LSN, so it has streamed by when the stream is there; None where
    watermarks are written, or the source has no such position. ``locked``: somebody holds the table, and
    nothing was read; it is to be asked for again, while the stream goes on. ``order``, of the last row: as
    for `ChunkSource.chunk`."""

    rows: list[Tuple]
    saw: Callable[[int], bool] | None
    until: int | None = None
    locked: bool = False
    order: Sequence[int] = ()


class ChunkSource(Protocol):
    """What an incremental snapshot needs of a database."""

    def known_tables(self) -> Mapping[tuple[str, str], Sequence[tuple[str, str]]]:
        """Return every captured table that there is now, as (schema, table) → what is read where it is
        named: itself, or the tables as which the stream brings its rows, such as its partitions."""

    def table(self, request: SnapshotRequest) -> Relation | None:
        """Return the relation to read, None when no such table is captured."""

    def maximum(
        self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]
    ) -> ReadChunk:
        """Return the last of the rows asked for in the order of ``key``, none when there is no row; or in
        an order of the source's own choice, which it tells (`ReadChunk.order`)."""

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
        """Return the next rows in the order of ``key``, ``limit`` of them; more where that many would
        not end between two values of a key that is not unique. Fewer are not the table's end, none are.
        ``order`` is what `maximum` told: numbers (`Column.number`) of columns whose hash comes before the
        key in the order of rows."""

    def rows(
        self,
        request: SnapshotRequest,
        relation: Relation,
        key: tuple[int, ...],
        keys: Sequence[Tuple],
    ) -> ReadChunk:
        """Return those of the rows asked for whose columns ``key`` have one of these values."""

    def watermark(self, identifier: str, kind: str, data: str) -> None:
        """Write a row into the signal table."""

    def hasten(self) -> None:
        """See that the server's WAL gets to `ReadChunk.until` soon: it may rest, unwritten, for seconds.
        Writes no row. Raises: SourceError."""
