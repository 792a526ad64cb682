"""What manifests mean for a table, how many one commit takes, and when a table is looked at or tried again."""

import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.harness.changelog import WrittenLog, context
from tests.harness.handed import ITEMS, Chunk, rows
from tests.harness.pipeline import until

from waltap_sinks.changelog.errors import RowsInExternalSnapshot
from waltap_sinks.changelog.manifest import (
    NOTHING,
    VERSION,
    LogPosition,
    Manifest,
    Segment,
    SnapshotPart,
    TableEntry,
)
from waltap_spark.apply import applier
from waltap_spark.apply.applier import MOST, RETRY_S, TRY_S, TableRetries
from waltap_spark.apply.snapshot_splits import (
    NO_MORE,
    AssignedSplits,
    DriverInput,
    packed,
    splits_of,
)
from waltap_spark.config.properties import SparkProperties
from waltap_spark.driver.batch_size import ENTRY, LEAST, SCHEMA, AdaptiveBatchSize
from waltap_spark.planning.plan import SegmentGroup, apply_added_key, doubles, plan
from waltap_spark.state.output import BasePart, StagedSegment, TableState


def entry(path: str = "", **more: Any) -> TableEntry:
    segments = (Segment(path=path, rows=1, bytes=1),) if path else ()
    given = {"schema": "s", "table": "t", "oid": 1, "identity": "d", "key": ("id",), "columns": ()}
    given |= {"fingerprint": "f", "segments": segments, "rows": len(segments)}
    return TableEntry(**{**given, "operations": {"c": len(segments)}, **more})


def manifest(
    *tables: TableEntry, number: int = 1, epoch: int = 1, ends: int | None = None, rows: int = 1
) -> Manifest:
    snapshot = None if ends is None else SnapshotPart(snapshot_id=ends, lsn=1, complete=True)
    return Manifest(
        version=VERSION,
        log_position=LogPosition(epoch, number, 0),
        previous=NOTHING,
        bucket="b",
        rows=rows,
        tables=tables,
        snapshot=snapshot,
    )


# --- groups in order, snapshots only when they are complete ---------------------------------------------

OTHER_KEY = {"fingerprint": "g", "key": ("other",)}


GROUPS = {
    "equal schemas of one epoch are applied together": (
        [manifest(entry("a")), manifest(entry("b"), entry("c"))],
        [(False, "a b c")],
    ),
    "another schema, key or epoch starts a group": (
        [
            manifest(entry("a"), entry("b", fingerprint="g")),
            manifest(entry("c", **OTHER_KEY)),
            manifest(entry("d", **OTHER_KEY), epoch=2),
        ],
        [(False, "a"), (False, "b"), (False, "c"), (False, "d")],
    ),
    "parts of an earlier snapshot count for nothing": (
        [
            manifest(entry("lost", snapshot_id=1)),
            manifest(entry("a", snapshot_id=2, complete=True)),
            manifest(ends=2),
        ],
        [(True, "a")],
    ),
    "a table that restarts has the rows from there on": (
        [
            manifest(entry("a", snapshot_id=1)),
            manifest(entry("b", snapshot_id=1, restarts=True)),
            manifest(entry("c", snapshot_id=1, complete=True)),
        ],
        [(True, "b c")],
    ),
    "an empty snapshot empties the table": (
        [manifest(entry(snapshot_id=1, complete=True))],
        [(True, "")],
    ),
    "a snapshot under two schemas replaces once": (
        [
            manifest(entry("a", snapshot_id=1)),
            manifest(entry("b", fingerprint="g", snapshot_id=1, complete=True)),
        ],
        [(True, "a"), (False, "b")],
    ),
}


def groups(steps: list[Manifest], *staged: StagedSegment) -> list[tuple[bool, str]]:
    made = plan(steps, {"s.t": TableState(schema="s", table="t", staged=staged)})["s.t"]
    return [(group.replaces, " ".join(group.segments)) for group in made.groups]


@pytest.mark.parametrize("case", GROUPS)
def test_manifests_become_groups(case):
    steps, found = GROUPS[case]
    assert groups(steps) == found


def test_a_snapshot_waits_until_it_is_complete_and_then_replaces():
    """Tables that are not mentioned again are completed by its end."""
    first = plan([manifest(entry("old")), manifest(entry("a", snapshot_id=1))], {})["s.t"]
    assert [[*group.segments] for group in first.groups] == [["old"]]
    assert [part.path for part in first.staged] == ["a"]
    rest = [manifest(entry("b", snapshot_id=1, complete=True)), manifest(entry("new"))]
    assert groups(rest, *first.staged) == [(True, "a b"), (False, "new")]
    assert groups([manifest(ends=1)], *first.staged) == [(True, "a")]


@pytest.mark.parametrize(("oid", "key"), [(0, ("id",)), (1, ())])
def test_a_truncate_of_a_topic_has_the_key_of_its_table(oid, key):
    """A feed that just started may not know it; a table of a server has its own."""
    table = TableState(schema="s", table="t", key=("id",))
    groups = plan([manifest(entry(oid=oid, key=(), operations={"t": 1}))], {})["s.t"].groups
    apply_added_key(table, groups)
    assert groups[0].key == key


@pytest.mark.parametrize(
    ("operations", "stored", "oid", "needs_snapshot"),
    [
        ({"r": 2}, 3, 1, True),
        ({"r": 2}, 0, 1, False),
        ({"r": 2, "c": 1}, 0, 1, True),
        ({"r": 2}, 3, 2, False),
        ({"c": 2}, 3, 1, False),
    ],
)
def test_rows_without_a_key_that_are_read_again_are_doubted_where_there_may_be_others_of_the_table(
    operations, stored, oid, *, needs_snapshot
):
    parts = (BasePart(path="b", rows=stored, columns={}, epoch=1, ids={}),) if stored else ()
    table = TableState(schema="s", table="t", oid=1, base=parts)
    group = SegmentGroup(fingerprint="f", epoch=1, key=(), columns=(), oid=oid)
    group.operations.update(operations)
    group.span = (1, 2)
    assert bool(doubles(table, group)) == needs_snapshot


# --- a commit takes what fits into the time that it is given ---------------------------------------------


def backlog(count: int, rows: int, tables: int = 0) -> list[Manifest]:
    return [manifest(*[entry()] * tables, number=n, rows=rows) for n in range(count)]


def rows_of(part: list[Manifest]) -> int:
    return sum(step.rows for step in part)


def paced(
    steps: list[Manifest], most: int, seconds: Callable[[list[Manifest]], float]
) -> tuple[list[int], list[float]]:
    """Apply all of it on a machine that takes so many seconds; return rows and seconds of each commit."""
    pace, sizes, took = AdaptiveBatchSize(5.0, most), list[int](), list[float]()
    for part in pace.portions(steps):
        sizes.append(rows_of(part))
        took.append(seconds(part))
        pace.took(took[-1])
    return sizes, took


def test_commits_fit_the_time_of_a_slow_machine_and_the_bound_of_rows_of_a_fast_one():
    sizes, took = paced(backlog(40, 50_000), 5_000_000, lambda part: rows_of(part) / 20_000)
    assert sum(sizes) == 2_000_000
    assert max(took) <= 5.0
    assert min(took[1:-1]) >= 2.5, "nor are they smaller than they need be"
    sizes, _ = paced(backlog(200, 100_000), 3_000_000, lambda part: rows_of(part) / 2_000_000)
    assert max(sizes) == 3_000_000
    assert sizes.index(3_000_000) <= 4
    _, took = paced(backlog(400, 10_000), 5_000_000, lambda part: (rows_of(part) / 100_000) ** 2)
    assert max(took[5:]) <= 6.0, "a cost that grows faster than the rows"


def test_many_tables_and_other_schemas_count_for_more_than_their_rows():
    pace = AdaptiveBatchSize(5.0, 5_000_000)
    pace.limit = 3 * (300 + 300 * ENTRY)
    assert {len(part) for part in pace.portions(backlog(20, 300, tables=300))} == {3, 2}
    pace.limit = 2 * SCHEMA + 9 * (ENTRY + 1)
    for fingerprint, lengths in (("one", [9]), ("", [3, 3, 3])):
        steps = [manifest(entry(fingerprint=fingerprint or f"{n}"), number=n) for n in range(9)]
        assert [len(part) for part in pace.portions(steps)] == lengths


def test_a_small_commit_that_was_slow_by_chance_does_not_stop_everything():
    pace = AdaptiveBatchSize(5.0, 5_000_000)
    for _ in range(9):
        for part in pace.portions([manifest()]):
            assert part
            pace.took(60.0)
    assert LEAST <= pace.limit <= 2 * LEAST


def test_a_commit_that_costs_much_as_such_takes_more_and_keeps_up():
    """Twenty tables for eight seconds, whatever they have; each second brings a manifest of all of them."""
    pace, clock, done, slowest = AdaptiveBatchSize(5.0, 5_000_000), 200.0, 0, 0.0
    for _ in range(40):
        for part in pace.portions(backlog(int(clock), 300, tables=20)[done:]):
            seconds = 8.0 + sum(step.rows + ENTRY * 20 for step in part) / 100_000
            pace.took(seconds)
            clock, done, slowest = clock + seconds, done + len(part), max(slowest, seconds)
    assert clock - done < 40, "the backlog of 200 seconds is gone, and none came since"
    assert slowest <= 25


def test_nothing_is_learnt_from_tables_that_tasks_read_of_the_source():
    """Minutes for a manifest without rows say nothing of what a commit of changes costs."""
    read = [manifest(entry(external_snapshot="a"), number=number, rows=0) for number in (1, 2)]
    _, took = paced(
        [*read, *backlog(200, 50_000)[3:]], 5_000_000,
        lambda part: 300.0 if part[0].external_snapshots else rows_of(part) / 20_000,
    )  # fmt: skip
    assert took[:2] == [300.0, 300.0]
    assert max(took[2:]) <= 5.0


# --- chunks that an engine hands to its Spark process, and what the log says of tables that come so ------


@pytest.fixture
def log(tmp_path) -> Iterator[WrittenLog]:
    made = WrittenLog(tmp_path).open()
    yield made
    made.close()


def test_a_process_gets_what_is_written_to_it_whole_and_learns_of_the_end(tmp_path):
    reading, writing = os.pipe()
    chunks = [Chunk(ITEMS, number, 2) for number in range(2)]
    tables = splits_of(chunks, context(tmp_path))
    with open(reading, "rb") as inner, open(writing, "wb") as outer:
        inbox = DriverInput(inner)
        data = packed("one", {**tables, 7: AssignedSplits(count=1, pickled=bytes(3 << 20))})
        outer.write(data[:20])
        outer.flush()
        assert inbox.of("one") is None
        assert not inbox.gone()
        outer.write(data[20:])
        outer.flush()
        until(lambda: inbox.of("one") is not None, "chunks")
        found = inbox.of("one")
        assert inbox.of("two") is None
        assert not inbox.gone()
        outer.write(NO_MORE)
        outer.close()
        until(inbox.gone, "the end")
        with pytest.raises(LookupError):
            inbox.of("one")
    assert found[ITEMS.oid].count == 2
    terms, read = pickle.loads(found[ITEMS.oid].pickled)
    assert terms.described.columns == ITEMS.columns
    assert [chunk.index for chunk in read] == [0, 1]


def test_a_process_ends_that_cannot_read_what_it_is_given(caplog):
    reading, writing = os.pipe()
    with open(reading, "rb") as inner, open(writing, "wb") as outer:
        inbox = DriverInput(inner)
        outer.write((4).to_bytes(8, "big") + b"what")
        outer.flush()
        until(inbox.gone, "the end")
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("restarted", [False, True])
def test_who_asks_the_log_for_such_rows_is_refused_until_another_snapshot_has_them(log, restarted):
    """Which never goes on as the one that tasks read."""
    log.flush(rows("one"))
    with pytest.raises(RowsInExternalSnapshot, match=r"WT-5112 rows of public\.items"):
        log.rows("items", skip_replaced=True)
    if restarted:
        log.close()
        log.open(has_offset=True)
    log.flush(rows("", [("1", "a")]))
    assert [row["v"] for row in log.rows("items", skip_replaced=True)] == ["a"]


def test_a_profile_that_executors_cannot_serve_is_refused():
    profile = {"path": "x", "snapshot.readers": "executors", "applier": "none"}
    with pytest.raises(ValueError, match=r"snapshot\.readers = executors wants"):
        SparkProperties.model_validate(profile)


# --- tables at rest, and those that are suspended -----------------------------------------------------------


def test_a_try_that_takes_long_is_made_as_much_less_often(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(applier.time, "monotonic", lambda: now[0])
    known = TableRetries()
    assert known.due("t")
    for spent, pause in (
        (0.5, RETRY_S),
        (10 * TRY_S, 10 * RETRY_S),
        (99 * TRY_S, MOST * RETRY_S),
        (1.0, RETRY_S),
    ):
        with known.timed("t"):
            now[0] += spent
        known.failed("t")
        now[0] += pause - 1
        assert not known.due("t")
        assert known.due("another")
        now[0] += 1
        assert known.due("t")
    known.failed("t")
    known.forget("t")
    assert known.due("t")
