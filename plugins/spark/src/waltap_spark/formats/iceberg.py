"""Apache Iceberg tables, in a catalogue or below the output.

Tables below the output are in a Hadoop catalogue. Every step is one snapshot, whose summary has the
`CommitNote`; SQL takes it from the session. A change of columns makes no snapshot by itself, so
Iceberg's own transaction adds an empty append in the same commit: then a version also identifies
the columns.
"""

import contextlib
import dataclasses
import json
import logging
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Final
from weakref import WeakSet

import msgspec
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from waltap.base.files.store import safe_name
from waltap_spark.config.properties import IcebergTableProperties
from waltap_spark.config.targets import FileLayout
from waltap_spark.errors import CatalogueUnreachable, FormatLimit, SessionTaken, VersionGone
from waltap_spark.formats.lake_sessions import ICEBERG
from waltap_spark.formats.merging import MergingFormat
from waltap_spark.formats.small_files.iceberg import (
    DataFile,
    IcebergTable,
    TableSnapshot,
    loaded,
    versions_of,
)
from waltap_spark.formats.small_files.rows import Action, left_to_spark
from waltap_spark.formats.stepwise import NOWHERE, CommitNote, TableCommit, is_missing
from waltap_spark.formats.table_format import CommitContext, TableChange, TableFormatContext, What
from waltap_spark.formats.work import VIEW, retyped
from waltap_spark.schema.expression import namespace_of, quoted
from waltap_spark.schema.schema import digits_of, sql_type
from waltap_spark.session.session import ROW_GROUP_BYTES, ROWS_UNSEEN
from waltap_spark.state.output import TableState, TargetTable

log = logging.getLogger(__name__)


_GROWS: Final = frozenset({("integer", "long"), ("float", "double")})

# Types in Spark's JSON that Iceberg lacks. A field may have the same name, which is no type.
_LACKS: Final = re.compile(r'(^|[tT]ype":)"(?:(byte|short)|time\(\d+\))"')


# The process that removes old versions knows which versions its own tables use. Other outputs of a
# shared target leave notes: each names the version of its output's last commit. Steps after that
# version are not in a commit yet, so they must stay.


def needed_since(
    versions: Iterable[TableSnapshot], named: Collection[int], own: str, silent_ms: float
) -> float:
    """Return the time of the oldest needed version, or infinity.

    ``versions``: newest first. ``named``: the versions that tables of the output ``own`` name.
    Other outputs count if they wrote after ``silent_ms``.
    """
    needed, latest = math.inf, dict[tuple[str, str], int]()
    for each in versions:
        number, made_ms = each.snapshot_id, each.timestamp_ms
        note = CommitNote.read(each.summary.get(KEY))
        if note is not None and note.waltap != own:
            table = note.waltap, note.table
            if table not in latest and made_ms > silent_ms:
                latest[table] = note.named_version
                needed = made_ms
            if latest.get(table) == NOWHERE:
                needed = made_ms  # no commit names a step of it yet
        if number in named or number in latest.values():
            needed = made_ms
    return needed


CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"

# Spark's name of the output's own Hadoop catalogue, if the profile names none.
OWN: Final = "waltap_iceberg"

OWN_SETTING: Final = f"spark.sql.catalog.{OWN}"

# Key of the note in a snapshot's summary, and of the owner in a table's properties.
KEY: Final = "waltap"

NOTED: Final = f"spark.sql.iceberg.snapshot-property.{KEY}"

# Merge-on-read: a change writes new rows and delete files, and compaction joins them.
TABLE: Final = {
    "format-version": "2",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.parquet.row-group-size-bytes": ROW_GROUP_BYTES,
    "write.parquet.row-group-check-min-record-count": ROWS_UNSEEN,
}

# Iceberg's operation of a rewrite, which leaves the rows unchanged.
HARMLESS: Final = frozenset({"replace"})

# Names of Iceberg's own metadata columns.
RESERVED: Final = frozenset(
    {
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "file_path", "pos", "row",
        "_change_type", "_change_ordinal", "_commit_snapshot_id", "_row_id",
        "_last_updated_sequence_number",
    }
)  # fmt: skip

# Iceberg reserves these names of mode columns, so it stores them under others.
CALLED: Final = {"_deleted": "_is_deleted"}

# The newest snapshots never expire: an unfinished commit of another thread may need older ones.
MIN_SNAPSHOTS: Final = 100

# Files this old that no snapshot names are from a killed driver; younger ones may belong to a
# running commit.
ORPHANS_S: Final = 3 * 86_400

# Versions of another output in a shared target expire if it wrote nothing for this long.
SILENT_S: Final = 7 * 86_400


class IcebergFormat(MergingFormat):
    """Tables of Apache Iceberg; writing needs the session's own JVM."""

    harmless = HARMLESS
    _properties: IcebergTableProperties

    def __init__(self, properties: IcebergTableProperties, context: TableFormatContext) -> None:
        super().__init__(properties, context)
        self._ready: WeakSet[SparkSession] = WeakSet()
        self._starting = Lock()
        # Identifier → a version that `replacing` made, and its files.
        self._files: dict[str, tuple[int, list[DataFile]]] = {}

    def own_identifier(self, table: TableState, what: What) -> str:
        """Return the name in our catalogue, which uses folder names."""
        return ".".join(map(quoted, [OWN, *map(safe_name, table.storage), what]))

    def evolve(self, commit: CommitContext, table: TableState, change: TableChange) -> TableState:
        """Refuse unsupported types, then evolve as `MergingFormat`."""

        def learn(before: TableState) -> TableState:
            learnt = change.learn(before)
            own = {CALLED[name] for name in learnt.mode.columns if name in CALLED}
            taken = sorted((RESERVED | own) & {name.lower() for name in learnt.columns})
            if taken:
                raise FormatLimit(
                    f"{table.name} has columns that Iceberg keeps: {', '.join(taken)}"
                )
            return learnt

        if self._properties.catalog and "/" in "".join(table.target):
            raise FormatLimit(f"the name of {table.name} is a path to Iceberg")
        return super().evolve(commit, table, dataclasses.replace(change, learn=learn))

    # --- tables -------------------------------------------------------------------------------------

    def is_case_sensitive(self, spark: SparkSession) -> bool:
        """Return whether the catalogue is known to respect case."""
        setting = f"spark.sql.catalog.{self._properties.catalog.partition('.')[0]}"
        kind = spark.conf.get(f"{setting}.type", "") or ""
        uri = spark.conf.get(f"{setting}.uri", "") or ""
        if kind == "jdbc":
            return uri.startswith(("jdbc:sqlite:", "jdbc:postgresql:"))
        return not self._properties.catalog or kind in ("hadoop", "nessie")

    def create(self, spark: SparkSession, at: str, columns: str, layout: FileLayout) -> None:
        if self._properties.catalog:
            with self._starting:  # catalogues look first, and insert then
                _twice(lambda: spark.sql(f"CREATE SCHEMA IF NOT EXISTS {namespace_of(at)}"))
        properties = {**TABLE, KEY: self._identity()}
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        divided = ", ".join(each.sql for each in layout.partition)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {at} ({columns}) USING iceberg"
            + (f" PARTITIONED BY ({divided})" if divided else "")
            + f" TBLPROPERTIES ({listed})"
        )
        if layout.cluster:
            # Each task sorts what it writes; an order over all of them costs a job more.
            order = ", ".join(map(quoted, layout.cluster))
            how = "DISTRIBUTED BY PARTITION LOCALLY" if divided else "LOCALLY"
            spark.sql(f"ALTER TABLE {at} WRITE {how} ORDERED BY {order}")
        self.sign(spark, at)

    def identity_of(self, spark: SparkSession, at: str) -> str | None:
        table = self._load(spark, at, is_there=False)
        return None if table is None else str(table.uuid())

    def rewriting(
        self,
        spark: SparkSession,
        target: TargetTable,
        names: Sequence[str],
        types: Mapping[str, str],
    ) -> Sequence[Action]:
        """Replace the columns, then rewrite all rows from the old version.

        Replacing the table would be one commit, but would end the sequence of its versions. Raises:
        FormatLimit for a column that partitions the table.
        """
        at, written = target.at, {name: sql_type(kind) for name, kind in types.items()}
        table = self._load(spark, at)
        for field in table.spec().fields():
            name = table.schema().findColumnName(field.sourceId())
            if name in types:  # writers of such a table fail, whatever divides it from then on
                raise FormatLimit(f"{name} partitions {at}, and is {written[name]} now")

        def exchange() -> None:
            gone = [("deleteColumn", name) for name in types]
            with self._transaction(spark, at) as transaction, _unordered(spark, transaction, types):
                self._update(transaction, [*gone, *_added(spark, written)])

        def fill() -> None:
            listed = ", ".join(map(quoted, names))
            retyped(self.at_version(spark, target), names, types).createOrReplaceTempView(VIEW)
            spark.sql(f"INSERT OVERWRITE {at} ({listed}) SELECT * FROM {VIEW}")

        return exchange, fill

    def rename_column(self, spark: SparkSession, at: str, old: str, new: str) -> None:
        self._change_columns(spark, at, [("renameColumn", old, new)])

    def drop_columns(self, spark: SparkSession, at: str, names: Sequence[str]) -> None:
        self._change_columns(spark, at, [("deleteColumn", name) for name in names])

    def add_columns(self, spark: SparkSession, at: str, columns: Mapping[str, str]) -> None:
        types = {name: sql_type(self.stored(kind)) for name, kind in columns.items()}
        self._change_columns(spark, at, _added(spark, types))

    def add_fields(
        self, spark: SparkSession, at: str, fields: Sequence[tuple[tuple[str, ...], str]]
    ) -> None:
        changes = (
            ("addColumn", ".".join(way[:-1]), way[-1], _iceberg_type(spark, sql_type(kind)))
            for way, kind in fields
        )
        self._change_columns(spark, at, changes)

    def widen_column(self, spark: SparkSession, at: str, name: str, kind: str) -> None:
        type_ = _iceberg_type(spark, sql_type(self.stored(kind)))
        self._change_columns(spark, at, [("updateColumn", name, type_)])

    def _change_columns(
        self, spark: SparkSession, at: str, changes: Iterable[tuple[object, ...]]
    ) -> None:
        with self._transaction(spark, at) as transaction:
            self._update(transaction, changes)

    @staticmethod
    def _update(transaction: Any, changes: Iterable[tuple[object, ...]]) -> None:
        """Call methods of Iceberg's ``UpdateSchema`` (name, arguments)."""
        columns = transaction.updateSchema()
        for method, *given in changes:
            columns = getattr(columns, str(method))(*given)
        columns.commit()

    def clear(self, spark: SparkSession, at: str) -> None:
        jvm = _jvm(spark)
        table = self._load(spark, at)
        deletion = table.newDelete().set(KEY, spark.conf.get(NOTED))
        rows = jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
        deletion.deleteFromRowFilter(rows).commit()

    @contextlib.contextmanager
    def _transaction(self, spark: SparkSession, at: str) -> Iterator[Any]:
        """Commit Iceberg's transaction with an empty snapshot and the note."""
        transaction = self._load(spark, at).newTransaction()
        yield transaction
        transaction.newFastAppend().set(KEY, spark.conf.get(NOTED)).commit()
        transaction.commitTransaction()

    # --- rows ---------------------------------------------------------------------------------------

    def driver_table(
        self, spark: SparkSession, target: TargetTable, *, small: bool
    ) -> IcebergTable | None:
        """Return the table, unless it is not ``small``.

        Versions that are made beside SQL have the note of `noted`.
        """
        self._require_iceberg(spark)
        table = IcebergTable(
            spark,
            target.at,
            is_cached=self._in_catalogue,
            note=lambda: {KEY: spark.conf.get(NOTED) or ""},
            listed=self._files,
        )
        return table if not small or table.is_small else None

    # --- versions -----------------------------------------------------------------------------------

    def commits(self, spark: SparkSession, target: TargetTable) -> list[TableCommit] | None:
        """Return snapshots from the newest back, without rolled-back ones.

        Raises: FormatNotReady.
        """
        table = self._load(spark, target.at, is_there=False)
        if table is None:
            return None
        if self._in_catalogue:  # which may give an older version that it has read before
            table.refresh()
        found: list[TableCommit] = []
        snapshot = table.currentSnapshot()
        maker = table.properties().get(KEY)
        if snapshot is None and maker != self._identity():  # another program created it
            made = None if maker is None else CommitNote(waltap=maker, step=0, source=maker)
            return [TableCommit(0, "CREATE", made)]
        parent = None
        while snapshot is not None and snapshot.snapshotId() != target.version:
            summary = snapshot.summary()
            note = CommitNote.read(summary.get(KEY))
            found.append(
                TableCommit(snapshot.snapshotId(), snapshot.operation() or "unknown", note)
            )
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        if snapshot is None and target.version >= 0 and parent != target.version:
            return None  # the version has expired, and later snapshots may have expired with it
        return found[::-1]

    @contextlib.contextmanager
    def noted(self, spark: SparkSession, note: CommitNote) -> Iterator[None]:
        self._require_iceberg(spark)  # another session may have looked into the table before
        spark.conf.set(NOTED, msgspec.json.encode(note).decode())
        try:
            yield
        finally:
            spark.conf.unset(NOTED)

    def estimated_rows(self, spark: SparkSession, table: TableState) -> int | None:
        """Return rows by Spark's statistics, with the catalogue loaded."""
        if table.stored_table.targets:
            self._require_iceberg(spark)
        return super().estimated_rows(spark, table)

    def at_version(self, spark: SparkSession, target: TargetTable) -> DataFrame:
        """Return a snapshot's rows. Raises: TargetChanged, VersionGone if it expired."""
        self._require_iceberg(spark)
        for refreshed in (False, True):
            try:
                return super().at_version(spark, target)
            except Exception as error:
                if is_missing(error):
                    raise self._gone(target) from error
                if "snapshot" not in str(error):
                    raise
                gone = error
            if not refreshed:  # a catalogue may cache older metadata
                spark.sql(f"REFRESH TABLE {target.at}")
        text = f"{target.at} no longer has snapshot {target.version}"
        raise VersionGone(text, oldest="the oldest snapshot", newest="the last commit") from gone

    def newest_of(self, spark: SparkSession, at: str, versions: Collection[int]) -> int:
        """Compare sequence numbers: snapshot ids have no order."""
        if len(versions) == 1:
            return next(iter(versions))
        table = self._load(spark, at)
        turns = {
            each: table.snapshot(each).sequenceNumber() for each in versions if table.snapshot(each)
        }
        return max(turns, key=lambda each: turns[each])

    def sign(self, spark: SparkSession, at: str) -> None:
        with self._transaction(spark, at):
            pass

    def stored_name(self, name: str) -> str:
        """Return another name for ``_deleted``, which Iceberg reserves."""
        return CALLED.get(name, name)

    # --- types --------------------------------------------------------------------------------------

    def widens(self, old: str, new: str) -> bool:
        before, after = json.loads(old), json.loads(new)
        if not isinstance(before, str) or not isinstance(after, str):
            return False
        had, decimal = digits_of(before), digits_of(after)
        if had is not None and decimal is not None:
            return decimal[1] == had[1] and decimal[0] >= had[0]
        return (before, after) in _GROWS

    def stored(self, kind: str) -> str:
        """Return types that Iceberg has.

        Smaller integers become 32 bits, and times of day become text.
        """
        return _LACKS.sub(lambda found: f'{found[1]}"{"integer" if found[2] else "string"}"', kind)

    # --- maintenance --------------------------------------------------------------------------------

    def files(self, spark: SparkSession, at: str) -> int:
        summary = self._load(spark, at).currentSnapshot().summary()
        counts = (summary.get(f"total-{kind}-files") for kind in ("data", "delete"))
        return sum(int(count or 0) for count in counts)

    def compact_files(self, spark: SparkSession, at: str) -> None:
        """Rewrite small data files and position deletes; expire old versions."""
        done = False
        with left_to_spark(at):
            own = self.driver_table(spark, TargetTable(at=at), small=False)
            done = own is not None and own.join()
        table = self._load(spark, at)
        if not done:
            actions = _jvm(spark).org.apache.iceberg.spark.actions.SparkActions.get(_java(spark))
            with _active(spark):
                files = actions.rewriteDataFiles(table)
                (files.sort() if table.sortOrder().isSorted() else files).execute()
                actions.rewritePositionDeletes(table).execute()
            table.refresh()
        self._expire(table, at)

    def vacuum(self, spark: SparkSession, at: str) -> None:
        """Expire snapshots, and remove files that no snapshot names."""
        table = self._load(spark, at)
        self._expire(table, at)
        actions = _jvm(spark).org.apache.iceberg.spark.actions.SparkActions.get(_java(spark))
        before = round((time.time() - ORPHANS_S) * 1000)
        try:
            with _active(spark):
                actions.deleteOrphanFiles(table).olderThan(before).execute()
        except Py4JJavaError as error:  # a catalogue's storage that Hadoop cannot list
            log.warning("%s: orphan files were not looked for: %s", at, error.java_exception)

    def _expire(self, table: Any, at: str) -> None:
        """Expire snapshots by the retention and the maximum number.

        A snapshot that a table names stays, with all later ones, since other sources of the present
        commit begin there. This includes tables of other outputs that share the target.
        """
        retained = max(self._properties.retention_snapshots, MIN_SNAPSHOTS)
        limit = round((time.time() - self._properties.retention_hours * 3600) * 1000)
        targets = [
            t for each in self._tables().values() for t in each.stored_table.targets.values()
        ]
        named = {target.version for target in targets if target.at == at}
        there = versions_of(table)
        times = [each.timestamp_ms for each in there]
        silent = (time.time() - SILENT_S) * 1000
        needed = needed_since(there, named, self._identity(), silent)
        if len(times) > retained:
            limit = max(limit, times[retained - 1])
        limit = int(min(limit, needed))
        if times and times[-1] < limit and len(times) > MIN_SNAPSHOTS:
            table.expireSnapshots().expireOlderThan(limit).retainLast(MIN_SNAPSHOTS).commit()

    # --- sessions -----------------------------------------------------------------------------------

    def _load(self, spark: SparkSession, at: str, *, is_there: bool = True) -> Any:
        self._require_iceberg(spark)
        _jvm(spark)
        try:
            return loaded(spark, at)
        except AnalysisException as error:
            if is_there or not is_missing(error):
                raise
            return None

    def _require_iceberg(self, spark: SparkSession) -> None:
        """Require Iceberg in the session, and our catalogue if none is set."""
        if spark in self._ready:
            return
        with self._starting:
            self._start(spark)
        self._ready.add(spark)

    def _start(self, spark: SparkSession) -> None:
        """Set our own catalogue, or load the named one.

        Loading shows a failure that Iceberg would hide. Raises: SessionTaken, CatalogueUnreachable.
        """
        own = {
            OWN_SETTING: CATALOG,
            f"{OWN_SETTING}.type": "hadoop",
            f"{OWN_SETTING}.warehouse": self._output.uri("iceberg"),
            f"{OWN_SETTING}.cache-enabled": "false",
        }
        if not self._properties.catalog:
            self._require_free(spark, own[f"{OWN_SETTING}.warehouse"])
            for name, value in own.items():
                spark.conf.set(name, value)
        jvm = getattr(spark, "_jvm", None)
        if jvm is None:
            return
        if "JavaClass" not in type(jvm.org.apache.iceberg.Snapshot).__name__:
            raise ICEBERG.not_ready("this Spark session has no Apache Iceberg", pyspark.__version__)
        name = self._properties.catalog.partition(".")[0] or OWN
        try:
            with _active(spark):
                _twice(lambda: _java(spark).sessionState().catalogManager().catalog(name))
        except (Py4JJavaError, PySparkException) as error:
            text = f"the catalogue {name} cannot be loaded: {_reason(error)}"
            raise CatalogueUnreachable(text, catalog=name) from None

    @staticmethod
    def _require_free(spark: SparkSession, warehouse: str) -> None:
        """Require that our catalogue serves no other output.

        A session cannot change a loaded catalogue. Raises: SessionTaken.
        """
        had = spark.conf.get(f"{OWN_SETTING}.warehouse", None)
        jvm = getattr(spark, "_jvm", None)
        if had in (None, warehouse):
            return
        loaded = True  # perhaps; a session of Spark Connect does not say
        if jvm is not None:
            manager = _java(spark).sessionState().catalogManager()
            loaded = manager.listCatalogs(jvm.scala.Option.apply(None)).contains(OWN)
        if loaded:
            text = f"this Spark session has the Iceberg tables of another output open, {had}"
            raise SessionTaken(text, catalog=OWN)


def _twice(act: Action) -> None:
    """Run an action twice if another pipeline created the same object."""
    try:
        act()
    except (Py4JJavaError, PySparkException):
        act()


def _reason(error: BaseException) -> str:
    """Return the first lines of an error and its cause."""
    java = getattr(error, "java_exception", None)
    texts = [str(error if java is None else java.toString()).strip().splitlines()[0]]
    cause = None if java is None else java.getCause()
    if cause is not None:
        texts.append(str(cause.toString()).splitlines()[0])
    return "; ".join(texts)


def _jvm(spark: SparkSession) -> Any:
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise ICEBERG.not_ready(
            "Iceberg tables are not written by a session of Spark Connect", pyspark.__version__
        )
    return jvm


def _java(spark: SparkSession) -> Any:
    return spark._jsparkSession  # noqa: SLF001 - Iceberg's own entry


@contextlib.contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make ``spark`` the active session for Java code outside SQL."""
    sessions = _jvm(spark).org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(_java(spark))
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


@contextlib.contextmanager
def _unordered(spark: SparkSession, transaction: Any, types: Mapping[str, str]) -> Iterator[None]:
    """Omit the write order in the block, for some types."""
    table = transaction.table()
    order = [
        (table.schema().findColumnName(each.sourceId()), each)
        for each in table.sortOrder().fields()
    ]
    if all(name not in types for name, _field in order):
        yield
        return
    transaction.replaceSortOrder().commit()
    yield
    iceberg, by = _jvm(spark).org.apache.iceberg, transaction.replaceSortOrder()
    for name, field in order:
        kind = transaction.table().schema().findType(name)
        transform = iceberg.transforms.Transforms.fromString(kind, field.transform().toString())
        term = iceberg.expressions.Expressions.transform(name, transform)
        add = by.asc if field.direction().toString() == "ASC" else by.desc
        by = add(term, field.nullOrder())
    by.commit()


def _added(spark: SparkSession, types: Mapping[str, str]) -> Iterator[tuple[object, ...]]:
    """Yield the changes that add columns of ``types`` (SQL)."""
    for name, kind in types.items():
        yield "addColumn", None, name, _iceberg_type(spark, kind)


def _iceberg_type(spark: SparkSession, kind: str) -> Any:
    jvm = _jvm(spark)
    spark_type = jvm.org.apache.spark.sql.types.DataType.fromDDL(kind)
    return jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(spark_type)
