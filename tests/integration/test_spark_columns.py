"""Columns that come, go, change their names and types, and are not reported; tables that are created again: what Spark shows
is the source's, or is said to need a snapshot."""

import datetime as dt
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig
from tests.harness.unreported_columns import COURSES

from waltap_spark.planning.plan import COLUMNLESS
from waltap_spark.read.live import LiveTables
from waltap_spark.schema.schema import fitted
from waltap_spark.state.modes import ModeRules
from waltap_spark.state.output import TableState

# --- what is known of columns ---------------------------------------------------------------------

EVENTS = relation("public.events", [("id", "int4")])
BEFORE = relation("public.t", [("id", "int4"), ("a", "text"), ("b", "text")], numbers=[1, 2, 3])


@pytest.fixture
def rig(spark, tmp_path) -> Rig:
    return Rig(tmp_path, spark)


def fill(rig: Rig, *rows: list[str | None]) -> None:
    rig.insert(BEFORE, *(rows or (["1", "a1", "b1"], ["2", "a2", "b2"])))


def current(rig: Rig) -> list[dict[str, Any]]:
    frame = LiveTables(rig.spark, rig.output, allow_stale=True).current("public.t")
    return [row.asDict() for row in sorted(frame.collect(), key=lambda row: row["id"])]


def state(rig: Rig) -> TableState:
    return rig.output.table("public.t")


def test_a_column_added_with_a_constant_default_has_it_in_older_rows(spark, tmp_path):
    """Also as text, when all columns become text afterwards."""
    rig = Rig(tmp_path, spark, type_change="string")
    fill(rig)
    rig.update(BEFORE, ["2"], a="pending")
    defaults: dict[str, tuple[str, str, Any]] = {
        "n": ("int4", "7", 7),
        "price": ("numeric(10,2)", "1.50", "1.50"),
        "flag": ("bool", "t", True),
        "day": ("date", "2024-02-29", dt.date(2024, 2, 29)),
        "seen": ("timestamptz", "2024-02-29 12:00:00+02", "2024-02-29 10:00:00"),
        "clock": ("time", "12:30:00.5", dt.time(12, 30, 0, 500000)),
        "raw": ("bytea", "\\x00ff", b"\x00\xff"),
        "ratio": ("float8", "Infinity", float("inf")),
        "word": ("text", "it's\ttab", "it's\ttab"),
        "words": ("_text", '{"it\'s\ttab",NULL,"\\"${x}"}', ["it's\ttab", None, '"${x}']),
        "days": ("_date", "{2024-02-29}", [dt.date(2024, 2, 29)]),
        "raws": ("_bytea", '{"\\\\x00ff",NULL}', [b"\x00\xff", None]),
        "none": ("_int4", "{}", []),
    }
    more = {name: {"default": "x", "missing": text} for name, (_, text, _) in defaults.items()}
    wide = relation(
        "public.t",
        [("id", "int4"), ("a", "text"), ("b", "text"), *((n, d[0]) for n, d in defaults.items())],
        numbers=range(1, 4 + len(defaults)),
        more=more,
    )
    rig.insert(wide, ["3", "a3", "b3", *[None] * len(defaults)])
    names = [f"cast(`{n}` as string)" if n in {"price", "seen"} else f"`{n}`" for n in defaults]
    frame = LiveTables(rig.spark, rig.output).current("public.t").selectExpr("id", "a", *names)
    found = {row[0]: list(row)[1:] for row in frame.collect()}
    expected = [value for _, _, value in defaults.values()]
    assert found[1] == ["a1", *expected]
    assert found[2] == ["pending", *expected]
    assert found[3] == ["a3", *[None] * len(defaults)]
    assert state(rig).stale == ()
    history = LiveTables(rig.spark, rig.output).changes("public.t").where("id = 1")
    assert history.first()["n"] is None, "the history is as it was"
    rig.insert(wide, ["4", "a1", "b1", *(text for _, text, _ in defaults.values())])
    texts = [("id", "int4"), *((name, "text") for name in ("a", "b", *defaults))]
    rig.insert(relation("public.t", texts, numbers=range(1, 4 + len(defaults))), ["5"] * len(texts))
    added, _, _, given, _ = current(rig)
    assert list(added.values())[1:] == list(given.values())[1:]


def test_what_cannot_be_known_is_said_until_a_snapshot_mends_it(rig, caplog):
    fill(rig)
    volatile = relation(
        "public.t",
        [("id", "int4"), ("a", "text"), ("b", "text"), ("at", "timestamptz")],
        numbers=[1, 2, 3, 4],
        more={"at": {"default": "clock_timestamp()"}},
    )
    rig.insert(volatile, ["3", "a3", "b3", "2024-01-01 00:00:00+00"])
    assert state(rig).stale == ("at was added with a default that older rows have",)
    retyped = relation(
        "public.t",
        [("id", "int8"), ("a", "bpchar"), ("b", "text"), ("at", "timestamptz")],
        numbers=[1, 2, 3, 4],
        more={"at": {"default": "clock_timestamp()"}},
    )
    rig.insert(retyped, ["4", "a4", "b4", "2024-01-01 00:00:00+00"])
    assert len(state(rig).stale) == 2
    assert "the type of a changed; ALTER TABLE … USING" in state(rig).stale[1]
    (widened,) = state(rig).widened
    assert widened.startswith("id of public.t changed from int4 to int8; after ALTER TABLE … USING")
    reported = [r.getMessage() for r in caplog.records if "needs a new snapshot" in r.getMessage()]
    assert len(reported) == 2
    rig.db.rows["public.t"] = [("1", "x", "y", "2024-01-01 00:00:00+00")]
    rig.snapshot(retyped)
    rig.apply()
    assert state(rig).stale == state(rig).widened == ()
    assert [row["id"] for row in current(rig)] == [1]


def test_a_history_alone_is_never_in_doubt(delta, tmp_path):
    rig = Rig(tmp_path, delta, "delta", modes=ModeRules(modes=("append",)))
    fill(rig)
    columns = [("id", "int4"), ("a", "bpchar"), ("b", "text"), ("at", "timestamptz")]
    more = {"at": {"default": "clock_timestamp()"}}
    rig.insert(relation("public.t", columns, numbers=range(1, 5), more=more), ["3", "a", "b", None])
    assert (state(rig).failed, state(rig).stale, len(current(rig))) == ("", (), 3)


def test_a_table_that_was_perhaps_renamed_is_said_to_have_rows_elsewhere(rig):
    """A number counts in its own epoch: the server may be another one."""
    fill(rig)
    rig.start_over()
    oid = BEFORE.oid
    renamed = relation(
        "public.u", [("id", "int4"), ("a", "text"), ("b", "text")], numbers=[1, 2, 3], oid=oid
    )
    rig.insert(renamed, ["3", "a3", "b3"])
    (snapshot_reason,) = rig.output.table("public.u").stale
    assert snapshot_reason == "it was called public.t before, and its rows are there"


def test_a_renamed_table_whose_name_another_took_is_said_to_lack_its_rows(rig):
    fill(rig)
    columns = [("id", "int4"), ("a", "text"), ("b", "text")]
    another = relation("public.t", columns, numbers=[1, 2, 3], oid=BEFORE.oid + 1)
    old = relation("public.t_old", columns, numbers=[1, 2, 3], oid=BEFORE.oid)
    rig.db.rows["public.t_old"] = rig.db.rows["public.t"]
    rig.db.rows["public.t"] = []
    rig.insert(another, ["7", "a7", "b7"])
    rig.update(old, ["1"], a="new")
    (snapshot_reason,) = rig.output.table("public.t_old").stale
    assert snapshot_reason == "it was called public.t before, and its rows were given up there"
    assert state(rig).stale == ()


@pytest.mark.parametrize("table_format", ["", "delta"])
def test_a_column_of_a_dropped_table_keeps_its_values_when_the_new_one_adds_its_name_with_another_type(
    delta, tmp_path, table_format
):
    rig = Rig(tmp_path, delta, table_format)
    fill(rig)
    oid = BEFORE.oid + 1
    rig.db.rows["public.t"] = []
    rig.insert(relation("public.t", [("id", "int4")], numbers=[1], oid=oid), ["7"])
    columns = [("id", "int4"), ("b", "int8")]
    rig.insert(relation("public.t", columns, numbers=[1, 2], oid=oid), ["8", "5"])
    assert state(rig).failed == ""
    assert [(row["id"], row["b"]) for row in current(rig)] == [(7, None), (8, 5)]
    history = LiveTables(rig.spark, rig.output).changes("public.t").where("_op = 'c'").collect()
    assert sorted((row["id"], row["b"], row["b@3"]) for row in history) == [
        (1, None, "b1"),
        (2, None, "b2"),
        (7, None, None),
        (8, 5, None),
    ]


def test_a_value_of_an_unrelated_type_is_null(spark):
    """Spark refuses to plan a cast that no value can pass, even to try it."""
    array = '{"type":"array","elementType":"integer","containsNull":true}'
    values = {
        "5": '"integer"',
        "'2024-02-29'": '"string"',
        "date'2024-02-29'": '"date"',
        "timestamp_ntz'2024-02-29 00:00:00'": '"timestamp_ntz"',
        "true": '"boolean"',
        "X'FF'": '"binary"',
        "array(1)": array,
        "1.5BD": '"decimal(2,1)"',
    }
    for text, has in values.items():
        frame = spark.sql(f"SELECT {text} AS v")
        found = frame.select(
            *(fitted(frame["v"], has, wanted, lenient=True) for wanted in values.values())
        ).first()
        assert sum(value is not None for value in found) >= 2, "text takes it, and its own type"
    day = spark.sql("SELECT '2024-02-29' AS v")
    text = fitted(day["v"], '"string"', '"date"', lenient=True)
    assert day.select(text).first()[0] == dt.date(2024, 2, 29)


@pytest.mark.parametrize("generated", [True, False])
def test_a_computed_column_is_shown_only_when_it_is_sent(rig, generated):
    snapshotted = relation(
        "public.t", [("id", "int4"), ("a", "int4"), ("twice", "int4")],
        numbers=[1, 2, 3], more={"twice": {"generated": True}},
    )  # fmt: skip
    streamed = relation("public.t", [("id", "int4"), ("a", "int4")], numbers=[1, 2])
    rig.db.insert(snapshotted, ["1", "5", "10"], ["2", "6", "12"])
    rig.db.commit()
    rig.snapshot(snapshotted)
    rig.apply()
    assert current(rig)[0] == {"id": 1, "a": 5}
    rig.db.rows["public.t"] = [("1", "5"), ("2", "6")]
    rig.update(streamed, ["1"], a="50")
    assert current(rig) == [{"id": 1, "a": 50}, {"id": 2, "a": 6}]
    rig.db.rows["public.t"] = [("1", "50", "100"), ("2", "6", "12")]
    sent = relation("public.t", [("id", "int4"), ("a", "int4"), ("twice", "int4")],
        numbers=[1, 2, 3], more={"twice": {"generated": generated}},
    )  # fmt: skip
    rig.update(sent, ["2"], a="7", twice="14")
    assert current(rig)[1] == {"id": 2, "a": 7, "twice": 14}, "PostgreSQL 18 can send them"
    assert state(rig).stale == ("twice was computed, and not sent",), "row 1 was computed again"


def test_a_computed_column_that_is_sent_since_the_snapshot_is_not_doubted(rig):
    computed = relation("public.t", [("id", "int4"), ("a", "int4"), ("twice", "int4")],
        numbers=[1, 2, 3], more={"twice": {"generated": True}},
    )  # fmt: skip
    rig.db.rows["public.t"] = [("1", "5", "10"), ("2", "6", "12")]
    rig.snapshot(computed)
    rig.apply()
    rig.update(computed, ["1"], a="6", twice="12")
    assert current(rig) == [{"id": 1, "a": 6, "twice": 12}, {"id": 2, "a": 6, "twice": 12}]
    assert state(rig).stale == ()


def test_a_column_that_was_not_captured_before_is_reported_from_a_new_one(rig):
    """By its number: the server counts upwards. The last one could be new."""
    less = relation("public.t", [("id", "int4"), ("b", "text")], numbers=[1, 3])
    rig.insert(less, ["1", "b1"])
    more = [("id", "int4"), ("a", "text"), ("b", "text"), ("c", "text")]
    rig.db.rows["public.t"] = [("1", "a1", "b1", None)]
    rig.insert(relation("public.t", more, numbers=[1, 2, 3, 4]), ["2", "a2", "b2", "c2"])
    assert state(rig).stale == ("a was not captured before",)


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_table_without_a_column_that_is_captured_stops_no_other(delta, tmp_path, table_format):
    """Its rows are said to be missing until it has a column, and a snapshot brings them."""
    rig = Rig(tmp_path, delta, table_format, parallel=1)
    bare = relation("public.t", [], numbers=[], key=(), identity="f")
    rig.db.insert(bare, [], [])
    rig.db.insert(EVENTS, ["1"])
    rig.follow(EVENTS)
    assert state(rig).stale == (COLUMNLESS,)
    assert not state(rig).failed
    rig.snapshot(bare)
    rig.insert(bare, [])
    assert state(rig).stale == (COLUMNLESS,), "a snapshot of no column brings none"
    some = relation("public.t", [("id", "int4")], numbers=[1], key=(), identity="f")
    rig.db.rows["public.t"] = [("7",), (None,)]
    rig.insert(some, ["8"])
    assert state(rig).stale == (COLUMNLESS,)
    assert rig.current(some) == [("8",)]
    rig.snapshot(some)
    rig.apply(some, EVENTS)
    assert state(rig).stale == ()
    rig.db.truncate(bare)
    rig.follow(some, EVENTS)
    rig.insert(some, ["9"])
    again = relation("public.t", [], numbers=[], key=(), identity="f", oid=some.oid + 1)
    rig.db.rows["public.t"] = []
    rig.insert(again, [], [])
    assert state(rig).stale == (COLUMNLESS,)
    assert rig.current(some) == [], "those of the dropped table are gone"


# --- columns of which changes do not show ---------------------------------------------------------


@pytest.fixture(params=["parquet", "delta"])
def bare(request, delta, tmp_path) -> Rig:
    return Rig(tmp_path, delta, request.param, parallel=1)


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.__name__)
def test_a_change_without_a_key_means_a_row_by_the_columns_that_it_shows(bare, course):
    course(bare)


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_history_lists_a_renamed_column_that_was_not_sent_by_its_name_of_now(
    delta, tmp_path, table_format
):
    """Also where another column took the name."""
    rig = Rig(tmp_path, delta, table_format, parallel=1)
    fill(rig)
    rig.update(BEFORE, ["1"], ["b"], a="a2")
    columns = [("id", "int4"), ("a", "text"), ("it's", "text"), ("b", "text")]
    now = relation("public.t", columns, numbers=[1, 2, 3, 4])
    rig.db.rows[now.name] = [(*row, None) for row in rig.db.rows[now.name]]
    rig.update(now, ["2"], ["it's"], a="a3")
    changes = LiveTables(rig.spark, rig.output).changes(now.name).where("_op = 'u'")
    assert [row["_unchanged"] for row in changes.collect()] == [["it's"], ["it's"]]


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_versions_of_a_dropped_table_keep_their_values_when_the_new_one_renames_a_column(
    delta, tmp_path, table_format
):
    modes = ModeRules(modes=("scd2",))
    rig = Rig(tmp_path, delta, table_format, parallel=1, modes=modes)
    columns = [("id", "int4"), ("a", "text"), ("b", "text")]
    named = [("id", "int4"), ("first", "text"), ("b", "text")]
    again = [("id", "int4"), ("first", "text"), ("last", "text")]
    rig.insert(relation("public.t", columns, numbers=[1, 2, 3], oid=1), ["1", "a1", "b1"])
    rig.insert(relation("public.t", named, numbers=[1, 2, 3], oid=1), ["2", "a2", "b2"])
    rig.insert(relation("public.t", named, numbers=[1, 2, 3], oid=2), ["3", "a3", "b3"])
    rig.insert(relation("public.t", again, numbers=[1, 2, 3], oid=2), ["4", "a4", "b4"])
    tables = LiveTables(rig.spark, rig.output)
    for frame in (tables.current("t"), tables.changes("t").where("_op = 'c'")):
        rows = frame.select("id", "first", "last").collect()
        assert sorted(map(tuple, rows)) == [(n, f"a{n}", f"b{n}") for n in range(1, 5)]


def test_kept_rows_of_a_dropped_table_keep_their_values_before_they_are_compacted(delta, tmp_path):
    modes = ModeRules(modes=("scd2",), deletes=("kept",))
    rig = Rig(tmp_path, delta, "parquet", parallel=1, modes=modes)
    for oid, *names in ((1, "a", "b"), (1, "x", "b"), (1, "b", "x"), (2, "x")):
        columns = [("id", "int4"), *((name, "text") for name in names)]
        table = relation("public.t", columns, numbers=range(1, len(columns) + 1), oid=oid)
        number = str(rig.log.end.end_lsn)
        rig.insert(table, [number, *(f"{name}{oid}" for name in names)])
    rows = LiveTables(rig.spark, rig.output).current("t").orderBy("id").select("x").collect()
    assert [row["x"] for row in rows] == ["b1", "b1", "x1", "x2"]


def test_values_of_a_dropped_table_stay_when_the_next_one_gives_their_name_to_another_column(
    spark, tmp_path
):
    """``b`` is known by name alone then, and ``c`` until the next table adds and renames it."""
    modes = ModeRules(modes=(r"public\.log:append", "scd2"), deletes=(r"public\.kept:kept",))
    rig = Rig(tmp_path, spark, parallel=1, modes=modes)
    names = "log", "versions", "kept"
    versions = {"a": 2, "b": 3, "c": 4}, {"a": 2}, {"b": 2, "c": 3}, {"b": 2, "d": 3}
    for at, numbers in enumerate(versions):
        columns = [("id", "int4"), *((each, "text") for each in numbers)]
        for oid, name in enumerate(names, 100 if at else 0):
            table = relation(f"public.{name}", columns, numbers=[1, *numbers.values()], oid=oid + 1)
            rig.db.insert(table, [str(at), *(f"{each}{at}" for each in numbers)])
        rig.follow()
    tables = LiveTables(rig.spark, rig.output)
    histories = [tables.changes(name).where("_op = 'c'") for name in names]
    for frame in (*histories, tables.current("versions"), tables.current("kept")):
        rows = frame.select("id", "b", "`b@`", "d").collect()
        assert sorted(map(tuple, rows)) == [
            (0, "a0", "b0", "c0"),
            (1, "a1", None, None),
            (2, "b2", None, "c2"),
            (3, "b3", None, "d3"),
        ]


# --- columns and tables that are left out for a while ---------------------------------------------

COLUMNS = [("id", "int4"), ("n", "text"), ("v", "int4")]
KEPT_AS = ("plain", "versions")
WHOLE = [relation(f"public.{name}", COLUMNS, numbers=(1, 2, 3)) for name in KEPT_AS]
LESS = [relation(f"public.{name}", COLUMNS[:2], numbers=(1, 2)) for name in KEPT_AS]
DOUBT = ("v was not captured for a while",)


def shown(rig: Rig, table: str) -> list[tuple[Any, ...]]:
    frame = LiveTables(rig.spark, rig.output, allow_stale=True).current(f"public.{table}")
    rows = frame.where("_current") if table == "versions" else frame
    return sorted(tuple(row) for row in rows.select("id", "n", "v").collect())


@pytest.mark.parametrize("dropped", ["keep", "drop"])
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_column_that_was_left_out_and_comes_back_needs_a_snapshot(
    delta, tmp_path, table_format, dropped
):
    """An update of that column alone, and one of another, while it is not captured."""
    modes = ModeRules(modes=(r"public\.versions:scd2", "scd1"))
    rig = Rig(tmp_path, delta, table_format, parallel=1, modes=modes, dropped=(dropped,))
    for whole in WHOLE:
        rig.db.insert(whole, ["1", "a", "1"], ["2", "b", "2"], ["3", "c", "3"], ["4", "d", "4"])
    rig.follow()
    for less in LESS:
        rig.db.rows[less.name] = [row[:2] for row in rig.db.rows[less.name]]
        rig.db.update(less, ["1"])  # of v, to 100
        rig.db.update(less, ["2"], n="m")
    rig.follow()
    assert [rig.output.table(less.name).stale for less in LESS] == [(), ()]
    values = ["100", "2", "3", "4"]
    for whole in WHOLE:
        rows = rig.db.rows[whole.name]
        rig.db.rows[whole.name] = [(*row, v) for row, v in zip(rows, values, strict=True)]
        rig.db.update(whole, ["3"], n="k")
    rig.follow()
    for name in KEPT_AS:
        assert rig.output.table(f"public.{name}").stale == DOUBT
        if dropped == "drop":  # it is new, what rows had in it before does not come back
            assert [row[2] for row in shown(rig, name)] == [None, None, 3, None]
    rig.snapshot(*WHOLE)
    rig.apply()
    for name in KEPT_AS:
        assert rig.output.table(f"public.{name}").stale == ()
        assert shown(rig, name) == [(1, "a", 100), (2, "m", 2), (3, "k", 3), (4, "d", 4)]


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_table_that_was_left_out_and_comes_back_needs_a_snapshot(delta, tmp_path, table_format):
    """Also when the engine died before anything came of it; not one of which nothing is there."""
    rig = Rig(tmp_path, delta, table_format, parallel=1)
    table, new = WHOLE
    rig.insert(table, ["1", "a", "1"], ["2", "b", "2"])
    for each in (table, new):
        rig.sink.record_gap(each.name)
    rig.sink.close()
    rig.sink.open()
    for each in (table, new):
        rig.db.insert(each, ["3", "c", "3"])
    rig.follow()
    (snapshot_reason,) = rig.output.table(table.name).stale
    assert "not captured for a while" in snapshot_reason
    assert rig.output.table(new.name).stale == ()
    rig.db.rows[table.name] = rig.db.rows[table.name][1:]
    rig.snapshot(table, new)
    rig.insert(table, ["4", "d", "4"])
    assert rig.output.table(table.name).stale == (), "it is said once"
    rig.check(table)
