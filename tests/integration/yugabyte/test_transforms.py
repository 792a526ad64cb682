"""Scenarios 17 and 18: Debezium's transforms for YugabyteDB, by their Java names, on double A."""

import pytest
from tests.harness.yugabyte.pipeline import YugabytePipeline

from waltap.config.layers import read_tables
from waltap.config.resolve import resolve

PACKAGE = "io.debezium.connector.postgresql.transforms"


class Transformed(YugabytePipeline):
    """With one transform, by the name ``kind``."""

    kind = ""

    def profile(self, host, **settings):
        chosen = {k: v for k, v in (self.settings | settings).items() if v is not None}
        chosen.setdefault("waltap.state.dir", str(self.folder / "state"))
        sink = {k.removeprefix("sink."): chosen.pop(k) for k in list(chosen) if k[:5] == "sink."}
        tables = {
            "name": "p",
            "source": chosen,
            "sink": sink,
            "transforms": [{"type": self.kind}],
        }
        return resolve(read_tables(tables), host)


@pytest.fixture
def transformed(pipeline, tmp_path) -> Transformed:
    return Transformed(pipeline.server, tmp_path)


def run(pipeline: Transformed, kind: str) -> None:
    pipeline.kind = kind
    database = pipeline.server.database
    with pipeline.running() as run:
        database.execute("INSERT INTO t VALUES (1, 'a', 10)")
        database.execute("UPDATE t SET aura = 99")
        database.execute("UPDATE t SET aura = NULL")
        database.execute("DELETE FROM t")
        database.execute("INSERT INTO t VALUES (2, 'b', 2)")
        run.until(lambda: any(r["key"] == {"id": 2} for r in pipeline.records()), "the last row")


@pytest.mark.parametrize("kind", [f"{PACKAGE}.yugabytedb.PGCompatible", "pg-compatible"])
def test_scenario_17_pgcompatible(transformed, kind):
    run(transformed, kind)
    events = transformed.events()
    assert [event[1] for event in events[:4]] == [{"id": 1}] * 4
    assert [event[3] for event in events[:3]] == [
        {"id": 1, "name": "a", "aura": 10},
        {"id": 1, "name": None, "aura": 99},
        {"id": 1, "name": None, "aura": None},
    ]
    assert events[3][2:] == ({"id": 1, "name": None, "aura": None}, None)
    assert transformed.records()[4]["value"] is None


@pytest.mark.parametrize("kind", [f"{PACKAGE}.YBExtractNewRecordState"])
def test_scenario_18_new_record_state_leaves_out_what_was_not_sent(transformed, kind):
    run(transformed, kind)
    assert [record["value"] for record in transformed.records()[:4]] == [
        {"id": 1, "name": "a", "aura": 10},
        {"id": 1, "aura": 99},
        {"id": 1, "aura": None},
        None,
    ]
