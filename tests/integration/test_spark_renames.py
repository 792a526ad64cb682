"""Tables that the source renames, in Parquet and Delta Lake; in Iceberg: `tests.spark41.test_iceberg_in_use`."""

import pytest
import typer
from tests.harness.lake import Lake
from tests.harness.renamed_tables import COURSES, A, B, filled, names_are_the_tables_own, renamed
from tests.harness.spark import Rig

from waltap_spark.cli.queries import SqlQueries
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.read.verify import compare


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.__name__)
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_table_is_renamed(delta, tmp_path, table_format, course):
    course(Rig(tmp_path, delta, table_format, parallel=2))


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.__name__)
def test_a_table_in_a_catalogue_is_renamed_there(delta, tmp_path, course):
    own = course.__name__
    values = {"format.catalog": "spark_catalog", "format.names": rf"public\.(.*):{own}.$1"}
    rig = Rig(tmp_path, delta, FormatChoice("delta", values), parallel=2)
    course(rig)
    names_are_the_tables_own(rig, own)


def test_the_prompt_has_no_view_of_a_former_name(delta, tmp_path):
    rig = Rig(tmp_path, delta)
    filled(rig, A)
    queries = SqlQueries(rig.spark, rig.output.store, 9)
    queries.begin()
    renamed(rig, (A, B))
    rig.db.insert(B, ["3", "b"])
    rig.follow()
    queries.begin()
    queries.show("select * from b, b_changes")
    for gone in ("a", "a_changes"):
        with pytest.raises(typer.BadParameter):
            queries.show(f"select * from {gone}")


BEFORE = """
create schema attic;
create table plain (id int primary key, v text);
create table log (id int primary key, v text);
create table one (id int primary key, v text);
create table other (id int primary key, v text);
create table moved (id int primary key, v text);
insert into plain select g, 'plain' from generate_series(1, 5) g;
insert into log select g, 'log' from generate_series(1, 5) g;
insert into one select g, 'one' from generate_series(1, 5) g;
insert into other select g, 'other' from generate_series(1, 5) g;
insert into moved select g, 'moved' from generate_series(1, 5) g;
"""
PARTS = """
create table parts (id int primary key, v text) partition by range (id);
create table parts_1 partition of parts for values from (0) to (10);
create table parts_2 partition of parts for values from (10) to (20);
insert into parts select g, 'part' from generate_series(5, 14) g;
"""
RENAMES = """
update plain set v = 'before' where id = 1;
alter table plain rename to "Plain now";
update "Plain now" set v = 'after' where id = 2;
alter table log rename to log_old;
create table log (like log_old including all);
insert into log select g, 'new' from generate_series(1, 3) g;
delete from log_old where id = 1;
begin;
alter table one rename to between; alter table other rename to one; alter table between rename to other;
update one set v = 'was other' where id = 1; update other set v = 'was one' where id = 2;
commit;
alter table moved set schema attic;
insert into attic.moved values (6, 'moved there');
alter table parts_1 rename to parts_first;
alter table parts rename to pieces;
update pieces set v = 'piece' where id in (6, 12);
"""
LATER = """
update "Plain now" set v = 'later' where id = 3; update log set v = 'later'; update log_old set v = 'later';
delete from one where id = 5; delete from other where id = 4; update attic.moved set v = 'later' where id = 1;
insert into pieces values (9, 'nine') on conflict (id) do update set v = 'nine';
"""


def tables_follow_the_renames_of_a_server(lake: Lake) -> None:
    lake.follow(BEFORE + PARTS)
    for script in (RENAMES, LATER):
        lake.run(script)
        agrees(lake)


def agrees(lake: Lake) -> None:
    """Apply what waits; each table of the server is there, with its rows, and no other."""
    tables = lake.apply()
    assert not tables.problems
    with lake.database.connect(autocommit=True) as connection:
        found = {each.table: each.equal for each in compare(connection, tables)}
        rows = connection.execute(
            "select schemaname || '.' || tablename from pg_publication_tables"
        ).fetchall()
    assert set(tables.names) == {name for (name,) in rows}
    assert found == dict.fromkeys(tables.names, True)


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_tables_follow_the_renames_of_a_server(database, delta, tmp_path, table_format):
    tables_follow_the_renames_of_a_server(Lake(database, tmp_path, delta, table_format))


QUIET = """
alter table log rename to log_old;
create table log (like log_old including all);
insert into log select g, 'new' from generate_series(1, 3) g;
begin;
alter table one rename to between; alter table other rename to one; alter table between rename to other;
update one set v = 'was other' where id = 1;
commit;
alter table moved rename to moved_now; alter table moved_now set schema attic;
create table moved (id int primary key, v text);
insert into moved values (1, 'another');
alter table plain rename to plain_1; alter table plain_1 rename to plain_2;
create table plain (id int primary key);
insert into plain values (1);
"""
QUIET_LATER = """
update log_old set v = 'later' where id = 1; update other set v = 'later' where id = 5;
update attic.moved_now set v = 'later' where id = 1;
begin;
alter table plain_2 add column more int default 7; alter table plain_2 rename to plain_3;
delete from plain_3 where id = 1; update plain_3 set more = 8 where id = 2;
commit;
alter table log rename to log_2; create table log (like log_2); insert into log values (9, 'third');
"""


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_renamed_table_that_is_quiet_has_its_new_name_when_another_takes_the_old_one(
    database, delta, tmp_path, table_format
):
    lake = Lake(database, tmp_path, delta, table_format)
    lake.follow(BEFORE)
    for script in (QUIET, QUIET_LATER):
        lake.run(script)
        agrees(lake)
