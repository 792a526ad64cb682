"""Files of Delta tables that the driver writes without Spark: Spark reads from them what was written."""

import datetime
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig, folder_of
from tests.harness.spark_cost import counted

from waltap_spark.formats import delta as delta_format
from waltap_spark.formats.small_files.delta import DeltaTransaction
from waltap_spark.state.output import TargetTable

LEFT = relation("public.left", [("id", "int4"), ("amount", "int8"), ("note", "text")])

UTC = datetime.UTC

COLUMNS: Final = {
    "id": ("int", pa.int32()),
    "b": ("tinyint", pa.int8()),
    "s": ("smallint", pa.int16()),
    "l": ("bigint", pa.int64()),
    "f": ("float", pa.float32()),
    "d": ("double", pa.float64()),
    "t": ("string", pa.string()),
    "x": ("binary", pa.binary()),
    "o": ("boolean", pa.bool_()),
    "day": ("date", pa.date32()),
    "at": ("timestamp", pa.timestamp("us", "UTC")),
    "local": ("timestamp_ntz", pa.timestamp("us")),
    "small": ("decimal(9,2)", pa.decimal128(9, 2)),
    "mid": ("decimal(18,4)", pa.decimal128(18, 4)),
    "wide": ("decimal(38,10)", pa.decimal128(38, 10)),
    "a`b.c": ("array<string>", pa.list_(pa.string())),
    "m": ("map<string, int>", pa.map_(pa.string(), pa.int32())),
    "r": (
        "struct<`x y`: int, inner: struct<z: array<struct<q: decimal(5,1)>>>>",
        pa.struct(
            [
                ("x y", pa.int32()),
                (
                    "inner",
                    pa.struct([("z", pa.list_(pa.struct([("q", pa.decimal128(5, 1))])))]),
                ),
            ]
        ),
    ),
}
"""Name → type in SQL, type in Arrow."""

VALUES: Final[dict[str, list[Any]]] = {
    "b": [-128, 127, None, 0],
    "s": [-32768, 32767, None, 0],
    "l": [-(2**63), 2**63 - 1, None, 0],
    "f": [float("nan"), 0.1, None, -0.0],
    "d": [float("-inf"), float("inf"), None, -0.0],
    "t": ["", "é" * 40 + "\U0001d11e", None, "it's \\ \" \n"],
    "x": [b"", b"\x00\xff", None, b"x" * 100],
    "o": [True, False, None, True],
    "day": [
        datetime.date(1, 1, 1),
        datetime.date(9999, 12, 31),
        None,
        datetime.date(1582, 10, 4),
    ],
    "at": [
        datetime.datetime(1000, 1, 1, tzinfo=UTC),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        None,
        datetime.datetime(1969, 12, 31, 23, 59, 59, 1, UTC),
    ],
    "local": [
        datetime.datetime(1900, 1, 1, 0, 0, 0, 1),
        datetime.datetime(2026, 6, 1, 12, 0, 0, 999999),
        None,
        datetime.datetime(1970, 1, 1),
    ],
    "small": [Decimal("-9999999.99"), Decimal("9999999.99"), None, Decimal("0.01")],
    "mid": [Decimal("-12345678901234.5678"), Decimal("0.0001"), None, Decimal(0)],
    "wide": [
        Decimal("-9999999999999999999999999999.9999999999"),
        Decimal("9999999999999999999999999999.9999999999"),
        None,
        Decimal("0.0000000001"),
    ],
    "a`b.c": [[], ["a", None, ""], None, ["x"]],
    "m": [[], [("a", 1), ("b", None)], None, [("", 0)]],
    "r": [
        {"x y": 1, "inner": {"z": [{"q": Decimal("1.5")}, None]}},
        {"x y": None, "inner": None},
        None,
        {"x y": 2, "inner": {"z": []}},
    ],
}
SKIPPED: Final = [name for name in VALUES if name not in ("a`b.c", "m", "r")]
"""Columns whose values a condition can name."""


@pytest.fixture
def rig(delta, tmp_path) -> Rig:
    return Rig(tmp_path, delta, "delta", parallel=2)


def many(count: int = 4) -> pa.Table:
    values = {"id": list(range(count)), **{name: each[:count] for name, each in VALUES.items()}}
    return pa.table({name: pa.array(values[name], kind) for name, (_sql, kind) in COLUMNS.items()})


def made(rig: Rig, name: str, columns: str, properties: str = "") -> TargetTable:
    """Make a table as the format does; ``properties`` may be more."""
    at = f"delta.`{rig.output.uri('tables/' + name)}`"
    own = delta_format.table_properties(rig.spark, at).removesuffix(")")
    rig.spark.sql(f"CREATE TABLE {at} ({columns}) USING delta {own}{properties})")
    return TargetTable(at=at)


def listed() -> str:
    return ", ".join(f"`{name.replace('`', '``')}` {sql}" for name, (sql, _) in COLUMNS.items())


def streamed(rig: Rig, target: TargetTable, folder: Path) -> list[int]:
    """Have a stream go on with a copy of a table; return the copy's keys."""
    query = (
        rig.spark.readStream.format("delta").load(str(folder_of(target)))
        .writeStream.format("delta").option("checkpointLocation", str(folder / "cp"))
        .trigger(availableNow=True).start(str(folder / "copy"))
    )  # fmt: skip
    query.awaitTermination()
    copy = rig.spark.read.format("delta").load(str(folder / "copy"))
    return sorted(row.id for row in copy.select("id").collect())


def test_every_type_reads_back_as_spark_wrote_it_and_no_row_is_skipped(rig):
    """A file of each row, so that statistics of one row decide, and one of all rows."""
    form, rows = rig.applier.format, many()
    ours, theirs = made(rig, "ours", listed()), made(rig, "theirs", listed())
    frame = rig.spark.createDataFrame(rows, rig.spark.table(ours.at).schema)
    for part in (rows, *(rows.slice(n, 1) for n in range(rows.num_rows))):
        with counted(rig.spark) as cost:
            assert form.write_here(rig.spark, ours, part, replaces=False)
        assert not cost.data_jobs
    frame.write.format("delta").mode("append").save(theirs.at.split("`")[1])
    texts = [f"cast(`{n.replace('`', '``')}` as string)" for n in COLUMNS]
    found, wanted = (
        sorted(map(tuple, rig.spark.table(each.at).selectExpr(*texts).collect()), key=str)
        for each in (ours, theirs)
    )
    assert found == [row for row in wanted for _each in range(2)]
    assert len(found) == 8
    there = rig.spark.table(ours.at)
    values = frame.selectExpr("id", *(f"cast(`{name}` as string) as `{name}`" for name in SKIPPED))
    bounded = _bounded(rig, ours, 1 + rows.num_rows)
    for row in values.collect():
        groups: dict[object, list[str]] = defaultdict(list)
        for name in SKIPPED:
            value = rows.column(name)[row.id].as_py()
            has = bounded[0][name], bounded[1 + row.id][name]
            groups[has].append(_equals(name, row[name], value))
        for each in groups.values():
            condition = " AND ".join([f"id = {row.id}", *each])
            assert there.where(condition).count() == 2, condition


def _bounded(rig: Rig, target: TargetTable, files: int) -> list[dict[str, tuple[bool, bool]]]:
    """Return of each file, which columns have a least and a greatest value in its statistics.

    Delta skips no file that lacks one of those that a query is about: conditions on columns that are alike in this
    can share a query, and each still decides alone.
    """
    path = target.at.split("`")[1]
    schema = DeltaTransaction(rig.spark, path).schema
    assert schema is not None
    found = []
    for version in range(1, files + 1):
        log = folder_of(target) / "_delta_log" / f"{version:020d}.json"
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        stats = next(json.loads(each["add"]["stats"]) for each in entries if "add" in each)
        least, greatest = stats["minValues"], stats["maxValues"]
        stored = zip(COLUMNS, schema.physical.names, strict=True)
        found.append({name: (key in least, key in greatest) for name, key in stored})
    assert any(any(each) for each in found[0].values())
    return found


def _equals(name: str, text: str | None, value: object) -> str:
    if text is None:
        return f"`{name}` IS NULL"
    if isinstance(value, bytes):
        return f"`{name}` = unhex('{value.hex()}')"
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"`{name}` = CAST('{escaped}' AS {COLUMNS[name][0]})"


UNUSUAL: Final = [
    *(
        ("id int", f", 'delta.{name}' = '{value}'")
        for name, value in (
            ("enableChangeDataFeed", "true"), ("enableRowTracking", "true"), ("enableInCommitTimestamps", "true"),
            ("appendOnly", "true"), ("dataSkippingNumIndexedCols", "0"), ("checkpointPolicy", "v2"),
        )
    ),
    ("id int NOT NULL", ""), ("id int, v variant", ""), ("id int, v char(3)", ""),
]  # fmt: skip
"""Columns and properties of tables that Spark has to write."""


def test_a_table_with_other_properties_or_columns_is_written_by_spark(rig):
    rows = pa.table({"id": pa.array([1], pa.int32())})

    def is_written_here(name: str, *given: str) -> bool:
        return rig.applier.format.write_here(
            rig.spark, made(rig, name, *given), rows, replaces=False
        )

    assert is_written_here("taken", "id int")
    for number, given in enumerate(UNUSUAL):
        assert not is_written_here(f"refused{number}", *given), given


def test_rows_of_another_type_or_with_other_columns_are_written_by_spark(rig):
    target, form = made(rig, "t", "id int, v string"), rig.applier.format
    assert not form.write_here(
        rig.spark, target, pa.table({"id": pa.array([1], pa.int64())}), replaces=False
    )
    more = pa.table({"id": pa.array([1], pa.int32()), "w": pa.array(["x"])})
    assert not form.write_here(rig.spark, target, more, replaces=False)
    for clause in ("CLUSTER BY (id)", "PARTITIONED BY (id)"):
        at = target.at.replace("/t`", f"/{clause[:3]}`")
        own = delta_format.table_properties(rig.spark, at)
        rig.spark.sql(f"CREATE TABLE {at} (id int, v string) USING delta {clause} {own}")
        rows = pa.table({"id": pa.array([1], pa.int32())})
        assert not form.write_here(rig.spark, TargetTable(at=at), rows, replaces=False)
