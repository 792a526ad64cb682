"""Read offsets and records of topics by Spark's Kafka source."""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from waltap_spark.errors import OffsetsLost, TopicsUnreadable

# Topic and partition.
Place = tuple[str, int]

# Position of a partition's newest event: the commit before its transaction, its own LSN.
High = tuple[int, int]

# Progress of a partition: the positions of its newest change and first snapshot.
Reached = tuple[High, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopics:
    """Topics of change events and their format."""

    bootstrap: str
    topics: tuple[str, ...]
    # The format of values.
    form: Literal["json", "avro"] = "json"
    # The schema registry for Avro; the address may contain user and password.
    registry: str = ""
    # For JSON without schemas: SCHEMA.TABLE → columns as in CREATE TABLE.
    columns: Mapping[str, str] = field(default_factory=dict)
    # More options of Spark's source, such as kafka.security.protocol.
    options: Mapping[str, str] = field(default_factory=dict)
    # Most records of a partition in one portion: one manifest, one commit.
    records: int = 1_000_000
    # The text for values that the server did not send.
    placeholder: str = "__debezium_unavailable_value"
    # ``fail`` stops at a bad record; ``keep`` writes it to a file beside the change log.
    bad: Literal["fail", "keep"] = "fail"
    # Bad records of one portion; more mean a wrong format, not single faults.
    most_bad: int = 1_000
    # How long one event of a changed key waits for the other, which may be in another partition.
    patience_s: float = 60.0


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A bad record with its reason."""

    topic: str
    partition: int
    offset: int
    reason: str

    def described(self) -> str:
        return f"offset {self.offset} of partition {self.partition} of {self.topic}: {self.reason}"


@dataclass(frozen=True, slots=True)
class AvailableRanges:
    """New records of topics."""

    # The offsets of one portion.
    ranges: dict[Place, range]
    # The ends of the partitions now.
    ends: dict[Place, int]
    # Topics with several partitions.
    spread: frozenset[str]
    # Topic → its id: one that was deleted and created again has another.
    topic_ids: dict[str, str]

    @property
    def unfinished(self) -> frozenset[Place]:
        """Return the partitions that have more records than the portion."""
        return frozenset(
            place for place, each in self.ranges.items() if each.stop < self.ends[place]
        )


def offered(
    spark: SparkSession,
    topics: KafkaTopics,
    taken: Mapping[Place, int],
    topic_ids: Mapping[str, str],
    *,
    records: int,
) -> AvailableRanges:
    """Return the new records, up to ``records`` of each partition.

    ``taken`` has the next offset of each partition, ``topic_ids`` the topics that they are of.

    Raises: TopicsUnreadable, OffsetsLost.
    """
    first, last, ids = _bounds(spark, topics)
    found = {}
    for place, end in last.items():
        start, topic_id = taken.get(place, first[place]), ids[place[0]]
        if start and topic_ids.get(place[0], topic_id) != topic_id:
            raise OffsetsLost(f"{place[0]} was created again: its first records may not be taken")
        if not first[place] <= start <= end:
            text = (
                f"partition {place[1]} of {place[0]} has records from {first[place]} to {end}, "
                f"and {start} is the next to take"
            )
            raise OffsetsLost(text)
        if start < end:
            found[place] = range(start, min(end, start + records))
    # A topic that was created again may have fewer partitions.
    for place in taken:
        if place[0] in topics.topics and place not in last:
            raise OffsetsLost(f"{place[0]} no longer has partition {place[1]}")
    spread = frozenset(topic for topic, partition in last if partition > 0)
    return AvailableRanges(found, last, spread, ids)


def _bounds(
    spark: SparkSession, topics: KafkaTopics
) -> tuple[dict[Place, int], dict[Place, int], dict[str, str]]:
    """Return every partition's first offset and end, and topics' ids."""
    # Spark's source has no Python call for offsets; its Kafka client is in the session's JVM.
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        raise TopicsUnreadable("topics are not read by a session of Spark Connect")
    kafka = jvm.org.apache.kafka
    if "JavaClass" not in type(kafka.clients.consumer.KafkaConsumer).__name__:
        raise TopicsUnreadable("this Spark session has no Kafka source")
    bytes_ = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    settings = {
        "bootstrap.servers": topics.bootstrap,
        "key.deserializer": bytes_,
        "value.deserializer": bytes_,
        "allow.auto.create.topics": "false",
        "isolation.level": "read_committed",  # as `records`: ends are not behind an open transaction
        **{
            name.removeprefix("kafka."): value
            for name, value in topics.options.items()
            if name.startswith("kafka.")
        },
    }
    try:
        with (
            closing(kafka.clients.consumer.KafkaConsumer(settings)) as consumer,
            closing(kafka.clients.admin.AdminClient.create(settings)) as admin,
        ):
            places = [
                kafka.common.TopicPartition(topic, each.partition())
                for topic in topics.topics
                for each in consumer.partitionsFor(topic) or ()
            ]
            names = {place.topic() for place in places}
            described = admin.describeTopics(names).allTopicNames().get()
            first, last = (
                {(place.topic(), place.partition()): int(found[place]) for place in places}
                for found in (consumer.beginningOffsets(places), consumer.endOffsets(places))
            )
            return first, last, {name: str(described[name].topicId()) for name in described}
    except Py4JJavaError as error:
        raise TopicsUnreadable(f"{topics.bootstrap}: {error.java_exception}") from error


def records(spark: SparkSession, topics: KafkaTopics, wanted: Mapping[Place, range]) -> DataFrame:
    """Return the records of ``wanted``, without aborted transactions.

    Columns: topic, partition, offset, timestamp, key, value, headers.
    """
    bounds: dict[str, dict[str, dict[str, int]]] = {"starting": {}, "ending": {}}
    for (topic, partition), each in wanted.items():
        bounds["starting"].setdefault(topic, {})[str(partition)] = each.start
        bounds["ending"].setdefault(topic, {})[str(partition)] = each.stop
    assigned = {topic: [int(p) for p in parts] for topic, parts in bounds["starting"].items()}
    options = {
        "kafka.bootstrap.servers": topics.bootstrap,
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(bounds["starting"]),
        "endingOffsets": json.dumps(bounds["ending"]),
        "includeHeaders": "true",
    }
    return spark.read.format("kafka").options(**{**options, **topics.options}).load()
