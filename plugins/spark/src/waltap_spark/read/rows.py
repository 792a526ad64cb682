"""Turn segments into a query's Arrow batches, on executors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from waltap_sinks.changelog import FileStore
from waltap_spark.compact.small_sets import names_called
from waltap_spark.errors import ValuesUnfit
from waltap_spark.read.catalogue import OWN
from waltap_spark.schema.schema import arrow_schema

# Rows of an Arrow batch: large enough for whole-column work, small enough for wide rows.
BATCH_ROWS: Final = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRows:
    """One segment of a task."""

    path: str
    rows: int
    table: str
    epoch: int
    snapshot_id: int | None
    # The query's columns → their names in the segment.
    called: dict[str, str]
    # The profile, if the query reads profiles.
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Limits of rows by LSN within ``epoch``, or by time (µs)."""

    epoch: int = 0
    first_lsn: int | None = None
    end_lsn: int | None = None
    first_time: int | None = None
    last_time: int | None = None


def batches(
    store: FileStore,
    segments: list[SegmentRows],
    struct: StructType,
    limits: RowLimits,
    *,
    many: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``segments``; ``many`` makes structs."""
    schema = arrow_schema(struct)
    for segment in segments:
        for rows in store.parquet_batches(segment.path, BATCH_ROWS):
            wanted = _within(rows, segment.epoch, limits)
            if wanted.num_rows:
                yield _shaped(wanted, segment, schema, many=many)


def _within(rows: pa.RecordBatch, epoch: int, limits: RowLimits) -> pa.RecordBatch:
    here = epoch == limits.epoch
    for name, test, limit in (
        ("_commit_lsn", pc.greater_equal, limits.first_lsn if here else None),
        ("_commit_lsn", pc.less, limits.end_lsn if here else None),
        ("_commit_ts", pc.greater_equal, limits.first_time),
        ("_commit_ts", pc.less_equal, limits.last_time),
    ):
        if limit is not None:
            column = rows.column(name)
            rows = rows.filter(test(column, pa.scalar(limit, column.type)))
    return rows


def _shaped(
    rows: pa.RecordBatch, segment: SegmentRows, schema: pa.Schema, *, many: bool
) -> pa.RecordBatch:
    count = rows.num_rows
    given: dict[str, object] = {"_epoch": segment.epoch, "_generation": segment.snapshot_id}
    if many:
        given["_table"] = segment.table
    if segment.source:
        given["_source"] = segment.source
    columns = []
    for field in schema:
        if field.name in given:
            columns.append(pa.repeat(pa.scalar(given[field.name], field.type), count))
        elif many and field.name == segment.table:
            inner = [_column(rows, segment, each) for each in field.type]
            made = pa.StructArray.from_arrays(inner, fields=list(field.type))
            # `from_arrays` would lose the number of rows of a table without columns.
            columns.append(made if inner else pa.array([{}] * count, field.type))
        elif many and field.name not in OWN:
            columns.append(pa.nulls(count, field.type))
        else:
            columns.append(_column(rows, segment, field))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(rows: pa.RecordBatch, segment: SegmentRows, field: pa.Field) -> pa.Array:
    """Return a column in the query's type."""
    stored = field.name if field.name in OWN else segment.called.get(field.name)
    at = -1 if stored is None else rows.schema.get_field_index(stored)
    if at < 0:
        return pa.nulls(rows.num_rows, field.type)
    values = rows.column(at)
    if stored == "_unchanged":
        called = {old: new for new, old in segment.called.items() if new != old}
        values = names_called(values, called) if called else values
    if values.type == field.type:
        return values
    try:
        # Types of a column only widen in the log; a narrower query column may still hold the
        # values.
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as cause:
        text = (
            f"{stored} of {segment.table} was {values.type} and does not fit {field.type}: {cause}"
        )
        raise ValuesUnfit(text, column=field.name) from cause
