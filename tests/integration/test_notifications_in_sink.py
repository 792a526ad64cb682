"""Notifications among the records of the sink: the channel ``sink``, in order and over the end of a run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.servers.postgres import Database

TOPIC = "shop.notifications"


@pytest.fixture
def profile(database: Database, tmp_path: Path) -> dict[str, Any]:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 5);"
    )
    return {
        **database.properties(),
        "slot.name": database.name,
        "publication.name": database.name,
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": TOPIC,
    }


def run(folder: Path, properties: dict[str, Any], *options: str, sink: str = "jsonl") -> Any:
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in properties.items()]
    text = ["[source]", 'type = "postgres"', *lines, "[sink]", f'type = "{sink}"', 'path = "out"']
    (folder / "p.toml").write_text("\n".join(text))
    return subprocess.run(
        [sys.executable, "-m", "waltap", "run", "p.toml", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def told(folder: Path) -> list[str]:
    """Return the records in order: rows by their ids, notifications by their types."""
    records = [json.loads(line) for line in (folder / "out").read_text().splitlines()]
    for record in records:
        if record["topic"] == TOPIC:
            assert record["key"] == {"id": record["value"]["id"]}
            assert record["value"]["additional_data"]["connector_name"] == "p"
    return [
        record["value"]["type"] if record["topic"] == TOPIC else str(record["key"]["id"])
        for record in records
    ]


def test_they_stand_between_the_rows_that_they_are_about(
    profile: dict[str, Any], tmp_path: Path
) -> None:
    done = run(tmp_path, profile, "--until-idle", "0.3")
    assert done.returncode == 0, done.stderr
    rows = [str(number) for number in range(1, 6)]
    assert told(tmp_path) == [
        "STARTED", "IN_PROGRESS", *rows, "TABLE_SCAN_COMPLETED", "COMPLETED",
    ]  # fmt: skip
    again = run(tmp_path, profile, "--until-idle", "0.3")
    assert again.returncode == 0, again.stderr
    assert told(tmp_path)[9:] == ["SKIPPED"]


def test_without_a_stream_the_last_one_arrives_too(profile: dict[str, Any], tmp_path: Path) -> None:
    done = run(tmp_path, {**profile, "snapshot.mode": "initial_only"})
    assert done.returncode == 0, done.stderr
    assert told(tmp_path)[-2:] == ["TABLE_SCAN_COMPLETED", "COMPLETED"]


def test_a_topic_is_needed(profile: dict[str, Any], tmp_path: Path) -> None:
    del profile["notification.sink.topic.name"]
    done = run(tmp_path, profile)
    assert done.returncode == 2
    assert "notification.sink.topic.name" in done.stderr


def test_a_sink_without_records_is_refused(profile: dict[str, Any], tmp_path: Path) -> None:
    done = run(tmp_path, profile, sink="changelog")
    assert done.returncode != 0
    assert "takes the changes themselves" in " ".join(done.stderr.split())
