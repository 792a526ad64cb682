"""Topics of the sink, their creation, and records too large for them.

The rules of creation are Kafka Connect's.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import orjson
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from waltap.base.redaction import redacted
from waltap.changes.capture.java_regex import java_pattern
from waltap.changes.events.event import Record
from waltap.errors import SinkError
from waltap_kafka.client import AWAY, REFUSALS, kafka_error
from waltap_kafka.errors import (
    KafkaNotDelivered,
    KafkaRecordTooLarge,
    KafkaTopicMissing,
    KafkaTopicUnusable,
)
from waltap_kafka.properties import KafkaSinkProperties

WAIT_S: Final = 30.0
# Limit of a question that only makes a message better.
RIGHTS_S: Final = 10.0
STEP_S: Final = 0.05
DEFAULT: Final = "default"
NOT_SETTINGS: Final = frozenset({"include", "exclude", "partitions", "replication.factor"})


def _new_topic(name: str, properties: KafkaSinkProperties) -> NewTopic:
    """Return the definition of a topic by the first group that matches."""
    chosen = default = properties.settings_of(DEFAULT)
    for settings in map(properties.settings_of, properties.creation_groups):
        if _fits(name, settings.get("include")) and not _fits(name, settings.get("exclude")):
            inherited = {"partitions", "replication.factor"} & default.keys()
            chosen = {**{each: default[each] for each in inherited}, **settings}
            break
    return NewTopic(
        name,
        # -1 leaves the number to the broker.
        num_partitions=int(chosen.get("partitions", "-1")),
        replication_factor=int(chosen.get("replication.factor", "-1")),
        config={key: value for key, value in chosen.items() if key not in NOT_SETTINGS},
    )


def _fits(name: str, patterns: str | None) -> bool:
    given = filter(None, map(str.strip, (patterns or "").split(",")))
    return any(java_pattern(each, ignore_case=False).fullmatch(name) for each in given)


class TopicCreator:
    """Record existing topics and create missing ones if allowed."""

    def __init__(
        self,
        client: AdminClient,
        refused: Callable[[KafkaError, str], SinkError],
        check_wait: Callable[[], None] = lambda: None,
        *,
        creates: bool = True,
    ) -> None:
        """Take ``check_wait``, which raises if a wait for an answer must end."""
        self._client = client
        self._check_wait = check_wait
        self._creates, self._refused = creates, refused
        self.known: set[str] = set()
        # The largest batch in bytes that a topic accepts, where the broker gives it.
        self.limits: dict[str, int] = {}

    def ensure(self, name: str, properties: KafkaSinkProperties) -> None:
        """Ensure that topic ``name`` exists.

        Raises: KafkaTopicMissing, KafkaTopicUnusable, KafkaRefused, KafkaNotDelivered.
        """
        if name in self.known:
            return
        self.create(_new_topic(name, properties))
        limit = self.setting(name, "max.message.bytes")
        if limit.isdecimal():
            self.limits[name] = int(limit)
        self.known.add(name)

    def create(self, topic: NewTopic) -> None:
        """Create ``topic`` if it is missing and wait until it is visible.

        A topic that another client created is accepted.
        """
        name = topic.topic
        if self.exists(name):
            return
        if not self._creates:
            raise KafkaTopicMissing(
                f"topic {name} does not exist, and topic.creation.enable is false", topic=name
            )
        try:
            self._answer(self._client.create_topics([topic], request_timeout=WAIT_S)[name])
        except KafkaException as raised:
            error = kafka_error(raised)
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._failure(name, "be created", error) from raised
        deadline = time.monotonic() + WAIT_S
        # The answer of the controller precedes the metadata of the brokers.
        while not self.exists(name):
            if time.monotonic() > deadline:
                raise KafkaNotDelivered(f"topic {name} was created and does not appear")
            self._check_wait()
            time.sleep(STEP_S)

    def exists(self, name: str) -> bool:
        """Return whether topic ``name`` exists.

        Raises: SinkError. A list of topics would lack one without a right to it.
        """
        try:
            asked = TopicCollection([name])
            self._answer(self._client.describe_topics(asked, request_timeout=WAIT_S)[name])
        except KafkaException as raised:
            error = kafka_error(raised)
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return False
            # The topic exists; its leader is being elected.
            if error.code() == KafkaError.LEADER_NOT_AVAILABLE:
                return True
            raise self._failure(name, "be looked at", error) from raised
        return True

    def unwritable(self, *more: str) -> list[str]:
        """Return the topics that this user may not write to.

        They are of those in use and ``more``. Without an answer there are none.
        """
        try:
            answers = self._client.describe_topics(
                TopicCollection([*sorted(self.known), *more]),
                include_authorized_operations=True,
                request_timeout=RIGHTS_S,
            )
        except (KafkaException, ValueError):
            return []
        refused = []
        for name, answer in answers.items():
            try:
                rights = answer.result().authorized_operations
            except KafkaException as raised:
                if kafka_error(raised).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    refused.append(name)
            else:
                # Old brokers give no rights.
                if rights and AclOperation.WRITE not in rights:
                    refused.append(name)
        return refused

    def setting(self, topic: str, name: str) -> str:
        """Return a topic's setting, "" if the broker does not give it.

        The user may lack DESCRIBE_CONFIGS.
        """
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            found = self._answer(
                self._client.describe_configs([resource], request_timeout=WAIT_S)[resource]
            )
            return found[name].value or ""
        except (KafkaException, KeyError):
            return ""

    def _answer(self, future: Future[Any]) -> Any:
        """Return the answer, which the client gives or gives up after `WAIT_S`."""
        while True:
            try:
                return future.result(STEP_S)
            except TimeoutError:
                self._check_wait()

    def _failure(self, name: str, what: str, error: KafkaError) -> SinkError:
        text = f"topic {name} cannot {what}: {redacted(error.str())}"
        if error.code() in REFUSALS:
            return self._refused(error, f"topic {name}: ")
        # During a restart every broker may be fenced, so that no broker can get a replica.
        fenced = error.code() == KafkaError.INVALID_REPLICATION_FACTOR and "fenced" in error.str()
        if fenced or error.retriable() or error.code() in AWAY:
            return KafkaNotDelivered(text)
        return KafkaTopicUnusable(text, topic=name)


log = logging.getLogger(__name__)

# Overhead of a batch of one record.
BATCH_BYTES: Final = 61

# Upper estimate of a record's overhead around key, value and headers, and of each header's.
RECORD_BYTES: Final = 64


class OversizePolicy:
    """Apply the policy ``oversize.records``.

    Under ``fail`` the pipeline's own policy decides (``tolerant``). ``atomic``: a refused record
    takes the whole transaction with it.
    """

    def __init__(
        self,
        properties: KafkaSinkProperties,
        topics: TopicCreator,
        client_limit: int,
        *,
        tolerant: bool,
        atomic: bool,
    ) -> None:
        self._topics, self._client_limit = topics, client_limit
        self._policy, self._topic = properties.oversize, properties.oversize_topic
        # The engine receives each record that is too large.
        self.refuses = properties.oversize == "fail"
        # The run ends with the first one.
        self.stops = self.refuses and not tolerant
        # The sink must ask about each record before it is sent: else the broker accepts later
        # records of the same key while it refuses this one. A transaction ends all at once.
        self.watches = not (self.stops and atomic)

    def room(self, record: Record) -> int:
        """Return the limit of key and value of similar records.

        Similar means the same topic and headers. The limit is in bytes before compression.
        """
        limit = min(self._client_limit, self._topics.limits.get(record.topic, self._client_limit))
        return limit - _size(record) + len(record.value or b"") + len(record.key or b"")

    def error(self, record: Record) -> SinkError:
        size = _size(record)
        problem = f"topic {record.topic}: a record of {size} bytes is too large"
        return KafkaRecordTooLarge(problem, topic=record.topic, bytes=size)

    def instead_of(self, record: Record) -> Record | None:
        """Log a skipped record and return its replacement.

        The replacement goes to the topic for such records.
        """
        size = _size(record)
        log.warning(
            "a record of %d bytes is too large for topic %s: left out (oversize.records=%s)",
            size, record.topic, self._policy,
        )  # fmt: skip
        if self._policy != "dead_letter":
            return None
        key = record.key
        # A key of that size could make the replacement too large as well.
        if key is not None and len(key) > self._client_limit // 2:
            key = None
        value = orjson.dumps({"topic": record.topic, "bytes": size})
        return Record(self._topic, key, value)


def _size(record: Record) -> int:
    size = BATCH_BYTES + RECORD_BYTES + len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        size += RECORD_BYTES + len(name) + len(value)
    return size
