"""What tables keep of the past: versions, deleted rows, history; what ends rows, what comes again, and keys that come late."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.changelog import COMMIT_TS, batch, relation
from tests.harness.lake import Lake
from tests.harness.spark import Rig
from tests.harness.spark_machine import Machine, playground
from tests.harness.spark_steps import (
    Apply,
    Commit,
    Delete,
    Insert,
    Move,
    Rotate,
    Snapshot,
    Step,
    Truncate,
    Update,
)
from tests.harness.versions import ends, states, versions

from waltap.changes.transactions.transaction import TransactionPart
from waltap_spark.read.live import LiveTables
from waltap_spark.read.verify import compare
from waltap_spark.state.modes import EXTRA, ModeRules
from waltap_spark.state.output import TableState

# --- columns of the change that made a row --------------------------------------------------------

KEPT_AS = ("versions", "soft", "kept", "logged")
COLUMNS = [("id", "int4"), ("name", "text"), ("note", "text")]
KEY = ("id",)


STAMPED = ModeRules(
    modes=(r"public\.versions:scd2", "scd1"),
    deletes=(r"public\.soft:soft", r"public\.kept:kept", "hard"),
    extra=tuple(EXTRA),
)


def stamp(row: dict[str, Any]) -> tuple[Any, ...]:
    at = row["_commit_ts"]
    return tuple(f"{at:%Y-%m-%d %H:%M:%S.%f}" if n == "_commit_ts" else row[n] for n in EXTRA)


def check_stamps(rig: Rig) -> int:
    """See that rows have the columns that the log has of the change that made them; return how many ended."""
    shown = [
        "date_format(_commit_ts, 'yyyy-MM-dd HH:mm:ss.SSSSSS')" if n == "_commit_ts" else n
        for n in EXTRA
    ]

    def made(table: str, *more: str) -> list[Any]:
        frame = LiveTables(rig.spark, rig.output).current(table).selectExpr("id", *more, *shown)
        assert rig.output.table(table).failed == ""
        return sorted((tuple(row) for row in frame.collect()), key=str)

    for table, forgets in (("logged", True), ("kept", False)):
        *_, (_at, live, _time) = states(rig.log, f"public.{table}", KEY, forgets=forgets)
        wanted = [(*where, *stamp(row)) for where, row in live.items()]
        assert made(table) == sorted(wanted, key=str), table
    begun = {at: live for at, live, _time in states(rig.log, "public.versions", KEY)}
    found = [
        (int(values[0] or 0), *since, *stamp(begun[since][int(values[0] or 0),]))
        for values, since, _to in versions(rig.log, "public.versions", KEY, ["id", "name", "note"])
    ]
    assert made("versions", "_from_epoch", "_from_lsn") == sorted(found, key=str)
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    ended = ends(rig.log, "public.soft", KEY)
    for at, live, _time in states(rig.log, "public.soft", KEY):
        gone = {where: ended[where, at] | {"_op": "d"} for where, on in ended if on == at}
        known |= {where: (True, *stamp(row)) for where, row in gone.items()}
        known |= {where: (False, *stamp(row)) for where, row in live.items()}
    soft = sorted(((*where, *reported) for where, reported in known.items()), key=str)
    assert made("soft", "_deleted") == soft
    return sum(reported[0] for reported in known.values())


STORY: list[Step] = [
    Commit((*map(Insert, range(6)), Update(1, sent=True))),
    Commit((Rotate(2), Move(2, 9), Delete(3), Insert(3, "again", None))),
    Apply(),
    Commit((Update(9), Move(9, 8), Delete(4))),
    Snapshot((Delete(8), Update(1), Insert(77), Insert(78))),
    Commit((Delete(77), Update(1), Rotate(2, sent=True))),
    Apply(),
    Commit((Truncate(), Insert(0), Insert(5), Update(5, "z"))),
    Commit((Move(5, 40), Delete(0))),
]  # fmt: skip


def rows_have_columns_of_their_changes(folder: Path, spark: Any, table_format: str) -> None:
    rig = playground(folder, spark, table_format, modes=STAMPED)
    Machine(rig, KEPT_AS).run(STORY)
    assert check_stamps(rig) > 1


@pytest.mark.parametrize(("table_format", "few"), [("parquet", 0), ("delta", 20_000)])
def test_extra_columns_are_what_the_log_has_of_the_change_that_made_a_row(
    delta, tmp_path, table_format, few, monkeypatch
):
    """As Spark compacts changes, and as we do."""
    monkeypatch.setattr("waltap_spark.compact.compact_changes.FEW", few)
    rows_have_columns_of_their_changes(tmp_path, delta, table_format)


# --- what a snapshot ends -------------------------------------------------------------------------

PAST_KEPT = ModeRules(modes=(r".*\.versions:scd2", "scd1"), deletes=(r".*\.soft:soft", "hard"))
BOTH = ("public.versions", "public.soft")
NARROW = [relation(name, [("id", "int4"), ("v", "text")], numbers=(1, 2)) for name in BOTH]
WIDE = [
    relation(name, [("id", "int4"), ("v", "text"), ("more", "text")], numbers=(1, 2, 3))
    for name in BOTH
]


@pytest.fixture(params=["parquet", "delta"])
def past(request, delta, tmp_path) -> Rig:
    return Rig(tmp_path, delta, request.param, compact_rows=0, modes=PAST_KEPT)


def select(past: Rig, table: str, what: str, *columns: str) -> list[tuple[Any, ...]]:
    reader = LiveTables(past.spark, past.output)
    assert past.output.table(table).failed == ""
    frame = reader.current(table) if what == "current" else reader.changes(table)
    return sorted((tuple(row) for row in frame.selectExpr(*columns).collect()), key=str)


def test_rows_end_where_and_when_the_snapshot_found_their_table_empty(past):
    """One commit has the snapshot, and what was inserted behind it."""
    for table in NARROW:
        past.db.insert(table, ["1", "a"])
    past.follow()
    for table in NARROW:
        past.db.rows[table.name] = []
    past.db.lsn += 64
    found_empty, seconds = past.db.lsn, 7_000_000
    for each in past.db.snapshot(*NARROW):
        for part in each.parts:
            part.ts += seconds  # type: ignore[union-attr]
        past.sink.write(each)
    past.sink.flush()
    for _turn in range(2):
        for table in NARROW:
            past.db.insert(table, [str(len(past.db.rows[table.name]) + 1), "b"])
        past.commit()
    past.apply()
    when = f"unix_micros(_valid_to) - {COMMIT_TS}"
    ended, *live = select(past, "versions", "current", "id", "v", "_to_lsn", when, "_from_lsn")
    assert ended[:4] == (1, "a", found_empty, seconds)
    assert [row[:4] for row in live] == [(1, "b", None, None), (2, "b", None, None)]
    assert all(row[4] > found_empty for row in live)
    for table in ("versions", "soft"):
        ops = select(past, table, "changes", "_commit_lsn", "_op")
        assert [op for _lsn, op in sorted(ops)] == ["c", "t", "c", "c"]
    assert select(past, "soft", "current", "id", "v", "_deleted") == [
        (1, "b", False),
        (2, "b", False),
    ]


def snapshot_under_two_schemas(past: Rig) -> None:
    """Write a snapshot of each table whose first piece is narrow and whose second is wide."""
    for each in past.db.snapshot(*WIDE):
        for part in each.parts:
            if part.chunk == 0:  # type: ignore[union-attr]
                narrow = next(r for r in NARROW if r.name == part.relation.name)  # type: ignore[union-attr]
                cut = [row[:2] for row in part.rows]  # type: ignore[union-attr]
                each.parts = [msgspec.structs.replace(part, relation=narrow, rows=cut)]
        past.sink.write(each)
    past.sink.flush()


def test_a_snapshot_under_two_schemas_ends_what_is_in_neither_part_of_it(past):
    """A column came while it was read: rows of its second part were there all the time."""
    for table in NARROW:
        past.db.insert(table, *([str(n), f"v{n}"] for n in range(1, 8)))
    past.follow()
    for table in NARROW:  # 2 and 6 go, 3 and 7 change, 8 and 9 come
        past.db.rows[table.name] = [
            (str(n), "w" if n in {3, 7} else f"v{n}", None) for n in (1, 3, 8, 4, 5, 7, 9)
        ]
    past.db.lsn += 64
    snapshot_under_two_schemas(past)
    past.apply()
    names = ["id", "v", "more"]
    reported = select(
        past, "versions", "current", *(f"cast({name} as string)" for name in names),
        "struct(_from_epoch, _from_lsn)", "struct(_to_epoch, _to_lsn)",
    )  # fmt: skip
    made = [
        (row[:3], tuple(row[3]), None if row[4][0] is None else tuple(row[4])) for row in reported
    ]
    assert sorted(made, key=str) == versions(past.log, "public.versions", ("id",), names)
    assert select(past, "soft", "current", "id", "v", "_deleted", "_deleted_at is null") == [
        (n, "w" if n in {3, 7} else f"v{n}", n in {2, 6}, n not in {2, 6}) for n in range(1, 10)
    ]


# --- a key that comes late ------------------------------------------------------------------------

TWO_COLUMNS = [("id", "int4"), ("name", "text")]
NAMES = ["id", "name"]
BARE = relation("public.t", TWO_COLUMNS, key=(), identity="f", numbers=(1, 2))
KEYED = relation("public.t", TWO_COLUMNS, numbers=(1, 2))
BY_VERSION = ModeRules(modes=("scd2",))
SOFT = ModeRules(deletes=("soft",))

JOINED = """
create table plain (id int not null, v text);
insert into plain select g, 'first' from generate_series(1, 3) g;
create table whole (id int not null, v text);
insert into whole select g, 'first' from generate_series(1, 3) g;
alter table plain replica identity full;
alter table whole replica identity full;
"""
LATER = """
insert into plain values (4, 'second');
insert into whole values (4, 'second');
update whole set v = 'changed' where id = 1;
update whole set id = 12 where id = 2;
delete from whole where id = 3;
"""
KEYS = """
alter table plain add primary key (id);
alter table whole add primary key (id);
update plain set v = 'third' where id = 2;
delete from plain where id = 3;
update whole set v = 'third' where id = 4;
"""
TABLES = ("plain", "whole")


def states_of(lake: Lake) -> dict[str, TableState]:
    state = lake.apply().state
    return {table.table: table for table in state.tables.values()}


def test_it_goes_on_when_the_source_gave_it_a_key(database, tmp_path, spark):
    lake = Lake(database, tmp_path, spark, modes=BY_VERSION)
    lake.run(JOINED)
    lake.run(LATER)
    suspended = states_of(lake)
    assert all("WT-5241" in suspended[name].failed for name in TABLES)
    assert all("ADD PRIMARY KEY" in suspended[name].failed for name in TABLES)
    lake.run(KEYS)
    tables = states_of(lake)
    assert not any(tables[name].failed for name in TABLES)
    assert tables["plain"].stale == (), "what came before was inserts alone"
    assert len(tables["whole"].stale) == 1
    with database.connect(autocommit=True) as connection:
        found = compare(connection, lake.apply())
    assert {each.table: each.equal for each in found} == {
        "public.plain": True, "public.whole": True,
    }  # fmt: skip


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
@pytest.mark.parametrize("few", [20_000, 0])
def test_a_key_that_was_lost_for_a_while_leaves_versions_as_if_it_had_stayed(
    delta, tmp_path, table_format, few, monkeypatch
):
    """Whichever commit it is in, and with a driver that dies within."""
    monkeypatch.setattr("waltap_spark.compact.compact_changes.FEW", few)
    rig = Rig(tmp_path, delta, table_format, parallel=1, modes=BY_VERSION)
    rig.insert(KEYED, ["1", "a"], ["2", "b"])
    rig.insert(BARE, ["3", "c"])
    assert "WT-5241" in rig.output.table("t").failed
    rig.db.update(BARE, ["1", "a"], name="a2")
    rig.db.update(BARE, ["3", "c"], id="4")
    rig.commit()
    rig.db.delete(BARE, ["2", "b"])
    rig.commit()
    rig.db.update(KEYED, ["1"], name="a3")
    rig.commit()
    rig.reopen()
    rig.apply_and_die()
    rig.apply()
    table = rig.output.table("t")
    assert (table.failed, len(table.stale)) == ("", 1)
    check_versions(rig)
    rig.insert(KEYED, ["5", "e"])
    check_versions(rig)


def check_versions(rig: Rig) -> None:
    texts = [f"cast(`{name}` as string)" for name in NAMES]
    rows = LiveTables(rig.spark, rig.output, allow_stale=True).current("t").selectExpr(
        *texts, "struct(_from_epoch, _from_lsn)", "struct(_to_epoch, _to_lsn)", "_current"
    )  # fmt: skip
    made = [
        (tuple(row[:2]), tuple(row[2]), None if row[4] else tuple(row[3])) for row in rows.collect()
    ]
    assert sorted(made, key=str) == versions(rig.log, "public.t", ("id",), NAMES)


def test_rows_that_lack_the_key_are_left_out_and_come_with_a_snapshot(spark, tmp_path):
    """Those of another table that had the name leave no doubt."""
    other = relation("public.t", [("name", "text")], key=(), oid=7, numbers=(1,))
    bare = relation("public.t", [("name", "text")], key=(), numbers=(2,))
    rig = Rig(tmp_path, spark, parallel=1, modes=SOFT)
    rig.write(other, ["z"])
    rig.db.rows.clear()
    rig.insert(bare, ["a"])
    assert "WT-5241" in rig.output.table("t").failed
    rig.db.rows["public.t"] = [("1", "a")]
    rig.write(KEYED, ["2", "b"])
    rig.reopen()
    rig.apply()
    assert rig.current(KEYED) == [("2", "b")]
    (snapshot_reason,) = rig.output.table("t").stale
    assert "lack" in snapshot_reason
    rig.snapshot(KEYED)
    rig.apply(KEYED)
    assert rig.output.table("t").stale == ()


# --- what comes again in a new epoch --------------------------------------------------------------

PLAIN = relation("public.plain", COLUMNS, numbers=(1, 2, 3))


def commit(rig: Rig) -> TransactionPart:
    part = rig.db.commit()
    deliver(rig, part)
    return part


def deliver(rig: Rig, *parts: TransactionPart) -> None:
    for part in parts:
        rig.sink.write(batch(msgspec.structs.replace(part, changes=list(part.changes))))
    rig.sink.flush()


def test_rows_of_one_wal_record_that_a_filter_left_out_come_in(spark, tmp_path):
    """A COPY writes many rows in a record: they have its LSN, each."""
    rig = Rig(tmp_path, spark, parallel=1)
    whole = rig.db.inserted(PLAIN, *([str(number), "a", None] for number in range(6)))
    lsn = whole.changes[0].lsn
    whole.changes = [msgspec.structs.replace(change, lsn=lsn) for change in whole.changes]
    deliver(rig, whole.with_only(whole.changes[::2], whole.numbers()[::2]))
    rig.apply()
    rig.start_over()
    deliver(rig, whole)
    rig.apply(PLAIN)


def test_after_a_snapshot_that_is_older_than_what_was_applied_nothing_is_left_out(spark, tmp_path):
    rig = Rig(tmp_path, spark, parallel=1)
    rig.db.insert(PLAIN, ["1", "a", "x"])
    commit(rig)
    behind, rows = rig.db.lsn, list(rig.db.rows[PLAIN.name])
    rig.db.update(PLAIN, ["1"], name="b")
    later = commit(rig)
    rig.apply(PLAIN)
    rig.start_over()
    now, rig.db.rows[PLAIN.name] = rig.db.rows[PLAIN.name], rows
    lsn, rig.db.lsn = rig.db.lsn, behind
    rig.snapshot(PLAIN)
    rig.apply(PLAIN)
    rig.db.rows[PLAIN.name], rig.db.lsn = now, lsn
    deliver(rig, later)
    rig.apply(PLAIN)


ALONE = ModeRules(history=("none",))


def segments(rig: Rig) -> set[Path]:
    return set((rig.folder / "log").glob("segments/**/*.parquet"))


@pytest.mark.parametrize(
    "stands", [False, True], ids=["in one commit", "of a table that was suspended"]
)
def test_what_comes_first_is_not_taken_for_what_comes_again(spark, tmp_path, *, stands):
    """A key moves, without a long value, at the end of one epoch; the next one is there when it is applied."""
    rig = Rig(tmp_path, spark, parallel=1, modes=ALONE)
    rig.db.insert(PLAIN, ["1", "a", "long"])
    commit(rig)
    rig.apply()
    before = segments(rig)
    rig.db.update(PLAIN, ["1"], unsent=["note"], id="2")
    moved = commit(rig)
    (segment,) = segments(rig) - before
    if stands:
        segment.rename(tmp_path / "away")
        rig.apply()
        assert rig.output.table(PLAIN.name).damaged
    rig.start_over()
    rig.db.insert(PLAIN, ["3", "b", None])
    later = commit(rig)
    rig.apply()
    if stands:
        (tmp_path / "away").rename(segment)
        rig.reopen()
        rig.apply()
    rig.check(PLAIN)
    assert rig.output.table(PLAIN.name).stale == ()
    rig.start_over()
    deliver(rig, moved, later)
    rig.apply()
    assert rig.output.table(PLAIN.name).stale, "now it does come again, and lacks a value"
