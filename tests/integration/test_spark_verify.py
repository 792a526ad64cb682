"""Comparisons with the source, and what doctor and a start report tables that would be suspended."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.harness.busy_lake import looks_right_while_it_runs
from tests.harness.changelog import relation
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.spark import Rig

from waltap.cli.profile_source import connected
from waltap.plugins.check_context import CheckContext
from waltap.plugins.host import Host
from waltap.ports.sink.verification import OffsetAwareSource
from waltap_sinks.comparison import comparison_table
from waltap_spark.read.live import LiveTables
from waltap_spark.read.verify import SparkTables, compare, missing_tables

# --- comparisons ----------------------------------------------------------------------------------

COLUMNS = [
    ("id", "int4"),
    ("big", "int8"),
    ("flag", "bool"),
    ("price", "numeric(10,2)"),
    ("ratio", "float8"),
    ("single", "float4"),
    ("name", "text"),
    ("day", "date"),
    ("at", "timestamp"),
    ("seen", "timestamptz"),
    ("blob", "bytea"),
    ("ref", "uuid"),
    ("clock", "time"),
    ("doc", "jsonb"),
    ("lasts", "interval"),
    ("padded", "bpchar(5)"),
    ("host", "inet"),
]
TABLE = relation("public.t", COLUMNS)

ROWS = [
    [
        "1",
        "9007199254740993",
        "t",
        "12.30",
        "1e+20",
        "0.1",
        "plain",
        "2013-02-08",
        "2013-02-08 23:59:59.000001",
        "2013-02-08 23:59:59.5+00",
        "\\x00ff",
        "0b5f1a2c-3d4e-4f60-8a7b-000000000001",
        "05:17:00.25",
        '{"a": [1, 2]}',
        "-1 years -2 mons +3 days -04:05:06.7",
        "ab   ",
        "10.0.0.1",
    ],
    ["2", None, "f", "0.00", "NaN", "-0", "", None, None, None, "\\x", None, "00:00:00", None, None,
     None, None],
    ["3", "-1", None, "-5.50", "-Infinity", "3.4028235e+38", "a,1:b\n'\"ü😀", "0001-01-01",
     "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999+00", None, None, "23:59:59.999999", "null", "00:00:00",
     "     ", "::1"],
    ["4", "0", "t", "99999999.99", "2.2250738585072014e-308", "1e-45", None, "9999-12-31",
     "1969-12-31 23:59:59.999999", "1582-10-04 00:00:00+00", None, None, None, None, "1 day 26:00:00", None, None],
]  # fmt: skip


DIFFERING = [[str(10 + at), *ROWS[0][1:]] for at in range(1, len(COLUMNS))]
"""Rows of which the source then lacks another value each."""


def test_equal_rows_have_equal_hashes_for_every_type_and_each_value_that_differs_is_seen(
    spark, database, tmp_path
):
    """Rows of a child are not those of its parent: the server sends them as changes of the child."""
    rig = Rig(tmp_path, spark)
    rig.insert(TABLE, *ROWS, *DIFFERING)
    tables = LiveTables(rig.spark, rig.output)
    with database.connect() as connection:
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
        connection.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY (id))")
        for row in (*ROWS[::-1], *DIFFERING):
            values = ", ".join(f"%s::text::{kind}" for _name, kind in COLUMNS)
            connection.execute(f"INSERT INTO t VALUES ({values})", row)
        connection.execute("CREATE TABLE child () INHERITS (t); INSERT INTO child SELECT * FROM t")
        (found,) = compare(connection, tables)
        assert (found.left_out, found.equal) == ((), True), found
        assert found.source_rows == found.target_rows == len(ROWS) + len(DIFFERING)
        assert missing_tables(connection, tables) == ["public.child"]
        assert missing_tables(connection, tables, ["public.child"]) == []
        connection.execute("ALTER TABLE public.t ADD COLUMN later int")
        (found,) = compare(connection, tables)
        assert (found.left_out, found.equal) == ((), True), "Spark has seen no row with it"
        for at, (name, _kind) in enumerate(COLUMNS[1:], 11):
            connection.execute(f"UPDATE ONLY public.t SET {name} = NULL WHERE id = {at}")
        (found,) = compare(connection, tables)
        assert found.source_rows == found.target_rows
        assert found.keys == {(row[0],) for row in DIFFERING}
        assert found.columns == tuple(name for name, _ in COLUMNS[1:])
        assert (found.missing, found.surplus) == ((), ())
        assert [line.partition(": NULL | ")[0] for line in found.rows] == [
            f"(id={10 + at}) {COLUMNS[at][0]}" for at in range(1, 1 + len(found.rows))
        ]
        assert not any(";" in line for line in found.rows), "no other value differs"
        connection.execute("DELETE FROM ONLY public.t WHERE id > 3")
        connection.execute("INSERT INTO public.t (id) VALUES (99)")
        (found,) = compare(connection, tables)
    assert (found.columns, found.missing) == ((), ("(id=99)",))
    assert found.surplus[0] == "(id=11)"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(comparison_table([found], "Spark"))
    assert "only in Spark: (id=11)" in console.export_text()


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_who_looks_while_both_sides_are_written_finds_what_is_so(
    database, tmp_path, delta, table_format
):
    looks_right_while_it_runs(database, tmp_path, delta, table_format)


def test_tables_with_all_of_the_log_are_at_the_stored_offset(spark, tmp_path):
    """A transaction without captured rows leaves nothing in the log, so a difference is not late."""
    rig = Rig(tmp_path, spark)
    rig.insert(TABLE, ROWS[0])
    tables = SparkTables(LiveTables(rig.spark, rig.output), log=rig.log)
    applied = rig.log.end.end_lsn
    assert tables.position() == applied
    assert isinstance(tables, OffsetAwareSource)
    tables.stored_offset = lambda: applied + 100
    assert tables.position() == applied + 100
    rig.write(TABLE, ROWS[1])
    assert tables.position() == applied, "a change waits in the log"


def test_a_difference_of_an_idle_pipeline_is_one_where_the_profile_is_known(
    spark, database, tmp_path
):
    rig = Rig(tmp_path, spark)
    rig.insert(TABLE, ROWS[0])
    with database.connect() as connection:
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)
        connection.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY (id))")
        tables, offset = LiveTables(rig.spark, rig.output), 1 << 60
        (late,) = compare(connection, tables, patience_s=0.5)
        (found,) = compare(
            connection, tables, patience_s=0.5, log=rig.log, stored_offset=lambda: offset
        )
    assert (late.verdict, found.verdict) == ("late", "different")


@pytest.mark.parametrize("kind", ["interval", "text", "date", "oid", "money"])
def test_a_type_that_is_on_its_way_is_left_out_where_no_cast_leads_to_it(
    spark, database, tmp_path, kind
):
    rig = Rig(tmp_path, spark)
    rig.insert(TABLE, ROWS[0])
    with database.connect() as connection:
        columns = ", ".join(f"{name} {kind}" for name, _kind in COLUMNS[1:])
        connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
        connection.execute("INSERT INTO t (id) VALUES (1)")
        (found,) = compare(connection, LiveTables(rig.spark, rig.output))
    assert {*("price", "ratio", "single")[kind == "money" :]} <= {*found.left_out}
    assert found.columns


# --- before a start -------------------------------------------------------------------------------

TABLES = """
CREATE TABLE keyed (id int PRIMARY KEY, v text);
CREATE TABLE keyless (a int);
CREATE TABLE made (id int PRIMARY KEY);
"""


def warnings_of(database: Database, folder: Path, **sink: object) -> list[str]:
    host = Host()
    settings = {f"sink.{name}": value for name, value in sink.items()}
    more = {"sink.type": "spark", "sink.path": str(folder / "lake"), **settings}
    profile = PipelineRig(database, folder).profile(host, **more)
    with connected(profile, host) as (connector, _stages):
        context = CheckContext(profile=profile, connector=connector, offset=None)
        found = host.checks["spark tables"].factory(context)
    assert {each.verdict for each in found} <= {"warning"}
    return sorted(each.found for each in found)


def test_tables_that_would_stand_still_are_reported(database, tmp_path, spark):
    database.execute(TABLES)
    assert warnings_of(database, tmp_path) == []
    (keyless,) = warnings_of(database, tmp_path, **{"extra.columns": "_commit_ts"})
    assert "public.keyless cannot be scd1, with _commit_ts: it has no key" in keyless
    keyed, keyless = warnings_of(database, tmp_path, mode=r"public\.ke.*:scd2", history="none")
    assert "public.keyed cannot be scd2, without history: it keeps rows of the past" in keyed
    assert "public.keyless cannot be scd2" in keyless
    by = {"format": "delta", "format.partition.by": r"public\.keyed:regoin"}
    assert warnings_of(database, tmp_path, **by) == [
        "the layout of public.keyed names regoin, which it does not have"
    ]
    rig = Rig(tmp_path, spark)
    rig.insert(relation("public.made", [("id", "int4")]), ["1"])
    rig.applier.close()
    rig.sink.close()
    (tmp_path / "lake").mkdir()
    (tmp_path / "out").rename(tmp_path / "lake" / "tables")
    assert warnings_of(database, tmp_path) == []
    assert warnings_of(database, tmp_path, mode=r"public\.made:scd2") == [
        "public.made was made as scd1, and the profile asks for scd2"
    ]
