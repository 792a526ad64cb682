"""Read keys, positions and operations of change log rows as arrays."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap.base.files.errors import FilesUnavailable
from waltap.base.files.store import FileStore
from waltap_spark.compact.net_changes import Flags, Integers, LogColumns
from waltap_spark.compact.small_sets import arrow_types, renamed
from waltap_spark.planning.column_identity import file_column
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.schema.expression import ORDER, with_names
from waltap_spark.schema.schema import log_struct, types_of
from waltap_spark.state.output import TableState, address


def logged(
    spark: SparkSession,
    store: FileStore,
    group: SegmentGroup,
    types: dict[str, str] | None = None,
    *,
    first: bool = False,
) -> DataFrame:
    """Return the rows of ``group`` as a data frame.

    ``types`` are the columns; None lets Spark read them from the footer. ``first``: only the
    first segment's rows.
    """
    reader = spark.read.option("parquet.page.verify-checksum.enabled", "true")
    if types is not None:
        struct = log_struct(stored_as(group, types))
        reader = reader.schema(type(struct)([f for f in struct if f.name != "_epoch"]))
    paths = group.converted or [address(store, path) for path in group.segments]
    rows = reader.parquet(*(paths[:1] if first else paths))
    # `_epoch` is no column of the segments: `with_epoch` adds it.
    return with_names(rows, group.called)


def stored_as(group: SegmentGroup, types: dict[str, str]) -> dict[str, str]:
    """Return ``types`` by the columns' names in the source."""
    stored = {new: name for name, new in group.called.items()}
    return {stored.get(name, name): kind for name, kind in types.items()}


def logged_types(spark: SparkSession, store: FileStore, group: SegmentGroup) -> dict[str, str]:
    """Return the columns of the group's segments.

    They come from a segment's footer, because Spark would start a job to read it. Spark reads
    the columns of a converted group, and of types that the footer does not name.
    """
    if not group.converted:
        found = arrow_types(store.parquet_schema(next(iter(group.segments))))
        if found is not None:
            return {group.called.get(name, name): kind for name, kind in found.items()}
    return types_of(logged(spark, store, group, first=True).schema)


def with_epoch(rows: DataFrame, epoch: int) -> DataFrame:
    """Return ``rows`` with the epoch of their change log."""
    return rows.withColumn("_epoch", F.lit(epoch).cast("int"))


log = logging.getLogger(__name__)

# Most bytes of keys and positions that the driver reads from segments: some million rows with short
# keys.
MOST: Final = 128 << 20

INTEGERS: Final = ('"byte"', '"short"', '"integer"', '"long"')


def log_columns(rows: pa.Table, key: Sequence[str], partial: Iterable[str]) -> LogColumns:
    """Return the arrays of ``rows``."""
    operations = rows.column("_op")
    puts, deletes, truncates = (pc.equal(operations, op).to_numpy() for op in "cdt")
    return LogColumns(
        keys=key_codes([rows.column(name) for name in key]),
        positions=[rows.column(name).to_numpy() for name in ORDER],
        puts=puts,
        deletes=deletes,
        truncates=truncates,
        unsent=_unsent(rows, partial),
    )


def _unsent(rows: pa.Table, names: Iterable[str]) -> dict[str, Flags]:
    """Return for each column whether rows did not send it."""
    flags = {name: np.zeros(rows.num_rows, bool) for name in names}
    if flags:
        lists = rows.column("_unchanged").combine_chunks()
        values, rows_of_values = lists.flatten(), pc.list_parent_indices(lists)
        for name, each in flags.items():
            each[rows_of_values.filter(pc.equal(values, name)).to_numpy()] = True
    return flags


def key_codes(keys: Sequence[pa.ChunkedArray]) -> Integers:
    """Return numbers that are equal where Spark takes keys for equal.

    They are below the number of rows. Nulls are one value.
    """
    codes: Integers | None = None
    for key in keys:
        encoded = _canonical(key.combine_chunks()).dictionary_encode(null_encoding="encode")
        if codes is not None:
            # encoding pairs again keeps the numbers small, whatever the count of key columns
            pairs = codes.astype("int64") * len(encoded.dictionary) + encoded.indices.to_numpy()
            encoded = pa.array(pairs).dictionary_encode()
        codes = encoded.indices.to_numpy()
    assert codes is not None
    return codes


def _canonical(key: pa.Array) -> pa.Array:
    """Return ``key`` with values that Arrow compares as Spark does."""
    if pa.types.is_floating(key.type):  # 0 and -0 are one key, and so is every NaN
        nan = pa.scalar(float("nan"), key.type)
        return pc.if_else(pc.is_nan(key), nan, pc.add(key, pa.scalar(0.0, key.type)))
    if pa.types.is_nested(key.type):
        return pa.array([None if value is None else _text(value) for value in key.to_pylist()])
    return key


def _text(value: Any) -> str:
    if isinstance(value, float):
        return repr(value + 0.0)
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)


def segment_rows(table: TableState, group: SegmentGroup, store: FileStore) -> pa.Table | None:
    """Return keys, positions and operations of ``group``, without Spark.

    The columns have the names of ``table``. None means that Spark must read the rows: they are too
    many, or the segments have another key than the table. Spark also reports damaged segments.
    """
    has, ids = table.file_schemas[group.fingerprint], table.version_ids.get(group.fingerprint, {})
    files = {name: file_column(table, has, ids, name) for name in table.columns}
    stored = {new: name for name, new in group.called.items()}
    names = {name: stored.get(old, old) for name, old in files.items() if old is not None}
    # different values of another type may become equal in the table
    same = all(_keeps_keys(has.get(files[name] or ""), table.columns[name]) for name in table.key)
    spark_reads = not group.segments or group.converted or group.external_snapshot
    if spark_reads or not table.key or not same:
        return None
    try:
        rows = _read(store, group, [names[name] for name in table.key])
    except (FilesUnavailable, OSError, pa.ArrowException) as error:
        log.debug("%s is compacted by Spark: %s", table.name, error)
        return None
    called = {old: new for new, old in names.items() if old != new}
    return renamed(rows, called) if rows is not None and called else rows


def _keeps_keys(had: str | None, kind: str) -> bool:
    return had == kind or (had in INTEGERS and kind in INTEGERS)


def _read(store: FileStore, group: SegmentGroup, key: Sequence[str]) -> pa.Table | None:
    """Return ``key``, positions and operations of ``group``.

    None means that they are too many, or that timestamps have units that Spark does not have.

    Raises: FilesUnavailable, OSError, ArrowException.
    """
    parts, remaining = [], MOST
    columns = [*key, *(name for name in ORDER if name != "_epoch"), "_op"]
    columns += ["_unchanged"] if group.unchanged else []
    for path in group.segments:
        part = store.parquet_columns(path, columns, remaining)
        if part is None:
            return None
        parts.append(part)
        remaining -= part.nbytes
    rows = pa.concat_tables(parts)
    # Spark has microseconds only: keys that differ below them are equal there
    exact = all(not pa.types.is_timestamp(kind) or kind.unit == "us" for kind in rows.schema.types)
    if not exact or rows.num_rows != group.rows:
        return None
    epochs = pa.repeat(pa.scalar(group.epoch, pa.int32()), rows.num_rows)
    return rows.append_column("_epoch", epochs)
