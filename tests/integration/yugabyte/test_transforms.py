"""Scenarios 17 and 18: Debezium's transforms for YugabyteDB, by their Java names, on double A."""

from tests.harness.yugabyte.pipeline import YugabytePipeline

PACKAGE = "io.debezium.connector.postgresql.transforms"


def run(pipeline: YugabytePipeline, kind: str) -> None:
    pipeline.tables = {"transforms": [{"type": kind}]}
    database = pipeline.server.database
    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1, 'a', 10)")
        database.execute("UPDATE t SET aura = 99")
        database.execute("UPDATE t SET aura = NULL")
        database.execute("DELETE FROM t")
        database.execute("INSERT INTO t VALUES (2, 'b', 2)")
        run.until(lambda: any(r["key"] == {"id": 2} for r in pipeline.records()), "the last row")


def test_scenario_17_pgcompatible(pipeline):
    run(pipeline, f"{PACKAGE}.yugabytedb.PGCompatible")
    events = pipeline.events()
    assert [event[1] for event in events[:4]] == [{"id": 1}] * 4
    assert [event[3] for event in events[:3]] == [
        {"id": 1, "name": "a", "aura": 10},
        {"id": 1, "name": None, "aura": 99},
        {"id": 1, "name": None, "aura": None},
    ]
    assert events[3][2:] == ({"id": 1, "name": None, "aura": None}, None)
    assert pipeline.records()[4]["value"] is None


def test_scenario_18_new_record_state_leaves_out_what_was_not_sent(pipeline):
    run(pipeline, f"{PACKAGE}.YBExtractNewRecordState")
    assert [record["value"] for record in pipeline.records()[:4]] == [
        {"id": 1, "name": "a", "aura": 10},
        {"id": 1, "aura": 99},
        {"id": 1, "aura": None},
        None,
    ]
