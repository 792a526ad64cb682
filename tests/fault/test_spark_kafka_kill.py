"""A driver that follows topics is killed with SIGKILL within a portion: each change comes once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic
from tests.harness.kafka import create
from tests.harness.servers.kafka import Kafka
from tests.harness.topics import Reader, event, produce

from waltap_spark.kafka import KafkaTopics
from waltap_spark.read.live import LiveTables
from waltap_spark.state.output import SparkOutput

PORTION, EACH = 10, 40
"""Records of a partition that a portion takes, and that each of two partitions has."""


def test_a_driver_killed_between_rows_and_offsets_takes_each_change_once(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """When it dies one portion is in the change log alone, and the next is there without a manifest."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 2))
    for partition in (0, 1):
        records = []
        for number in range(EACH):
            key, lsn = partition + 2 * (number % 15), 1000 + 10 * number + partition
            row = {"id": key, "v": number}
            operation = "c" if number < 15 else "u"
            records.append(({"id": key}, event(operation, lsn, None, row, lsn - 5), partition))
        produce(kafka, topic, *records)
    given = {
        "bootstrap": kafka.bootstrap,
        "topics": [topic],
        "columns": {"inventory.items": "id INT, v INT"},
        "records": PORTION,
    }
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.topics_process", tmp_path, json.dumps(given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            text=True, start_new_session=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    try:
        assert process.stdout is not None
        assert "held\n" in process.stdout, (tmp_path / "said").read_text()[-3000:]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    state = SparkOutput(str(tmp_path / "out")).state()
    assert state.rows_applied == 2 * PORTION
    chosen: Any = {**given, "topics": (topic,)}
    reader = Reader(spark_of_topics, tmp_path, KafkaTopics(**chosen))
    with reader.feed() as feed:
        last = feed.log.last()
        assert last.log_position > state.log_position
    assert reader.pull() == 2 * (EACH - 2 * PORTION)
    assert reader.pull() == 0
    history = LiveTables(reader.spark, SparkOutput(str(tmp_path / "out"))).changes(
        "inventory.items"
    )
    seen = sorted((row["id"], row["v"]) for row in history.select("id", "v").collect())
    assert seen == sorted((p + 2 * (n % 15), n) for p in (0, 1) for n in range(EACH))
    newest = {p + 2 * (n % 15): n for p in (0, 1) for n in range(EACH)}
    assert reader.rows("items") == sorted(newest.items())
