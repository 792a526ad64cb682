"""Keep rows' past: versions, or rows that stay when deleted.

The change log has each row's state after each transaction; two equal neighbouring states count as
one. So the result does not depend on batch boundaries, on a snapshot with known rows, or on
redelivered changes. Positions give the order; times are only values.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.window import WindowSpec

from waltap_spark.compact.compaction import (
    distinguishing,
    inserted,
    last_sent,
    of_touched_keys,
    verdict,
)
from waltap_spark.planning.plan import LogFacts, unsent_columns
from waltap_spark.schema.expression import GONE, column_of, order, quoted, temp
from waltap_spark.schema.schema import LOG_FIELDS, floating
from waltap_spark.state.output import TableState

CHANGED: Final = temp("changed")
AT: Final = ("_epoch", "_commit_lsn")
# Row index before the rows of a snapshot, which have -1.
BEFORE_ALL: Final = -2


def fresh(table: TableState, frame: DataFrame) -> DataFrame:
    """Convert log rows to the first table rows of their keys."""
    if not table.mode.columns:  # columns of a frame would be round trips to the JVM
        return frame.selectExpr(*map(quoted, table.columns))
    made = {
        "_valid_from": F.col("_commit_ts"),
        "_from_epoch": F.col("_epoch"),
        "_from_lsn": F.col("_commit_lsn"),
        "_current": F.lit(True),
        "_deleted": F.lit(False),
        **{name: F.col(name) for name in table.mode.extra},
    }
    own = [column_of(name) for name in table.columns]
    more = (
        made.get(name, F.lit(None)).cast(kind.strip('"')).alias(name)
        for name, kind in table.mode.columns.items()
    )
    return frame.select(*own, *more)


def live_rows(table: TableState, base: DataFrame) -> DataFrame:
    """Return the rows of ``table`` that exist in the source."""
    return base.where(table.mode.live_condition) if table.mode.live_condition else base


def changed(
    table: TableState, changes: Sequence[LogFacts], rows: DataFrame, base: DataFrame
) -> DataFrame:
    """Return changed and added rows of ``table``, with a `GONE` flag."""
    return _outcome(table, changes, rows, base).where(CHANGED).drop(CHANGED)


def rows_after(
    table: TableState, changes: Sequence[LogFacts], rows: DataFrame, base: DataFrame
) -> DataFrame:
    """Return all rows of ``table`` after ``rows``; see `changed`."""
    done = base.limit(0)
    if table.mode.name == "scd2":
        done, base = base.where("not _current"), base.where("_current")
    if not _empties(table, changes):
        done = done.unionByName(of_touched_keys(base, table.key, rows, changes, "left_anti"))
    found = _outcome(table, changes, rows, base).where(f"not {GONE}")
    return done.unionByName(found.drop(CHANGED, GONE))


def _empties(table: TableState, changes: Sequence[LogFacts]) -> bool:
    """Return whether rows end without their own change."""
    if table.mode.deletes == "kept":
        return False
    return any("t" in each.operations or each.replaces for each in changes)


def _outcome(
    table: TableState, changes: Sequence[LogFacts], rows: DataFrame, base: DataFrame
) -> DataFrame:
    """Return the rows of all touched keys, with `CHANGED` and `GONE`."""
    if table.mode.name == "scd2":
        base = base.where("_current")
    events = _events(table, changes, rows, base)
    if not _empties(table, changes):
        base = of_touched_keys(base, table.key, rows, changes, "left_semi")
    states = _compared(table, _states(table, changes, events, base))
    return (
        _versions(table, states) if table.mode.name == "scd2" else _last_states(table, states)
    ).select(*map(column_of, table.row_columns), CHANGED, GONE)


def _events(
    table: TableState, changes: Sequence[LogFacts], rows: DataFrame, base: DataFrame
) -> DataFrame:
    """Return single-row changes in the form that the mode needs."""
    if table.mode.deletes == "kept":  # a key change deletes the old key: that row must not stay
        if not any("d" in each.operations for each in changes):
            return rows.where("_op in ('c', 'u', 'r')")
        # all rows of a snapshot have one position and no key changes: spread them by key
        spread = F.when(F.col("_op") == "r", F.xxhash64(*map(column_of, table.key)))
        change = Window.partitionBy(*AT, "_seq", spread)
        moves = rows.withColumn(temp("moves"), F.max("_sub").over(change) == 1)
        return moves.where(f"_op in ('c', 'u', 'r') or (_op = 'd' and {temp('moves')})").drop(
            temp("moves")
        )
    if not _empties(table, changes):
        return rows
    if any(each.replaces for each in changes):
        rows, ends = _of_one_moment(rows)
    else:
        ends = rows.where("_op = 't'")
    last = F.max_by(F.struct(*LOG_FIELDS), order())
    # Of several truncates in a transaction only rows after the last one remain.
    ends = ends.groupBy(*AT).agg(last.alias(temp("end"))).select(f"{temp('end')}.*")
    found = rows.where("_op <> 't'")
    at = ends.select(*(F.col(name).alias(temp(name)) for name in (*AT, "_seq")))
    same = [F.col(name) == F.col(temp(name)) for name in AT]
    found = (
        found.join(F.broadcast(at), same, "left")
        .where(F.col(temp("_seq")).isNull() | (F.col("_seq") > F.col(temp("_seq"))))
        .drop(*at.columns)
    )
    key = [column_of(name) for name in table.key]
    keys = found.select(*key).unionByName(base.select(*key)).distinct()
    each = keys.crossJoin(F.broadcast(ends.withColumn("_op", F.lit("d"))))
    return found.unionByName(each, allowMissingColumns=True)


def _of_one_moment(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Move a snapshot's rows to its first position, after a truncate."""
    when = ("_epoch", "_commit_lsn", "_commit_ts")
    first = rows.agg(F.min(F.struct(*when)).alias(temp("first")), F.min("_xid").alias(temp("xid")))
    moved = rows.drop(*when).crossJoin(F.broadcast(first)).select("*", f"{temp('first')}.*")
    end = first.select(
        F.lit("t").alias("_op"),
        f"{temp('first')}.*",
        F.lit(BEFORE_ALL).alias("_seq"),
        F.lit(0).cast("byte").alias("_sub"),
        F.col(f"{temp('first')}._commit_lsn").alias("_lsn"),
        F.col(temp("xid")).alias("_xid"),
        F.lit(None).cast("array<string>").alias("_unchanged"),
    )
    return moved.drop(temp("first"), temp("xid")), end


def _states(
    table: TableState, changes: Sequence[LogFacts], events: DataFrame, base: DataFrame
) -> DataFrame:
    """Return all states of each key, with unsent values filled in.

    ``stored`` marks the state in ``base``.
    """
    key, mode = list(table.key), table.mode
    partial = unsent_columns(table, changes)
    always = [name for name in table.columns if name not in key and name not in partial]
    extra = [F.col(name) for name in mode.extra]
    there = F.when(F.col("_op") != "d", order())
    key_reused = any(change.key_reused for change in changes)
    alive = verdict() if key_reused else F.max_by("_op", order()) != "d"
    zeros = floating(table.columns, key)
    brought = F.struct(F.lit(True).alias(temp("is")), *map(column_of, [*always, *zeros]), *extra)
    per_key = events.groupBy(*map(column_of, key), *AT).agg(
        alive.alias(temp("alive")),
        (alive.isNull() & inserted()).alias(temp("free")),
        F.max("_commit_ts").alias(temp("ts")),
        F.max_by(brought, there).alias(temp("whole")),
        F.max_by(F.struct(F.lit(True).alias(temp("is")), *extra), order()).alias(temp("end")),
        *last_sent(partial),
    )
    per_key = per_key.withColumnsRenamed(dict(zip(AT, (temp("epoch"), temp("lsn")), strict=True)))
    versions = mode.name == "scd2"
    soft = mode.deletes == "soft" and not versions
    before_rows = base.select(
        *map(column_of, key),
        (F.col("_from_epoch") if versions else F.lit(0)).alias(temp("epoch")),
        (F.col("_from_lsn") if versions else F.lit(0).cast("long")).alias(temp("lsn")),
        (F.col("_valid_from") if versions else F.lit(None).cast("timestamp")).alias(temp("ts")),
        (~F.col("_deleted") if soft else F.lit(True)).alias(temp("alive")),
        brought.alias(temp("whole")),
        F.struct(F.lit(True).alias(temp("is")), *extra).alias(temp("end")),
        (F.col("_deleted_at") if soft else F.lit(None).cast("timestamp")).alias(temp("ended")),
        *(
            F.struct(column_of(name).alias("value")).alias(temp(f"sent{n}"))
            for n, name in enumerate(partial)
        ),
    )
    both = before_rows.withColumn(temp("stored"), F.lit(True)).unionByName(
        per_key.withColumn(temp("stored"), F.lit(False)), allowMissingColumns=True
    )
    if key_reused and mode.deletes == "kept":
        both = _without_dead(table, both)
    so_far = _by_key(table).rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def carried(name: str) -> Column:
        return F.last(name, ignorenulls=True).over(so_far)

    ours = [temp(name) for name in ("stored", "epoch", "lsn", "ts", "ended", "end")]
    parts = [temp(f"part{n}") for n in range(len(partial))]
    sent_values = [carried(temp(f"sent{n}")).getField("value") for n in range(len(partial))]
    whole_row = F.col(temp("whole"))
    return both.select(
        *map(column_of, key),
        *ours,
        F.coalesce(carried(temp("alive")), F.lit(False)).alias(temp("alive")),
        carried(temp("whole")).alias(temp("whole")),
        *(value.alias(part) for value, part in zip(sent_values, parts, strict=True)),
    ).select(
        *(column_of(name) for name in key if name not in zeros),
        *(F.coalesce(whole_row.getField(n), column_of(n)).alias(n) for n in zeros),
        *ours,
        temp("alive"),
        *(whole_row.getField(name).alias(name) for name in (*always, *mode.extra)),
        *(F.col(part).alias(name) for part, name in zip(parts, partial, strict=True)),
    )


def _without_dead(table: TableState, states: DataFrame) -> DataFrame:
    """End stored rows whose key is inserted: they were deleted before."""
    free = F.coalesce(F.lead(temp("free")).over(_by_key(table)), F.lit(False))
    dead = F.col(temp("stored")) & free
    return states.withColumn(
        temp("alive"), F.when(dead, F.lit(False)).otherwise(F.col(temp("alive")))
    )


def _by_key(table: TableState) -> WindowSpec:
    keys = [column_of(name) for name in table.key]
    return Window.partitionBy(*keys).orderBy(F.desc(temp("stored")), temp("epoch"), temp("lsn"))


def _compared(table: TableState, states: DataFrame) -> DataFrame:
    """Add ``turns``: whether the row differs from the state before."""
    values = F.struct(
        F.lit(True).alias(temp("is")),
        *(
            distinguishing(name, kind).alias(name)
            for name, kind in table.comparable.items()
            if name not in table.key
        ),
    )
    by_key = _by_key(table)
    was = F.coalesce(F.lag(temp("alive")).over(by_key), F.lit(False))
    # A plain comparison with NULL would hide a change from or to NULL.
    same = values.eqNullSafe(F.lag(values).over(by_key))
    turns = (F.col(temp("alive")) != was) | (F.col(temp("alive")) & ~same)
    return states.withColumn(temp("turns"), turns & ~F.col(temp("stored")))


def _versions(table: TableState, states: DataFrame) -> DataFrame:
    """Turn ``states`` into row versions.

    A stored version may have only a part of its transaction: the schema changed within it, or a
    snapshot was taken at its position.
    """
    by_key = _by_key(table)
    turned = states.where(F.col(temp("stored")) | F.col(temp("turns"))).select(
        "*",
        F.lead(temp("epoch")).over(by_key).alias("_to_epoch"),
        F.lead(temp("lsn")).over(by_key).alias("_to_lsn"),
        F.lead(temp("ts")).over(by_key).alias("_valid_to"),
        F.lead(temp("alive")).over(by_key).alias(temp("goes_on")),
    )
    partly = F.col(temp("stored")) & (F.col("_to_epoch") == F.col(temp("epoch")))
    partly = F.coalesce(partly & (F.col("_to_lsn") == F.col(temp("lsn"))), F.lit(False))
    made = turned.where(F.col(temp("alive")) & ~(partly & F.col(temp("goes_on")))).withColumns(
        {
            "_valid_from": F.col(temp("ts")),
            "_from_epoch": F.col(temp("epoch")),
            "_from_lsn": F.col(temp("lsn")),
            "_current": F.col("_to_epoch").isNull(),
            CHANGED: ~F.col(temp("stored")) | F.col("_to_epoch").isNotNull(),
            GONE: partly,
        }
    )
    if table.mode.deletes == "soft":
        made = made.withColumn("_deleted", ~F.coalesce(temp("goes_on"), F.lit(True)))
        made = made.withColumn("_deleted_at", F.when(F.col("_deleted"), F.col("_valid_to")))
    return made


def _last_states(table: TableState, states: DataFrame) -> DataFrame:
    """Return the last state of each row, also of deleted rows."""
    by_key = _by_key(table)
    so_far = by_key.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ends = F.col(temp("turns")) & ~F.col(temp("alive"))
    ended = F.when(ends, F.col(temp("ts"))).when(F.col(temp("stored")), F.col(temp("ended")))
    end = F.when(ends | F.col(temp("stored")), F.col(temp("end")))
    there = F.col(temp("alive")) | F.col(temp("stored"))
    names = [name for name in (*table.columns, *table.mode.extra) if name not in table.key]
    row = F.struct(there.alias(temp("is")), *map(column_of, names))
    made = states.select(
        *map(column_of, table.key),
        temp("alive"),
        F.last(F.when(there, row), ignorenulls=True).over(so_far).alias(temp("row")),
        F.lead(F.lit(1)).over(by_key).isNull().alias(temp("last")),
        F.max(temp("alive")).over(so_far).alias(temp("was")),
        F.last(ended, ignorenulls=True).over(so_far).alias(temp("deleted_at")),
        F.last(end, ignorenulls=True).over(so_far).alias(temp("deletion")),
    )
    made = made.where(F.col(temp("last")) & F.col(temp("row")).isNotNull()).select(
        "*",
        *(F.col(temp("row")).getField(name).alias(name) for name in names),
        F.lit(True).alias(CHANGED),
        (F.lit(table.mode.deletes == "kept") & F.col(temp("was")) & ~F.col(temp("alive"))).alias(
            GONE
        ),
    )
    if table.mode.deletes == "soft":
        dead = ~F.col(temp("alive"))
        made = made.withColumns(
            {"_deleted": dead, "_deleted_at": F.when(dead, F.col(temp("deleted_at")))}
        )
        for name in table.mode.extra:
            value = F.when(dead, F.col(temp("deletion")).getField(name)).otherwise(F.col(name))
            made = made.withColumn(name, value)
    return made
