"""Identify older rows by a key that came later.

Some modes need a key (`waltap_spark.state.modes.unfit`), so a table without one is suspended. When the
source adds a key and the log has rows with it, the older rows are applied by that key.

With inserts alone before the key this is exact. The server would have refused the key if two rows
had the same values. Deletes and updates may have met rows with equal key values, and rows may
lack the key's columns. Both cases mark the table for a new snapshot. Knows no Spark.
"""

from collections.abc import Sequence
from typing import Final

from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.state.modes import TableMode, unfit

# Operations that leave no second row with the same key: create, read and truncate.
ADDS: Final = frozenset("crt")


def apply_added_key(mode: TableMode, groups: Sequence[SegmentGroup]) -> None:
    """Apply a later key to earlier groups without one.

    Groups whose mode works without a key stay as they are. A group without the key's columns adds
    no rows (`SegmentGroup.lost`).
    """
    later: SegmentGroup | None = None
    for group in reversed(groups):
        if group.key:
            later = group
        elif later is not None and unfit(mode, (), {}) and not group.lost:
            _take(group, later)


def _take(group: SegmentGroup, later: SegmentGroup) -> None:
    """Apply the key of ``later`` to ``group``.

    The result depends on these two groups alone. An earlier attempt may have written it already,
    and a retry must write the same rows.
    """
    if group.oid and later.oid and group.oid != later.oid:
        group.lost, group.rows = True, 0  # the source dropped that table
        return
    key = _called(group, later)
    if key is None:
        group.lost, group.rows = True, 0
        names = ", ".join(later.key)
        group.snapshot_reason = (
            f"rows from before it had its key ({names}) lack that, and were left out"
        )
        return
    group.key = key
    if not ADDS.issuperset(group.operations):
        # an update or delete before the key may have met several rows with equal key values
        group.key_reused = True
        group.snapshot_reason = (
            "rows were changed before it had its key, by which they were identified afterwards"
        )


def _called(group: SegmentGroup, later: SegmentGroup) -> tuple[str, ...] | None:
    """Return the names in ``group`` for the key columns of ``later``.

    None means that the group lacks one of them.
    """
    numbers = {column.name: column.number for column in later.columns}
    by_number = {column.number: column.name for column in group.columns}
    names = {column.name: column.number for column in group.columns}
    found = []
    for name in later.key:
        number = numbers.get(name)
        if number is not None and number in by_number:
            found.append(by_number[number])
        # without a column number on both sides, the name decides
        elif name in names and None in {number, names[name]}:
            found.append(name)
        else:
            return None
    return tuple(found)
