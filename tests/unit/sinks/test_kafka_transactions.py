"""When a Kafka transaction is committed: the real client, and the broker that librdkafka has for tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from waltap.changes.transactions.position import SOLE, Position, Positions
from waltap.ports.sink.sink import SinkContext
from waltap_kafka.client import KafkaFailures
from waltap_kafka.transaction import KafkaTransactions


def begun(
    folder: Path, *, timeout_s: float, may_write: Callable[[], None] = lambda: None
) -> tuple[KafkaTransactions, Producer]:
    """Return transactions of which one is open, with a record in it."""
    producer = Producer(
        {"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "transactional.id": "t"}
    )
    producer.init_transactions(60)
    failures = KafkaFailures(
        servers="unused", transactional_id="t", position_topic="positions", creates_topics=True
    )
    context = SinkContext(pipeline="p", state_dir=folder, may_write=may_write)
    made = KafkaTransactions(producer, failures, context, timeout_s=timeout_s)
    made.begin()
    producer.produce("items", b"1")
    return made, producer


def first_key(producer: Producer, topic: str) -> bytes:
    """Return the key of the first record in a topic of the producer's broker."""
    (broker,) = producer.list_topics().brokers.values()
    reader = Consumer({"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g"})
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        found = reader.poll(20)
        assert found is not None, f"{topic} has no record"
        assert found.error() is None
        return bytes(found.key())
    finally:
        reader.close()


def at(lsn: int, index: int = 0) -> Positions:
    return Positions({SOLE: Position(lsn, lsn + 8 if index else 0, index)})


def test_a_source_transaction_that_goes_on_waits_for_its_end(tmp_path: Path) -> None:
    transactions, producer = begun(tmp_path, timeout_s=3600)
    drained: list[str] = []

    def drain() -> None:
        drained.append("drained")
        producer.flush()

    for index in (1, 2):
        assert transactions.commit(at(8, index), whole=False, drain=drain) is None
    assert drained == []
    assert transactions.commit(at(16), whole=True, drain=drain) == at(16)
    assert (transactions.committed, drained) == (at(16), ["drained"])
    assert transactions.commit(at(24), whole=True, drain=drain) == at(16), "none is open"


def test_one_too_long_for_the_broker_is_committed_in_pieces(tmp_path: Path) -> None:
    transactions, producer = begun(tmp_path, timeout_s=0)
    assert transactions.commit(at(8, 1), whole=False, drain=producer.flush) == at(8, 1)


def test_the_position_of_whole_transactions_is_committed_with_their_records(tmp_path: Path) -> None:
    transactions, producer = begun(tmp_path, timeout_s=3600)
    assert transactions.commit(at(8), whole=True, drain=producer.flush) == at(8)
    assert first_key(producer, "positions") == b"t"


def test_a_process_that_may_not_write_commits_nothing(tmp_path: Path) -> None:
    class Lost(Exception):
        """Another process has the lease."""

    def refuse() -> None:
        raise Lost

    transactions, producer = begun(tmp_path, timeout_s=3600, may_write=refuse)
    with pytest.raises(Lost):
        transactions.commit(at(8), whole=True, drain=producer.flush)
    assert transactions.committed is None
    producer.abort_transaction(60)  # the broker refuses that once the transaction is committed
