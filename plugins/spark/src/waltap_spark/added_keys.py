"""Rows that came before their table had the key that its mode is by: they are told by the key it got.

A table without a key can be kept in some modes only (`waltap_spark.modes.unfit`), so it stands still.
Once it has a key, and the log has rows of it since, the older ones are taken as if they had come by that
key. Where nothing but inserts came before, no two of them have one key, or the server had refused it: the
table is then what it would be had the key been there. Deletes and updates may have been of rows that were
alike in the key by then, and rows may lack its columns: both leave a doubt, which a snapshot ends. Knows
no Spark.
"""

from collections.abc import Sequence
from typing import Final

from waltap_spark.modes import TableMode, unfit
from waltap_spark.plan import SegmentGroup

__all__ = ["take_late_key"]

ADDS: Final = frozenset("crt")
"""Operations that leave no row beside another one of its key, once there is a key: c, r and t."""


def take_late_key(mode: TableMode, groups: Sequence[SegmentGroup]) -> None:
    """Give each of ``groups`` that cannot be kept in ``mode`` for want of a key that of the next one that
    has one; those without the columns of the key bring nothing (`SegmentGroup.lost`)."""
    later: SegmentGroup | None = None
    for group in reversed(groups):
        if group.key:
            later = group
        elif later is not None and unfit(mode, (), {}) and not group.lost:
            _take(group, later)


def _take(group: SegmentGroup, later: SegmentGroup) -> None:
    """The same whatever else is tried with it: it may have been written so before."""
    if group.oid and later.oid and group.oid != later.oid:
        group.lost, group.rows = True, 0  # of a table that is gone, in the source too
        return
    key = _called(group, later)
    if key is None:
        group.lost, group.rows = True, 0
        names = ", ".join(later.key)
        group.doubt = f"rows from before it had its key ({names}) lack that, and were left out"
        return
    group.key = key
    if not ADDS.issuperset(group.operations):
        group.crossed = True
        group.doubt = "rows were changed before it had its key, by which they were told afterwards"


def _called(group: SegmentGroup, later: SegmentGroup) -> tuple[str, ...] | None:
    """Return what ``group`` calls the columns of the key of ``later``; None where it lacks one."""
    numbers = {column.name: column.number for column in later.columns}
    by_number = {column.number: column.name for column in group.columns}
    names = {column.name: column.number for column in group.columns}
    found = []
    for name in later.key:
        number = numbers.get(name)
        if number is not None and number in by_number:
            found.append(by_number[number])
        elif name in names and None in {number, names[name]}:
            found.append(name)
        else:
            return None
    return tuple(found)
