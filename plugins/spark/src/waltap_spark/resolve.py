"""From change sets to the rows of a table: the latest of every key, as one lazy DataFrame.

Rows are put in order by (`_epoch`, `_commit_lsn`, `_seq`, `_sub`). A value that the server did not
send (`_unchanged`) is the last one sent for that key, in the pending rows or else in the base. Nothing
here starts a Spark job but `settle_moves`.
"""

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from waltap_spark.output import ChangeSet, TableState
from waltap_spark.schema import LOG_FIELDS, log_struct, struct_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["changes_frame", "current_frame", "settle_moves"]

ORDER: Final = ("_epoch", "_commit_lsn", "_seq", "_sub")
LONGEST_CHAIN: Final = 100
"""Most key changes in a row, within one batch, that one unchanged value is followed through."""

Uri = Callable[[str], str]


def changes_frame(
    spark: "SparkSession", table: TableState, sets: Iterable[ChangeSet], uri: Uri
) -> "DataFrame":
    """Return the rows of ``sets`` with all columns the table ever had, then the log's own."""
    by_version: dict[str, list[str]] = {}
    for change in sets:
        by_version.setdefault(change.fingerprint, []).append(uri(change.path))
    frames = [
        _widened(
            spark.read.schema(log_struct(table.versions[fingerprint])).parquet(*paths),
            table.versions[fingerprint],
            table.columns,
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
    rows = changes_frame(spark, table, table.pending, uri) if pending is None else pending
    if any("t" in change.operations for change in table.pending):
        base, rows = base.limit(0), _after_last_truncate(rows)
    if not table.key:
        return _multiset(table, base, rows)
    return _latest(table, base, rows)


def _base(spark: "SparkSession", table: TableState, uri: Uri) -> "DataFrame":
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for part in table.base:
        alike.setdefault(tuple(part.columns.items()), []).append(uri(part.path))
    frames = []
    for columns, paths in alike.items():
        stored = spark.read.schema(struct_of(dict(columns))).parquet(*paths)
        frames.append(_widened(stored, dict(columns), table.columns, log=False))
    if not frames:
        return spark.createDataFrame([], struct_of(table.columns))
    return functools.reduce(lambda left, right: left.unionByName(right), frames)


def _widened(
    frame: "DataFrame", has: dict[str, str], wanted: dict[str, str], *, log: bool = True
) -> "DataFrame":
    """Return ``frame`` with the columns ``wanted``: null where it has none, cast where it has a
    narrower one."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    kinds = {field.name: field.dataType for field in struct_of(wanted).fields}
    columns = []
    for name, kind in wanted.items():
        if name not in has:
            columns.append(F.lit(None).cast(kinds[name]).alias(name))
        elif has[name] == kind:
            columns.append(_column(name))
        else:
            columns.append(_column(name).cast(kinds[name]).alias(name))
    if log:
        columns += [_column(name) for name in LOG_FIELDS]
    return frame.select(*columns)


def _column(name: str) -> "Column":
    """Return the column called ``name``, dots and back-ticks and all."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(quoted(name))


def quoted(name: str) -> str:
    """Return ``name`` as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _order() -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(*ORDER)


def _after_last_truncate(rows: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    last = rows.where("_op = 't'").agg(F.max(_order()).alias("_truncated"))
    return (
        rows.crossJoin(F.broadcast(last)).where(_order() > F.col("_truncated")).drop("_truncated")
    )


def _sent(name: str) -> "Column":
    """Tell whether a row brings a value of the column ``name``."""
    from pyspark.sql import functions as F  # noqa: N812

    held = F.coalesce(F.array_contains("_unchanged", name), F.lit(False))
    return (F.col("_op") != "d") & ~held


def _latest(table: TableState, base: "DataFrame", rows: "DataFrame") -> "DataFrame":
    """Return the base with, per key, the last of ``rows`` in place of what it held."""
    from pyspark.sql import functions as F  # noqa: N812

    key = list(table.key)
    partial = [name for change in table.pending for name in change.unchanged]
    partial = [name for name in dict.fromkeys(partial) if name not in key]
    whole = [name for name in table.columns if name not in key and name not in partial]
    wanted = [F.max_by(F.struct("_op", *map(_column, whole)), _order()).alias("__last")]
    wanted += [
        F.max_by(F.struct(_column(name).alias("value")), F.when(_sent(name), _order())).alias(
            f"__sent{n}"
        )
        for n, name in enumerate(partial)
    ]
    last = rows.groupBy(*map(_column, key)).agg(*wanted)
    keys = last.select(*map(_column, key))
    kept = base.join(F.broadcast(keys) if _small(table) else keys, key, "left_anti")
    alive = last.where("__last._op <> 'd'")
    if partial:
        before = base.select(
            *map(_column, key),
            *(_column(name).alias(f"__base{n}") for n, name in enumerate(partial)),
        ).join(F.broadcast(keys) if _small(table) else keys, key, "left_semi")
        alive = alive.join(before, key, "left")
    values = []
    for name in table.columns:
        if name in key:
            values.append(_column(name))
        elif name in partial:
            number = partial.index(name)
            sent, held = F.col(f"__sent{number}"), F.col(f"__base{number}")
            values.append(F.when(sent.isNotNull(), sent["value"]).otherwise(held).alias(name))
        else:
            values.append(F.col("__last").getField(name).alias(name))
    return kept.select(*map(_column, table.columns)).unionByName(alive.select(*values))


SMALL_ROWS: Final = 500_000


def _small(table: TableState) -> bool:
    """Tell whether the keys that pending rows touch fit into every executor's memory."""
    return sum(change.rows for change in table.pending) <= SMALL_ROWS


def _multiset(table: TableState, base: "DataFrame", rows: "DataFrame") -> "DataFrame":
    """Return the base with ``rows`` added, and one equal row less for every deleted one."""
    from pyspark.sql import functions as F  # noqa: N812

    names = list(table.columns)
    own = [_column(name) for name in names]
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
    column = _column(name)
    return column.cast("string") if kind in ('"float"', '"double"') else column


def settle_moves(table: TableState, rows: "DataFrame", base: "DataFrame") -> "DataFrame":
    """Give rows that got a new key the values they kept from under their old key.

    Such a row says `_unchanged` for a value that is only known under the key it had before: in an
    earlier pending row, in the base, or again under the key before that one.
    """
    partial = [name for change in table.pending if change.moved for name in change.unchanged]
    for name in dict.fromkeys(partial):
        if name not in table.key:
            rows = _settle_column(table, rows, base, name)
    return rows


def _settle_column(
    table: TableState, rows: "DataFrame", base: "DataFrame", name: str
) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    key = list(table.key)
    place = F.struct("_epoch", "_commit_lsn", "_seq")
    old_names = [f"_old {n}" for n in range(len(key))]
    held = F.coalesce(F.array_contains("_unchanged", name), F.lit(False))
    moves = rows.where((F.col("_sub") == 1) & (F.col("_op") == "c") & held)
    lifted = rows.where((F.col("_sub") == 0) & (F.col("_op") == "d")).select(
        place.alias("_place"),
        _order().alias("_until"),
        *(_column(part).alias(old) for part, old in zip(key, old_names, strict=True)),
    )
    moved = moves.select(place.alias("_place")).join(lifted, "_place").localCheckpoint()
    events = rows.where(_sent(name) | ((F.col("_sub") == 1) & (F.col("_op") == "c") & held)).select(
        *(_column(part).alias(f"_at {n}") for n, part in enumerate(key)),
        _order().alias("_when"),
        place.alias("_from"),
        _sent(name).alias("_known"),
        _column(name).alias("_value"),
    )
    here = base.select(
        *(_column(part).alias(f"_at {n}") for n, part in enumerate(key)),
        _column(name).alias("_held"),
    )
    open_moves = moved.select(F.col("_place").alias("_id"), "_until", *map(_column, old_names))
    settled: DataFrame | None = None
    for _step in range(LONGEST_CHAIN):
        same = [_column(f"_at {n}") == _column(old) for n, old in enumerate(old_names)]
        earlier = functools.reduce(lambda a, b: a & b, same) & (F.col("_when") < F.col("_until"))
        found = (
            open_moves.join(events, earlier, "left")
            .groupBy("_id", *map(_column, old_names))
            .agg(
                F.max_by(F.struct("_known", "_value", "_from", "_when"), F.col("_when")).alias(
                    "_event"
                )
            )
            .localCheckpoint()
        )
        same_key = functools.reduce(lambda a, b: a & b, same)
        from_base = found.where("_event._known is null").join(here, same_key, "left")
        done = from_base.select("_id", F.col("_held").alias("_value")).unionByName(
            found.where("_event._known").select("_id", F.col("_event._value").alias("_value"))
        )
        settled = done if settled is None else settled.unionByName(done)
        onward = found.where("_event._known = false").select(
            "_id", F.col("_event._from").alias("_place")
        )
        open_moves = (
            onward.join(moved, "_place")
            .select("_id", "_until", *map(_column, old_names))
            .localCheckpoint()
        )
        if open_moves.isEmpty():
            break
    assert settled is not None
    fixed = settled.select(F.col("_id").alias("_fixed"), F.col("_value").alias("_settled"))
    match = (place == F.col("_fixed")) & (F.col("_sub") == 1) & held
    joined = rows.join(fixed, match, "left")
    columns = []
    for column in [*table.columns, *LOG_FIELDS]:
        if column == name:
            columns.append(
                F.when(F.col("_fixed").isNotNull(), F.col("_settled"))
                .otherwise(_column(name))
                .alias(name)
            )
        elif column == "_unchanged":
            columns.append(
                F.when(F.col("_fixed").isNotNull(), F.array_remove("_unchanged", name))
                .otherwise(F.col("_unchanged"))
                .alias("_unchanged")
            )
        else:
            columns.append(_column(column))
    return joined.select(*columns)
