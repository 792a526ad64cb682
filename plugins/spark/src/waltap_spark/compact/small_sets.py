"""Write small change sets in the driver, without a Spark job.

A lake of 300 tables with one change each a second has 300 small sets per commit. Spark took 0.1 to 0.3 s
for each, as for 100,000 rows; pyarrow takes one or two milliseconds. Spark reads both kinds of files.
"""

from collections.abc import Callable, Sequence
from typing import IO, Final

import pyarrow as pa
from pyarrow import parquet
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type

from waltap.base.files.store import FileStore
from waltap_sinks.changelog.reader import plain_type
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.schema.schema import LOG_FIELDS, struct_of
from waltap_spark.state.output import SparkOutput

# Below both limits pyarrow is faster than the fixed cost of a Spark job.
SMALL_ROWS: Final = 20_000
# Compressed bytes in the change log's segments. Spark writes sets above either limit.
SMALL_BYTES: Final = 1 << 20

# Bytes of values that the driver may hold for one set: wide values compress a hundred times.
LARGE: Final = 64 << 20


def is_small(group: SegmentGroup) -> bool:
    """Return whether the driver writes the rows of ``group`` itself."""
    if group.converted or group.external_snapshot or not group.segments:
        return False
    few = group.rows <= SMALL_ROWS and group.unpacked <= LARGE
    return few and 0 < group.bytes <= SMALL_BYTES


def arrow_types(schema: pa.Schema) -> dict[str, str] | None:
    """Return the columns of ``schema`` without the log's own.

    Name → type as Spark infers it, in JSON. None means that only Spark itself can infer a type.
    """
    own = [field for field in schema if field.name not in LOG_FIELDS]
    try:
        types = {each.name: from_arrow_type(each.type, prefer_timestamp_ntz=True) for each in own}
    except PySparkTypeError:
        return None
    return {name: kind.json() for name, kind in types.items()}


def frame_of(spark: SparkSession, rows: pa.Table, types: dict[str, str]) -> DataFrame:
    """Return ``rows`` as a data frame of ``types``."""
    # Spark drops the rows behind an empty batch, and converts no nested column without chunks.
    batches = [each for each in rows.to_batches() if each.num_rows]
    rows = pa.Table.from_batches(batches) if batches else rows.schema.empty_table()
    return spark.createDataFrame(rows, struct_of(types))


def rows_of(store: FileStore, group: SegmentGroup, names: Sequence[str]) -> pa.Table:
    """Return the rows of ``group``: columns ``names``, then the log's own.

    Raises: ValueError if the manifests have another number of rows.
    """
    stored = {new: name for name, new in group.called.items()}
    own = [stored.get(name, name) for name in names]
    columns = [*own, *(name for name in LOG_FIELDS if name != "_epoch")]
    # `select` puts the columns of all segments into one order, so that they can be joined.
    parts = [store.read_parquet(path).select(columns) for path in group.segments]
    rows = pa.concat_tables(parts)
    if rows.num_rows != group.rows:
        raise ValueError(f"{rows.num_rows} rows are there, and {group.rows} should be")
    if group.called:
        rows = renamed(rows, group.called)
    return rows.append_column(
        "_epoch", pa.repeat(pa.scalar(group.epoch, pa.int32()), rows.num_rows)
    )


def renamed(rows: pa.Table, called: dict[str, str]) -> pa.Table:
    """Rename columns, also in lists of unsent columns."""
    rows = rows.rename_columns([called.get(name, name) for name in rows.column_names])
    at = rows.schema.get_field_index("_unchanged")
    if at < 0:
        return rows
    return rows.set_column(at, rows.schema.field(at), names_called(rows.column(at), called))


def names_called(lists: pa.Array | pa.ChunkedArray, called: dict[str, str]) -> pa.Array:
    """Return lists of columns' names with other names (old → new)."""
    renamed = (
        None if names is None else [called.get(name, name) for name in names]
        for names in lists.to_pylist()
    )
    return pa.array(list(renamed), lists.type)


def write_rows(store: FileStore, path: str, rows: pa.Table) -> int:
    """Write a file and return its size; the commit syncs it."""
    with store.create(path) as file, store.writing(path):
        write_parquet(rows, file)
        size: int = file.tell()
    return size


def write_parquet(rows: pa.Table, file: IO[bytes], compression: str = "snappy") -> None:
    """Write ``rows`` into an open file, as Spark reads them."""
    # NaN is greater than all numbers for Spark, and Arrow's statistics ignore it.
    counted = [
        field.name
        for field in rows.schema
        if not (pa.types.is_floating(field.type) or pa.types.is_nested(field.type))
    ]
    # Spark ignores the Arrow schema, and dictionaries of few values save nothing.
    parquet.write_table(
        rows,
        file,
        compression=compression,
        use_dictionary=False,
        store_schema=False,
        store_decimal_as_integer=True,
        write_statistics=counted or False,
    )


def make_readable(
    store: FileStore, output: SparkOutput, group: SegmentGroup, folder: Callable[[], str]
) -> None:
    """Copy the segments of ``group`` once, where Spark cannot read decimals.

    The change log has more than 38 digits only on request.
    """
    # Once per group: several steps of a commit ask for it.
    if group.converted or not any("decimal256" in each.arrow for each in group.columns):
        return
    copies = folder()
    for number, segment in enumerate(group.segments):
        rows = store.read_parquet(segment)
        kinds = [each.with_type(plain_type(each.type, times=True)) for each in rows.schema]
        rows = rows.cast(pa.schema(kinds))
        path = f"{copies}/{number}.parquet"
        with output.store.writing(path), output.store.create(path) as file:
            parquet.write_table(rows, file)
        group.converted.append(output.uri(path))
