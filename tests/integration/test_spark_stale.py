"""Tables that are suspended or need a new snapshot: reading one raises, unless it is asked for as it is."""

import json

import pytest
from pyspark.errors import PySparkException
from tests.harness.command import waltap
from tests.harness.lake import Lake
from tests.harness.pipeline import until

from waltap_sinks.changelog import ChangeLog
from waltap_spark import open_tables
from waltap_spark.errors import SnapshotNeeded, TableSuspended
from waltap_spark.read.live import LiveTables
from waltap_spark.read.verify import compare


@pytest.fixture
def lake(database, tmp_path, spark) -> Lake:
    """Three tables: one is suspended, one needs a new snapshot, one is as the source."""
    made = Lake(database, tmp_path, spark)
    database.psql(
        "create table odd (id int primary key, v int); insert into odd values (1, 1);"
        "create table grown (id int primary key); insert into grown values (1);"
        "create table fine (id int primary key); insert into fine values (1);"
    )
    made.run()
    made.apply()
    database.psql(
        "alter table odd alter v type bytea using null; insert into odd values (2, 'x');"
        "alter table grown add at timestamptz default clock_timestamp();"
        "insert into grown values (2);"
        "insert into fine values (2);"
    )
    made.run()
    made.apply()
    return made


def test_such_tables_are_read_only_when_they_are_asked_for_as_they_are(lake, caplog):
    tables = lake.tables()
    assert tables.current("public.fine").count() == 2
    for read in (tables.current, tables.changes, tables.live_rows):
        with pytest.raises(TableSuspended, match="public.odd is suspended at .*WT-5205"):
            read("public.odd")
    assert tables.current("public.odd", allow_stale=True).count() == 1
    said = [each for each in caplog.messages if "public.odd is suspended" in each]
    assert tables.current("odd", allow_stale=True).count() == 1
    assert len(said) == 1, "one warning"
    odd, fine = tables.positions["public.odd"], tables.positions["public.fine"]
    assert odd < fine
    assert tables.state is not None
    assert fine == tables.state.log_position
    # the error's remedy: all tables at the position of the suspended one
    with pytest.raises(TableSuspended) as caught:
        tables.current("odd")
    then = tables.at(str(caught.value.fields["position"]))
    assert set(then.positions.values()) == {odd}
    assert then.current("odd").count() == then.current("fine").count() == 1
    # of one that needs a new snapshot
    tables = lake.tables()
    with pytest.raises(SnapshotNeeded, match="at was added with a default that older rows have"):
        tables.current("public.grown")
    assert tables.current("public.grown", allow_stale=True).count() == 2
    assert tables.positions["public.grown"] == tables.positions["public.fine"]
    assert set(tables.problems) == {"public.odd", "public.grown"}
    allowed = open_tables(lake.spark, tables.output.store, allow_stale=True)
    assert allowed.current("grown").count() == 2
    lake.run("truncate grown; insert into grown values (7)")
    assert lake.apply().current("grown").count() == 1, "a truncate ends the doubt"


def test_views_and_the_command_refuse_such_a_table_unless_it_is_asked_for(lake, spark_sql, caplog):
    tables = lake.tables()
    assert tables.register() == ["fine", "grown", "odd"]
    assert lake.spark.sql("select count(*) from fine").first()[0] == 2
    for query, code in (
        ("select count(*) from odd", "WT-5270"),
        ("select * from odd_changes", "WT-5270"),
        ("select count(*) from fine join grown using (id)", "WT-5271"),
    ):
        with pytest.raises(PySparkException, match=code):
            lake.spark.sql(query).collect()
    assert lake.spark.table("odd").columns == ["id", "v"]
    LiveTables(lake.spark, tables.output, allow_stale=True).register()
    assert lake.spark.sql("select count(*) from odd").first()[0] == 1
    output = lake.folder / "out"
    refused = spark_sql(output, "select count(*) from odd")
    assert isinstance(refused.exception, TableSuspended), refused.output
    said = " ".join(refused.output.split())
    assert "public.grown needs a new snapshot" in said
    assert "public.odd is suspended" not in said, "the error has it"
    caplog.clear()
    allowed = spark_sql(output, "--allow-stale", "--json", "select count(*) c from odd")
    assert allowed.exit_code == 0, allowed.output
    assert json.loads(allowed.stdout) == [{"c": 1}]
    for reported in ("public.odd is suspended", "public.grown needs a new snapshot"):
        assert [reported in each for each in caplog.messages].count(True) == 1
        assert reported not in " ".join(allowed.stderr.split()), "the log has it"


def test_a_problem_is_printed_once_however_many_queries_are_typed(lake, spark_sql, caplog):
    typed = "select 1;\nselect count(*) from fine;\n"
    for words in ((), ("--allow-stale",)):
        caplog.clear()
        asked = spark_sql(lake.folder / "out", *words, typed=typed)
        assert asked.exit_code == 0, asked.output
        said = " ".join([asked.output, *caplog.messages])
        assert " ".join(said.split()).count("public.odd is suspended") == 1
    answered = spark_sql(lake.folder / "out", "select count(*) from fine")
    assert " ".join(answered.stderr.split()).count("public.odd is suspended") == 1


# --- a new snapshot of one table ------------------------------------------------------------------


def snapshot_of(lake: Lake, *words: str) -> None:
    """Run the error's remedy, and wait until all rows of the table are in the log."""
    log = ChangeLog(str(lake.folder / "log"))

    def read() -> set[tuple[str, int | None]]:
        return {
            (entry.name, entry.snapshot_id)
            for each in log.manifests()
            for entry in each.tables
            if entry.complete
        }

    before = read()
    with lake.running():
        until(lambda: (lake.folder / ".waltap/p/control.sock").exists(), "the control socket")
        asked = waltap("snapshot", "p.toml", *words, "--wait", "60", cwd=lake.folder)
        assert asked.returncode == 0, asked.stderr
        until(lambda: read() - before, "the rows of the snapshot")


def test_a_snapshot_of_one_table_replaces_its_rows_and_reads_no_other(lake):
    lake.database.psql(
        "create table other (id int primary key); insert into other values (1);"
        "delete from grown where id = 1; insert into grown values (3)"
    )
    with pytest.raises(SnapshotNeeded) as caught:
        lake.tables().current("grown")
    assert "`waltap snapshot PROFILE public.grown --blocking`" in str(caught.value)
    snapshot_of(lake, "public.grown", "--blocking")
    tables = lake.follow("insert into grown values (4)")
    assert set(tables.problems) == {"public.odd"}
    assert sorted(row["id"] for row in tables.current("grown").collect()) == [2, 3, 4]
    with lake.database.connect(autocommit=True) as connection:
        (found,) = compare(connection, tables, ["public.grown"])
    assert found.equal
    counts = tables.changes("grown").groupBy("_op").count().collect()
    assert dict(counts)["r"] == 1 + 2, "the first snapshot, and this one"
    assert tables.changes("fine").where("_op = 'r'").count() == 1


def test_a_snapshot_replaces_the_rows_of_a_table_without_a_key(database, tmp_path, spark):
    lake = Lake(database, tmp_path, spark)
    lake.follow(
        "create table bag (v int); alter table bag replica identity full;"
        "insert into bag values (1), (1), (2)"
    )
    database.psql("alter table bag alter v type int using v * 10; insert into bag values (10)")
    snapshot_of(lake, "public.bag", "--blocking")
    lake.run("delete from bag where ctid = (select min(ctid) from bag)")
    found = [row["v"] for row in lake.apply().current("bag").collect()]
    assert sorted(found) == [10, 10, 20]


def test_a_wider_text_needs_no_snapshot(database, tmp_path, spark):
    lake = Lake(database, tmp_path, spark)
    lake.follow(
        "create table t (id int primary key, v varchar(5), w text, ip cidr);"
        "insert into t values (1, 'a', 'b', '10.0.0.0/8')"
    )
    tables = lake.follow(
        "alter table t alter v type text, alter w type varchar, alter ip type inet;"
        "insert into t values (2, 'longer than five', 'c', '10.0.0.1')"
    )
    assert tables.problems == {}
    assert tables.current("t").count() == 2
