"""What tables keep: every version of each row, rows that stay when they are deleted, history alone."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.parts_of_transactions import a_transaction_is_one_version
from tests.harness.spark import Rig
from tests.harness.versions import ends, last_known, states, text, versions

from waltap.decode.relation import Relation
from waltap_spark import timeline
from waltap_spark.live import LiveTables
from waltap_spark.modes import EXTRA, ModeRules

pytestmark = pytest.mark.usefixtures("quick_plans")

KEPT_AS = ("versions", "soft", "kept", "logged")
COLUMNS = [("id", "int4"), ("name", "text"), ("note", "text")]
RULES = ModeRules(
    modes=(r".*\.VERSIONS:scd2", r"public\.logged:append", "scd1"),
    deletes=(r"public\.soft:soft", r"public\.kept:kept", "hard"),
)
ALIKE = [relation(f"public.{name}", COLUMNS, numbers=(1, 2, 3)) for name in KEPT_AS]
LATER = [
    relation(
        f"public.{name}",
        [("id", "int8"), ("name", "text"), ("remark", "text"), ("size", "int4")],
        numbers=(1, 2, 3, 4),
    )
    for name in KEPT_AS
]
CALLED = {"note": "remark"}
KEY = ("id",)


def anything(rig: Rig, chance: random.Random, tables: list[Relation], keys: int = 6) -> None:
    """One transaction that does the same to all ``tables``, which hold the same."""
    db, first = rig.db, tables[0]
    long = first.columns[2].name
    for _step in range(chance.randint(2, 6)):
        there = [str(row[0]) for row in db.rows.get(first.name, [])]
        free = [str(n) for n in range(keys) if str(n) not in there]
        does = chance.choices("ciudmst", [4, 4, 8, 3, 3, 2, 0.3])[0]
        new, old = chance.choice(free or ["-1"]), chance.choice(there or ["-1"])
        pair = chance.sample(there, 2) if len(there) > 1 else []
        word, unsent = chance.choice("ab"), chance.choice([[], [long]])
        values = [new, word, chance.choice(["x", None]), "5"][: len(first.columns)]
        for table in tables:
            if does in "ci" and free:
                db.insert(table, values)
            elif does == "u" and there:
                db.update(table, [old], unsent, name=word)
            elif does == "d" and there:
                db.delete(table, [old])
            elif does == "m" and there and free:
                db.update(table, [old], [long], id=new)
            elif does == "s" and pair:
                first_put = there.index(pair[0]) < there.index(pair[1])
                db.update(table, pair[:1], unsent, id=pair[1])
                db.update(table, pair[1:], unsent, which=int(first_put), id=pair[0])
        if does == "t":
            db.truncate(*tables)
    if db._changes:
        rig.commit()


def apply_or_die(rig: Rig, chance: random.Random) -> None:
    """Apply; now and then the driver dies before its commit, and the next one finds what it left."""
    if chance.random() < 0.4:
        rig.apply_and_die()
    rig.apply()


def rows(rig: Rig, table: str, names: list[str], *more: str) -> list[Any]:
    frame = LiveTables(rig.spark, rig.output).current(table)
    texts = frame.selectExpr(*(f"cast(`{name}` as string)" for name in names), *more).collect()
    assert rig.output.table(table).failed == ""
    return [(tuple(row[: len(names)]), *row[len(names) :]) for row in texts]


def check(rig: Rig, names: list[str]) -> None:
    """See that every table has what its change log comes to."""
    log, called = rig.log, CALLED if "remark" in names else {}
    made = rows(
        rig, "versions", names,
        "struct(_from_epoch, _from_lsn)", "struct(_to_epoch, _to_lsn)", "_current",
    )  # fmt: skip
    assert all(current == (to[0] is None) for _values, _since, to, current in made)
    told = sorted(((v, tuple(a), None if now else tuple(b)) for v, a, b, now in made), key=str)
    assert told == versions(log, "public.versions", KEY, names, called)
    soft = rows(
        rig, "soft", names, "_deleted", "date_format(_deleted_at, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
    )
    assert all(flag == (at is not None) for _values, flag, at in soft)
    wanted = last_known(log, "public.soft", KEY, names, called)
    assert sorted(((v, at) for v, _flag, at in soft), key=str) == wanted
    *_, (_at, standing, _time) = states(log, "public.kept", KEY, called=called, forgets=False)
    kept = sorted((tuple(text(row.get(n)) for n in names) for row in standing.values()), key=str)
    assert sorted((v for (v,) in rows(rig, "kept", names)), key=str) == kept
    reader = LiveTables(rig.spark, rig.output)
    for table in ("versions", "soft"):  # and these are there in the source
        there = (
            reader.standing(table).selectExpr(*(f"cast(`{n}` as string)" for n in names)).collect()
        )
        wanted_rows = sorted(rig.db.rows.get(f"public.{table}", []), key=str)
        assert sorted((tuple(row) for row in there), key=str) == wanted_rows
    logged = sum(len(part) for part in log.rows("public", "logged"))
    assert len(rows(rig, "logged", names)) == logged


@pytest.mark.parametrize(
    ("table_format", "few"), [("parquet", 20_000), ("parquet", 0), ("delta", 20_000)]
)
def test_every_mode_holds_what_its_log_comes_to(
    delta: Any, tmp_path: Path, table_format: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random work with kills of the driver, a snapshot that brings what no change told, and columns that
    come, widen and change their names; settled here, and by Spark."""
    monkeypatch.setattr("waltap_spark.compact_in_memory.FEW", few)
    rig = Rig(
        tmp_path,
        delta,
        table_format,
        fold_rows=0,
        fold_sets=3,
        merge_sets=3,
        parallel=2,
        modes=RULES,
    )
    chance, tables = random.Random(11), ALIKE
    names = [column.name for column in tables[0].columns]
    for turn in range(3):
        if turn == 1:
            for table in tables:
                held = rig.db.rows[table.name]
                rig.db.rows[table.name] = [*held[1:], ("77", "snap", None)]
            for part in rig.db.snapshot(*tables):
                rig.sink.write(part)
            rig.sink.flush()
        if turn == 2:  # in the middle of what is applied together
            anything(rig, chance, tables)
            tables = LATER
            names = [column.name for column in tables[0].columns]
            for table in tables:
                rig.db.rows[table.name] = [(*row, None) for row in rig.db.rows[table.name]]
        for _transaction in range(chance.randint(2, 4)):
            anything(rig, chance, tables)
        apply_or_die(rig, chance)
        check(rig, names)
    rig.applier.close()
    rig.sink.close()


@pytest.mark.parametrize("deletes", [False, True], ids=["snapshot alone", "with a delete"])
def test_rows_of_a_snapshot_that_are_kept_are_not_put_in_one_partition(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, deletes: bool
) -> None:
    """They all have one position; what a move leaves is found without having them in one place."""
    monkeypatch.setattr("waltap_spark.compact_in_memory.FEW", 0)
    rig = Rig(tmp_path, spark, modes=RULES, fold_rows=0)
    kept = next(table for table in ALIKE if table.table == "kept")
    rig.db.insert(kept, *[[str(n), "a", None] for n in range(200)])
    rig.commit()
    rig.apply()
    for part in rig.db.snapshot(kept):
        rig.sink.write(part)
    rig.sink.flush()
    if deletes:
        rig.db.delete(kept, ["7"])
        rig.commit()
    found, sizes = timeline._events, []

    def counted(table: Any, changes: Any, rows: Any, base: Any) -> Any:
        events = found(table, changes, rows.repartition(2), base)
        sizes.append(sorted(map(len, events.rdd.glom().collect())))
        return events

    monkeypatch.setattr(timeline, "_events", counted)
    rig.apply()
    assert [sum(each) for each in sizes] == [200]
    assert sizes[0][-1] < 150
    rig.applier.close()
    rig.sink.close()


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_transaction_that_is_applied_in_parts_is_one_version(
    tmp_path: Path, delta: Any, table_format: str
) -> None:
    a_transaction_is_one_version(tmp_path, delta, table_format)


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
        *_, (_at, standing, _time) = states(rig.log, f"public.{table}", KEY, forgets=forgets)
        wanted = [(*where, *stamp(row)) for where, row in standing.items()]
        assert made(table) == sorted(wanted, key=str), table
    begun = {at: standing for at, standing, _time in states(rig.log, "public.versions", KEY)}
    found = [
        (int(values[0] or 0), *since, *stamp(begun[since][int(values[0] or 0),]))
        for values, since, _to in versions(rig.log, "public.versions", KEY, ["id", "name", "note"])
    ]
    assert made("versions", "_from_epoch", "_from_lsn") == sorted(found, key=str)
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    ended = ends(rig.log, "public.soft", KEY)
    for at, standing, _time in states(rig.log, "public.soft", KEY):
        gone = {where: ended[where, at] | {"_op": "d"} for where, on in ended if on == at}
        known |= {where: (True, *stamp(row)) for where, row in gone.items()}
        known |= {where: (False, *stamp(row)) for where, row in standing.items()}
    soft = sorted(((*where, *told) for where, told in known.items()), key=str)
    assert made("soft", "_deleted") == soft
    return sum(told[0] for told in known.values())


def rows_have_columns_of_their_changes(rig: Rig) -> None:
    """Random work; then a snapshot that lacks a row and has others, and work behind it."""
    chance = random.Random(5)
    for _transaction in range(4):
        anything(rig, chance, ALIKE)
    for table in ALIKE:
        rig.db.insert(table, ["88", "not read", None])
    rig.commit()
    rig.apply()
    for table in ALIKE:
        left = [row for row in rig.db.rows[table.name] if row[0] != "88"]
        rig.db.rows[table.name] = [*left, ("77", "read", None), ("78", "read", None)]
    for part in rig.db.snapshot(*ALIKE):
        rig.sink.write(part)
    rig.sink.flush()
    for table in ALIKE:
        rig.db.delete(table, ["77"])
    for _transaction in range(2):
        anything(rig, chance, ALIKE)
    rig.apply()
    assert check_stamps(rig) > 1
    rig.applier.close()
    rig.sink.close()


@pytest.mark.parametrize(("table_format", "few"), [("parquet", 0), ("delta", 20_000)])
def test_extra_columns_are_what_the_log_has_of_the_change_that_made_a_row(
    delta: Any, tmp_path: Path, table_format: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark settles changes, and as we do."""
    monkeypatch.setattr("waltap_spark.compact_in_memory.FEW", few)
    folds = {"fold_rows": 0, "fold_sets": 2, "merge_sets": 2}
    rig = Rig(tmp_path, delta, table_format, parallel=2, modes=STAMPED, **folds)
    rows_have_columns_of_their_changes(rig)
