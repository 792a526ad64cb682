"""Tables of Spark that follow topics: what a process does that reads them, life by life."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.harness.kafka import IN_ORDER, create
from tests.harness.servers.kafka import Kafka

from waltap_spark.apply.applier import OutputApplier
from waltap_spark.formats.choice import PARQUET, FormatChoice
from waltap_spark.kafka import KafkaFeed, KafkaTopics
from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.state.output import SparkOutput


class Reader:
    """Topics, and the tables that follow; `pull` is one life of a process."""

    def __init__(
        self, spark: Any, folder: Path, topics: KafkaTopics, table_format: str = PARQUET
    ) -> None:
        self.spark, self.folder, self.topics = prepare(spark), folder, topics
        self.choice = FormatChoice(table_format)
        spark.conf.set("spark.sql.timeType.enabled", "true")  # plans are checked in any session

    def feed(self) -> KafkaFeed:
        return KafkaFeed(self.spark, self.topics, str(self.folder / "log"))

    def pull(self) -> int:
        """Take and apply what there is; return the rows."""
        rows = 0
        with self.feed() as feed:
            output = SparkOutput(str(self.folder / "out"))
            applier = OutputApplier(self.spark, feed.log, output, choice=self.choice)
            applier.open()
            try:
                while found := feed.pull():
                    rows += found.rows
                    applier.apply(list(feed.log.manifests(applier.state.log_position)))
            finally:
                applier.close()
        return rows

    def frame(
        self, table: str, schema: str = "inventory", *, allow_stale: bool | None = None
    ) -> Any:
        tables = LiveTables(self.spark, SparkOutput(str(self.folder / "out")))
        return tables.current(f"{schema}.{table}", allow_stale=allow_stale)

    def rows(
        self, table: str, schema: str = "inventory", order: str = "id"
    ) -> list[tuple[Any, ...]]:
        frame = self.frame(table, schema)  # sorting it there takes another job
        at = frame.columns.index(order)
        return sorted(map(tuple, frame.collect()), key=lambda row: row[at])


class TopicReader(Reader):
    """A topic of one's own, whose records a test writes, and the tables that follow it."""

    def __init__(
        self,
        kafka: Kafka,
        spark: Any,
        folder: Path,
        partitions: int = 1,
        table_format: str = PARQUET,
        **options: Any,
    ) -> None:
        self.name, self._kafka = kafka.topic_name(), kafka
        create(kafka.bootstrap, NewTopic(self.name, partitions))
        topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(self.name,), **options)
        super().__init__(spark, folder, topics, table_format)

    def write(self, *records: tuple[Any, ...]) -> None:
        produce(self._kafka, self.name, *records)

    def read_with(self, **options: Any) -> None:
        """Have the next pull read with other options."""
        self.topics = replace(self.topics, **options)


MakeTopic = Callable[..., TopicReader]


@pytest.fixture
def topic(kafka: Kafka, spark_of_topics: Any, tmp_path: Path) -> MakeTopic:
    """Return what makes a topic: its partitions, the format of its tables, options of `KafkaTopics`."""
    return partial(TopicReader, kafka, spark_of_topics, tmp_path)


def event(
    op: str, lsn: int, before: Any, after: Any, commit: int | None = None, **source: Any
) -> bytes:
    """Return an event as Debezium writes it without schemas."""
    sequence = json.dumps([None if commit is None else str(commit), str(lsn)])
    own = {"schema": "inventory", "table": "items", "lsn": lsn, "sequence": sequence, "txId": 5,
           "ts_ms": 1_700_000_000_000, "snapshot": "false", "connector": "postgresql"}  # fmt: skip
    body = {"before": before, "after": after, "source": own | source, "op": op, "ts_ms": 1}
    return json.dumps(body).encode()


def produce(kafka: Kafka, topic: str, *records: tuple[Any, ...]) -> None:
    """Write records: key, value, and if they are not 0 and none partition and names of headers."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, **IN_ORDER})
    for key, value, *more in records:
        producer.produce(
            topic, value, None if key is None else json.dumps(key).encode(),
            partition=more[0] if more else 0,
            headers=[(name, b"{}") for name in more[1:]],
        )  # fmt: skip
    assert producer.flush(120) == 0
