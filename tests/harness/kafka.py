"""Reading topics of a broker, and topics of a test's own."""

import time
import uuid

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from tests.harness.pipeline import until

WAIT_SECONDS = 120.0
# else a produce request that is repeated may come behind later ones
IN_ORDER = {"enable.idempotence": True}


def create(bootstrap: str, *topics: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # a broker that was fenced for a moment, as on a busy machine, answers later
    made = admin.create_topics(list(topics), operation_timeout=60, request_timeout=WAIT_SECONDS)
    for future in made.values():
        future.result(WAIT_SECONDS)
    # the controller has answered: brokers hear of it later
    until(lambda: set(made) <= set(admin.list_topics(timeout=WAIT_SECONDS).topics), "the topics")


def allow(
    bootstrap: str, user: str, kind: ResourceType, name: str, *operations: AclOperation
) -> None:
    """Give ``user`` rights to one topic, group or transactional id."""
    place, who, may = (
        (kind, name, ResourcePatternType.LITERAL),
        (f"User:{user}", "*"),
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_acls([AclBinding(*place, *who, o, may) for o in operations]).values():
        done.result(WAIT_SECONDS)
    for operation in operations:  # the broker itself takes note later, too
        filtered = AclBindingFilter(*place, *who, operation, may)
        until(lambda f=filtered: admin.describe_acls(f).result(WAIT_SECONDS), "the right")


def limit(bootstrap: str, size: int, *topics: str) -> None:
    """Have the broker take no batches of more than ``size`` bytes in ``topics``: it goes by that in its own time."""
    configure(bootstrap, "max.message.bytes", str(size), *topics)


def configure(bootstrap: str, name: str, value: str, *topics: str) -> None:
    """Give ``topics`` a setting: the broker goes by it in its own time."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    changes = [
        ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry]) for topic in topics
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs(changes).values():
        future.result(WAIT_SECONDS)


def partitions(bootstrap: str, topic: str) -> int:
    """Return how many partitions ``topic`` has, 0 where it does not exist."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=WAIT_SECONDS).topics
    return len(found[topic].partitions) if topic in found else 0


def read_all(bootstrap: str, *topics: str) -> list[Message]:
    """Return every committed record of ``topics``, partition by partition.

    Topics that do not exist have none. It reads up to where each partition ends now; what an open
    transaction holds back is waited for.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    known = admin.list_topics(timeout=WAIT_SECONDS).topics
    places = [TopicPartition(t, p) for t in topics if t in known for p in known[t].partitions]
    if not places:
        return []
    ends = {place: _end(admin, place) for place in places}
    left = {(p.topic, p.partition): end for p, end in ends.items() if end}
    found: dict[tuple[str, int], list[Message]] = {(p.topic, p.partition): [] for p in places}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": str(uuid.uuid4()),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,  # behind a transaction's marker is nothing to wait for
        }
    )
    consumer.assign([TopicPartition(t, p, 0) for t, p in left])
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        while left:
            assert time.monotonic() < deadline, f"not readable to the end: {left}"
            if (first := consumer.poll(0.2)) is None:
                continue
            for message in (first, *consumer.consume(10_000, 0)):
                place, error = (message.topic(), message.partition()), message.error()
                if error is None:
                    at = message.offset() + 1
                    found[place].append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at = message.offset()
                else:
                    continue
                if at >= left.get(place, at + 1):
                    del left[place]
    finally:
        consumer.close()
    return [message for place in sorted(found) for message in found[place]]


def _end(admin: AdminClient, place: TopicPartition) -> int:
    """Return where a partition ends, open transactions included."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        asked = admin.list_offsets(
            {place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED
        )
        try:
            return int(asked[place].result(WAIT_SECONDS).offset)
        except KafkaException:  # a topic that was just made has no leader for a moment
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)
