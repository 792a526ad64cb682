"""From a real PostgreSQL to Spark: DDL that nobody saw, values in values, and deletes that never reached the change log."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from tests.harness.lake import Lake
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database

from waltap_sinks.changelog import ChangeLog
from waltap_spark.compact.compaction import distinguishing
from waltap_spark.errors import SnapshotNeeded
from waltap_spark.formats.work import equal as equal_columns
from waltap_spark.read.live import LiveTables
from waltap_spark.read.verify import compare
from waltap_spark.state.modes import ModeRules

# --- tables change --------------------------------------------------------------------------------

BEFORE = """
create table whole (id int primary key deferrable initially deferred, note text);
alter table whole replica identity full;
create table renamed (id int primary key, a text, b text);
alter table renamed alter a set storage external;
create table again (id int primary key, v text, w int);
create table widened (id int primary key, n int);
create table anew (id int primary key, v text);
create table exchanged (id int primary key, a int, b int);
insert into exchanged values (1, 1, 2), (2, 3, 4);
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
begin; savepoint s;
alter table exchanged rename a to c; alter table exchanged rename b to a; alter table exchanged rename c to b;
release savepoint s; update exchanged set a = 9 where id = 1; commit;
insert into odd values (1, 1e45, 'NaN', 'infinity', '-infinity'), (2, 1.5, 2.5, '2024-01-01', '5874897-12-31');
"""


@pytest.fixture
def lake(database, tmp_path, spark) -> Lake:
    return Lake(database, tmp_path, spark)


def test_tables_equal_the_source_after_ddl_that_nobody_saw(lake):
    lake.follow(BEFORE)
    said = lake.run(CHANGES)
    tables = lake.apply()
    with lake.database.connect(autocommit=True) as connection:
        found = {each.table: each for each in compare(connection, tables)}
    differing = {name: each for name, each in found.items() if not each.equal}
    assert set(differing) <= {"public.odd"}, differing
    assert differing["public.odd"].columns == ("at", "d"), "what a type cannot hold is null"
    assert found["public.computed"].left_out == ("twice",)
    assert "column at of public.odd: infinite date or timestamp; null is written" in said
    state = tables.state
    assert not {name: each.failed for name, each in state.tables.items() if each.failed}


def test_types_that_users_made_are_the_same_in_a_snapshot_and_behind_it(lake):
    """The catalogue, which a snapshot goes by, and the wire name them in different ways."""
    lake.follow("""
        create schema kinds; create extension hstore;
        create type kinds.mood as enum ('sad', 'ok'); create type "odd Type" as (w int, h numeric(6,2));
        create domain price as numeric(10,2); create domain kinds.few as int[];
        create table users_types (id int primary key, m kinds.mood, ms kinds.mood[], s "odd Type",
          ss "odd Type"[], p price, f kinds.few, h hstore, n int);
        insert into users_types values (1, 'ok', '{ok}', '(1,2)', '{"(1,2)"}', 1.5, '{1}', 'a=>1', 1);
    """)
    tables = lake.follow("update users_types set n = 2")
    assert tables.output.table("public.users_types").stale == ()
    with lake.database.connect(autocommit=True) as connection:
        (found,) = compare(connection, tables, without=("s", "ss"))
    assert found.equal, found
    manifests = ChangeLog(str(lake.folder / "log")).manifests()
    entries = [entry for each in manifests for entry in each.tables]
    assert len({entry.columns for entry in entries if entry.name.endswith("users_types")}) == 1


# --- deletes that are missing ---------------------------------------------------------------------

THREE_ROWS = "create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b'), (3, 'c');"


def keys_of(lake: Lake, *, allow_stale: bool = False) -> list[int]:
    rows = lake.apply().current("public.t", allow_stale=allow_stale).select("id").collect()
    return sorted(row["id"] for row in rows)


def test_a_key_that_comes_again_behind_a_delete_that_is_passed_over_stands_once(lake):
    """Other ways of missing one: `tests.unit.sinks.test_changelog_continuity`."""
    lake.run(THREE_ROWS)
    assert keys_of(lake) == [1, 2, 3]
    lake.database.psql("delete from t where id = 2")
    lake.database.execute(
        "select pg_replication_slot_advance(%s, pg_current_wal_lsn())", lake.database.name
    )
    again = "insert into t values (2, 'again'); insert into t values (9, 'last')"
    lake.run(again, **{"offset.mismatch.strategy": "trust_slot"})
    assert keys_of(lake) == [1, 2, 3, 9]
    rows = lake.apply().current("public.t").select("v").collect()
    assert ("again",) in [tuple(row) for row in rows]


def test_changes_under_a_name_that_is_not_captured_are_a_hole(database, tmp_path, spark):
    """A stream that leaves them out notices it before the table's next change."""
    lake = Lake(database, tmp_path, spark, source={"table.include.list": "public.t"})
    lake.run(THREE_ROWS)
    assert keys_of(lake) == [1, 2, 3]
    log = ChangeLog(str(tmp_path / "log"))
    with lake.running():
        until(lambda: '"streaming"' in (tmp_path / "run.log").read_text(), "streaming")
        database.psql(
            "alter table t rename to hidden; delete from hidden where id = 2;"
            "alter table hidden rename to t; insert into t values (2, 'again')"
        )
        until(lambda: any(m.transactions for m in log.manifests()), "the insert")
    with pytest.raises(SnapshotNeeded, match="not captured for a while"):
        keys_of(lake)
    assert keys_of(lake, allow_stale=True) == [1, 2, 3]


def test_a_row_that_comes_into_a_row_filter_stands_once(database, tmp_path, delta):
    """The server streams it as an insert; the snapshot, which is filtered too, did not have it."""
    lake = Lake(database, tmp_path, delta, "parquet")
    lake.run(
        THREE_ROWS,
        "alter table t replica identity full; insert into t values (5, 'hidden')",
        f"create publication {database.name} for table t where (v <> 'hidden')",
    )
    assert keys_of(lake) == [1, 2, 3]
    lake.run("update t set v = 'seen' where id = 5")
    assert keys_of(lake) == [1, 2, 3, 5]


def test_a_row_that_was_rolled_back_behind_its_prepare_stands_once(database, tmp_path, delta):
    """It was delivered at PREPARE, and nothing takes it back; then it is inserted again."""
    source = {"pgoutput.two_phase": "true", "two.phase.policy": "prepare"}
    lake = Lake(database, tmp_path, delta, "parquet", source=source)
    lake.run(THREE_ROWS)
    assert keys_of(lake) == [1, 2, 3]
    gid = database.name
    database.psql(f"begin; insert into t values (4, 'd'); prepare transaction '{gid}'")
    try:
        lake.run()
        assert keys_of(lake) == [1, 2, 3, 4]
    finally:
        database.psql(f"rollback prepared '{gid}'")
    lake.run("insert into t values (4, 'again')")
    assert keys_of(lake) == [1, 2, 3, 4]
    entries = [e for m in ChangeLog(str(lake.folder / "log")).manifests() for e in m.tables]
    assert {e.continuity_id for e in entries} == {""}


# --- values that have others in them --------------------------------------------------------------

SEMVER = Path("examples/plugins/waltap-semver").absolute()
SOURCE = {"waltap.composite.types": "struct", "hstore.handling.mode": "map"}
OPTIONS: dict[str, Any] = {
    "compact_rows": 0,
    "compact_sets": 2,
    "modes": ModeRules(modes=(r"public\.versions:scd2", "scd1")),
}
NAMES = ("plain", "versions", "keyless")
SETUP = """
create extension hstore;
create type semver;
create function semver_in(cstring) returns semver as 'textin' language internal immutable strict;
create function semver_out(semver) returns cstring as 'textout' language internal immutable strict;
create type semver (input = semver_in, output = semver_out, like = text);
create type size as (w int, "odd h" numeric(6,2));
create type box_of as (label text, sizes size[], kept int4range);
create domain boxed as box_of;
create table plain (
  id int primary key, box boxed, boxes box_of[], pairs hstore, made semver, long text, small int default 5);
alter table plain alter box set storage external, alter long set storage external;
"""
FILL = """
insert into plain values
  (1, row('a "b"', array[row(1, 2.5)::size, null], '[1,5)'), array[row('x', null, null)::box_of], 'k=>v, n=>NULL', '1.2.3', repeat('l', 9000)),
  (2, row(repeat('long ', 2000), '{}', 'empty'), '{}', '', null, 's'),
  (3, null, null, null, '0.0.1', null), (5, null, null, null, '0.0.1', null);
create table versions (like plain including all);
create table keyless (like plain including all excluding indexes);
alter table keyless alter id drop not null;
alter table keyless replica identity full;
insert into versions select * from plain;
insert into keyless select * from plain;
"""


def changes(later: str) -> str:
    return "\n".join(
        f"update {name} set pairs = 'z=>1', made = '2.0.0' where id = 2; delete from {name} where id = 3;"
        + later.format(name=name)
        for name in NAMES
    )


GROWN = """
insert into {name} values (4, row('new', array[row(7, 8, true)::size], null, 'red'), null, null, '3.0.0', null);
update {name} set long = 'm', small = 30000000000 where id = 1;
"""


def source_rows(database: Database, name: str) -> list[Any]:
    with database.connect(autocommit=True) as connection:
        return connection.execute(
            f"select id, to_jsonb(box), to_jsonb(boxes), hstore_to_jsonb(pairs), made::text, long, small"
            f" from {name} order by id"
        ).fetchall()


def spark_rows(tables: LiveTables) -> dict[str, list[Any]]:
    """Return the rows of each table, which one query reads."""
    names = ("id", "box", "boxes", "pairs", "made", "long", "small")
    frames = [tables.live_rows(f"public.{name}").selectExpr(f"'{name}'", *names) for name in NAMES]
    rows: dict[str, list[Any]] = {name: [] for name in NAMES}
    for called, number, box, boxes, pairs, made, *rest in reduce(DataFrame.union, frames).collect():
        version = None if made is None else ".".join(map(str, made))
        rows[called].append((number, plain(box), plain(boxes), pairs, version, *rest))
    return {name: sorted(each, key=lambda row: row[0]) for name, each in rows.items()}


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if hasattr(value, "asDict"):
        return {name: plain(part) for name, part in value.asDict().items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return float(value) if value.__class__.__name__ == "Decimal" else value


def equal(lake: Lake, tables: LiveTables) -> None:
    for name in NAMES:
        assert tables.output.table(f"public.{name}").failed == ""
    assert spark_rows(tables) == {name: source_rows(lake.database, name) for name in NAMES}


def nested_values_follow(lake: Lake) -> None:
    lake.follow(SETUP + FILL)
    lake.run(
        changes("")
        + "alter type size add attribute round boolean; alter type box_of add attribute colour text;"
        + "".join(f"alter table {name} alter small type bigint;" for name in NAMES)
        + changes(GROWN)
    )
    equal(lake, lake.apply())
    tables = lake.follow(changes("update {name} set made = null where id = 4;"))
    equal(lake, tables)
    kinds = dict(tables.current("public.plain").dtypes)
    assert kinds["box"].startswith(
        "struct<label:string,sizes:array<struct<w:int,odd h:decimal(6,2)"
    )
    assert kinds["made"] == "struct<major:int,minor:int,patch:int>"


@pytest.fixture
def site(tmp_path) -> list[Path]:
    """Return folders by which an engine finds the example's type, as it would one that pip installed."""
    info = tmp_path / "site" / "waltap_semver-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: waltap-semver\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[waltap]\nsemver = waltap_semver.plugin\n")
    return [SEMVER / "src", info.parent]


def test_values_with_maps_in_them_are_distinguished_by_each_microsecond(spark):
    moments = (
        "timestamp_micros(n) as at, timestampadd(microsecond, n, timestamp_ntz'-0004-01-01') as ntz"
    )
    rows = spark.sql(f"select struct(map('k', 'v') as m, {moments}) as v from values 1, 2 as t(n)")
    kind = rows.schema["v"].dataType.json()
    assert rows.select(distinguishing("v", kind)).distinct().count() == 2
    rows.createOrReplaceTempView("valued")
    alike = equal_columns("v", kind)
    same = spark.sql(f"select 1 from valued t join valued s on {alike}")
    assert same.count() == 2


ALTERED = {
    "gone": "drop attribute b",
    "called": "rename attribute b to c",
    "more": "add attribute c int",
}


def test_attributes_that_only_older_rows_have_make_a_table_stale(database, tmp_path, spark):
    lake = Lake(database, tmp_path, spark, "parquet", source=SOURCE)
    maps = "create extension hstore; create table maps (h hstore primary key); insert into maps values ('');"
    setup = """
        create type {0} as (a int, b int); create table {0}_keyed (id int primary key, v {0}, n int);
        create table {0}_keyless (id int, v {0}, n int); alter table {0}_keyless replica identity full;
        insert into {0}_keyed values (1, (1, 2)); insert into {0}_keyless values (1, (1, 2));
    """
    lake.follow(maps, "".join(map(setup.format, ALTERED)))
    later = "alter type {0} {1}; update {0}_keyed set n = 1; update {0}_keyless set n = 1;"
    tables = lake.follow("".join(later.format(*each) for each in ALTERED.items()))
    names = [f"{name}_{kind}" for name in ALTERED for kind in ("keyed", "keyless")]
    stale = {name for name in names if tables.output.table(f"public.{name}").stale}
    assert stale == {"gone_keyless", "called_keyed", "called_keyless"}
    assert tables.output.table("maps").failed.startswith(
        "WT-5234 h, of the key of public.maps, is a map"
    )
    # What is added later is no new name of what was dropped.
    lake.run(
        "alter type gone add attribute d int; update gone_keyed set n = 2; update more_keyless set n = 2;"
    )
    tables = lake.apply()
    assert not tables.output.table("public.gone_keyed").stale
    assert tables.live_rows("public.more_keyless").count() == 1


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_nested_values_follow_the_source_and_their_types_grow(
    database, tmp_path, delta, site, table_format
):
    nested_values_follow(
        Lake(database, tmp_path, delta, table_format, source=SOURCE, plugins=site, **OPTIONS)
    )
