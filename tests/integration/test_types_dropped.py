"""A type that is dropped before values of it are decoded: they are told, as text."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

DECODERS: dict[str, dict[str, Any]] = {
    "pgoutput": {"plugin.name": "pgoutput"},
    "pgoutput binary": {"plugin.name": "pgoutput", "pgoutput.binary": True},
    "wal2json": {"plugin.name": "wal2json"},
    "wal2json 1": {"plugin.name": "wal2json", "wal2json.format-version": "1"},
    "decoderbufs": {"plugin.name": "decoderbufs"},
}


@pytest.fixture(params=list(DECODERS))
def decoder(request: pytest.FixtureRequest) -> dict[str, Any]:
    return DECODERS[request.param]


def test_values_of_a_type_that_nobody_knows_any_more_are_text(
    database: Database, tmp_path: Path, decoder: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    out = tmp_path / "out"
    pipeline = PipelineRig(
        database,
        tmp_path,
        {"sink.type": "jsonl", "sink.path": str(out), "topic.prefix": "x", **decoder},
    )
    pipeline.catch_up()
    database.execute("CREATE TYPE mood AS ENUM ('fine')")
    database.execute("ALTER TABLE t ADD m mood, ADD ms mood[]")
    database.execute("INSERT INTO t VALUES (1, 'fine', '{fine}')")
    database.execute("ALTER TABLE t DROP m, DROP ms")
    database.execute("DROP TYPE mood")
    pipeline.catch_up()
    (after,) = [
        record["value"]["after"]
        for record in map(json.loads, out.read_text().splitlines())
        if record["value"]["op"] == "c"
    ]
    assert (after["id"], after["m"]) == (1, "fine")
    assert after["ms"] == "{fine}" or "pgoutput.binary" in decoder
    assert "type of a column was dropped" in caplog.text
