"""From PostgreSQL to Spark while tables change under it, with the engine down and caught up later."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waltap_sinks.changelog import ChangeLog
from waltap_spark.applier import Applier
from waltap_spark.live import LiveTables
from waltap_spark.output import Output
from waltap_spark.session import prepare
from waltap_spark.verify import compare

from tests.servers.postgres import Database

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


class Lake:
    """A profile, the change log it writes, and the tables that follow."""

    def __init__(self, database: Database, folder: Path, spark: Any) -> None:
        self.folder, self.spark = folder, prepare(spark)
        spark.conf.set("spark.sql.timeType.enabled", "true")
        self.database = database
        named = [f'"{name}" = "{value}"' for name, value in database.properties().items()]
        source = "\n".join(
            [
                *named,
                f'"slot.name" = "{database.name}"',
                f'"publication.name" = "{database.name}"',
                '"publication.autocreate.mode" = "all_tables"',  # a table made anew is in it at once
            ]
        )
        (folder / "p.toml").write_text(
            f'name = "p"\n[source]\ntype = "postgres"\n{source}\n'
            f'[sink]\ntype = "changelog"\npath = "{folder}/log"\n'
        )

    def run(self) -> str:
        """Run the engine until everything is delivered; return its log."""
        program = shutil.which("waltap", path=str(Path(sys.executable).parent))
        assert program is not None
        done = subprocess.run(
            [program, "run", "p.toml", "--until-idle", "2"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def apply(self) -> LiveTables:
        """Apply the change log; return the tables."""
        log, output = ChangeLog(str(self.folder / "log")), Output(str(self.folder / "out"))
        applier = Applier(self.spark, log, output)
        applier.open()
        applier.apply(list(log.manifests(applier.state.mark)))
        applier.close()
        return LiveTables(self.spark, output)


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
