"""Resolve rows whose key changes.

A transaction may insert a row under a key before it deletes the row that is there (a deferrable
key, or rows that exchange keys in one statement). It may also insert a row under a key and
change that key again. The same operations, `c` then `d` of one key, leave a row in the first
case and none in the second: the difference is whether the key existed before the transaction.
When two rows have one key, a delete means the older one.

Where deleted rows stay (`deletes = kept`), the base does not say which of its rows are in the
source. An INSERT does: an older row under its key was deleted before. When a row moved to the
key, an older row there counts as a row of the source.

Only `resolve_key_changes` starts Spark jobs. `waltap_spark.compact.compact_in_memory` does the same for
few changes without Spark.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from waltap_spark.schema.expression import column_of, is_unchanged, order, sent, the_same
from waltap_spark.schema.schema import LOG_FIELDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from waltap_spark.state.output import TableState


TRANSACTION = ("_epoch", "_commit_lsn")
WITHIN = ("_seq", "_sub")


def alive_keys(key: Sequence[str], rows: "DataFrame", base: "DataFrame") -> "DataFrame":
    """Return the keys that have a row after ``rows``."""
    from pyspark.sql import functions as F  # noqa: N812

    names = [column_of(name) for name in key]
    steps = _steps(key, rows)
    last = F.max_by("_verdict", F.when(F.col("_verdict").isNotNull(), F.struct(*TRANSACTION)))
    final = steps.groupBy(*names).agg(last.alias("_alive"))
    there = _presence(key, base, final, "_was")
    return there.where(F.coalesce("_alive", "_was")).select(*names)


def _steps(key: Sequence[str], rows: "DataFrame") -> "DataFrame":
    """Return one row per key and transaction.

    It has the counts of operations and ``_verdict``: whether the key has a row after the
    transaction (null: as before it).
    """
    return rows.groupBy(*map(column_of, key), *TRANSACTION).agg(
        *(each.alias(name) for name, each in _counts().items()),
        verdict().alias("_verdict"),
        inserted().alias("_inserted"),
    )


def _counts() -> "dict[str, Column]":
    """Return the counts of one transaction's rows under one key."""
    from pyspark.sql import functions as F  # noqa: N812

    return {
        "_put": F.count_if(F.col("_op") == "c"),
        "_gone": F.count_if(F.col("_op") == "d"),
        "_first": F.min_by("_op", F.struct(*WITHIN)),
        "_final": F.max_by("_op", F.struct(*WITHIN)),
    }


def verdict() -> "Column":
    """Return an aggregate: whether a key has a row afterwards.

    It aggregates the rows that a transaction has under one key. Null means as before the
    transaction.
    """
    from pyspark.sql import functions as F  # noqa: N812

    counts = _counts()
    more = counts["_put"] - counts["_gone"]
    return (
        # Anything but a delete at the end leaves a row. A first operation other than an insert
        # proves an earlier row, which one more delete than inserts removes. With as many inserts
        # as deletes the key is as it was before.
        F.when(counts["_final"] != "d", F.lit(True))
        .when(counts["_first"] != "c", more >= 0)
        .when(more != 0, more > 0)
    )


def inserted() -> "Column":
    """Return an aggregate: whether a transaction begins with an INSERT."""
    from pyspark.sql import functions as F  # noqa: N812

    # The second half of a key change (`_sub` = 1) is an insert too, but no INSERT.
    return F.min_by((F.col("_op") == "c") & (F.col("_sub") == 0), F.struct(*WITHIN))


def _presence(key: Sequence[str], base: "DataFrame", keys: "DataFrame", name: str) -> "DataFrame":
    """Return ``keys`` with a flag: ``base`` has the key."""
    from pyspark.sql import functions as F  # noqa: N812

    here = base.select(*_set_aside(key), F.lit(True).alias(name))
    found = keys.join(here, at_key(key), "left").drop(*(f"_at {n}" for n in range(len(key))))
    return found.withColumn(name, F.coalesce(name, F.lit(False)))


def _set_aside(key: Sequence[str]) -> "list[Column]":
    """Return the key columns under the names ``_at n``, for `at_key`."""
    return [column_of(name).alias(f"_at {n}") for n, name in enumerate(key)]


def at_key(key: Sequence[str]) -> "Column":
    """Return the condition that the key equals ``_at n``."""
    same = [the_same(column_of(name), column_of(f"_at {n}")) for n, name in enumerate(key)]
    return functools.reduce(lambda one, other: one & other, same)


def _at_then(key: Sequence[str]) -> "Column":
    """Return the condition of `at_key` within the same transaction."""
    from pyspark.sql import functions as F  # noqa: N812

    then = [F.col(name) == F.col(f"{name} then") for name in TRANSACTION]
    return functools.reduce(lambda one, other: one & other, then, at_key(key))


# --- values that move along ---------------------------------------------------------------------------


def resolve_key_changes(
    table: "TableState",
    rows: "DataFrame",
    base: "DataFrame",
    names: Sequence[str],
    *,
    key_reused: bool,
) -> "DataFrame":
    """Fill in unchanged values of rows with a new key.

    Such a row says `_unchanged` for a value of the columns ``names`` that is known only under
    its old key: in an earlier row, in the base, or under the key before that one. ``key_reused``:
    a key may be reused before its old row is deleted.
    """
    kept = table.mode.deletes == "kept"
    # A checkpoint, because each column of ``names`` reads it again.
    placed = _placed(table.key, rows, base, key_reused=key_reused, kept=kept).localCheckpoint()
    for name in names:
        rows = _resolve_column(table, rows, placed, base, name)
    return rows


def _placed(
    key: Sequence[str], rows: "DataFrame", base: "DataFrame", *, key_reused: bool, kept: bool
) -> "DataFrame":
    """Number the rows that a transaction has under one key.

    Return position, key, operation and `_unchanged` of ``rows`` with ``_row``, the number of
    the row that the event means. Row 1 existed before the transaction where ``_was`` is true.
    ``_left`` is the number of the row that exists afterwards. ``kept``: deleted rows stay in
    ``base``.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    names = [column_of(name) for name in key]
    steps = _steps(key, rows)
    before = (
        Window.partitionBy(*names).orderBy(*TRANSACTION).rowsBetween(Window.unboundedPreceding, -1)
    )
    was = F.col("_first") != "c"
    if key_reused:
        earlier = F.last("_verdict", ignorenulls=True).over(before)
        steps = _presence(key, base, steps.withColumn("_earlier", earlier), "_in_base")
        here = F.col("_in_base")
        if kept:
            in_order = Window.partitionBy(*names).orderBy(*TRANSACTION)
            # A kept row of the base is in the source only if the first change is no INSERT.
            here &= ~F.first("_inserted").over(in_order)
        there = F.coalesce("_earlier", here)
        was = F.when(was, F.lit(True)).when(F.col("_gone") > 0, there).otherwise(F.lit(False))
    steps = steps.withColumn("_was", was).select(
        *_set_aside(key),
        *(F.col(name).alias(f"{name} then") for name in TRANSACTION),
        "_was",
        (F.col("_gone") + 1).alias("_left"),
    )
    so_far = (
        Window.partitionBy(*names, *TRANSACTION)
        .orderBy(*WITHIN)
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    put = F.count_if(F.col("_op") == "c").over(so_far)
    gone = F.count_if(F.col("_op") == "d").over(so_far)
    number = (
        F.when(F.col("_op") == "c", put + F.col("_was").cast("int"))
        .when(F.col("_op") == "d", gone)
        .otherwise(gone + 1)
    )
    events = rows.select(*names, *TRANSACTION, *WITHIN, "_op", "_unchanged")
    joined = events.join(steps, _at_then(key))
    return joined.select(
        *names, *TRANSACTION, *WITHIN, "_op", "_unchanged", "_was", "_left", number.alias("_row")
    )


def _resolve_column(
    table: "TableState", rows: "DataFrame", placed: "DataFrame", base: "DataFrame", name: str
) -> "DataFrame":
    """Return ``rows`` with the values of ``name`` that moved along."""
    from pyspark.sql import functions as F  # noqa: N812

    place = F.struct(*TRANSACTION, "_seq")
    is_move = (F.col("_sub") == 1) & (F.col("_op") == "c") & is_unchanged(name)
    ends = _ends(table.key, placed, name).where("_op = 'd' and _sub = 0")
    nodes = (
        placed.where(is_move)
        .select(place.alias("_id"))
        .join(ends.select(place.alias("_id"), "_before", *_set_aside(table.key)), "_id")
        .localCheckpoint()
    )
    roots = _roots(nodes)
    source = nodes.select(
        F.col("_id").alias("_root"), "_before", *(f"_at {n}" for n in range(len(table.key)))
    )
    found = roots.join(source, "_root")
    known = rows.where(sent(name)).select(
        order().alias("_when"), *map(column_of, table.key), column_of(name).alias("_value")
    )
    # all rows of a snapshot have one position: the key says which row is meant
    from_rows = found.where("_before is not null").join(
        known, at_key(table.key) & (F.col("_before._when") == F.col("_when"))
    )
    here = base.select(*map(column_of, table.key), column_of(name).alias("_value"))
    from_base = found.where("_before is null").join(here, at_key(table.key), "left")
    fixed = from_rows.select("_id", "_value").unionByName(from_base.select("_id", "_value"))
    fixed = fixed.select(F.col("_id").alias("_fixed"), F.col("_value").alias("_resolved"))
    joined = rows.join(fixed, is_move & (place == F.col("_fixed")), "left")
    is_fixed = F.col("_fixed").isNotNull()
    columns = []
    for column in [*table.columns, *LOG_FIELDS]:
        plain = column_of(column)
        if column == name:
            plain = F.when(is_fixed, F.col("_resolved")).otherwise(plain).alias(name)
        elif column == "_unchanged":
            rest = F.array_remove("_unchanged", name)
            plain = F.when(is_fixed, rest).otherwise(plain).alias("_unchanged")
        columns.append(plain)
    return joined.select(*columns)


def _ends(key: Sequence[str], placed: "DataFrame", name: str) -> "DataFrame":
    """Return ``placed`` with ``_before``, the last event that has the value.

    It is the event that set, or carried along, the value of ``name`` of the same row. Null
    means that the base has the value.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    names = [column_of(part) for part in key]
    known = ~is_unchanged(name)
    brings = (F.col("_op") != "d") & (known | ((F.col("_sub") == 1) & (F.col("_op") == "c")))
    event = F.when(brings, F.struct(order().alias("_when"), known.alias("_known")))
    same_row = (
        Window.partitionBy(*names, *TRANSACTION, "_row")
        .orderBy(*WITHIN)
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    found = placed.withColumn("_event", event).withColumn(
        "_within", F.last("_event", ignorenulls=True).over(same_row)
    )
    # the last event of the row that exists after the transaction
    stays = F.when(F.col("_row") == F.col("_left"), F.col("_event"))
    left = found.groupBy(*names, *TRANSACTION).agg(
        F.max_by(stays, F.when(stays.isNotNull(), F.struct(*WITHIN))).alias("_leaves")
    )
    earlier = (
        Window.partitionBy(*names).orderBy(*TRANSACTION).rowsBetween(Window.unboundedPreceding, -1)
    )
    left = left.select(
        *_set_aside(key),
        *(F.col(part).alias(f"{part} then") for part in TRANSACTION),
        F.last("_leaves", ignorenulls=True).over(earlier).alias("_earlier"),
    )
    joined = found.join(left, _at_then(key))
    started_there = F.col("_was") & (F.col("_row") == 1)
    before = F.coalesce("_within", F.when(started_there, F.col("_earlier")))
    return joined.select(*names, *TRANSACTION, *WITHIN, "_op", before.alias("_before"))


def _roots(nodes: "DataFrame") -> "DataFrame":
    """Return for each move the first move of its chain.

    Pointers double in each step, so a chain of n moves takes log2 n steps.
    """
    from pyspark.sql import functions as F  # noqa: N812

    # Each pass is a checkpoint: otherwise Spark's plan doubles with each step.
    jump = F.struct("_before._when._epoch", "_before._when._commit_lsn", "_before._when._seq")
    linked = F.col("_before").isNotNull() & ~F.col("_before._known")
    reached = nodes.select(
        "_id", F.when(linked, jump).otherwise(F.col("_id")).alias("_root")
    ).localCheckpoint()
    while True:
        further = reached.select(F.col("_id").alias("_root"), F.col("_root").alias("_next"))
        step = reached.join(further, "_root").select("_id", "_root", "_next").localCheckpoint()
        if step.where("_root <> _next").isEmpty():
            return reached
        reached = step.select("_id", F.col("_next").alias("_root"))
