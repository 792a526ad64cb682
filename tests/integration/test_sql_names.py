"""Names and keys in targets that take for the same what differs at the source: case, accents, spaces, length."""

import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, relation
from tests.harness.sql import Place, finish, mended

from waltap.changes.capture.java_regex import NameMatcher
from waltap.changes.decode.relation import FormerOwner, Relation
from waltap.errors import SinkError
from waltap_sinks.sql.errors import (
    SqlColumnNameTaken,
    SqlKeyUnfit,
    SqlNameTaken,
    SqlNameUnfit,
    SqlTableUnfit,
)

UPPER = relation("public.Orders", [("id", "int4"), ("v", "text")])
LOWER = relation("public.orders", [("id", "int4"), ("v", "text")])
WORDS = relation("public.words", [("word", "text"), ("v", "text")], key=("word",))
PAIRS = relation("public.pairs", [("one", "text"), ("two", "text")], key=("one", "two"))
ALIKE = ["a", "A", "b", "b ", "\u00e9", "e\u0301", "e", "\u00df", "ss", "\U0001f600", "\U0001f601"]
NO_CASE = pytest.mark.parametrize("place", ["file", "maria", "duck"], indirect=True)
EACH = pytest.mark.parametrize(
    "place", ["postgres", "file", "maria", "latin", "duck"], indirect=True
)
_numbers = itertools.count(1)


@pytest.fixture
def latin(mariadb, tmp_path) -> Iterator[Place]:
    """Return a MariaDB database whose default is neither UTF-8 nor exact."""
    name = f"latin_{next(_numbers)}"
    mariadb.execute(f"CREATE DATABASE {name} CHARACTER SET latin1 COLLATE latin1_swedish_ci")
    text = "CHAR CHARACTER SET utf8mb4"
    made = Place("mariadb", mariadb.url(name), lambda: mariadb.connect(name), tmp_path, text)
    with contextlib.closing(made):
        yield made
    mariadb.execute(f"DROP DATABASE {name}")


@pytest.mark.parametrize("place", ["file", "duck"], indirect=True)
@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "later"])
def test_tables_that_differ_in_case_only_are_never_one(place, restarted):
    source = Model()
    sink = place.opened()
    sink.write(batch(source.inserted(UPPER, ["1", "upper"])))
    sink.flush()
    if restarted:
        sink.close()
        sink = place.opened()
    source.insert(LOWER, ["1", "lower"])
    with pytest.raises(SqlNameTaken) as raised:
        sink.write(batch(source.commit()))
    assert "public.orders" in str(raised.value)
    assert place.rows("orders", "id", "v") == [("1", "upper")]


@pytest.mark.parametrize("place", ["file", "duck"], indirect=True)
def test_the_name_of_a_table_that_was_renamed_is_free_once_the_target_is_reported(place):
    """The stream reports the new name with the next change only; the remedy says what to do."""
    source = Model()
    place.deliver(source.inserted(UPPER, ["1", "upper"]))
    place.execute('ALTER TABLE "Orders" RENAME TO old')
    place.execute(f"DELETE FROM waltap_position_tables WHERE source_oid = {UPPER.oid}")
    sink = place.opened()
    sink.write(batch(source.inserted(LOWER, ["1", "lower"])))
    renamed = msgspec.structs.replace(UPPER, table="old")
    finish(sink, source.inserted(renamed, ["2", "more"]))
    assert place.rows("orders", "id", "v") == [("1", "lower")]
    assert place.rows("old", "id", "v") == [("1", "upper"), ("2", "more")]


MOVING = pytest.mark.parametrize("place", ["postgres", "file", "duck"], indirect=True)
FIRST = relation("public.people", [("id", "int4"), ("v", "text")])
SECOND = relation("public.guests", [("id", "int4"), ("v", "text")])


def called(one: Relation, name: str, former: Relation | None = None, owner: str = "") -> Relation:
    """Return ``one`` under a name that ``former`` had, which is ``owner`` by now."""
    stated = former and FormerOwner(oid=former.oid, schema="public", table=owner)
    return msgspec.structs.replace(one, table=name, former_owner=stated)


PEOPLE_NOW = called(SECOND, "people", FIRST, "guests")
RENAMES: dict[str, tuple[list[Relation], dict[str, set[int]]]] = {
    "exchange": (
        [FIRST, SECOND, PEOPLE_NOW, called(FIRST, "guests", SECOND, "people")],
        {"people": {2, 3}, "guests": {1, 4}},
    ),
    "made under a name that was free": (
        [FIRST, called(SECOND, "people", FIRST, "old"), called(FIRST, "old")],
        {"people": {2}, "old": {1, 3}},
    ),
    "there and back": ([FIRST, called(FIRST, "away"), FIRST], {"people": {1, 2, 3}}),
}
"""What the stream has of tables, a row each; then the rows of each name, by their numbers."""


@MOVING
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("case", RENAMES)
def test_a_table_whose_name_another_has_now_keeps_its_rows(place, case, at_once):
    steps, expected = RENAMES[case]
    source = Model()
    parts = [source.inserted(table, [str(n), "v"]) for n, table in enumerate(steps, 1)]
    sink = place.opened()
    for some in [parts] if at_once else [[part] for part in parts]:
        sink.write(batch(*some))
        sink.flush()
    found = {name: {int(n) for (n,) in place.rows(name, "id")} for name in expected}
    assert found == expected


@MOVING
def test_versions_of_tables_that_exchange_their_names_stay_in_order(place):
    source = Model()
    source.insert(FIRST, ["1", "first"])
    source.insert(SECOND, ["1", "second"])
    before = source.commit()
    source.update(SECOND, ["1"], v="under its old name")
    parts = [source.commit()]
    people = called(SECOND, "people", FIRST, "old")
    source.rows["public.people"] = source.rows["public.guests"]
    source.update(people, ["1"], v="under its new name")
    parts.append(source.commit())
    sink = place.opened(history_mode="instead")
    sink.write(batch(before))
    sink.write(batch(*parts))
    sink.flush()
    assert place.rows("old_history", "id", "v", "_op") == [("1", "first", "c")]
    assert [
        v for v, current in place.rows("people_history", "v", "_is_current") if current[0] in "1t"
    ] == ["under its new name"]


@pytest.mark.parametrize("place", ["postgres", "maria"], indirect=True)
@pytest.mark.parametrize("whole", [True, False], ids=["between transactions", "within one"])
def test_a_batch_with_two_versions_of_a_table_is_written_once(place, whole):
    """MariaDB's DDL commits what precedes it."""
    columns: dict[str, Any] = {"numbers": [1, 2], "key": (), "identity": "f", "oid": FIRST.oid}
    older = relation("public.people", [("id", "int4"), ("v", "text")], **columns)
    newer = relation("public.people", [("id", "int4"), ("w", "text")], **columns)
    source = Model()
    parts = [source.inserted(older, ["1", "a"])]
    with contextlib.closing(place.opened()) as sink:
        sink.write(batch(*parts))
        place.execute("ALTER TABLE people ADD CONSTRAINT small CHECK (id < 4)")
        source.insert(older, ["2", "b"])
        parts = [source.commit()] if whole else []
        source.insert(newer, ["3", "c"])
        parts += [source.commit()] if whole else []
        parts.append(source.inserted(newer, ["4", "d"]))
        with pytest.raises(SinkError, match="small"):
            sink.write(batch(*parts))
    place.execute("ALTER TABLE people DROP CONSTRAINT small")
    place.deliver(*parts)
    assert place.rows("people", "id", "w") == [("1", "a"), ("2", "b"), ("3", "c"), ("4", "d")]


@MOVING
@pytest.mark.parametrize("key", [("id",), ("v",), ()], ids=["same key", "other key", "no key"])
def test_a_table_made_under_the_name_of_a_dropped_one_has_no_rows_of_it(place, key):
    columns = [("id", "int4"), ("v", "text")]
    second = relation("public.people", columns, key=key, identity="f", oid=SECOND.oid)
    source = Model()
    sink = place.opened()
    for table, value in ((FIRST, "dropped"), (second, "made anew")):
        source.rows.clear()
        sink.write(batch(source.inserted(table, ["1", value])))
    sink.flush()
    sink.close()
    assert {check.verdict for check in place.sink().check()} == {"ok"}
    assert place.rows("people", "id", "v") == [("1", "made anew")]
    assert place.rows(f'"people@{FIRST.oid}"', "id", "v") == [("1", "dropped")]
    place.execute(f'DROP TABLE "people@{FIRST.oid}"')
    sink = place.opened()
    sink.write(batch(source.inserted(second, ["2", "later"])))
    sink.close()
    assert {check.verdict for check in place.sink().check()} == {"ok"}


@MOVING
def test_a_table_that_another_one_leads_to_as_well_keeps_its_name(place):
    source, twin = Model(), msgspec.structs.replace(SECOND, schema="annex", table="people")
    for table in (FIRST, twin):
        source.insert(table, ["1" if table is FIRST else "2", "v"])
        place.deliver(source.commit(), table_name_format="{table}")
    assert place.rows("people", "id") == [("1",), ("2",)]
    assert "needs a new snapshot" in str(place.sink().check())


@MOVING
def test_a_table_that_another_pipeline_writes_to_keeps_its_name(place):
    sources = {"one": Model(), "two": Model()}
    for named, table, number in (("one", FIRST, "1"), ("two", FIRST, "2"), ("one", SECOND, "3")):
        source = sources[named]
        source.insert(msgspec.structs.replace(table, table="people"), [number, "v"])
        place.deliver(source.commit(), named=named)
    assert place.rows("people", "id") == [("1",), ("2",), ("3",)]
    assert "was dropped" in str(place.sink(named="one").check())


@pytest.mark.parametrize("key", [("id",), ("v",)])
def test_a_snapshot_takes_the_table_of_a_dropped_one_where_its_key_fits(postgres, key):
    """All its rows are replaced, and views on it stay: another server's tables have other numbers."""
    source, sink = Model(), postgres.opened()
    sink.write(batch(source.inserted(FIRST, ["1", "dropped"])))
    sink.flush()
    postgres.execute("CREATE VIEW seen AS SELECT * FROM people")
    again = msgspec.structs.replace(called(SECOND, "people"), primary_key=key, wire_key=key)
    other = Model()
    other.insert(again, ["2", "read anew"])
    other.commit()
    for each in other.snapshot(again):
        sink.write(each)
    sink.flush()
    fits = key == ("id",)
    assert postgres.rows("people", "id", "v") == [("2", "read anew")]
    assert postgres.rows("seen", "id") == ([("2",)] if fits else [("1",)])


@pytest.mark.parametrize("place", ["maria", "latin"], indirect=True)
def test_rows_of_a_dropped_table_are_reported_where_another_has_its_name(place):
    source = Model()
    first = source.inserted(FIRST, ["1", "dropped"])
    second = source.inserted(called(SECOND, "people"), ["2", "made anew"])
    source.insert(called(SECOND, "others"), ["3", "renamed"])
    place.deliver(first, second)
    sink = place.sink()
    (warned,) = [check for check in sink.check() if check.verdict == "warning"]
    assert "had its name before and was dropped" in warned.found
    assert place.rows("people", "id") == [("1",), ("2",)], "nothing is dropped"
    sink.open()
    finish(sink, source.commit())
    assert place.rows("others", "id") == [("1",), ("2",), ("3",)], "its name leads to it"


@pytest.mark.parametrize(
    ("versions", "rows"),
    [
        ([{"id": 1, "x": 2}, {"id": 1}, {"id": 1, "x": 3}], [None, None, "x3"]),
        ([{"id": 1, "x": 2, "y": 3}, {"id": 1, "y": 3}, {"id": 1, "x": 3}], ["y1", "y2", "x3"]),
        ([{"id": 1, "x": 2, "x_2": 3}, {"id": 1, "x_2": 3, "x": 4}], [None, "x2"]),
    ],
    ids=["added", "renamed", "the other name is taken"],
)
def test_a_column_with_the_name_of_a_dropped_one_has_none_of_its_values(place, versions, rows):
    source = Model()
    sink = place.opened()
    for number, columns in enumerate(versions, 1):
        types = [(name, "int4" if name == "id" else "text") for name in columns]
        table = relation("public.people", types, numbers=[*columns.values()])
        row = [str(number), *(f"{name}{number}" for name in [*columns][1:])]
        sink.write(batch(source.inserted(table, row)))
    sink.flush()
    assert place.rows("people", "id", "x") == [(str(n), x) for n, x in enumerate(rows, 1)]


def test_tables_of_schemas_that_exchange_their_names_keep_their_rows(postgres):
    """The keys of both have one name in the target, and stay behind when a table is renamed."""
    source = Model()
    ours = [relation(f"{name}.t", [("id", "int4"), ("v", "text")]) for name in ("one", "two")]
    first = [source.inserted(each, ["1", each.schema]) for each in ours]
    theirs = [msgspec.structs.replace(a, schema=b.schema) for a, b in pairwise([*ours, ours[0]])]
    second = [source.inserted(each, ["2", "again"]) for each in theirs]
    postgres.deliver(*first, *second)
    for now, before in pairwise(["one", "two", "one"]):
        assert postgres.rows(f"{now}.t", "id", "v") == [("1", before), ("2", "again")]


def test_characters_arrive_whatever_encoding_the_address_asks_for(postgres):
    part = Model().inserted(WORDS, ["\U0001f600", "\u0142"])
    replace(postgres, url=f"{postgres.url}?client_encoding=SQL_ASCII").deliver(part)
    assert postgres.rows("words", "word", "v") == [("\U0001f600", "\u0142")]


@pytest.mark.parametrize("place", ["postgres", "file", "maria"], indirect=True)
def test_long_names_that_differ_at_their_end_are_two_tables(place):
    tables = [relation(f"{'s' * 40}.{'t' * 40}_{year}", [("id", "int4")]) for year in (2023, 2024)]
    source = Model()
    parts = [source.inserted(table, [str(number)]) for number, table in enumerate(tables)]
    place.deliver(*parts, table_name_format="{schema}_{table}")
    names = place.execute("SELECT target_table FROM waltap_position_tables ORDER BY source_oid")
    assert [place.rows(name, "id") for (name,) in names] == [[("0",)], [("1",)]]


@EACH
def test_a_percent_sign_in_names_is_no_place_of_a_value(place):
    source = Model()
    odd = relation("public.a%sb%%c", [("i%sd", "int4"), ("v%", "text")], key=("i%sd",))
    sink = place.opened(position_table="p%sos%")
    sink.write(batch(source.inserted(odd, ["1", "a"], ["2", "b"])))
    source.update(odd, ["1"], **{"v%": "c"})
    source.delete(odd, ["2"])
    finish(sink, source.commit())
    quote = "`" if place.kind == "mariadb" else '"'
    names = (f"{quote}{name}{quote}" for name in ("a%sb%%c", "i%sd", "v%"))
    assert place.rows(*names) == [("1", "c")]


@pytest.mark.parametrize("name", ["emo\U0001f600ji", "ends "])
@pytest.mark.parametrize("of_column", [True, False])
def test_a_name_that_the_target_cannot_have_is_refused(maria, name, of_column):
    table = f"public.{'plain' if of_column else name}"
    odd = relation(table, [("id", "int4"), (name if of_column else "v", "text")])
    part = Model().inserted(odd, ["1", "a"])
    refused = maria.refuses(SqlNameUnfit, part, re.escape(repr(name)))
    assert NameMatcher([str(refused.fields["table"])])(table)


@NO_CASE
def test_columns_that_differ_in_case_only_are_refused_by_name(place):
    table = relation("public.t", [("id", "int4"), ("Name", "text"), ("name", "text")])
    part = Model().inserted(table, ["1", "a", "b"])
    raised = place.refuses(SqlColumnNameTaken, part)
    left_out = NameMatcher([str(raised.fields["column"])])
    assert left_out("public.t.name")
    assert not left_out("public.t.Name"), "what the remedy says leaves out one of the two"


@NO_CASE
def test_a_table_that_is_there_may_be_written_in_capitals(place):
    place.execute("CREATE TABLE things (ID integer PRIMARY KEY, V varchar(20))")
    things = relation("public.things", [("id", "int4"), ("v", "text")])
    source = Model()
    first = source.inserted(things, ["1", "a"], ["2", "b"])
    source.update(things, ["1"], v="c")
    source.delete(things, ["2"])
    place.deliver(first, source.commit())
    assert place.rows("things", "id", "v") == [("1", "c")]


@EACH
def test_keys_that_are_alike_are_rows_of_their_own(place):
    source, sink = Model(), place.opened()
    for table in (WORDS, PAIRS):
        for word in ALIKE:
            source.insert(table, [word, word])
    sink.write(batch(source.commit()))
    assert place.rows("words", "word") == sorted([(word,) for word in ALIKE], key=str)
    source.delete(WORDS, ["A"])
    source.delete(PAIRS, ["b ", "b "])
    finish(sink, source.commit())
    left = sorted([(word,) for word in ALIKE if word != "A"], key=str)
    assert place.rows("words", "word") == left
    assert len(place.rows("pairs", "one")) == len(ALIKE) - 1


@pytest.mark.parametrize("place", ["file", "maria", "duck"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "held", "odd"),
    [
        ("float8", "0.1", "NaN"),
        ("date", "2020-01-01", "infinity"),
        ("timestamp", "2020-01-01 00:00:00", "-infinity"),
        ("numeric(12,2)", "0.01", "NaN"),
    ],
)
def test_a_key_that_the_target_cannot_hold_ends_the_run(place, kind, held, odd):
    """It was null: in SQLite a row that nothing finds, and MariaDB's driver refused it, as if it were away."""
    table = relation("public.odd", [("k", kind), ("v", kind)], key=("k",))
    source = Model()
    place.deliver(source.inserted(table, [held, odd]))
    kept = place.kind == "duckdb" and kind.startswith("float")
    for change in (lambda: source.insert(table, [odd, held]), lambda: source.delete(table, [odd])):
        change()
        if kept:
            place.deliver(source.commit())
        else:
            place.refuses(SqlKeyUnfit, source.commit(), "public.odd are known by")
    (row,) = place.execute("SELECT k, v FROM odd")
    assert row[0] is not None
    assert kept or row[1] is None


@EACH
def test_long_keys_fit(place):
    source = Model()
    source.insert(WORDS, ["k" * 768, "\U0001f600" * 70_000])
    source.insert(PAIRS, ["k" * 384, "\u00e9" * 384])
    place.deliver(source.commit())
    assert place.rows("words", "word") == [("k" * 768,)]
    kept = relation("public.kept", [("a", "text"), ("b", "bytea"), ("n", "int4")], key=("a", "b"))
    bytes_ = r"\x" + "ab" * 1520  # an index of a history has a flag, too
    part = source.inserted(kept, ["\U0001f600" * 380, bytes_, "1"])
    place.deliver(part, history_mode="beside", named="kept")
    source.update(kept, ["\U0001f600" * 380, bytes_], n="2")
    place.deliver(source.commit(), history_mode="beside", named="kept")
    assert place.rows("kept_history", "n") == [("1",), ("2",)]


LOOSE = {
    "file": "CREATE TABLE words (word TEXT COLLATE NOCASE PRIMARY KEY, v TEXT)",
    "duck": "CREATE TABLE words (word VARCHAR COLLATE NOCASE PRIMARY KEY, v VARCHAR)",
    "maria": "CREATE TABLE words (word varchar(99) COLLATE utf8mb4_general_ci PRIMARY KEY, v text)",
    "latin": "CREATE TABLE words (word varchar(99) PRIMARY KEY, v text)",
    "postgres": "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
    "CREATE TABLE words (word text COLLATE blind PRIMARY KEY, v text)",
}


@EACH
def test_a_table_that_takes_keys_for_the_same_is_refused(request, place):
    name = request.node.callspec.params["place"]
    for statement in LOOSE[name].split(";"):
        place.execute(statement)
    part = Model().inserted(WORDS, ["a", "1"])
    reported = "different texts may be equal"
    if name in {"file", "duck"}:  # no statement ends it there
        place.refuses(SqlTableUnfit, part, reported)
    else:
        mended(place, place.opened(), SqlTableUnfit, reported, part)
        assert place.rows("words", "word") == [("a",)]


def test_a_key_that_the_target_makes_itself_is_refused_until_its_remedy(postgres):
    postgres.execute(
        "CREATE TABLE things (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)"
    )
    things = relation("public.things", [("id", "int4"), ("v", "text")])
    source, sink = Model(), postgres.opened(delete_mode="soft")
    first = source.inserted(things, ["1", "a"])
    source.update(things, ["1"], id="2")
    parts = first, source.commit()
    mended(postgres, sink, SqlTableUnfit, "only be updated to DEFAULT", *parts)
    assert postgres.rows("things", "id") == [("2",)]


@pytest.mark.parametrize("place", ["postgres", "maria", "duck"], indirect=True)
@pytest.mark.parametrize("key", [("id",), ()])
def test_columns_that_leave_the_key_are_null_from_then_on(place, key):
    """They were dropped, or the source computes them: only a snapshot has read them."""
    columns = [("id", "int4"), ("k", "text"), ("m", "text"), ("v", "text")]
    older = relation("public.t", columns, key=("id", "k", "m"), numbers=(1, 2, 3, 4))
    newer = relation("public.t", columns[::3], key=key, numbers=(1, 4))
    source = Model()
    first, second = source.inserted(older, ["1", "a", "b", "x"]), source.inserted(newer, ["2", "y"])
    place.deliver(first)
    sink = place.opened()
    if key:
        mended(place, sink, SqlTableUnfit, "no unique index", second)
    else:
        finish(sink, second)
    assert place.rows("t", "id", "k", "m", "v") == [("1", "a", "b", "x"), ("2", None, None, "y")]


@pytest.mark.parametrize("numbers", [(2, 3), (3, 2)])
def test_a_dead_letter_with_another_column_of_a_name_leaves_each_its_values(place, numbers):
    columns = [("id", "int4"), ("v", "text")]
    one, two = (relation("public.t", columns, numbers=(1, n), oid=100) for n in numbers)
    now = one if numbers[0] == 3 else two
    source = Model()
    place.deliver(source.inserted(one, ["1", "a"]))
    place.redeliver(source.inserted(two, ["2", "b"]))
    place.deliver(source.inserted(now, ["3", "c"]))
    first, second = ("a", None) if now is one else (None, "b")
    assert place.rows("t", "id", "v") == [("1", first), ("2", second), ("3", "c")]
