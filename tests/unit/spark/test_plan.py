"""What manifests mean for a table: groups in order, snapshots only when they are complete."""

from typing import Any

import pytest

from waltap_sinks.changelog.manifest import (
    NOTHING,
    VERSION,
    LogPosition,
    Manifest,
    Segment,
    SnapshotPart,
    TableEntry,
)
from waltap_spark.output import BasePart, TableState
from waltap_spark.plan import SegmentGroup, doubles, plan


def entry(path: str, table: str = "t", fingerprint: str = "f", **more: Any) -> TableEntry:
    segments = (Segment(path=path, rows=1, bytes=1),) if path else ()
    return TableEntry(
        schema="s",
        table=table,
        oid=1,
        identity="d",
        key=more.pop("key", ("id",)),
        fingerprint=fingerprint,
        columns=(),
        segments=segments,
        rows=len(segments),
        operations={"c": len(segments)},
        **more,
    )


def manifest(
    *tables: TableEntry, epoch: int = 1, ends: int | None = None, rows: int = 1
) -> Manifest:
    snapshot = None if ends is None else SnapshotPart(generation=ends, lsn=1, complete=True)
    return Manifest(
        version=VERSION,
        mark=LogPosition(epoch, 1, 0),
        previous=NOTHING,
        bucket="b",
        rows=rows,
        tables=tables,
        snapshot=snapshot,
    )


def groups(manifests: list[Manifest], table: str = "s.t", **tables: TableState) -> list[Any]:
    found = plan(manifests, {state.name: state for state in tables.values()}).get(table)
    if found is None:
        return []
    return [(group.replaces, group.segments) for group in found.groups]


def test_equal_schemas_of_one_epoch_are_applied_together() -> None:
    found = groups([manifest(entry("a")), manifest(entry("b"), entry("c"))])
    assert found == [(False, ["a", "b", "c"])]


def test_another_schema_key_or_epoch_starts_a_group() -> None:
    steps = [
        manifest(entry("a"), entry("b", fingerprint="g")),
        manifest(entry("c", fingerprint="g", key=("other",))),
        manifest(entry("d", fingerprint="g", key=("other",)), epoch=2),
    ]
    assert groups(steps) == [(False, ["a"]), (False, ["b"]), (False, ["c"]), (False, ["d"])]


def test_a_snapshot_waits_until_it_is_complete_and_then_replaces() -> None:
    first = plan([manifest(entry("old")), manifest(entry("a", generation=1))], {})["s.t"]
    assert [group.segments for group in first.groups] == [["old"]]
    assert [part.path for part in first.staged] == ["a"]
    state = TableState(schema="s", table="t", staged=tuple(first.staged))
    rest = [manifest(entry("b", generation=1, complete=True)), manifest(entry("new"))]
    assert groups(rest, t=state) == [(True, ["a", "b"]), (False, ["new"])]


def test_the_end_of_the_snapshot_completes_tables_that_are_not_mentioned_again() -> None:
    first = plan([manifest(entry("a", generation=1))], {})["s.t"]
    state = TableState(schema="s", table="t", staged=tuple(first.staged))
    assert groups([manifest(ends=1)], t=state) == [(True, ["a"])]


def test_parts_of_an_earlier_snapshot_count_for_nothing() -> None:
    steps = [
        manifest(entry("lost", generation=1)),
        manifest(entry("a", generation=2, complete=True)),
        manifest(ends=2),
    ]
    assert groups(steps) == [(True, ["a"])]


def test_a_table_that_restarts_in_a_snapshot_has_the_rows_from_there_on() -> None:
    steps = [
        manifest(entry("a", generation=1)),
        manifest(entry("b", generation=1, restarts=True)),
        manifest(entry("c", generation=1, complete=True)),
    ]
    assert groups(steps) == [(True, ["b", "c"])]


def test_an_empty_snapshot_empties_the_table() -> None:
    assert groups([manifest(entry("", generation=1, complete=True))]) == [(True, [])]


def test_a_snapshot_under_two_schemas_replaces_once() -> None:
    steps = [
        manifest(entry("a", generation=1)),
        manifest(entry("b", fingerprint="g", generation=1, complete=True)),
    ]
    assert groups(steps) == [(True, ["a"]), (False, ["b"])]


@pytest.mark.parametrize(
    ("operations", "stored", "oid", "doubted"),
    [
        ({"r": 2}, 3, 1, True),
        ({"r": 2}, 0, 1, False),
        ({"r": 2, "c": 1}, 0, 1, True),
        ({"r": 2}, 3, 2, False),
        ({"c": 2}, 3, 1, False),
    ],
)
def test_rows_without_a_key_that_are_read_again_are_doubted_where_there_may_be_others_of_the_table(
    operations: dict[str, int], stored: int, oid: int, *, doubted: bool
) -> None:
    parts = (BasePart(path="b", rows=stored, columns={}, epoch=1, ids={}),) if stored else ()
    table = TableState(schema="s", table="t", oid=1, base=parts)
    group = SegmentGroup(fingerprint="f", epoch=1, key=(), columns=(), oid=oid)
    group.operations.update(operations)
    group.span = (1, 2)
    assert bool(doubles(table, group)) == doubted
