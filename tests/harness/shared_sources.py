"""Tables of several tenants in one target, in every mode: random work on them, and what comes of it."""

import random

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig
from tests.harness.versions import text, versions

from waltap.decode.relation import Relation
from waltap_spark.errors import HistoryNotKept
from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules
from waltap_spark.shared_targets import TargetMappings

__all__ = ["COLUMNS", "INTO", "KINDS", "RULES", "anything", "check", "of", "run"]

COLUMNS = [("id", "int4"), ("name", "text"), ("note", "text")]
INTO = TargetMappings((r"t(\d)\.(.*):all.$2@tenant $1",))
RULES = ModeRules(
    modes=(r"all\.versions:scd2", r"all\.logged:append", "scd1"),
    deletes=(r"all\.soft:soft", "hard"),
    history=(r"all\.plain:none", "keep"),
)
KINDS = ("plain", "versions", "logged", "bare")
STANDING = ("plain", "bare")
"""Kinds of tables that are as the source's are; those called bare have no key."""
TENANTS = ("1", "2")


def of(tenant: str, kind: str, columns: list[tuple[str, str]] | None = None) -> Relation:
    columns = COLUMNS if columns is None else columns
    numbers = [{"id": 1, "name": 2, "note": 3, "remark": 3}.get(name, 4) for name, _ in columns]
    told = "more" in dict(columns) and kind in STANDING
    more = {"more": {"default": "7", "missing": "7"}} if told else None
    bare = kind == "bare"
    return relation(
        f"t{tenant}.{kind}", columns, numbers=numbers, more=more,
        key=() if bare else ("id",), identity="f" if bare else "d",
    )  # fmt: skip


def key_of(rig: Rig, table: Relation, number: str) -> list[str | None]:
    """Return what identifies the row ``number``: all of it, in a table without a key."""
    if table.table != "bare":
        return [number]
    return next(list(row) for row in rig.db.rows[table.name] if str(row[0]) == number)


def anything(rig: Rig, chance: random.Random, tables: list[Relation]) -> None:
    """One transaction that does the same to tables of each kind of one tenant."""
    db, first = rig.db, tables[0]
    long = first.columns[2].name
    for _step in range(chance.randint(2, 5)):
        there = [str(row[0]) for row in db.rows.get(first.name, [])]
        free = [str(n) for n in range(5) if str(n) not in there]
        does = chance.choices("cudmt", [6, 6, 3, 2, 0.4])[0]
        new, old = chance.choice(free or ["-1"]), chance.choice(there or ["-1"])
        word, unsent = chance.choice("ab"), chance.choice([[], [long]])
        values = [new, word, chance.choice(["x", None]), "5"][: len(first.columns)]
        for table in tables:
            if does == "c" and free:
                db.insert(table, values)
            elif does == "u" and there:
                db.update(table, key_of(rig, table, old), unsent, name=word)
            elif does == "d" and there:
                db.delete(table, key_of(rig, table, old))
            elif does == "m" and there and free:
                db.update(table, key_of(rig, table, old), [long], id=new)
        if does == "t":
            db.truncate(*tables)
    if db._changes:
        rig.commit()


def check(rig: Rig, tenants: dict[str, list[Relation]], kinds: tuple[str, ...] = KINDS) -> None:
    """See that the target of each kind has the rows that each tenant's own tables come to."""
    tables = LiveTables(rig.spark, rig.output)
    assert tables.shared == sorted(f"all.{kind}" for kind in kinds)
    failed = {name: each.failed for name, each in rig.applier.state.tables.items() if each.failed}
    assert failed == {}
    for number, kind in enumerate(kinds):
        frame = tables.current(f"all.{kind}")
        held = [row.asDict() for row in frame.collect()]
        for tenant, relations in tenants.items():
            table = relations[number]
            names = [column.name for column in table.columns]
            called = {"note": "remark"} if "remark" in names else {}
            own = [row for row in held if row["_source"] == f"tenant {tenant}"]
            lost = {name for row in own for name in row if row[name] is not None} - {*names}
            assert not lost & {"note", "remark", "more"}, "columns of another source"
            rows = sorted((tuple(text(row.get(name)) for name in names) for row in own), key=str)
            if kind in STANDING:
                assert rows == sorted(rig.db.rows.get(table.name, []), key=str), table.name
            elif kind == "versions":
                told = versions(rig.log, table.name, ("id",), names, called)
                assert rows == sorted((values for values, _since, _to in told), key=str), table.name
                now = sum(row["_current"] for row in own)
                assert now == len(rig.db.rows.get(table.name, []))
            else:
                assert len(own) == sum(len(part) for part in rig.log.rows(*table.name.split(".")))
    with pytest.raises(HistoryNotKept):
        tables.changes("all.plain")
    for kind in kinds[1:]:
        told = sum(
            len(part)
            for relations in tenants.values()
            for part in rig.log.rows(*relations[kinds.index(kind)].name.split("."))
        )
        assert tables.changes(f"all.{kind}").count() == told, kind
    last = f"t{max(tenants)}.plain"
    plain = tables.current(last).collect()
    assert sorted((tuple(map(text, row)) for row in plain), key=str) == sorted(
        rig.db.rows.get(last, []), key=str
    )


def run(rig: Rig) -> None:
    """Random work of the tenants with the same keys, truncates, a driver that dies, a snapshot of one,
    and a tenant whose columns become others than those of its neighbours."""
    chance = random.Random(5)
    tenants = {tenant: [of(tenant, kind) for kind in KINDS] for tenant in TENANTS}
    for turn in range(3):
        if turn == 1:  # a snapshot of one tenant that brings what no change told
            for table in tenants["2"]:
                rig.db.rows[table.name] = [("77", "snap", None), *rig.db.rows[table.name][1:]]
            for part in rig.db.snapshot(*tenants["2"]):
                rig.sink.write(part)
            rig.sink.flush()
        if turn == 2:  # another renames a column, widens one, and adds one with a default
            anything(rig, chance, tenants["1"])
            later = [("id", "int8"), ("name", "text"), ("remark", "text"), ("more", "int4")]
            tenants["1"] = [of("1", kind, later) for kind in KINDS]
            for table in tenants["1"]:
                rows = rig.db.rows.get(table.name, [])
                given = "7" if table.table in STANDING else None
                rig.db.rows[table.name] = [(*row, given) for row in rows]
        for _transaction in range(2):
            for relations in tenants.values():
                anything(rig, chance, relations)
        if turn == 1:
            rig.apply_and_die()
        rig.apply()
    check(rig, tenants)
    rig.applier.close()
    rig.sink.close()
