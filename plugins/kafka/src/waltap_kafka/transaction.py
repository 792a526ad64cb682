"""Kafka transactions of complete source transactions.

Each one contains its position.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from waltap.changes.transactions.position import Positions
from waltap.clock import boot_seconds
from waltap.errors import ConfigurationError, StopRequested
from waltap.ports.sink.sink import SinkContext
from waltap_kafka.client import REFUSALS, KafkaClients, kafka_error
from waltap_kafka.errors import KafkaNotDelivered, KafkaPositionUnusable
from waltap_kafka.position_record import (
    PARTITION,
    POLICY,
    encode,
    forgets,
    last_position,
    position_topic,
)
from waltap_kafka.topics import TopicCreator

log = logging.getLogger(__name__)

STEP_S: Final = 0.5
# Limit of calls at start and of an abort; a commit waits without limit.
INIT_S: Final = 60.0
ABANDON_S: Final = 2.0
TIMEOUT: Final = "producer.transaction.timeout.ms"
# The producer or its transaction had an error before this call.
ENDED: Final = frozenset({KafkaError._FATAL, KafkaError._STATE})


class KafkaTransactions:
    """Run the transactions of one producer, one after the other.

    The broker aborts a transaction that is open for ``timeout_s``.
    """

    def __init__(
        self, producer: Producer, clients: KafkaClients, context: SinkContext, *, timeout_s: float
    ) -> None:
        self._producer, self._clients, self._context = producer, clients, context
        self._timeout_s = timeout_s
        self._begun: float | None = None
        self.committed: Positions | None = None
        self._warned = False

    @property
    def expired(self) -> bool:
        return self._begun is not None and boot_seconds() - self._begun >= self._timeout_s

    def begin_life(self, topics: TopicCreator, admin: AdminClient) -> Positions | None:
        """Fence any other instance and return this pipeline's position.

        It also aborts the transaction that the other instance left open. Raises: SinkError,
        StopRequested, ConfigurationError.
        """
        clients, context = self._clients, self._context
        self._until_done(self._producer.init_transactions, INIT_S)
        name = clients.position_topic
        clients.unwritable = partial(topics.unwritable, name)
        topics.create(position_topic(name))
        policy = topics.setting(name, POLICY)
        if policy and forgets(policy):
            text = f"topic {name} has {POLICY}={policy}, which forgets a position"
            raise KafkaPositionUnusable(f"{text} that is not written again", topic=name)
        held = last_position(clients, admin, context.pipeline, context.stopping)
        # A pipeline without a stored offset starts from the beginning.
        if held is not None and not context.has_offset:
            self._producer.begin_transaction()
            self._producer.produce(name, None, clients.transactional_id.encode(), PARTITION)
            self._until_done(self._producer.commit_transaction, INIT_S)
            held = None
        self.committed = held
        return held

    def begin(self) -> None:
        """Begin a transaction unless one is open. Raises: SinkError."""
        if self._begun is None:
            try:
                self._producer.begin_transaction()
            except KafkaException as raised:
                raise self._clients.error(kafka_error(raised)) from raised
            self._begun = boot_seconds()

    def undo(self) -> None:
        """Abort the open transaction. Raises: SinkError, StopRequested."""
        if self._begun is not None:
            self._until_done(self._producer.abort_transaction, INIT_S)
            self._begun = None

    def commit(
        self, position: Positions, *, ends_transaction: bool, drain: Callable[[], None]
    ) -> Positions | None:
        """Commit records and ``position`` together.

        Return the position that is durable now. If ``ends_transaction`` is false, the last source
        transaction continues, and the commit waits for its end while the timeout allows. Raises:
        SinkError, StopRequested.
        """
        if self._begun is None:
            return self.committed
        if not ends_transaction:
            # The rest of the timeout is left for the drain and the commit.
            if boot_seconds() - self._begun < self._timeout_s / 3:
                return self.committed
            if not self._warned:
                log.warning(
                    "a source transaction is too long for one Kafka transaction: consumers see it in "
                    "pieces; producer.transaction.timeout.ms allows longer ones"
                )
                self._warned = True
        identity = self._clients.transactional_id
        drain()
        if position or self.committed:
            # A snapshot deletes the position from before it.
            value = encode(self._context.pipeline, position) if position else None
            self._producer.produce(
                self._clients.position_topic, value, identity.encode(), PARTITION
            )
        self._context.may_write()
        self._until_done(self._producer.commit_transaction, None)
        self._begun, self.committed = None, position or None
        return self.committed

    def reason(self, error: KafkaError) -> KafkaError:
        """Return ``error``, or the cause that ended the producer or its transaction."""
        if error.code() in ENDED:
            try:
                self._producer.begin_transaction()
            except KafkaException as raised:
                return kafka_error(raised)
        return error

    def abandon(self) -> None:
        """Try to abort the open transaction.

        If that fails, the next instance aborts it at its start.
        """
        if self._begun is None:
            return
        self._begun = None
        try:
            self._producer.abort_transaction(ABANDON_S)
        except KafkaException as raised:
            log.debug("the open transaction is left to the next start: %s", raised)

    def _until_done(self, call: Callable[[float], Any], seconds: float | None) -> None:
        """Call until the call succeeds, repeating it after a lost answer.

        Raises: SinkError, StopRequested, ConfigurationError.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        stop_seen: float | None = None
        while True:
            try:
                # Short calls let the loop see a stop request.
                call(STEP_S)
            except KafkaException as raised:
                error = self.reason(kafka_error(raised))
                if error.txn_requires_abort() and error.code() not in REFUSALS:
                    self.abandon()
                    raise KafkaNotDelivered(f"a transaction was undone: {error.str()}") from raised
                if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                    raise ConfigurationError.of(TIMEOUT, error.str()) from raised
                again = error.retriable() or error.code() == KafkaError._TIMED_OUT
                if not again or (deadline is not None and time.monotonic() > deadline):
                    raise self._clients.error(error, expired=self.expired) from raised
                if self._context.stopping():
                    stop_seen = stop_seen or time.monotonic()
                    if time.monotonic() - stop_seen > ABANDON_S:
                        raise StopRequested from raised
            else:
                return
