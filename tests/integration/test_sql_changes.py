"""The SQL sink on every kind of target: rows as the source has them, whole transactions only, each once."""

import contextlib
import itertools
import random
from typing import Any

import msgspec
import pytest
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, copy_of, in_parts, relation
from tests.harness.simulated import Died, dying
from tests.harness.sql import (
    PEOPLE,
    VISITS,
    Place,
    micros,
    model,
    some_of_everything,
)

from waltap.changes.decode.message import Truncate
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap_sinks.sql.errors import (
    SqlConstraintViolated,
    SqlFenced,
    SqlOwnColumnTaken,
    SqlTransactionGap,
)
from waltap_sinks.sql.metadata import SinkMetadata
from waltap_sinks.sql.targets.target import SqlTarget

NAMES = {"people": ("id", "name", "note"), "visits": ("person", "page")}
TABLE = "CREATE TABLE people (id int PRIMARY KEY, name varchar(9) {}, note text)"


def held(place: Place, table: str) -> list[tuple[str | None, ...]]:
    return place.rows(table, *NAMES[table])


def test_random_work_leads_to_the_rows_of_the_source(place):
    """Inserts, updates with and without values, moves of keys, deletes and truncates, in batches of any
    size, with crashes between: rows are the source's after each commit."""
    chance = random.Random(20)
    source, target = Model(), place.opened()
    for _ in range(30):
        parts = [some_of_everything(source, chance) for _ in range(chance.choice((1, 1, 3, 8)))]
        target.write(batch(*parts))
        if chance.random() < 0.2:
            target.close()
            target = place.sink()
            assert target.open() == Position(parts[-1].end_lsn)
            target.write(batch(*map(copy_of, parts)))
        assert held(place, "people") == model(source.rows["public.people"])
    pairs = source.rows["public.pairs"]
    assert place.rows("pairs", "a", "b") == model(row[:2] for row in pairs)
    if place.kind != "sqlite":  # its numbers lose the zero at the end
        assert place.rows("pairs", "a", "b", "price") == model(row[:3] for row in pairs)


def test_a_transaction_that_broke_off_is_begun_again(postgres):
    source, target = Model(), postgres.opened()
    one, two = in_parts(source.inserted(PEOPLE, *[[str(n), "x", None] for n in range(4)]), 2, 2)
    target.write(batch(one))
    target.write(batch(copy_of(one)))
    target.write(batch(two))
    assert len(held(postgres, "people")) == 4
    source.insert(PEOPLE, *[[str(n), "x", None] for n in range(100, 105)])
    with pytest.raises(SqlTransactionGap):
        target.write(batch(in_parts(source.commit(), 2, 3)[1]))


def test_one_larger_than_the_bound_is_split_and_gone_on_with(postgres):
    source, target = Model(), postgres.opened(transaction_max_rows=3)
    whole = source.inserted(VISITS, *[[str(n), "x"] for n in range(6)])
    one, two, _ = in_parts(whole, 2, 2, 2)
    target.write(_upto(one, 2))
    target.write(_upto(two, 4))
    assert len(held(postgres, "visits")) == 4
    target.close()
    again = postgres.sink(transaction_max_rows=3)
    assert again.open() == Position(0, whole.commit_lsn, 4)
    # delivered from an older offset, cut elsewhere: what is there is left out
    first, second = in_parts(copy_of(whole), 3, 3)
    again.write(_upto(first, 3))
    again.write(batch(second))
    assert held(postgres, "visits") == model(source.rows["public.visits"])


def test_a_dead_letter_within_a_split_transaction_is_committed(place):
    source, target = Model(), place.opened(transaction_max_rows=2)
    one, two = in_parts(source.inserted(VISITS, *[[str(n), "x"] for n in range(4)]), 2, 2)
    target.write(_upto(one, 2))
    target.close()
    letters, within = place.sink(), Position(0, one.commit_lsn, 2)
    assert letters.open() == within
    row = SnapshotRows(
        relation=VISITS, rows=[("9", "y")], ts=0, lsn=None, xid=None, kind="incremental"
    )
    letters.write(Batch(parts=[row], position=within, events=1, redelivers=("16B3-1#1",)))
    letters.flush()
    letters.close()
    again = place.sink()
    assert again.open() == within
    assert set(again.redelivered()) == {"16B3-1#1"}
    again.write(batch(two))
    assert len(held(place, "visits")) == 5


def _upto(part: Any, index: int) -> Any:
    made = batch(part)
    made.position = Position(0, part.commit_lsn, index)
    return made


@pytest.mark.parametrize("between", ["between", None])
def test_unique_values_change_places(place, between):
    """What folding puts in a wrong order replaces rows. In MariaDB an upsert goes by any unique index: it must
    not take another row for the one of the key."""
    place.execute(TABLE.format("UNIQUE"))
    source, target = Model(), place.opened()
    target.write(batch(source.inserted(PEOPLE, ["1", "a", None], ["2", "b", None])))
    source.update(PEOPLE, ["1"], name=between or "b")
    source.update(PEOPLE, ["2"], unsent=[] if between else ["note"], name="a")
    source.update(PEOPLE, ["1"], name="b")
    target.write(batch(source.commit()))
    assert held(place, "people") == [("1", "b", None), ("2", "a", None)]


SEATS = msgspec.structs.replace(
    relation("public.seats", [("id", "int4"), ("name", "text")], identity="f"), deferrable=True
)
PRESENT = "(SELECT id, name FROM seats_history WHERE _is_current) t"


@pytest.mark.parametrize("size", [100, 2])
def test_rows_meet_at_deferrable_keys(place, size):
    """Until the commit several rows, some of them equal, may have a key: each may change there, come, move on
    or go. The bound cuts transactions, and each breaks off once."""
    chance, settings = random.Random(30), {"transaction_max_rows": size, "history_mode": "beside"}
    source, target = Model(), place.opened(**settings)
    source.insert(PEOPLE, ["1", "x", None])
    last = source.inserted(SEATS, *[[str(n), "ab"[n % 2]] for n in range(9)])
    target.write(batch(last))
    rows = source.rows["public.seats"]
    for _ in range(15):
        for step in itertools.count():
            keys = [row[0] for row in rows]
            shared = [key for key in keys if keys.count(key) > 1]
            if step > 8 and not shared:
                break
            key = chance.choice(keys if step < 9 else shared)
            where: dict[str, Any] = {"key": [key], "which": chance.randrange(keys.count(key))}
            deed = chance.random()
            if step < 9 and deed < 0.1:
                source.insert(SEATS, [key, chance.choice("abc")])
            elif deed < 0.2:
                source.delete(SEATS, **where)
            elif deed < 0.4:
                source.update(SEATS, **where, name=chance.choice("abc"))
            else:
                source.update(SEATS, **where, id=str(chance.randrange(9 if step < 9 else 40)))
        before, last = last, source.commit()
        pieces = -(-len(last.changes) // size)
        sizes = [*[size] * (pieces - 1), len(last.changes) - size * (pieces - 1)]
        for end in (chance.randrange(pieces), pieces):
            for number, piece in enumerate(in_parts(copy_of(last), *sizes)[:end], 1):
                made = batch(piece)
                if not piece.complete:
                    made.position = Position(before.end_lsn, last.commit_lsn, number * size)
                target.write(made)
            target.close()
            target = place.opened(**settings)
        assert place.rows("seats", "id", "name") == model(rows)
        assert place.rows(PRESENT, "id", "name") == model(rows)
    place.execute("INSERT INTO people VALUES ('9', 'there before', NULL)")
    source.insert(SEATS, ["98", "c"], ["99", "d"])
    source.update(SEATS, ["98"], id="99")
    source.insert(PEOPLE, ["9", "new", None])  # so each change is applied by itself
    source.update(SEATS, ["99"], which=1, id="98")
    sizes = [5] if place.kind == "duckdb" else [3, 2]  # it has no savepoints
    for piece in in_parts(source.commit(), *sizes):
        target.write(batch(piece))
    assert place.rows("seats", "id", "name") == model(rows)


def test_ddl_amid_rows_that_share_a_key_loses_none_of_them(place):
    """In MariaDB DDL commits what precedes it, but no table can hold rows that share a key."""
    source, target = Model(), place.opened()
    target.write(batch(source.inserted(SEATS, ["1", "a"], ["2", "b"])))
    source.update(SEATS, ["1"], id="2")
    source.insert(PEOPLE, ["7", "in a table that the target lacks", None])
    source.update(SEATS, ["2"], which=1, id="1")
    source.insert(relation("public.visits", [("person", "int4")], key=(), oid=VISITS.oid), ["7"])
    source.insert(VISITS, ["8", "in a column that it lacks"])
    whole = source.commit()
    for pieces in (2, 5):
        with contextlib.suppress(SqlTransactionGap):
            for piece in in_parts(copy_of(whole), 1, 1, 1, 1, 1)[:pieces]:
                target.write(batch(piece))
        target.close()
        target = place.opened()
    target.write(batch(copy_of(whole)))
    assert place.rows("seats", "id", "name") == model(source.rows["public.seats"])
    assert held(place, "people") == model(source.rows["public.people"])
    assert held(place, "visits") == [("7", None), ("8", "in a column that it lacks")]


@pytest.mark.parametrize(("table", "column"), [("seats", "who"), ("chairs", "name")])
def test_new_names_amid_rows_that_share_a_key_lose_none_of_them(place, table, column):
    """The server renames tables and columns while a deferred constraint waits, and alters nothing else."""
    one, two = (
        msgspec.structs.replace(
            relation(name, [("id", "int4"), (v, "text")], identity="f", numbers=(1, 2), oid=9),
            deferrable=True,
        )
        for name, v in (("public.seats", "name"), (f"public.{table}", column))
    )
    source = Model()
    place.deliver(source.inserted(one, ["1", "a"], ["2", "b"]), history_mode="beside")
    rows = source.rows[two.name] = source.rows[one.name]
    source.update(one, ["1"], id="2")
    source.update(two, ["2"], which=rows.index(("2", "b")) - rows.index(("2", "a")) > 0, id="1")
    part = source.commit()
    target = place.opened(history_mode="beside")
    target.write(batch(part))
    present = f"(SELECT * FROM {table}_history WHERE _is_current) t"
    for each in (table, present):
        assert place.rows(each, "id", column) == [("1", "b"), ("2", "a")]
    target.close()
    place.deliver(source.inserted(two, ["3", "c"]), history_mode="beside")
    assert place.rows(table, "id", column) == [("1", "b"), ("2", "a"), ("3", "c")]


def test_a_column_of_others_keeps_its_values(place):
    own = "own int NOT NULL"
    place.execute(
        f"CREATE TABLE people (id int PRIMARY KEY, name varchar(9) UNIQUE, note text, {own})"
    )
    source = Model()
    first = source.inserted(PEOPLE, ["1", "a", None], ["2", "b", None])
    place.refuses(SqlConstraintViolated, first, "own")
    place.execute("DROP TABLE people")
    place.execute(
        f"CREATE TABLE people (id int PRIMARY KEY, name varchar(9) UNIQUE, note text, {own} DEFAULT 7)"
    )
    place.deliver(first)
    place.execute("UPDATE people SET own = 9")
    place.execute("DELETE FROM people WHERE id = 2")
    for key in "12":
        source.update(PEOPLE, [key], name=f"{key}z")
    place.deliver(source.commit())
    assert place.rows("people", "id", "name", "own") == [("1", "1z", "9"), ("2", "2z", "7")]


@pytest.mark.parametrize("place", ["postgres", "file", "maria"], indirect=True)
def test_an_update_keeps_the_rows_that_refer_to_it(place):
    place.execute(TABLE.format("UNIQUE"))
    both = "ON DELETE CASCADE ON UPDATE CASCADE"
    place.execute(
        f"CREATE TABLE cars (id int PRIMARY KEY, v int, FOREIGN KEY (v) REFERENCES people(id) {both})"
    )
    place.execute("INSERT INTO people VALUES (1, 'a', NULL)")
    place.execute("INSERT INTO cars VALUES (5, 1)")
    source = Model()
    source.inserted(PEOPLE, ["1", "a", None])
    source.update(PEOPLE, ["1"], name="b")
    source.insert(PEOPLE, ["2", "a", None])
    place.deliver(source.commit(), foreign_keys="check")
    assert place.rows("cars", "id", "v") == [("5", "1")]
    source.update(PEOPLE, ["1"], id="3")
    place.deliver(source.commit(), foreign_keys="check")
    assert held(place, "people") == [("2", "a", None), ("3", "b", None)]
    assert place.rows("cars", "id", "v") == [("5", "3")]


def test_a_part_of_a_key_that_nothing_maps_is_text(place):
    marks = relation(
        "public.marks", [("id", "int4"), ("lsn", "pg_lsn"), ("v", "text")], key=("id", "lsn")
    )
    source = Model()
    place.deliver(source.inserted(marks, ["1", "0/1", "a"], ["1", "0/2", "b"], ["1", "0/3", "c"]))
    source.update(marks, ("1", "0/2"), v="new")
    source.delete(marks, ("1", "0/3"))
    place.deliver(source.commit())
    assert place.rows("marks", "lsn", "v") == [("0/1", "a"), ("0/2", "new")]


def test_only_the_instance_that_opened_last_writes(place):
    source, first = Model(), place.opened()
    first.write(batch(source.inserted(PEOPLE, ["1", "a", None])))
    second = place.opened()
    part = source.inserted(PEOPLE, ["2", "b", None])
    with pytest.raises(SqlFenced, match="WT-5708"):
        first.write(batch(part))
    assert len(held(place, "people")) == 1
    second.write(batch(part))
    assert len(held(place, "people")) == 2


def test_soft_deletes_keep_the_row_and_show_when(place):
    source, target = Model(), place.opened(delete_mode="soft")
    target.write(batch(source.inserted(PEOPLE, ["1", "a", None], ["2", "b", None])))
    source.delete(PEOPLE, ["1"])
    source.update(PEOPLE, ["2"], id="3")
    gone = source.commit()
    target.write(batch(gone))
    rows = place.execute("SELECT id, deleted_at FROM people ORDER BY id")
    assert [(key, micros(moment)) for key, moment in rows] == [(1, gone.commit_ts), (3, None)]
    target.write(batch(source.inserted(PEOPLE, ["1", "again", None])))
    assert place.rows("people", "id", "name", "deleted_at")[0] == ("1", "again", None)


def test_a_column_with_the_name_of_the_soft_deletes_is_refused_until_its_remedy(place):
    odd = relation("public.odd", [("id", "int4"), ("deleted_at", "date")])
    part = Model().inserted(odd, ["1", "2024-01-01"])
    refused = place.refuses(SqlOwnColumnTaken, part, "deleted_at", delete_mode="soft")
    assert "set soft.delete.column = waltap_deleted_at" in str(refused)
    place.deliver(part, delete_mode="soft", soft_delete_column=refused.fields["example"])
    assert place.rows("odd", "deleted_at", "waltap_deleted_at") == [("2024-01-01", None)]


@pytest.mark.parametrize(("mode", "identity"), [("soft", "d"), ("ignore", "d"), ("ignore", "f")])
def test_a_row_gets_the_key_of_a_deleted_row_that_the_target_has(place, mode, identity):
    people = msgspec.structs.replace(PEOPLE, identity=identity)
    source, target = Model(), place.opened(delete_mode=mode)
    target.write(batch(source.inserted(people, ["1", "a", None], ["2", "b", None])))
    source.delete(people, ["1"])
    source.update(people, ["2"], ["note"], id="1")
    target.write(batch(source.commit()))
    assert place.rows("people", "id", "name") == [("1", "b")]
    source.update(people, ["1"], ["note"], id="3")
    target.write(batch(source.commit()))
    assert place.rows("people", "id", "name") == [("3", "b")]


MODES = {
    "insert_mode insert": ([("1", "a", None), ("2", "b", None), ("3", "c", None)], [("1", "a")]),
    "delete_mode ignore": ([("1", "changed", None), ("2", "again", None), ("3", "c", None)], [("1", "a")]),
}  # fmt: skip
"""A mode that changes less in the target; the people and the visits that it leaves."""


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_leaves_rows_as_they_are(postgres, mode):
    name, value = mode.split()
    source, target = Model(), postgres.opened(**{name: value})
    source.insert(PEOPLE, ["1", "a", None], ["2", "b", None])
    source.insert(VISITS, ["1", "a"])
    target.write(batch(source.commit()))
    source.update(PEOPLE, ["1"], name="changed")
    source.delete(PEOPLE, ["2"])
    source.delete(VISITS, ["1", "a"])
    source.insert(PEOPLE, ["2", "again", None], ["3", "c", None])
    target.write(batch(source.commit()))
    if name == "insert_mode":
        source.truncate(PEOPLE)
        target.write(batch(source.commit()))
    assert (held(postgres, "people"), held(postgres, "visits")) == MODES[mode]


COLUMNS = [("id", "int4"), ("parent", "int4")]
CHILDREN = relation("public.children", COLUMNS)
REFERRING = "; CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES people {})"


@pytest.mark.parametrize("kind", ["", "DEFERRABLE"])
def test_foreign_keys_stay_valid_where_they_are_checked(postgres, kind):
    postgres.execute(TABLE.format("") + REFERRING.format(kind))
    source, target = Model(), postgres.opened(foreign_keys="check")
    source.insert(PEOPLE, ["1", "a", None])
    source.insert(CHILDREN, ["1", "1"], ["2", "1"])
    target.write(batch(source.commit()))
    source.insert(PEOPLE, ["2", "b", None])
    source.update(CHILDREN, ["1"], parent="2")
    source.delete(CHILDREN, ["2"])
    source.delete(PEOPLE, ["1"])
    source.insert(CHILDREN, ["3", "2"])
    target.write(batch(source.commit()))
    assert held(postgres, "people") == [("2", "b", None)]
    assert postgres.rows("children", "id", "parent") == [("1", "2"), ("3", "2")]
    # A constraint that waits for the commit keeps DDL away from its table.
    source.insert(CHILDREN, ["4", "2"])
    added = source.inserted(
        relation("public.children", [*COLUMNS, ("note", "text")]), ["5", "2", "x"]
    )
    source.truncate(CHILDREN)
    source.insert(CHILDREN, ["6", "2"])
    target.write(batch(added, source.commit()))
    assert postgres.rows("children", "id", "note") == [("6", None)]


def test_a_truncate_cascades_as_reported(postgres):
    postgres.execute(TABLE.format("") + REFERRING.format(""))
    source, target = Model(), postgres.opened()
    target.write(batch(source.inserted(PEOPLE, ["1", "a", None])))
    postgres.execute("INSERT INTO children VALUES (9, 1)")
    source.truncate(PEOPLE)
    source.insert(PEOPLE, ["2", "b", None])
    part = source.commit()
    part.changes[0] = Truncate((PEOPLE,), part.changes[0].lsn, cascade=True)
    target.write(batch(part))
    assert held(postgres, "people") == [("2", "b", None)]
    assert postgres.rows("children", "id") == []


def test_a_new_snapshot_replaces_rows_in_one_moment(postgres):
    source, target = Model(), postgres.opened()
    target.write(batch(source.inserted(PEOPLE, *[[str(n), "old", None] for n in range(5)])))
    for n in range(3):
        source.delete(PEOPLE, [str(n)])
    source.update(PEOPLE, ["4"], name="new")
    source.commit()
    *pieces, end = source.snapshot(PEOPLE)
    for piece in pieces:
        target.write(piece)
        assert len(held(postgres, "people")) == 5
    target.write(end)
    assert target.flush() == end.position
    assert held(postgres, "people") == [("3", "old", None), ("4", "new", None)]


def test_columns_that_exchange_names_keep_their_values_though_the_sink_dies(maria):
    """There each rename commits by itself. It dies twice as it renames a column, or notes or commits that."""
    columns = [("id", "int4"), ("a", "text"), ("b", "text")]
    for at in itertools.count(1):
        table = f"t{at}"
        one = relation(f"public.{table}", columns, numbers=(1, 2, 3))
        two = relation(f"public.{table}", [columns[0], *columns[:0:-1]], numbers=(1, 2, 3))
        source = Model()
        maria.deliver(source.inserted(one, ["1", "a1", "b1"]), named=table)
        part = source.inserted(two, ["2", "b2", "a2"])
        for _ in range(2):
            steps = (SqlTarget, "rename_column"), (SinkMetadata, "note"), (SqlTarget, "commit")
            with (
                contextlib.suppress(Died),
                dying(*steps, at=at) as calls,
                contextlib.closing(maria.opened(named=table)) as sink,
            ):
                sink.write(batch(copy_of(part)))
        maria.deliver(copy_of(part), named=table)
        assert maria.rows(table, "id", "b", "a") == [("1", "a1", "b1"), ("2", "b2", "a2")]
        if len(calls) < at:
            return


MISSING = {
    "bool": "t", "int8": "9007199254740993", "float8": "0.1", "numeric(10,2)": "12.50", "text": r"it's%s\z",
    "bytea": r"\x00ff", "date": "2024-02-29", "timestamp": "2024-02-29 12:30:00.5", "time": "12:30:00",
    "timestamptz": "2024-02-29 12:30:00+00", "interval": "1 day", "uuid": "0b5f1a2c-3d4e-4f60-8a7b-000000000001",
    "jsonb": '{"a": 1}', "inet": "10.0.0.1",
}  # fmt: skip


def test_rows_before_a_new_column_have_its_default_as_later_rows_have_it(place):
    for number, (kind, value) in enumerate(MISSING.items()):
        name, more = f"public.t{number}", {"c%": {"missing": value, "default": value}}
        one = relation(name, [("id", "int4")], numbers=(1,))
        two = relation(name, [("id", "int4"), ("c%", kind)], numbers=(1, 2), more=more)
        source = Model()
        first, then = source.inserted(one, ["1"]), source.inserted(two, ["2", value])
        place.deliver(first, then, named=name)
        quote = "`" if place.kind == "mariadb" else '"'
        found = place.execute(f"SELECT {quote}c%{quote} FROM t{number}")
        assert found[0] == found[1], kind


def test_a_default_that_is_not_written_any_more_is_not_missing(maria, monkeypatch):
    """A sink that dies once the column is there has given it to all rows."""
    one = relation("public.people", [("id", "int4")], numbers=(1,))
    more = {"c": {"missing": "t", "default": "t"}}
    two = relation("public.people", [("id", "int4"), ("c", "bool")], numbers=(1, 2), more=more)
    source, run = Model(), SqlTarget.run
    maria.deliver(source.inserted(one, ["1"]))
    part = source.inserted(two, ["2", "f"])

    def dies(target: SqlTarget, statement: str, *more: Any) -> Any:
        found = run(target, statement, *more)
        if "ADD COLUMN" in statement:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch, contextlib.closing(maria.opened()) as sink:
        patch.setattr(SqlTarget, "run", dies)
        with pytest.raises(KeyboardInterrupt):
            sink.write(batch(copy_of(part)))
    maria.deliver(part)
    assert maria.rows("people", "id", "c") == [("1", "1"), ("2", "0")]
