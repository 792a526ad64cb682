"""Read snapshot rows in Spark tasks.

Each task reads its chunks over its own connections. A retried task, also on another executor,
reads the same rows, because all chunks belong to one snapshot that the engine keeps open. The
committer of Spark or of the table format drops the output of failed attempts. Rows become columns
by the change log's code, so they equal rows of a segment.
"""

import contextlib
import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import Accumulator, Broadcast
from pyspark.accumulators import AddingAccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from waltap.ports.snapshot.chunk_source import SnapshotChunk
from waltap_spark.apply.snapshot_splits import AssignedSplits, RowTerms
from waltap_spark.schema.expression import quoted
from waltap_spark.schema.schema import arrow_schema, log_struct

# Tasks for each slot of the cluster, with enough chunks: a killed task then costs little.
TASKS_EACH: Final = 8

# Most chunks of one task of a very large table.
CHUNKS_EACH: Final = 4


# Spark's time type, which Python workers cannot return yet; they return text.
_TIME: Final = re.compile(r'"time\(\d\)"')


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Rows of chunks, and the columns whose values became null.

    Tasks report those columns while Spark reads ``rows``.
    """

    rows: DataFrame
    # Spark adds what its tasks report by ``+=``, which a set lacks.
    _nulls: Accumulator[Counter[str]]

    def nulls(self) -> tuple[str, ...]:
        """Return the reports of the tasks so far, each once."""
        return tuple(sorted(self._nulls.value))


@contextlib.contextmanager
def chunk_rows(
    spark: SparkSession, chunks: AssignedSplits, types: dict[str, str]
) -> Iterator[ChunkRows]:
    """Yield the rows of ``chunks`` as segments would have them.

    ``types`` are the table's types. Spark reads the source each time it uses the frame, so the
    frame is valid within the block only.
    """
    wanted = log_struct(types)
    carried = chunk_struct({name: _TIME.sub('"string"', kind) for name, kind in types.items()})
    casts = [
        f"cast({quoted(field.name)} as {wanted[field.name].dataType.simpleString()})"
        f" as {quoted(field.name)}"
        if wanted[field.name] != field
        else quoted(field.name)
        for field in carried
    ]
    # few tasks for few chunks; for many, more tasks than slots, so that slots stay busy
    context = spark.sparkContext
    slots = max(1, context.defaultParallelism)
    tasks = min(chunks.count, max(TASKS_EACH * slots, -(-chunks.count // CHUNKS_EACH)))
    # each worker fetches the chunks once, not with every task
    given = context.broadcast(chunks.pickled)
    nulls = context.accumulator(Counter[str](), AddingAccumulatorParam(Counter[str]()))
    reading = _reader(given, nulls, carried.json())
    try:
        rows = spark.range(0, chunks.count, 1, tasks).mapInArrow(reading, carried)
        yield ChunkRows(rows.selectExpr(*casts), nulls)
    finally:
        given.destroy()


def chunk_struct(types: dict[str, str]) -> StructType:
    """Return the columns of `chunk_rows`: a segment's without the epoch."""
    struct = log_struct(types)
    return type(struct)([field for field in struct if field.name != "_epoch"])


def _reader(
    given: Broadcast[bytes], nulls: Accumulator[Counter[str]], struct: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a task's function from numbers of chunks to their rows.

    ``struct`` is Spark's schema as JSON. ``nulls`` gets a text for each column whose values become null.
    The function raises: SnapshotError, ConnectionLost, SourceError.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from waltap.changes.mapping.type_registry import TypeRegistry
        from waltap.plugins.host import Host
        from waltap_sinks.changelog.segment import TableBuffer
        from waltap_sinks.changelog.table_version import TableVersion

        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        if not numbers:
            return
        schema = arrow_schema(StructType.fromJson(json.loads(struct)))
        unpacked: tuple[RowTerms, list[SnapshotChunk]] = pickle.loads(given.value)  # noqa: S301 - our engine's
        terms, chunks = unpacked
        context = terms.context(TypeRegistry(Host().types, terms.options))
        version = TableVersion(
            chunks[numbers[0]].relation, context, lambda text: nulls.add(Counter((text,)))
        )
        buffer = TableBuffer(version)
        for number in numbers:
            for piece in chunks[number].read():
                if piece.rows:
                    buffer.add_snapshot(piece, piece.lsn if piece.lsn is not None else 0)
                    for batch in buffer.columns():
                        yield batch.select(schema.names).cast(schema)

    return read
