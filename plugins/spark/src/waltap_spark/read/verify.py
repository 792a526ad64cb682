"""Spark's side of a comparison with the source.

`waltap_sinks.comparison` compares; Spark sums up. Of row versions only the open ones count, and
rows that stay after their deletion do not count (`waltap_spark.state.modes`).
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap.base.files.store import FileStore
from waltap.changes.decode.builtin_types import BUILTIN_TYPES
from waltap.ports.sink.verification import ComparedTable, Row, Rows, TableReader, by_key
from waltap_sinks.changelog.reader import ChangeLog
from waltap_sinks.comparison import HASH_DIGITS, row_text
from waltap_sinks.comparison.common_text import ARRAYS, duration, finite, server_text, source_text
from waltap_sinks.comparison.compare import compare as compared
from waltap_sinks.comparison.differences import TableDifferences
from waltap_sinks.comparison.source import CaptureScope, ComparisonSource
from waltap_sinks.comparison.source import missing_tables as missing_in
from waltap_sinks.comparison.table_readers import bucket_of
from waltap_spark.config.properties import SparkProperties
from waltap_spark.errors import TableUnknown
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.planning.column_identity import PER_INCARNATION
from waltap_spark.read.live import LiveTables, open_tables
from waltap_spark.schema.expression import quoted
from waltap_spark.schema.schema import digits_of
from waltap_spark.session.failures import UNSAVED_OUTPUT, explained_failures
from waltap_spark.session.java import require_pyspark
from waltap_spark.session.session import quiet, start_session
from waltap_spark.state.output import TableState

if TYPE_CHECKING:
    from psycopg import Connection


# SQL of PostgreSQL and SQL of Spark for the common text of one column, or NULL.
Expressions = tuple[str, str]

_INSTANTS: Final = ("timestamp", "timestamp_ntz")
_MOMENTS: Final = frozenset({"date", "timestamp", "timestamptz"})
# All are cast to floats and to numeric; money only to the latter, oid to neither.
_NUMBERS: Final = frozenset({"int2", "int4", "int8", "float4", "float8", "numeric"})
_PLAIN: Final = frozenset({"int2", "int4", "int8", "oid", "bool", "date", "time", "uuid"})


def expressions(name: str, pg_type: str, spark_type: str) -> Expressions | None:
    """Return both SQL expressions for a column's text."""
    source = '"' + name.replace('"', '""') + '"'
    spark = quoted(name)
    text, kind = f"cast({spark} as string)", json.loads(spark_type)
    if isinstance(kind, dict):
        if kind.get("type") == "array" and pg_type in ARRAYS:
            return source_text(source, pg_type), f"to_json({spark})"
        return None
    if pg_type == "hstore":  # its JSON has Java's order
        return None
    is_decimal = digits_of(kind) is not None
    is_number = is_decimal or kind in ("double", "float")
    from_types = _NUMBERS if is_number else _MOMENTS if kind in _INSTANTS else BUILTIN_TYPES
    if pg_type in BUILTIN_TYPES.keys() - from_types and not (is_decimal and pg_type == "money"):
        return None  # the source's column has another type by now: no cast leads there
    if kind in ("double", "float"):
        return _bits(source, spark, kind)
    if kind == "string" and pg_type == "interval":
        return finite(source, duration(source)), spark
    if kind == "string":
        return f"{source}::text" if pg_type == "bool" else server_text(source), spark
    if is_decimal:
        # Spark has no trim_scale
        cut = f"regexp_replace({text}, '(\\\\.[0-9]*?)0+$', '$1')"
        plain = source_text(source, "numeric")
        return plain, f"regexp_replace({cut}, '\\\\.$', '')"
    if kind in _INSTANTS:
        own = "timestamptz" if pg_type == "timestamptz" else "timestamp"
        return source_text(source, own), f"date_format({spark}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
    if kind == "binary" and pg_type == "bytea":
        return source_text(source, pg_type), f"lower(hex({spark}))"
    return (source_text(source, pg_type), text) if pg_type in _PLAIN else None


def _bits(source: str, spark: str, kind: str) -> Expressions:
    """Return expressions for the bits of a floating point value."""
    size, java = (
        (8, "Double', 'doubleToLongBits") if kind == "double" else (4, "Float', 'floatToIntBits")
    )
    digits = f"lpad(lower(hex(cast(java_method('java.lang.{java}', {spark}) as bigint))), 16, '0')"
    bits = f"CASE WHEN {spark} IS NULL THEN NULL ELSE right({digits}, {2 * size}) END"
    return source_text(f"{source}::float{size}", f"float{size}"), bits


def compare(
    connection: "Connection[Any]",
    tables: LiveTables,
    names: Sequence[str] | None = None,
    *,
    without: Sequence[str] = (),
    patience_s: float = 0.0,
    publications: Sequence[str] = (),
    log: ChangeLog | None = None,
    stored_offset: Callable[[], int | None] = lambda: None,
) -> list[TableDifferences]:
    """Compare ``names``, by default all tables, with the source.

    ``connection`` is in autocommit. The source counts the rows that ``publications`` publish.
    Differences are read again for ``patience_s``. With ``log`` and ``stored_offset`` the tables of
    an idle pipeline are not late.
    """
    their_tables = SparkTables(tables, names or (), log=log)
    their_tables.stored_offset = stored_offset
    return compared(
        connection,
        their_tables,
        tables=names or (),
        without=without,
        patience_s=patience_s,
        publications=publications,
    )


def missing_tables(
    connection: "Connection[Any]", tables: LiveTables, without: Sequence[str] = ()
) -> list[str]:
    """Return tables of the source with rows that Spark lacks.

    A profile decides whether Spark should have them.
    """
    anything = CaptureScope(captures=lambda _schema, _table: True, unsure="no profile says")
    found = missing_in(ComparisonSource(connection), SparkTables(tables).tables(), anything)
    return [each.table for each in found if each.table not in without]


def open_verification_source(properties: SparkProperties, pipeline: str) -> "SparkTables":
    """Start Spark over the tables of a pipeline."""
    require_pyspark()
    memory = properties.settings.get("spark.driver.memory", "1g")
    with quiet() as notes, explained_failures(memory, UNSAVED_OUTPUT):
        spark = start_session(
            f"waltap verify {pipeline}",
            master=properties.master,
            settings=properties.settings,
            notes=notes,
            more=FormatChoice(properties.format, properties.format_properties).settings,
            storage=properties,
        )
    tables = open_tables(spark, FileStore(properties.tables, properties))
    log = ChangeLog(FileStore(properties.changelog, properties))
    return SparkTables(tables, log=log, owns_session=True, memory=memory)


class SparkTables:
    """Spark's tables at the newest commit, and the ``wanted`` names."""

    def __init__(
        self,
        tables: LiveTables,
        wanted: Sequence[str] = (),
        *,
        log: ChangeLog | None = None,
        owns_session: bool = False,
        memory: str | None = None,
    ) -> None:
        self._tables, self._wanted, self._owns_session = tables, wanted, owns_session
        self._log, self._memory = log, memory
        # Returns the stored offset: the log has everything before it, also where nothing was written.
        self.stored_offset: Callable[[], int | None] = lambda: None

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Turn Spark's failures in the block into errors with a code."""
        return explained_failures(self._memory, UNSAVED_OUTPUT)

    def close(self) -> None:
        """Stop the session, unless it is the caller's."""
        if self._owns_session:
            with self.explained():
                self._tables.spark.stop()

    def position(self) -> int | None:
        """Return the end LSN that every unsuspended table has applied.

        With all of the log applied it is the stored offset, if that is later.
        """
        stored, state = self.stored_offset(), self._tables.refresh().state
        if state is None:
            return None
        applied = state.log_position
        if stored is None or stored <= applied.end_lsn or self._log is None:
            return applied.end_lsn
        # The log's end is read after the offset, so it is not before it.
        return stored if applied >= self._log.end else applied.end_lsn

    def tables(self) -> list[ComparedTable]:
        states = self._tables.refresh().states
        suspended = [name for name, each in states.items() if each.failed]
        names = dict.fromkeys((*self._wanted, *self._tables.names, *suspended))
        return [self._compared(name, states.get(name)) for name in names]

    @staticmethod
    def _compared(name: str, state: TableState | None) -> ComparedTable:
        if state is None:
            return ComparedTable(name=name)
        # column ids of earlier tables of this name match no present column
        now = {name: divmod(number, PER_INCARNATION) for name, number in state.ids.items()}
        numbers = {n: name for name, (which, n) in now.items() if which == state.incarnation}
        not_compared = ""
        if state.mode.name == "append":
            not_compared = "it has its history alone (mode append)"
        elif state.mode.deletes == "kept":
            not_compared = "rows that are deleted are kept"
        lag_reason = ""
        if state.failed:
            why = f" for {state.failed.split()[0]}" if state.failed.startswith("WT-") else ""
            at = f" at {state.log_position}" if state.log_position else ""
            lag_reason = f"it is suspended{why}{at}; see waltap spark status"
        return ComparedTable(
            name=name,
            oid=state.oid,
            key=state.key,
            columns=numbers,
            not_compared=not_compared,
            lag_reason=lag_reason,
        )

    def live_rows(self, name: str) -> DataFrame:
        """Return the rows of the newest commit. Raises: TableUnknown."""
        return self._tables.refresh().live_rows(name, allow_stale=True)

    def common(self, table: ComparedTable, column: str, called: str, type_: str) -> str | None:
        """Return the source's SQL of `canonical`; None if hidden."""
        state = self._tables.states.get(table.name)
        if state is not None and called in state.hidden:
            return None
        kind = None if state is None else state.columns.get(called)
        if kind is None:  # Spark has not seen a row with it: all of its values are null
            return f"{column}::text"
        found = expressions(column[1:-1].replace('""', '"'), type_, kind)
        return None if found is None else found[0]

    def reader(
        self, table: ComparedTable, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> TableReader:
        state = self._tables.states.get(table.name)
        kinds = {} if state is None else state.columns
        texts = {}
        for called, type_ in columns:
            found = expressions(called, type_, kinds[called]) if called in kinds else None
            texts[called] = "cast(null as string)" if found is None else found[1]
        return _SparkTable(self, table.name, texts, key)


class _SparkTable:
    """One table; each call reads the newest commit."""

    def __init__(
        self, tables: SparkTables, name: str, texts: dict[str, str], key: Sequence[str]
    ) -> None:
        self._tables, self._name, self._texts = tables, name, texts
        self._key = [list(texts).index(name) for name in key]

    def _collected(self, result: Callable[[DataFrame], DataFrame]) -> list[Any]:
        """Return ``result``'s rows, none for a missing table.

        It gets columns t0, t1, … of texts, and ``bucket``.
        """
        with self._tables.explained():
            try:
                frame = self._tables.live_rows(self._name)
            except TableUnknown:
                return []
            # texts first: Spark wants no non-deterministic method, as it calls Java's, in a sum
            texts = frame.selectExpr(
                *(f"{text} AS t{n}" for n, text in enumerate(self._texts.values()))
            )
            key = row_text([f"t{n}" for n in self._key])
            bucket = f"substr(md5(encode({key}, 'UTF-8')), 1, 3) AS bucket"
            found: list[Any] = result(texts.selectExpr("*", bucket)).collect()
            return found

    @property
    def _hash(self) -> str:
        """Spark's SQL for PostgreSQL's row sum."""
        text = row_text([f"t{n}" for n in range(len(self._texts))])
        one = f"conv(substr(md5(encode({text}, 'UTF-8')), 1, {HASH_DIGITS}), 16, 10)"
        return f"cast(coalesce(sum(cast({one} as decimal(38,0))), 0) as string)"

    def total(self) -> tuple[int, int]:
        found = self._collected(lambda frame: frame.selectExpr("count(1)", self._hash))
        return (int(found[0][0]), int(found[0][1])) if found else (0, 0)

    def sums(self) -> dict[str, tuple[int, int]]:
        found = self._collected(
            lambda frame: frame.groupBy("bucket").agg(F.count(F.lit(1)), F.expr(self._hash))
        )
        return {row[0]: (int(row[1]), int(row[2])) for row in found}

    def rows(self, buckets: Sequence[str]) -> Rows:
        found = self._collected(
            lambda frame: frame.where(frame["bucket"].isin(list(buckets))).drop("bucket")
        )
        return by_key((tuple(row[n] for n in self._key), tuple(row)) for row in found)

    def of_keys(self, keys: set[Row]) -> Rows:
        return self.rows(sorted({bucket_of(key) for key in keys}))
