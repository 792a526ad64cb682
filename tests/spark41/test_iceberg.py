"""Tables in Apache Iceberg: schemas that change, versions, and foreign hands."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waltap_spark.formats import merging
from waltap_spark.live import LiveTables

from tests.rigs.changelog import relation
from tests.rigs.spark import Rig

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
LEFT = relation("public.left", [("id", "int4"), ("amount", "int8"), ("note", "text")])


@pytest.fixture
def rig(iceberg: Any, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, iceberg, "iceberg", parallel=1)
    yield made
    made.applier.close()
    made.sink.close()


def test_columns_come_go_grow_and_change_their_names_and_types(rig: Rig) -> None:
    odd = "we. ird,;{}()=`\n"
    first = relation(
        "we.ird.`wi/de", [("id", "int4"), ("n", "int4"), (odd, "text"), ("t", "time"), ("s", "int2")],
        numbers=(1, 2, 3, 4, 5),
    )  # fmt: skip
    taken = relation("public.taken", [("id", "int4"), ("_deleted", "bool")])
    rig.db.insert(first, ["1", "5", "kept", "10:20:30.123456", "7"], ["2", "6", None, None, None])
    rig.db.insert(taken, ["1", "t"])
    rig.commit()
    rig.apply()
    assert "WT-5234" in rig.output.table("taken").failed
    frame = LiveTables(rig.spark, rig.output).current("`wi/de").orderBy("id")
    assert [str(row["t"]) for row in frame.collect()] == ["10:20:30.123456", "None"]
    assert {f.name: f.dataType.simpleString() for f in frame.schema}["s"] == "smallint"
    now = relation(
        "we.ird.`wi/de",
        [("id", "int8"), ("s", "text"), ("calm", "text"), ("t", "text"), ("more", "int4")],
        numbers=(1, 5, 3, 6, 7),
        more={"more": {"default": "7", "missing": "7"}},
    )
    rig.reopen(type_change="string", parallel=1)
    rig.db.insert(now, ["30000000000", "seven", "new", "text", "8"])
    rig.commit()
    rig.apply()
    state = rig.output.table("`wi/de")
    assert state.failed == ""
    frame = LiveTables(rig.spark, rig.output).current("`wi/de").orderBy("id")
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
    assert kinds["id"] == "bigint"
    assert kinds["s"] == kinds["calm"] == kinds["t"] == "string"
    found = [(r["id"], r["n"], r["s"], r["calm"], r["t"], r["more"]) for r in frame.collect()]
    assert found == [
        (1, 5, "7", "kept", None, 7),
        (2, 6, None, None, None, 7),
        (30000000000, None, "seven", "new", "text", 8),
    ]
    then = LiveTables(rig.spark, rig.output).at(rig.db.history[0][0]).current("`wi/de")
    assert sorted(row[odd] or "" for row in then.collect()) == ["", "kept"]


def test_foreign_rows_stop_one_table_until_rolled_back_and_maintenance_changes_no_row(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "COMPACT_STEPS", 4)
    monkeypatch.setattr(merging, "VACUUM_S", 0.0)
    for number in range(6):
        rig.db.insert(PEOPLE, [str(number), "Ann", "x"])
        if number == 4:
            rig.db.update(PEOPLE, ["1"], name="Bob", unsent=["note"])
        rig.commit()
        rig.apply()
    rig.db.insert(LEFT, ["1", "5", None])
    rig.commit()
    rig.apply()
    rig.check(PEOPLE, LEFT)
    held = rig.output.table("people").held
    assert held is not None
    target = held.targets["current"]
    found = rig.spark.sql(f"SELECT operation FROM {target.at}.snapshots").collect()
    assert "replace" in {row["operation"] for row in found}
    rig.spark.sql(f"DELETE FROM {target.at} WHERE id = 1")
    rig.check(PEOPLE, LEFT)  # read as of the commit
    rig.reopen()
    for table in (PEOPLE, LEFT):
        rig.db.insert(table, ["20", "2", "y"])
    rig.commit()
    rig.apply()
    rig.check(LEFT)
    failed = rig.output.table("people").failed
    assert "WT-5235" in failed
    assert "rollback_to_snapshot" in failed
    catalog, _, name = target.at.partition(".")
    rig.spark.sql(f"CALL {catalog}.system.rollback_to_snapshot('{name}', {target.version})")
    rig.reopen()
    rig.apply()
    rig.check(PEOPLE, LEFT)
