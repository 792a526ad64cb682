"""The change log: whole transactions only, in order, typed, none lost, none doubled."""

import datetime as dt
import re
import resource
import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.harness.changelog import Database, WrittenLog, batch, in_parts, relation, replay

from waltap.base.files.errors import AccessRefused, FilesInUse, FilesUnavailable
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.transactions.position import Position, SnapshotProgress
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap_sinks.changelog import ChangeLog, FileStore
from waltap_sinks.changelog.errors import (
    ChangeLogDamaged,
    ChangeLogExpired,
    ChangeLogOlder,
    ColumnNameTaken,
    TransactionGap,
)

COLUMNS = [("id", "int4"), ("name", "text"), ("note", "text")]
PEOPLE = relation("public.people", COLUMNS)
FAR = "99991231T00"


@pytest.fixture
def log(tmp_path) -> WrittenLog:
    return WrittenLog(tmp_path)


def people(db: Database, *ids: int) -> TransactionPart:
    return db.inserted(PEOPLE, *[[str(number), "x", None] for number in ids])


def ids(log: WrittenLog) -> list[int]:
    return [row["id"] for row in log.rows()]


def as_text(table: list[dict[str, Any]]) -> list[tuple[str | None, ...]]:
    return sorted(tuple(None if v is None else str(v) for v in row.values()) for row in table)


def large(db: Database, count: int) -> TransactionPart:
    name = "x" * 300
    start = len(db.rows.get(PEOPLE.name, ())) + 1
    db.insert(PEOPLE, *[[str(number), name, None] for number in range(start, start + count)])
    return db.commit()


def test_a_segment_that_a_thread_could_not_write_is_no_part_of_the_log(log):
    """The error of a large table comes with a later call; everything unpublished is delivered again."""
    settings = {"compression": "none", "memory.max.bytes": 1 << 21}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with log.open(settings, has_offset=True):
        first = people(log.db, 100_001)
        log.flush(first)
        parts = [large(log.db, 10_000) for _ in range(4)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, hard))
        try:
            with pytest.raises(FilesUnavailable, match="refuses segments/"):
                for part in parts:
                    log.write(part)
                log.sink.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ids(log) == [100_001]
    with log.open(settings, has_offset=True):
        assert log.opened_at == Position(first.end_lsn)
        log.flush(*parts)
    assert ids(log) == [100_001, *range(2, 40_002)]


def test_rows_are_typed_and_carry_their_position(log):
    """Seconds in fractions and zones among them; what has no value is null."""
    values: dict[str, tuple[str, str, Any]] = {
        "id": ("int8", "1", 1),
        "flag": ("bool", "t", True),
        "price": ("numeric(10,2)", "12.30", Decimal("12.30")),
        "ratio": ("float8", "0.1", 0.1),
        "day": ("date", "2013-01-31", dt.date(2013, 1, 31)),
        "at": ("timestamp", "2013-01-31 05:17:00.25", dt.datetime(2013, 1, 31, 5, 17, 0, 250000)),
        "seen": (
            "timestamptz",
            "2013-01-31 05:17:00+02",
            dt.datetime(2013, 1, 31, 3, 17, tzinfo=dt.UTC),
        ),
        "small": ("int2", "7", 7),
    }
    table = relation("public.t", [(name, kind) for name, (kind, _, _) in values.items()])
    part = log.db.inserted(table, [text for _, text, _ in values.values()], ["2", *[None] * 7])
    with log.open():
        assert log.flush(part) == Position(part.end_lsn)
    first, second = log.rows("t")
    assert first == {name: value for name, (_, _, value) in values.items()} | {
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


# --- transactions ------------------------------------------------------------------------------------


def test_half_a_transaction_is_never_visible(log):
    """It spills to its own segments while earlier ones are published, and appears at its commit."""
    with log.open({"chunk.rows": 2, "memory.max.bytes": 0}):
        small, parts = people(log.db, 0), in_parts(people(log.db, *range(1, 11)), 4, 4, 2)
        for given in ((small, parts[0]), (parts[1],)):
            assert log.flush(*given) == Position(small.end_lsn)
            assert ids(log) == [0]
        assert log.flush(parts[2]) == Position(parts[2].end_lsn)
    assert [(r["id"], r["_seq"]) for r in log.rows()[1:]] == [(n, n - 1) for n in range(1, 11)]


def test_a_transaction_that_broke_off_counts_from_its_second_delivery(log):
    """And its middle is refused where its beginning did not come."""
    parts = in_parts(people(log.db, *range(4)), 2, 2)
    with log.open():
        with pytest.raises(TransactionGap, match="change 2"):
            log.write(parts[1])
    with log.open():
        for part in (parts[0], *parts):
            log.write(part)
        log.flush()
    assert ids(log) == [0, 1, 2, 3]


def test_a_transaction_right_behind_the_published_one_is_none_of_those_again(log):
    """Its commit record begins where the last one ended: in one run, and at the next start."""
    log.open()
    end = 0
    for number in range(6):
        part = people(log.db, number)
        part.commit_lsn, end = end or part.commit_lsn, part.end_lsn
        if number == 3:
            log.flush()
            log.close()
            log.open(has_offset=True)
        log.write(part)
    log.flush()
    log.close()
    assert ids(log) == list(range(6))


# --- segments ----------------------------------------------------------------------------------------


def once(given: Iterable[object]) -> list[object]:
    """Return ``given`` without those that equal the one before."""
    return [each for each, _ in groupby(given)]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "commits",
    [["a7 b7 a7 b7", "a7"], ["a7 b8", "a8 a8"], ["a7", "a7 b7"], ["a7", "b7 b7", "a7"]],
    ids=str,
)
def test_entries_of_a_table_are_in_the_order_of_its_names(log, commits, parts):
    """Also where it gets an earlier name again, or that of another, within a transaction or by another one."""
    names = [each for commit in commits for each in commit.split()]
    tables = {
        each: relation(f"public.{each[0]}", [("id", "int4")], oid=int(each[1])) for each in names
    }
    numbers = iter(range(len(names)))
    with log.open():
        for commit in commits:
            changed = commit.split()
            for each in changed:
                log.db.insert(tables[each], [str(next(numbers))])
            sizes = (len(changed) - 1, 1) if parts == 2 and len(changed) > 1 else (len(changed),)
            log.write(*map(batch, in_parts(log.db.commit(), *sizes)))
        log.flush()
    found = [(entry.table, str(entry.oid)) for entry in log.newest.tables]
    for at in (0, 1):
        for each in {name[at] for name in names}:
            assert once(e[1 - at] for e in found if e[at] == each) == once(
                name[1 - at] for name in names if name[at] == each
            )
    assert [row["id"] for row in log.rows("a")] == [
        n for n, name in enumerate(names) if name[0] == "a"
    ]


def test_large_tables_get_several_segments(log):
    with log.open({"segment.max.rows": 10, "chunk.rows": 3, "memory.max.bytes": 0}):
        log.flush(people(log.db, *range(25)))
    assert [part.rows for part in log.manifests()[0].tables[0].segments] == [10, 10, 5]
    assert ids(log) == list(range(25))


# --- snapshots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("had", "again"), [(2, 1), (3, 2), (3, 3)])
def test_a_snapshot_that_resumes_takes_each_chunk_once_and_is_completed(log, had, again):
    """The kill came between its last rows and its end, or before the offset had the last chunk."""
    people(log.db, *range(7))
    pieces = log.db.snapshot(PEOPLE)
    end = pieces[-1]
    with log.open():
        log.flush(*pieces[:had])
    progress = SnapshotProgress(kind="initial", lsn=log.db.lsn)
    with log.open(has_offset=True, snapshot=progress):
        assert log.opened_at is None
        assert log.flush(*pieces[again:]) == end.position
        assert log.sink.stored_position() == end.position
    assert ids(log) == list(range(7))
    assert [e.complete for m in log.manifests() for e in m.tables].count(True) == 1
    assert [m.snapshot.complete for m in log.manifests() if m.snapshot] == [False, True]
    with log.open(has_offset=True):
        assert log.opened_at == end.position


def test_a_snapshot_that_starts_again_in_the_same_run_is_a_new_generation(log):
    people(log.db, *range(7))
    with log.open():
        log.write(log.db.snapshot(PEOPLE)[0])
        log.flush(*log.db.snapshot(PEOPLE))
    assert ids(log) == list(range(7))


def test_a_piece_that_a_filter_has_emptied_is_not_the_end_of_its_table(log):
    people(log.db, *range(9))
    pieces = log.db.snapshot(PEOPLE)
    pieces[1].parts[0].rows = []  # type: ignore[union-attr]
    with log.open():
        log.flush(*pieces)
    assert ids(log) == [0, 1, 2, 6, 7, 8]


def test_rows_of_an_incremental_snapshot_stand_between_transactions(log):
    """What was streamed before the chunk is older than it, what comes after is newer."""
    before = people(log.db, 1)
    log.db.update(PEOPLE, ["1"], name="last")
    after = log.db.commit()
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
    with log.open():
        log.flush(Batch(parts=[before, chunk, after], position=Position(after.end_lsn), events=4))
    found = sorted(log.rows(), key=lambda r: (r["_commit_lsn"], r["_seq"], r["_sub"]))
    assert [(row["_op"], row["id"]) for row in found] == [("c", 1), ("r", 1), ("r", 2), ("u", 1)]
    assert as_text(replay(found, ["id"])) == [("1", "last", None), ("2", "read", None)]
    assert log.manifests()[0].snapshot is None


def test_rows_show_the_snapshot_and_the_epoch_they_are_of(log):
    """A log that starts over begins an epoch: what comes may be of another server, whose LSNs are smaller."""
    people(log.db, 1, 2)
    for streamed, lsn in ((3, 0x9000000), (4, 0x2000000)):
        log.db.lsn = lsn
        with log.open():
            assert log.opened_at is None
            log.flush(*log.db.snapshot(PEOPLE))
            log.flush(people(log.db, streamed))
        if streamed == 3:
            log.db.delete(PEOPLE, ["2"])
            log.db.commit()
    reported = [(row["id"], row["_epoch"], row["_generation"]) for row in log.rows()]
    assert reported == [(1, 1, 1), (2, 1, 1), (3, 1, None), (1, 2, 2), (3, 2, 2), (4, 2, None)]
    live = [(row["id"], row["_generation"]) for row in log.rows(skip_replaced=True)]
    assert live == [(1, 2), (3, 2), (4, None)]


# --- the log's own limits -----------------------------------------------------------------------------


def test_one_writer_at_a_time(log, tmp_path):
    with log.open(), pytest.raises(FilesInUse, match="process"):
        WrittenLog(tmp_path).open()
    log.open().close()


def test_a_part_of_a_key_that_nothing_maps_is_text(log):
    names = [("id", "int4"), ("at", "pg_lsn"), ("left", "pg_lsn")]
    keyed = relation("public.keyed", names, key=("id", "at"))
    with log.open():
        log.insert(keyed, ["1", "0/1", None], ["1", "0/2", None])
    (entry,) = log.newest.tables
    assert (entry.key, [each.type for each in entry.columns]) == (("id", "at"), ["int4", "pg_lsn"])
    assert [(row["id"], row["at"]) for row in log.rows("keyed")] == [(1, "0/1"), (1, "0/2")]


def test_a_table_whose_columns_are_all_left_out_has_its_operations(log):
    rules = {"topic.prefix": "t", "column.exclude.list": r"public\.bare\.id"}
    bare = relation("public.bare", [("id", "int4")], key=(), identity="f")
    with log.open(capture=CaptureRules(CaptureProperties.model_validate(rules))):
        log.insert(bare, ["1"], ["2"])
    assert [row["_op"] for row in log.rows("bare")] == ["c", "c"]
    assert log.newest.tables[0].columns == ()


@pytest.mark.parametrize("name", ["_op", "_epoch", "_generation"])
def test_a_column_with_a_name_of_the_log_is_refused_to_the_writer_or_to_readers(log, name):
    log.db.insert(relation("public.odd", [("id", "int4"), (name, "text")]), ["1", "x"])
    with log.open():
        if name == "_op":
            with pytest.raises(ColumnNameTaken, match=r"exclude.list = public\\.odd\\._op"):
                log.write(log.db.commit())
            return
        log.flush(log.db.commit())
    with pytest.raises(ColumnNameTaken, match=rf"WT-5104 public.odd has a column {name}"):
        log.rows("odd")


def test_names_of_every_kind_become_folders_on_any_filesystem(tmp_path):
    log = WrittenLog(tmp_path, f"file://{tmp_path}/log")
    with log.open():
        log.insert(relation('we/ird."Ta ble" ü', [("id", "int4")]), ["1"])
    (found,) = ChangeLog(str(tmp_path / "log")).rows("we/ird", '"Ta ble" ü')
    assert found.num_rows == 1


@pytest.mark.parametrize("how", [{"has_offset": False}, {"has_offset": True, "repairs": True}])
def test_who_has_read_more_than_an_older_copy_goes_on_with_its_next_epoch(log, tmp_path, how):
    """Positions of the epoch that the copy lacks are not used again."""
    place, copy = Path(log.path), tmp_path / "copy"
    with log.open():
        log.flush(people(log.db, 1))
        shutil.copytree(place, copy)
    with log.open():
        for number in (2, 3):
            log.flush(people(log.db, number))
    within, reached = (step.log_position for step in log.manifests()[1:])
    shutil.rmtree(place)
    copy.rename(place)
    with pytest.raises(ChangeLogOlder, match="published up to"):
        log.open(has_offset=True)
    log.close()
    with log.open(**how):
        log.flush(people(log.db, 4))
    for seen in (within, reached):
        (step,) = log.log.manifests(seen)
        assert step.log_position.epoch == reached.epoch + 1
    assert [step.log_position.epoch for step in log.manifests()] == [1, 3]


# --- reading and retiring -----------------------------------------------------------------------------


@pytest.fixture
def filled(log) -> WrittenLog:
    with log.open():
        for number in range(4):
            log.flush(people(log.db, number))
    return log


def test_a_manifest_that_is_missing_or_damaged_is_an_error(filled):
    steps, folder = filled.manifests(), Path(filled.path)
    (folder / steps[-1].path).write_bytes(b'{"mark"')
    with pytest.raises(ChangeLogDamaged, match="is not a manifest"):
        filled.open()
    filled.close()
    (folder / steps[1].path).unlink()
    with pytest.raises(ChangeLogDamaged, match="does not follow"):
        filled.manifests()


def test_what_a_snapshot_goes_on_from_is_not_retired(log):
    """Its first tables may be applied long before its last one is read."""
    people(log.db, 0, 1, 2)
    pieces = log.db.snapshot(PEOPLE, rows_each=1)
    with log.open():
        for piece in pieces[:2]:
            log.flush(piece)
            assert log.log.expire(log.sink.log_position, before=FAR) == 0
        log.flush(*pieces[2:])
    assert log.log.expire(log.sink.log_position, before=FAR) == 2


def test_folders_of_what_is_retired_go_but_not_those_of_an_open_transaction(log, monkeypatch):
    buckets = (f"20260101T00{number}" for number in range(9))
    monkeypatch.setattr("waltap_sinks.changelog.sink.next_bucket", lambda *_of: next(buckets))
    with log.open():
        for number in range(4):
            log.flush(people(log.db, number))
    steps, segments = log.manifests(), Path(log.path) / "segments"
    written = segments / steps[1].bucket / "public/people/open.parquet"
    written.write_bytes(b"")
    assert log.log.expire(steps[3].log_position, before=FAR) == 3
    left = [each for each in segments.rglob("*") if each.is_dir() and not list(each.iterdir())]
    assert (left, written.exists()) == ([], True)
    found = sorted(each.name for each in segments.iterdir())
    assert found == [steps[1].bucket, steps[3].bucket]


def test_what_was_applied_can_be_retired_and_what_nobody_names_goes(filled):
    steps, log = filled.manifests(), filled.log
    first = Path(filled.path) / steps[0].tables[0].segments[0].path
    orphan = first.with_name("orphan.parquet")
    orphan.write_bytes(b"")
    assert log.vacuum(before=FAR) == 1
    assert (first.exists(), orphan.exists()) == (True, False)
    assert log.expire(steps[0].log_position, before=FAR) == 1
    assert not first.exists()
    assert log.expire(steps[3].log_position, before="20000101T00") == 0
    assert log.expire(steps[3].log_position, before=FAR) == 2  # the newest stays
    with pytest.raises(ChangeLogExpired, match="reaches back"):
        list(log.manifests(steps[0].log_position))
    with filled.open(has_offset=True):
        assert filled.opened_at == Position(steps[3].log_position.end_lsn)
    assert log.vacuum(before=FAR) == 0


@pytest.mark.parametrize("bucket", [False, True])
def test_sweep_leaves_what_an_open_transaction_has_written_under_an_older_mark(tmp_path, bucket):
    """It began before the newest manifest; a bucket has no lock that would report its writer."""
    location = f"mock://{tmp_path}" if bucket else ""
    log = WrittenLog(tmp_path, location, store=FileStore(location) if location else None)
    with log.open({"memory.max.bytes": 1}):
        whole = people(log.db, 1)
        log.db.insert(PEOPLE, *[[str(n), "n" * 100, None] for n in range(2, 20_002)])
        first, last = in_parts(log.db.commit(), 19_000, 1_000)
        log.write(whole)
        log.flush(first)
        spilled = list(tmp_path.glob("log/segments/**/*.parquet"))
        assert location or len(spilled) > 1, "nothing was spilled"
        with nullcontext() if location else pytest.raises(FilesInUse):
            assert log.log.vacuum(before=FAR) == 0
        log.flush(last)
    assert len(log.rows()) == 20_001
    assert log.log.vacuum(before=FAR) == 0


@pytest.mark.parametrize("damage", ["segment cut", "segment gone", "manifest cut"])
def test_a_check_names_a_damaged_file_and_what_helps(log, damage):
    with log.open():
        for number in range(3):
            log.flush(people(log.db, number))
    (checked,) = log.sink.check()
    assert checked.verdict == "ok"
    kind, what = damage.split()
    path = sorted((log.folder / "log" / f"{kind}s").rglob("*.*"))[1]
    path.write_bytes(path.read_bytes()[:-9]) if what == "cut" else path.unlink()
    (checked,) = log.sink.check()
    assert checked.verdict == "warning"
    assert "damaged files: 1;" in checked.found
    assert path.name in checked.found
    assert re.search(rf"Restore \S*{path.name} from a copy", checked.remedy)


def test_a_blocking_snapshot_comes_behind_changes_of_the_tables_former_name(log):
    before, now = (relation(f"public.{name}", [("id", "int4")], oid=7) for name in "ab")
    first = log.db.inserted(before, ["1"])
    piece = SnapshotRows(
        relation=now, rows=[("1",)], ts=1, lsn=log.db.lsn, xid=7, kind="blocking",
        all_rows=True, restarts=True, complete=True,
    )  # fmt: skip
    with log.open():
        log.write(first)
        at = Position(log.db.lsn)
        log.write(Batch(parts=[piece], position=at, events=1))
        log.flush()
    found = [(entry.table, entry.snapshot_id is not None) for entry in log.newest.tables]
    assert found == [("a", False), ("b", True)]


def test_what_was_written_by_a_clock_that_was_ahead_is_retired_with_what_follows(log, monkeypatch):
    far = "20990101T000"
    with monkeypatch.context() as patch, log.open():
        patch.setattr("waltap_sinks.changelog.sink.next_bucket", lambda *_of: far)
        log.flush(people(log.db, 1))
    with log.open(has_offset=True):
        for number in (2, 3):
            log.flush(people(log.db, number))
    assert [row["id"] for row in log.rows()] == [1, 2, 3]
    end = log.manifests()[-1].log_position
    assert log.log.expire(end, before="20260101T000") == 0
    assert log.log.expire(end, before=far) == 2, "the newest stays"


def test_credentials_that_azure_lacks_are_no_bug_of_the_sink():
    """Text and class are those of pyarrow where nobody has logged in."""
    store = FileStore("abfss://container@account.dfs.core.windows.net/log")
    text = "Unknown error: N5Azure4Core11Credentials23AuthenticationExceptionE: Failed to get token"
    with pytest.raises(AccessRefused), store.writing("f"):
        raise pa.ArrowException(text)
    with pytest.raises(pa.ArrowInvalid), store.writing("f"):
        raise pa.ArrowInvalid("rows that do not fit the schema")
