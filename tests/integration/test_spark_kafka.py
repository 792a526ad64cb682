"""Change events of topics of a real broker in Spark's tables: JSON and Avro, also again and again."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.kafka import create
from tests.harness.pipeline import PipelineRig, until
from tests.harness.spark import Died, dying
from tests.harness.topics import Reader, event

from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.errors import ChangeLogDamaged
from waltap_spark.errors import ColumnsUnknown, EventUnreadable, OffsetsLost
from waltap_spark.kafka import KafkaFeed, KafkaTopics
from waltap_spark.read.live import LiveTables
from waltap_spark.state.output import SparkOutput

# --- events become tables -------------------------------------------------------------------------

PLACEHOLDER = "__debezium_unavailable_value"
LONG = "x" * 9000


Captured = tuple[PipelineRig, Callable[..., Reader]]


@pytest.fixture(params=["json", "avro"])
def captured(request, database, kafka, registry, spark_of_topics, tmp_path) -> Captured:
    """Return a pipeline to topics, and what makes a reader of the topics of some tables."""
    form = request.param
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

    def reader(*tables: str) -> Reader:
        topics = tuple(f"{prefix}.public.{name}" for name in tables)
        of = KafkaTopics(bootstrap=kafka.bootstrap, topics=topics, form=form, registry=registry.url)
        return Reader(spark_of_topics, tmp_path, of)

    return PipelineRig(database, tmp_path, settings), reader


def rows_of(pipeline: PipelineRig, query: str) -> list[Any]:
    with pipeline.database.connect() as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        return connection.execute(query).fetchall()


def test_events_of_a_database_have_its_values(captured, tmp_path):
    pipeline, reader_of = captured
    pipeline.database.psql(
        "CREATE TABLE typed (id int PRIMARY KEY, n numeric(12,3), wide numeric(38,4), d date, t time,"
        " ts timestamp, tz timestamptz, b bytea, f float8, s smallint, doc jsonb, big text, ok bool);"
        "INSERT INTO typed VALUES (1, -1.250, -12345678901234567890123456789012.5, '2024-02-29', '10:20:30.123456',"
        f" '2024-02-29 23:59:59.999999', '2024-02-29 23:59:59.5+02', '\\x00ff', 1.5, -7, '{{\"a\": 1}}', '{LONG}', true),"
        f" (2, 0.004, 7, '1969-12-31', '00:00:00', '1969-12-31 23:59:59', NULL, NULL, NULL, NULL, NULL, '{LONG}2', false)"
    )
    pipeline.catch_up()
    reader = reader_of("typed")
    assert reader.pull() == 2
    manifests = ChangeLog(str(tmp_path / "log")).manifests()
    sizes = [s.unpacked for each in manifests for entry in each.tables for s in entry.segments]
    assert sum(sizes) >= 2 * len(LONG), "who reads them knows how long they are"
    own = rows_of(pipeline, "SELECT * FROM typed ORDER BY id")
    found = reader.rows("typed", "public")
    assert len(found) == 2
    for mine, theirs in zip(found, own, strict=True):
        assert mine[:4] == theirs[:4]
        assert mine[4] == theirs[4] or str(mine[4]) == str(theirs[4])
        assert mine[5] == theirs[5]
        assert (mine[6] is None) == (theirs[6] is None)
        assert mine[7:10] == theirs[7:10]
        assert (None if mine[10] is None else json.loads(mine[10])) == theirs[10]
        assert mine[11:] == theirs[11:]


def test_events_of_a_database_become_its_tables_over_restarts(captured):
    """Deletes, moved keys, values that were not sent, a table without key, DDL."""
    pipeline, reader_of = captured
    pipeline.database.psql(
        "CREATE TABLE items (id int PRIMARY KEY, n numeric(12,3), big text, ok bool);"
        "ALTER TABLE items ALTER big SET STORAGE external;"
        "CREATE TABLE notes (word text); ALTER TABLE notes REPLICA IDENTITY FULL;"
        f"INSERT INTO items VALUES (1, -1.250, '{LONG}', true), (2, 0.004, '{LONG}2', false);"
        "INSERT INTO notes VALUES ('a'), ('a'), ('b')"
    )
    pipeline.catch_up()
    reader = reader_of("items", "notes")
    assert reader.pull() == 5
    pipeline.database.psql(
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
    words = rows_of(pipeline, "SELECT word FROM notes")
    assert sorted(reader.rows("notes", "public", "word")) == sorted(words)
    own = rows_of(pipeline, "SELECT * FROM items ORDER BY id")
    assert [row[0] for row in own] == [1, 4, 5, 20]
    assert reader.rows("items", "public") == own


def put(op: str, lsn: int, key: int, name: str, commit: int | None = 90, **more: Any) -> Any:
    return {"id": key}, event(op, lsn, None, {"id": key, "name": name}, commit, **more)


def gone(lsn: int, key: int, commit: int) -> Any:
    return {"id": key}, event("d", lsn, {"id": key}, None, commit)


AWAY, HERE = "__debezium.newkey", "__debezium.oldkey"
COLUMNS = {"inventory.items": "id INT, name STRING", "inventory.words": "name STRING"}


def test_events_without_schema_that_come_again_and_what_is_refused(topic):
    """Columns are declared; a connector that repeats itself after a restart changes nothing; a truncate;
    interleaved transactions go by their commits."""
    reader = topic()
    row = {"id": 1, "name": "bolt", "made": 19782, "raw": base64.b64encode(b"\1").decode()}
    unsent = {**row, "name": PLACEHOLDER, "raw": None}
    own = (
        ({"id": 1}, event("c", 100, None, row, 90)),
        ({"id": 2}, event("c", 95, None, {**row, "id": 2}, 110)),  # began before, committed after
        ({"id": 1}, event("u", 120, None, unsent, 115)),
    )
    reader.write(
        ({"id": 9}, event("c", 50, None, {**row, "id": 9}, 40)),
        (None, event("t", 60, None, None, 55)),
        *own,
    )
    with pytest.raises(ColumnsUnknown, match=r"WT-5253.*inventory\.items have no schema"):
        reader.pull()
    reader.read_with(columns={"inventory.items": "id INT, name STRING, made DATE, raw BINARY"})
    assert reader.pull() == 5
    reader.write(
        *own, ({"id": 2}, event("d", 130, {"id": 2, "name": ""}, None, 125)), ({"id": 2}, None)
    )
    assert reader.pull() == 2  # the last of those that were there may be another of its LSN
    ((number, name, made, raw),) = reader.rows("items")
    assert (number, name, str(made), raw) == (1, "bolt", "2024-02-29", None)


ITEMS = {"inventory.items": "id INT, name STRING, made DATE, at TIMESTAMP_NTZ"}


def test_bad_records_stop_the_feed_or_are_kept_and_the_others_go_on(topic, tmp_path):
    reader = topic(columns=ITEMS)
    reader.write(
        ({"id": 1}, event("c", 100, None, {"id": 1, "name": "good", "at": "9223372036825200000"}, 90)),
        ({"id": 1}, b'{"id": 1, "name": "a row, no event"}'),
        ({"id": 2}, event("c", 110, None, {"id": "two", "name": "no number"}, 90)),
        ({"id": 3}, event("x", 120, None, {"id": 3}, 90)),
        ({"id": 4}, event("c", 130, None, None, 90)),
        (None, b"\xff\xfe"),
        ({"id": 5}, event("c", 140, None, {"id": 5, "name": "good too", "made": "soon"}, 90)),
        put("c", 150, 6, "good at last"),
    )  # fmt: skip
    place = rf"WT-5252.*offset 1 of partition 0 of {reader.name}"
    for _attempt in range(2):
        with pytest.raises(EventUnreadable, match=place):
            reader.pull()
    reader.read_with(bad="keep", most_bad=4)
    with pytest.raises(EventUnreadable, match="more than 4 records"):
        reader.pull()
    reader.read_with(most_bad=100)
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
    other = topic(columns=ITEMS)
    with KafkaFeed(reader.spark, other.topics, str(tmp_path / "log")) as lost:
        lost._taken[other.name, 0] = 7
        with pytest.raises(OffsetsLost, match=r"WT-5251.*from 0 to 0, and 7 is the next"):
            lost.pull()


def test_keys_that_move_between_partitions_take_along_what_was_not_sent(topic):
    """Both events are taken together, whatever the portions; where one is nowhere, nothing is made null in
    silence. A truncate has no order with other partitions."""
    reader = topic(2, columns=COLUMNS, records=2, patience_s=3600)
    reader.write(
        (*put("c", 100, 1, "old"), 0),
        (*put("c", 104, 3, "three"), 1),
        (*put("c", 105, 4, "four"), 1),
        (*gone(120, 1, 115), 0, AWAY),
    )
    assert reader.pull() == 3  # the delete waits
    assert [row[0] for row in reader.rows("items")] == [1, 3, 4]
    reader.write(
        ({"id": 1}, None, 0),
        (*put("u", 110, 3, "tres"), 1),
        (*put("c", 120, 2, PLACEHOLDER, 115), 1, HERE),
    )
    assert reader.pull() == 3
    assert reader.rows("items") == [(2, "old"), (3, "tres"), (4, "four")]
    reader.write((*put("c", 130, 7, PLACEHOLDER, 125), 1, HERE))
    assert reader.pull() == 0
    reader.read_with(patience_s=0)
    with pytest.raises(EventUnreadable, match="its key changed, and the event of the old key"):
        reader.pull()
    reader.write((None, event("t", 140, None, None, 135), 0))
    reader.read_with(bad="keep")
    assert reader.pull() == 0
    assert [each["reason"][:14] for each in reader.feed().bad_records()] == [
        "it is a trunca",
        "its key change",
    ]


def test_a_topic_that_got_partitions_is_read_in_the_order_of_the_source(topic):
    """Its keys have older events in another partition, which may have more than a portion of them."""
    reader = topic(2, columns=COLUMNS, records=2)
    older = (put("u", lsn, 1, f"at {lsn}", lsn - 5) for lsn in (110, 120, 130))
    reader.write(put("c", 101, 1, "one"), *older, (*put("u", 140, 1, "last", 135), 1))
    with reader.feed() as feed:
        assert [each.rows for each in iter(feed.pull, None)] == [2, 3]


def test_records_that_are_deleted_before_they_are_taken_are_missed(topic, kafka):
    reader = topic(2, columns=COLUMNS)
    reader.write(put("c", 100, 1, "one"))
    with reader.feed() as feed:
        assert feed.pull().rows == 1
        reader.write(*((*put("c", lsn, lsn, "more"), 1) for lsn in (110, 120)))
        first = TopicPartition(reader.name, 1, 1)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.delete_records([first])[first].result(120)
        with pytest.raises(OffsetsLost, match="from 1 to 2, and 0 is the next"):
            feed.pull()


def test_a_topic_that_was_made_again_is_another_one_though_it_has_more_records(topic, kafka):
    reader = topic(columns=COLUMNS)
    reader.write(put("c", 100, 1, "one"))
    assert reader.pull() == 1
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([reader.name])[reader.name].result(120)
    create(kafka.bootstrap, NewTopic(reader.name, 1))
    reader.write(put("c", 110, 2, "two"), put("c", 120, 3, "three"))
    with pytest.raises(OffsetsLost, match=f"{reader.name} was created again"):
        reader.pull()


def test_a_log_that_cannot_be_read_is_not_locked_afterwards(topic, tmp_path):
    manifest = (
        tmp_path / "log/manifests/0001/20261130T17/0000000000000000-0000000000000064-000000.json"
    )
    manifest.parent.mkdir(parents=True)
    manifest.write_text("")
    for _attempt in range(2):
        with pytest.raises(ChangeLogDamaged), topic().feed():
            pass


# --- events that come again -----------------------------------------------------------------------

Rows = list[tuple[int, str]]
"""What ``items`` has."""
READ = (put("r", 1000, 1, "read", None, snapshot="first"), put("r", 1000, 2, "read", None, snapshot="last"))  # fmt: skip
BEHIND = put("u", 1008, 2, "behind it", None), put("u", 950, 1, "next", 1016)
TEN = put("c", 103, 10, "ten")
MOVED = (
    (*gone(120, 1, 115), 0, AWAY),
    (*put("c", 130, 9, "nine", 125), 0),
    (*put("c", 120, 2, PLACEHOLDER, 115), 1, HERE),
)
OLDER = put("c", 850, 1, "before", 840)
BEGAN = [put("u", lsn, 1, f"behind {lsn}", 900) for lsn in (990, 1050, 1060)]
STORIES: dict[str, tuple[dict[str, Any], list[tuple[Sequence[Any], int, Rows]]]] = {
    # it has no commit before it, and LSNs on both sides of the snapshot's
    "the first transaction may have begun before the snapshot": ({}, [
        ((*READ, put("u", 900, 1, "began before", None)), 3, [(1, "began before"), (2, "read")]),
        (BEHIND, 2, [(1, "next"), (2, "behind it")]),
        (BEHIND, 1, [(1, "next"), (2, "behind it")]),  # the very last may be another of its LSN
    ]),
    # as the last of a portion, within one, and where compaction took the delete between two
    "an insert that comes again alone is one row": ({}, [
        ((put("c", 101, 1, "one"), put("c", 102, 1, "one anew"), TEN), 3, [(1, "one anew"), (10, "ten")]),
        ((TEN,), 1, [(1, "one anew"), (10, "ten")]),
        ((put("c", 120, 1, "third", 110),), 1, [(1, "third"), (10, "ten")]),
    ]),
    # its delete is elsewhere, and was left out; an insert that only now follows its delete is none of these
    "a row that moved comes again as the last of its partition": ({"partitions": 2, "patience_s": 0}, [
        (((*put("c", 100, 1, "old"), 0), (*put("c", 104, 3, "three"), 1), *MOVED), 5, [(2, "old"), (3, "three"), (9, "nine")]),
        (MOVED, 1, [(2, "old"), (3, "three"), (9, "nine")]),  # of 9
        (((*gone(140, 3, 135), 0, AWAY),), 1, [(2, "old"), (9, "nine")]),
        (((*gone(140, 3, 135), 0, AWAY), (*put("c", 140, 4, "four", 135), 0, HERE)), 2, [(2, "old"), (4, "four"), (9, "nine")]),
    ]),
    # it follows a commit from before the snapshot: what the snapshot saw was left out between; so also where the
    # partition had been read before, and what comes again, of it or from before the snapshot, is left out
    **{
        f"a transaction behind a snapshot beside an older slot is taken, {records} at once": ({"records": records}, [
            ((OLDER, *READ, *BEGAN), 6, [(1, "behind 1060"), (2, "read")]),
            ((OLDER, *BEGAN), 1, [(1, "behind 1060"), (2, "read")]),
            ((put("u", 1070, 1, "its end", 900), put("u", 1055, 2, "next", 1080)), 2, [(1, "its end"), (2, "next")]),
        ])
        for records in (100, 1)
    },
}  # fmt: skip
"""Options of the topic; then portions of records, of how many of them rows are taken, and all rows behind it."""


@pytest.mark.parametrize("story", STORIES)
def test_what_comes_again_is_left_out_and_what_does_not_is_taken(topic, story):
    options, portions = STORIES[story]
    reader = topic(columns=COLUMNS, **options)
    for number, (records, taken, rows) in enumerate(portions):
        reader.write(*records)
        assert (reader.pull(), reader.rows("items")) == (taken, rows), f"portion {number}"


def test_a_portion_that_was_not_applied_and_one_without_its_manifest_are_taken_once(
    topic, tmp_path
):
    """The driver dies as it publishes a portion; the one before it is in the change log alone."""
    each, portion = 30, 10
    reader = topic(2, columns=COLUMNS, records=portion)
    places = [(n, partition, partition + 2 * (n % 15)) for n in range(each) for partition in (0, 1)]
    sent = [
        (*put("c" if n < 15 else "u", 1000 + 10 * n + at, key, f"{n}", 995 + 10 * n + at), at)
        for n, at, key in places
    ]
    reader.write(*sent[: 2 * portion])
    assert reader.pull() == 2 * portion
    reader.write(*sent[2 * portion :])
    with reader.feed() as feed:
        assert feed.pull().rows == 2 * portion - 1  # the other partition has an earlier one
        with pytest.raises(Died), dying((feed._store, "publish")):
            feed.pull()
    assert reader.pull() == 2 * (each - 2 * portion) + 1
    changes = LiveTables(reader.spark, SparkOutput(str(tmp_path / "out"))).changes("items")
    seen = [(row["id"], row["name"]) for row in changes.collect()]
    assert sorted(seen) == sorted((key, f"{n}") for n, _, key in places)
    assert reader.rows("items") == sorted({key: f"{n}" for n, _, key in places}.items())


def test_an_open_transaction_is_no_part_of_what_there_is(topic, kafka):
    """What is before it is taken at once, and its own when it is committed."""
    reader = topic(columns=COLUMNS, options={"kafkaConsumer.pollTimeoutMs": "5000"})
    reader.write(put("c", 100, 1, "one"))
    lasting = {"transactional.id": reader.name, "transaction.timeout.ms": 600_000}
    writer = Producer({"bootstrap.servers": kafka.bootstrap, **lasting})
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(reader.name, put("c", 120, 2, "two", 110)[1], b'{"id": 2}')
    assert writer.flush(120) == 0
    assert reader.pull() == 1
    assert reader.rows("items") == [(1, "one")]
    writer.commit_transaction()
    until(reader.pull, "the row")  # its marker may follow the answer
    assert reader.rows("items") == [(1, "one"), (2, "two")]


def test_rows_that_were_read_come_again_but_not_a_first_snapshot(topic):
    """An incremental one lies among changes; a first one at an earlier position is of another server."""
    reader = topic(columns=COLUMNS)
    read = put("r", 150, 1, "read", 140, snapshot="incremental")
    reader.write(read, put("u", 170, 1, "then", 160))
    assert reader.pull() == 2
    reader.write(read)
    assert reader.pull() == 0
    assert reader.rows("items") == [(1, "then")]
    reader.write(put("r", 100, 1, "other", None, snapshot="first"))
    with pytest.raises(OffsetsLost, match="WT-5251.*another history of the source begins"):
        reader.pull()
