"""Properties of the Kafka sink, channels and offset store."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from waltap.base.property import MaybeList, Properties, Switch, Whole, declare, declare_family
from waltap.changes.capture.java_regex import java_pattern
from waltap_kafka.client_settings import client_settings

GROUP = re.compile(r"topic\.creation\.([^.]+)\.(.+)")
# Names of topics that a broker accepts.
LEGAL = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")

OF_OFFSETS = "offset.storage.producer."


def _settings(prefix: str) -> AfterValidator:
    """Return the check that a client's settings have equivalents."""

    def checked(given: dict[str, str]) -> dict[str, str]:
        client_settings(given, prefix)
        return given

    return AfterValidator(checked)


class KafkaSinkProperties(Properties):
    """Destination of records, and its delivery guarantee."""

    servers: str = declare(
        "bootstrap.servers",
        summary="Brokers to begin with, HOST:PORT, by comma.",
        examples=("localhost:9092",),
    )
    guarantee: Literal["at_least_once", "exactly_once"] = declare(
        "delivery.guarantee",
        default="at_least_once",
        summary="With exactly_once, records and position are written in Kafka transactions of whole "
        "source transactions; consumers set isolation.level=read_committed.",
    )
    transactional_id: str = declare(
        "transactional.id",
        default="",
        summary="Identity of the pipeline at the broker with exactly_once; empty: waltap-NAME. A second "
        "instance with the same identity ends the first.",
    )
    position_topic: str = declare(
        "position.topic",
        default="",
        summary="Compacted topic of the position with exactly_once, for this pipeline alone; "
        "waltap creates it. Empty: the transactional id followed by .position.",
    )
    oversize: Literal["fail", "skip", "dead_letter"] = declare(
        "oversize.records",
        default="fail",
        summary="If a record is larger than client or topic allow: stop, leave it out with a "
        "warning, or leave it out and write key and size to oversize.topic. With "
        "exactly_once the size before compression counts.",
    )
    oversize_topic: str = declare(
        "oversize.topic",
        default="waltap.oversize",
        summary="Topic for oversize.records=dead_letter. The value is JSON with topic and size.",
    )
    creation: bool = declare(
        "topic.creation.enable",
        default=True,
        summary="Create topics that are missing, as topic.creation.* says; without it they must exist.",
    )
    creation_groups: MaybeList = declare(
        "topic.creation.groups",
        summary="Groups of topics with settings of their own; the first whose include fits decides, after "
        "them `default`.",
    )
    creation_settings: dict[str, str] = declare_family(
        "topic.creation.GROUP.SETTING",
        pattern=r"topic\.creation\.[^.]+\..+",
        summary="Settings of new topics of a group, or of `default`: include and exclude (comma "
        "lists of regular expressions), partitions, replication.factor (-1: the "
        "broker's), and any setting of a topic, such as cleanup.policy.",
    )
    stop_wait_ms: Whole = declare(
        "stop.wait.ms",
        default=5000,
        summary="How long a stop waits for an absent broker; the next run sends the rest again.",
    )
    producer: Annotated[dict[str, str], _settings("producer.")] = declare_family(
        "producer.NAME",
        pattern=r"producer\..+",
        summary="Any property of librdkafka, and properties of the Java producer that have an equivalent.",
    )

    @model_validator(mode="after")
    def _groups_are_named(self) -> "KafkaSinkProperties":
        known = {*self.creation_groups, "default"}
        for name, value in self.creation_settings.items():
            match = GROUP.fullmatch(name)
            assert match is not None
            group, setting = match.groups()
            if group not in known:
                raise ValueError(f"{name}: {group} is not in topic.creation.groups")
            if setting in {"partitions", "replication.factor"} and not re.fullmatch(
                r"-1|[1-9]\d{0,4}", value.strip()
            ):
                raise ValueError(f"{name}: a whole number, or -1 for the broker's")
            if setting in {"include", "exclude"}:
                for pattern in value.split(","):
                    try:
                        java_pattern(pattern.strip(), ignore_case=False)
                    except ValueError as error:
                        raise ValueError(f"{name}: {error}") from error
        return self

    @model_validator(mode="after")
    def _position_topic_is_legal(self) -> "KafkaSinkProperties":
        identity = self.transactional_id
        topic = self.position_topic or (identity and f"{identity}.position")
        if self.guarantee == "exactly_once" and topic and LEGAL.fullmatch(topic) is None:
            name = "position.topic" if self.position_topic else "transactional.id"
            raise ValueError(
                f"{name}: {topic} would be the topic of the position, and Kafka allows up to 249 letters, "
                "digits, dots, _ and -; position.topic chooses another"
            )
        return self

    def idle_names(self, names: Callable[[str], Sequence[str]]) -> Iterator[tuple[str, str]]:
        for name, value in self.creation_settings.items():
            if name.endswith((".include", ".exclude")) and (topics := names("topics")):
                for pattern in filter(None, map(str.strip, value.split(","))):
                    fits = java_pattern(pattern, ignore_case=False).fullmatch
                    if not any(map(fits, topics)):
                        yield name, pattern

    def settings_of(self, group: str) -> dict[str, str]:
        """Return the settings of ``topic.creation.GROUP.*``.

        Their names are without the prefix.
        """
        prefix = f"topic.creation.{group}."
        return {
            name.removeprefix(prefix): value.strip()
            for name, value in self.creation_settings.items()
            if name.startswith(prefix)
        }


class KafkaOffsetProperties(Properties):
    """Location of the offset store `kafka`."""

    topic: str = declare(
        "offset.storage.topic",
        summary="Compacted topic of the offset; Kafka Connect's own topic is possible, since "
        "the record's key is the pipeline's name. A missing topic is created with one "
        "partition.",
        examples=("waltap-offsets",),
        min_length=1,
    )
    servers: str = declare(
        "offset.storage.bootstrap.servers",
        summary="Brokers that have it, HOST:PORT, by comma.",
        examples=("localhost:9092",),
        min_length=1,
    )
    replication_factor: int = declare(
        "offset.storage.replication.factor",
        default=-1,
        ge=-1,
        summary="Replicas of a topic that is created; -1: as the broker has it.",
    )
    client: Annotated[dict[str, str], _settings(OF_OFFSETS)] = declare_family(
        "offset.storage.producer.NAME",
        pattern=r"offset\.storage\.producer\..+",
        summary="Any property of librdkafka for the client of offsets, such as SASL and TLS, "
        "and equivalents of the Java producer's.",
    )
    standby: Switch = declare(
        "waltap.standby", summary="Whether a record of a replaced process is refused."
    )


class KafkaSignalProperties(Properties):
    """Location of the signal channel `kafka`."""

    prefix: str = declare(
        "topic.prefix",
        pattern=r"^[a-zA-Z0-9_.\-]+$",
        summary="Name of this source: the first part of topics and schema names.",
        examples=("inventory",),
    )
    servers: str = declare(
        "signal.kafka.bootstrap.servers",
        summary="Brokers that have the topic of signals, HOST:PORT, by comma.",
        examples=("localhost:9092",),
    )
    topic: str = declare(
        "signal.kafka.topic",
        default="",
        summary="Topic of signals, with one partition; empty: topic.prefix followed by -signal. "
        "The key is topic.prefix, the value JSON with id, type and data.",
    )
    group: str = declare(
        "signal.kafka.groupId",
        default="kafka-signal",
        summary="Consumer group under which the channel notes how far it has read, as GROUP-PREFIX.",
    )
    poll_timeout_ms: Whole = declare(
        "signal.kafka.poll.timeout.ms",
        default=0,
        summary="How long to wait for more records at the end of the topic.",
    )
    consumer: Annotated[dict[str, str], _settings("signal.consumer.")] = declare_family(
        "signal.consumer.NAME",
        pattern=r"signal\.consumer\..+",
        summary="Any property of librdkafka for the consumer of signals, and properties of the Java "
        "consumer that have an equivalent.",
    )


class KafkaNotificationProperties(Properties):
    """Location of the notification channel `kafka`."""

    servers: str = declare(
        "notification.kafka.bootstrap.servers",
        summary="Brokers that have the topic of notifications, HOST:PORT, by comma.",
        examples=("localhost:9092",),
    )
    topic: str = declare(
        "notification.kafka.topic",
        summary="Topic of notifications. The key of a record is JSON with id, the value JSON with id, "
        "type, aggregate_type, additional_data and timestamp.",
        examples=("shop-notifications",),
    )
    producer: Annotated[dict[str, str], _settings("notification.producer.")] = declare_family(
        "notification.producer.NAME",
        pattern=r"notification\.producer\..+",
        summary="Any property of librdkafka for the producer of notifications, and properties of the Java "
        "producer that have an equivalent.",
    )
