"""Turn Parquet change sets into a table's rows, lazily.

`waltap_spark.compact.compaction` computes the net changes of pending rows for readers. No function here
starts a Spark job.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from waltap_spark.compact.compaction import (
    after_last_truncate,
    compacted,
    copies,
    of_touched_keys,
    widened,
)
from waltap_spark.compact.timeline import fresh, rows_after
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.schema.expression import GONE, column_of
from waltap_spark.schema.schema import LOG_FIELDS, log_struct, struct_of
from waltap_spark.state.output import BasePart, ChangeSet, TableState


@dataclass(frozen=True)
class RetainedKeys:
    """Keys in later groups of a snapshot.

    The first group removes the table's rows that it lacks, except these.
    """

    keys: DataFrame
    groups: Sequence[SegmentGroup]

    def of(
        self, base: DataFrame, key: Sequence[str], how: Literal["left_semi", "left_anti"]
    ) -> DataFrame:
        """Return rows of ``base`` with these keys, or the others."""
        return of_touched_keys(base, key, self.keys, self.groups, how)


Uri = Callable[[str], str]


def changes_frame(
    spark: SparkSession,
    table: TableState,
    sets: Iterable[ChangeSet],
    uri: Uri,
    *,
    filled: bool = False,
) -> DataFrame:
    """Return the rows of ``sets`` with all columns the table ever had.

    The log's own columns follow. ``filled``: rows from before a column was added have its
    default, as in the source; otherwise null, as in the log.
    """
    by_version: dict[str, list[str]] = {}
    for change in sets:
        by_version.setdefault(change.fingerprint, []).append(uri(change.path))
    frames = [
        widened(
            spark.read.schema(log_struct(table.file_schemas[fingerprint])).parquet(*paths),
            table,
            table.file_schemas[fingerprint],
            table.version_ids.get(fingerprint, {}),
            filled=filled,
        )
        for fingerprint, paths in by_version.items()
    ]
    if not frames:
        return spark.createDataFrame([], log_struct(table.columns))
    return functools.reduce(lambda one, other: one.unionByName(other), frames)


def current_frame(
    spark: SparkSession,
    table: TableState,
    uri: Uri,
    *,
    pending: DataFrame | None = None,
    after: DataFrame | None = None,
    spared: RetainedKeys | None = None,
) -> DataFrame:
    """Return the table's rows: its base with the pending changes applied.

    ``pending`` replaces the stored pending sets; ``after`` are their net changes. Rows of
    ``spared`` do not end because ``pending`` lacks them.
    """
    base = _base(spark, table, uri)
    if not table.pending:
        return base
    rows = pending
    if rows is None:
        rows = changes_frame(spark, table, table.pending, uri, filled=True)
    if table.mode.keeps_past and spared is not None:
        untouched = spared.of(base, table.key, "left_anti")
        found = rows_after(table, table.pending, rows, untouched)
        return found.unionByName(spared.of(base, table.key, "left_semi"))
    if table.mode.keeps_past:
        return rows_after(table, table.pending, rows, base)
    # A truncate removes the whole base; rows before the last one are gone, too.
    truncated = any("t" in change.operations for change in table.pending)
    base = base.limit(0) if truncated else base
    if after is not None:
        return _latest(table, base, rows, after)
    rows = after_last_truncate(rows) if truncated else rows
    if not table.key:
        return copies(table, table.pending, base, rows)
    return _latest(table, base, rows, compacted(table, table.pending, rows, base))


def _base(spark: SparkSession, table: TableState, uri: Uri) -> DataFrame:
    alike: dict[tuple[object, ...], list[BasePart]] = {}
    for part in table.base:
        shape = tuple((name, kind, part.ids.get(name)) for name, kind in part.columns.items())
        alike.setdefault((part.logged, *shape), []).append(part)
    frames = []
    for parts in alike.values():
        columns, logged = parts[0].columns, parts[0].logged
        rest = LOG_FIELDS if logged else table.mode.columns
        stored = spark.read.schema(struct_of({**columns, **rest}))
        rows = stored.parquet(*(uri(each.path) for each in parts))
        frame = widened(rows, table, columns, parts[0].ids, filled=True, rest=rest)
        frames.append(fresh(table, frame) if logged else frame)
    if not frames:
        return spark.createDataFrame([], struct_of(table.row_columns))
    return functools.reduce(lambda one, other: one.unionByName(other), frames)


def _latest(table: TableState, base: DataFrame, rows: DataFrame, after: DataFrame) -> DataFrame:
    """Return the base with the rows of touched keys replaced."""
    own = [column_of(name) for name in table.row_columns]
    untouched = of_touched_keys(base, table.key, rows, table.pending, "left_anti")
    alive = after.where(f"not {GONE}")
    return untouched.select(*own).unionByName(alive.select(*own))
