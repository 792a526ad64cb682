"""Write few rows of a Delta table in the driver.

The transaction is Delta's (`OptimisticTransaction`), so conflicts, checkpoints and checksums stay its
own. The file is as Delta's writer makes it: physical names and numbers of columns, and statistics by
which readers skip files.

A table with a feature, property or type that is not listed here is left to Spark.
"""

import datetime as dt
import functools
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyspark
from py4j.java_gateway import JavaClass
from pyarrow import compute as pc
from pyspark.sql import SparkSession

from waltap.base.files.durable_file import UNREADABLE
from waltap.base.files.store import FileStore
from waltap_spark.compact.small_sets import write_rows
from waltap_spark.formats.small_files.delta_log import FileList, StoredFile
from waltap_spark.formats.small_files.rows import (
    BATCH,
    FILES,
    SMALL_FILE,
    Action,
    FileSchema,
    atom_of,
    few_rows,
    without_keys,
)

# --- columns ------------------------------------------------------------------------------------------

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
    """Identity, columns and properties of a table."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: dict[str, str] = {}


class _Described(msgspec.Struct, frozen=True):
    """One of the two, as Delta's log has it."""

    protocol: _TableProtocol | None = None
    metadata: _TableMetadata | None = msgspec.field(name="metaData", default=None)


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
        logical, physical = ([_field(f, own) for f in fields] for own in (False, True))
    except (*UNREADABLE, KeyError, TypeError, ValueError):
        return None
    # Spark 3 refuses dates before 1582 in a file without its version.
    writer = {"org.apache.spark.version": pyspark.__version__}
    schema = pa.schema(physical, metadata=writer)
    return FileSchema(table.id, pa.schema(logical), schema) if physical else None


def _field(field: Mapping[str, Any], physical: bool) -> pa.Field:
    """Return a field under its name, or ``physical``: as in files.

    Raises: ValueError if unknown.
    """
    about = field["metadata"]
    if not about.keys() <= KNOWN or not field["nullable"]:
        raise ValueError(f"column {field['name']} has properties")
    kind = _type(field["type"], physical)
    if not physical:
        return pa.field(field["name"], kind)
    return pa.field(about[PHYSICAL], kind, metadata={"PARQUET:field_id": str(about[NUMBER])})


def _type(kind: Any, physical: bool) -> pa.DataType:
    """Return a Delta type in Arrow. Raises: KeyError, ValueError."""
    if isinstance(kind, str):
        return atom_of(kind)
    if kind["type"] == "array":
        return pa.list_(pa.field("element", _type(kind["elementType"], physical)))
    if kind["type"] == "map":
        return pa.map_(_type(kind["keyType"], physical), _type(kind["valueType"], physical))
    if kind["type"] != "struct":
        raise ValueError(f"type {kind['type']} is unknown")
    return pa.struct([_field(each, physical) for each in kind["fields"]])


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
        if column.null_count == rows.num_rows:
            continue
        if pa.types.is_integer(column.type):  # most of the log's own columns
            found = pc.min_max(column)
            least[name], greatest[name] = found["min"].as_py(), found["max"].as_py()
            continue
        for bounds, value in zip((least, greatest), _bounds(column), strict=True):
            if value is not None:
                bounds[name] = value
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
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
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


def _moments(column: pa.ChunkedArray) -> tuple[object, object]:
    """Return the bounds of dates, or of timestamps in milliseconds."""
    is_date = pa.types.is_date(column.type)
    found = pc.min_max(column.cast(pa.int32() if is_date else pa.int64()))
    low, high = found["min"].as_py(), found["max"].as_py()
    unit = 1 if is_date else DAY_US
    if low < DAYS[0] * unit or high >= (DAYS[1] + 1) * unit:
        return None, None
    first = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the text has the zone
    if is_date:
        return tuple(str(first.date() + dt.timedelta(days=each)) for each in (low, high))  # type: ignore[return-value]
    end = "Z" if column.type.tz else ""
    # Readers add a millisecond to the greatest one, as the statistics end there.
    moments = (first + dt.timedelta(milliseconds=each // 1000) for each in (low, high))
    return tuple(each.isoformat(timespec="milliseconds") + end for each in moments)  # type: ignore[return-value]


# --- transactions -------------------------------------------------------------------------------------

DELTA: Final = "org.apache.spark.sql.delta"


class DeltaTransaction:
    """A transaction of Delta's on a table by path.

    The thread's active session gives the commit's metadata. Classes are named as a whole, since the
    gateway would ask for each package of a name. Raises: Py4JError if this Delta Lake has
    other methods; nothing is committed then.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        session: Any = spark
        self._client = session._jvm._gateway_client  # noqa: SLF001 - Python has no word for it
        log = JavaClass(f"{DELTA}.DeltaLog", self._client).forTable(session._jsparkSession, path)  # noqa: SLF001
        self._made = log.startTransaction()
        protocol, metadata = self._made.protocol().json(), self._made.metadata().json()
        self.schema = file_schema(protocol, metadata)
        # The version that the transaction follows, where this process may write.
        self.version = -1 if self.schema is None else int(self._made.readVersion())

    def committing(self, actions: Sequence[Mapping[str, object]], *, replaces: bool) -> Action:
        """Return the commit of entries of the log, as a WRITE.

        ``replaces``: the entries follow from all rows, so another writer's commit in between is a
        conflict; else they only add rows.
        """
        read = JavaClass(f"{DELTA}.actions.Action", self._client).fromJson
        entries = JavaClass("java.util.ArrayList", self._client)()
        for action in actions:
            entries.add(read(_NUMBERS.encode(action).decode()))
        listed = JavaClass("scala.jdk.javaapi.CollectionConverters", self._client)
        none = JavaClass("scala.Option", self._client).empty()
        modes = JavaClass("org.apache.spark.sql.SaveMode", self._client)
        if replaces:
            self._made.readWholeTable()
        mode = modes.Overwrite if replaces else modes.Append
        operation = JavaClass(f"{DELTA}.DeltaOperations$Write", self._client)(mode, *[none] * 8)
        return functools.partial(self.commit, listed.asScala(entries).toSeq(), operation)

    def commit(self, entries: object, operation: object) -> None:
        self._made.commit(entries, operation)


def _removed(file: StoredFile, *, changes: bool = True) -> dict[str, object]:
    entry = {
        "path": file.path,
        "deletionTimestamp": _now(),
        "dataChange": changes,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size,
    }
    return {"remove": entry}


def _now() -> int:
    return round(time.time() * 1000)


@dataclass(eq=False)
class DeltaTable:
    """A `DriverTable` by path; one transaction writes its files.

    ``file_list`` returns the list of files of a table by its id. Raises: FilesUnavailable.
    """

    spark: SparkSession
    path: str
    store: FileStore
    folder: str
    file_list: Callable[[str], FileList]
    # Of the transaction, which `stored` begins; None if Spark must write, or the files are unknown.
    schema: FileSchema | None = None
    files: list[StoredFile] | None = None

    def stored(self, rows: pa.Table) -> pa.Table | None:
        self.transaction = begun = DeltaTransaction(self.spark, self.path)
        self.schema = schema = begun.schema
        stored = None if schema is None else schema.physical_rows(rows)
        if schema is not None and stored is not None:
            self.files = self.file_list(schema.table).at(begun.version)
        return stored

    def adding(self, rows: pa.Table, *, replaces: bool) -> Action | None:
        """Join small files, or replace few ones without deleted rows."""
        files = self.files
        if not replaces:
            entries = [self._added(rows), *self._joined(files or ())]
        elif files is None or len(files) > 2 * FILES or any(f.deletion_vector for f in files):
            return None
        else:
            entries = [*map(_removed, files), self._added(rows)]
        return self.transaction.committing(entries, replaces=replaces)

    def replacing(self, key: Sequence[str], rows: pa.Table, gone: pa.Array) -> Action | None:
        """Write files with changed rows again, and join small ones."""
        files, schema = self.files, self.schema
        if files is None or schema is None:
            return None
        found = without_keys(schema, ((file, self._rows(file)) for file in files), key, rows, gone)
        if found is None:
            return None
        old, made = found
        entries = [_removed(file) for file in old]
        if made.num_rows:
            entries.append(self._added(made))
        entries += self._joined([each for each in files if each not in old])
        return self.transaction.committing(entries, replaces=True)

    def _added(self, rows: pa.Table, *, changes: bool = True) -> dict[str, object]:
        """Write ``rows`` as a file; return its log entry.

        ``changes``: they are new rows, for those who read the table as a stream.
        """
        name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        path = f"{self.folder}/{name}"
        size = write_rows(self.store, path, rows)
        self.store.sync(path, size)
        entry = {
            "path": name,
            "partitionValues": {},
            "size": size,
            "modificationTime": _now(),
            "dataChange": changes,
            "stats": statistics(rows),
        }
        return {"add": entry}

    def _joined(self, files: Sequence[StoredFile]) -> list[dict[str, object]]:
        """Write many small files as one; return log entries.

        No row changes. Spark's OPTIMIZE of a few kilobytes takes as long as of a gigabyte.
        """
        small = [file for file in files if file.size < SMALL_FILE and not file.deletion_vector]
        if len(small) < FILES:
            return []
        rows = [self._rows(file) for file in small]
        known = [each for each in rows if each is not None]
        if len(known) < len(rows):
            return []
        entry = self._added(pa.concat_tables(known), changes=False)
        return [*(_removed(file, changes=False) for file in small), entry]

    def _rows(self, file: StoredFile) -> pa.Table | None:
        """Return a file's few whole rows, else None."""
        if file.deletion_vector or file.name is None or self.schema is None:
            return None
        rows = few_rows(self.store.parquet_batches(f"{self.folder}/{file.name}", BATCH))
        return None if rows is None else self.schema.file_rows(rows)
