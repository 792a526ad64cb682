"""Write few rows of a Delta table in the driver.

A Spark plan for a few rows costs ten times as much as a file of pyarrow's with its commit, nearly all
of it for analysis and scheduling. The transaction is Delta's (`OptimisticTransaction`), so conflicts,
checkpoints and checksums stay its own. The file is as Delta's writer makes it: physical names and
numbers of columns, and statistics by which readers skip files.

A table with a feature, property or type that is not listed here is left to Spark.
"""

import datetime as dt
import functools
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyspark
from py4j.java_gateway import JavaClass
from pyarrow import compute as pc
from pyspark.sql import SparkSession

from waltap.base.decode_errors import UNREADABLE
from waltap.base.files.store import FileStore
from waltap_spark.compact.small_sets import write_rows

# Features and properties that change nothing in how rows are written, besides those that this module
# handles.
FEATURES: Final = frozenset(
    {
        "appendOnly", "invariants", "columnMapping", "deletionVectors", "timestampNtz", "typeWidening",
    }
)  # fmt: skip
PROPERTIES: Final = frozenset(
    {
        "delta.checkpointInterval", "delta.columnMapping.mode", "delta.columnMapping.maxColumnId",
        "delta.enableDeletionVectors", "delta.enableTypeWidening",
        "delta.logRetentionDuration", "delta.deletedFileRetentionDuration",
    }
)  # fmt: skip
MAPPED: Final = "delta.columnMapping.mode"
PHYSICAL, NUMBER = "delta.columnMapping.physicalName", "delta.columnMapping.id"
# What is known of a column: its name and number in files, and former types of its values.
KNOWN: Final = frozenset({PHYSICAL, NUMBER, "delta.typeChanges"})

# Columns with statistics, and characters of a text in them: Delta's own numbers.
INDEXED: Final = 32
PREFIX: Final = 32

ATOMS: Final = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

# Days and microseconds since 1970 between which dates get statistics. Readers disagree about earlier
# ones, and text of later ones has another form.
DAYS: Final = (
    dt.date(1583, 1, 1).toordinal() - dt.date(1970, 1, 1).toordinal(),
    dt.date(9999, 12, 31).toordinal() - dt.date(1970, 1, 1).toordinal(),
)
DAY_US: Final = 86_400_000_000

LAST: Final = "\U0010ffff"


class _TableProtocol(msgspec.Struct, frozen=True, rename="camel"):
    """Features that a table's readers and writers need."""

    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


class _TableMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """Columns and properties of a table."""

    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: dict[str, str] = {}


class _Described(msgspec.Struct, frozen=True):
    """One of the two, as Delta's log has it."""

    protocol: _TableProtocol | None = None
    metadata: _TableMetadata | None = msgspec.field(name="metaData", default=None)


@dataclass(frozen=True, slots=True)
class FileSchema:
    """A table's columns in Arrow, and the same in files."""

    logical: pa.Schema
    physical: pa.Schema

    def physical_rows(self, rows: pa.Table) -> pa.Table | None:
        """Return ``rows`` as in files; None if they do not fit.

        Missing columns are null.
        """
        if not set(rows.column_names) <= set(self.logical.names):
            return None
        count = rows.num_rows
        found = []
        for field in self.logical:
            if field.name not in rows.column_names:
                found.append(pa.nulls(count, field.type))
                continue
            column = rows.column(field.name)
            if not _alike(column.type, field.type):
                return None
            found.append(column.cast(field.type))
        fits = pa.table(found, schema=self.logical)
        batches = (_Renamed(batch, self.physical) for batch in fits.to_batches())
        return pa.Table.from_batches(
            [pa.record_batch(batch) for batch in batches], schema=self.physical
        )


class _Renamed:
    """A batch under other column and field names, uncopied."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return the batch with the schema, by Arrow's C interface."""
        _schema, array = self._batch.__arrow_c_array__()
        return self._schema.__arrow_c_schema__(), array


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two types have the same values.

    Names of list items may differ.
    """
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _alike(one.value_type, other.value_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _alike(one.key_type, other.key_type) and _alike(one.item_type, other.item_type)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        names = [one.field(n).name for n in range(one.num_fields)]
        return names == [other.field(n).name for n in range(other.num_fields)] and all(
            _alike(one.field(n).type, other.field(n).type) for n in range(one.num_fields)
        )
    return bool(one.equals(other))


@functools.lru_cache(maxsize=1024)
def file_schema(protocol: str, metadata: str) -> FileSchema | None:
    """Return the schema of a table's files, or None.

    ``protocol`` and ``metadata`` are entries of its log. None if Spark must write the table.
    """
    try:
        needs = msgspec.json.decode(protocol, type=_Described).protocol
        table = msgspec.json.decode(metadata, type=_Described).metadata
        if needs is None or table is None:
            return None
        properties = {name for name in table.configuration if name.startswith("delta.")}
        fit = (
            {*needs.reader_features, *needs.writer_features} <= FEATURES
            and properties <= PROPERTIES
            and table.configuration.get(MAPPED) == "name"
            and not table.partition_columns
        )
        fields = json.loads(table.schema_string)["fields"] if fit else ()
        pairs = [_field(field) for field in fields]
    except (*UNREADABLE, KeyError, TypeError, ValueError):
        return None
    # Spark 3 refuses dates before 1582 in a file without its version.
    writer = {"org.apache.spark.version": pyspark.__version__}
    logical = pa.schema([pair[0] for pair in pairs])
    physical = pa.schema([pair[1] for pair in pairs], metadata=writer)
    return FileSchema(logical, physical) if pairs else None


def _field(field: Mapping[str, Any]) -> tuple[pa.Field, pa.Field]:
    """Return a field under its name, and as in files.

    Raises: ValueError if unknown.
    """
    about = field["metadata"]
    if not about.keys() <= KNOWN or not field["nullable"]:
        raise ValueError(f"column {field['name']} has properties")
    logical, physical = _type(field["type"])
    number = {"PARQUET:field_id": str(about[NUMBER])}
    return (
        pa.field(field["name"], logical),
        pa.field(about[PHYSICAL], physical, metadata=number),
    )


def _type(kind: Any) -> tuple[pa.DataType, pa.DataType]:
    """Return a Delta type in Arrow, and as in files.

    Raises: ValueError.
    """
    if isinstance(kind, str):
        if kind.startswith("decimal("):
            precision, scale = kind[len("decimal(") : -1].split(",")
            made = pa.decimal128(int(precision), int(scale))
            return made, made
        return ATOMS[kind], ATOMS[kind]
    if kind["type"] == "array":
        both = _type(kind["elementType"])
        return pa.list_(pa.field("element", both[0])), pa.list_(pa.field("element", both[1]))
    if kind["type"] == "map":
        keys, values = _type(kind["keyType"]), _type(kind["valueType"])
        return pa.map_(keys[0], values[0]), pa.map_(keys[1], values[1])
    if kind["type"] != "struct":
        raise ValueError(f"type {kind['type']} is unknown")
    pairs = [_field(each) for each in kind["fields"]]
    return pa.struct([pair[0] for pair in pairs]), pa.struct([pair[1] for pair in pairs])


# --- statistics ---------------------------------------------------------------------------------------

_NUMBERS: Final = msgspec.json.Encoder(decimal_format="number")


def statistics(rows: pa.Table) -> str:
    """Return Delta's statistics of a file's ``rows``, in JSON.

    A column without least and greatest value is in every reader's files, which is always right.
    """
    least: dict[str, object] = {}
    greatest: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for name, column in zip(rows.column_names[:INDEXED], rows.columns[:INDEXED], strict=True):
        if pa.types.is_struct(column.type):
            continue
        nulls[name] = column.null_count
        if column.null_count < rows.num_rows:
            for found, value in zip((least, greatest), _bounds(column), strict=True):
                if value is not None:
                    found[name] = value
    made = {
        "numRecords": rows.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
        "tightBounds": True,
    }
    return _NUMBERS.encode(made).decode()


def _bounds(column: pa.ChunkedArray) -> tuple[object, object]:
    """Return the least and greatest value for statistics, or None."""
    kind, none = column.type, (None, None)
    if pa.types.is_date(kind):
        return _days(column)
    if pa.types.is_timestamp(kind):
        return _moments(column)
    if pa.types.is_floating(kind):
        # NaN is greater than all others for Spark, and infinity is no number in JSON
        if not pc.all(pc.is_finite(column)).as_py():
            return none
    elif not (pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_string(kind)):
        return none
    found = pc.min_max(column)
    low, high = found["min"].as_py(), found["max"].as_py()
    if isinstance(high, str):
        low = low[:PREFIX]
        if len(high) > PREFIX:
            # greater than each text that begins so
            high = None if high[PREFIX] == LAST else high[:PREFIX] + LAST
    return low, high


def _days(column: pa.ChunkedArray) -> tuple[object, object]:
    found = pc.min_max(column.cast(pa.int32()))
    low, high = found["min"].as_py(), found["max"].as_py()
    if low < DAYS[0] or high > DAYS[1]:
        return None, None
    first = dt.date(1970, 1, 1)
    return tuple(str(first + dt.timedelta(days=each)) for each in (low, high))  # type: ignore[return-value]


def _moments(column: pa.ChunkedArray) -> tuple[object, object]:
    found = pc.min_max(column.cast(pa.int64()))
    low, high = found["min"].as_py(), found["max"].as_py()
    if low < DAYS[0] * DAY_US or high >= (DAYS[1] + 1) * DAY_US:
        return None, None
    end = "Z" if column.type.tz else ""
    first = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the text has the zone
    # Readers add a millisecond to the greatest one, as the statistics end there.
    moments = (first + dt.timedelta(milliseconds=each // 1000) for each in (low, high))
    return tuple(each.isoformat(timespec="milliseconds") + end for each in moments)  # type: ignore[return-value]


# --- transactions -------------------------------------------------------------------------------------

DELTA: Final = "org.apache.spark.sql.delta"


class DeltaTransaction:
    """A transaction of Delta's on a table by path.

    The thread's active session gives the commit's metadata. Raises: Py4JError if this Delta Lake has
    other methods; nothing is committed then.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        session: Any = spark
        self._client = session._jvm._gateway_client  # noqa: SLF001 - Python has no word for it
        log = self._class("DeltaLog").forTable(session._jsparkSession, path)  # noqa: SLF001
        self._made = log.startTransaction()
        protocol, metadata = self._made.protocol().json(), self._made.metadata().json()
        self.schema = file_schema(protocol, metadata)

    def append(self, actions: Sequence[Mapping[str, object]]) -> None:
        """Commit entries of Delta's log as an appending WRITE."""
        read = self._class("actions.Action").fromJson
        entries = JavaClass("java.util.ArrayList", self._client)()
        for action in actions:
            entries.add(read(_NUMBERS.encode(action).decode()))
        listed = JavaClass("scala.jdk.javaapi.CollectionConverters", self._client)
        none = JavaClass("scala.Option", self._client).empty()
        mode = JavaClass("org.apache.spark.sql.SaveMode", self._client).Append
        operation = self._class("DeltaOperations$Write")(mode, *[none] * 8)
        self._made.commit(listed.asScala(entries).toSeq(), operation)

    def _class(self, name: str) -> Any:
        # a name with packages would be a round trip for each of them
        return JavaClass(f"{DELTA}.{name}", self._client)


def added(store: FileStore, folder: str, rows: pa.Table) -> dict[str, object]:
    """Write ``rows`` as a file; return its log entry."""
    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    path = f"{folder}/{name}"
    size = write_rows(store, path, rows)
    store.sync(path, size)
    entry = {
        "path": name,
        "partitionValues": {},
        "size": size,
        "modificationTime": round(time.time() * 1000),
        "dataChange": True,
        "stats": statistics(rows),
    }
    return {"add": entry}
