"""Rows of a snapshot, read by tasks of Spark: each reads its chunks over connections of its own.

A task that is tried again, elsewhere too, reads the same rows: all chunks are of one snapshot, which the
engine keeps. What comes of tries that failed is the committer's to drop, of Spark or of the table format.
Rows become columns by the code of the change log, so they are what its segments would have.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from waltap_spark.expression import quoted
from waltap_spark.schema import arrow_schema, log_struct
from waltap_spark.snapshot_splits import AssignedSplits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator, AccumulatorParam, Broadcast
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ChunkRows", "chunk_rows", "chunk_struct"]

TASKS_EACH: Final = 8
"""Tasks for each slot of the cluster, where there are so many chunks: what a kill costs stays small."""

CHUNKS_EACH: Final = 4
"""Most chunks of one task of a very large table."""


_TIME: Final = re.compile(r'"time\(\d\)"')
"""Spark's type that its workers cannot give yet: as text it can be carried."""


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """``rows`` of chunks, and what tasks have told of them since: values that became null, by column."""

    rows: "DataFrame"
    _told: "Accumulator[frozenset[str]]"

    def told(self) -> tuple[str, ...]:
        """Return what to tell of rows that were read; a task that was tried again told the same."""
        return tuple(sorted(self._told.value))


@contextlib.contextmanager
def chunk_rows(
    spark: "SparkSession", chunks: AssignedSplits, types: dict[str, str]
) -> Iterator[ChunkRows]:
    """Give the rows of ``chunks`` as segments of a table with ``types`` have them. The source is read when
    the frame is used, each time anew; behind the block no more."""
    wanted = log_struct(types)
    carried = chunk_struct({name: _TIME.sub('"string"', kind) for name, kind in types.items()})
    casts = [
        f"cast({quoted(field.name)} as {wanted[field.name].dataType.simpleString()})"
        f" as {quoted(field.name)}"
        if wanted[field.name] != field
        else quoted(field.name)
        for field in carried
    ]
    context = spark.sparkContext
    slots = max(1, context.defaultParallelism)
    tasks = min(chunks.count, max(TASKS_EACH * slots, -(-chunks.count // CHUNKS_EACH)))
    given = context.broadcast(chunks.pickled)
    told = context.accumulator(
        frozenset[str](), cast("AccumulatorParam[frozenset[str]]", _TextAccumulator())
    )
    reading = _reader(given, told, carried.json())
    try:
        rows = spark.range(0, chunks.count, 1, tasks).mapInArrow(reading, carried)
        yield ChunkRows(rows.selectExpr(*casts), told)
    finally:
        given.destroy()


def chunk_struct(types: dict[str, str]) -> "StructType":
    """Return the columns of `chunk_rows`: those of segments, which do not say their epoch."""
    struct = log_struct(types)
    return type(struct)([field for field in struct if field.name != "_epoch"])


class _TextAccumulator:
    """How texts of tasks come together: each once."""

    def zero(self, _value: frozenset[str]) -> frozenset[str]:
        """Return what a task begins with."""
        return frozenset()

    def addInPlace(self, one: frozenset[str], other: frozenset[str]) -> frozenset[str]:  # noqa: N802 - Spark's
        """Return both."""
        return one | other


def _reader(
    given: "Broadcast[bytes]", told: "Accumulator[frozenset[str]]", struct: str
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        if numbers:
            yield from read_chunks(
                given.value, numbers, struct, lambda text: told.add(frozenset((text,)))
            )

    return read


def read_chunks(
    pickled: bytes, numbers: list[int], struct: str, tell: Callable[[str], None]
) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of the chunks with these numbers; runs where tasks do. ``struct``: Spark's, as JSON;
    ``tell`` is told which values become null.

    Raises: SnapshotError, ConnectionLost, SourceError.
    """
    import json

    from pyspark.sql.types import StructType

    from waltap.changes.mapping.type_registry import TypeRegistry
    from waltap.plugins.host import Host
    from waltap.ports.sink.sink import SinkContext
    from waltap_sinks.changelog.segment import TableBuffer
    from waltap_sinks.changelog.table_version import TableVersion

    schema = arrow_schema(StructType.fromJson(json.loads(struct)))
    terms, chunks = AssignedSplits(count=0, pickled=pickled).unpacked()
    place = SinkContext(pipeline="", state_dir=Path())
    context = terms.context(TypeRegistry(Host().types, terms.options), place)
    buffer: TableBuffer | None = None
    for number in numbers:
        chunk = chunks[number]
        if buffer is None:
            buffer = TableBuffer(TableVersion(chunk.relation, context, tell))
        for piece in chunk.read():
            if piece.rows:
                lsn = piece.lsn if piece.lsn is not None else 0
                buffer.add_snapshot(piece.rows, lsn=lsn, ts=piece.ts, xid=piece.xid)
                for batch in buffer.columns():
                    yield _as(schema, batch)


def _as(schema: "pa.Schema", batch: "pa.RecordBatch") -> "pa.RecordBatch":
    import pyarrow as pa

    columns = []
    for field in schema:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
