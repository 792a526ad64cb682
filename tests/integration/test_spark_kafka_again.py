"""Events that a connector delivers again, in any portion, and what a topic no longer has: no row changes twice."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.harness.kafka import create
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database
from tests.harness.topics import Reader, event, produce

from waltap.source.position import parse_lsn
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.manifest import bucket_of
from waltap_spark.kafka import KafkaTopics
from waltap_spark.kafka.errors import OffsetsLost

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


def test_nothing_but_segments_is_left_and_nothing_of_those_that_were_retired(
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
        assert feed.log.retire(taken.mark, bucket_of(now + dt.timedelta(days=1))) == 1
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
        "slot.adopt": True, "topic.prefix": prefix, "sink.type": "kafka",
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
