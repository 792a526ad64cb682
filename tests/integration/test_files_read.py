"""What the sink `files` writes is read by DuckDB, Polars and pyarrow, by one pattern and without waltap."""

import datetime as dt
import runpy
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import dataset
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE kinds (
  id bigint PRIMARY KEY, b bool, i2 int2, i4 int4, f8 float8, n numeric(20, 5), t text, bin bytea, d date,
  ts timestamp(3), tt timestamptz, u uuid, j jsonb, a int[], ta text[], e mood
);
CREATE TABLE "odd name/ü" (id int PRIMARY KEY);
"""
ROW = """
INSERT INTO kinds VALUES (1, true, -1, 2, 1e300, 12345.67891, E'a\\n"ü😀', '\\x00ff', '2024-02-29',
  '2024-02-29 12:30:00.123', '1969-12-31 23:59:59.999999+00', '0b5f1a2c-3d4e-4f60-8a7b-000000000001',
  '{"b": [1]}', '{1,NULL,3}', '{"a,b",NULL}', 'ok'),
  (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
"""
EXPECTED: dict[str, Any] = {
    "id": 1,
    "b": True,
    "i2": -1,
    "i4": 2,
    "f8": 1e300,
    "n": Decimal("12345.67891"),
    "t": 'a\n"ü😀',
    "bin": b"\x00\xff",
    "d": dt.date(2024, 2, 29),
    "ts": dt.datetime(2024, 2, 29, 12, 30, 0, 123000),
    "tt": dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    "u": "0b5f1a2c-3d4e-4f60-8a7b-000000000001",
    "j": '{"b": [1]}',
    "a": [1, None, 3],
    "ta": ["a,b", None],
    "e": "ok",
}
EXAMPLES = Path(__file__).parents[2] / "examples" / "files"
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "files-and-object-stores.md"
FAR = dt.date(2999, 1, 1)


def written(database: Database, folder: Path, kind: str) -> tuple[PipelineRig, Path]:
    """Return a pipeline that writes files of a kind, and their folder."""
    files = folder / "lake" / "orders"
    settings = {
        "schema.include.list": "public",
        "sink.type": "files",
        "sink.path": str(files),
        "sink.file.format": kind,
        "sink.file.max.age.ms": "0",
    }
    pipeline = PipelineRig(database, folder, settings)
    pipeline.catch_up()
    return pipeline, files


def spoil(files: Path, ending: str) -> None:
    for table, day in (("public.kinds", FAR), ("public.zz", "2026-01-01")):
        folder = files / f"table={table}" / f"date={day}"
        folder.mkdir(parents=True)
        (folder / f"0000000099-0-0001.{ending}").write_bytes(b"no such file")


def reported(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without what the log adds, as Python has its values."""
    found = {name: value for name, value in row.items() if name in EXPECTED}
    for name, value in found.items():
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            found[name] = value.astimezone(dt.UTC)
    return found


def by_duckdb(query: str, *, rows: bool = True) -> list[Any]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql(query)
        names = found.columns
        return [dict(zip(names, row, strict=True)) if rows else row for row in found.fetchall()]


def test_every_type_in_parquet_is_what_the_source_has_for_every_reader(database, tmp_path):
    import polars as pl

    """Folders name partitions: files of others, which cannot be read, are not looked at."""
    database.execute(TABLE)
    pipeline, files = written(database, tmp_path, "parquet")
    database.execute(ROW)
    pipeline.deliver('INSERT INTO "odd name/ü" VALUES (7)')
    spoil(files, "parquet")
    pattern = f"{files}/table=*/date=*/*.parquet"

    rows = by_duckdb(
        f"SELECT * FROM read_parquet('{pattern}', hive_partitioning = true)"
        f" WHERE \"table\" = 'public.kinds' AND date < '{FAR}' ORDER BY id"
    )
    nulls = {name: None for name in EXPECTED} | {"id": 2}
    assert [reported(row) for row in rows] == [EXPECTED, nulls]
    assert [row["_op"] for row in rows] == ["c", "c"]
    (odd,) = by_duckdb(
        f"SELECT id FROM read_parquet('{pattern}', hive_partitioning = true)"
        " WHERE \"table\" = 'public.odd name/ü'"
    )
    assert odd == {"id": 7}

    lazy = pl.scan_parquet(pattern, hive_partitioning=True)
    asked = (pl.col("table") == "public.kinds") & (pl.col("date") < FAR)
    assert [reported(row) for row in lazy.filter(asked).sort("id").collect().to_dicts()] == [
        EXPECTED,
        nulls,
    ]

    parts = pa.schema({"table": pa.string(), "date": pa.date32()})
    found = dataset.dataset(str(files), partitioning=dataset.partitioning(parts, flavor="hive"))
    mine = (dataset.field("table") == "public.kinds") & (dataset.field("date") < FAR)
    assert [reported(row) for row in found.to_table(filter=mine).sort_by("id").to_pylist()] == [
        EXPECTED,
        nulls,
    ]


def test_lines_are_read_by_duckdb_and_polars(database, tmp_path):
    import polars as pl

    database.execute(TABLE)
    pipeline, files = written(database, tmp_path, "jsonl")
    database.execute(ROW)
    pipeline.deliver("DELETE FROM kinds WHERE id = 2")
    spoil(files, "jsonl.gz")
    columns = "{key: 'JSON', value: 'JSON'}"
    rows = by_duckdb(
        "SELECT value->>'op' AS op, (value->'after'->>'id')::bigint AS id, value->'after'->>'t' AS t"
        f" FROM read_json('{files}/table=*/date=*/*.jsonl.gz', hive_partitioning = true,"
        f" columns = {columns}) WHERE \"table\" = 'public.kinds' AND date < '{FAR}'"
        " AND value IS NOT NULL"
    )
    text = EXPECTED["t"]
    assert [tuple(row.values()) for row in rows] == [
        ("c", 1, text),
        ("c", 2, None),
        ("d", None, None),
    ]
    after = pl.Struct({"id": pl.Int64, "t": pl.String, "b": pl.Boolean, "a": pl.List(pl.Int32)})
    lazy = pl.scan_ndjson(
        f"{files}/table=public.kinds/date=2???-??-??/*.jsonl.gz",
        schema={"value": pl.Struct({"op": pl.String, "after": after})},
    )
    (files / "table=public.kinds" / f"date={FAR}" / "0000000099-0-0001.jsonl.gz").unlink()
    first, *_, tombstone = lazy.collect()["value"].to_list()
    assert first == {"op": "c", "after": {"id": 1, "t": text, "b": True, "a": [1, None, 3]}}
    assert tombstone is None


def test_the_queries_of_the_page_give_what_it_says(database, tmp_path, monkeypatch):
    """Of a table that has got a column, a new key, a delete and a truncate meanwhile."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric(10, 2), note text)")
    pipeline, _files = written(database, tmp_path, "parquet")
    pipeline.deliver(
        "INSERT INTO orders VALUES (9, 9, 'gone')",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')",
    )
    pipeline.deliver(
        "ALTER TABLE orders ADD paid bool",
        "UPDATE orders SET total = 11, paid = true WHERE id = 1",
        "UPDATE orders SET id = 4 WHERE id = 3",
        "DELETE FROM orders WHERE id = 2",
    )
    expected = database.execute("SELECT id, total, paid FROM orders ORDER BY id")
    monkeypatch.chdir(tmp_path)
    day, now = (part.partition("```")[0] for part in PAGE.read_text().split("```sql\n")[1:])
    (first, *_) = sorted((tmp_path / "lake/orders/table=public.orders").iterdir())
    today = first.name.removeprefix("date=")
    ((count,),) = by_duckdb(day.replace("2026-03-01", today), rows=False)
    assert count == 6, "inserts and updates of one day"
    assert [(row["id"], row["total"], row["paid"]) for row in by_duckdb(now)] == expected
    for program in ("polars_rows.py", "pyarrow_rows.py"):
        names = runpy.run_path(str(EXAMPLES / program))
        assert [(r["id"], r["total"], r["paid"]) for r in names["current"]] == expected
