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
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from waltap_sinks.changelog import Manifest
from waltap_spark.beside import unlike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from waltap_spark.output import TableState
    from waltap_spark.plan import Group

__all__ = ["lacks_values", "leave_out_known", "may_repeat", "reached"]

CHANGE = ("_commit_lsn", "_lsn", "_seq", "_sub", "_commit_ts")
"""What tells a change, besides the number of its transaction."""


def reached(before: int, manifests: Iterable[Manifest]) -> int:
    """Return the highest LSN of all epochs before that of the last of ``manifests``; ``before``: that of
    the epochs before the first one's predecessor."""
    ends = (m.previous.end_lsn for m in manifests if m.previous.epoch < m.mark.epoch)
    return max([before, *ends])


def may_repeat(table: "TableState", group: "Group", reach: int) -> bool:
    """Tell whether changes of ``group`` may be some that ``table`` had in an earlier epoch."""
    return (
        bool(group.segments and table.versions)
        and group.span is not None
        and group.span[0] < reach
        and group.epoch > table.snapshot_epoch
    )


def lacks_values(table: "TableState", group: "Group") -> bool:
    """Tell whether changes of ``group`` that come again to a table without a history would take values
    from its rows: what a row kept under its old key, or in a column that was added since."""
    has = {column.name for column in group.columns}
    return bool((group.moved and group.unchanged) or not has.issuperset(table.source_columns))


def leave_out_known(
    group: "Group",
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
