"""The SQL sink when columns of the source take other types: on every kind of target."""

import contextlib
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import pytest
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, relation

from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap_sinks.sql.errors import SqlReadOnly, SqlRefused, SqlTableUnfit
from waltap_sinks.sql.shape import TargetName


def test_a_key_becomes_wider_beside_an_index(place):
    """DuckDB alters neither columns of a key nor those of an index."""
    one, two = (
        relation("public.t", [("id", kind), ("v", kind)], numbers=(1, 2))
        for kind in ("int4", "int8")
    )
    source = Model()
    place.deliver(source.inserted(one, ["1", "2"]))
    place.execute("CREATE UNIQUE INDEX mine ON t (v)")
    source.insert(two, ["9999999999", "7"])
    source.update(two, ["1"], v="9999999999")
    place.deliver(source.commit())
    assert place.rows("t", "id", "v") == [("1", "9999999999"), ("9999999999", "7")]


def test_a_key_of_more_columns_is_found_by_its_index(place):
    columns = [("id", "int4"), ("n", "int4"), ("note", "text")]
    one, two = (relation("public.t", columns, key=key) for key in (("id",), ("n", "id")))
    source = Model()
    place.deliver(source.inserted(one, ["1", "5", "a"]))
    source.insert(two, ["2", "5", "b"], ["3", "5", "c"])
    source.update(two, ["5", "1"], note="d")
    source.update(two, ["5", "2"], ["note"], n="6")
    part = source.commit()
    place.execute(str(place.refuses(SqlTableUnfit, part).fields["statement"]))
    place.deliver(part)
    with contextlib.closing(place.opened()) as target:
        source.rows[two.name].pop()
        target.write(batch(source.inserted(two, ["3", "5", "e"])))  # there it is already
    assert place.rows("t", "n", "id", "note") == [
        ("5", "1", "d"), ("5", "3", "e"), ("6", "2", "b"),
    ]  # fmt: skip


def test_a_key_that_another_table_refers_to_does_not_become_wider_in_duckdb(duck):
    one, two = (relation("public.t", [("id", kind)], numbers=(1,)) for kind in ("int4", "int8"))
    source = Model()
    duck.deliver(source.inserted(one, ["1"]))
    duck.execute("CREATE TABLE child (id int REFERENCES t (id))")
    part = source.inserted(two, ["9999999999"])
    assert duck.refuses(SqlTableUnfit, part, match="column id of public.t: .*child")
    duck.execute("DROP TABLE child")
    duck.deliver(part)
    assert duck.rows("t", "id") == [("1",), ("9999999999",)]


RETYPED = [
    ("float4", "numeric(12,2)", "1.5", "123456789.12"),
    ("float8", "numeric(20,4)", "1.5", "1234567890123456.7891"),
    ("int4", "numeric(10,2)", "7", "19.99"),
    ("int4", "float8", "7", "1.5"),
    ("int4", "text", "1", "007"),
    ("date", "timestamp", "2024-01-01", "2024-01-02 12:34:56"),
    ("date", "timestamptz", "2024-01-01", "2024-01-02 12:34:56+00"),
    ("time", "timetz", "10:00:00", "12:00:00+05"),
    ("bpchar(10)", "varchar(10)", "a", "b "),
    ("int4", "date", "7", "2024-01-02"),
    ("varchar(9)", "int4", "seven", "7"),
    ("numeric(10,4)", "numeric(12,2)", "1.2345", "5.67"),
    ("numeric(10,2)", "numeric(10,4)", "12345678.12", "1.2345"),
    ("float8", "int4", "-2e+300", "7"),
    ("_int4", "int4", "{1,2}", "7"),
    ("int4", "_int4", "7", "{1,2}"),
]


def test_a_column_of_another_type_has_the_values_of_it_and_a_history_the_former_ones(place):
    """The oracle is a table that was made with that type, and one whose type the user chose."""
    source, target = Model(), place.opened(history_mode="beside")

    def table(name: str, kind: str) -> Any:
        oid = zlib.crc32(name.encode()) >> 1
        return relation(name, [("id", "int4"), ("v", kind)], numbers=(1, 2), oid=oid)

    def texts(number: int, of: str = "") -> list[tuple[str | None, ...]]:
        return place.rows(f"t{number}{of}", "id", "v")

    for n, (old, _, first, _) in enumerate(RETYPED):
        for name in "ts":
            target.write(batch(source.inserted(table(f"public.{name}{n}", old), ["1", first])))
    target.flush()
    target.close()
    before = [texts(n, "_history")[0] for n in range(len(RETYPED))]
    place.execute("CREATE TABLE chosen (id int PRIMARY KEY, v double precision)")
    target = place.opened(history_mode="beside")
    target.write(batch(source.inserted(table("public.chosen", "numeric(9,2)"), ["1", "1.25"])))
    target.write(batch(source.inserted(table("public.chosen", "numeric(9,1)"), ["2", "1.5"])))
    for n, (_, new, _, second) in enumerate(RETYPED):
        target.write(batch(source.inserted(table(f"public.t{n}", new), ["2", second])))
        target.write(batch(source.inserted(table(f"public.u{n}", new), ["2", second])))
    target.flush()
    target.close()
    for n, (old, new, _, second) in enumerate(RETYPED):
        (made,) = place.rows(f"u{n}", "id", "v")
        kinds = f"{old} to {new}"
        assert texts(n)[1] == made, kinds
        former, latest = texts(n, "_history")
        assert _number(former[1]) == _number(before[n][1]), kinds
        assert _number(latest[1]) in {_number(second), _number(made[1])}, kinds
    assert place.rows("chosen", "id", "v") == [("1", "1.25"), ("2", "1.5")]
    read = [table(f"public.s{n}", new) for n, (_, new, _, _) in enumerate(RETYPED)]
    for each, (_, _, _, second) in zip(read, RETYPED, strict=True):
        source.rows[each.name] = [("2", second)]
    target = place.opened(history_mode="beside")
    for each in source.snapshot(*read):
        target.write(each)
    target.close()
    for n in range(len(RETYPED)):
        assert place.rows(f"s{n}", "id", "v") == place.rows(f"u{n}", "id", "v"), RETYPED[n]


@pytest.mark.parametrize("mode", ["none", "instead"])
@pytest.mark.parametrize("old", ["text", "varchar(9)", "int4"])
def test_a_column_takes_bytes_that_are_no_text_and_leaves_them_as_one(maria, old, mode):
    source, table = Model(), "t" if mode == "none" else "t_history"
    one, two = _typed(old, "bytea")
    parts = source.inserted(one, ["1", "7"]), source.inserted(two, ["2", r"\xd9e1"])
    maria.deliver(*parts, history_mode=mode)
    assert [v for _, v in maria.execute(f"SELECT id, v FROM {table}")] == [b"7", b"\xd9\xe1"]
    if old == "text":
        maria.deliver(source.inserted(one, ["3", "x"]), history_mode=mode)
        assert [v for (v,) in maria.rows(table, "v")] == [r"\x37", r"\xd9e1", "x"]


def test_a_column_of_texts_that_the_user_made_for_bytes_keeps_its_type(maria):
    maria.execute("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    maria.deliver(Model().inserted(*_typed("bytea"), ["1", r"\x37"]))
    assert maria.execute("SELECT v FROM t") == [("7",)]


def test_a_dead_letter_of_bytes_leaves_a_column_that_is_a_text_by_now_as_it_is(maria):
    bytea, text = _typed("bytea", "text")
    source = Model()
    maria.deliver(source.inserted(bytea, ["1", r"\xd9"]), source.inserted(text, ["2", "b"]))
    maria.redeliver(source.inserted(bytea, ["3", r"\x37"]))
    assert maria.execute("SELECT v FROM t") == [(r"\xd9",), ("b",), ("7",)]


def _typed(*kinds: str) -> Iterator[Any]:
    for kind in kinds:
        yield relation("public.t", [("id", "int4"), ("v", kind)], numbers=(1, 2), oid=100)


@pytest.mark.parametrize(
    ("old", "new", "value"), [("int4", "float8", "1.5"), ("numeric(9,1)", "numeric(8,4)", "1.2345")]
)
def test_a_dead_letter_of_a_former_type_leaves_the_column_its_type(place, old, new, value):
    one, two = _typed(old, new)
    source = Model()
    place.deliver(source.inserted(one, ["1", "7"]), source.inserted(two, ["2", value]))
    with contextlib.closing(place.opened()) as letters:
        row = SnapshotRows(
            relation=one, rows=[("3", "9")], ts=0, lsn=None, xid=None, kind="incremental"
        )
        letters.write(Batch(parts=[row], position=letters.open(), events=1, redelivers=("1#1",)))
        letters.flush()
    place.deliver(source.inserted(two, ["4", value]))
    found = [Decimal(str(v)) for (v,) in place.rows("t", "v")]
    assert sorted(found) == [*[Decimal(value)] * 2, 7, 9]


@pytest.mark.parametrize("mode", ["none", "beside"])
def test_a_dead_letter_of_former_names_goes_by_the_present_ones(place, mode):
    one, two = (
        relation(name, [(key, "int4"), (v, "text")], numbers=(1, 2), key=(key,), oid=100)
        for name, key, v in (("public.t", "id", "v"), ("public.u", "k", "w"))
    )
    source = Model()
    first, then = source.inserted(one, ["1", "a"]), source.inserted(two, ["2", "b"])
    place.deliver(first, then, history_mode=mode)
    source.insert(one, ["3", "c"])
    source.update(one, ["1"], v="d")
    place.redeliver(source.commit(), history_mode=mode)
    place.deliver(source.inserted(two, ["4", "e"]), history_mode=mode)
    assert place.rows("u", "k", "w") == [("1", "d"), ("2", "b"), ("3", "c"), ("4", "e")]
    if mode == "beside":
        assert len(place.rows("u_history", "k", "w")) == 5


@pytest.mark.parametrize("mode", ["delete", "soft"])
@pytest.mark.parametrize("place", ["file", "duck", "postgres"], indirect=True)
def test_a_snapshot_gives_a_column_its_type_though_former_rows_do_not_fit(place, mode):
    # Texts have no limit in DuckDB, and such columns stay; PostgreSQL casts no time to a number.
    old, value = (
        ("varchar(9)", "seven") if place.kind == "postgresql" else ("timestamp", "2024-01-01")
    )
    one, two = _typed(old, "int4")
    source = Model()
    place.deliver(source.inserted(one, ["1", value]), delete_mode=mode)
    source.rows[two.name] = [("2", "7")]
    with contextlib.closing(place.opened(delete_mode=mode)) as target:
        for each in source.snapshot(two):
            target.write(each)
        found = target._target.describe(TargetName("public", "t"))
    assert found.columns["v"].type == (
        "TEXT" if place.kind == "sqlite" else found.columns["id"].type
    )
    assert place.rows("t", "id", "v") == [("2", "7")]


@pytest.mark.parametrize(
    ("old", "new", "value"), [("int4", "float8", "1.5"), ("timestamp", "timestamptz", None)]
)
@pytest.mark.parametrize("place", ["duck", "postgres", "maria"], indirect=True)
def test_a_column_whose_rows_are_kept_has_a_type_that_holds_both(place, old, new, value):
    one, two = _typed(old, new)
    source, moment = Model(), "2024-01-02 12:34:56"
    place.deliver(source.inserted(one, ["1", "7" if value else moment]), delete_mode="soft")
    then = source.inserted(two, ["2", value or f"{moment}+00"])
    with contextlib.closing(place.opened(delete_mode="soft")) as target:
        target.write(batch(then))
        target.flush()
        found = target._target.describe(TargetName("public", "t"))
    text = {"postgresql": "text", "mariadb": "longtext", "duckdb": "VARCHAR"}[place.kind]
    assert not found.columns["v"].type.startswith(text)


@pytest.mark.parametrize("mode", ["none", "instead"])
def test_indexes_stay_when_a_column_becomes_text_and_gets_a_name(place, mode):
    one, two = _typed("int4", "text")
    columns = [("id", "int4"), ("to", "text")]
    three = relation("public.u", columns, numbers=(1, 2), oid=one.oid)
    source, table = Model(), "t" if mode == "none" else "t_history"
    place.deliver(source.inserted(one, ["1", "7"]), history_mode=mode)
    if place.kind != "mariadb":  # it indexes no text without a length
        place.execute(f"CREATE INDEX mine ON {table} (v)")
    place.deliver(source.inserted(two, ["2", "007"]), history_mode=mode)
    place.deliver(source.inserted(three, ["3", "8"]), history_mode=mode)
    table = table.replace("t", "u", 1)
    to = "`to`" if place.kind == "mariadb" else '"to"'
    assert place.rows(table, "id", to) == [("1", "7"), ("2", "007"), ("3", "8")]
    if place.kind == "sqlite":
        made = place.execute(f"SELECT name FROM pragma_index_list('{table}')")
        assert {"mine", *(["t_history_100_open"] * (mode == "instead"))} <= {n for (n,) in made}
    if place.kind == "duckdb":
        assert place.execute("SELECT table_name FROM duckdb_indexes()") == [(table,)]


@pytest.mark.parametrize(
    ("old", "new", "first", "second", "found"),
    [("bool", "int4", "t", "5", ["1", "5"]), ("bytea", "int4", r"\x3132", "5", None)],
)
@pytest.mark.parametrize("key", [False, True])
def test_casts_in_duckdb_are_those_that_were_tried(duck, old, new, first, second, found, key):
    one, two = _typed(old, new)
    source = Model()
    duck.deliver(source.inserted(one, ["1", first]))
    if key:
        duck.execute("CREATE INDEX mine ON t (v)")
    duck.deliver(source.inserted(two, ["2", second]))
    rows = [v for (v,) in duck.rows("t", "v")]
    assert rows == found if found else rows[-1] in {"12", "5"}


def test_a_key_that_becomes_text_has_a_type_that_the_target_can_index(maria):
    for number, mode in enumerate(("delete", "soft")):
        one, two = (
            relation(f"public.t{number}", [("id", kind)], numbers=(1,), oid=200 + number)
            for kind in ("text", "int4")
        )
        source = Model()
        first, then = source.inserted(one, ["seven"]), source.inserted(two, ["7"])
        maria.deliver(first, then, delete_mode=mode, history_mode="beside", named=mode)
        assert maria.rows(f"t{number}", "id") == [("7",), ("seven",)]
    one, two = (
        relation("public.u", [("id", kind)], numbers=(1,), oid=300) for kind in ("int4", "text")
    )
    source = Model()
    first, then = source.inserted(one, ["7"]), source.inserted(two, ["seven"])
    maria.deliver(first, then, delete_mode="soft", named="grown")
    assert maria.rows("u", "id") == [("7",), ("seven",)]


RETYPED_KEYS = [
    ("text", "int4", "seven", "8"),
    ("int4", "text", "7", "eight"),
    ("date", "timestamp", "2024-01-01", "2024-01-02 12:34:56"),
]
OPEN = {"none": "", "instead": "_history WHERE _is_current", "soft": " WHERE deleted_at IS NULL"}


@pytest.mark.parametrize("mode", OPEN)
@pytest.mark.parametrize("key", ["id", ""])
def test_rows_are_found_by_values_whose_column_has_a_type_for_former_ones(place, key, mode):
    settings = {"delete_mode": mode} if mode == "soft" else {"history_mode": mode}
    for n, (old, new, first, second) in enumerate(RETYPED_KEYS):
        columns = ("v", "int4"), ("w", "int4")
        more: Any = {"key": [key] * bool(key), "identity": "d" if key else "f", "oid": 400 + n}
        one, two = (
            relation(f"public.t{n}", [("id", kind), *columns], numbers=(1, 2, 3), **more)
            for kind in (old, new)
        )
        source = Model()
        part = source.inserted(one, [first, "1", "3"])
        place.deliver(part, named=f"{n}", **settings)
        first += " 00:00:00" if new == "timestamp" else ""
        source.rows[two.name] = [] if new == "int4" else [(first, "1", "3")]
        parts = [source.inserted(two, [second, "1", "3"])]
        for row in list(source.rows[two.name]):
            source.update(two, row[: 1 if key else 3], unsent=["w"] if key else [], v="2")
            parts.append(source.commit())
        source.delete(two, [second] if key else [second, "2", "3"])
        place.deliver(*parts, source.commit(), named=f"{n}", **settings)
        found = place.rows(f"t{n}{OPEN[mode] if key or mode != 'soft' else ''}", "v", "w")
        assert found == [("1" if new == "int4" else "2", "3")], new


def test_a_table_of_sqlite_keeps_all_else_when_a_column_gets_another_type(file):
    one, two = _typed("int4", "text")
    rest = "v {} DEFAULT 5 CHECK (v <> 9), w DEFAULT 3)"
    key = "[id] INTEGER PRIMARY KEY, -- as at the source\n"
    file.execute(f"CREATE TABLE t ({key} {rest.format('INTEGER')}")
    file.execute("CREATE UNIQUE INDEX refers ON t (id, w)")
    file.execute("CREATE TABLE child (id, w, FOREIGN KEY (id, w) REFERENCES t (id, w))")
    file.execute(
        "CREATE TRIGGER mine AFTER INSERT ON t WHEN new.id = 1 BEGIN INSERT INTO child VALUES (1, 3); END"
    )
    source = Model()
    file.deliver(source.inserted(one, ["1", "7"]))
    file.deliver(source.inserted(two, ["2", "x"]), foreign_keys="check")
    assert file.execute("SELECT * FROM t") == [(1, "7", 3), (2, "x", 3)]
    made = file.execute("SELECT sql FROM sqlite_master WHERE tbl_name = 't' ORDER BY type")
    assert "refers" in made[0][0]
    assert made[1][0].endswith(rest.format("TEXT"))
    assert "mine" in made[2][0]
    assert file.execute("SELECT * FROM child") == [(1, 3)]


REFUSE = """
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS
  $$BEGIN RAISE 'not now' USING ERRCODE = '{}'; END$$;
CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION refuse();
ALTER EVENT TRIGGER refuse ENABLE ALWAYS -- the sink's session is a replica's
"""


@pytest.mark.parametrize(
    ("made", "gone", "error", "says"),
    [
        (REFUSE.format("25006"), "EVENT TRIGGER refuse", SqlReadOnly, "not now"),
        (REFUSE.format("42501"), "EVENT TRIGGER refuse", SqlRefused, "not now"),
        ("CREATE VIEW seen AS SELECT v FROM t", "VIEW seen", SqlTableUnfit, "column v of public.t: .* used by a view"),
    ],
)  # fmt: skip
def test_a_type_that_the_server_does_not_change_now_has_its_own_error(
    postgres, made, gone, error, says
):
    one, two = _typed("int4", "float8")
    source = Model()
    postgres.deliver(source.inserted(one, ["1", "7"]))
    postgres.execute(made)
    part = source.inserted(two, ["2", "1.5"])
    postgres.refuses(error, part, says)
    postgres.execute(f"DROP {gone}")
    postgres.deliver(part)
    assert postgres.rows("t", "id", "v") == [("1", "7"), ("2", "1.5")]


def _number(text: str | None) -> Any:
    with contextlib.suppress(InvalidOperation):
        return Decimal(str(text))
    return text and re.sub(r"( 00:00:00)?(\.000000)?(\+00)?$", "", text)
