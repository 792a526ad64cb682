"""Leave out repeated changes.

A pipeline that lost its offset reads an older slot again, in a new epoch of the log. A repeated
change is recognised by its own LSN, its number in its transaction, and the transaction's
number, position and time: another server, or a restored one, has different ones. (Rows of a
COPY have one LSN; a filter may have left some out the first time.) Changes that the table's
history has from an earlier epoch are left out before anything is applied, in every mode and
format. A snapshot in the new epoch may be older than the applied changes: after it no change is
left out.

The history is asked only about the LSNs of the changes, and only up to the highest LSN of an
earlier epoch. That is one Spark job, or two, for each group of changes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap_sinks.changelog import LogPosition, Manifest
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.schema.expression import temp
from waltap_spark.state.output import OutputState, TableState

# Columns that identify a change, with the number of its transaction.
CHANGE = ("_commit_lsn", "_lsn", "_seq", "_sub", "_commit_ts")


def reached(before: OutputState, manifests: Iterable[Manifest]) -> dict[int, int]:
    """Return, by epoch, the highest LSN of all epochs before it.

    ``before`` knew some of them; ``manifests`` add later epochs.
    """
    found = dict(before.reached_by or [(before.log_position.epoch, 0)])
    for each in manifests:
        if each.previous.epoch < each.log_position.epoch:
            # an older copy of the log ends before what was applied
            ends = each.previous.end_lsn, before.log_position.end_lsn
            found[each.log_position.epoch] = max(*ends, *found.values())
    return found


def needed(
    reach: Mapping[int, int], log_position: LogPosition, tables: Iterable[TableState]
) -> tuple[tuple[int, int], ...]:
    """Return the entries of ``reach`` that a table still needs.

    Tables without a position of their own are at ``log_position``.
    """
    oldest = min([log_position, *(each.log_position for each in tables if each.log_position)]).epoch
    return tuple((epoch, lsn) for epoch, lsn in reach.items() if epoch >= oldest)


def may_repeat(table: TableState, group: SegmentGroup, reach: Mapping[int, int]) -> bool:
    """Return whether ``group`` may repeat changes of an earlier epoch.

    ``reach`` is the result of `reached`.
    """
    before = next((reach[epoch] for epoch in sorted(reach) if epoch >= group.epoch), 0)
    return (
        bool(group.segments and table.file_schemas)
        and group.span is not None
        and group.span[0] < before
        and group.epoch > table.snapshot_epoch
    )


def lacks_values(table: TableState, group: SegmentGroup) -> bool:
    """Return whether repeated changes would remove values from rows.

    This concerns tables without a history. The values are unchanged ones that a row kept under
    its old key, or in a column that was added since.
    """
    has = {column.name for column in group.columns}
    return bool((group.key_changes and group.unchanged) or not has.issuperset(table.source_columns))


def remaining_rows(
    group: SegmentGroup, rows: DataFrame, history: DataFrame, *, all_or_none: bool
) -> DataFrame | None:
    """Leave out changes that ``history`` has from an earlier epoch.

    ``rows`` are the rows of ``group``. Return those that remain, None for all rows or none.
    ``all_or_none``: leave out all rows or none.
    """
    assert group.span is not None
    low, high = group.span
    known = (
        history.where((F.col("_epoch") < group.epoch) & (F.col("_op") != "r"))
        .where(F.col("_commit_lsn").between(low, high))
        .select(*(F.col(name).alias(temp(name)) for name in (*CHANGE, "_xid")))
        .distinct()
    )
    same = [F.col(name) == F.col(temp(name)) for name in CHANGE]
    same += [F.col("_op") != "r", F.col("_xid").eqNullSafe(F.col(temp("_xid")))]
    # `eqNullSafe` above, since changes of some sources have no transaction id.
    remaining = rows.join(known, same, "left_anti")
    counts = {row["_op"]: row["count"] for row in remaining.groupBy("_op").count().collect()}
    stay = sum(counts.values())
    # Nothing is repeated: the segments themselves are read, without a copy.
    if stay == group.rows or (all_or_none and stay):
        return None
    group.rows, group.operations = stay, Counter(counts)
    return remaining if stay else None
