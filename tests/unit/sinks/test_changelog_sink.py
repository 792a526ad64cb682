"""The change log: whole transactions only, in order, typed, none lost, none doubled."""

import datetime as dt
import shutil
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import Database, batch, context, in_parts, relation, replay

from waltap.files import FilesInUse
from waltap.source.position import Position
from waltap.transactions.transaction import Batch, SnapshotRows
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink, FileStore
from waltap_sinks.changelog.errors import (
    ChangeLogDamaged,
    ChangeLogOlder,
    ChangeLogRetired,
    ColumnNameTaken,
    TransactionGap,
)

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
VISITS = relation("public.visits", [("person", "int4"), ("page", "text")], key=(), identity="f")


def sink(path: Path, *, resumes: bool = True, **properties: Any) -> ChangeLogSink:
    settings = ChangeLogProperties(path=str(path), **properties)
    return ChangeLogSink(settings, context(path, resumes=resumes))


def opened(path: Path, **more: Any) -> ChangeLogSink:
    made = sink(path, **more)
    made.open()
    return made


def deliver(path: Path, *parts: Any, **more: Any) -> None:
    """Write transactions as one batch, and end."""
    log = opened(path, **more)
    log.write(batch(*parts))
    log.flush()
    log.close()


def rows(path: Path, table: str = "people") -> list[dict[str, Any]]:
    found = ChangeLog(str(path)).rows("public", table)
    return [row for part in found for row in part.to_pylist()]


def as_text(table: list[dict[str, Any]]) -> list[tuple[str | None, ...]]:
    return sorted(tuple(None if v is None else str(v) for v in row.values()) for row in table)


def test_rows_are_typed_and_carry_their_position(tmp_path: Path) -> None:
    table = relation(
        "public.t",
        [
            ("id", "int8"),
            ("flag", "bool"),
            ("price", "numeric(10,2)"),
            ("ratio", "float8"),
            ("day", "date"),
            ("at", "timestamp"),
            ("seen", "timestamptz"),
            ("small", "int2"),
        ],
    )
    db = Database()
    db.insert(
        table,
        [
            "1",
            "t",
            "12.30",
            "0.1",
            "2013-01-31",
            "2013-01-31 05:17:00.25",
            "2013-01-31 05:17:00+02",
            "7",
        ],
        ["2", None, None, "NaN", None, None, None, None],
    )
    part = db.commit()
    log = opened(tmp_path)
    log.write(batch(part))
    assert log.flush() == Position(part.end_lsn)
    log.close()
    first, second = rows(tmp_path, "t")
    assert first == {
        "id": 1,
        "flag": True,
        "price": Decimal("12.30"),
        "ratio": 0.1,
        "day": dt.date(2013, 1, 31),
        "at": dt.datetime(2013, 1, 31, 5, 17, 0, 250000),
        "seen": dt.datetime(2013, 1, 31, 3, 17, tzinfo=dt.UTC),
        "small": 7,
        "_op": "c",
        "_commit_lsn": part.commit_lsn,
        "_seq": 0,
        "_sub": 0,
        "_lsn": part.changes[0].lsn,
        "_commit_ts": dt.datetime.fromtimestamp(part.commit_ts / 1e6, dt.UTC),
        "_xid": part.xid,
        "_unchanged": None,
        "_epoch": 1,
        "_generation": None,
    }
    assert (second["id"], second["flag"], second["_seq"]) == (2, None, 1)


def test_every_operation_replays_to_the_state_of_the_table(tmp_path: Path) -> None:
    db = Database()
    log = opened(tmp_path)
    db.insert(PEOPLE, ["1", "Ann", "long"], ["2", "Bob", None], ["3", "Cy", "x"])
    db.insert(VISITS, ["1", "a"], ["1", "a"], ["2", "b"])
    log.write(batch(db.commit()))
    db.update(PEOPLE, ["1"], name="Anne", unsent=["note"])
    db.update(PEOPLE, ["2"], id="20")
    db.update(PEOPLE, ["1"], id="10", unsent=["note"])
    db.delete(PEOPLE, ["3"])
    db.update(VISITS, ["1", "a"], page="c")
    db.delete(VISITS, ["1", "a"])
    log.write(batch(db.commit()))
    log.flush()
    log.close()
    assert as_text(replay(rows(tmp_path), ["id"])) == sorted(db.rows["public.people"])
    assert as_text(replay(rows(tmp_path, "visits"), [])) == sorted(db.rows["public.visits"])
    moved = [(r["_op"], r["_sub"], r["id"]) for r in rows(tmp_path) if r["_seq"] == 1][-2:]
    assert moved == [("d", 0, 2), ("c", 1, 20)]
    people, visits = list(ChangeLog(str(tmp_path)).manifests())[0].tables
    assert (people.key, people.unchanged, people.moved) == (("id",), ("note",), 1)
    assert (visits.key, visits.operations) == ((), {"c": 3, "d": 2, "u": 1})


def test_a_truncate_stands_in_its_place(tmp_path: Path) -> None:
    db = Database()
    db.insert(PEOPLE, ["1", "Ann", None])
    db.insert(VISITS, ["1", "a"])
    db.truncate(PEOPLE, VISITS)
    db.insert(PEOPLE, ["1", "Other", None])
    deliver(tmp_path, db.commit())
    assert [row["_op"] for row in rows(tmp_path)] == ["c", "t", "c"]
    assert as_text(replay(rows(tmp_path), ["id"])) == [("1", "Other", None)]
    assert replay(rows(tmp_path, "visits"), []) == []


def test_half_a_transaction_is_never_visible(tmp_path: Path) -> None:
    """It spills to its own segments while earlier ones are published, and appears at its commit."""
    db = Database()
    log = opened(tmp_path, chunk_rows=2, memory_bytes=0)
    db.insert(PEOPLE, ["0", "before", None])
    small = db.commit()
    db.insert(PEOPLE, *[[str(n), "x", None] for n in range(1, 11)])
    parts = in_parts(db.commit(), 4, 4, 2)
    log.write(batch(small, parts[0]))
    assert log.flush() == Position(small.end_lsn)
    assert [row["id"] for row in rows(tmp_path)] == [0]
    log.write(batch(parts[1]))
    assert log.flush() == Position(small.end_lsn)
    assert [row["id"] for row in rows(tmp_path)] == [0]
    log.write(batch(parts[2]))
    assert log.flush() == Position(parts[2].end_lsn)
    assert [(row["id"], row["_seq"]) for row in rows(tmp_path)[1:]] == [
        (n, n - 1) for n in range(1, 11)
    ]
    log.close()


def test_a_transaction_that_broke_off_counts_from_its_second_delivery(tmp_path: Path) -> None:
    db = Database()
    log = opened(tmp_path)
    db.insert(PEOPLE, *[[str(n), "x", None] for n in range(4)])
    parts = in_parts(db.commit(), 2, 2)
    log.write(batch(parts[0]))
    for part in parts:
        log.write(batch(part))
    log.flush()
    assert [row["id"] for row in rows(tmp_path)] == [0, 1, 2, 3]
    log.close()


def test_the_middle_of_an_unknown_transaction_is_refused(tmp_path: Path) -> None:
    db = Database()
    log = opened(tmp_path)
    db.insert(PEOPLE, *[[str(n), "x", None] for n in range(4)])
    with pytest.raises(TransactionGap, match="change 2"):
        log.write(batch(in_parts(db.commit(), 2, 2)[1]))
    log.close()


def test_what_is_delivered_again_is_left_out(tmp_path: Path) -> None:
    db = Database()
    log = opened(tmp_path)
    parts = []
    for number in range(4):
        db.insert(PEOPLE, [str(number), "x", None])
        parts.append(db.commit())
    log.write(batch(*parts[:2]))
    log.flush()
    log.write(batch(parts[2]))
    log.write(batch(*parts[:3]))  # a reconnect: from the last stored position
    log.flush()
    log.close()
    again = sink(tmp_path)
    assert again.open() == Position(parts[2].end_lsn)
    again.write(batch(*parts))
    again.flush()
    again.close()
    assert [row["id"] for row in rows(tmp_path)] == [0, 1, 2, 3]


def test_a_transaction_right_behind_the_published_one_is_none_of_those_again(
    tmp_path: Path,
) -> None:
    """Its commit record begins where the last one ended: in one run, and at the next start."""
    db = Database()
    log = opened(tmp_path)
    end = 0
    for number in range(6):
        db.insert(PEOPLE, [str(number), "x", None])
        part = db.commit()
        if number:
            part.commit_lsn = end
        end = part.end_lsn
        if number == 3:
            log.flush()
            log.close()
            log = opened(tmp_path)
        log.write(batch(part))
    log.flush()
    log.close()
    assert [row["id"] for row in rows(tmp_path)] == list(range(6))


def test_a_schema_change_starts_a_new_segment(tmp_path: Path) -> None:
    wider = relation(
        "public.people", [("id", "int4"), ("name", "text"), ("note", "text"), ("age", "int4")]
    )
    db = Database()
    db.insert(PEOPLE, ["1", "Ann", None])
    db.insert(wider, ["2", "Bob", None, "44"])
    deliver(tmp_path, db.commit())
    old, new = ChangeLog(str(tmp_path)).rows("public", "people")
    assert "age" not in old.schema.names
    assert new.to_pylist()[0]["age"] == 44
    entries = next(ChangeLog(str(tmp_path)).manifests()).tables
    assert entries[0].fingerprint != entries[1].fingerprint


def test_equal_relations_share_a_segment(tmp_path: Path) -> None:
    """A decoder announces a relation again after a reconnect; nothing has changed by it."""
    twin = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
    db = Database()
    db.insert(PEOPLE, ["1", "Ann", None])
    db.insert(twin, ["2", "Bob", None])
    deliver(tmp_path, db.commit())
    (entry,) = next(ChangeLog(str(tmp_path)).manifests()).tables
    assert entry.rows == 2
    assert len(entry.segments) == 1


def test_large_tables_get_several_segments(tmp_path: Path) -> None:
    db = Database()
    db.insert(PEOPLE, *[[str(n), "x", None] for n in range(25)])
    deliver(tmp_path, *[db.commit()], segment_rows=10, chunk_rows=3, memory_bytes=0)
    (entry,) = next(ChangeLog(str(tmp_path)).manifests()).tables
    assert [part.rows for part in entry.segments] == [10, 10, 5]
    assert [row["id"] for row in rows(tmp_path)] == list(range(25))


# --- snapshots ---------------------------------------------------------------------------------------


def test_an_interrupted_snapshot_counts_for_nothing(tmp_path: Path) -> None:
    db = Database()
    db.insert(PEOPLE, *[[str(n), "x", None] for n in range(7)])
    db.insert(VISITS, ["1", "a"])
    db.commit()
    first = db.snapshot(PEOPLE, VISITS)
    log = opened(tmp_path)
    for part in first[:2]:
        log.write(part)
        log.flush()
    log.close()
    assert rows(tmp_path) == []
    db.insert(PEOPLE, ["7", "later", None])
    db.commit()
    again = sink(tmp_path)
    assert again.open() is None
    for part in db.snapshot(PEOPLE, VISITS):
        again.write(part)
        again.flush()
    db.insert(PEOPLE, ["8", "streamed", None])
    streamed = db.commit()
    again.write(batch(streamed))
    assert again.flush() == Position(streamed.end_lsn)
    again.close()
    found = rows(tmp_path)
    assert [row["id"] for row in found] == list(range(9))
    assert [row["_op"] for row in found] == ["r"] * 8 + ["c"]
    assert {row["_seq"] for row in found[:8]} == {-1}
    generations = {
        manifest.snapshot.generation
        for manifest in ChangeLog(str(tmp_path)).manifests()
        if manifest.snapshot
    }
    assert generations == {1, 2}


def test_a_snapshot_that_starts_again_in_the_same_run_is_a_new_generation(tmp_path: Path) -> None:
    db = Database()
    db.insert(PEOPLE, *[[str(n), "x", None] for n in range(7)])
    db.commit()
    log = opened(tmp_path)
    log.write(db.snapshot(PEOPLE)[0])
    for part in db.snapshot(PEOPLE):
        log.write(part)
    log.flush()
    log.close()
    assert [row["id"] for row in rows(tmp_path)] == list(range(7))


def test_a_table_that_restarts_is_taken_from_its_first_row(tmp_path: Path) -> None:
    """Chunks of before count for nothing, published or not; those of other tables stay."""
    db = Database()
    db.insert(PEOPLE, *[[str(n), "x", None] for n in range(9)])
    db.insert(VISITS, ["1", "a"], ["2", "b"])
    db.commit()
    visits, *before = db.snapshot(VISITS, PEOPLE)[:3]
    db.update(PEOPLE, ["0"], name="changed")
    db.delete(PEOPLE, ["4"])
    db.commit()
    log = opened(tmp_path)
    for piece in (visits, before[0]):
        log.write(piece)
    log.flush()
    log.write(before[1])
    again = db.snapshot(PEOPLE)
    again[0].parts[0].opens, again[0].parts[0].restarts = False, True  # type: ignore[union-attr]
    for piece in again:
        log.write(piece)
    log.flush()
    log.close()
    people = [entry for m in ChangeLog(str(tmp_path)).manifests() for entry in m.tables]
    assert [e.restarts for e in people if e.table == "people"] == [False, True]
    restarted = [e.rows for e in people if e.table == "people"][1]
    assert restarted == 8
    assert {row["person"] for row in rows(tmp_path, "visits")} == {1, 2}
    found = rows(tmp_path)
    assert [(row["id"], row["name"]) for row in found] == [
        (int(id_), name) for id_, name, _ in db.rows["public.people"]
    ]


def test_a_log_that_starts_over_begins_an_epoch(tmp_path: Path) -> None:
    """Without a stored offset what comes may be another server, whose LSNs are smaller."""
    old = Database()
    old.lsn = 0x9000000
    old.insert(PEOPLE, ["1", "old", None])
    deliver(tmp_path, old.commit())
    new = Database()
    new.insert(PEOPLE, ["1", "new", None])
    again = sink(tmp_path, resumes=False)
    assert again.open() is None
    again.write(batch(new.commit()))
    again.flush()
    again.close()
    assert [row["name"] for row in rows(tmp_path)] == ["old", "new"]
    assert [manifest.mark.epoch for manifest in ChangeLog(str(tmp_path)).manifests()] == [1, 2]


def test_a_piece_that_a_filter_has_emptied_is_not_the_end_of_its_table(tmp_path: Path) -> None:
    db = Database()
    db.insert(PEOPLE, *[[str(n), "x", None] for n in range(9)])
    db.commit()
    log = opened(tmp_path)
    for number, piece in enumerate(db.snapshot(PEOPLE)):
        if number == 1:
            piece.parts[0].rows = []  # type: ignore[union-attr]
        log.write(piece)
    log.flush()
    log.close()
    assert [row["id"] for row in rows(tmp_path)] == [0, 1, 2, 6, 7, 8]


def test_rows_of_an_incremental_snapshot_stand_between_transactions(tmp_path: Path) -> None:
    """What was streamed before the chunk is older than it, what comes after is newer."""
    db = Database()
    log = opened(tmp_path)
    db.insert(PEOPLE, ["1", "first", None])
    before = db.commit()
    db.update(PEOPLE, ["1"], name="last")
    after = db.commit()
    chunk = SnapshotRows(
        relation=PEOPLE,
        rows=[("1", "read", None), ("2", "read", None)],
        ts=before.commit_ts,
        lsn=None,
        xid=None,
        first_marker="incremental",
        last_marker="incremental",
        kind="incremental",
    )
    log.write(Batch(parts=[before, chunk, after], position=Position(after.end_lsn), events=4))
    log.flush()
    log.close()
    found = sorted(rows(tmp_path), key=lambda r: (r["_commit_lsn"], r["_seq"], r["_sub"]))
    assert [(row["_op"], row["id"]) for row in found] == [("c", 1), ("r", 1), ("r", 2), ("u", 1)]
    assert as_text(replay(found, ["id"])) == [("1", "last", None), ("2", "read", None)]
    assert next(ChangeLog(str(tmp_path)).manifests()).snapshot is None


# --- the log's own limits -----------------------------------------------------------------------------


def test_flush_without_anything_new_writes_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.flush() is None
    db = Database()
    db.insert(PEOPLE, ["1", "Ann", None])
    part = db.commit()
    log.write(batch(part))
    log.flush()
    assert log.flush() == Position(part.end_lsn)
    assert len(list(ChangeLog(str(tmp_path)).manifests())) == 1
    log.close()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(FilesInUse, match="process"):
        sink(tmp_path).open()
    log.close()
    opened(tmp_path).close()


def test_a_column_with_a_name_of_the_log_is_refused(tmp_path: Path) -> None:
    table = relation("public.odd", [("id", "int4"), ("_op", "text")])
    db = Database()
    db.insert(table, ["1", "x"])
    log = opened(tmp_path)
    with pytest.raises(ColumnNameTaken, match=r"column.exclude.list = public\\.odd\\._op"):
        log.write(batch(db.commit()))
    log.close()


def test_names_of_every_kind_become_folders(tmp_path: Path) -> None:
    table = relation('we/ird."Ta ble" ü', [("id", "int4")])
    db = Database()
    db.insert(table, ["1"])
    deliver(tmp_path, db.commit())
    (found,) = ChangeLog(str(tmp_path)).rows("we/ird", '"Ta ble" ü')
    assert found.num_rows == 1


def test_any_filesystem_will_do(tmp_path: Path) -> None:
    settings = ChangeLogProperties(path=f"file://{tmp_path}/log")
    log = ChangeLogSink(settings, context(tmp_path))
    log.open()
    db = Database()
    db.insert(PEOPLE, ["1", "Ann", None])
    log.write(batch(db.commit()))
    log.flush()
    log.close()
    assert len(rows(tmp_path / "log")) == 1


def test_a_filesystem_that_is_no_local_disk_holds_a_log(tmp_path: Path) -> None:
    """Arrow's filesystem in memory: no locks, no synchronising, nothing but its interface."""
    store = FileStore("mock:///log")
    settings = ChangeLogProperties(path="mock:///log")
    log = ChangeLogSink(settings, context(tmp_path, resumes=True), store=store)
    db = Database()
    for number in range(2):
        log.open()
        db.insert(PEOPLE, [str(number), "Ann", None])
        part = db.commit()
        log.write(batch(part))
        assert log.flush() == Position(part.end_lsn)
        log.close()
    (found,) = ChangeLog(store).rows("public", "people")
    assert found.column("id").to_pylist() == [0, 1]
    assert log.open() == Position(part.end_lsn)
    log.close()
    reader = ChangeLog(store)
    last = reader.last()
    assert last is not None
    assert reader.retire(last.mark, before="99991231T235") == 1
    assert reader.sweep(before="99991231T235") == 0


# --- reading and retiring -----------------------------------------------------------------------------


def filled(path: Path, count: int) -> list[Any]:
    log, db = opened(path), Database()
    for number in range(count):
        db.insert(PEOPLE, [str(number), "x", None])
        log.write(batch(db.commit()))
        log.flush()
    log.close()
    return list(ChangeLog(str(path)).manifests())


def test_a_reader_goes_on_after_a_mark(tmp_path: Path) -> None:
    steps = filled(tmp_path, 4)
    log = ChangeLog(str(tmp_path))
    assert [m.mark for m in log.manifests(steps[1].mark)] == [m.mark for m in steps[2:]]
    assert [m.mark for m in log.manifests(steps[0].mark, steps[2].mark)] == [
        m.mark for m in steps[1:3]
    ]
    assert list(log.manifests(steps[-1].mark)) == []
    assert [m.mark for m in log.manifests(None)] == [m.mark for m in steps]


def test_a_missing_manifest_is_an_error(tmp_path: Path) -> None:
    steps = filled(tmp_path, 3)
    (tmp_path / steps[1].path).unlink()
    with pytest.raises(ChangeLogDamaged, match="does not follow"):
        list(ChangeLog(str(tmp_path)).manifests())


def test_a_damaged_manifest_is_an_error(tmp_path: Path) -> None:
    (step,) = filled(tmp_path, 1)
    (tmp_path / step.path).write_bytes(b'{"mark"')
    with pytest.raises(ChangeLogDamaged, match="is not a manifest"):
        opened(tmp_path)


def test_what_a_snapshot_goes_on_from_is_not_retired(tmp_path: Path) -> None:
    """Its first tables may be applied long before its last one is read."""
    db, log = Database(), ChangeLog(str(tmp_path))
    for number in range(3):
        db.insert(PEOPLE, [str(number), "x", None])
    db.commit()
    made = opened(tmp_path)
    pieces = db.snapshot(PEOPLE, rows_each=1)
    for piece in pieces[:2]:
        made.write(piece)
        made.flush()
        assert log.retire(made.mark, before="99991231T00") == 0
    for piece in pieces[2:]:
        made.write(piece)
    made.flush()
    made.close()
    assert log.retire(made.mark, before="99991231T00") == 2


def test_what_was_applied_can_be_retired_and_the_log_goes_on(tmp_path: Path) -> None:
    steps = filled(tmp_path, 3)
    log = ChangeLog(str(tmp_path))
    assert log.retire(steps[0].mark, before="99991231T00") == 1
    assert not (tmp_path / steps[0].tables[0].segments[0].path).exists()
    assert log.retire(steps[2].mark, before="20000101T00") == 0
    assert log.retire(steps[2].mark, before="99991231T00") == 1  # the newest stays
    with pytest.raises(ChangeLogRetired, match="reaches back"):
        list(log.manifests(steps[0].mark))
    again = sink(tmp_path)
    assert again.open() == Position(steps[2].mark.end_lsn)
    again.close()
    assert log.sweep(before="99991231T00") == 0


def test_sweep_leaves_what_the_next_manifest_will_name(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    log = opened(tmp_path, **{"memory.max.bytes": 1})
    db = Database()
    db.lsn = 1 << 40
    db.insert(PEOPLE, *[[str(n), "n" * 100, None] for n in range(20_000)])
    log.write(batch(db.commit()))
    written = list(tmp_path.glob("segments/**/*.parquet"))
    assert len(written) > 1, "nothing was spilled"
    with pytest.raises(FilesInUse):
        ChangeLog(str(tmp_path)).sweep(before="99991231T00")
    log.flush()
    log.close()
    assert ChangeLog(str(tmp_path)).sweep(before="99991231T00") == 0
    assert len(rows(tmp_path)) >= 20_000


@pytest.mark.parametrize("location", ["", "mock:///log"])
def test_sweep_leaves_what_an_open_transaction_has_written_under_an_older_mark(
    tmp_path: Path, location: str
) -> None:
    """It began before the newest manifest; a bucket has no lock that would tell of its writer."""
    store = FileStore(location or str(tmp_path / "log"))
    settings = ChangeLogProperties(
        path=location or str(tmp_path / "log"), **{"memory.max.bytes": 1}
    )
    log, db = ChangeLogSink(settings, context(tmp_path), store=store), Database()
    log.open()
    db.insert(PEOPLE, ["1", "whole", None])
    whole = db.commit()
    db.insert(PEOPLE, *[[str(n), "n" * 100, None] for n in range(2, 20_002)])
    first, last = in_parts(db.commit(), 19_000, 1_000)
    log.write(batch(whole))
    log.write(batch(first))
    log.flush()
    reader = ChangeLog(store if location else FileStore(str(tmp_path / "log")))
    with nullcontext() if location else pytest.raises(FilesInUse):
        assert reader.sweep(before="99991231T00") == 0
    log.write(batch(last))
    log.flush()
    log.close()
    assert sum(len(part) for part in reader.rows("public", "people")) == 20_001
    assert reader.sweep(before="99991231T00") == 0


def test_sweep_removes_what_no_manifest_names(tmp_path: Path) -> None:
    steps = filled(tmp_path, 2)
    kept = tmp_path / steps[0].tables[0].segments[0].path
    orphan = kept.with_name("orphan.parquet")
    orphan.write_bytes(b"")
    assert ChangeLog(str(tmp_path)).sweep(before="99991231T00") == 1
    assert kept.exists()
    assert not orphan.exists()


@pytest.mark.parametrize("name", ["_epoch", "_generation"])
def test_a_column_with_a_name_that_readers_get_besides_is_refused_to_them(
    tmp_path: Path, name: str
) -> None:
    table, db = relation("public.odd", [("id", "int4"), (name, "text")]), Database()
    db.insert(table, ["1", "x"])
    deliver(tmp_path, db.commit())
    with pytest.raises(ColumnNameTaken, match=rf"WT-5104 public.odd has a column {name}"):
        rows(tmp_path, "odd")


def test_rows_tell_the_snapshot_and_the_epoch_they_are_of(tmp_path: Path) -> None:
    db = Database()
    db.insert(PEOPLE, ["1", "old", None], ["2", "gone", None])
    db.commit()
    log = opened(tmp_path, resumes=False)
    for part in db.snapshot(PEOPLE):
        log.write(part)
    log.flush()
    db.insert(PEOPLE, ["3", "streamed", None])
    log.write(batch(db.commit()))
    log.flush()
    log.close()
    db.delete(PEOPLE, ["2"])
    db.commit()
    log = opened(tmp_path, resumes=False)
    for part in db.snapshot(PEOPLE):
        log.write(part)
    log.flush()
    db.insert(PEOPLE, ["4", "after", None])
    log.write(batch(db.commit()))
    log.flush()
    log.close()

    told = [(row["id"], row["_epoch"], row["_generation"]) for row in rows(tmp_path)]
    assert told == [(1, 1, 1), (2, 1, 1), (3, 1, None), (1, 2, 2), (3, 2, 2), (4, 2, None)]
    (standing,) = ChangeLog(str(tmp_path)).rows("public", "people", standing=True)
    assert standing["id"].to_pylist() == [1, 3, 4]
    assert standing["_generation"].to_pylist() == [2, 2, None]


def test_a_value_that_does_not_fit_is_null_told_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Any value that PostgreSQL takes; nothing stops, and the next value is kept."""
    table = relation(
        "public.odd",
        [("id", "int4"), ("n", "numeric(10,2)"), ("d", "date"), ("at", "timestamp"),
         ("seen", "timestamptz"), ("clock", "time")],
    )  # fmt: skip
    db = Database()
    fits = ["1.50", "2024-01-01", "2024-01-01 00:00:00", "2024-01-01 00:00:00+00", "01:00:00"]
    odd = [
        ["NaN", "infinity", "-infinity", "infinity", "24:00:00"],
        ["Infinity", "-infinity", "20000-01-01 00:00:00", "0044-03-15 00:00:00+00 BC", "24:00:00"],
    ]
    db.insert(table, ["0", *fits], *[[str(n), *row] for n, row in enumerate(odd, 1)])
    log = opened(tmp_path)
    log.write(batch(db.commit()))
    log.flush()
    db.insert(table, ["3", *odd[0]], ["4", *fits])
    log.write(batch(db.commit()))
    log.flush()
    log.close()
    found = rows(tmp_path, "odd")
    assert [row["n"] for row in found] == [Decimal("1.50"), None, None, None, Decimal("1.50")]
    assert all(found[at][name] is None for at in (1, 2, 3) for name in ("d", "at", "seen", "clock"))
    first, second = ChangeLog(str(tmp_path)).manifests()
    assert first.tables[0].misfits == {"n": 2, "d": 2, "at": 2, "seen": 2, "clock": 2}
    assert second.tables[0].misfits == {"n": 1, "d": 1, "at": 1, "seen": 1, "clock": 1}
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == len(set(warnings)) == 7, "each column and reason once"
    assert "column n of public.odd: numeric NaN or infinity; null is written" in warnings[0]


def test_an_older_copy_in_the_place_of_the_log_is_noticed(tmp_path: Path) -> None:
    log, copy, newer = tmp_path / "log", tmp_path / "copy", tmp_path / "newer"

    def start(*, resumes: bool = True) -> ChangeLogSink:
        made = ChangeLogSink(
            ChangeLogProperties(path=str(log)), context(tmp_path / "state", resumes=resumes)
        )
        try:
            made.open()
        except BaseException:
            made.close()
            raise
        return made

    db = Database()
    made = start()
    for key in ("1", "2"):
        db.insert(PEOPLE, [key, "Ann", "long"])
        made.write(batch(db.commit()))
        made.flush()
        if key == "1":
            shutil.copytree(log, copy)
    made.close()
    start().close()
    log.rename(newer)
    copy.rename(log)
    with pytest.raises(ChangeLogOlder, match="published up to"):
        start()
    log.rename(copy)
    newer.rename(log)
    start().close()
    log.rename(newer)
    copy.rename(log)
    start(resumes=False).close()  # without a stored offset a new epoch begins
