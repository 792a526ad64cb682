"""Delta Lake tables, by path or by name in a catalogue.

The `CommitNote` is the commit's ``userMetadata``. MERGE takes it only from the session, so each table
that is written has its own session. A server of Spark Connect finishes what its client asked for, also
after the client has died. So there a step has a transaction id of Delta's own (``txnAppId``,
``txnVersion``), by which Delta ignores a step that it has. For that it computes the state of the whole
log, which takes longer than a small write.
"""

import contextlib
import itertools
import json
import logging
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakSet
from zlib import crc32

import msgspec
import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from waltap.base.files.durable_file import UNREADABLE
from waltap.base.files.errors import FilesUnavailable
from waltap_spark.config.properties import DeltaTableProperties
from waltap_spark.config.targets import FileLayout
from waltap_spark.errors import FormatLimit, LayoutUnfit, VersionGone
from waltap_spark.formats.lake_sessions import DELTA, EXTENSIONS
from waltap_spark.formats.merging import MergingFormat, layout_name
from waltap_spark.formats.small_files.delta import DeltaTable
from waltap_spark.formats.small_files.delta_log import FileList
from waltap_spark.formats.small_files.rows import FILES, SMALL_TABLE, Action
from waltap_spark.formats.stepwise import (
    BYTES,
    NOWHERE,
    CommitNote,
    ReplaceRows,
    TableCommit,
    is_missing,
)
from waltap_spark.formats.table_format import TableFormatContext, What
from waltap_spark.formats.work import VIEW, retyped
from waltap_spark.schema.expression import literal_of, namespace_of, quoted
from waltap_spark.schema.schema import common_type, digits_of
from waltap_spark.session.session import is_remote
from waltap_spark.state.output import TableState, TargetTable

# Column mapping allows any name, rename and drop; deletion vectors save rewriting files; types can
# widen.
TABLE: Final = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableTypeWidening": "true",
    "delta.feature.timestampNtz": "supported",
}

# Fewest commits of a table from one checkpoint of its log to the next. Delta's own number, 10, is the
# same for all tables: those that start together would write all of their checkpoints in one commit.
CHECKPOINT: Final = 50
INTERVAL: Final = "delta.checkpointInterval"
# A session's own number for new tables.
INTERVALS: Final = "spark.databricks.delta.properties.defaults.checkpointInterval"

HARMLESS: Final = frozenset(
    {
        "OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "COMPUTE STATS", "ANALYZE",
        "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL", "CLUSTER BY", "FSCK",
        "ADD DELETION VECTORS TOMBSTONES", "CHANGE COLUMN", "DOMAIN METADATA CLEANUP",
    }
)  # fmt: skip

OLD, NEW = "__waltap_old", "__waltap_new"
REPLACE_ON = "replaceOn"
# Delta's class with the list of write options.
OPTIONS = "org.apache.spark.sql.delta.DeltaOptions"

# Delta refuses REPLACE ON without this setting; `DeltaFormat.noted` sets another one.
REPLACES_ON: Final = "spark.databricks.delta.replaceOn.dataframe.writer.enabled"

APP, STEP = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
# Delta's text for a missing version, with and without an error condition.
TRAVEL: Final = "Cannot time travel"

# A new table's folder has files.
NOT_EMPTY: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"

# A file system's text for a table without its folder.
NO_LOG: Final = re.compile(r"/_delta_log(?: does not exist|$)", re.MULTILINE)

METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"

# Properties of a table with which other programs see which rows a commit changed, or rows have ids.
BY_ROW: Final = ("delta.enableChangeDataFeed", "delta.enableRowTracking")

# Text that Delta stores as null in a column that partitions files: rows would differ, or be there twice.
NULLS: Final = ("", "__HIVE_DEFAULT_PARTITION__")
NO_TEXT_OF: Final = "Delta Lake has null for empty text in the partition column "
NO_TEXT: Final = re.compile(re.escape(NO_TEXT_OF) + "`(?:[^`]|``)*`")

# An overwritten table is no longer clustered.
CLUSTERING: Final = "delta.clustering"

# Digits before the point that Delta needs in a decimal to widen an integer to it.
_ROOM: Final = {'"byte"': 10, '"short"': 10, '"integer"': 10, '"long"': 20}


log = logging.getLogger(__name__)


class _Metadata(msgspec.Struct, frozen=True):
    """A table's properties."""

    configuration: dict[str, str] = {}


class _Domain(msgspec.Struct, frozen=True):
    """Metadata of one of Delta's features."""

    domain: str


class _Checksum(msgspec.Struct, frozen=True):
    """A table's size and properties, from Delta's checksum of a version."""

    size: int = msgspec.field(name="tableSizeBytes")
    metadata: _Metadata
    domains: list[_Domain] | None = msgspec.field(name="domainMetadata", default=None)


class DeltaFormat(MergingFormat):
    """Tables of Delta Lake."""

    measured = "analyzed"  # an optimized plan has its files chosen, by a job
    harmless = HARMLESS
    _properties: DeltaTableProperties

    def __init__(self, properties: DeltaTableProperties, context: TableFormatContext) -> None:
        super().__init__(properties, context)
        self._ready: WeakSet[SparkSession] = WeakSet()
        self._puts: bool | None = None
        # Identifier → a version, and what Delta's checksum file has about it.
        self._checksums: dict[str, tuple[int, _Checksum | None]] = {}
        # Table and columns → the columns that partition its files.
        self._partitions: dict[tuple[str, tuple[str, ...]], set[str]] = {}
        # Identifier → its folder in the output.
        self._folders: dict[str, str] = {}
        # Folder → id and files of its table.
        self._file_lists: dict[str, tuple[str, FileList]] = {}

    def own_identifier(self, table: TableState, what: What) -> str:
        return f"delta.{quoted(self._output.uri(f'{table.target_folder}/delta/{what}'))}"

    def is_case_sensitive(self, spark: SparkSession) -> bool:
        """Return whether the name is a path: catalogues ignore case."""
        return not self._properties.catalog

    def layout(self, table: TableState, what: What) -> FileLayout:
        """Return the profile's layout. Raises: LayoutUnfit."""
        found, name = super().layout(table, what), layout_name(table, what)
        if found.partition and found.cluster:
            text = f"the profile partitions and clusters {name}, and Delta Lake allows only one of them"
            raise LayoutUnfit(text)
        for each in found.partition:
            if table.columns.get(each.column) == '"binary"':
                text = f"the profile partitions {name} by {each.column}, bytes"
                raise LayoutUnfit(f"{text} that Delta Lake would make text")
        return found

    def create(self, spark: SparkSession, at: str, columns: str, layout: FileLayout) -> None:
        if self._properties.catalog:
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {namespace_of(at)}")
        elif "_delta_log" in self._output.store.folders(self._folder(at)):
            # A driver died before the first version; to Delta any path with files is a table.
            self._output.store.delete_folder(f"{self._folder(at)}/_delta_log")
        divided = _divided([each.column for each in layout.partition], layout.cluster)
        properties = table_properties(spark, at)
        sql = f"CREATE TABLE IF NOT EXISTS {at} ({columns}) USING delta {divided} {properties}"
        try:
            spark.sql(sql)
        except AnalysisException as error:
            if error.getCondition() != NOT_EMPTY or not self._cleared_of(spark, error):
                raise
            spark.sql(sql)

    def _cleared_of(self, spark: SparkSession, error: AnalysisException) -> bool:
        """Remove the folder of a table that a driver left; return whether it was one.

        The catalogue does not know the table, and it has no rows.
        """
        place = error.getMessageParameters()["tableLocation"]
        jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
        if jvm is None or session is None:
            return False
        folder = jvm.org.apache.hadoop.fs.Path(place)
        store = folder.getFileSystem(session.sessionState().newHadoopConf())
        if [each.getPath().getName() for each in store.listStatus(folder)] != ["_delta_log"]:
            return False
        try:
            rows = spark.sql(f"DESCRIBE HISTORY delta.{quoted(place)}").collect()
        except AnalysisException as reason:
            if not is_missing(reason):
                raise
            rows = []  # it died before the first version
        notes = [CommitNote.read(row["userMetadata"]) for row in rows]
        own = all(note is not None and note.waltap == self._identity() for note in notes)
        return own and bool(store.delete(folder, True))

    def at_version(self, spark: SparkSession, target: TargetTable) -> DataFrame:
        """Return a version. Raises: FormatNotReady, TargetChanged, VersionGone."""
        try:
            return super().at_version(spark, target)
        except (AnalysisException, Py4JJavaError) as error:
            self._require_delta(spark)
            if is_missing(error) or NO_LOG.search(str(error)):
                raise self._gone(target) from error
            if TRAVEL not in str(error):
                raise
            text = f"{target.at} no longer has version {target.version}"
            raise VersionGone(
                text, oldest="the oldest version of its log", newest="the last commit"
            ) from error

    def identity_of(self, spark: SparkSession, at: str) -> str | None:
        try:
            return str(spark.sql(f"DESCRIBE DETAIL {at}").collect()[0]["id"])
        except AnalysisException as error:
            if is_missing(error):
                return None
            raise

    def rewriting(
        self,
        spark: SparkSession,
        target: TargetTable,
        names: Sequence[str],
        types: Mapping[str, str],
    ) -> Sequence[Action]:
        detail = spark.sql(f"DESCRIBE DETAIL {target.at}").collect()[0]
        divided = _divided(detail["partitionColumns"], detail["clusteringColumns"])
        properties = table_properties(spark, target.at)
        sql = f"CREATE OR REPLACE TABLE {target.at} USING delta {divided} {properties} AS"

        def rewrite() -> None:
            retyped(spark.table(target.at), names, types).createOrReplaceTempView(VIEW)
            spark.sql(f"{sql} SELECT * FROM {VIEW}")

        return [rewrite]

    def commits(self, spark: SparkSession, target: TargetTable) -> list[TableCommit] | None:
        """Read Delta's log.

        For a table by path it reads the log's files, which costs no Spark job; otherwise DESCRIBE
        HISTORY. Raises: FormatNotReady if this session lacks Delta.
        """
        self._require_delta(spark)
        if self._properties.catalog:
            return self._described(spark, target)
        folder = self._log_folder(target)
        first = max(target.version, 0)
        there = self._entry(f"{folder}/{first:020d}.json")
        if there is None and first == 0 and self._output.store.names(folder):
            return self._described(spark, target)  # the beginning of its log is gone
        found = [] if there is None or first == target.version else [_parsed(first, there)]
        for version in itertools.count(first + 1):
            text = self._entry(f"{folder}/{version:020d}.json")
            if text is None:
                break
            found.append(_parsed(version, text))
        # Delta forgets old entries as it writes a checkpoint, which may be with the next one
        return None if there is None and not found else found

    def _entry(self, path: str) -> bytes | None:
        try:
            return self._output.store.read(path)
        except FilesUnavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _described(self, spark: SparkSession, target: TargetTable) -> list[TableCommit] | None:
        most = 8
        while True:
            try:
                rows = spark.sql(f"DESCRIBE HISTORY {target.at} LIMIT {most}").collect()
            except AnalysisException as error:
                if is_missing(error):
                    return None
                raise
            versions = [row["version"] for row in rows]
            if len(rows) < most or min(versions) <= target.version:
                break
            most *= 4
        oldest = min(versions, default=-1)
        if target.version >= 0 and target.version not in versions and oldest != target.version + 1:
            return None
        newer = [row for row in reversed(rows) if row["version"] > target.version]
        return [_commit(row["version"], row.asDict()) for row in newer]

    def replacer(self, spark: SparkSession, *, listed: bool) -> ReplaceRows | None:
        """Return the replacer if this Delta Lake has REPLACE ON; all have REPLACE WHERE."""
        if self._puts is None and not listed:
            self._puts = _replaces_on(spark)
        return self._put if listed or self._puts else None

    def _put(
        self, target: TargetTable, rows: DataFrame, key: Sequence[str], listed: str | None
    ) -> None:
        """Replace rows by REPLACE WHERE or REPLACE ON.

        A small table is rewritten. Delta marks the old rows in one pass over the keys, and adds the
        new ones. MERGE makes three passes: which files, which rows are written, which are marked.
        A condition that lists keys also skips files by their statistics.
        """
        at = target.at
        if listed is not None and self._is_small(target):
            others = rows.sparkSession.table(at).where(f"NOT coalesce({listed}, false)")
            combined = others.unionByName(rows).coalesce(1)
            combined.write.format("delta").mode("overwrite").save(_path(at))
            return
        if self._properties.catalog:
            names = rows.sparkSession.table(at).columns  # insertInto matches columns by position
            rows = rows.selectExpr(*map(quoted, names))
        if listed is None:
            rows = rows.alias(NEW)
            on = " AND ".join(f"{OLD}.{quoted(k)} <=> {NEW}.{quoted(k)}" for k in key)
            options = {REPLACE_ON: on, "targetAlias": OLD}
        else:
            options = {"replaceWhere": listed}
        writer = rows.write.format("delta").mode("overwrite").options(**options)
        if self._properties.catalog:
            writer.insertInto(at)
        else:
            writer.save(_path(at))

    def driver_table(
        self, spark: SparkSession, target: TargetTable, *, small: bool
    ) -> DeltaTable | None:
        """Return a table with path outside Spark Connect, else None."""
        if self._properties.catalog or is_remote(spark) or (small and not self._is_small(target)):
            return None
        folder = self._folder(target.at)
        files = partial(self._file_list, folder=folder)
        return DeltaTable(spark, _path(target.at), self._output.store, folder, files)

    def _file_list(self, table: str, *, folder: str) -> FileList:
        found = self._file_lists.get(folder)
        if found is None or found[0] != table:  # the folder may have a new table
            found = self._file_lists[folder] = table, FileList(self._output.store, folder)
        return found[1]

    def estimated_rows(self, spark: SparkSession, table: TableState) -> int | None:
        """Estimate rows from Delta's checksum file, else by Spark's statistics.

        The statistics need Delta's log, which costs a Spark job.
        """
        target = table.stored_table.targets.get("current")
        known = None if target is None else self._checksum(target)
        if known is None:
            return super().estimated_rows(spark, table)
        return known.size // BYTES

    def _is_small(self, target: TargetTable) -> bool:
        known = self._checksum(target)
        return (
            known is not None
            and known.size <= SMALL_TABLE
            and all(known.metadata.configuration.get(name) != "true" for name in BY_ROW)
            and all(each.domain != CLUSTERING for each in known.domains or ())
        )

    def _checksum(self, target: TargetTable) -> _Checksum | None:
        """Return Delta's checksum file, None where it is unreadable."""
        if self._properties.catalog:
            return None
        version, known = self._checksums.get(target.at, (NOWHERE, None))
        if version != target.version:
            text = self._entry(f"{self._log_folder(target)}/{max(target.version, 0):020d}.crc")
            try:
                known = None if text is None else msgspec.json.decode(text, type=_Checksum)
            except UNREADABLE:
                known = None
            self._checksums[target.at] = target.version, known
        return known

    def _folder(self, at: str) -> str:
        if at not in self._folders:
            self._folders[at] = _path(at).removeprefix(self._output.uri("")).lstrip("/")
        return self._folders[at]

    def _log_folder(self, target: TargetTable) -> str:
        return f"{self._folder(target.at)}/_delta_log"

    @contextlib.contextmanager
    def noted(self, spark: SparkSession, note: CommitNote) -> Iterator[None]:
        """Set the session's commit metadata, and in Spark Connect the transaction id."""
        chosen = {METADATA: msgspec.json.encode(note).decode()}
        if note.step and is_remote(spark):
            app = f"waltap {note.waltap} {note.source}".rstrip()
            # Delta skips a transaction id that it has seen, even after a RESTORE undid the write
            if note.since is not None:
                app = f"{app} since {note.since}"
            chosen |= {APP: app, STEP: str(note.step)}
        for name, value in chosen.items():
            spark.conf.set(name, value)
        try:
            yield
        except PySparkException as error:
            column = NO_TEXT.search(str(error))
            if column is None:
                raise
            raise FormatLimit(f"{column[0]} of {note.table}") from None
        finally:
            for name in chosen:
                spark.conf.unset(name)

    def guarded(self, spark: SparkSession, table: TableState) -> dict[str, str]:
        """Return the SQL of text that partitions files.

        It fails where Delta would store null.
        """
        stored = table.stored_table
        names = [n for n in stored.divided if table.columns.get(n) == '"string"']
        if not names:
            return {}
        known = self._partitions.setdefault((table.name, tuple(stored.columns)), set())
        for target in stored.targets.values() if not known else ():
            detail = spark.sql(f"DESCRIBE DETAIL {target.at}").collect()[0]
            known.update(detail["partitionColumns"])
        return {
            name: f"CASE WHEN {quoted(name)} IN ({', '.join(map(literal_of, NULLS))}) THEN"
            f" raise_error({literal_of(NO_TEXT_OF + quoted(name))}) ELSE {quoted(name)} END"
            for name in names
            if name in known
        }

    def clear(self, spark: SparkSession, at: str) -> None:
        """Overwrite with nothing: a DELETE without a match commits nothing."""
        spark.sql(f"INSERT OVERWRITE {at} SELECT * FROM {at} WHERE false")

    def widens(self, old: str, new: str) -> bool:
        decimal = digits_of(new.strip('"'))
        room = decimal is None or decimal[0] - decimal[1] >= _ROOM.get(old, 0)
        return "{" not in old + new and common_type(old, new) == new and room

    def stored(self, kind: str) -> str:
        """Return text for times of day, which Delta lacks."""
        return kind.replace('"time(6)"', '"string"') if "time(" in kind else kind

    def files(self, spark: SparkSession, at: str) -> int:
        return int(spark.sql(f"DESCRIBE DETAIL {at}").collect()[0]["numFiles"])

    def has_few_files(self, target: TargetTable) -> bool:
        """Return whether the driver wrote last, and left few files."""
        known = self._file_lists.get(self._folder(target.at))
        if known is None or known[1].version < target.version - 1:
            return False
        return known[1].count <= 2 * FILES

    def compact_files(self, spark: SparkSession, at: str) -> None:
        spark.sql(f"OPTIMIZE {at}")

    def vacuum(self, spark: SparkSession, at: str) -> None:
        hours = self._properties.retention_hours
        check = "spark.databricks.delta.retentionDurationCheck.enabled"
        spark.conf.set(check, str(hours >= 168).lower())
        # as many tasks list the files, 10,000 by default, however few there are
        spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "8")
        spark.sql(f"VACUUM {at} RETAIN {hours} HOURS")

    def _require_delta(self, spark: SparkSession) -> None:
        if spark in self._ready:
            return
        if DELTA.extension not in (spark.conf.get(EXTENSIONS, "") or ""):
            raise DELTA.not_ready("this Spark session has no Delta Lake", pyspark.__version__)
        self._ready.add(spark)


def _replaces_on(spark: SparkSession) -> bool:
    """Return whether Delta and the session support REPLACE ON.

    A Delta Lake without the option ignores it, and would overwrite the whole table. So a release
    without a list of options, or a session of Spark Connect, counts as unsupported.
    """
    jvm = getattr(spark, "_jvm", None)
    try:
        known = operator.attrgetter(OPTIONS)(jvm).validOptionKeys().contains(REPLACE_ON)
        # without a setting Delta's own default counts
        return bool(known) and (spark.conf.get(REPLACES_ON) or "").lower() == "true"
    except (AttributeError, Py4JError, TypeError, PySparkException):  # TypeError: no such class
        return False


def table_properties(spark: SparkSession, at: str) -> str:
    """Return TBLPROPERTIES of the table ``at``, which the session creates."""
    properties = dict(TABLE)
    if spark.conf.get(INTERVALS, None) is None:
        properties[INTERVAL] = str(checkpoint_interval(at))
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    return f"TBLPROPERTIES ({listed})"


def checkpoint_interval(at: str) -> int:
    """Return the commits between two checkpoints of a table's log."""
    return CHECKPOINT + crc32(at.encode()) % CHECKPOINT


def _divided(partition: Sequence[str], cluster: Sequence[str]) -> str:
    if partition:
        return f"PARTITIONED BY ({', '.join(map(quoted, partition))})"
    return f"CLUSTER BY ({', '.join(map(quoted, cluster))})" if cluster else ""


def _parsed(version: int, text: bytes) -> TableCommit:
    """Parse one file of Delta's log."""
    for line in text.splitlines():
        try:
            entry = json.loads(line) if line.startswith(b'{"commitInfo"') else {}
        except ValueError:  # cut off: the writer is unknown
            break
        if "commitInfo" in entry:
            return _commit(version, entry["commitInfo"])
    return TableCommit(version, "unknown", None)


def _commit(version: int, info: Mapping[str, Any]) -> TableCommit:
    """Return the commit that Delta's log describes by ``info``."""
    operation, parameters = info.get("operation", ""), info.get("operationParameters") or {}
    restored = parameters.get("version") if operation == "RESTORE" else None
    return TableCommit(
        version,
        operation,
        CommitNote.read(info.get("userMetadata")),
        None if restored is None else int(str(restored)),
    )


def _path(at: str) -> str:
    """Return the path of a table named by path."""
    return at.removeprefix("delta.`").removesuffix("`").replace("``", "`")
