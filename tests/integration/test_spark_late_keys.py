"""A table that joined without a key, where its mode needs one, goes on when it gets a key."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.lake import Lake
from tests.harness.servers.postgres import Database
from tests.harness.spark import Rig
from tests.harness.versions import versions

from waltap_spark.modes import ModeRules
from waltap_spark.output import TableState
from waltap_spark.verify import compare

pytestmark = pytest.mark.usefixtures("quick_plans")

COLUMNS = [("id", "int4"), ("name", "text")]
NAMES = ["id", "name"]
BARE = relation("public.t", COLUMNS, key=(), identity="f", numbers=(1, 2))
KEYED = relation("public.t", COLUMNS, numbers=(1, 2))
BY_VERSION = ModeRules(modes=("scd2",))
SOFT = ModeRules(deletes=("soft",))

JOINED = """
create table signals (id text primary key, type text, data text);
create table plain (id int not null, v text);
insert into plain select g, 'first' from generate_series(1, 3) g;
create table whole (id int not null, v text);
insert into whole select g, 'first' from generate_series(1, 3) g;
create table counted (v text);
insert into counted select 'first' from generate_series(1, 3) g;
create table silent (id int not null, v text);
insert into silent values (1, 'first');
alter table plain replica identity full;
alter table whole replica identity full;
alter table counted replica identity full;
alter table silent replica identity full;
"""
LATER = """
insert into plain values (4, 'second');
insert into whole values (4, 'second');
update whole set v = 'changed' where id = 1;
update whole set id = 12 where id = 2;
delete from whole where id = 3;
insert into counted values ('second');
insert into silent values (2, 'second');
"""
KEYS = """
alter table plain add primary key (id);
alter table whole add primary key (id);
alter table counted add column id serial primary key;
alter table silent add primary key (id);
"""
AFTER = """
update plain set v = 'third' where id = 2;
delete from plain where id = 3;
update whole set v = 'third' where id = 4;
update counted set v = 'third' where id = 2;
"""
TABLES = ("plain", "whole", "counted", "silent")


def states(lake: Lake) -> dict[str, TableState]:
    state = lake.apply().state
    assert state is not None
    return {table.table: table for table in state.tables.values()}


def equal(lake: Lake, *names: str) -> bool:
    with lake.database.connect(autocommit=True) as connection:
        found = compare(connection, lake.apply(), [f"public.{name}" for name in names])
    return len(found) == len(names) and all(each.equal for each in found)


def test_it_goes_on_when_the_source_gave_it_a_key(
    database: Database, tmp_path: Path, spark: Any
) -> None:
    signals = '"signal.data.collection" = "public.signals"'
    lake = Lake(database, tmp_path, spark, source=[signals], modes=BY_VERSION)
    database.psql(JOINED)
    lake.run()
    database.psql(LATER)
    lake.run()
    standing = states(lake)
    assert all("WT-5241" in standing[name].failed for name in TABLES)
    assert all("ADD PRIMARY KEY" in standing[name].failed for name in TABLES)
    database.psql(KEYS + AFTER)
    lake.run()
    tables = states(lake)
    assert not any(tables[name].failed for name in ("plain", "whole", "counted"))
    assert tables["plain"].stale == (), "what came before was inserts alone"
    assert len(tables["whole"].stale) == 1
    assert len(tables["counted"].stale) == 1
    assert equal(lake, "plain", "whole")
    assert tables["silent"].failed, "nothing came that says that it has a key"
    for name in ("silent", "counted"):
        wanted = json.dumps({"data-collections": [f"public.{name}"]})
        database.psql(f"insert into signals values ('{name}', 'execute-snapshot', '{wanted}')")
    lake.run()
    assert states(lake)["silent"].failed == ""
    assert equal(lake, *TABLES)
    profile = tmp_path / "p.toml"
    profile.write_text(profile.read_text().replace("[sink]", '"snapshot.mode" = "always"\n[sink]'))
    lake.run()  # what `waltap spark status` says of tables in doubt
    assert not any(table.stale for table in states(lake).values())
    assert equal(lake, *TABLES)


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
@pytest.mark.parametrize("few", [20_000, 0])
def test_a_key_that_was_lost_for_a_while_leaves_versions_as_if_it_had_stayed(
    delta: Any, tmp_path: Path, table_format: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever commit it is in, and with a driver that dies within."""
    monkeypatch.setattr("waltap_spark.compact_in_memory.FEW", few)
    rig = Rig(tmp_path, delta, table_format, parallel=1, modes=BY_VERSION)
    rig.db.insert(KEYED, ["1", "a"], ["2", "b"])
    rig.commit()
    rig.apply()
    rig.db.insert(BARE, ["3", "c"])
    rig.commit()
    rig.apply()
    assert "WT-5241" in rig.output.table("t").failed
    rig.db.update(BARE, ["1", "a"], name="a2")
    rig.db.update(BARE, ["3", "c"], id="4")
    rig.commit()
    rig.db.delete(BARE, ["2", "b"])
    rig.commit()
    rig.db.update(KEYED, ["1"], name="a3")
    rig.commit()
    rig.reopen()
    rig.apply_and_die()
    rig.apply()
    table = rig.output.table("t")
    assert (table.failed, len(table.stale)) == ("", 1)
    check_versions(rig)
    rig.db.insert(KEYED, ["5", "e"])
    rig.commit()
    rig.apply()
    check_versions(rig)
    rig.applier.close()
    rig.sink.close()


def check_versions(rig: Rig) -> None:
    from waltap_spark.live import LiveTables

    texts = [f"cast(`{name}` as string)" for name in NAMES]
    rows = LiveTables(rig.spark, rig.output).current("t").selectExpr(
        *texts, "struct(_from_epoch, _from_lsn)", "struct(_to_epoch, _to_lsn)", "_current"
    )  # fmt: skip
    made = [
        (tuple(row[:2]), tuple(row[2]), None if row[4] else tuple(row[3])) for row in rows.collect()
    ]
    assert sorted(made, key=str) == versions(rig.log, "public.t", ("id",), NAMES)


def test_rows_that_lack_the_key_are_left_out_and_come_with_a_snapshot(
    spark: Any, tmp_path: Path
) -> None:
    """Those of another table that had the name leave no doubt."""
    other = relation("public.t", [("name", "text")], key=(), oid=7, numbers=(1,))
    bare = relation("public.t", [("name", "text")], key=(), numbers=(2,))
    rig = Rig(tmp_path, spark, parallel=1, modes=SOFT)
    rig.db.insert(other, ["z"])
    rig.commit()
    rig.db.rows.clear()
    rig.db.insert(bare, ["a"])
    rig.commit()
    rig.apply()
    assert "WT-5241" in rig.output.table("t").failed
    rig.db.rows["public.t"] = [("1", "a")]
    rig.db.insert(KEYED, ["2", "b"])
    rig.commit()
    rig.reopen()
    rig.apply()
    assert rig.current(KEYED) == [("2", "b")]
    (doubt,) = rig.output.table("t").stale
    assert "lack" in doubt
    for part in rig.db.snapshot(KEYED):
        rig.sink.write(part)
    rig.sink.flush()
    rig.apply()
    rig.check(KEYED)
    assert rig.output.table("t").stale == ()
    rig.applier.close()
    rig.sink.close()
