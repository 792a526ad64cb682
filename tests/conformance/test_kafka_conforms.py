"""The Kafka sink keeps the kit's promises on a real broker, both ways of delivering."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import NewTopic
from tests.harness.kafka import WAIT_SECONDS, create, limit, read_all
from tests.harness.servers.kafka import Kafka

from waltap.changes.events.event import Record
from waltap.changes.transactions.transaction import Batch
from waltap.ports.sink.sink import Sink, SinkContext
from waltap.ports.specs import SinkSpec
from waltap_kafka.plugin import register_sinks
from waltap_kafka.properties import KafkaSinkProperties
from waltap_kafka.sink import KafkaSink
from waltap_testing.suites.sink import SinkRig, SinkSuite

(SPEC,) = register_sinks()
TABLES = ("server.public.items", "server.public.notes", "server.public.kinds")
PROBE = "probe"

_numbers = itertools.count(1)


_killed: list[object] = []


class SinkOfItsOwn(KafkaSink):
    """Writes to topics of one rig: the workload's names with a prefix."""

    prefix = ""
    given: tuple[Batch, Batch] | None = None

    def write(self, batch: Batch) -> None:
        if self.given is None or self.given[0] is not batch:
            records = [
                msgspec.structs.replace(record, topic=self.prefix + record.topic)
                for record in batch.records or ()
            ]
            self.given = batch, msgspec.structs.replace(batch, records=records)
        super().write(self.given[1])  # the same object again, where the suite gives the same

    def die(self) -> None:
        """Be gone as after a kill: what is under way may or may not arrive, nothing is undone."""
        # librdkafka has aborted a process that destroyed a producer within a transaction: these stay.
        _killed.append((dict(self._routes), self._narrow, self._producer, self._transactions))
        self._routes.clear()
        if self._narrow is not None:
            self._narrow.purge(blocking=False)
            self._narrow = None
        if self._producer is not None:
            self._producer.purge(blocking=False)
            self._producer = self._transactions = None


# A transaction ends with a marker of 78 bytes, which the broker must accept. Without transactions
# nothing may pass: a tombstone alone is smaller than the marker, and would come before the records
# that the broker refused.
REFUSES_RECORDS = {"at_least_once": 1, "exactly_once": 78}


def rig(kafka: Kafka, folder: Path, guarantee: str) -> SinkRig:
    prefix = f"rig{next(_numbers)}."
    create(kafka.bootstrap, *(NewTopic(prefix + name, 1) for name in TABLES))
    properties = KafkaSinkProperties(
        **{
            "bootstrap.servers": kafka.bootstrap,
            "delivery.guarantee": guarantee,
            "transactional.id": f"{prefix}id",
            # records wait for the flush, which can then fail
            "producer.NAME": {"producer.linger.ms": "30000"},
        }
    )

    alive: list[SinkOfItsOwn] = []

    def make(given: KafkaSinkProperties, context: SinkContext) -> Sink:
        made = SinkOfItsOwn(given, context)
        made.prefix = prefix
        while alive:  # the kit leaves one unclosed where it imitates a kill
            alive.pop().die()
        alive.append(made)
        return made

    def read_back() -> list[Record]:
        return [
            Record(
                str(found.topic()).removeprefix(prefix),
                found.key(),
                found.value(),
                tuple(found.headers() or ()),
            )
            for found in read_all(kafka.bootstrap, *(prefix + name for name in TABLES))
            if found.headers() is None or (PROBE, b"") not in found.headers()
        ]

    spec = SinkSpec(name=SPEC.name, summary=SPEC.summary, properties=SPEC.properties, factory=make)
    names = [prefix + name for name in TABLES]
    # no forks: librdkafka has threads of its own
    return SinkRig(
        spec,
        properties,
        read_back,
        outage=lambda: refusing(kafka, names, REFUSES_RECORDS[guarantee]),
        forks=False,
        asks=True,
        unfit=lambda: "x" * 1_100_000,
    )


@contextlib.contextmanager
def refusing(kafka: Kafka, topics: list[str], size: int) -> Iterator[None]:
    """Let the broker refuse batches of more than ``size`` bytes in ``topics``."""
    limit(kafka.bootstrap, size, *topics)
    until_it_counts(kafka, topics, refuses=True)
    yield
    limit(kafka.bootstrap, 1_000_000, *topics)
    until_it_counts(kafka, topics, refuses=False)


def until_it_counts(kafka: Kafka, topics: list[str], *, refuses: bool) -> None:
    """Wait until the broker goes by the limit that it was given last."""
    for topic in topics:
        refused: list[bool] = []
        producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "on_delivery": lambda error, _: refused.append(
                    error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE
                ),
            }
        )
        deadline = time.monotonic() + WAIT_SECONDS
        while refused[-1:] != [refuses]:
            assert time.monotonic() < deadline
            producer.produce(topic, b"x" * 200, headers=[(PROBE, b"")])
            producer.flush(WAIT_SECONDS)


class TestKafka(SinkSuite):
    @pytest.fixture
    def new_rig(self, kafka) -> Callable[[Path], SinkRig]:
        return lambda folder: rig(kafka, folder, "at_least_once")

    # how a snapshot is cut makes a difference to transactions alone, which have these
    test_a_snapshot_is_whole_whichever_tables_are_empty = None
    test_a_snapshot_that_broke_off_is_replaced_by_the_next = None


class TestKafkaTransactions(SinkSuite):
    @pytest.fixture
    def new_rig(self, kafka) -> Callable[[Path], SinkRig]:
        return lambda folder: rig(kafka, folder, "exactly_once")

    # nothing of these is another with transactions
    test_everything_flushed_is_there_once_and_in_order = None
    test_text_survives = None
    # the same with less to go on from: test_a_kill_before_the_offset_is_stored_doubles_nothing
    test_a_kill_at_any_step_loses_nothing = None
