"""A delete that never reached the change log, and the key that is inserted again: one row stands under it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.lake import Lake
from tests.harness.servers.postgres import Database

from waltap_sinks.changelog import ChangeLog

SETUP = "create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b'), (3, 'c');"
FORMATS = pytest.mark.parametrize("table_format", ["parquet", "delta"])


def stops_publishing(lake: Lake) -> None:
    name = lake.database.name
    lake.database.psql(f"alter publication {name} set (publish = 'insert, update')")
    lake.database.psql("delete from t where id = 2")
    lake.database.psql(
        f"alter publication {name} set (publish = 'insert, update, delete, truncate')"
    )


def filters(lake: Lake) -> None:
    lake.say_more("", '[[transforms]]\ntype = "filter"\n"operations" = ["d"]\n')
    lake.database.psql("delete from t where id = 2")
    lake.run()
    lake.say_more("")


def goes_elsewhere(lake: Lake) -> None:
    other = lake.folder / "elsewhere"
    profile = lake.folder / "p.toml"
    text = profile.read_text()
    profile.write_text(text.replace(f'path = "{lake.folder}/log"', f'path = "{other}"'))
    lake.database.psql("delete from t where id = 2")
    lake.run()
    profile.write_text(text)


def is_passed_over(lake: Lake) -> None:
    lake.database.psql("delete from t where id = 2")
    lake.database.execute(
        "select pg_replication_slot_advance(%s, pg_current_wal_lsn())", lake.database.name
    )
    lake.say_more('"offset.mismatch.strategy" = "trust_slot"\n')


HOLES: dict[str, Callable[[Lake], None]] = {
    each.__name__: each
    for each in (
        stops_publishing,
        filters,
        goes_elsewhere,
        is_passed_over,
    )
}


def keys_of(lake: Lake) -> list[int]:
    rows = lake.apply().current("public.t").select("id").collect()
    return sorted(row["id"] for row in rows)


@pytest.mark.parametrize(
    ("hole", "table_format"), [*((hole, "parquet") for hole in HOLES), ("is_passed_over", "delta")]
)
def test_a_key_that_comes_again_behind_a_hole_stands_once(
    database: Database, tmp_path: Path, delta: Any, hole: str, table_format: str
) -> None:
    lake = Lake(database, tmp_path, delta, table_format)
    database.psql(SETUP)
    lake.run()
    assert keys_of(lake) == [1, 2, 3]
    database.psql("insert into t values (4, 'd')")
    lake.run()
    assert keys_of(lake) == [1, 2, 3, 4]
    HOLES[hole](lake)
    database.psql("insert into t values (2, 'again')")
    lake.run()
    database.psql("insert into t values (9, 'last')")
    lake.run()
    keys = keys_of(lake)
    assert len(set(keys)) == len(keys), keys
    assert {2, 9} <= set(keys)
    assert ("again",) in [tuple(r) for r in lake.apply().current("public.t").select("v").collect()]


@FORMATS
def test_truncates_that_a_publication_leaves_out_double_nothing(
    database: Database, tmp_path: Path, delta: Any, table_format: str
) -> None:
    """An explicit ``skipped.operations`` makes the publication without them."""
    lake = Lake(database, tmp_path, delta, table_format, source=['"skipped.operations" = "t"'])
    database.psql(SETUP)
    lake.run()
    lake.apply()
    database.psql("truncate t; insert into t values (1, 'A'), (5, 'e')")
    lake.run()
    assert keys_of(lake) == [1, 2, 3, 5]
    database.psql("truncate t; insert into t values (5, 'E')")
    database.psql("truncate t; insert into t values (6, 'f')")
    database.psql("truncate t; insert into t values (6, 'F')")
    lake.run()
    assert keys_of(lake) == [1, 2, 3, 5, 6]


@FORMATS
def test_new_rows_are_still_added_where_nothing_is_missing(
    database: Database, tmp_path: Path, delta: Any, table_format: str
) -> None:
    """Over starts of the engine, for a table of the snapshot and for one that is made behind it."""
    lake = Lake(database, tmp_path, delta, table_format)
    database.psql(SETUP)
    lake.run()
    lake.apply()
    database.psql("create table late (id int primary key); insert into late values (1)")
    database.psql("insert into t values (4, 'd')")
    lake.run()
    lake.apply()
    database.psql("insert into t values (5, 'e'); insert into late values (2)")
    lake.run()
    assert keys_of(lake) == [1, 2, 3, 4, 5]
    found = lake.apply()
    entries = [e for m in ChangeLog(str(lake.folder / "log")).manifests() for e in m.tables]
    for name in ("public.t", "public.late"):
        table = found.output.table(name)
        assert len({e.stretch for e in entries if e.name == name} - {""}) == 1
        if table.held is None:
            assert not table.pending, "rows were added, and wait for no fold"
            continue
        told = delta.sql(f"describe history {table.held.targets['current'].at}").collect()
        assert {row["operation"] for row in told} <= {"CREATE TABLE", "WRITE"}, told


def test_a_row_that_comes_into_a_row_filter_stands_once(
    database: Database, tmp_path: Path, delta: Any
) -> None:
    """The server streams it as an insert; the snapshot, which is filtered too, did not have it."""
    lake = Lake(database, tmp_path, delta, "parquet")
    database.psql(SETUP)
    database.psql("alter table t replica identity full; insert into t values (5, 'hidden')")
    database.psql(f"create publication {database.name} for table t where (v <> 'hidden')")
    lake.run()
    assert keys_of(lake) == [1, 2, 3]
    database.psql("update t set v = 'seen' where id = 5")
    lake.run()
    assert keys_of(lake) == [1, 2, 3, 5]


def test_a_row_that_was_rolled_back_behind_its_prepare_stands_once(
    database: Database, tmp_path: Path, delta: Any
) -> None:
    """It was delivered at PREPARE, and nothing takes it back; then it is inserted again."""
    source = ['"pgoutput.two_phase" = "true"', '"two.phase.policy" = "prepare"']
    lake = Lake(database, tmp_path, delta, "parquet", source=source)
    database.psql(SETUP)
    lake.run()
    assert keys_of(lake) == [1, 2, 3]
    gid = database.name
    database.psql(f"begin; insert into t values (4, 'd'); prepare transaction '{gid}'")
    try:
        lake.run()
        assert keys_of(lake) == [1, 2, 3, 4]
    finally:
        database.psql(f"rollback prepared '{gid}'")
    database.psql("insert into t values (4, 'again')")
    lake.run()
    assert keys_of(lake) == [1, 2, 3, 4]
    entries = [e for m in ChangeLog(str(lake.folder / "log")).manifests() for e in m.tables]
    assert {e.stretch for e in entries} == {""}
