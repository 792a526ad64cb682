"""The Kafka sink on a real broker: places of keys, topics, TLS and SASL, refusals, fencing; and pipelines into a broker
that is away, refuses, or lacks a topic: nothing is confirmed, nothing lost."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from pydantic import ValidationError
from tests.harness.kafka import (
    WAIT_SECONDS,
    allow,
    configure,
    create,
    limit,
    partitions,
    read_all,
)
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database

from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch
from waltap.errors import ConfigurationError, RetryVerdict, SinkError, StopRequested
from waltap.ports.sink import RecordsRefused
from waltap.ports.sink.refusal import leave_out
from waltap.ports.sink.sink import SinkContext
from waltap_kafka.client import KafkaClients
from waltap_kafka.errors import (
    KafkaFenced,
    KafkaPositionUnusable,
    KafkaRecordTooLarge,
    KafkaRefused,
    KafkaTopicMissing,
    KafkaTopicUnusable,
    KafkaUnreachable,
)
from waltap_kafka.position_record import last_value
from waltap_kafka.properties import KafkaSinkProperties
from waltap_kafka.sink import KafkaSink
from waltap_kafka.transaction import KafkaTransactions


def properties(servers: str, **given: str) -> KafkaSinkProperties:
    """Return properties; names have two underscores for a dot."""
    named = {name.replace("__", "."): value for name, value in given.items()}
    producer = {n: named.pop(n) for n in list(named) if n.startswith("producer.")}
    groups = [n for n in named if n.startswith("topic.creation.") and n.count(".") > 2]
    creation = {n: named.pop(n) for n in groups}
    families = {"producer.NAME": producer, "topic.creation.GROUP.SETTING": creation}
    return KafkaSinkProperties(**{"bootstrap.servers": servers, **named, **families})


CONTEXT = ("has_offset", "stopping", "tolerant", "takes_over", "pipeline")


def sink(servers: str, folder: Path, **given: Any) -> KafkaSink:
    """Return a sink of properties, and of what of `CONTEXT` is given."""
    own = {name: given.pop(name) for name in CONTEXT if name in given}
    context = SinkContext(**{"pipeline": "p", "state_dir": folder, **own})
    return KafkaSink(properties(servers, **given), context)


def batch(lsn: int, *records: Record, index: int = 0) -> Batch:
    return Batch(parts=[], position=at(lsn, index).sole, events=len(records), records=list(records))


class Place:
    """A topic of the test's own, and sinks into it, which are closed when the test ends."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka, self.folder, self.topic = kafka, folder, kafka.topic_name()
        self.sinks: list[KafkaSink] = []

    def create(self, count: int = 1, **config: str) -> None:
        """Make the topic with so many partitions; names of settings have two underscores for a dot."""
        named = {name.replace("__", "."): value for name, value in config.items()}
        create(self.kafka.bootstrap, NewTopic(self.topic, count, config=named))

    def opened(self, servers: str = "", **given: Any) -> KafkaSink:
        self.sinks.append(sink(servers or self.kafka.bootstrap, self.folder, **given))
        self.sinks[-1].open()
        return self.sinks[-1]

    def record(self, key: bytes | None, value: bytes | None = b"v", **more: int) -> Record:
        return Record(self.topic, key, value, **more)

    def read(self, ending: str = "") -> list[Message]:
        """Return what is in the topic, or in one whose name has an ``ending``."""
        return read_all(self.kafka.bootstrap, self.topic + ending)

    def keys(self) -> list[bytes | None]:
        return [message.key() for message in self.read()]


@pytest.fixture
def place(kafka, tmp_path) -> Iterator[Place]:
    made = Place(kafka, tmp_path)
    yield made
    for each in made.sinks:
        each.close()


def flushed(into: KafkaSink, lsn: int, *records: Record, index: int = 0) -> Positions | None:
    into.write(batch(lsn, *records, index=index))
    return into.flush()


def at(lsn: int, index: int = 0) -> Positions:
    return Positions({"": Position(lsn, lsn + 8 if index else 0, index)})


BOTH = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])


# --- places ---------------------------------------------------------------------------------------


def test_keys_land_where_kafkas_own_tests_say(place):
    """The hashes are those of `UtilsTest.testMurmur2` in Apache Kafka."""
    hashes = {
        b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829, b"abc": 479470107,
    }  # fmt: skip
    place.create(7)
    made = place.opened()
    flushed(made, 1, *(place.record(key, b"") for key in hashes))
    places = {m.key(): m.partition() for m in place.read()}
    assert places == {key: (number & 0x7FFFFFFF) % 7 for key, number in hashes.items()}


def test_a_partition_and_a_time_that_a_record_has_are_those_of_the_message(place):
    place.create(3)
    made, stamp, before = place.opened(), 1_767_225_600_123, int(time.time() * 1000) - 60_000
    stamped = place.record(b"k", partition=0, timestamp=stamp)
    flushed(made, 1, *[place.record(b"k", partition=2)] * 2, stamped)
    found = place.read()
    assert [m.partition() for m in found] == [0, 2, 2]
    given, *now = (m.timestamp()[1] for m in found)
    assert (given, min(now) > before) == (stamp, True)
    with pytest.raises(KafkaTopicUnusable, match=r"(?i)partition"):
        for _ in range(2):  # librdkafka may show at once, or in a report
            flushed(made, 2, place.record(b"k", partition=9))


def test_a_time_that_the_topic_refuses_is_not_tried_again(place):
    place.create(message__timestamp__after__max__ms="3600000")
    made = place.opened()
    late = int(time.time() + 86_400) * 1000
    with pytest.raises(KafkaTopicUnusable, match=f"{place.topic}.*timestamp") as refused:
        for _ in range(2):
            flushed(made, 1, place.record(b"k", timestamp=late))
    assert refused.value.retry is RetryVerdict.NEVER
    assert "message.timestamp" in refused.value.advice()


# --- topics ---------------------------------------------------------------------------------------


def test_missing_topics_are_made_as_their_group_says_or_named(place):
    made = place.opened(
        topic__creation__groups="kept",
        topic__creation__default__partitions="2",
        topic__creation__kept__include=".*-kept",
        topic__creation__kept__exclude=".*-not-kept",
        topic__creation__kept__partitions="4",
        topic__creation__kept__cleanup__policy="compact",
    )
    names = [place.topic, f"{place.topic}-kept", f"{place.topic}-not-kept"]
    flushed(made, 1, *(Record(name, b"k", b"v") for name in names))
    assert [partitions(place.kafka.bootstrap, name) for name in names] == [2, 4, 2]
    with pytest.raises(SinkError) as refused:  # a compacted topic takes no record without a key
        flushed(made, 2, Record(f"{place.topic}-kept", None, b"v"))
    assert refused.value.code == KafkaTopicUnusable.code
    made, name = place.opened(topic__creation__default__cleanup__policy="shred"), f"{place.topic}-x"
    with pytest.raises(KafkaTopicUnusable, match=name):
        made.write(batch(1, Record(name, b"k", b"v")))


# --- who may come in ------------------------------------------------------------------------------


def sasl(user: str, password: str) -> dict[str, str]:
    return {
        "producer__security__protocol": "SASL_PLAINTEXT",
        "producer__sasl__jaas__config": "org.apache.kafka.common.security.plain.PlainLoginModule "
        f'required username="{user}" password="{password}";',
        "producer__sasl__mechanism": "PLAIN",
    }


def test_records_go_over_tls_and_to_users_of_sasl(place):
    by_tls = place.opened(
        servers=place.kafka.tls,
        producer__security__protocol="SSL",
        producer__ssl__truststore__type="PEM",
        producer__ssl__truststore__location=str(place.kafka.certificate),
        producer__key__serializer="org.apache.kafka.common.serialization.StringSerializer",
    )
    by_sasl = place.opened(servers=place.kafka.sasl, **sasl("admin", "admin-secret"))
    for made in (by_tls, by_sasl):
        flushed(made, 1, place.record(b"k"))
    assert len(place.read()) == 2


def test_users_of_scram_come_in_over_tls(place):
    user, password = f"scram-{place.topic}", "seven words"
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    made = UserScramCredentialUpsertion(user, info, password.encode())
    for done in admin.alter_user_scram_credentials([made]).values():
        done.result(WAIT_SECONDS)
    topic, transaction = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
    write, make, read = AclOperation.WRITE, AclOperation.CREATE, AclOperation.READ
    for kind, name, *rights in (
        (topic, place.topic, write, make),
        (topic, f"{place.topic}.position", write, make, read),
        (transaction, place.topic, write),
    ):
        allow(place.kafka.bootstrap, user, kind, name, *rights)
    settings = {
        "servers": place.kafka.sasl_tls,
        "producer__security__protocol": "SASL_SSL",
        "producer__sasl__mechanism": "SCRAM-SHA-512",
        "producer__sasl__jaas__config": "org.apache.kafka.common.security.scram.ScramLoginModule "
        f'required username="{user}" password="{password}";',
        "producer__ssl__ca__location": str(place.kafka.certificate),
        "delivery__guarantee": "exactly_once",
        "transactional__id": place.topic,
    }
    deadline = time.monotonic() + WAIT_SECONDS
    while True:  # the broker takes note of users and rights in its own time
        try:
            into = place.opened(**settings)
            assert flushed(into, 1, place.record(b"k")) == at(1)
            break
        except KafkaRefused:
            assert time.monotonic() < deadline
    assert place.keys() == [b"k"]
    # Its reader of the position joins no group, so it needs no right to one.
    assert place.opened(**settings, has_offset=True).stored_position() == at(1)
    wrong = settings["producer__sasl__jaas__config"].replace(password, "six words")
    with pytest.raises(KafkaRefused) as refused:
        place.opened(**{**settings, "producer__sasl__jaas__config": wrong})
    assert "six words" not in str(refused.value)


@pytest.mark.parametrize("lacking", ["", ".position"])
def test_a_transaction_that_may_not_write_to_a_topic_is_refused(place, lacking):
    reads, write = (AclOperation.READ, AclOperation.CREATE), AclOperation.WRITE
    for ending in ("", ".position"):
        rights = reads if ending == lacking else (*reads, write)
        allow(place.kafka.bootstrap, "reader", ResourceType.TOPIC, place.topic + ending, *rights)
    allow(place.kafka.bootstrap, "reader", ResourceType.TRANSACTIONAL_ID, place.topic, write)
    once = {"delivery__guarantee": "exactly_once", "transactional__id": place.topic}
    made = place.opened(servers=place.kafka.sasl, **sasl("reader", "reader-secret"), **once)
    named = f"topic {place.topic}{lacking}: .*Topic authorization failed"
    with pytest.raises(KafkaRefused, match=named) as refused:
        flushed(made, 1, place.record(b"k"))
    assert refused.value.problem.count("topic ") == 1


@pytest.mark.parametrize(
    ("guarantee", "verdict"), [("at_least_once", "warning"), ("exactly_once", "ok")]
)
def test_a_process_with_a_standby_is_told_what_fences_it(kafka, tmp_path, guarantee, verdict):
    """The client's threads send what a paused process had queued when it wakes up, behind its successor's records."""
    given = {"delivery__guarantee": guarantee}
    assert [c.verdict for c in sink(kafka.bootstrap, tmp_path, **given).check()] == ["ok"]
    made = sink(kafka.bootstrap, tmp_path, takes_over=True, **given)
    (check,) = made.check()
    assert check.verdict == verdict
    assert verdict == "ok" or "delivery.guarantee = exactly_once" in check.remedy


def test_a_certificate_that_nobody_vouches_for_is_refused(kafka, tmp_path):
    made = sink(kafka.tls, tmp_path, producer__security__protocol="SSL")
    with pytest.raises(KafkaUnreachable, match=r"(?i)certificate|ssl"):
        made.check()


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("producer__sasl__mechanism", None, r"producer\.sasl\.mechanism: is missing"),
        ("producer__sasl__jaas__config", None, r"producer\.sasl\.jaas\.config: is missing"),
        ("producer__linger__millis", "5", "producer.linger.millis"),
        ("producer__compression__type", "shrink", "compression"),
        ("producer__acks", "1", "in-sync"),
        ("producer__partitioner__class", "com.acme.Mine", "Java class"),
        ("producer__ssl__truststore__location", "trust.jks", "keytool"),
        ("producer__interceptor__classes", "com.acme.Mine", "Java classes"),
        ("producer__transactional__id", "x", "give it as transactional.id"),
        ("producer__max__request__size", "1e6", "a whole number"),
        ("producer__batch__size", "1000.5", "a whole number"),
        ("producer__transaction__timeout__ms", "0x4000", "a whole number"),
    ],
)
def test_a_setting_that_the_client_does_not_know_or_that_a_login_lacks_is_named(
    kafka, tmp_path, name, value, reported
):
    given = {n: v for n, v in (sasl("u", "p") | {name: value}).items() if v is not None}
    for call in (KafkaSink.check, KafkaSink.open):
        with pytest.raises(ConfigurationError, match=reported):
            call(sink(kafka.sasl, tmp_path, **given))


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("transactional__id", "a/b", r"transactional\.id: a/b\.position would be"),
        ("transactional__id", "x" * 241, "position.topic chooses another"),
        ("position__topic", "a b", r"position\.topic: a b would be"),
        ("producer__transaction__timeout__ms", "900001", r"timeout\.ms: .*larger than the maximum"),
    ],
)
def test_a_setting_that_no_transaction_can_have_is_named(kafka, tmp_path, name, value, reported):
    given = {"delivery__guarantee": "exactly_once", name: value}
    with pytest.raises((ConfigurationError, ValidationError), match=reported):
        sink(kafka.bootstrap, tmp_path, **given).open()


# --- size -----------------------------------------------------------------------------------------


def limited(place: Place, guarantee: str, limit: str, **more: Any) -> KafkaSink:
    """Return a sink that is open, where the client or the topic takes records of some 20,000 bytes."""
    place.create(**({"max__message__bytes": "20000"} if limit == "topic" else {}))
    return place.opened(
        delivery__guarantee=guarantee,
        transactional__id=place.topic,
        producer__message__max__bytes="30000" if limit == "client" else "1000000",
        producer__batch__size="10000",
        **more,
    )


@BOTH
def test_a_record_that_is_too_large_is_left_out_where_that_is_wanted(place, guarantee):
    wanted = {"oversize__records": "dead_letter", "oversize__topic": f"{place.topic}-large"}
    made = limited(place, guarantee, "topic", **wanted)
    large = place.record(b"2", bytes(50_000))
    assert flushed(made, 1, place.record(b"1"), large, place.record(b"3")) == at(1)
    assert place.keys() == [b"1", b"3"]
    (reported,) = place.read("-large")
    assert reported.key() == b"2"
    assert json.loads(reported.value() or b"")["topic"] == place.topic


def test_records_behind_a_large_one_arrive_where_its_report_needs_smaller_batches(place):
    """The topic of such records is met first within the run, and takes less than the topic of the records."""
    place.create(max__message__bytes="20000")
    create(
        place.kafka.bootstrap,
        NewTopic(f"{place.topic}-large", 1, config={"max.message.bytes": "9000"}),
    )
    made = place.opened(
        oversize__records="dead_letter",
        oversize__topic=f"{place.topic}-large",
        producer__linger__ms="60000",  # a flush waits for no linger, a client that is dropped sends nothing
    )
    keys = [b"1", b"2", b"3", b"4"]
    each = [place.record(key, bytes(50_000) if key == b"2" else b"v") for key in keys]
    assert flushed(made, 1, *each) == at(1)
    assert (place.keys(), len(place.read("-large"))) == ([b"1", b"3", b"4"], 1)


@BOTH
def test_what_comes_instead_of_large_records_waits_for_a_full_queue(place, guarantee):
    place.create()
    made = place.opened(
        delivery__guarantee=guarantee,
        transactional__id=place.topic,
        oversize__records="dead_letter",
        oversize__topic=f"{place.topic}-large",
        producer__queue__buffering__max__messages="5",
        producer__message__max__bytes="2000",
    )
    each = [place.record(b"%d" % n, bytes(size)) for n in range(30) for size in (9, 9, 3000)]
    assert flushed(made, 1, *each) == at(1)
    assert (len(place.read()), len(place.read("-large"))) == (60, 30)


@BOTH
def test_a_topic_that_no_broker_can_have_refuses_its_record(place, guarantee):
    place.create()
    given = {"delivery.guarantee": guarantee, "transactional.id": place.topic}
    made = place.opened(tolerant=True, **given)
    names = ("", "", "..", "a b", "ü", "x" * 250)
    illegal = [Record(topic, b"x", b"v") for topic in names]
    each = [*illegal[:2], place.record(b"1"), *illegal[2:], place.record(b"2")]
    whole = batch(1, *each)
    with pytest.raises(RecordsRefused) as refused:
        made.write(whole)
    assert [event.index for event in refused.value.refused] == [0, 1, 3, 4, 5, 6]
    assert {event.error.code for event in refused.value.refused} == {"WT-5416"}
    leave_out(whole, refused.value.refused)
    made.write(whole)
    assert made.flush() == at(1)
    assert place.keys() == [b"1", b"2"]
    with pytest.raises(RecordsRefused):
        place.opened(**given).write(batch(2, *each))


def test_a_queue_that_is_smaller_than_a_record_takes_it(place):
    place.create()
    given = {"producer.queue.buffering.max.kbytes": "1"}
    deadline = time.monotonic() + WAIT_SECONDS
    made = place.opened(**given, stopping=lambda: time.monotonic() > deadline)
    each = [place.record(b"%d" % n, bytes(50_000)) for n in range(50)]
    assert flushed(made, 1, *each) == at(1)
    assert len(place.read()) == 50


def test_a_topic_that_is_deleted_during_the_run_is_made_again_by_the_next_try(place):
    place.create()
    impatient = {"producer.topic.metadata.propagation.max.ms": "1000"}
    impatient["producer.topic.metadata.refresh.interval.ms"] = "500"
    made = place.opened(**impatient)
    assert flushed(made, 1, place.record(b"1")) == at(1)
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap})
    admin.delete_topics([place.topic])[place.topic].result(WAIT_SECONDS)
    with pytest.raises(SinkError) as gone:
        while flushed(made, 2, place.record(b"2")):  # until the broker has heard of it
            continue
    assert gone.value.retry is RetryVerdict.RECONNECT
    made.close()
    assert flushed(place.opened(), 2, place.record(b"2")) == at(2)
    assert place.keys() == [b"2"]


@BOTH
@pytest.mark.parametrize("limit", ["client", "topic"])
def test_a_record_that_is_too_large_is_named_where_the_pipeline_goes_on(place, guarantee, limit):
    made = limited(place, guarantee, limit, tolerant=True)
    large = [place.record(key, bytes(50_000)) for key in (b"2", b"4")]
    given = batch(1, place.record(b"1"), large[0], place.record(b"3"), large[1])
    with pytest.raises(RecordsRefused) as refused:
        made.write(given)
    assert [each.index for each in refused.value.refused] == [1, 3]
    assert {type(each.error) for each in refused.value.refused} == {KafkaRecordTooLarge}
    if (
        guarantee == "at_least_once"
    ):  # it could be asked for its position now: the batch is not in it
        assert made.flush() is None
    leave_out(given, refused.value.refused)
    made.write(given)
    assert flushed(made, 2, place.record(b"5")) == at(2)
    assert place.keys() == [b"1", b"3", b"5"]


def test_a_batch_that_is_too_large_refuses_no_later_record(place):
    place.create(max__message__bytes="20000")
    once = {"delivery__guarantee": "exactly_once", "transactional__id": place.topic}
    made = place.opened(tolerant=True, **once)
    made.write(batch(1, *(place.record(b"%d" % n, bytes(1000)) for n in range(100))))
    before = KafkaError(KafkaError._STATE)
    until(
        lambda: made._transactions.reason(before).code() == KafkaError.MSG_SIZE_TOO_LARGE,
        "the refusal",
    )
    with pytest.raises(KafkaRecordTooLarge) as refused:
        made.write(batch(2, place.record(b"x")))
    assert refused.value.fields["bytes"] == 262_144


def test_a_record_that_is_too_large_stops_the_run_otherwise(place):
    place.create(max__message__bytes="20000")
    made = place.opened()
    assert flushed(made, 1, place.record(b"1")) == at(1)
    with pytest.raises(KafkaRecordTooLarge, match=place.topic) as large:
        made.write(
            batch(2, *(place.record(b"2", value) for value in (b"v", bytes(50_000), b"w", None)))
        )
        made.flush()
    assert large.value.retry is RetryVerdict.NEVER
    with pytest.raises(KafkaRecordTooLarge):
        made.flush()
    made.close()
    values = [message.value() for message in place.read()]
    assert values == [b"v", b"v"], "a later record of the key came before the refused one"


def test_a_topic_that_takes_less_than_a_batch_gets_smaller_ones(place):
    limits = {
        place.topic: "20000",
        f"{place.topic}-less": "9000",
        f"{place.topic}-plain": "1048588",
    }
    create(
        place.kafka.bootstrap,
        *(NewTopic(name, 1, config={"max.message.bytes": size}) for name, size in limits.items()),
    )
    made = place.opened()
    keys = [str(number).encode() for number in range(1000)]
    for number, key in enumerate(keys):  # the three by turns, and in order in each
        some = [Record(name, key, bytes(1000)) for name in limits]
        made.write(batch(number + 1, *some))
    assert made.flush() == Positions({"": Position(len(keys))})
    for name in limits:
        assert [m.key() for m in read_all(place.kafka.bootstrap, name)] == keys


@BOTH
def test_a_topic_that_takes_less_than_before_gets_the_records_by_the_next_attempt(place, guarantee):
    place.create()
    each = [place.record(b"%d" % number, bytes(1000)) for number in range(100)]
    given = {"delivery.guarantee": guarantee, "transactional.id": place.topic}
    assert flushed(place.opened(**given), 1, *each) == at(1)
    made = place.opened(**given)
    made.write(batch(2, place.record(b"first")))
    limit(place.kafka.bootstrap, 20_000, place.topic)
    with pytest.raises(SinkError, match=place.topic) as lowered:
        while made.flush():  # until the broker has heard of it
            made.write(batch(2, *each))
    if guarantee == "exactly_once":  # whose client stays the same, so its batches have to
        assert (lowered.value.code, lowered.value.fields["bytes"]) == ("WT-5405", 262_144)
        return
    assert lowered.value.retry is RetryVerdict.RECONNECT
    made.close()
    assert flushed(place.opened(), 2, *each) == at(2)
    assert place.keys()[-len(each) :] == [record.key for record in each]


# --- two instances --------------------------------------------------------------------------------


def test_a_second_instance_ends_the_first(place):
    once = {"delivery__guarantee": "exactly_once", "transactional__id": place.topic}
    first = place.opened(**once)
    assert flushed(first, 1, place.record(b"1", b"first")) == at(1)
    first.write(batch(2, place.record(b"2", b"first, undone")))
    second = place.opened(has_offset=True, **once)
    assert flushed(second, 3, place.record(b"3", b"second")) == at(3)
    with pytest.raises(KafkaFenced) as fenced:
        # Reports of records that are still on their way come with the fatal error, which a call may
        # lack the reason of.
        for _ in range(3):
            first.write(batch(4, *(place.record(b"4", b"first, undone") for _ in range(9))))
        first.flush()
    assert fenced.value.retry is RetryVerdict.NEVER
    first.close()
    assert place.keys() == [b"1", b"3"]
    for has_offset in (False, True):
        with pytest.raises(KafkaPositionUnusable, match="position of pipeline 'p'"):
            place.opened(has_offset=has_offset, pipeline="another", **once)
    anew = sink(place.kafka.bootstrap, place.folder, has_offset=False, **once)
    assert anew.open() is None, "a pipeline that begins anew does not go on from what was before"
    anew.close()


# --- when a Kafka transaction is committed -----------------------------------------------------------


@pytest.fixture
def begun(place) -> Callable[..., tuple[KafkaTransactions, Any]]:
    """Return what makes transactions of which one is open, with a record in it, and their producer."""

    create(
        place.kafka.bootstrap,
        *(NewTopic(name, 1) for name in (place.topic, f"{place.topic}-positions")),
    )

    def make(*, timeout_s: float = 3600, **context: Any) -> tuple[KafkaTransactions, Producer]:
        producer = Producer(
            {"bootstrap.servers": place.kafka.bootstrap, "transactional.id": place.topic}
        )
        producer.init_transactions(WAIT_SECONDS)
        clients = KafkaClients(
            "Kafka", place.kafka.bootstrap, {}, "producer.", topic=f"{place.topic}-positions", transactional_id=place.topic
        )  # fmt: skip
        given = SinkContext(pipeline="p", state_dir=place.folder, **context)
        made = KafkaTransactions(producer, clients, given, timeout_s=timeout_s)
        made.begin()
        producer.produce(place.topic, b"1")
        return made, producer

    return make


def test_a_topic_that_forgets_the_position_is_refused_until_it_is_compacted(place):
    topic = f"{place.topic}.position"
    create(place.kafka.bootstrap, NewTopic(topic, 1))
    once = {"delivery__guarantee": "exactly_once", "transactional__id": place.topic}
    with pytest.raises(KafkaPositionUnusable, match=f"{topic} has cleanup.policy=delete"):
        place.opened(**once)
    configure(place.kafka.bootstrap, "cleanup.policy", "compact", topic)  # the remedy

    def opens() -> bool:
        with suppress(KafkaPositionUnusable):
            return flushed(place.opened(**once), 1, place.record(b"1")) == at(1)
        return False

    until(opens, "the policy")


def test_a_source_transaction_that_goes_on_waits_for_its_end(place, begun):
    transactions, producer = begun()
    for index in (1, 2):
        assert transactions.commit(at(8, index), ends_transaction=False, drain=pytest.fail) is None
    assert transactions.commit(at(16), ends_transaction=True, drain=producer.flush) == at(16)
    assert transactions.committed == at(16)
    assert transactions.commit(at(24), ends_transaction=True, drain=pytest.fail) == at(16), (
        "none is open"
    )
    (position,) = place.read("-positions")
    assert position.key() == place.topic.encode(), "it is committed with the records"


def test_a_heartbeat_within_a_source_transaction_commits_no_half_of_it(place):
    place.create()
    once = {"delivery__guarantee": "exactly_once", "transactional__id": place.topic}
    made = place.opened(**once)
    assert flushed(made, 8, place.record(b"1"), index=1) is None
    assert flushed(made, 8, place.record(b"heartbeat"), index=1) is None
    assert flushed(made, 24, place.record(b"2")) == at(24)
    assert place.keys() == [b"1", b"heartbeat", b"2"]
    # A dead letter that comes while the pipeline is stopped inside of a transaction waits for nothing.
    letter = batch(24, place.record(b"letter"), index=1)
    letter.redelivers = ("16B3-1#1",)
    made.write(letter)
    made.flush()
    assert place.keys()[3:] == [b"letter"]


def test_one_too_long_for_the_broker_is_committed_in_pieces(begun):
    transactions, producer = begun(timeout_s=0)
    assert transactions.commit(at(8, 1), ends_transaction=False, drain=producer.flush) == at(8, 1)


def test_a_transaction_expires_while_the_machine_sleeps(begun, monkeypatch):
    transactions, _ = begun(timeout_s=60)
    assert not transactions.expired
    awake = {time.CLOCK_BOOTTIME: time.clock_gettime(time.CLOCK_BOOTTIME) + 60}
    monkeypatch.setattr(time, "clock_gettime", awake.__getitem__)
    assert transactions.expired


def test_a_process_that_may_not_write_commits_nothing(place, begun):
    def refuse() -> None:
        raise ZeroDivisionError  # another process has the lease

    transactions, producer = begun(may_write=refuse)
    with pytest.raises(ZeroDivisionError):
        transactions.commit(at(8), ends_transaction=True, drain=producer.flush)
    assert transactions.committed is None
    producer.abort_transaction(WAIT_SECONDS)  # refused once the transaction is committed
    assert place.read() == []


# --- pipelines ------------------------------------------------------------------------------------


def pipeline(database: Database, folder: Path, servers: str, **more: Any) -> PipelineRig:
    database.psql("CREATE TABLE items (id int PRIMARY KEY, name text)")
    settings = {
        "key.converter.schemas.enable": False,
        "value.converter.schemas.enable": False,
        "snapshot.mode": "no_data",
        "topic.prefix": database.name,
        "sink.type": "kafka",
        "sink.bootstrap.servers": servers,
    }
    return PipelineRig(database, folder, settings | more)


def rows(database: Database, first: int, last: int) -> None:
    database.psql(
        f"INSERT INTO items SELECT n, repeat('x', 500) FROM generate_series({first}, {last}) n"
    )


def ids(servers: str, database: Database) -> list[int]:
    records = read_all(servers, f"{database.name}.public.items")
    return [json.loads(record.key() or b"{}")["id"] for record in records]


def test_a_broker_that_is_away_for_a_while_gets_everything_in_order(
    database, private_kafka, tmp_path
):
    """More comes than the client's queue holds: it is left in the database, and the slot stays."""
    made = pipeline(
        database,
        tmp_path,
        private_kafka.bootstrap,
        **{
            "sink.producer.queue.buffering.max.messages": 500,
            "sink.topic.creation.default.partitions": 1,
        },
    )
    with made.running() as run:
        rows(database, 1, 10)
        first = database.wal_end()
        run.until(lambda: made.slot_lsns()[0] >= first, "ten rows confirmed")
        private_kafka.kill()
        rows(database, 11, 3_000)
        lost = database.wal_end()
        run.until(lambda: run.engine.status().partitions[0].received_lsn > first, "what came since")
        run.until(lambda: run.engine.status().events > 10, "what the sink took since")
        rows(database, 3_001, 3_010)
        assert made.slot_lsns()[0] < lost, "nothing was delivered, nothing may be confirmed"
        assert not run.ended
        private_kafka.start()
        run.until(lambda: made.slot_lsns()[0] >= lost, "everything confirmed", within=180)
        end = database.wal_end()
        run.until(lambda: made.slot_lsns()[0] >= end, "the end confirmed", within=180)
    assert ids(private_kafka.bootstrap, database) == list(range(1, 3_011))


def test_a_broker_that_is_away_holds_no_stop_and_what_a_close_drops_is_not_promised(
    private_kafka, tmp_path, monkeypatch
):
    topic, stopped, servers = private_kafka.topic_name(), list[bool](), private_kafka.bootstrap
    settings = {"bootstrap.servers": servers}
    last = partial(last_value, settings, AdminClient(settings), topic, "0")
    more = {"stopping": lambda: bool(stopped), "stop__wait__ms": "200"}
    closed, flushing, creating = made = [sink(servers, tmp_path, **more) for _ in range(3)]
    for number, each in enumerate(made):
        each.open()
        assert flushed(each, 1, Record(topic, b"%d" % number, b"v")) == at(1)
    assert last(lambda: False) == b"v"
    private_kafka.kill()
    with monkeypatch.context() as patch:
        patch.setattr("waltap_kafka.position_record.ASK_S", 0.5)
        with pytest.raises(StopRequested):
            last(lambda: True)
        patch.setattr("waltap_kafka.position_record.WAIT_S", 1.0)
        with pytest.raises(KafkaException):  # the client gives no offset, and no error either
            last(lambda: False)
        patch.setattr("waltap_kafka.client.REACH_S", 0.5)
        with pytest.raises(KafkaUnreachable, match=servers):
            sink(servers, tmp_path).open()
    for each in made:
        each.write(batch(2, Record(topic, b"lost", b"v")))
    closed.close()
    stopped.append(True)
    with pytest.raises(StopRequested):
        flushing.flush()
    with pytest.raises(StopRequested):
        creating.write(batch(3, Record(f"{topic}-2", b"lost", b"v")))
        creating.flush()
    stopped.clear()
    for each in made:
        each.close()
    private_kafka.start()
    assert last(lambda: False) == b"v"
    closed.open()
    assert closed.flush() is None
    closed.close()
    keys = {message.key() for message in read_all(servers, topic)}
    assert keys == {b"0", b"1", b"2"}


@pytest.mark.parametrize("reason", ["no topic", "no right"])
def test_a_broker_that_refuses_ends_the_run_and_moves_nothing(database, kafka, tmp_path, reason):
    topic = f"{database.name}.public.items"
    made = pipeline(database, tmp_path, kafka.bootstrap, **{"sink.topic.creation.enable": False})
    with made.running():
        pass
    before = [p.position for p in made.offset().partitions.values()]
    rows(database, 1, 3)
    wanted: type[SinkError] = KafkaTopicMissing
    more: dict[str, Any] = {}
    if reason == "no right":
        create(kafka.bootstrap, NewTopic(topic, 1))
        wanted = KafkaRefused
        login = sasl("reader", "reader-secret").items()
        more = {f"sink.{name.replace('__', '.')}": value for name, value in login}
        more["sink.bootstrap.servers"] = kafka.sasl
    with pytest.raises(wanted) as refused:
        made.catch_up(**more)
    assert refused.value.retry is RetryVerdict.NEVER
    assert topic in refused.value.problem
    after = made.offset()
    assert [p.position for p in after.partitions.values()] == before
    if reason == "no topic":
        create(kafka.bootstrap, NewTopic(topic, 1))  # the remedy
    made.catch_up()
    assert ids(kafka.bootstrap, database) == [1, 2, 3]
