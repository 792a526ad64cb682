"""Change events from topics of a real broker into Spark's tables: ours and Debezium's, JSON and Avro."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from tests.harness.kafka import create
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database
from tests.harness.servers.registry import Registry
from tests.harness.topics import Reader, event, produce

from waltap_sinks.changelog import ChangeLog
from waltap_spark.kafka import KafkaFeed, KafkaTopics
from waltap_spark.kafka.errors import ColumnsUnknown, EventUnread, OffsetsLost

PLACEHOLDER = "__debezium_unavailable_value"
LONG = "x" * 9000


@pytest.mark.parametrize("form", ["json", "avro"])
def test_events_of_a_database_become_its_tables_over_restarts(
    database: Database,
    kafka: Kafka,
    registry: Registry,
    spark_of_topics: Any,
    tmp_path: Path,
    form: Any,
) -> None:
    """Every kind of value; deletes, moved keys, values that were not sent, a table without key, DDL."""
    database.psql(
        "CREATE TABLE items (id int PRIMARY KEY, n numeric(12,3), wide numeric(38,4), d date, t time,"
        " ts timestamp, tz timestamptz, b bytea, f float8, s smallint, doc jsonb, big text, ok bool);"
        "ALTER TABLE items ALTER big SET STORAGE external;"
        "CREATE TABLE notes (word text); ALTER TABLE notes REPLICA IDENTITY FULL;"
        "INSERT INTO items VALUES (1, -1.250, -12345678901234567890123456789012.5, '2024-02-29', '10:20:30.123456',"
        f" '2024-02-29 23:59:59.999999', '2024-02-29 23:59:59.5+02', '\\x00ff', 1.5, -7, '{{\"a\": 1}}', '{LONG}', true),"
        f" (2, 0.004, 7, '1969-12-31', '00:00:00', '1969-12-31 23:59:59', NULL, NULL, NULL, NULL, NULL, '{LONG}2', false);"
        "INSERT INTO notes VALUES ('a'), ('a'), ('b')"
    )
    prefix = kafka.topic_name().replace("-", "_")
    converter = {
        "json": {"value.converter.schemas.enable": True, "key.converter.schemas.enable": True},
        "avro": {
            f"{side}.{name}": value
            for side in ("key.converter", "value.converter")
            for name, value in {"schema.registry.url": registry.url}.items()
        }
        | {
            f"{side}.converter": "io.confluent.connect.avro.AvroConverter"
            for side in ("key", "value")
        },
    }[form]
    settings = {
        **converter,
        "topic.prefix": prefix,
        "sink.type": "kafka",
        "sink.bootstrap.servers": kafka.bootstrap,
    }
    pipeline = PipelineRig(database, tmp_path, settings)
    pipeline.catch_up()
    topics = tuple(f"{prefix}.public.{name}" for name in ("items", "notes"))
    reader = Reader(
        spark_of_topics, tmp_path, KafkaTopics(
            bootstrap=kafka.bootstrap, topics=topics, form=form, registry=registry.url,
        ),
    )  # fmt: skip
    assert reader.pull() == 5
    log = ChangeLog(str(tmp_path / "log"))
    entries = [entry for manifest in log.manifests() for entry in manifest.tables]
    sizes = [part.unpacked for entry in entries for part in entry.segments]
    assert sum(sizes) >= 2 * len(LONG), "who reads them knows how long they are"
    database.psql(
        "UPDATE items SET n = 5 WHERE id = 1; UPDATE items SET id = 20 WHERE id = 2;"
        "INSERT INTO items (id, ok) VALUES (3, true); DELETE FROM items WHERE id = 3;"
        "INSERT INTO items (id, ok) VALUES (4, true);"
        "DELETE FROM notes WHERE ctid = (SELECT ctid FROM notes WHERE word = 'a' LIMIT 1);"
        "UPDATE notes SET word = 'c' WHERE word = 'b';"
        "ALTER TABLE items ADD more int; INSERT INTO items (id, more) VALUES (5, 55)"
    )
    pipeline.catch_up()
    assert reader.pull() == 10
    assert reader.pull() == 0
    with database.connect() as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        own = connection.execute("SELECT * FROM items ORDER BY id").fetchall()
        words = connection.execute("SELECT word FROM notes").fetchall()
    assert sorted(reader.rows("notes", "public", "word")) == sorted(words)
    found = reader.rows("items", "public")
    assert [row[0] for row in found] == [row[0] for row in own] == [1, 4, 5, 20]
    for mine, theirs in zip(found, own, strict=True):
        assert mine[1:4] == theirs[1:4]
        assert mine[4] == theirs[4] or str(mine[4]) == str(theirs[4])
        assert mine[5] == theirs[5]
        assert (mine[6] is None) == (theirs[6] is None)
        assert mine[7] == theirs[7]
        assert mine[8:10] == theirs[8:10]
        assert (None if mine[10] is None else json.loads(mine[10])) == theirs[10]
        assert mine[11:] == theirs[11:]


def test_events_without_schema_that_come_again_and_what_is_refused(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """Columns are declared; a connector that repeats itself after a restart changes nothing; a truncate;
    interleaved transactions go by their commits."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1))
    row = {"id": 1, "name": "bolt", "made": 19782, "raw": base64.b64encode(b"\1").decode()}
    produce(
        kafka, topic,
        ({"id": 9}, event("c", 50, None, {**row, "id": 9}, 40)),
        (None, event("t", 60, None, None, 55)),
        ({"id": 1}, event("c", 100, None, row, 90)),
        ({"id": 2}, event("c", 95, None, {**row, "id": 2}, 110)),  # began before, committed after
        ({"id": 1}, event("u", 120, None, {**row, "name": PLACEHOLDER, "raw": None}, 115)),
    )  # fmt: skip
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,))
    with pytest.raises(ColumnsUnknown, match=r"WT-5253.*inventory\.items have no schema"):
        Reader(spark_of_topics, tmp_path, topics).pull()
    columns = {"inventory.items": "id INT, name STRING, made DATE, raw BINARY"}
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), columns=columns)
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 5
    again = (
        ({"id": 1}, event("c", 100, None, row, 90)),
        ({"id": 2}, event("c", 95, None, {**row, "id": 2}, 110)),
        ({"id": 1}, event("u", 120, None, {**row, "name": PLACEHOLDER, "raw": None}, 115)),
        ({"id": 2}, event("d", 130, {"id": 2, "name": ""}, None, 125)),
        ({"id": 2}, None),
    )
    produce(kafka, topic, *again)
    assert reader.pull() == 2  # the last of those that were there may be another of its LSN
    ((number, name, made, raw),) = reader.rows("items")
    assert (number, name, str(made), raw) == (1, "bolt", "2024-02-29", None)


COLUMNS = {"inventory.items": "id INT, name STRING, made DATE, at TIMESTAMP_NTZ"}


def test_bad_records_stop_the_feed_or_are_kept_and_the_others_go_on(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    topic, other = kafka.topic_name(), kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1), NewTopic(other, 1))
    produce(
        kafka, topic,
        ({"id": 1}, event("c", 100, None, {"id": 1, "name": "good", "at": "9223372036825200000"}, 90)),
        ({"id": 1}, b'{"id": 1, "name": "a row, no event"}'),
        ({"id": 2}, event("c", 110, None, {"id": "two", "name": "no number"}, 90)),
        ({"id": 3}, event("x", 120, None, {"id": 3}, 90)),
        ({"id": 4}, event("c", 130, None, None, 90)),
        (None, b"\xff\xfe"),
        ({"id": 5}, event("c", 140, None, {"id": 5, "name": "good too", "made": "soon"}, 90)),
        ({"id": 6}, event("c", 150, None, {"id": 6, "name": "good at last"}, 90)),
    )  # fmt: skip
    wanted = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS)
    reader = Reader(spark_of_topics, tmp_path, wanted)
    for _attempt in range(2):
        with pytest.raises(EventUnread, match=rf"WT-5252.*offset 1 of partition 0 of {topic}"):
            reader.pull()
    reader.topics = replace(wanted, bad="keep", most_bad=4)
    with pytest.raises(EventUnread, match="more than 4 records"):
        reader.pull()
    reader.topics = replace(wanted, bad="keep")
    assert reader.pull() == 2
    assert [row[:2] for row in reader.rows("items")] == [(1, "good"), (6, "good at last")]
    kept = reader.feed().bad_records()
    assert sorted((each["offset"], each["reason"]) for each in kept) == [
        (1, "it is no change event"),
        (2, "its value of column id cannot be read"),
        (3, "its operation is none of c, r, u, d, t, m"),
        (4, "it brings no row"),
        (5, "it is no change event"),
        (6, "its value of column made cannot be read"),
    ]
    shown = {each["offset"]: each["value"] for each in kept}
    assert shown[1] == '{"id": 1, "name": "a row, no event"}'
    assert shown[5] == {"base64": "//4="}
    lost = KafkaFeed(spark_of_topics, replace(wanted, topics=(other,)), str(tmp_path / "log"))
    lost.open()
    lost._taken[other, 0] = 7
    with pytest.raises(OffsetsLost, match=r"WT-5251.*from 0 to 0, and 7 is the next"):
        lost.pull()
    lost.close()


def test_keys_that_move_between_partitions_take_along_what_was_not_sent(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """Both events are taken together, whatever the portions; where one is nowhere, nothing is made null in
    silence. A truncate has no order with other partitions."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 2))
    away, here = "__debezium.newkey", "__debezium.oldkey"
    moved = {"id": 2, "name": PLACEHOLDER, "made": 1}
    produce(
        kafka, topic,
        ({"id": 1}, event("c", 100, None, {"id": 1, "name": "old", "made": 1}, 90), 0),
        ({"id": 3}, event("c", 104, None, {"id": 3, "name": "three", "made": 1}, 90), 1),
        ({"id": 4}, event("c", 105, None, {"id": 4, "name": "four", "made": 1}, 90), 1),
        ({"id": 1}, event("d", 120, {"id": 1}, None, 115), 0, away),
    )  # fmt: skip
    topics = KafkaTopics(
        bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS, records=2, patience_s=3600
    )
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 3  # the delete waits
    assert [row[0] for row in reader.rows("items")] == [1, 3, 4]
    produce(
        kafka, topic,
        ({"id": 1}, None, 0),
        ({"id": 3}, event("u", 110, None, {"id": 3, "name": "tres", "made": 1}, 90), 1),
        ({"id": 2}, event("c", 120, None, moved, 115), 1, here),
    )  # fmt: skip
    assert reader.pull() == 3
    assert [row[:2] for row in reader.rows("items")] == [(2, "old"), (3, "tres"), (4, "four")]
    produce(kafka, topic, ({"id": 7}, event("c", 130, None, moved | {"id": 7}, 125), 1, here))
    assert reader.pull() == 0
    reader.topics = replace(topics, patience_s=0)
    with pytest.raises(EventUnread, match="its key changed, and the event of the old key"):
        reader.pull()
    produce(kafka, topic, (None, event("t", 140, None, None, 135), 0))
    reader.topics = replace(topics, patience_s=0, bad="keep")
    assert reader.pull() == 0
    assert [each["reason"][:14] for each in reader.feed().bad_records()] == [
        "it is a trunca",
        "its key change",
    ]


def test_the_first_transaction_may_have_begun_before_the_snapshot(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """It has no commit before it, and LSNs on both sides of the snapshot's."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1))
    row = {"id": 1, "name": "read", "made": 1}
    produce(
        kafka, topic,
        ({"id": 1}, event("r", 1000, None, row, snapshot="first")),
        ({"id": 2}, event("r", 1000, None, row | {"id": 2}, snapshot="last")),
        ({"id": 1}, event("u", 900, None, row | {"name": "began before"})),
    )  # fmt: skip
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS)
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 3
    later = (
        ({"id": 2}, event("u", 1008, None, row | {"id": 2, "name": "behind it"})),
        ({"id": 1}, event("u", 950, None, row | {"name": "next"}, 1016)),
    )
    produce(kafka, topic, *later)
    assert reader.pull() == 2
    produce(kafka, topic, *later)  # the connector was restarted
    assert reader.pull() == 1  # the very last may be another of its LSN
    assert [row[:2] for row in reader.rows("items")] == [(1, "next"), (2, "behind it")]
