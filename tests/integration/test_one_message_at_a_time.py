"""Changes and commits that come one by one: what a pipeline promises does not hang on how the server sends."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.slow_network import one_message_at_a_time

import waltap


@pytest.fixture(autouse=True)
def _slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    one_message_at_a_time(monkeypatch)


def test_changes_come_in_order_once_and_are_confirmed(
    database: Database, pipeline: PipelineRig
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pipeline.running() as run:
        database.execute("INSERT INTO t SELECT generate_series(1, 10)")
        run.until(lambda: len(pipeline.destination.ids("t")) == 10, "the first transaction")
    batches = [batch for batch in pipeline.destination.batches if batch.parts]
    assert len(batches) > 10, "each in a batch of its own, as is the commit"
    database.execute("DELETE FROM t WHERE id > 5")
    pipeline.catch_up()
    assert pipeline.destination.ids("t", "c") == [*range(1, 11)]
    assert pipeline.destination.ids("t", "d") == [*range(6, 11)]
    assert pipeline.offset().sole.position.end_lsn == pipeline.slot_lsns()[0]  # type: ignore[union-attr]


def test_a_loop_acknowledges_what_it_was_given_and_no_commits(
    database: Database, tmp_path: Path
) -> None:
    """A commit that comes behind its change is a batch in which there is nothing: it holds nothing up."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    profile = {
        "name": "loop",
        "source": {
            "type": "postgres",
            **database.properties(),
            "slot.name": "one_" + database.name[-20:],
            "waltap.state.dir": str(tmp_path / "state"),
            "offset.flush.interval.ms": 0,
            "snapshot.mode": "no_data",
        },
    }

    def batches() -> waltap.BatchStream:
        limits = waltap.Limits(until_idle=0.5)
        return waltap.stream(profile, acknowledge="explicit", limits=limits)

    def ids(batch: waltap.StreamedBatch) -> list[Any]:
        return [json.loads(record.key)["id"] for record in batch.records or ()]

    assert list(batches()) == []
    for number in (1, 2, 3, 4):
        database.execute("INSERT INTO t VALUES (%s)", number)
    seen, empty = [], 0
    for batch in batches():
        seen += ids(batch)
        empty += not ids(batch)
        if ids(batch) not in ([], [3]):
            batch.ack()
    assert (seen, empty) == ([1, 2, 3, 4], 4)
    assert [number for batch in batches() for number in ids(batch)] == [3, 4]
