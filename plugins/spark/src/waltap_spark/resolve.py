"""From change sets to the rows of a table: the latest of every key, as one lazy DataFrame.

Rows are put in order by (`_epoch`, `_commit_lsn`, `_seq`, `_sub`). A value that the server did not
send (`_unchanged`) is the last one sent for that key, in the pending rows or else in the base. Nothing
here starts a Spark job.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from waltap_spark.column_identity import file_column, older_value
from waltap_spark.expression import column_of, order, sent, the_same
from waltap_spark.moves import alive_keys
from waltap_spark.output import BasePart, ChangeSet, TableState
from waltap_spark.schema import LOG_FIELDS, common_type, log_struct, struct_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["changes_frame", "current_frame"]

Uri = Callable[[str], str]


def changes_frame(
    spark: "SparkSession",
    table: TableState,
    sets: Iterable[ChangeSet],
    uri: Uri,
    *,
    filled: bool = False,
) -> "DataFrame":
    """Return the rows of ``sets`` with all columns the table ever had, then the log's own.

    ``filled``: rows that were written before a column was added have its default in it, as in the
    source; otherwise null, as in the log.
    """
    by_version: dict[str, list[str]] = {}
    for change in sets:
        by_version.setdefault(change.fingerprint, []).append(uri(change.path))
    frames = [
        _widened(
            spark.read.schema(log_struct(table.versions[fingerprint])).parquet(*paths),
            table,
            table.versions[fingerprint],
            table.version_ids.get(fingerprint, {}),
            filled=filled,
        )
        for fingerprint, paths in by_version.items()
    ]
    if not frames:
        return spark.createDataFrame([], log_struct(table.columns))
    return functools.reduce(lambda left, right: left.unionByName(right), frames)


def current_frame(
    spark: "SparkSession",
    table: TableState,
    uri: Uri,
    *,
    pending: "DataFrame | None" = None,
) -> "DataFrame":
    """Return the rows that the table holds: its base with the pending changes applied.

    ``pending`` stands in for the pending sets as they are stored.
    """
    base = _base(spark, table, uri)
    if not table.pending:
        return base
    rows = pending
    if rows is None:
        rows = changes_frame(spark, table, table.pending, uri, filled=True)
    if any("t" in change.operations for change in table.pending):
        base, rows = base.limit(0), _after_last_truncate(rows)
    if not table.key:
        return _multiset(table, base, rows)
    return _latest(table, base, rows)


def _base(spark: "SparkSession", table: TableState, uri: Uri) -> "DataFrame":
    alike: dict[tuple[tuple[str, str, int | None], ...], list[BasePart]] = {}
    for part in table.base:
        shape = tuple((name, kind, part.ids.get(name)) for name, kind in part.columns.items())
        alike.setdefault(shape, []).append(part)
    frames = []
    for parts in alike.values():
        columns = parts[0].columns
        stored = spark.read.schema(struct_of(columns)).parquet(*(uri(each.path) for each in parts))
        frames.append(_widened(stored, table, columns, parts[0].ids, log=False, filled=True))
    if not frames:
        return spark.createDataFrame([], struct_of(table.columns))
    return functools.reduce(lambda left, right: left.unionByName(right), frames)


def _widened(
    frame: "DataFrame",
    table: TableState,
    has: Mapping[str, str],
    ids: Mapping[str, int],
    *,
    log: bool = True,
    filled: bool,
) -> "DataFrame":
    """Return ``frame``, whose columns are ``has`` by the numbers ``ids``, with those of ``table``: by
    their present names, cast where it has a narrower one, and where it has none null, or what older
    rows have."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    kinds = {field.name: field.dataType for field in struct_of(table.columns).fields}
    columns = []
    called: dict[str, str] = {}
    for name, kind in table.columns.items():
        stored = file_column(table, has, ids, name)
        if stored is None:
            text = older_value(table, ids, name) if filled else None
            column = F.unhex(F.lit(text)) if kind == '"binary"' else F.lit(text).cast(kinds[name])
        elif has[stored] == kind:
            column = column_of(stored)
        elif common_type(has[stored], kind) is None and kind != '"string"':
            column = column_of(stored).try_cast(kinds[name])
        else:
            column = column_of(stored).cast(kinds[name])
        columns.append(column.alias(name))
        if stored is not None and stored != name:
            called[stored] = name
    if log:
        columns += [
            _called(called) if name == "_unchanged" and called else column_of(name)
            for name in LOG_FIELDS
        ]
    return frame.select(*columns)


def _called(names: Mapping[str, str]) -> "Column":
    """Return `_unchanged` with the present names of columns that were renamed."""
    from pyspark.sql import functions as F  # noqa: N812

    def present(name: "Column") -> "Column":
        found = name
        for old, new in names.items():
            found = F.when(name == F.lit(old), F.lit(new)).otherwise(found)
        return found

    return F.transform("_unchanged", present).alias("_unchanged")


def _after_last_truncate(rows: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    last = rows.where("_op = 't'").agg(F.max(order()).alias("_truncated"))
    return rows.crossJoin(F.broadcast(last)).where(order() > F.col("_truncated")).drop("_truncated")


def _latest(table: TableState, base: "DataFrame", rows: "DataFrame") -> "DataFrame":
    """Return the base with, per key, the last of ``rows`` in place of what it held."""
    from pyspark.sql import functions as F  # noqa: N812

    key = list(table.key)
    partial = [name for change in table.pending for name in change.unchanged]
    partial = [name for name in dict.fromkeys(partial) if name not in key]
    whole = [name for name in table.columns if name not in key and name not in partial]
    crossed = any(change.crossed for change in table.pending)
    when = F.when(F.col("_op") != "d", order()) if crossed else order()
    wanted = [F.max_by(F.struct("_op", *map(column_of, whole)), when).alias("__last")]
    wanted += [
        F.max_by(F.struct(column_of(name).alias("value")), F.when(sent(name), order())).alias(
            f"__sent{n}"
        )
        for n, name in enumerate(partial)
    ]
    last = rows.groupBy(*map(column_of, key)).agg(*wanted)
    keys = last.select(*(column_of(name).alias(f"__key{n}") for n, name in enumerate(key)))
    keys = F.broadcast(keys) if _small(table) else keys
    touched = _match(key, "__key")
    kept = base.join(keys, touched, "left_anti")
    if crossed:
        standing = alive_keys(key, rows, base)
        named = [column_of(name).alias(f"__alive{n}") for n, name in enumerate(key)]
        alive = last.join(standing.select(*named), _match(key, "__alive"), "left_semi")
    else:
        alive = last.where("__last._op <> 'd'")
    if partial:
        before = base.join(keys, touched, "left_semi").select(
            *(column_of(name).alias(f"__was{n}") for n, name in enumerate(key)),
            *(column_of(name).alias(f"__base{n}") for n, name in enumerate(partial)),
        )
        alive = alive.join(before, _match(key, "__was"), "left")
    values = []
    for name in table.columns:
        if name in key:
            values.append(column_of(name))
        elif name in partial:
            number = partial.index(name)
            brought, held = F.col(f"__sent{number}"), F.col(f"__base{number}")
            values.append(F.when(brought.isNotNull(), brought["value"]).otherwise(held).alias(name))
        else:
            values.append(F.col("__last").getField(name).alias(name))
    return kept.select(*map(column_of, table.columns)).unionByName(alive.select(*values))


def _match(key: Sequence[str], other: str) -> "Column":
    """Return the condition that the key is that of the columns ``other`` 0, 1, …"""
    from pyspark.sql import functions as F  # noqa: N812

    same = [the_same(column_of(name), F.col(f"{other}{n}")) for n, name in enumerate(key)]
    return functools.reduce(lambda one, two: one & two, same)


SMALL_ROWS: Final = 500_000


def _small(table: TableState) -> bool:
    """Tell whether the keys that pending rows touch fit into every executor's memory."""
    return sum(change.rows for change in table.pending) <= SMALL_ROWS


def _multiset(table: TableState, base: "DataFrame", rows: "DataFrame") -> "DataFrame":
    """Return the base with ``rows`` added, and one equal row less for every deleted one."""
    from pyspark.sql import functions as F  # noqa: N812

    names = list(table.columns)
    own = [column_of(name) for name in names]
    if all("d" not in change.operations for change in table.pending):
        return base.unionByName(rows.where("_op <> 't'").select(*own))
    weight = F.when(F.col("_op") == "d", F.lit(-1)).otherwise(F.lit(1)).alias("_weight")
    signed = base.select(*own, F.lit(1).alias("_weight")).unionByName(
        rows.where("_op <> 't'").select(*own, weight)
    )
    alike = [
        _distinguishing(name, kind).alias(f"_group {n}")
        for n, (name, kind) in enumerate(table.columns.items())
    ]
    groups = signed.groupBy(*alike).agg(
        F.first(F.struct(*own)).alias("_row"), F.sum("_weight").alias("_count")
    )
    copies = groups.where("_count > 0").select(
        "_row", F.explode(F.sequence(F.lit(1), F.col("_count").cast("int")))
    )
    return copies.select(*(F.col("_row").getField(name).alias(name) for name in names))


def _distinguishing(name: str, kind: str) -> "Column":
    """Return what to group equal values by: floating point as text, for which 0 and -0 differ."""
    column = column_of(name)
    return column.cast("string") if kind in ('"float"', '"double"') else column
