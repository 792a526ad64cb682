"""Rows that change their key: none is lost, and each keeps what it had, in whatever order they move."""

import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig
from tests.harness.versions import text, versions

from waltap_spark import compact_in_memory as few_changes
from waltap_spark import pipelines
from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules

pytestmark = pytest.mark.usefixtures("quick_plans")

COLUMNS = [("id", "int4"), ("name", "text"), ("note", "text")]
PEOPLE = relation("public.people", COLUMNS)
WHOLE = relation("public.whole", COLUMNS, identity="f")
BOTH_WAYS = pytest.mark.parametrize("few", [0, 20_000], ids=["settled by Spark", "settled here"])


@pytest.fixture
def rig(spark: Any, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, spark)
    yield made
    made.applier.close()
    made.sink.close()


@pytest.mark.parametrize("table", [PEOPLE, WHOLE], ids=["default", "full"])
def test_rows_that_change_places_in_one_statement_are_both_there(rig: Rig, table: Any) -> None:
    """UPDATE t SET id = 3 - id, with a deferrable key: the old row of key 2 goes after the new came."""
    rig.db.insert(table, ["1", "one", "a"], ["2", "two", "b"])
    rig.commit()
    rig.apply()
    for _back_and_forth in range(2):
        first, second = (row[0] for row in rig.db.rows[table.name])
        rig.db.update(table, [first], id=second)
        rig.db.update(table, [second], which=1, id=first)
        rig.commit()
        rig.apply()
        rig.check(table)
    rig.db.delete(table, ["1"])
    rig.commit()
    rig.apply()
    rig.check(table)


def test_a_view_of_the_history_has_rows_that_took_each_others_keys(rig: Rig) -> None:
    rig.db.insert(PEOPLE, *[[str(n), f"row {n}", "n"] for n in range(1, 4)])
    rig.commit()
    for n in range(1, 4):  # UPDATE people SET id = id + 1, from below
        rig.db.update(PEOPLE, [str(n)], which=1 if n > 1 else 0, id=str(n + 1))
    rig.db.insert(PEOPLE, ["9", "comes", None])
    rig.db.delete(PEOPLE, ["9"])
    rig.commit()
    path = str(rig.folder / "log")
    history = rig.spark.read.format("waltap").options(path=path, table=PEOPLE.name).load()
    found = pipelines.current(history, path, PEOPLE.name).collect()
    assert sorted((str(row["id"]), row["name"], row["note"]) for row in found) == sorted(
        rig.db.rows[PEOPLE.name]
    )
    assert len(found) == 3


def test_a_time_of_day_moves_along(rig: Rig) -> None:
    """Plans of grouped rows are checked by the settings of the thread's own session, which has to know `time`."""
    clocks = relation("public.clocks", [("id", "int4"), ("at", "time"), ("note", "text")])
    rig.db.insert(clocks, ["1", "05:17:00.25", "a"], ["2", None, "b"])
    rig.commit()
    rig.apply()
    rig.db.update(clocks, ["1"], id="3", unsent=["note"])
    rig.commit()
    rig.apply()
    assert rig.output.table("public.clocks").failed == ""
    rig.check(clocks)


@pytest.mark.parametrize("fold_sets", [1, 32], ids=["folded", "pending"])
def test_places_change_in_the_same_batch_as_the_rows_came(
    spark: Any, tmp_path: Path, fold_sets: int
) -> None:
    rig = Rig(tmp_path, spark, fold_sets=fold_sets)
    rig.db.insert(PEOPLE, *[[str(n), f"row {n}", f"note {n}"] for n in range(1, 6)])
    rig.commit()
    for n in range(
        1, 5
    ):  # every row goes one on, the last to the first: keys 2 to 5 are twice there
        rig.db.update(PEOPLE, [str(n)], which=1 if n > 1 else 0, id=str(n + 1), unsent=["note"])
    rig.db.update(PEOPLE, ["5"], which=1, id="1", unsent=["note"])
    rig.commit()
    rig.apply()
    rig.check(PEOPLE)
    rig.applier.close()
    rig.sink.close()


def test_a_row_that_passes_through_a_key_leaves_nothing_there(rig: Rig) -> None:
    rig.db.insert(PEOPLE, ["1", "a", "kept"], ["5", "b", "gone"])
    rig.commit()
    rig.apply()
    rig.db.update(PEOPLE, ["1"], id="2", unsent=["note"])
    rig.db.update(PEOPLE, ["2"], id="3", unsent=["note"])
    rig.db.insert(PEOPLE, ["2", "brief", None])
    rig.db.delete(PEOPLE, ["2"])
    rig.db.delete(PEOPLE, ["5"])
    rig.db.insert(PEOPLE, ["5", "new", None])
    rig.db.delete(PEOPLE, ["5"])
    rig.commit()
    rig.apply()
    rig.check(PEOPLE)


def test_a_row_put_beside_the_one_it_replaces_stays(rig: Rig) -> None:
    """A deferrable key: INSERT the new row, then DELETE the old one, or move it away."""
    rig.db.insert(PEOPLE, ["1", "old", "x"], ["2", "old", "y"])
    rig.commit()
    rig.apply()
    rig.db.insert(PEOPLE, ["1", "new", "z"])
    rig.db.delete(PEOPLE, ["1"])
    rig.db.insert(PEOPLE, ["2", "new", "w"])
    rig.db.update(PEOPLE, ["2"], id="3", unsent=["note"])
    rig.commit()
    rig.apply()
    rig.check(PEOPLE)


@pytest.mark.parametrize(("moves", "few"), [(210, 0), (3000, 20_000)])
def test_a_value_is_kept_through_any_number_of_moves(
    rig: Rig, moves: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltap_spark.compact_in_memory.FEW", few)
    rig.db.insert(PEOPLE, ["1", "a", "far"], ["-1", "b", "near"])
    rig.commit()
    rig.apply()
    for n in range(1, moves + 1):
        rig.db.update(PEOPLE, [str(n)], id=str(n + 1), unsent=["note"])
        rig.db.update(PEOPLE, [str(-n)], id=str(-n - 1), unsent=["note"])
        if n % 100 == 0:
            rig.db.update(PEOPLE, [str(-n - 1)], note=f"near {n}")
    rig.commit()
    started = time.monotonic()
    rig.apply()
    print(f"{moves} moves: {time.monotonic() - started:.1f} s")
    rig.check(PEOPLE)


@BOTH_WAYS
def test_a_row_that_moves_behind_a_truncate_has_nothing_of_the_one_before(
    spark: Any, tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was put under the key that another row had, and moved on, in one transaction."""
    monkeypatch.setattr("waltap_spark.compact_in_memory.FEW", few)
    rig = Rig(tmp_path, spark, modes=ModeRules(modes=(r"public\.kept:scd2", "scd1")))
    kept = relation("public.kept", COLUMNS)
    for table in (PEOPLE, kept):
        rig.db.insert(table, ["1", "a", "old"], ["3", "b", "moves first"])
    rig.commit()
    rig.apply()
    for table in (PEOPLE, kept):
        rig.db.update(table, ["3"], ["note"], id="4")
        rig.db.truncate(table)
    rig.commit()
    for table in (PEOPLE, kept):
        rig.db.insert(table, ["1", "c", "new"])
        rig.db.update(table, ["1"], ["note"], id="2")
    rig.commit()
    rig.apply()
    rig.check(PEOPLE)
    names = [name for name, _type in COLUMNS]
    rows = LiveTables(rig.spark, rig.output).current("kept").collect()
    found = sorted((tuple(text(row[name]) for name in names) for row in rows), key=str)
    told = versions(rig.log, kept.name, ("id",), names)
    assert found == sorted((values for values, _since, _to in told), key=str)
    rig.applier.close()
    rig.sink.close()


@BOTH_WAYS
def test_columns_may_be_called_as_those_that_are_made_on_the_way(
    rig: Rig, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltap_spark.compact_in_memory.FEW", few)
    table = relation(
        "public.odd",
        [("_id", "int4"), ("_value", "text"), ("__gone", "text"), ("__code", "text"),
         ("_settled", "text"), ("note", "text")],
        key=("_id", "_value"),
    )  # fmt: skip
    taken = relation("public.taken", [("id", "int4"), ("_epoch", "int4")])
    rig.db.insert(taken, ["1", "2026"])
    rig.db.insert(table, *[[n, "v", f"gone {n}", "code", "s", f"note {n}"] for n in "159"])
    rig.commit()
    rig.apply()
    assert "WT-5104" in rig.output.table("taken").failed, "the log's own would take its place"
    rig.db.update(table, ["1", "v"], ["note", "__gone"], _id="2")
    rig.db.update(table, ["5", "v"], ["note", "_settled"], __code="other")
    rig.db.delete(table, ["9", "v"])
    rig.commit()
    rig.apply()
    assert rig.output.table("odd").failed == ""
    rig.check(table)


@pytest.mark.parametrize("known", [True, False])
def test_few_rows_of_many_bytes_are_left_to_spark_and_so_is_what_goes_wrong_which_is_said(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, known: bool
) -> None:
    read: list[int] = []

    class Counted(few_changes._InMemoryRows):
        def __init__(self, table: Any, changes: Any, rows: Any, base: Any) -> None:
            read.append(rows.num_rows)
            if len(read) > 1:
                raise pa.ArrowInvalid("what nobody thought of")
            super().__init__(table, changes, rows, base)

    monkeypatch.setattr(few_changes, "_InMemoryRows", Counted)
    monkeypatch.setattr(few_changes, "LARGE", 20_000)
    if not known:  # as of a log that an earlier version wrote
        monkeypatch.setattr(few_changes, "unpacked_in_all", lambda _changes: 0)
    rig.db.insert(PEOPLE, ["1", "a", "n"])
    rig.commit()
    rig.apply()
    key = 1
    for size in (30_000, 10, 10, 10):
        rig.db.update(PEOPLE, [str(key)], ["note"], id=str(key + 1), name="x" * size)
        rig.commit()
        rig.apply()
        rig.check(PEOPLE)
        key += 1
    assert read == [1 + 1, 1 + 1, 1 + 1], "the wide row was not read here"
    told = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert [text for text in told if "what nobody thought of" in text] == told[:1]


def test_random_moves_with_keys_that_meet_end_equal(spark: Any, tmp_path: Path) -> None:
    """Permutations of keys in one transaction, unsent values, chains, and what comes between."""
    rig = Rig(tmp_path, spark, fold_sets=3)
    chance = random.Random(3)
    for table in (PEOPLE, WHOLE):
        rig.db.insert(table, *[[str(n), f"n{n}", f"note {n}"] for n in range(8)])
    rig.commit()
    for _round in range(3):
        for _transaction in range(3):
            for table in (PEOPLE, WHOLE):
                _permute(rig, table, chance)
            rig.commit()
        rig.apply()
        rig.check(PEOPLE, WHOLE)
    rig.applier.close()
    rig.sink.close()


def _permute(rig: Rig, table: Any, chance: random.Random) -> None:
    """Let rows take one another's keys, each moved once, in the order in which they lie there."""
    rows = rig.db.rows[table.name]
    keys = [row[0] for row in rows]
    chosen = chance.sample(keys, chance.randint(2, len(keys)))
    target = dict(zip(chosen, [*chosen[1:], chance.choice([chosen[0], "77"])], strict=True))
    if chance.random() < 0.5 and "99" not in keys:
        rig.db.insert(table, ["99", "passing", "p"])
        rig.db.update(table, ["99"], id="98", unsent=["note"])
        rig.db.delete(table, ["98"])
    unsent = ["note"] if table.identity != "f" and chance.random() < 0.7 else []
    held: set[Any] = set()
    for key in chosen:
        at = [n for n, row in enumerate(rows) if row[0] == key]
        fresh = [n for n in at if n not in held]
        rig.db.update(table, [key], which=at.index(fresh[0]), id=target[key], unsent=unsent)
        held.add(fresh[0])
    if "77" in target.values():
        spare = next(key for key in map(str, range(100, 200)) if key not in keys)
        rig.db.update(table, ["77"], id=spare, name="moved on", unsent=unsent)


KEPT_PEOPLE = ModeRules(deletes=("kept",))


@BOTH_WAYS
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_row_that_passes_through_the_key_of_a_deleted_one_keeps_its_own(
    delta: Any, tmp_path: Path, few: int, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were deleted long ago stand in a table that keeps them, and are none of the source's."""
    monkeypatch.setattr(few_changes, "FEW", few)
    rig = Rig(tmp_path, delta, table_format, fold_sets=1, modes=KEPT_PEOPLE)
    rig.db.insert(PEOPLE, ["1", "first", "old"], ["2", "second", "two"], ["5", "fifth", "five"])
    rig.commit()
    rig.apply()
    rig.db.delete(PEOPLE, ["1"])
    rig.commit()
    rig.apply()
    rig.db.insert(PEOPLE, ["1", "next", "new"])
    rig.db.update(PEOPLE, ["1"], id="3", unsent=["note"])
    # a key that is taken before the row there has gone: what is there is no deleted row
    rig.db.update(PEOPLE, ["2"], id="5", unsent=["note"])
    rig.db.update(PEOPLE, ["5"], which=1, id="6", unsent=["note"])
    rig.commit()
    rig.apply()
    assert rig.current(PEOPLE) == [
        ("1", "first", "old"),
        ("3", "next", "new"),
        ("5", "second", "two"),
        ("6", "fifth", "five"),
    ]
    rig.applier.close()
    rig.sink.close()


@BOTH_WAYS
def test_a_key_of_a_deleted_row_is_taken_anew(
    spark: Any, tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_changes, "FEW", few)
    rig = Rig(tmp_path, spark, fold_sets=1, modes=KEPT_PEOPLE)
    rig.db.insert(PEOPLE, ["1", "first", "old"], ["2", "second", "two"])
    rig.commit()
    rig.apply()
    rig.db.delete(PEOPLE, ["1"])
    rig.commit()
    rig.apply()
    rig.db.insert(PEOPLE, ["1", "next", None])
    rig.db.update(PEOPLE, ["1"], name="again", unsent=["note"])
    rig.commit()
    rig.apply()
    assert rig.current(PEOPLE) == [("1", "again", None), ("2", "second", "two")]
    rig.db.update(PEOPLE, ["1"], id="4", unsent=["note"])
    rig.db.update(PEOPLE, ["2"], id="1", unsent=["note"])
    rig.commit()
    rig.apply()
    assert rig.current(PEOPLE) == [("1", "second", "two"), ("4", "again", None)]
    rig.applier.close()
    rig.sink.close()
