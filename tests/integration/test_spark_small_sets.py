"""Few rows are written without Spark: Spark reads the same from them as from what it wrote itself."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.harness.spark import Rig
from tests.integration.test_spark_applier import EVENTS, PEOPLE

from waltap.files.store import FileStore
from waltap_spark import small_sets
from waltap_spark.live import LiveTables
from waltap_spark.output import FILE
from waltap_spark.schema import types_of
from waltap_spark.session import prepare
from waltap_spark.small_sets import stored_types

pytestmark = pytest.mark.usefixtures("quick_plans")

KINDS = {
    "b": pa.bool_(), "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(),
    "f32": pa.float32(), "f64": pa.float64(), "text": pa.string(), "bytes": pa.binary(),
    "day": pa.date32(), "clock": pa.time64("us"), "ts": pa.timestamp("us"),
    "tz": pa.timestamp("us", tz="UTC"), "n": pa.decimal128(38, 10), "money": pa.decimal128(19, 2),
    "list": pa.list_(pa.int32()), "lists": pa.list_(pa.timestamp("us", tz="UTC")),
    "map": pa.map_(pa.string(), pa.string()),
    "point": pa.struct([("x", pa.float64()), ("y", pa.float64())]),
}  # fmt: skip


def test_types_are_those_that_spark_infers(spark: Any, tmp_path: Path) -> None:
    rows = pa.table({name: pa.array([None], kind) for name, kind in KINDS.items()})
    parquet.write_table(rows, tmp_path / "every.parquet")
    inferred = types_of(prepare(spark).read.parquet(str(tmp_path / "every.parquet")).schema)
    assert stored_types(FileStore(str(tmp_path)), "every.parquet") == inferred


@pytest.mark.parametrize("most", [0, 20_000], ids=["spark", "alone"])
def test_both_ways_leave_the_sources_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Every operation, two schemas, sets that are merged and folded."""
    monkeypatch.setattr(small_sets, "SMALL_ROWS", most)
    rig = Rig(tmp_path, spark, fold_sets=4, merge_sets=2, fold_rows=0, grace_s=0.0)
    rig.db.insert(PEOPLE, ["1", "Ann", "long"], ["2", "Bob", None])
    rig.db.insert(EVENTS, ["a", "1.5"], ["a", "-0.0"])
    rig.commit()
    rig.apply()
    for number in range(3, 6):
        rig.db.insert(PEOPLE, [str(number), "x", "y"])
        rig.db.update(PEOPLE, [str(number - 1)], name=f"n{number}", unsent=["note"])
        rig.db.insert(EVENTS, ["b", None])
        rig.commit()
        rig.apply()
    rig.db.delete(PEOPLE, ["2"])
    rig.db.update(PEOPLE, ["1"], id="10", unsent=["note"])
    rig.db.delete(EVENTS, ["a", "1.5"])
    rig.commit()
    rig.apply()
    rig.check(PEOPLE, EVENTS)
    assert LiveTables(rig.spark, rig.output).changes("people").count() == 2 + 6 + 3
    files = [each.path.endswith(FILE) for each in rig.output.table("people").changes]
    assert all(files) if most else not any(files)
    rig.applier.close()
    rig.sink.close()
