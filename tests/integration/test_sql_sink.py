"""The SQL sink on PostgreSQL: rows as the source has them, whole transactions only, each once."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, in_parts, relation
from tests.harness.sql import copy_of, model, opened, sink, texts
from tests.harness.servers.postgres import Database
from waltap.decode.message import Truncate
from waltap.source.position import Position
from waltap_sinks.sql import SqlSink
from waltap_sinks.sql.errors import SqlFenced, SqlTransactionGap

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
VISITS = relation("public.visits", [("person", "int4"), ("page", "text")], key=(), identity="f")
PAIRS = relation(
    "public.pairs",
    [("a", "int4"), ("b", "text"), ("price", "numeric(10,2)"), ("doc", "jsonb")],
    key=("a", "b"),
)
NAMES = {
    "people": ("id", "name", "note"),
    "visits": ("person", "page"),
    "pairs": ("a", "b", "price"),
}


def held(database: Database, table: str) -> list[tuple[str | None, ...]]:
    return texts(database, table, *NAMES[table])


def after_every_operation(source: Model, target: SqlSink) -> None:
    """Have ``target`` apply one change of each kind, and close it."""
    source.insert(PEOPLE, ["1", "Ann", "long"], ["2", "Bob", None], ["3", "Cy\t\\N%s", "x\"\n{}'"])
    source.insert(VISITS, ["1", "a"], ["1", "a"], ["2", "b"])
    target.write(batch(source.commit()))
    source.update(PEOPLE, ["1"], name="Anne", unsent=["note"])
    source.update(PEOPLE, ["2"], id="20")
    source.update(PEOPLE, ["1"], id="10", unsent=["note"])
    source.delete(PEOPLE, ["3"])
    source.update(VISITS, ["1", "a"], page="c")
    source.delete(VISITS, ["1", "a"])
    last = source.commit()
    target.write(batch(last))
    assert target.flush() == Position(last.end_lsn)
    target.close()


def test_every_operation_leads_to_the_rows_of_the_source(
    database: Database, tmp_path: Path
) -> None:
    source = Model()
    after_every_operation(source, opened(database, tmp_path))
    for table in ("people", "visits"):
        assert held(database, table) == model(source.rows[f"public.{table}"])


def test_random_work_leads_to_the_rows_of_the_source(database: Database, tmp_path: Path) -> None:
    """Inserts, updates with and without values, moves of keys, deletes and truncates, in batches of any
    size, with crashes between: rows are the source's after each commit."""
    chance = random.Random(20)
    source, target, position = Model(), opened(database, tmp_path), None
    for _ in range(60):
        parts = [_transaction(source, chance) for _ in range(chance.choice((1, 1, 3, 8)))]
        target.write(batch(*parts))
        if chance.random() < 0.2:
            target.close()
            target = sink(database, tmp_path)
            position = target.open()
            assert position == Position(parts[-1].end_lsn)
            target.write(batch(*map(copy_of, parts)))
        assert held(database, "people") == model(source.rows["public.people"])
    target.close()
    assert held(database, "pairs") == model(row[:3] for row in source.rows["public.pairs"])


def _transaction(source: Model, chance: random.Random) -> Any:
    for _ in range(chance.choice((1, 2, 5, 90))):
        rows = source.rows.setdefault("public.people", [])
        free = [str(n) for n in range(60) if str(n) not in {row[0] for row in rows}]
        kind = chance.random()
        if free and (kind < 0.4 or not rows):
            source.insert(PEOPLE, [chance.choice(free), f"n{chance.random()}", "x" * 50])
        elif kind < 0.5 and free:
            unsent = ["note"] if chance.random() < 0.5 else []
            source.update(PEOPLE, [chance.choice(rows)[0]], unsent, id=chance.choice(free))
        elif kind < 0.75:
            unsent = ["note"] if chance.random() < 0.5 else []
            source.update(PEOPLE, [chance.choice(rows)[0]], unsent, name=f"m{chance.random()}")
        elif kind < 0.98 or len(rows) < 20:
            source.delete(PEOPLE, [chance.choice(rows)[0]])
        else:
            source.truncate(PEOPLE)
    key = (str(chance.randrange(5)), chance.choice("äß'%\""))
    if not any(row[:2] == key for row in source.rows.setdefault("public.pairs", [])):
        source.insert(PAIRS, [*key, f"{chance.randrange(99)}.50", '{"a": [1, "x"]}'])
    else:
        source.update(PAIRS, key, price=f"{chance.randrange(99)}.25", unsent=["doc"])
    return source.commit()


def test_half_of_a_transaction_is_never_seen(database: Database, tmp_path: Path) -> None:
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["0", "first", None])
    first = source.commit()
    source.insert(PEOPLE, *[[str(n), "x", None] for n in range(1, 7)])
    one, two, three = in_parts(source.commit(), 2, 2, 2)
    target.write(batch(first, one))
    assert target.flush() == Position(first.end_lsn)
    target.write(batch(two))
    assert target.flush() == Position(first.end_lsn)
    assert len(held(database, "people")) == 1
    target.write(batch(three))
    assert target.flush() == Position(three.end_lsn)
    assert len(held(database, "people")) == 7
    target.close()


def test_a_transaction_that_broke_off_is_begun_again(database: Database, tmp_path: Path) -> None:
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, *[[str(n), "x", None] for n in range(4)])
    one, two = in_parts(source.commit(), 2, 2)
    target.write(batch(one))
    target.write(batch(copy_of(one)))
    target.write(batch(two))
    assert len(held(database, "people")) == 4
    with pytest.raises(SqlTransactionGap):
        target.write(batch(in_parts(_five(source), 2, 3)[1]))
    target.close()


def _five(source: Model) -> Any:
    source.insert(PEOPLE, *[[str(n), "x", None] for n in range(100, 105)])
    return source.commit()


def test_one_larger_than_the_bound_is_split_and_gone_on_with(
    database: Database, tmp_path: Path
) -> None:
    source = Model()
    target = opened(database, tmp_path, transaction_max_rows=3)
    source.insert(VISITS, *[[str(n), "x"] for n in range(6)])
    whole = source.commit()
    one, two, three = in_parts(whole, 2, 2, 2)
    target.write(_upto(one, 2))
    target.write(_upto(two, 4))
    assert len(held(database, "visits")) == 4
    target.close()
    again = sink(database, tmp_path, transaction_max_rows=3)
    assert again.open() == Position(0, whole.commit_lsn, 4)
    # delivered from an older offset, cut elsewhere: what is there is left out
    first, second = in_parts(copy_of(whole), 3, 3)
    again.write(_upto(first, 3))
    again.write(batch(second))
    again.close()
    assert held(database, "visits") == model(source.rows["public.visits"])
    assert three.complete


def _upto(part: Any, index: int) -> Any:
    made = batch(part)
    made.position = Position(0, part.commit_lsn, index)
    return made


def test_unique_values_that_change_places_go_in_as_they_came(
    database: Database, tmp_path: Path
) -> None:
    """What folding would put in a wrong order is applied change by change."""
    database.execute("CREATE SCHEMA replica")
    database.execute(
        "CREATE TABLE replica.people (id int PRIMARY KEY, name text UNIQUE, note text)"
    )
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["1", "a", None], ["2", "b", None])
    target.write(batch(source.commit()))
    source.update(PEOPLE, ["1"], name="between")
    source.update(PEOPLE, ["2"], name="a")
    source.update(PEOPLE, ["1"], name="b")
    target.write(batch(source.commit()))
    assert held(database, "people") == [("1", "b", None), ("2", "a", None)]
    target.close()


def test_a_new_row_that_is_there_already_is_replaced(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE SCHEMA replica")
    database.execute("CREATE TABLE replica.people (id int PRIMARY KEY, name text, note text)")
    database.execute("INSERT INTO replica.people VALUES (5, 'old', 'old')")
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, *[[str(n), "new", None] for n in range(100)])
    target.write(batch(source.commit()))
    assert held(database, "people") == model(source.rows["public.people"])
    target.close()


def test_only_the_instance_that_opened_last_writes(database: Database, tmp_path: Path) -> None:
    source, first = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    first.write(batch(source.commit()))
    second = opened(database, tmp_path)
    source.insert(PEOPLE, ["2", "b", None])
    part = source.commit()
    with pytest.raises(SqlFenced, match="WT-5708"):
        first.write(batch(part))
    assert len(held(database, "people")) == 1
    second.write(batch(part))
    assert len(held(database, "people")) == 2
    first.close()
    second.close()


def test_soft_deletes_keep_the_row_and_tell_when(database: Database, tmp_path: Path) -> None:
    source, target = Model(), opened(database, tmp_path, delete_mode="soft")
    source.insert(PEOPLE, ["1", "a", None], ["2", "b", None])
    target.write(batch(source.commit()))
    source.delete(PEOPLE, ["1"])
    source.update(PEOPLE, ["2"], id="3")
    gone = source.commit()
    target.write(batch(gone))
    rows = texts(database, "people", "id", "name", "deleted_at")
    assert [row[:2] for row in rows] == [("1", "a"), ("3", "b")]
    ((micros,),) = database.execute(
        "SELECT (extract(epoch FROM deleted_at) * 1000000)::bigint FROM replica.people WHERE id = 1"
    )
    assert (micros, rows[1][2]) == (gone.commit_ts, None)
    source.insert(PEOPLE, ["1", "again", None])
    target.write(batch(source.commit()))
    assert texts(database, "people", "id", "name", "deleted_at")[0] == ("1", "again", None)
    target.close()


def test_insert_mode_adds_rows_and_changes_none(database: Database, tmp_path: Path) -> None:
    source, target = Model(), opened(database, tmp_path, insert_mode="insert")
    source.insert(PEOPLE, ["1", "a", None], ["2", "b", None])
    target.write(batch(source.commit()))
    source.update(PEOPLE, ["1"], name="changed")
    source.delete(PEOPLE, ["2"])
    source.insert(PEOPLE, ["2", "again", None], ["3", "c", None])
    target.write(batch(source.commit()))
    source.truncate(PEOPLE)
    target.write(batch(source.commit()))
    assert held(database, "people") == [("1", "a", None), ("2", "b", None), ("3", "c", None)]
    target.close()


def test_deletes_may_be_ignored(database: Database, tmp_path: Path) -> None:
    source, target = Model(), opened(database, tmp_path, delete_mode="ignore")
    source.insert(PEOPLE, ["1", "a", None])
    source.insert(VISITS, ["1", "a"])
    source.delete(PEOPLE, ["1"])
    source.delete(VISITS, ["1", "a"])
    target.write(batch(source.commit()))
    assert held(database, "people") == [("1", "a", None)]
    assert held(database, "visits") == [("1", "a")]
    target.close()


CHILDREN = relation("public.children", [("id", "int4"), ("parent", "int4")])
FAMILY = """
CREATE SCHEMA replica;
CREATE TABLE replica.people (id int PRIMARY KEY, name text, note text);
CREATE TABLE replica.children (id int PRIMARY KEY, parent int REFERENCES replica.people {});
"""


@pytest.mark.parametrize("kind", ["", "DEFERRABLE"])
def test_foreign_keys_stay_valid_where_they_are_checked(
    database: Database, tmp_path: Path, kind: str
) -> None:
    database.execute(FAMILY.format(kind))
    source, target = Model(), opened(database, tmp_path, foreign_keys="check")
    source.insert(PEOPLE, ["1", "a", None])
    source.insert(CHILDREN, ["1", "1"], ["2", "1"])
    target.write(batch(source.commit()))
    source.insert(PEOPLE, ["2", "b", None])
    source.update(CHILDREN, ["1"], parent="2")
    source.delete(CHILDREN, ["2"])
    source.delete(PEOPLE, ["1"])
    source.insert(CHILDREN, ["3", "2"])
    target.write(batch(source.commit()))
    assert held(database, "people") == [("2", "b", None)]
    assert texts(database, "children", "id", "parent") == [("1", "2"), ("3", "2")]
    target.close()


def test_a_truncate_cascades_as_told(database: Database, tmp_path: Path) -> None:
    database.execute(FAMILY.format(""))
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, ["1", "a", None])
    target.write(batch(source.commit()))
    database.execute("INSERT INTO replica.children VALUES (9, 1)")
    source.truncate(PEOPLE)
    source.insert(PEOPLE, ["2", "b", None])
    part = source.commit()
    part.changes[0] = Truncate((PEOPLE,), part.changes[0].lsn, cascade=True)
    target.write(batch(part))
    assert held(database, "people") == [("2", "b", None)]
    assert texts(database, "children", "id") == []
    target.close()


def test_a_new_snapshot_replaces_rows_in_one_moment(database: Database, tmp_path: Path) -> None:
    source, target = Model(), opened(database, tmp_path)
    source.insert(PEOPLE, *[[str(n), "old", None] for n in range(5)])
    target.write(batch(source.commit()))
    for n in range(3):
        source.delete(PEOPLE, [str(n)])
    source.update(PEOPLE, ["4"], name="new")
    source.commit()
    *pieces, end = source.snapshot(PEOPLE)
    for piece in pieces:
        target.write(piece)
        assert len(held(database, "people")) == 5
    target.write(end)
    assert target.flush() == end.position
    assert held(database, "people") == [("3", "old", None), ("4", "new", None)]
    target.close()
