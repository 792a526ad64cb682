"""What changes come to, settled here and by Spark, is what a table does that they are of."""

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig
from tests.property.test_move_origins import Action, Source

from waltap_spark import compact_in_memory
from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules
from waltap_spark.output import ChangeSet, TableState
from waltap_spark.schema import LOG_FIELDS, struct_of
from waltap_spark.session import make_active, prepare
from waltap_spark.temp_columns import GONE

pytestmark = pytest.mark.usefixtures("quick_plans")

WORLDS, MOST = 60, 40
MIDDLE = WORLDS * MOST
"""Where a truncate is in its transaction, of which each world has `MOST` changes before and behind it."""

COLUMNS = {"world": '"integer"', "_id": '"double"', "large": '"string"'}
TABLE = TableState(schema="public", table="many", key=("world", "_id"), columns=COLUMNS)
DOES = ("insert", "insert", "delete", "update", "move", "move", "rotate")


def some(chance: random.Random, *, rotates: bool) -> list[Action]:
    does = DOES if rotates else DOES[:-1]
    return [
        (chance.choice(does), chance.randint(0, 7), chance.randint(0, 6), chance.random() < 0.5)
        for _action in range(chance.randint(0, 4))
    ]


def crosses(source: Source) -> bool:
    """Tell whether a key was deleted in a transaction that had put it, as the log says of a table."""
    put = set()
    for event in sorted(source.events, key=lambda event: event.place):
        at = (event.place[:2], event.key)
        if event.op == "d" and at in put:
            return True
        put |= {at} if event.op == "c" else set()
    return False


def log_rows(sources: dict[int, Source], truncates: list[tuple[int, int, int, int]]) -> list[Any]:
    then = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    rows: list[Any] = []
    for world, source in sources.items():
        for event in source.events:
            value = (
                None if event.op == "d" or event.held else source.brought[event.place, event.key]
            )
            rows.append(
                (world, float(event.key), None if value is None else str(value), event.op, *event.place[1:], 0, then, 1,
                 [*event.held] or None, event.place[0])
            )  # fmt: skip
    rows += [(None, None, None, "t", *place[1:], 0, then, 1, None, place[0]) for place in truncates]
    return rows


@pytest.mark.parametrize(
    ("table_format", "most"), [("parquet", 0), ("parquet", compact_in_memory.FEW), ("delta", 0)]
)
def test_a_key_is_the_zero_that_the_source_has_last(
    delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: str, most: int
) -> None:
    """The two zeros are one key; what is stored of them is the source's value."""
    monkeypatch.setattr(compact_in_memory, "FEW", most)
    rules = ModeRules(
        modes=(r"public\.versions:scd2", "scd1"), deletes=(r"public\.soft:soft", "hard")
    )
    rig = Rig(tmp_path, delta, table_format, modes=rules)
    columns = [("id", "float8"), ("n", "float4"), ("large", "text")]
    plain, soft, versions = (
        relation(f"public.{name}", columns, key=("id", "n"))
        for name in ("plain", "soft", "versions")
    )
    for table in (plain, soft, versions):
        rig.db.insert(table, ["1.5", "0.0", "a"], ["0.0", "2.5", "b"])
    rig.commit()
    rig.apply()
    for table in (plain, soft, versions):
        rig.db.insert(table, ["-0.0", "-0.0", "c"])
    for table in (plain, soft):  # of a row that has versions such a change alone makes none
        rig.db.update(table, ["1.5", "0.0"], ["large"], n="1.0")
        rig.db.update(table, ["1.5", "1.0"], ["large"], n="-0.0")
        rig.db.update(table, ["0.0", "2.5"], id="-0.0")
    rig.commit()
    rig.apply()
    live = LiveTables(rig.spark, rig.output)
    for table in (plain, soft, versions):
        assert rig.output.table(table.name).failed == ""
        found = live.standing(table.name).selectExpr(
            "cast(id as string)", "cast(n as string)", "large"
        )
        assert sorted(tuple(row) for row in found.collect()) == sorted(rig.db.rows[table.name])
    rig.applier.close()
    rig.sink.close()


@pytest.mark.parametrize(("crossed", "empties"), [(True, True), (False, False)])
def test_both_ways_come_to_what_the_tables_hold(
    spark: Any, monkeypatch: pytest.MonkeyPatch, crossed: bool, empties: bool
) -> None:
    session, chance = prepare(spark), random.Random(7 + crossed)
    make_active(session)
    sources = {
        world: Source(rows={k: k for k in range(chance.randint(0, 5))}) for world in range(WORLDS)
    }
    before = {world: dict(source.rows) for world, source in sources.items()}
    truncates = []
    for lsn in (10, 20, 30, 40):
        emptied = empties and lsn in (20, 30)
        for world, source in sources.items():
            source.does(lsn, some(chance, rotates=crossed), world * MOST)
            if emptied:
                source.rows.clear()
            source.does(lsn, some(chance, rotates=crossed), MIDDLE + 1 + world * MOST)
        if emptied:
            truncates.append((1, lsn, MIDDLE, 0))
    sources = {w: each for w, each in sources.items() if each.events and crosses(each) <= crossed}
    assert len(sources) > WORLDS / 10
    log = log_rows(sources, truncates)
    rows = session.createDataFrame(log, struct_of({**COLUMNS, **LOG_FIELDS}))
    there = [(w, float(k), str(v)) for w, held in before.items() for k, v in held.items()]
    base = session.createDataFrame(there, struct_of(COLUMNS))
    operations = {row[3]: 1 for row in log}
    change = ChangeSet(
        path="", fingerprint="", rows=len(log), operations=operations, unchanged=("large",), moved=1,
        crossed=crossed, unpacked=1,
    )  # fmt: skip
    for most in (20_000, 0):
        monkeypatch.setattr(compact_in_memory, "FEW", most)
        settled = compact_in_memory.settle(TABLE, [change], rows, base).collect()
        found = {(row["world"], row["_id"]): None if row[GONE] else row["large"] for row in settled}
        assert len(found) == len(settled)
        after = {} if empties else {(w, k): v for w, k, v in there if w in sources}
        after = {key: value for key, value in {**after, **found}.items() if value is not None}
        held = {(w, float(k)): str(v) for w, each in sources.items() for k, v in each.rows.items()}
        wrong = {k for k in {*after, *held} if after.get(k) != held.get(k)}
        assert not wrong, (most, {key: (after.get(key), held.get(key)) for key in wrong})
