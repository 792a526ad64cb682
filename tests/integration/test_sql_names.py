"""Names in targets that take upper and lower case for the same, and what a crash between statements left."""

from pathlib import Path

import msgspec
import pytest

from tests.integration.test_sql_dialects import Place, duck, file, maria
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, relation
from waltap.capture.java_regex import NameMatcher
from waltap_sinks.sql.errors import SqlColumnNameTaken, SqlNameTaken

__all__ = ["duck", "file", "maria"]

UPPER = relation("public.Orders", [("id", "int4"), ("v", "text")])
LOWER = relation("public.orders", [("id", "int4"), ("v", "text")])


@pytest.fixture(params=["file", "maria", "duck"], ids=["sqlite", "mariadb", "duckdb"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("place", ["file", "duck"], indirect=True, ids=["sqlite", "duckdb"])
@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "later"])
def test_tables_that_differ_in_case_only_are_never_one(
    place: Place, restarted: bool, tmp_path: Path
) -> None:
    source = Model()
    sink = place.opened(tmp_path)
    source.insert(UPPER, ["1", "upper"])
    sink.write(batch(source.commit()))
    sink.flush()
    if restarted:
        sink.close()
        sink = place.opened(tmp_path)
    source.insert(LOWER, ["1", "lower"])
    with pytest.raises(SqlNameTaken) as raised:
        sink.write(batch(source.commit()))
    sink.close()
    assert "public.orders" in str(raised.value)
    assert place.rows("orders", "id", "v") == [("1", "upper")]


@pytest.mark.parametrize("place", ["file", "duck"], indirect=True, ids=["sqlite", "duckdb"])
def test_the_name_of_a_table_that_was_renamed_is_free_once_the_target_is_told(
    place: Place, tmp_path: Path
) -> None:
    """The stream tells of the new name with the next change only; the remedy says what to do."""
    source = Model()
    sink = place.opened(tmp_path)
    source.insert(UPPER, ["1", "upper"])
    sink.write(batch(source.commit()))
    sink.flush()
    sink.close()
    place.execute('ALTER TABLE "Orders" RENAME TO old')
    place.execute(f"DELETE FROM waltap_position_tables WHERE source_oid = {UPPER.oid}")
    sink = place.opened(tmp_path)
    source.insert(LOWER, ["1", "lower"])
    sink.write(batch(source.commit()))
    renamed = msgspec.structs.replace(UPPER, table="old")
    source.insert(renamed, ["2", "more"])
    sink.write(batch(source.commit()))
    sink.flush()
    sink.close()
    assert place.rows("orders", "id", "v") == [("1", "lower")]
    assert place.rows("old", "id", "v") == [("1", "upper"), ("2", "more")]


def test_columns_that_differ_in_case_only_are_refused_by_name(place: Place, tmp_path: Path) -> None:
    source = Model()
    source.insert(
        relation("public.t", [("id", "int4"), ("Name", "text"), ("name", "text")]),
        ["1", "a", "b"],
    )
    sink = place.opened(tmp_path)
    with pytest.raises(SqlColumnNameTaken) as raised:
        sink.write(batch(source.commit()))
    sink.close()
    left_out = NameMatcher([str(raised.value.fields["column"])])
    assert left_out("public.t.name")
    assert not left_out("public.t.Name"), "what the remedy says leaves out one of the two"


def test_a_table_that_is_there_may_be_written_in_capitals(place: Place, tmp_path: Path) -> None:
    place.execute("CREATE TABLE things (ID integer PRIMARY KEY, V varchar(20))")
    things = relation("public.things", [("id", "int4"), ("v", "text")])
    source = Model()
    source.insert(things, ["1", "a"], ["2", "b"])
    first = source.commit()
    source.update(things, ["1"], v="c")
    source.delete(things, ["2"])
    sink = place.opened(tmp_path)
    sink.write(batch(first))
    sink.write(batch(source.commit()))
    sink.flush()
    sink.close()
    assert place.rows("things", "id", "v") == [("1", "c")]


def test_the_index_of_a_history_is_made_where_a_crash_prevented_it(
    maria: Place, tmp_path: Path
) -> None:
    """Table and index are two transactions of MariaDB; a new key has an index of its own."""
    indexes = (
        "SELECT group_concat(column_name ORDER BY seq_in_index) FROM information_schema.statistics"
        " WHERE table_schema = database() AND table_name = 't_history' GROUP BY index_name"
    )
    columns = [("id", "int4"), ("n", "int4")]
    source = Model()
    for key, lost in (("id", True), ("id", False), ("n", False)):
        table = relation("public.t", columns, key=(key,))
        source.insert(table, [str(source.lsn), str(source.lsn)])
        sink = maria.opened(tmp_path, history_mode="instead")
        sink.write(batch(source.commit()))
        sink.flush()
        sink.close()
        assert (f"{key},_is_current",) in maria.execute(indexes)
        if lost:
            ((name,),) = maria.execute(
                "SELECT DISTINCT index_name FROM information_schema.statistics"
                " WHERE table_schema = database() AND table_name = 't_history'"
            )
            maria.execute(f"DROP INDEX {name} ON t_history")
