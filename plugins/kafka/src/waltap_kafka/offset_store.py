"""Offsets in a compacted Kafka topic, one record per pipeline.

The record survives the loss of the pipeline's machine. The topic may be a Connect worker's
(``offset.storage.topic``): keys have the form of its keys and never equal one of them.

The state folder has a copy for tools that read state folders. The copy also counts while the topic
has no record, or an older one and another store wrote the copy: the pipeline ran without the topic.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import msgspec
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from waltap.base.redaction import redacted
from waltap.errors import OffsetError, SinkError
from waltap.ports.offsets.file_store import FileOffsetStore, OffsetUnreadable
from waltap.ports.offsets.offset import Offset, OffsetStore, decoded, encoded
from waltap.ports.offsets.state_folder import OFFSET
from waltap_kafka.client import MISSING, KafkaClients, delivery_reports, kafka_error
from waltap_kafka.errors import KafkaOffsetTopicUnusable
from waltap_kafka.position_record import (
    PARTITION,
    POLICY,
    STEP_S,
    forgets,
    last_value,
    position_topic,
)
from waltap_kafka.properties import OF_OFFSETS, KafkaOffsetProperties
from waltap_kafka.topics import TopicCreator

WAIT_S: Final = 60.0
# librdkafka gives up on a record before `WAIT_S` ends, so that the result is known.
GIVEN_UP_S: Final = 30.0

T = TypeVar("T")


class KafkaOffsetStore(OffsetStore):
    """Store the offset of the pipeline with state folder ``home``.

    The record belongs to the pipeline's name on any machine. `store` returns when every in-sync
    replica has the record. With ``waltap.standby``, the first one after `load` fences the producers
    of other processes: one that was paused cannot write an older offset.
    """

    def __init__(self, properties: KafkaOffsetProperties, home: str) -> None:
        self._topic, self._servers = properties.topic, properties.servers
        self._replicas = properties.replication_factor
        self._key = json.dumps([Path(home).name, {"waltap": "offset"}], separators=(",", ":"))
        self._copy = FileOffsetStore(Path(home) / OFFSET)
        self._clients = KafkaClients(
            "offsets", self._servers, properties.client, OF_OFFSETS, topic=self._topic
        )
        self._fencing: dict[str, object] = {}
        if properties.standby:
            self._fencing = {"transactional.id": f"waltap-{Path(home).name}.offset"}
        self._producer: Producer | None = None

    def load(self) -> Offset | None:
        found = self._asked(self._last)
        if self._fencing:
            self._producer = None
        if found is None:
            return self._copy.load()
        # An empty value: the offset was cleared, so the copy must not count.
        if not found:
            return None
        try:
            stored = decoded(found)
        except ValueError as error:
            record = f"the record {self._key} of topic {self._topic}"
            raise OffsetUnreadable(f"{record} is no offset: {error}", path=record) from error
        with suppress(OffsetError):
            copy = self._copy.load()
            if copy is not None and _continues(copy, stored) and not self._is_own():
                return copy
        return stored

    def store(self, offset: Offset) -> None:
        self._asked(lambda: self._write(encoded(offset)))
        self._copy.store(_Copy(**msgspec.structs.asdict(offset), in_topic=True))

    def clear(self) -> None:
        if self._asked(self._last):
            self._asked(lambda: self._write(None))
        self._copy.clear()

    def _is_own(self) -> bool:
        """Return whether this store wrote the copy; another may have gone back since."""
        return msgspec.json.decode(self._copy.path.read_bytes(), type=_Copy).in_topic

    # --- the topic --------------------------------------------------------------------------------

    def _last(self) -> bytes | None:
        admin, topics = self._topics()
        if not topics.exists(self._topic):
            return None
        # An uncommitted record is valid, too, and one of a process that hangs would delay the others.
        settings = {**self._clients.connection, "isolation.level": "read_uncommitted"}
        return last_value(settings, admin, self._topic, self._key, lambda: False)

    def _topics(self) -> tuple[AdminClient, TopicCreator]:
        """Return a client that has reached the cluster. Raises: SinkError."""
        admin = self._clients.admin(self._clients.connection)
        self._clients.reach(admin)
        return admin, TopicCreator(admin, self._clients.refused)

    def _write(self, value: bytes | None) -> None:
        # One producer keeps the order of its records.
        made = self._producer = self._producer or self._opened()
        if self._fencing:
            made.begin_transaction()
        reported = delivery_reports(
            made, self._topic, value, self._key, WAIT_S, partition=PARTITION
        )
        # The commit names the reason why the record of a transaction failed.
        if reported and self._fencing:
            made.commit_transaction(WAIT_S)
        if not reported or reported[0] is not None:
            trouble = reported[0] if reported else self._clients.watch.trouble
            # A producer that failed fatally never recovers, and a transaction without its record
            # must end; the next write opens another producer.
            if self._fencing or (reported and reported[0] is not None and reported[0].fatal()):
                self._producer = None
            self._fail("it takes no record" if trouble is None else trouble.str())

    def _opened(self) -> Producer:
        """Return a producer for a topic that keeps its records.

        The topic is created if it is missing.
        """
        (admin, topics), wanted = self._topics(), position_topic(self._topic)
        wanted.replication_factor = self._replicas
        topics.create(wanted)
        policy = self._policy(admin)
        if forgets(policy):
            self._fail(
                f"it has {POLICY}={policy}, which forgets a record that is not written again"
            )
        made = self._clients.producer(
            {
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": int(GIVEN_UP_S * 1000),
                **self._fencing,
            },
            {"compression.type": "gzip"},
        )
        if self._fencing:
            made.init_transactions(WAIT_S)
        return made

    def _policy(self, admin: AdminClient) -> str:
        """Return the topic's cleanup policy. Raises: KafkaException."""
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                settings = admin.describe_configs([resource])[resource].result(WAIT_S)
            except KafkaException as raised:
                # Another broker may not know a new topic yet.
                if kafka_error(raised).code() not in MISSING or time.monotonic() >= deadline:
                    raise
                time.sleep(STEP_S)
            else:
                return settings[POLICY].value or ""

    def _asked(self, ask: Callable[[], T]) -> T:
        """Return the result of ``ask``.

        Raises: KafkaOffsetTopicUnusable, ConfigurationError.
        """
        try:
            return ask()
        except KafkaException as raised:
            self._producer = None
            self._fail(kafka_error(raised).str(), raised)
        except SinkError as error:
            self._fail(error.problem, error)

    def _fail(self, text: str, cause: BaseException | None = None) -> NoReturn:
        raise KafkaOffsetTopicUnusable(
            f"topic {self._topic} keeps no offset: {redacted(text)}",
            topic=self._topic,
            servers=self._servers,
        ) from cause


class _Copy(Offset, frozen=True, kw_only=True):
    """An offset with a mark that other stores leave out."""

    in_topic: bool = False


def _continues(later: Offset, stored: Offset) -> bool:
    """Return whether ``later`` is behind ``stored`` in the same slots."""
    return later.partitions.keys() == stored.partitions.keys() and all(
        (new.system_id, new.database, new.slot, new.slot_created_lsn)
        == (old.system_id, old.database, old.slot, old.slot_created_lsn)
        and new.position > old.position
        and new.timeline >= old.timeline
        for name, old in stored.partitions.items()
        for new in (later.partitions[name],)
    )
