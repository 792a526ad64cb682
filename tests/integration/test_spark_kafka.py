"""Change events of topics of a real broker in Spark's tables: ours and Debezium's, JSON and Avro, also again and again."""

import base64
import datetime as dt
import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.differential.corpus import CORPORA
from tests.harness.kafka import create
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database
from tests.harness.servers.registry import Registry
from tests.harness.topics import Reader, event, produce

from waltap.changes.transactions.position import parse_lsn
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.manifest import bucket_of
from waltap_spark.kafka import KafkaFeed, KafkaTopics
from waltap_spark.kafka.errors import ColumnsUnknown, EventUnreadable, OffsetsLost

# --- events become tables -------------------------------------------------------------------------

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


ITEMS = {"inventory.items": "id INT, name STRING, made DATE, at TIMESTAMP_NTZ"}


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
    wanted = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), columns=ITEMS)
    reader = Reader(spark_of_topics, tmp_path, wanted)
    for _attempt in range(2):
        with pytest.raises(EventUnreadable, match=rf"WT-5252.*offset 1 of partition 0 of {topic}"):
            reader.pull()
    reader.topics = replace(wanted, bad="keep", most_bad=4)
    with pytest.raises(EventUnreadable, match="more than 4 records"):
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
        bootstrap=kafka.bootstrap, topics=(topic,), columns=ITEMS, records=2, patience_s=3600
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
    with pytest.raises(EventUnreadable, match="its key changed, and the event of the old key"):
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
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), columns=ITEMS)
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


# --- events that come again -----------------------------------------------------------------------

AWAY, HERE = "__debezium.newkey", "__debezium.oldkey"
UNSENT = "__debezium_unavailable_value"
COLUMNS = {"inventory.items": "id INT, name STRING", "inventory.words": "name STRING"}


def test_what_comes_again_in_several_portions_is_left_out_in_each(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """The furthest position stays that, while portions of older events go by."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1))
    sent = [
        ({"id": 1}, event("c" if n == 1 else "u", 100 + n, None, {"id": 1, "name": f"{n}"}, 90))
        for n in range(1, 9)
    ]
    words = [
        (None, event("c", 200 + n, None, {"name": f"{n}"}, 90, table="words")) for n in range(1, 5)
    ]
    produce(kafka, topic, *sent, *words)
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS)
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 12
    produce(kafka, topic, *sent[4:], *words[:3])
    reader.topics = KafkaTopics(
        bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS, records=2
    )
    assert reader.pull() == 0
    assert reader.rows("items") == [(1, "8")]
    assert reader.rows("words", order="name") == [("1",), ("2",), ("3",), ("4",)]


def test_an_insert_that_comes_again_alone_is_one_row(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """As the last of a portion, within one, and where compaction took the delete between two."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1))
    last = ({"id": 10}, event("c", 103, None, {"id": 10, "name": "ten"}, 90))
    produce(
        kafka, topic,
        ({"id": 1}, event("c", 101, None, {"id": 1, "name": "one"}, 90)),
        ({"id": 1}, event("c", 102, None, {"id": 1, "name": "one anew"}, 90)),
        last,
    )  # fmt: skip
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS)
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 3
    assert reader.rows("items") == [(1, "one anew"), (10, "ten")]
    produce(kafka, topic, last)
    assert reader.pull() == 1
    assert reader.rows("items") == [(1, "one anew"), (10, "ten")]
    produce(kafka, topic, ({"id": 1}, event("c", 120, None, {"id": 1, "name": "third"}, 110)))
    assert reader.pull() == 1
    assert reader.rows("items") == [(1, "third"), (10, "ten")]


def test_the_other_event_of_a_moved_row_is_awaited_where_it_may_be_however_old_they_are(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """It is behind the portion, after a long pause; a partition that is beyond it is waited for no more."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 2))
    later = [
        ({"id": 3}, event("u", 200 + n, None, {"id": 3, "name": f"{n}"}, 190), 1) for n in range(10)
    ]
    produce(
        kafka, topic,
        ({"id": 1}, event("c", 100, None, {"id": 1, "name": "old"}, 90), 0),
        ({"id": 1}, event("d", 120, {"id": 1}, None, 115), 0, AWAY),
        ({"id": 5}, event("d", 130, {"id": 5}, None, 125), 0, AWAY),  # its other was compacted away
        ({"id": 3}, event("c", 104, None, {"id": 3, "name": "three"}, 90), 1),
        ({"id": 4}, event("c", 105, None, {"id": 4, "name": "four"}, 90), 1),
        ({"id": 4}, event("u", 106, None, {"id": 4, "name": "fore"}, 90), 1),
        ({"id": 2}, event("c", 120, None, {"id": 2, "name": UNSENT}, 115), 1, HERE),
        *later,
    )  # fmt: skip
    topics = KafkaTopics(
        bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS, records=2, patience_s=0
    )
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 17
    assert reader.rows("items") == [(2, "old"), (3, "9"), (4, "fore")]
    manifests = list(ChangeLog(str(tmp_path / "log")).manifests())
    assert max(manifest.rows for manifest in manifests) <= 4, "portions stayed small"


def test_an_open_transaction_is_no_part_of_what_there_is(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """What is before it is taken at once, and its own when it is committed."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1))
    produce(kafka, topic, ({"id": 1}, event("c", 100, None, {"id": 1, "name": "one"}, 90)))
    lasting = {"transactional.id": topic, "transaction.timeout.ms": 600_000}
    writer = Producer({"bootstrap.servers": kafka.bootstrap, **lasting})
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(topic, event("c", 120, None, {"id": 2, "name": "two"}, 110), b'{"id": 2}')
    assert writer.flush(120) == 0
    topics = KafkaTopics(
        bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS,
        options={"kafkaConsumer.pollTimeoutMs": "5000"},
    )  # fmt: skip
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 1
    assert reader.rows("items") == [(1, "one")]
    writer.commit_transaction()
    until(reader.pull, "the row")  # its marker may follow the answer
    assert reader.rows("items") == [(1, "one"), (2, "two")]


def test_a_row_that_moved_comes_again_as_the_last_of_its_partition(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """Its delete is elsewhere, and was left out. An insert that only now follows its delete is none of these."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 2))
    again = (
        ({"id": 1}, event("d", 120, {"id": 1}, None, 115), 0, AWAY),
        ({"id": 9}, event("c", 130, None, {"id": 9, "name": "nine"}, 125), 0),
        ({"id": 2}, event("c", 120, None, {"id": 2, "name": UNSENT}, 115), 1, HERE),
    )
    produce(
        kafka, topic,
        ({"id": 1}, event("c", 100, None, {"id": 1, "name": "old"}, 90), 0),
        ({"id": 3}, event("c", 104, None, {"id": 3, "name": "three"}, 90), 1),
        *again,
    )  # fmt: skip
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS, patience_s=0)
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 5
    produce(kafka, topic, *again)
    assert reader.pull() == 1  # of 9: the last may be another of its LSN
    expected = [(2, "old"), (3, "three"), (9, "nine")]
    assert reader.rows("items") == expected
    produce(kafka, topic, ({"id": 3}, event("d", 140, {"id": 3}, None, 135), 0, AWAY))
    assert reader.pull() == 1, "nobody waits"
    produce(
        kafka, topic,
        ({"id": 3}, event("d", 140, {"id": 3}, None, 135), 0, AWAY),
        ({"id": 4}, event("c", 140, None, {"id": 4, "name": "four"}, 135), 0, HERE),
    )  # fmt: skip
    assert reader.pull() == 2
    assert reader.rows("items") == [(2, "old"), (4, "four"), (9, "nine")]


def test_rows_that_were_read_come_again_but_not_a_first_snapshot(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """An incremental one lies among changes; a first one at an earlier position is of another server."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1))
    read = event("r", 150, None, {"id": 1, "name": "read"}, 140, snapshot="incremental")
    produce(
        kafka, topic,
        ({"id": 1}, read),
        ({"id": 1}, event("u", 170, None, {"id": 1, "name": "then"}, 160)),
    )  # fmt: skip
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS)
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 2
    produce(kafka, topic, ({"id": 1}, read))
    assert reader.pull() == 0
    assert reader.rows("items") == [(1, "then")]
    first = event("r", 100, None, {"id": 1, "name": "other"}, snapshot="first")
    produce(kafka, topic, ({"id": 1}, first))
    with pytest.raises(OffsetsLost, match="WT-5251.*another history of the source begins"):
        reader.pull()


def test_nothing_but_segments_is_left_and_nothing_of_those_that_were_expired(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1))
    topics = KafkaTopics(bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS)
    reader, now = Reader(spark_of_topics, tmp_path, topics), dt.datetime.now(dt.UTC)
    with reader.feed() as feed:
        for days in (0, 2):
            lsn = 100 + days
            produce(kafka, topic, ({"id": 1}, event("c", lsn, None, {"id": 1, "name": "one"}, 90)))
            feed._bucket = bucket_of(now + dt.timedelta(days=days))
            taken = feed.pull()
            assert taken is not None
        segments = tmp_path / "log" / "segments"
        found = [path.suffix for path in segments.rglob("*") if path.is_file()]
        assert found == [".parquet", ".parquet"]
        assert feed.log.expire(taken.mark, bucket_of(now + dt.timedelta(days=1))) == 1
    with reader.feed():
        assert [each.name for each in segments.iterdir()] == [taken.bucket]


@pytest.mark.parametrize("records", [100, 1])
def test_a_transaction_behind_a_snapshot_beside_an_older_slot_is_taken(
    kafka: Kafka, spark_of_topics: Any, tmp_path: Path, records: int
) -> None:
    """It follows a commit from before the snapshot: what the snapshot saw was left out between. So also where
    the partition had been read before; what comes again, of it or from before the snapshot, is left out."""
    topic = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(topic, 1))
    row = {"id": 1, "name": "before"}
    older = ({"id": 1}, event("c", 850, None, row, 840))
    began = [
        ({"id": 1}, event("u", lsn, None, row | {"name": f"behind {lsn}"}, 900))
        for lsn in (990, 1050, 1060)
    ]
    produce(
        kafka, topic,
        older,
        ({"id": 1}, event("r", 1000, None, row | {"name": "read"}, snapshot="first")),
        ({"id": 2}, event("r", 1000, None, {"id": 2, "name": "read"}, snapshot="last")),
        *began,
    )  # fmt: skip
    topics = KafkaTopics(
        bootstrap=kafka.bootstrap, topics=(topic,), columns=COLUMNS, records=records
    )
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 6
    expected = [(1, "behind 1060"), (2, "read")]
    assert reader.rows("items") == expected
    produce(kafka, topic, older, *began)
    assert reader.pull() == 1  # the very last may be another of its LSN
    assert reader.rows("items") == expected
    produce(
        kafka, topic,
        ({"id": 1}, event("u", 1070, None, row | {"name": "its end"}, 900)),
        ({"id": 2}, event("u", 1055, None, {"id": 2, "name": "next"}, 1080)),
    )  # fmt: skip
    assert reader.pull() == 2
    assert reader.rows("items") == [(1, "its end"), (2, "next")]


def test_the_first_insert_behind_a_snapshot_beside_a_slot_made_by_hand(
    database: Database, kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """What was written between the slot and the snapshot is left out of the stream, and comes before it."""
    prefix = kafka.topic_name().replace("-", "_")
    settings = {
        "slot.takeover": True, "topic.prefix": prefix, "sink.type": "kafka",
        "sink.bootstrap.servers": kafka.bootstrap,
    }  # fmt: skip
    pipeline = PipelineRig(database, tmp_path, settings)
    database.psql("CREATE TABLE items (id int PRIMARY KEY, name text)")
    database.psql(f"CREATE PUBLICATION {pipeline.slot} FOR ALL TABLES")
    database.execute(f"SELECT pg_create_logical_replication_slot('{pipeline.slot}', 'pgoutput')")
    database.psql("INSERT INTO items VALUES (1, 'read'); CREATE TABLE other (id int)")
    with pipeline.running() as run:
        database.psql("INSERT INTO items VALUES (2, 'inserted'), (3, 'too')")
        ((lsn,),) = database.execute("SELECT pg_current_wal_lsn()::text")
        run.until(lambda: pipeline.slot_lsns()[0] >= parse_lsn(lsn), "the insert delivered")
    columns = {"public.items": "id INT, name STRING"}
    topics = KafkaTopics(
        bootstrap=kafka.bootstrap, topics=(f"{prefix}.public.items",), columns=columns
    )
    reader = Reader(spark_of_topics, tmp_path, topics)
    assert reader.pull() == 3
    assert reader.rows("items", "public") == [(1, "read"), (2, "inserted"), (3, "too")]


# --- events that Debezium wrote -------------------------------------------------------------------

FAR = r"infinity|BC|^\d{5,}"
CASES = {
    # corpus, variant: table → (until this statement, columns with another SQL than text; "": left out)
    ("toast", "schemas"): {
        "big": ("(update big set id|delete from big)", {"h": "hstore_to_json(h)", "j": "j::jsonb", "jb": "jb"})
    },
    ("pk_change", ""): {"single": ("", {}), "nopk": ("", {})},
    ("types_default", "schemas"): {
        "numbers": ("", {"m": "m::numeric", "r4": "r4::float8"}),
        "times": ("", {"ttz": "", "ttz3": "", "iv": ""}),
    },
}  # fmt: skip


def number(text: Any) -> Any:
    """Return a position as a number again: ranks are 10 apart."""
    if not isinstance(text, str):
        return text
    rank = 10 * int(text.rpartition("#")[2])
    return rank + 5 if text.startswith("after") else rank


def events(corpus: str, variant: str) -> list[dict[str, Any]]:
    """Return the recorded events, with all that was left out of them and numbers for positions."""
    name = f"expected.{variant}.jsonl" if variant else "expected.jsonl"
    found, known = [], dict[tuple[str, str], Any]()
    for line in (CORPORA / corpus / name).read_text().split("\n")[:-1]:
        event = json.loads(line)
        for side in ("key", "value"):
            part = event[side]
            if isinstance(part, dict) and "schema" in part:
                place = event["topic"], side
                known[place] = known[place] if part["schema"] == "$same" else part["schema"]
                part["schema"] = known[place]
        place = event["topic"], "headers"
        known[place] = known[place] if event.get("headers") == "$same" else event.get("headers")
        event["headers"] = known[place]
        if event["value"] is not None:
            body = event["value"].get("payload", event["value"])
            source = body.get("source", {})
            if "sequence" in source:
                pair = [number(each) for each in source["sequence"]]
                source["sequence"] = json.dumps(
                    [None if each is None else str(each) for each in pair]
                )
            source["lsn"] = number(source.get("lsn"))
            if isinstance(source.get("txId"), str):
                source["txId"] = int(source["txId"].partition(":")[0].partition("#")[2])
            for name, per_second in (("ts_ms", 10**3), ("ts_us", 10**6), ("ts_ns", 10**9)):
                if name in source:
                    source[name] = 1_700_000_000 * per_second
        found.append(event)
    return found


def upto(found: list[dict[str, Any]], until: str) -> list[dict[str, Any]]:
    """Return the events of one table before its first delete, where that is where to end."""
    if not until:
        return found
    operations = [(each["value"] or {}).get("payload", {}).get("op") for each in found]
    return found[: operations.index("d")]


def canonical(value: Any) -> Any:
    """Return a value of either side in one form."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, dict):
        value = json.dumps(value)
    if isinstance(value, str):
        if value[:1] in "{[" or value[:1] == '"' or value == "null":
            try:
                return json.dumps(json.loads(value, parse_float=str, parse_int=str), sort_keys=True)
            except ValueError:
                return value
        if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00", value):
            return value.removesuffix("+00")
        if re.fullmatch(r"-?\d+(\.\d+)?(E-?\d+)?", value):
            return Decimal(value).normalize()
    return value


def statements(corpus: str, tables: dict[str, Any]) -> str:
    """Return the corpus's SQL, up to where the events of its tables are taken."""
    folder = CORPORA / corpus
    script = (folder / "workload.sql").read_text()
    for until, _other in tables.values():
        if until:
            script = re.sub(rf"^{until}.*\n", "", script, flags=re.MULTILINE)
    made = (folder / "setup.sql").read_text()
    return made.replace("create extension", "create extension if not exists") + script


def columns(connection: Any, table: str, other: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return what to select of a table in the database, and of Spark's."""
    listed = connection.execute(
        "SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid = %s::regclass"
        " AND attnum > 0 AND NOT attisdropped ORDER BY attnum", (table,)
    ).fetchall()  # fmt: skip
    theirs, mine = [], []
    for name, kind in listed:
        text = other.get(name, f"{name}::text")
        plain = kind in ("bytea", "real", "double precision") or kind.endswith("[]")
        if kind.startswith(("date", "time")) and text:
            text = f"CASE WHEN {name}::text !~ '{FAR}' THEN {name}::text END"
        if text:
            theirs.append(f"{text if name in other or not plain else name} AS {name}")
            mine.append(name if plain else f"cast({name} as string) AS {name}")
    return theirs, mine


def test_tables_of_recorded_events_are_those_of_the_database(
    database: Database, kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """Unsent values of every type, keys that move with them, tables without key, types."""
    topics = {table: kafka.topic_name() for tables in CASES.values() for table in tables}
    create(kafka.bootstrap, *(NewTopic(topic, 1) for topic in topics.values()))
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for (corpus, variant), tables in CASES.items():
        database.psql(statements(corpus, tables))
        recorded = events(corpus, variant)
        for table, (until, _other) in tables.items():
            own = [each for each in recorded if each["topic"] == f"t.public.{table}"]
            for each in upto(own, until):
                sides = (each["key"], each["value"])
                key, value = (None if side is None else json.dumps(side) for side in sides)
                headers = [(header["key"], b"{}") for header in each["headers"] or ()]
                producer.produce(topics[table], value, key, partition=0, headers=headers)
    assert producer.flush(120) == 0
    wanted = KafkaTopics(bootstrap=kafka.bootstrap, topics=tuple(topics.values()))
    reader = Reader(spark_of_topics, tmp_path, wanted)
    assert reader.pull()
    with database.connect() as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        for table, (_until, other) in (pair for each in CASES.values() for pair in each.items()):
            theirs, mine = columns(connection, table, other)
            rows = connection.execute(f"SELECT {', '.join(theirs)} FROM {table}").fetchall()
            found = reader.frame(table, "public").selectExpr(*mine).collect()
            expected = sorted((tuple(map(canonical, row)) for row in rows), key=str)
            assert sorted((tuple(map(canonical, row)) for row in found), key=str) == expected, table
