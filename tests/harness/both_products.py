"""Debezium and waltap produce one workload of one database to the same topics of one broker.

Waltap begins with its snapshot and ends, Debezium takes its own and streams the workload, then waltap
streams the same transactions: marks show which records are whose, a consumer does not.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Message
from confluent_kafka.admin import NewTopic
from tests.differential.engines import Debezium
from tests.harness.kafka import create, ends
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database

PARTITIONS = 5
IDLE_SECONDS = 0.5
DELIVERY_SECONDS = 120.0
TABLES = ("account", "line", "event")
SETUP = """
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE account (
  id int PRIMARY KEY, owner text NOT NULL DEFAULT 'nobody', balance numeric(12, 2), rate double precision,
  mood mood, tags text[], seen timestamptz, born date, photo bytea, about jsonb, token uuid
);
CREATE TABLE line (shop text, number bigint, amount numeric, at timestamp(3), PRIMARY KEY (shop, number));
ALTER TABLE line REPLICA IDENTITY FULL;
CREATE TABLE event (what text, at time);
ALTER TABLE event REPLICA IDENTITY FULL;
CREATE TABLE last (id int PRIMARY KEY);
INSERT INTO account SELECT n, 'owner ' || n, n * 1.25, n / 3.0, 'glad', ARRAY['a', NULL, 'ü' || n],
  timestamptz '2024-02-29 12:00:00.123456+02' + n * interval '1 day', date '1969-12-31' + n,
  decode('00ff' || lpad(n::text, 4, '0'), 'hex'), jsonb_build_object('n', n),
  '0e37df36-f698-11e6-8dd4-cb9ced3df976' FROM generate_series(1, {rows}) n;
INSERT INTO line SELECT 'Zürich 東京', n, n / 7.0, timestamp '2020-01-01 00:00:00.5' FROM generate_series(1, {rows}) n;
INSERT INTO event SELECT 'before ' || n, '23:59:59.999999' FROM generate_series(1, 3) n;
"""
WORKLOAD = (
    "INSERT INTO account (id) SELECT {rows} + n FROM generate_series(1, {rows}) n",
    "UPDATE account SET balance = -balance, mood = 'sad', about = NULL WHERE id % 3 = 0",
    "UPDATE account SET id = id + 1000000 WHERE id % 10 = 1",
    "DELETE FROM account WHERE id % 5 = 0",
    "INSERT INTO account (id, owner) SELECT n, 'again' FROM generate_series(5, {rows}, 10) n",
    "UPDATE line SET amount = amount + 0.001, at = NULL WHERE number % 2 = 0",
    "UPDATE line SET shop = 'Bern' WHERE number % 7 = 0",
    "DELETE FROM line WHERE number % 4 = 0",
    "INSERT INTO event SELECT repeat('é', 300) || n, NULL FROM generate_series(1, {rows}) n",
    "INSERT INTO last VALUES (1)",
)


class BothProducts:
    """One story; ``converters`` are both engines' own words for keys and values, ``format_`` is what the
    runner of Debezium calls them. After `play` the topics hold both products' records."""

    def __init__(
        self,
        database: Database,
        kafka: Kafka,
        folder: Path,
        converters: Mapping[str, object],
        format_: str = "json",
        rows: int = 60,
    ) -> None:
        self.database, self._kafka, self._folder = database, kafka, folder
        self._format, self._rows = format_, rows
        self.prefix = kafka.topic_name("both").replace("-", "_")
        self.topics = {table: f"{self.prefix}.public.{table}" for table in TABLES}
        self._last = f"{self.prefix}.public.last"
        database.execute(SETUP.format(rows=rows))
        both = {
            "topic.prefix": self.prefix,
            "plugin.name": "pgoutput",
            "snapshot.mode": "initial",
            **database.properties(),
            **{name: str(value) for name, value in converters.items()},
        }
        self._theirs = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "slot.name": f"{database.name}_debezium",
            "publication.name": "debezium",
            **both,
        }
        sink = {"sink.type": "kafka", "sink.bootstrap.servers": kafka.bootstrap}
        self._pipeline = PipelineRig(database, folder, {**both, **sink})
        self.marks: list[dict[tuple[str, int], int]] = []

    def play(self) -> None:
        """Let both deliver everything."""
        topics = [*self.topics.values(), self._last]
        create(self._kafka.bootstrap, *(NewTopic(topic, PARTITIONS) for topic in topics))
        with self._pipeline.running():
            pass  # its snapshot, and the place where its stream begins
        self._mark()
        debezium = Debezium(
            self._folder / "debezium",
            self._theirs,
            IDLE_SECONDS,
            self._kafka.bootstrap,
            self._format,
        )
        try:
            debezium.wait_ready()
            for statement in WORKLOAD:
                self.database.execute(statement.format(rows=self._rows))
            debezium.wait(
                lambda: any(each["topic"] == self._last for each in debezium.news()),
                DELIVERY_SECONDS,
                "the last row did not come",
            )
            debezium.finish(self.database)
        finally:
            debezium.stop()
        self._mark()
        self._pipeline.catch_up()
        self._mark()

    def of_debezium(self, message: Message) -> bool:
        """Show who wrote ``message``: nothing in it does."""
        before, after = (self._mark_of(message, mark) for mark in self.marks[:2])
        return before <= _offset(message) < after

    def ranges(self, table: str, *, debezium: bool) -> list[tuple[dict[str, int], dict[str, int]]]:
        """Return the offsets (from, to; by partition) between which one product wrote."""
        topic, start = self.topics[table], {str(n): 0 for n in range(PARTITIONS)}
        places = [start] + [{p: mark[topic, int(p)] for p in start} for mark in self.marks]
        spans = list(itertools.pairwise(places))
        return [spans[1]] if debezium else [spans[0], spans[2]]

    def _mark(self) -> None:
        self.marks.append(ends(self._kafka.bootstrap, *self.topics.values()))

    @staticmethod
    def _mark_of(message: Message, mark: Mapping[tuple[str, int], int]) -> int:
        return mark[str(message.topic()), int(message.partition() or 0)]


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
