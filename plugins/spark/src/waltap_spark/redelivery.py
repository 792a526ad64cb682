"""Changes that come again: a pipeline that lost its offset reads an older slot, in a new epoch of the log.

Such a change is told by its own LSN, its number in its transaction, and that transaction's number,
position and time: another server, or one that was restored, has others. (Rows of a COPY have one LSN; a
filter may have left some out the first time.) What the table's history has from an earlier epoch is left
out before anything is applied, in every mode and format. A snapshot in the new epoch may be older than
what was applied: after it nothing is left out.

The history is asked about the LSNs of the changes alone, and only up to the highest that an earlier epoch
reached. That is one Spark job, or two, for each group of changes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from waltap_sinks.changelog import LogPosition, Manifest
from waltap_spark.temp_columns import unlike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from waltap_spark.output import OutputState, TableState
    from waltap_spark.plan import SegmentGroup

__all__ = ["lacks_values", "leave_out_known", "may_repeat", "needed", "reached"]

CHANGE = ("_commit_lsn", "_lsn", "_seq", "_sub", "_commit_ts")
"""What tells a change, besides the number of its transaction."""


def reached(before: "OutputState", manifests: Iterable[Manifest]) -> dict[int, int]:
    """Return, by epoch, the highest LSN of all epochs before it: what ``before`` knew, and more of
    ``manifests``."""
    found = dict(before.reached_by or [(before.mark.epoch, before.reached)])
    for each in manifests:
        if each.previous.epoch < each.mark.epoch:
            found[each.mark.epoch] = max(each.previous.end_lsn, *found.values())
    return found


def needed(
    reach: Mapping[int, int], mark: LogPosition, tables: "Iterable[TableState]"
) -> tuple[tuple[int, int], ...]:
    """Return of ``reach`` the epochs that some of ``tables``, which else stand at ``mark``, has still to
    come."""
    oldest = min([mark, *(each.mark for each in tables if each.mark)]).epoch
    return tuple((epoch, lsn) for epoch, lsn in reach.items() if epoch >= oldest)


def _before(reach: Mapping[int, int], epoch: int) -> int:
    """Return the highest LSN before ``epoch``; an earlier version knew that of the last alone."""
    return next((reach[each] for each in sorted(reach) if each >= epoch), 0)


def may_repeat(table: "TableState", group: "SegmentGroup", reach: Mapping[int, int]) -> bool:
    """Tell whether changes of ``group`` may be some that ``table`` had in an earlier epoch.

    ``reach``: as `reached` has it.
    """
    return (
        bool(group.segments and table.versions)
        and group.span is not None
        and group.span[0] < _before(reach, group.epoch)
        and group.epoch > table.snapshot_epoch
    )


def lacks_values(table: "TableState", group: "SegmentGroup") -> bool:
    """Tell whether changes of ``group`` that come again to a table without a history would take values
    from its rows: what a row kept under its old key, or in a column that was added since."""
    has = {column.name for column in group.columns}
    return bool((group.moved and group.unchanged) or not has.issuperset(table.source_columns))


def leave_out_known(
    group: "SegmentGroup",
    rows: "DataFrame",
    history: "DataFrame",
    write: "Callable[[DataFrame], str]",
    *,
    whole: bool = False,
) -> None:
    """Leave changes out of ``group`` that ``history``, that of its table, has from an earlier epoch.

    ``rows`` are the group's. What stays is written by ``write``, which returns where, unless it is all.
    ``whole``: nothing is left out unless all is.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    assert group.span is not None
    (low, high), own = group.span, unlike(rows.columns, "_known")
    known = (
        history.where((F.col("_epoch") < group.epoch) & (F.col("_op") != "r"))
        .where(F.col("_commit_lsn").between(low, high))
        .select(*(F.col(name).alias(f"{own}{name}") for name in (*CHANGE, "_xid")))
        .distinct()
    )
    same = [F.col(name) == F.col(f"{own}{name}") for name in CHANGE]
    same += [F.col("_op") != "r", F.col("_xid").eqNullSafe(F.col(f"{own}_xid"))]
    left = rows.join(known, same, "left_anti")
    counts = {row["_op"]: row["count"] for row in left.groupBy("_op").count().collect()}
    stay = sum(counts.values())
    if stay == group.rows or (whole and stay):
        return
    group.rows, group.operations = stay, Counter(counts)
    if stay:
        group.converted = [write(left)]
