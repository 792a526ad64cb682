"""Tables that are suspended or need a new snapshot: reading one raises, unless it is asked for as it is."""

from collections.abc import Callable
from typing import Any

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

TABLES = """
create table odd (id int primary key, v int); insert into odd values (1, 1);
create table grown (id int primary key); insert into grown values (1);
create table emptied (id int primary key); insert into emptied values (1);
create table fine (id int primary key); insert into fine values (1);
create table bag (v int); alter table bag replica identity full; insert into bag values (1), (1), (2);
create table texts (id int primary key, v varchar(5), w text, ip cidr);
insert into texts values (1, 'a', 'b', '10.0.0.0/8');
"""
DOUBTS = """
alter table odd alter v type bytea using null; insert into odd values (2, 'x');
alter table grown add at timestamptz default clock_timestamp(); insert into grown values (2);
alter table emptied add at timestamptz default clock_timestamp(); insert into emptied values (2);
insert into fine values (2);
alter table texts alter v type text, alter w type varchar, alter ip type inet;
insert into texts values (2, 'longer than five', 'c', '10.0.0.1');
"""
IN_DOUBT = {"public.odd", "public.grown", "public.emptied"}


@pytest.fixture
def lake(database, tmp_path, spark) -> Lake:
    """One table is suspended, two need a new snapshot, others are as the source, also one of wider texts."""
    made = Lake(database, tmp_path, spark)
    made.follow(TABLES)
    made.follow(DOUBTS)
    return made


def test_tables_in_doubt_are_read_only_when_they_are_asked_for_as_they_are(lake, spark_sql, caplog):
    frames_refuse(lake, caplog)
    views_refuse(lake)
    the_command_refuses(lake, spark_sql, caplog)


def frames_refuse(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    tables = lake.tables()
    assert set(tables.problems) == IN_DOUBT
    assert tables.current("public.fine").count() == tables.current("public.texts").count() == 2
    for read in (tables.current, tables.changes, tables.live_rows):
        with pytest.raises(TableSuspended, match="public.odd is suspended at .*WT-5205") as caught:
            read("public.odd")
    assert tables.current("public.odd", allow_stale=True).count() == 1
    assert tables.current("odd", allow_stale=True).count() == 1
    assert len([each for each in caplog.messages if "public.odd is suspended" in each]) == 1
    odd, fine = tables.positions["public.odd"], tables.positions["public.fine"]
    assert odd < fine
    assert tables.state is not None
    assert tables.positions["public.grown"] == fine == tables.state.log_position
    # the error's remedy: all tables at the position of the suspended one
    then = tables.at(str(caught.value.fields["position"]))
    assert set(then.positions.values()) == {odd}
    assert then.current("odd").count() == then.current("fine").count() == 1
    with pytest.raises(SnapshotNeeded, match="at was added with a default that older rows have"):
        tables.current("public.grown")
    allowed = open_tables(lake.spark, tables.output.store, allow_stale=True)
    assert allowed.current("grown").count() == 2


def views_refuse(lake: Lake) -> None:
    tables = lake.tables()
    assert tables.register() == ["bag", "emptied", "fine", "grown", "odd", "texts"]
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


def the_command_refuses(
    lake: Lake, spark_sql: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    output = lake.folder / "out"
    refused = spark_sql(output, "select count(*) from odd")
    assert isinstance(refused.exception, TableSuspended), refused.output
    said = " ".join(refused.output.split())
    assert said.count("public.grown needs a new snapshot") == 1
    assert "public.odd is suspended" not in said, "the error has it"
    typed = "select 'odd has ' || count(*) from odd;\nselect count(*) from fine;\n"
    caplog.clear()
    allowed = spark_sql(output, "--allow-stale", typed=typed)
    assert allowed.exit_code == 0, allowed.output
    assert "odd has 1" in allowed.stdout
    for reported in ("public.odd is suspended", "public.grown needs a new snapshot"):
        assert [reported in each for each in caplog.messages].count(True) == 1
        assert reported not in " ".join(allowed.stderr.split()), "the log has it"
    caplog.clear()
    asked = spark_sql(output, typed="select 1;\nselect count(*) from fine;\n")
    assert asked.exit_code == 0, asked.output
    said = " ".join([asked.output, *caplog.messages])
    assert " ".join(said.split()).count("public.odd is suspended") == 1


def test_snapshots_of_single_tables_replace_their_rows(lake):
    """By the error's remedy, also of one without a key; no other table is read."""
    lake.run("truncate emptied; insert into emptied values (7)")
    assert lake.apply().current("emptied").count() == 1, "a truncate ends the doubt"
    lake.database.psql(
        "delete from grown where id = 1; insert into grown values (3);"
        "alter table bag alter v type int using v * 10; insert into bag values (10)"
    )
    with pytest.raises(SnapshotNeeded) as caught:
        lake.tables().current("grown")
    assert "`waltap snapshot PROFILE public.grown --blocking`" in str(caught.value)
    log = ChangeLog(str(lake.folder / "log"))

    def read() -> set[tuple[str, int | None]]:
        entries = [entry for each in log.manifests() for entry in each.tables]
        return {(entry.name, entry.snapshot_id) for entry in entries if entry.complete}

    before = read()
    with lake.running():
        until(lambda: (lake.folder / "state/p/control.sock").exists(), "the control socket")
        for name in ("public.grown", "public.bag"):
            words = ("snapshot", "p.toml", name, "--blocking", "--wait", "60")
            asked = waltap(*words, cwd=lake.folder)
            assert asked.returncode == 0, asked.stderr
            until(lambda name=name: name in dict(read() - before), f"the rows of {name}")
    tables = lake.follow(
        "insert into grown values (4); delete from bag where ctid = (select min(ctid) from bag)"
    )
    assert set(tables.problems) == {"public.odd"}
    assert sorted(row["id"] for row in tables.current("grown").collect()) == [2, 3, 4]
    assert sorted(row["v"] for row in tables.current("bag").collect()) == [10, 10, 20]
    with lake.database.connect(autocommit=True) as connection:
        found, late = compare(connection, tables, ["public.grown", "public.odd"])
    assert found.equal
    assert (late.verdict, late.lag_reason[:27]) == ("late", "it is suspended for WT-5205")
    counts = tables.changes("grown").groupBy("_op").count().collect()
    assert dict(counts)["r"] == 1 + 2, "the first snapshot, and this one"
    assert tables.changes("fine").where("_op = 'r'").count() == 1
