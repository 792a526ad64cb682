"""One workload through the PostgreSQL and the YugabyteDB connector ends in equal Spark tables. Double A.

Verified against a protocol double built from published sources; no YugabyteDB server was run.
"""

from pathlib import Path
from typing import Any

from tests.harness.pipeline import PipelineRig
from tests.harness.yugabyte.pipeline import YugabytePipeline

from waltap_sinks.changelog import ChangeLog
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.config.options import ApplyOptions
from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.state.output import SparkOutput

NAMES = ["id", "name", "aura", "price", "note"]
WORKLOAD = (
    "INSERT INTO t SELECT n, 'n' || n, n, n * 1.25, repeat('long ', 800) FROM generate_series(31, 60) n",
    "UPDATE t SET aura = aura + 1 WHERE id % 3 = 0",
    "UPDATE t SET price = NULL WHERE id % 7 = 0",
    "UPDATE t SET id = id + 1000, name = 'moved' WHERE id % 10 = 1",
    "DELETE FROM t WHERE id % 11 = 0",
    "INSERT INTO t VALUES (5000, 'x', 1, 0.5, NULL); UPDATE t SET aura = NULL WHERE id = 5000",
    "UPDATE t SET note = NULL WHERE id = 5",
    "ALTER TABLE t ADD COLUMN z int",
    "UPDATE t SET z = id WHERE id % 4 = 0",
)
"""Transactions; what CHANGE does not send must keep its value, field by field."""


def spark_rows(spark: Any, folder: Path, log: Path) -> list[tuple[Any, ...]]:
    """Apply a change log and return the table ``t`` as Spark has it."""
    output, changes = SparkOutput(str(folder)), ChangeLog(str(log))
    applier = OutputApplier(prepare(spark), changes, output, ApplyOptions())
    applier.open()
    try:
        applier.apply(list(changes.manifests(applier.state.log_position)))
        frame = LiveTables(spark, output).current("public.t")
        columns = [f"cast({name} as string)" for name in [*NAMES, "z"]]
        return sorted(tuple(row) for row in frame.selectExpr(*columns).collect())
    finally:
        applier.close()


def test_the_same_workload_ends_in_equal_tables(yugabyte, spark, tmp_path):
    database = yugabyte.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, name text, aura int, price float8, note text);"
        "INSERT INTO t SELECT n, 'n' || n, n, n * 1.25, repeat('long ', 800) FROM generate_series(1, 30) n"
    )
    logs = tmp_path / "plain-log", tmp_path / "yugabyte-log"
    sinks = [{"sink.type": "changelog", "sink.path": str(log)} for log in logs]
    plain = PipelineRig(
        database,
        tmp_path / "plain",
        {"publication.autocreate.mode": "filtered", "table.include.list": "public.t", **sinks[0]},
    )
    plain.settings["offset.flush.interval.ms"] = (
        500  # a few commits for Spark, not one for each change
    )
    own = {
        "yb.event.form": None,
        "offset.flush.interval.ms": 500,
        "slot.name": f"{database.name[:55]}_yb",
    }
    ours = YugabytePipeline(yugabyte, tmp_path / "yugabyte", own | sinks[1])
    ours.settings["table.include.list"] = "public.t"
    ours.settings["publication.name"] = f"{database.name[:55]}_yb"
    for folder in ("plain", "yugabyte"):
        (tmp_path / folder).mkdir()
    with plain.running() as one, ours.running() as other:
        for transaction in WORKLOAD:
            database.execute(transaction)
        database.execute("INSERT INTO t (id) VALUES (9999)")
        for run, log in zip((one, other), logs, strict=True):
            run.until(lambda log=log: 9999 in ids(log), "the last row")
    found = [spark_rows(spark, tmp_path / f"{log.name}-out", log) for log in logs]
    listed = ", ".join(f"{name}::text" for name in [*NAMES, "z"])
    rows = database.execute(f"SELECT {listed} FROM t")
    assert len(found[0]) > 50
    assert [row[:3] for row in found[1]] == sorted(tuple(row[:3]) for row in rows)
    assert found[1] == found[0]
    assert yugabyte.refused == []


def ids(log: Path) -> set[int]:
    if not log.exists():
        return set()
    parts = ChangeLog(str(log)).rows("public", "t")
    return {row["id"] for part in parts for row in part.select(["id"]).to_pylist()}
