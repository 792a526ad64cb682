"""From PostgreSQL to Spark while tables change under it, with the engine down and caught up later."""

from pathlib import Path
from typing import Any

import pytest
from tests.harness.lake import Lake
from tests.harness.servers.postgres import Database

from waltap_sinks.changelog import ChangeLog
from waltap_spark.verify import compare

SETUP = """
create table whole (id int primary key deferrable initially deferred, note text);
alter table whole replica identity full;
create table renamed (id int primary key, a text, b text);
alter table renamed alter a set storage external;
create table again (id int primary key, v text, w int);
create table widened (id int primary key, n int);
create table anew (id int primary key, v text);
create table computed (id int primary key, a int, twice int generated always as (a * 2) stored);
create table odd (id int primary key, n numeric(60,10), u numeric, at timestamp, d date);
insert into whole select g, 'w' || g from generate_series(1, 4) g;
insert into renamed values (1, repeat('long ', 2000), 'x'), (2, 'short', 'y');
insert into again select g, 'old ' || g, g from generate_series(1, 3) g;
insert into widened select g, g from generate_series(1, 3) g;
insert into anew select g, 'first' from generate_series(1, 5) g;
insert into computed (id, a) select g, g from generate_series(1, 3) g;
"""
CHANGES = """
update whole set id = 5 - id;
update renamed set b = 'z' where id = 1;
alter table renamed rename a to c;
update renamed set b = 'after' where id = 1;
alter table again drop column v;
update again set w = 20 where id = 2;
alter table again add column v text;
update again set w = 30 where id = 3;
alter table widened add column price numeric(10,2) default 1.50, add column word text default 'a''b';
update widened set n = 10 where id = 1;
drop table anew;
create table anew (id int primary key, v text);
insert into anew values (1, 'second'), (9, 'second');
update computed set a = 50 where id = 1;
insert into odd values (1, 1e45, 'NaN', 'infinity', '-infinity'), (2, 1.5, 2.5, '2024-01-01', '2024-01-01');
"""


@pytest.fixture
def lake(database: Database, tmp_path: Path, spark: Any) -> Lake:
    return Lake(database, tmp_path, spark)


def test_tables_equal_the_source_after_ddl_that_nobody_saw(lake: Lake) -> None:
    lake.database.psql(SETUP)
    lake.run()
    lake.apply()
    lake.database.psql(CHANGES)
    said = lake.run()
    tables = lake.apply()
    with lake.database.connect(autocommit=True) as connection:
        found = {each.table: each for each in compare(connection, tables)}
    differing = {name: each for name, each in found.items() if not each.equal}
    assert set(differing) <= {"public.odd"}, differing
    assert differing["public.odd"].columns == ("at", "d"), "what a type cannot hold is null"
    assert found["public.computed"].left_out == ("twice",)
    assert "column at of public.odd: infinite date or timestamp; null is written" in said
    state = tables.state
    assert state is not None
    assert not {name: each.failed for name, each in state.tables.items() if each.failed}


def test_what_no_change_tells_is_marked(lake: Lake) -> None:
    lake.database.psql(
        "create table t (id int primary key, v int); insert into t values (1, 1), (2, 2);"
        "create table u (id int primary key); insert into u values (1);"
    )
    lake.run()
    lake.apply()
    lake.database.psql(
        "alter table t alter v type bigint using v * 10; update t set v = 11 where id = 1;"
        "alter table u add column at timestamptz default clock_timestamp(); insert into u values (2)"
    )
    lake.run()
    tables = lake.apply()
    with lake.database.connect(autocommit=True) as connection:
        t, u = compare(connection, tables)
    assert (t.columns, t.changed) == (("v",), ("(id=2)",))
    assert (u.columns, u.changed) == (("at",), ("(id=1)",))
    state = tables.state
    assert state is not None
    assert "the type of v changed" in state.tables["public.t"].stale[0]
    assert "at was added with a default" in state.tables["public.u"].stale[0]


def test_types_that_users_made_are_the_same_in_a_snapshot_and_behind_it(lake: Lake) -> None:
    """The catalogue, which a snapshot goes by, and the wire name them in different ways."""
    lake.database.psql("""
        create schema kinds; create extension hstore;
        create type kinds.mood as enum ('sad', 'ok'); create type "odd Type" as (w int, h numeric(6,2));
        create domain price as numeric(10,2); create domain kinds.few as int[];
        create table users_types (id int primary key, m kinds.mood, ms kinds.mood[], s "odd Type",
          ss "odd Type"[], p price, f kinds.few, h hstore, n int);
        insert into users_types values (1, 'ok', '{ok}', '(1,2)', '{"(1,2)"}', 1.5, '{1}', 'a=>1', 1);
    """)
    lake.run()
    lake.apply()
    lake.database.psql("update users_types set n = 2")
    lake.run()
    tables = lake.apply()
    assert tables.output.table("public.users_types").stale == ()
    manifests = ChangeLog(str(lake.folder / "log")).manifests()
    entries = [entry for each in manifests for entry in each.tables]
    assert len({entry.columns for entry in entries if entry.name.endswith("users_types")}) == 1
