"""A table that took the name of one that is gone: what becomes of columns that have another type now.

The history of the one that is gone stays. Where a type holds the values of both, its column has that;
where none does, it gets a name of its own, as a dropped one does whose name another takes.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from waltap_spark.column_identity import aside, put_aside
from waltap_spark.formats import CommitContext, TableChange, TableFormat
from waltap_spark.log_rows import logged_types
from waltap_spark.output import SparkOutput, TableState
from waltap_spark.plan import SegmentGroup
from waltap_spark.wide_decimals import make_readable

if TYPE_CHECKING:
    from waltap.files.store import FileStore

__all__ = ["readable_types", "with_spare_names"]


def with_spare_names(
    tables: TableFormat,
    step: CommitContext,
    gone: TableState,
    table: TableState,
    group: SegmentGroup,
    types: Mapping[str, str],
) -> TableState:
    """Return ``table``, which took the place of ``gone`` and gets ``types``, columns of ``group``,
    with those put aside that have others. Columns by which files are divided, and those of a target that
    is shared, stay.
    """
    if table.place is not None or not (table.mode.history or table.mode.name == "append"):
        return table
    spares = aside(gone, types, by_number=not tables.writes_in_place)
    spares = {name: new for name, new in spares.items() if name not in tables.needed(table)}

    def learn(before: TableState) -> TableState:
        return put_aside(before, gone, group, types, spares)

    if not spares:
        return learn(table)
    change = TableChange(key=table.key, renames=spares, replaces=False, learn=learn)
    return tables.evolve(step, table, change)


def readable_types(
    step: CommitContext,
    table: TableState,
    group: SegmentGroup,
    store: "FileStore",
    output: SparkOutput,
) -> dict[str, str]:
    """Return the columns of ``group``; see that Spark reads its segments."""
    make_readable(store, output, group, partial(step.path, table, "changes"))
    known = table.versions.get(group.fingerprint)
    if known is not None:
        return known
    return logged_types(step.spark, store, group) if group.segments else {}
