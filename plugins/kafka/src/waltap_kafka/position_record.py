"""The position as a record of a compacted topic.

The sink writes it in the same Kafka transaction as the data.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from waltap.base.files.durable_file import UNREADABLE
from waltap.changes.transactions.position import Position, Positions
from waltap.errors import StopRequested
from waltap_kafka.client import AWAY, GROUP_REFUSED, PASSING, REFUSALS, KafkaClients, kafka_error
from waltap_kafka.errors import KafkaPositionUnusable

PARTITION: Final = 0
POLICY: Final = "cleanup.policy"
VERSION: Final = 1
WAIT_S: Final = 120.0
# Limit of one question about an offset; it is repeated until `WAIT_S` ends.
ASK_S: Final = 10.0
STEP_S: Final = 0.25
# Records of the first attempt from the end; the last position is usually among them.
FIRST_READ: Final = 64

# The question is repeated; _NOENT: no leader is known.
REPEATED: Final = PASSING | AWAY | {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._NOENT}


class _StoredPosition(msgspec.Struct):
    version: int
    pipeline: str
    partitions: dict[str, tuple[int, int, int]]


def position_topic(name: str) -> NewTopic:
    """Return the definition of the position's topic. It has one partition."""
    # Kafka compacts only closed segments, so small ones keep the topic short.
    settings = {POLICY: "compact", "segment.bytes": "1048576", "retention.ms": "-1"}
    return NewTopic(name, num_partitions=1, replication_factor=-1, config=settings)


def forgets(policy: str) -> bool:
    """Return whether ``cleanup.policy`` deletes a record that is not written again."""
    return "compact" not in policy or "delete" in policy


def encode(pipeline: str, positions: Positions) -> bytes:
    """Return the record's value for ``positions``."""
    stored = {
        name: (position.end_lsn, position.commit_lsn, position.index)
        for name, position in positions.items()
    }
    return msgspec.json.encode(
        _StoredPosition(version=VERSION, pipeline=pipeline, partitions=stored)
    )


def last_position(
    clients: KafkaClients, client: AdminClient, pipeline: str, stopping: Callable[[], bool]
) -> Positions | None:
    """Return the last committed position of the transactional id.

    None means that there is none. The position must belong to ``pipeline``. The caller has ended
    its own open transactions, so all committed records are final.
    Raises: KafkaPositionUnusable, KafkaUnreachable, KafkaRefused, StopRequested.
    """
    topic, key = clients.position_topic, clients.transactional_id
    try:
        found = last_value(clients.settings, client, topic, key, stopping)
    except KafkaException as raised:
        raise clients.refused(kafka_error(raised)) from raised
    if not found:
        return None
    stored = _decoded(found, topic)
    # Two pipelines with one transactional id would resume from each other's position, or delete it.
    if pipeline != stored.pipeline:
        text = f"topic {topic} holds the position of pipeline {stored.pipeline!r} under {key}"
        raise KafkaPositionUnusable(
            f"{text}, the transactional.id of this pipeline, too", topic=topic
        )
    return Positions({name: Position(*partition) for name, partition in stored.partitions.items()})


def last_value(
    settings: Mapping[str, object],
    client: AdminClient,
    topic: str,
    key: str,
    stopping: Callable[[], bool],
) -> bytes | None:
    """Return the last value under ``key``.

    b"" means that it was deleted, None that there is none. Raises: KafkaException, StopRequested.
    """
    partition = TopicPartition(topic, PARTITION)
    first = _offset(client, partition, OffsetSpec.earliest(), stopping)
    end = _offset(client, partition, OffsetSpec.latest(), stopping)
    reader = Consumer(
        {
            "isolation.level": "read_committed",
            **settings,
            "group.id": f"waltap-{uuid.uuid4()}",  # it joins no group and commits nothing
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        back = FIRST_READ
        while True:
            start = max(first, end - back)
            found = _read(reader, partition, start, end, key, stopping)
            if found is not None or start == first:
                return found
            # Other keys fill the end of the topic: read further back.
            back *= 16
    finally:
        reader.close()


def _offset(
    client: AdminClient, partition: TopicPartition, spec: OffsetSpec, stopping: Callable[[], bool]
) -> int:
    """Return the first or last offset of the partition. It includes open transactions."""
    deadline = time.monotonic() + WAIT_S
    while True:
        futures = client.list_offsets(
            {partition: spec},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=ASK_S,
        )
        error = None
        try:
            offset = int(futures[partition].result(2 * ASK_S).offset)
        except KafkaException as raised:
            error = kafka_error(raised)
            # A new topic has no leader for a moment, or an epoch that the client does not know.
            if error.code() not in REPEATED:
                raise
        else:
            # A leader that does not answer in time gives no error, and no offset.
            if offset >= 0:
                return offset
        _check_wait(deadline, error or "the leader does not answer", stopping)
        time.sleep(STEP_S)
        with suppress(KafkaException):  # the client does not ask for the new leader by itself
            client.list_topics(partition.topic, ASK_S)


def _check_wait(deadline: float, problem: object, stopping: Callable[[], bool]) -> None:
    """Check whether to continue waiting. Raises: KafkaException, StopRequested."""
    if stopping():
        raise StopRequested
    if time.monotonic() > deadline:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, str(problem)))


def _read(
    reader: Consumer,
    partition: TopicPartition,
    start: int,
    end: int,
    key: str,
    stopping: Callable[[], bool],
) -> bytes | None:
    """Return the last value under ``key`` in a range. b"" means that it was deleted."""
    found: bytes | None = None
    reader.assign([TopicPartition(partition.topic, partition.partition, start)])
    deadline = time.monotonic() + WAIT_S
    at = start
    while at < end:
        _check_wait(deadline, f"offset {at} of {end} was reached", stopping)
        message = reader.poll(STEP_S)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            # The partition's end advances ``at``: aborted records and markers before it are never
            # delivered.
            if error.code() != KafkaError._PARTITION_EOF:
                if error.code() in REFUSALS - {GROUP_REFUSED} or error.fatal():
                    raise KafkaException(error)
                continue
            offset = message.offset()
            at = at if offset in (None, OFFSET_INVALID) else max(at, offset)
            continue
        at = (message.offset() or 0) + 1
        if message.key() == key.encode():
            found = message.value() or b""
    return found


def _decoded(value: bytes, topic: str) -> _StoredPosition:
    try:
        stored = msgspec.json.decode(value, type=_StoredPosition)
    except UNREADABLE as error:
        raise KafkaPositionUnusable(
            f"topic {topic} holds a record that is no position: {error}", topic=topic
        ) from error
    if stored.version != VERSION:
        raise KafkaPositionUnusable(
            f"topic {topic} holds positions of version {stored.version}, which is a later waltap's",
            topic=topic,
        )
    return stored
