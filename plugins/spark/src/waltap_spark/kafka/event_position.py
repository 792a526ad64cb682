"""Positions of events, and repeated events.

The position of an event is (commit before its transaction, its LSN), as Debezium writes it in
``source.sequence``. Positions of a partition only grow; a record that goes back was delivered again.
Rows of a first snapshot have an order of their own. With an older slot the next transaction may
name a commit from before the snapshot; it comes after the snapshot all the same.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap_spark.kafka.topics import Place, Reached
from waltap_spark.schema.expression import literal_of

# Whether the event has the row of its operation.
AFTER_ROW: Final = "has_row"

# Bytes of WAL by which a first snapshot is placed before its position.
# So it is before all changes of the first transaction, which may have begun earlier. A commit
# record is longer than 32 bytes, so no other position is in between.
SNAPSHOT_GAP: Final = 32
_FIRST_GAP: Final = 8


def placed(
    events: DataFrame, reached: Mapping[Place, Reached], spread: frozenset[str]
) -> DataFrame:
    """Return ``events`` with their positions.

    - ``_stated``, ``rank``: the position that grows within a partition
    - ``_commit``: the same, but not before the first snapshot
    - ``_commit_lsn``, ``_seq``: the order of changes; ``_lsn``
    - ``first_read``: whether it is a row of a first snapshot
    - ``again``: whether it was delivered before
    - ``problem``: why it has no position, else null

    ``reached`` has earlier positions of partitions, ``spread`` the topics of several partitions.
    """
    number = "cast(try_element_at(from_json(source.sequence, 'array<string>'), %d) as bigint)"
    first = "op = 'r' and _before is null"
    known = events.selectExpr(
        "*", f"coalesce(source.lsn, {number % 2}) AS _lsn", f"{number % 1} AS _before"
    )
    known = known.withColumn("problem", _problem(spread)).selectExpr(
        "*",
        f"if(problem is null and {first}, _lsn - {_FIRST_GAP}, null) AS _read",
        "if(problem is null and op <> 'm', _before, null) AS _follows",
        f"coalesce({first}, false) AS first_read",
        # The delete of a changed key has the LSN of its insert, and comes before it.
        f"if({first}, 0L, if(leaves and op = 'd', _lsn - 1, _lsn)) AS rank",
    )  # fmt: skip
    known = _with_reached(known, reached)
    until = Window.partitionBy("topic", "partition").orderBy("offset")
    here = until.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = until.rowsBetween(Window.unboundedPreceding, -1)
    counts = F.expr("problem is null and op <> 'm'")
    floor = F.greatest(F.max("_read").over(here), F.col("_high_read._commit"))
    # The first transaction that a connector reads has no commit before it.
    followed = F.greatest(F.max("_follows").over(here), floor, F.col("_high._commit"))
    begins = F.first(F.when(counts, F.col("_lsn")), ignorenulls=True).over(here)
    stated = F.coalesce(F.col("_read"), F.col("_follows"), followed, begins)
    known = known.withColumn("_stated", F.when(counts, stated))
    behind = F.coalesce(F.col("_read"), F.greatest(F.col("_stated"), floor))
    known = known.withColumn("_commit", F.when(counts, behind))
    position = F.when(counts, F.struct(F.col("_stated").alias("_commit"), "rank"))
    streamed = F.when(~F.col("first_read"), position)
    furthest = F.greatest(F.max(streamed).over(before), F.col("_high"))
    once = F.expr("moved and op = 'c'")  # no other event has its position
    again = (position < furthest) | (once & (position == furthest))
    back = position < F.greatest(F.max(position).over(before), F.col("_high"), F.col("_high_read"))
    again = F.when(F.col("first_read"), back).otherwise(again)
    return (
        known.selectExpr(
            "*",
            # ``_seq`` is an int: 31 bits of WAL at a time, since a transaction may be longer or have begun
            # long before its commit.
            f"if({first}, _commit - {SNAPSHOT_GAP - _FIRST_GAP},"
            " _commit + floor((_lsn - _commit) / 2147483648D)) AS _commit_lsn",
            f"if({first}, 0, cast(pmod(_lsn - _commit, 2147483648L) as int)) AS _seq",
        )
        .withColumn("again", F.coalesce(again, F.lit(False)))
        .drop("_high", "_high_read", "_read", "_follows", "_before")
    )


def _problem(spread: frozenset[str]) -> Column:
    """Return why an event is bad, null for a good one."""
    operation = F.coalesce(F.col("op").isin("c", "r", "u", "d", "t"), F.lit(False))
    found = (
        F.when(F.col("op").eqNullSafe("m"), None)
        .when(F.col("reason").isNotNull(), F.col("reason"))
        .when(F.col("op").isNull(), "it is no change event")
        .when(~operation, "its operation is none of c, r, u, d, t, m")
        .when(F.col("source.table").isNull(), "its source names no table")
        .when(F.col("source.schema").isNull(), "its source names no schema of a table")
        .when(F.col("_lsn").isNull(), "its source has no LSN")
    )
    lacks = (F.col("op") != "t") & ~F.col(AFTER_ROW)
    found = found.when(lacks, "it brings no row")
    if spread:
        many = (F.col("op") == "t") & F.col("topic").isin(*sorted(spread))
        text = "it is a truncate, which has no order with rows in other partitions of its topic"
        found = found.when(many, text)
    return found.cast("string")


def _with_reached(events: DataFrame, reached: Mapping[Place, Reached]) -> DataFrame:
    values = (
        ", ".join(
            f"({literal_of(topic)}, {partition}, {commit}L, {lsn}L, {read}L)"
            for (topic, partition), ((commit, lsn), read) in reached.items()
        )
        or "('', -1, 0L, 0L, 0L)"
    )
    before = events.sparkSession.sql(
        "SELECT topic, partition, named_struct('_commit', c, 'rank', r) AS _high,"
        " named_struct('_commit', f, 'rank', 0L) AS _high_read"
        f" FROM VALUES {values} AS v(topic, partition, c, r, f)"
    )
    return events.join(F.broadcast(before), ["topic", "partition"], "left")
