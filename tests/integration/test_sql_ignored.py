"""A target that takes a change and does nothing: no row vanishes, or stays, in silence."""

import itertools
from collections.abc import Callable

import pytest
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, relation
from tests.harness.sql import Place, finish, lesser, mended

from waltap_sinks.sql.errors import SqlChangeIgnored, SqlFunctionFailed

THINGS = relation("public.things", [("id", "int4"), ("v", "text")], key=("id",))
LONE = relation("public.lone", [("id", "int4")], key=("id",))
BARE = relation("public.bare", [("id", "int4"), ("v", "text")], key=(), identity="f")
KEPT = "CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"


def spoilt(place: Place, verb: str, table: str = "things") -> None:
    """Have the table take the verb of row 2 and do nothing."""
    row = "new" if verb == "INSERT" else "old"
    made = f"CREATE TRIGGER keeps BEFORE {verb} ON {table}"
    if place.kind == "sqlite":
        place.execute(f"{made} WHEN {row}.id = 2 BEGIN SELECT RAISE(IGNORE); END")
        return
    place.execute(KEPT)
    place.execute(f"{made} FOR EACH ROW WHEN ({row}.id = 2) EXECUTE FUNCTION kept()")
    place.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER keeps")


@pytest.mark.parametrize("verb", ["INSERT", "UPDATE", "DELETE"])
@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("place", ["file", "postgres"], indirect=True)
def test_a_trigger_that_drops_a_row_ends_the_run_and_the_remedy_lets_it_go_on(place, verb, count):
    source, sink = Model(), place.opened()
    source.insert(THINGS, ["0", "first"])
    if verb != "INSERT":
        source.insert(THINGS, *([str(n), "old"] for n in range(1, count + 1)))
    sink.write(batch(source.commit()))
    sink.flush()
    spoilt(place, verb)
    for n in range(1, count + 1):
        if verb == "INSERT":
            source.insert(THINGS, [str(n), "old"])
        elif verb == "UPDATE":
            source.update(THINGS, [str(n)], v="new")
        else:
            source.delete(THINGS, [str(n)])
    part = source.commit()
    with pytest.raises(SqlChangeIgnored, match=r"things .*row id=2\b.*keeps") as error:
        sink.write(batch(part))
        sink.flush()
    sink.close()
    assert [(c.verdict, c.remedy) for c in place.sink().check()[1:]] == [
        ("warning", error.value.fields["statement"])
    ]
    assert len(place.rows("things", "id")) == (1 if verb == "INSERT" else count + 1)
    place.execute(str(error.value.fields["statement"]))  # the remedy
    place.deliver(part)
    assert len(place.rows("things", "id")) == (1 if verb == "DELETE" else count + 1)
    if verb == "UPDATE":
        assert place.rows("things", "v") == [("first",), *[("new",)] * count]


WAYS: dict[str, tuple[dict[str, str], str, str, Callable[[Model], object]]] = {
    "insert": ({"insert_mode": "insert"}, "INSERT", "things", lambda s: s.insert(THINGS, ["2", "b"])),
    "soft": ({"delete_mode": "soft"}, "UPDATE", "things", lambda s: s.delete(THINGS, ["2"])),
    "history": (
        {"history_mode": "instead"}, "UPDATE", "things_history", lambda s: s.delete(THINGS, ["2"]),
    ),
    "unsent": ({}, "UPDATE", "things", lambda s: s.update(THINGS, ["2"], unsent=["v"])),
    "move": ({}, "UPDATE", "things", lambda s: s.update(THINGS, ["2"], unsent=["v"], id="3")),
    "keyless": ({}, "DELETE", "bare", lambda s: s.delete(BARE, ["2", "a"])),
    "truncate": ({}, "DELETE", "things", lambda s: s.truncate(THINGS)),
}  # fmt: skip
"""Properties, the verb that does nothing to which table, and the change that is ignored."""


@pytest.mark.parametrize(
    ("place", "mode"),
    # TRUNCATE of PostgreSQL goes by no row
    [("file", "truncate"), *itertools.product(("file", "postgres"), list(WAYS)[:-1])],
    indirect=["place"],
)
def test_it_is_seen_on_every_way_to_the_target(place, mode):
    more, verb, name, change = WAYS[mode]
    source, sink = Model(), place.opened(**more)
    there = [["1", "a"]] if verb == "INSERT" else [["1", "a"], ["2", "a"]]
    source.insert(BARE if name == "bare" else THINGS, *there)
    sink.write(batch(source.commit()))
    sink.flush()
    spoilt(place, verb, name)
    change(source)
    with pytest.raises(SqlChangeIgnored, match=name):
        sink.write(batch(source.commit()))
        sink.flush()


def test_a_row_that_goes_may_be_gone_already(place):
    """A target may have fewer rows than the source had: what is to go is not there, as it should be."""
    source = Model()
    source.insert(THINGS, ["1", "a"], ["2", "a"], ["3", "a"])
    source.insert(BARE, ["1", "a"])
    place.deliver(source.commit())
    place.execute("DELETE FROM things WHERE id > 1")
    place.execute("DELETE FROM bare")
    source.delete(THINGS, ["2"])
    source.update(THINGS, ["3"], unsent=["v"], id="4")
    source.delete(BARE, ["1", "a"])
    source.insert(THINGS, ["9", "brief"])
    source.delete(THINGS, ["9"])
    place.deliver(source.commit())
    assert place.rows("things", "id") == [("1",), ("4",)]


def test_row_security_of_the_target_is_refused_and_the_remedy_ends_it(database, postgres):
    with lesser(database, postgres) as (role, place):
        database.execute(
            "CREATE TABLE things (id int PRIMARY KEY, v text); INSERT INTO things VALUES (1, 'a');"
            f"GRANT ALL ON SCHEMA public TO {role}; ALTER TABLE things OWNER TO {role}"
        )
        source, sink = Model(), place.opened()
        first = source.inserted(THINGS, ["2", "a"])
        sink.write(batch(first))
        database.execute(
            "ALTER TABLE things ENABLE ROW LEVEL SECURITY; ALTER TABLE things FORCE ROW LEVEL SECURITY;"
            f"CREATE POLICY mine ON things TO {role} USING (id > 1) WITH CHECK (true)"
        )
        source.insert(THINGS, ["1", "a"])  # the target has it from before
        source.delete(THINGS, ["1"])
        part = source.commit()
        with pytest.raises(SqlChangeIgnored, match=r"security|row-level") as error:
            sink.write(batch(part))
        sink.close()
        assert [each.verdict for each in place.sink().check()] == ["ok", "error"]
        database.execute(str(error.value.fields["statement"]))  # the remedy
        again = place.opened()
        again.write(batch(first, part))
        again.flush()
        assert place.rows("things", "id") == [("2",)]


THE_TABLE = "CREATE TABLE things (id int PRIMARY KEY, v text)"
USELESS = {
    verb: (
        "postgres", "rule nothing", THE_TABLE, f"CREATE RULE nothing AS ON {verb} TO things DO INSTEAD NOTHING",
        "ALTER TABLE things ENABLE ALWAYS RULE nothing",
    )
    for verb in ("INSERT", "UPDATE", "DELETE")
}  # fmt: skip
USELESS["MyISAM"] = "maria", "MyISAM", f"{THE_TABLE} ENGINE = MyISAM"


@pytest.mark.parametrize(
    ("place", "case"), [(USELESS[case][0], case) for case in USELESS], indirect=["place"]
)
def test_a_rule_or_an_engine_without_transactions_is_refused_until_its_remedy(place, case):
    _, reported, *statements = USELESS[case]
    for statement in statements:
        place.execute(statement)
    source = Model()
    source.insert(THINGS, ["1", "a"])
    mended(place, place.opened(), SqlChangeIgnored, reported, source.commit())
    assert place.rows("things", "id") == [("1",)]


def test_a_row_that_another_unique_column_keeps_away_is_no_silence(maria):
    maria.execute("CREATE TABLE things (id int PRIMARY KEY, v varchar(9) UNIQUE)")
    maria.execute("INSERT INTO things VALUES (7, 'a')")
    source, sink = Model(), maria.opened(insert_mode="insert")
    source.insert(THINGS, ["1", "a"], ["2", "b"])
    with pytest.raises(SqlChangeIgnored, match="id=1"):
        sink.write(batch(source.commit()))


def test_rows_that_are_a_key_alone_may_be_there(place):
    """An upsert of them changes nothing, and ignores nothing."""
    source, sink = Model(), place.opened()
    sink.write(batch(source.inserted(LONE, ["1"], ["2"])))
    source.update(LONE, ["1"])
    source.update(LONE, ["2"], id="3")
    source.delete(LONE, ["1"])
    source.insert(LONE, ["1"])
    sink.write(batch(source.commit()))
    source.update(LONE, ["1"])
    finish(sink, source.commit())
    assert place.rows("lone", "id") == [("1",), ("3",)]


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_trigger_that_names_a_table_without_its_schema_gets_a_path_by_the_remedy(place):
    source, sink = Model(), place.opened()
    sink.write(batch(source.inserted(THINGS, ["1", "old"])))
    sink.flush()
    place.execute("CREATE TABLE audit (id int)")
    place.execute(
        "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO audit VALUES (new.id); RETURN new; END'"
    )
    place.execute(
        "CREATE TRIGGER notes BEFORE INSERT ON things FOR EACH ROW EXECUTE FUNCTION noted()"
    )
    place.execute("ALTER TABLE things ENABLE ALWAYS TRIGGER notes")
    part = source.inserted(THINGS, ["2", "new"])
    reported = r"things: .*audit.*public\.noted\(\)"
    mended(place, sink, SqlFunctionFailed, reported, part)
    assert place.rows("audit", "id") == [("2",)]
