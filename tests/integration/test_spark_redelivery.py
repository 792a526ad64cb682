"""An older slot that is read again, in a new epoch of the log: what was applied is left out, in every mode."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.changelog import batch, relation
from tests.harness.spark import Rig
from tests.harness.versions import versions

from waltap.transactions.transaction import TransactionPart
from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules

pytestmark = pytest.mark.usefixtures("quick_plans")

COLUMNS = [("id", "int4"), ("name", "text"), ("note", "text")]
NAMES = [name for name, _type in COLUMNS]
VERSIONS = relation("public.versions", COLUMNS, numbers=(1, 2, 3))
PLAIN = relation("public.plain", COLUMNS, numbers=(1, 2, 3))
TABLES = (VERSIONS, PLAIN)
RULES = ModeRules(modes=(r"public\.versions:scd2", "scd1"))


def commit(rig: Rig) -> TransactionPart:
    part = rig.db.commit()
    deliver(rig, part)
    return part


def deliver(rig: Rig, *parts: TransactionPart) -> None:
    for part in parts:
        rig.sink.write(batch(msgspec.structs.replace(part, changes=list(part.changes))))
    rig.sink.flush()


def transactions(rig: Rig) -> list[TransactionPart]:
    """Inserts, what is not sent, a row that goes and comes, and a truncate."""
    db, parts = rig.db, []
    for table in TABLES:
        db.insert(table, ["1", "a", "long"], ["2", "b", None])
    parts.append(commit(rig))
    for table in TABLES:
        db.update(table, ["1"], unsent=["note"], name="c")
        db.delete(table, ["2"])
    parts.append(commit(rig))
    rig.apply()
    for table in TABLES:
        db.update(table, ["1"], name="c2")
        db.insert(table, ["2", "d", None])
    parts.append(commit(rig))
    db.truncate(*TABLES)
    for table in TABLES:
        db.insert(table, ["1", "e", "late"])
    parts.append(commit(rig))
    rig.apply()
    return parts


def check(rig: Rig) -> None:
    tables = LiveTables(rig.spark, rig.output)
    texts = [f"cast(`{name}` as string)" for name in NAMES]
    rows = tables.current(VERSIONS.name).selectExpr(
        *texts, "struct(_from_epoch, _from_lsn)", "struct(_to_epoch, _to_lsn)", "_current"
    )
    made = [
        (tuple(row[:3]), tuple(row[3]), None if row[5] else tuple(row[4])) for row in rows.collect()
    ]
    assert sorted(made, key=str) == versions(rig.log, VERSIONS.name, ("id",), NAMES)
    rig.check(PLAIN)
    history = tables.changes(PLAIN.name).selectExpr("_commit_lsn", "_lsn", "_sub", "_op").collect()
    assert len(history) == len(set(history))


def test_an_older_slot_read_again_changes_nothing_but_what_is_new(
    spark: Any, tmp_path: Path
) -> None:
    """Once more from the beginning, then from the middle, where new changes follow in the same batch."""
    rig = Rig(tmp_path, spark, parallel=1, modes=RULES)
    parts = transactions(rig)
    check(rig)
    told = {table.name: rig.output.table(table.name).versions for table in TABLES}
    rig.start_over()
    deliver(rig, *parts[:2])
    rig.apply()
    check(rig)
    for table in TABLES:
        rig.db.update(table, ["1"], name="f")
    deliver(rig, *parts[2:], rig.db.commit())
    rig.apply()
    check(rig)
    assert {table.name: rig.output.table(table.name).versions for table in TABLES} == told
    assert dict(rig.applier.state.reached_by)[2] == parts[-1].end_lsn
    rig.applier.close()
    rig.sink.close()


def test_rows_of_one_wal_record_that_a_filter_left_out_come_in(spark: Any, tmp_path: Path) -> None:
    """A COPY writes many rows in a record: they have its LSN, each."""
    rig = Rig(tmp_path, spark, parallel=1)
    rig.db.insert(PLAIN, *([str(number), "a", None] for number in range(6)))
    whole = rig.db.commit()
    lsn = whole.changes[0].lsn
    whole.changes = [msgspec.structs.replace(change, lsn=lsn) for change in whole.changes]
    deliver(rig, whole.with_only(whole.changes[::2], whole.numbers()[::2]))
    rig.apply()
    rig.start_over()
    deliver(rig, whole)
    rig.apply()
    rig.check(PLAIN)
    rig.applier.close()
    rig.sink.close()


def test_after_a_snapshot_that_is_older_than_what_was_applied_nothing_is_left_out(
    spark: Any, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, spark, parallel=1)
    rig.db.insert(PLAIN, ["1", "a", "x"])
    commit(rig)
    behind, rows = rig.db.lsn, list(rig.db.rows[PLAIN.name])
    rig.db.update(PLAIN, ["1"], name="b")
    later = commit(rig)
    rig.apply()
    rig.check(PLAIN)
    rig.start_over()
    now, rig.db.rows[PLAIN.name] = rig.db.rows[PLAIN.name], rows
    lsn, rig.db.lsn = rig.db.lsn, behind
    for part in rig.db.snapshot(PLAIN):
        rig.sink.write(part)
    rig.sink.flush()
    rig.apply()
    rig.check(PLAIN)
    rig.db.rows[PLAIN.name], rig.db.lsn = now, lsn
    deliver(rig, later)
    rig.apply()
    rig.check(PLAIN)
    rig.applier.close()
    rig.sink.close()


ALONE = ModeRules(history=("none",))


def segments(rig: Rig) -> set[Path]:
    return set((rig.folder / "log").glob("segments/**/*.parquet"))


@pytest.mark.parametrize(
    "stands", [False, True], ids=["in one commit", "of a table that stood still"]
)
def test_what_comes_first_is_not_taken_for_what_comes_again(
    spark: Any, tmp_path: Path, *, stands: bool
) -> None:
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
    rig.applier.close()
    rig.sink.close()
