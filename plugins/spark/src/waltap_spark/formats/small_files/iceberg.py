"""Write few rows of an Iceberg table in the driver.

The commit is Iceberg's own (`newAppend`, `newOverwrite`, `newRewrite`), so conflicts and manifests stay
its own. The file has the columns' ids, and Iceberg reads the file's statistics itself. Bytes go through
the table's `FileIO`, so a table may be in any catalogue and storage.

A table with partitions, a sort order, or a type or property that is not listed here is left to Spark.
"""

import contextlib
import functools
import io
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyarrow import compute as pc
from pyarrow import parquet
from pyspark.sql import SparkSession

from waltap_spark.compact.small_sets import LARGE, write_parquet
from waltap_spark.formats.small_files.rows import (
    BATCH,
    FILES,
    SMALL_FILE,
    SMALL_TABLE,
    Action,
    FileSchema,
    atom_of,
    few_rows,
    without_keys,
)

ICEBERG: Final = "org.apache.iceberg"

# Iceberg's atoms that have other names than Spark's.
ATOMS: Final = {
    "int": pa.int32(),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp": pa.timestamp("us"),
}

# What Iceberg says about a column; it may have a default value, which files lack.
KNOWN: Final = frozenset({"id", "name", "required", "type", "doc"})
ID: Final = b"PARQUET:field_id"

# Compressions of a table's files that pyarrow has under the same names. Iceberg's own default is zstd.
CODEC: Final = "write.parquet.compression-codec"
CODECS: Final = frozenset({"zstd", "snappy", "gzip"})

# Iceberg's exception for a commit that perhaps took place.
UNKNOWN: Final = "CommitStateUnknownException"

# Files that are listed for a compaction in the driver.
LISTED: Final = 1000


class _Fields(msgspec.Struct, frozen=True):
    """A partition spec or a sort order."""

    fields: tuple[Mapping[str, object], ...] = ()


class TableSnapshot(msgspec.Struct, frozen=True, rename="kebab"):
    """A table's version: time (ms since 1970) and sizes."""

    snapshot_id: int
    timestamp_ms: int
    parent_snapshot_id: int | None = None
    summary: Mapping[str, str] = {}


class CatalogueEntry(msgspec.Struct, frozen=True, rename="kebab"):
    """A table as its catalogue has it."""

    format_version: int
    table_uuid: str
    current_schema_id: int
    schemas: tuple[msgspec.Raw, ...]
    partition_specs: tuple[_Fields, ...]
    sort_orders: tuple[_Fields, ...]
    properties: Mapping[str, str]
    current_snapshot_id: int | None = None
    snapshots: tuple[TableSnapshot, ...] = ()

    def total(self, what: str) -> int:
        """Return a total: ``files-size`` (bytes), or files of a kind.

        Very many if its writer did not count them.
        """
        for each in self.snapshots:
            if each.snapshot_id == self.current_snapshot_id:
                return int(each.summary.get(f"total-{what}", sys.maxsize))
        return 0

    def versions(self) -> list[TableSnapshot]:
        """Return the versions from the current one back, without rolled-back ones."""
        by_id = {each.snapshot_id: each for each in self.snapshots}
        found, at = list[TableSnapshot](), self.current_snapshot_id
        while at in by_id:
            found.append(by_id[at])
            at = found[-1].parent_snapshot_id
        return found


class _Schema(msgspec.Struct, frozen=True, rename="kebab"):
    """The number of a schema, and its columns."""

    schema_id: int
    fields: tuple[dict[str, Any], ...]


class _ContentFile(msgspec.Struct, frozen=True, rename="kebab"):
    """A data file, or a file of deletes."""

    content: str
    file_path: str
    file_format: str
    file_size_in_bytes: int


class _ScanTask(msgspec.Struct, frozen=True, rename="kebab"):
    """A data file with the deletes that apply to it."""

    data_file: _ContentFile
    delete_files: tuple[_ContentFile, ...] = ()


class DataFile(NamedTuple):
    """A data file of a table.

    ``java`` is Iceberg's own object. ``deletes`` are files of positions, None if some are of
    another kind.
    """

    java: Any
    path: str
    size: int
    deletes: tuple[str, ...] | None


class IcebergTable:
    """A loaded table whose files the driver writes, as a `DriverTable`.

    ``java`` is Iceberg's own object. ``note`` returns what the summary of a new version has. ``listed``
    has the files of versions that `replacing` made, by the table's name in SQL. Classes are named as a
    whole, since the gateway would ask for each package of a name. Raises: Py4JError if this Iceberg has
    other methods; nothing is committed then.
    """

    def __init__(
        self,
        spark: SparkSession,
        at: str,
        *,
        is_cached: bool = False,
        note: Callable[[], Mapping[str, str]] = dict,
        listed: dict[str, tuple[int, list[DataFile]]] | None = None,
    ) -> None:
        self._at, self._note, self._listed = at, note, {} if listed is None else listed
        self.java = java = loaded(spark, at)
        if is_cached:  # its catalogue may have an older version
            java.refresh()
        client = java._gateway_client  # noqa: SLF001 - Python has no word for it
        self._static = functools.partial(static_method, client)
        present = java.operations().current()
        newest = self._static("TableMetadata.buildFrom")(present).suppressHistoricalSnapshots()
        text = self._static("TableMetadataParser.toJson")(newest.build())
        self._metadata = msgspec.json.decode(text, type=CatalogueEntry)
        self.schema = _file_schema(self._metadata)
        # The id of the loaded version.
        self.snapshot = self._metadata.current_snapshot_id

    @property
    def is_small(self) -> bool:
        """Return whether few bytes are written if the whole table is."""
        return self.schema is not None and self._metadata.total("files-size") <= SMALL_TABLE

    def stored(self, rows: pa.Table) -> pa.Table | None:
        if self.schema is None:
            return None
        small = (pa.int8(), pa.int16())
        fields = [f.with_type(pa.int32()) if f.type in small else f for f in rows.schema]
        return self.schema.physical_rows(rows.cast(pa.schema(fields)))

    def written(self, rows: pa.Table) -> DataFile:
        """Write ``rows`` as a file, which no version has yet."""
        buffer = io.BytesIO()
        write_parquet(rows, buffer, self._metadata.properties.get(CODEC, "zstd"))
        place = self.java.locationProvider().newDataLocation(f"{uuid.uuid4()}.parquet")
        output = self.java.io().newOutputFile(place)
        stream = output.create()
        stream.write(buffer.getvalue())
        stream.close()
        file = output.toInputFile()
        config = self._static("MetricsConfig.forTable")(self.java)
        metrics = self._static("parquet.ParquetUtil.fileMetrics")(file, config)
        builder = self._static("DataFiles.builder")(self.java.spec())
        made = builder.withInputFile(file).withMetrics(metrics).build()
        return DataFile(made, place, buffer.tell(), ())

    def files(self) -> list[DataFile] | None:
        """Return the loaded version's files, None if very many."""
        if self._metadata.total("data-files") > LISTED:
            return None
        found = []
        tasks = self.java.newScan().planFiles()
        try:
            waiting = tasks.iterator()
            while waiting.hasNext():
                task = waiting.next()
                read = msgspec.json.decode(
                    self._static("ScanTaskParser.toJson")(task), type=_ScanTask
                )
                file, deletes = read.data_file, read.delete_files
                plain = all(
                    each.content == "position-deletes" and each.file_format == "parquet"
                    for each in deletes
                )
                positions = tuple(each.file_path for each in deletes) if plain else None
                size = file.file_size_in_bytes
                found.append(DataFile(task.file(), file.file_path, size, positions))
        finally:
            tasks.close()
        return found

    def rows(self, file: DataFile) -> pa.Table | None:
        """Return a file's few fitting rows, else None."""
        read = None if file.deletes is None else self._read(file.path)
        if read is None or self.schema is None:
            return None
        gone = np.zeros(read.num_rows, bool)
        for path in file.deletes or ():
            positions = self._read(path)
            if positions is None:
                return None
            here = pc.equal(positions.column("file_path"), file.path)
            gone[positions.filter(here).column("pos").to_numpy()] = True
        if gone.any():
            read = read.filter(pa.array(~gone))
        own = {field.metadata[ID]: field for field in self.schema.physical}
        ids = [(field.metadata or {}).get(ID) for field in read.schema]
        if None in ids:
            return None  # a program without ids wrote it
        there = zip(ids, read.schema.types, strict=True)
        nested = (pair for pair in there if pair[0] in own and pa.types.is_nested(pair[1]))
        if any(_ids(kind) != _ids(own[each].type) for each, kind in nested):
            return None  # a field of a struct is gone, and another one has its name
        own_rows = read.select([number for number, each in enumerate(ids) if each in own])
        return self.schema.file_rows(
            own_rows.rename_columns([own[each].name for each in ids if each in own])
        )

    def _read(self, path: str) -> pa.Table | None:
        stream = self.java.io().newInputFile(path).newStream()
        try:
            data = stream.readAllBytes()
        finally:
            stream.close()
        with parquet.ParquetFile(pa.BufferReader(data)) as file:
            return few_rows(file.iter_batches(BATCH))

    # --- commits ------------------------------------------------------------------------------------

    def adding(self, rows: pa.Table, *, replaces: bool) -> Action:
        file = self.written(rows) if rows.num_rows else None
        return functools.partial(self.add, file, replaces=replaces)

    def add(self, file: DataFile | None, *, replaces: bool) -> None:
        """Commit ``file`` (None: no rows), with ``replaces`` as all rows of the table."""
        if replaces:
            every = self._static("expressions.Expressions.alwaysTrue")()
            commit = self.java.newOverwrite().overwriteByRowFilter(every)
            commit = commit if file is None else commit.addFile(file.java)
        else:
            commit = self.java.newAppend()
            commit = commit if file is None else commit.appendFile(file.java)
        self.commit(commit, self._note(), file)

    def replacing(self, key: Sequence[str], rows: pa.Table, gone: pa.Array) -> Action | None:
        """Rewrite files with changed rows, and small ones together."""
        version, files = self._listed.pop(self._at, (None, None))
        files = files if version is not None and version == self.snapshot else self.files()
        if files is None or self.schema is None:
            return None
        own = [(file, self.rows(file)) for file in files]
        found = without_keys(self.schema, own, key, rows, gone)
        if found is None:
            return None
        old, made = found
        paths = {file.path for file in old}
        small = [(f, r) for f, r in own if f.path not in paths and f.size < SMALL_FILE]
        if len(small) >= FILES:  # else each commit of new rows adds one
            made = pa.concat_tables([*(rest for _file, rest in small), made])
            old = [*old, *(file for file, _rest in small)]
            paths |= {file.path for file in old}
        new = self.written(made) if made.num_rows else None
        rest = [file for file in files if file.path not in paths]

        def commit() -> None:
            version = self.replace(old, new)
            if version is not None:
                self._listed[self._at] = version, [*rest, *([] if new is None else [new])]

        return commit

    def replace(self, old: Iterable[DataFile], new: DataFile | None) -> int | None:
        """Commit ``new`` in place of files ``old``; return the version's id.

        A commit of another writer since the loaded version is a conflict. None: another program
        has written the files again beside it.
        """
        commit = self.java.newOverwrite()
        for file in old:
            commit = commit.deleteFile(file.java)
        if new is not None:
            commit = commit.addFile(new.java)
        every = self._static("expressions.Expressions.alwaysTrue")()
        commit = commit.conflictDetectionFilter(every)
        if self.snapshot is not None:
            commit = commit.validateFromSnapshot(self.snapshot)
        commit = commit.validateNoConflictingData().validateNoConflictingDeletes()
        self.commit(commit, self._note(), new)
        newest = self.java.currentSnapshot()
        return int(newest.snapshotId()) if newest.parentId() == self.snapshot else None

    def rewrite(self, old: Iterable[DataFile], new: DataFile) -> None:
        """Commit ``new`` in place of files ``old`` with the same rows."""
        commit = self.java.newRewrite()
        for file in old:
            commit = commit.deleteFile(file.java)
        self.commit(commit.addFile(new.java).validateFromSnapshot(self.snapshot), {}, new)

    def join(self) -> bool:
        """Write small files as one; return whether nothing is left.

        Spark's compaction of a few kilobytes takes as long as of a gigabyte.
        """
        files = self.files() if self.schema is not None else None
        if files is None:
            return False
        small = [file for file in files if file.size < SMALL_FILE]
        large = [file for file in files if file.size >= SMALL_FILE]
        if len(large) > FILES or any(file.deletes != () for file in large):
            return False
        if len(small) > 1 or any(file.deletes != () for file in small):
            found, size = [], 0
            for file in small:
                rows = self.rows(file)
                if rows is None or size > LARGE:
                    return False
                size += rows.nbytes
                found.append(rows)
            made = pa.concat_tables(found)
            if not made.num_rows:
                return False
            self.rewrite(small, self.written(made))
        return True

    def commit(self, update: Any, properties: Mapping[str, str], file: DataFile | None) -> None:
        """Commit an Iceberg update, with ``properties`` in its summary.

        If Iceberg refuses it, the new ``file`` is removed.
        """
        for name, value in properties.items():
            update = update.set(name, value)
        try:
            update.commit()
        except Py4JJavaError as error:
            if file is not None and UNKNOWN not in str(error.java_exception):
                with contextlib.suppress(Py4JError):
                    self.java.io().deleteFile(file.path)
            raise


def versions_of(java: Any) -> list[TableSnapshot]:
    """Return a table's versions, from the current one back."""
    write = static_method(java._gateway_client, "TableMetadataParser.toJson")  # noqa: SLF001
    text = write(java.operations().current())
    return msgspec.json.decode(text, type=CatalogueEntry).versions()


def loaded(spark: SparkSession, at: str) -> Any:
    """Load a table by its SQL name; return Iceberg's object.

    Raises: AnalysisException if there is none.
    """
    session: Any = spark
    load = static_method(session._jvm._gateway_client, "spark.Spark3Util.loadIcebergTable")  # noqa: SLF001 - Python has no word for it
    return load(session._jsparkSession, at)  # noqa: SLF001


@functools.lru_cache(maxsize=64)
def static_method(client: Any, name: str) -> Any:
    """Return ``CLASS.METHOD`` of Iceberg's, which costs one round trip."""
    kind, _, method = name.rpartition(".")
    return getattr(JavaClass(f"{ICEBERG}.{kind}", client), method)


# --- columns ------------------------------------------------------------------------------------------


def _file_schema(metadata: CatalogueEntry) -> FileSchema | None:
    """Return the files' schema; None if Spark must write."""
    properties = metadata.properties
    if (
        metadata.format_version > 2  # rows have ids
        or any(each.fields for each in (*metadata.partition_specs, *metadata.sort_orders))
        or properties.get("write.format.default", "parquet") != "parquet"
        or properties.get(CODEC, "zstd") not in CODECS
        or properties.get("write.wap.enabled", "false") != "false"
        or any(name.startswith("encryption.") for name in properties)
    ):
        return None
    schemas = (_columns(bytes(each)) for each in reversed(metadata.schemas))
    columns = next(each for number, each in schemas if number == metadata.current_schema_id)
    # files have a column's name, whatever its id
    return None if columns is None else FileSchema(metadata.table_uuid, columns, columns)


@functools.lru_cache(maxsize=1024)
def _columns(schema: bytes) -> tuple[int, pa.Schema | None]:
    """Return a schema's number and Arrow columns with ids.

    None instead of the columns: one of them is unknown.
    """
    read = msgspec.json.decode(schema, type=_Schema)
    try:
        fields = [_field(each) for each in read.fields]
    except (KeyError, TypeError, ValueError):
        return read.schema_id, None
    return read.schema_id, pa.schema(fields) if fields else None


def _ids(kind: pa.DataType) -> tuple[object, ...]:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return tuple(((field.metadata or {}).get(ID), _ids(field.type)) for field in fields)


def _field(field: Mapping[str, Any]) -> pa.Field:
    """Return a field with its id. Raises: KeyError, ValueError."""
    if field["required"] or not field.keys() <= KNOWN:
        raise ValueError(f"column {field['name']} has properties")
    return _numbered(field["name"], _type(field["type"]), field["id"])


def _numbered(name: str, kind: pa.DataType, number: int, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={ID: str(number)})


def _type(kind: Any) -> pa.DataType:
    """Return an Iceberg type in Arrow with its fields' ids.

    Raises: KeyError or ValueError if unknown.
    """
    if isinstance(kind, str):
        return ATOMS[kind] if kind in ATOMS else atom_of(kind)
    if kind["type"] == "list" and not kind["element-required"]:
        return pa.list_(_numbered("element", _type(kind["element"]), kind["element-id"]))
    if kind["type"] == "map" and not kind["value-required"]:
        key = _numbered("key", _type(kind["key"]), kind["key-id"], nullable=False)
        return pa.map_(key, _numbered("value", _type(kind["value"]), kind["value-id"]))
    if kind["type"] != "struct":
        raise ValueError(f"type {kind['type']} is unknown")
    return pa.struct([_field(each) for each in kind["fields"]])
