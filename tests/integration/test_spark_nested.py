"""Values that have others in them, from PostgreSQL to Spark's tables: composite types as structs, also in
arrays and with attributes that came later, maps, and a type that an installed plugin brings."""

from pathlib import Path
from typing import Any

import pytest
from tests.harness.lake import Lake
from tests.harness.servers.postgres import Database

from waltap_spark.compaction import distinguishing
from waltap_spark.formats import merge_sql
from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules

pytestmark = pytest.mark.usefixtures("quick_plans")

SEMVER = Path("examples/plugins/waltap-semver").absolute()
SOURCE = ('"waltap.composite.types" = "struct"', '"hstore.handling.mode" = "map"')
OPTIONS: dict[str, Any] = {
    "fold_rows": 0,
    "fold_sets": 2,
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
  (3, null, null, null, '0.0.1', null);
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


def spark_rows(tables: LiveTables, name: str) -> list[Any]:
    found = tables.standing(f"public.{name}").orderBy("id").collect()
    return [
        (
            row["id"],
            plain(row["box"]),
            plain(row["boxes"]),
            row["pairs"],
            None if row["made"] is None else ".".join(map(str, row["made"])),
            row["long"],
            row["small"],
        )
        for row in found
    ]


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
        assert spark_rows(tables, name) == source_rows(lake.database, name), name


def nested_values_follow(lake: Lake) -> None:
    lake.database.psql(SETUP + FILL)
    lake.run()
    equal(lake, lake.apply())
    lake.database.psql(changes(""))
    lake.run()
    equal(lake, lake.apply())
    lake.database.psql(
        changes("")
        + "alter type size add attribute round boolean; alter type box_of add attribute colour text;"
        + "".join(f"alter table {name} alter small type bigint;" for name in NAMES)
        + changes(GROWN)
    )
    lake.run()
    equal(lake, lake.apply())
    lake.database.psql(changes("update {name} set made = null where id = 4;"))
    lake.run()
    tables = lake.apply()
    equal(lake, tables)
    kinds = dict(tables.current("public.plain").dtypes)
    assert kinds["box"].startswith(
        "struct<label:string,sizes:array<struct<w:int,odd h:decimal(6,2)"
    )
    assert kinds["made"] == "struct<major:int,minor:int,patch:int>"


@pytest.fixture
def site(tmp_path: Path) -> list[Path]:
    """Return folders by which an engine finds the example's type, as it would one that pip installed."""
    info = tmp_path / "site" / "waltap_semver-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: waltap-semver\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[waltap]\nsemver = waltap_semver.plugin\n")
    return [SEMVER / "src", info.parent]


def test_values_with_maps_in_them_are_told_apart_by_each_microsecond(spark: Any) -> None:
    moments = (
        "timestamp_micros(n) as at, timestampadd(microsecond, n, timestamp_ntz'-0004-01-01') as ntz"
    )
    rows = spark.sql(f"select struct(map('k', 'v') as m, {moments}) as v from values 1, 2 as t(n)")
    kind = rows.schema["v"].dataType.json()
    assert rows.select(distinguishing("v", kind)).distinct().count() == 2
    rows.createOrReplaceTempView("valued")
    alike = merge_sql.equal("v", kind)
    same = spark.sql(f"select 1 from valued t join valued s on {alike}")
    assert same.count() == 2


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_nested_values_follow_the_source_and_their_types_grow(
    database: Database, tmp_path: Path, delta: Any, site: list[Path], table_format: str
) -> None:
    nested_values_follow(
        Lake(database, tmp_path, delta, table_format, source=SOURCE, plugins=site, **OPTIONS)
    )
