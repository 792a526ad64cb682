"""The Kafka sink.

Its producer is idempotent, or transactional with the position inside each transaction.
"""

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from waltap.changes.events.event import Header, Record
from waltap.changes.transactions.position import Positions
from waltap.changes.transactions.transaction import Batch
from waltap.errors import SinkError, StopRequested
from waltap.ports.sink.refusal import RecordsRefused, RefusedEvent
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.sink.stored_position import begins_snapshot
from waltap.ports.source.connector import PreflightCheck
from waltap_kafka.client import NO_SETTINGS, KafkaClients, kafka_error
from waltap_kafka.errors import KafkaNotDelivered, KafkaRecordTooLarge, KafkaTopicIllegal
from waltap_kafka.properties import LEGAL, KafkaSinkProperties
from waltap_kafka.topics import OversizePolicy, TopicCreator
from waltap_kafka.transaction import ENDED, KafkaTransactions

log = logging.getLogger(__name__)

PREFIX: Final = "producer."
STEP_S: Final = 0.25
# Reports of records that this sink dropped itself.
PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})

# Values where librdkafka's default differs from a Java producer's or is too large for one
# pipeline.
DEFAULTS: Final = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",
    "message.max.bytes": 1_048_576,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 65_536,
}

BATCH_BYTES: Final = 1_000_000
# Limits of a batch. Large batches cost client and broker half as much per record. A topic that
# accepts less gets a second client, which one transaction cannot have; so exactly once uses
# smaller batches.
BATCH_BYTES_ONCE: Final = 262_144


class KafkaSink(Sink):
    """Write records to their topics.

    Life cycle: open, (write*, flush)*, close.

    At least once: the producer is idempotent and keeps the order of each key. `flush` waits for
    the report of every record. The sink waits for a broker that is away without limit, and a full
    queue blocks `write`.

    Exactly once: the records since the last `flush` and their position are one Kafka transaction,
    which ends where a source transaction ends. A transaction that takes longer than a third of
    ``transaction.timeout.ms`` is committed in parts, each with its position. An unfinished
    snapshot has no position. `open` fences any other instance and returns the position.
    """

    def __init__(self, properties: KafkaSinkProperties, context: SinkContext) -> None:
        self._properties, self._context = properties, context
        self._once = properties.guarantee == "exactly_once"
        self.capabilities = SinkCapabilities(
            records=True,
            exactly_once=self._once,
            partitions=not self._once,
            whole_transactions=self._once,
            resumes_snapshots=True,
        )
        identity = properties.transactional_id or f"waltap-{context.pipeline}"
        self._clients = KafkaClients(
            "Kafka",
            properties.servers,
            properties.producer,
            PREFIX,
            topic=properties.position_topic or f"{identity}.position",
            transactional_id=identity,
            creates_topics=properties.creation,
        )
        self._clients.settings.setdefault("client.id", f"waltap-{context.pipeline}")
        self._producer: Producer | None = None
        # The client for topics that accept less than a full batch.
        self._narrow: Producer | None = None
        self._narrow_bytes = 0
        # The client of each topic that had a record.
        self._routes: dict[str, Producer] = {}
        # Topics of records that name their partition.
        self._placed: set[str] = set()
        self._transactions: KafkaTransactions | None = None
        self._accepted = Positions()
        self._ends_transaction = True
        self._in_snapshot = False
        # The first failed delivery report.
        self._undelivered: SinkError | None = None
        # The error that ended this instance; each later call raises it.
        self._failure: BaseException | None = None
        self._refused: list[tuple[Record, SinkError]] = []
        # The record under way may be too large and has no neighbours.
        self._alone = False
        # A batch whose records are sent, except the refused ones.
        self._partial: Batch | None = None
        self._stop_seen = 0.0
        self._left_at_stop = 0

    # --- life ---------------------------------------------------------------------------------

    def check(self) -> list[PreflightCheck]:
        """Check that a broker answers and accepts the settings.

        Raises: ConfigurationError, KafkaUnreachable, KafkaRefused.
        """
        brokers = len(self._clients.reach(self._new_producer()).brokers)
        servers = self._properties.servers
        found = f"{servers}: {brokers} {'broker' if brokers == 1 else 'brokers'}"
        if self._context.takes_over and not self._once:
            # The threads of the client send without asking whether this process has the lease.
            found += (
                "; a paused process sends its queued records when it wakes up, behind newer ones"
            )
            remedy = "Set delivery.guarantee = exactly_once: the brokers then refuse such records."
            return [PreflightCheck.warning("sink kafka", found, remedy)]
        return [PreflightCheck.ok("sink kafka", found)]

    def open(self) -> Positions | None:
        """Connect, and with exactly once return this pipeline's position.

        Exactly once also fences any other instance. Raises: ConfigurationError, SinkError,
        StopRequested.
        """
        self._failure = self._undelivered = self._partial = None
        self._accepted = Positions()  # `close` has dropped what was not delivered
        made = self._new_producer()
        self._clients.reach(made)
        admin = self._clients.admin()
        self._topics = TopicCreator(
            admin, self._clients.refused, self._check_wait, creates=self._properties.creation
        )
        self._oversize = OversizePolicy(
            self._properties,
            self._topics,
            int(str(self._producer_settings()["message.max.bytes"])),
            tolerant=self._context.tolerant,
            atomic=self._once,
        )
        self._producer = made
        if not self._once:
            return None
        limit_ms = int(str(self._producer_settings().get("transaction.timeout.ms", 60_000)))
        self._transactions = KafkaTransactions(
            made, self._clients, self._context, timeout_s=limit_ms / 1000
        )
        stored_position = self._transactions.begin_life(self._topics, admin)
        self._accepted = stored_position or Positions()
        return stored_position

    def write(self, batch: Batch) -> None:
        """Queue the records of ``batch`` in the producer.

        A full queue blocks. Raises: SinkError; StopRequested when the run must end and no broker
        accepts records.
        """
        self._raise_failure()
        assert self._producer is not None
        # The engine has handled the refused records; all others are sent.
        if self._partial is batch:
            self._partial = None
            self._take(batch)
            return
        self._refused = []
        try:
            if self._transactions is not None:
                # The snapshot started again, so its rows in the open transaction must not count.
                if self._in_snapshot and begins_snapshot(batch):
                    self._transactions.undo()
                self._transactions.begin()
            self._context.may_write()
            self._produce(batch)
            for producer in self._producers():
                producer.poll(0)
            self._raise_undelivered()
        except KafkaException as raised:
            raise self._fatal(raised) from raised
        # An open transaction has part of the batch and must not be committed.
        except RecordsRefused as refusal:
            if self._once:
                self._failure = refusal.refused[0].error
            raise
        except BaseException as error:
            # Part of the batch is sent: harmless, unless a commit would make it count.
            if self._once or self._undelivered is not None or not isinstance(error, SinkError):
                self._failure = error
            raise
        if self._refused:
            self._partial = batch
            raise RecordsRefused(
                [RefusedEvent(index=_index(batch, record), error=e) for record, e in self._refused]
            )
        self._take(batch)

    def _take(self, batch: Batch) -> None:
        self._in_snapshot = batch.snapshot and bool(batch.parts)
        # Rows of a snapshot that were flushed are not read again.
        self._ends_transaction = self._in_snapshot or batch.ends_transaction
        if self._in_snapshot and self._once:  # no position to resume from
            self._accepted = Positions()
        else:
            self._accepted = self._accepted.advanced(batch.partition, batch.position)

    def flush(self) -> Positions | None:
        """Wait until every record is reported.

        Exactly once commits where a source transaction ends. Raises: SinkError; StopRequested when
        the run must end and no broker accepts records.
        """
        self._raise_failure()
        try:
            if self._transactions is None:
                self._drain()
                return self._accepted or None
            return self._transactions.commit(
                self._accepted, ends_transaction=self._ends_transaction, drain=self._drain
            )
        except KafkaException as raised:
            raise self._fatal(raised) from raised
        except BaseException as error:
            self._failure = error
            raise

    def stored_position(self) -> Positions | None:
        return None if self._transactions is None else self._transactions.committed

    def close(self) -> None:
        """Drop undelivered records and abort an open transaction. It may be called twice."""
        producers = self._producers()
        self._producer = self._narrow = None
        self._routes = {}
        for made in producers:
            made.purge(in_queue=True, in_flight=True, blocking=False)
        if self._transactions is not None:
            self._transactions.abandon()
            self._transactions = None
        with contextlib.suppress(KafkaException):  # late reports have no reader
            for made in producers:
                made.poll(0)

    # --- records ------------------------------------------------------------------------------

    def _producers(self) -> list[Producer]:
        return [made for made in (self._producer, self._narrow) if made is not None]

    def _producer_of(self, topic: str) -> Producer:
        """Return the client for ``topic``.

        The topic exists afterwards and accepts the client's batches.
        """
        found = self._routes.get(topic)
        if found is None:
            self._topics.ensure(topic, self._properties)
            found = self._routes[topic] = self._fitting(self._topics.limits.get(topic))
        return found

    def _fitting(self, limit: int | None) -> Producer:
        """Return a client for topics that accept ``limit`` bytes.

        None means that the limit is unknown.
        """
        assert self._producer is not None
        settings = self._producer_settings()
        if self._once or limit is None or limit >= int(str(settings["batch.size"])):
            return self._producer
        if self._narrow is None or limit < self._narrow_bytes:
            if self._narrow is not None:
                # Records of the old client must not be overtaken by the new one's.
                self._drain()
                self._routes.clear()
            self._narrow_bytes = limit
            self._narrow = self._new_producer({"batch.size": limit})
        return self._narrow

    def _produce(self, batch: Batch) -> None:
        oversize, room = self._oversize, 0
        topic: Any = None  # no record has it
        given: tuple[Header, ...] = ()
        headers: dict[str, Any] = {}  # an empty list would double the time of the call
        producer = self._producer
        assert producer is not None
        produce, watches = producer.produce, oversize.watches
        for record in batch.records or ():
            if record.topic is not topic:  # neighbours share one object, and their headers
                topic = record.topic
                if topic not in self._routes and LEGAL.fullmatch(topic) is None:
                    self._refuse_topic(batch, record)
                    topic = None
                    continue
                producer = self._producer_of(topic)
                produce = producer.produce
                room = oversize.room(record) if watches else 0
            if record.headers is not given:
                given = record.headers
                headers = {"headers": list(given)} if given else {}
                room = oversize.room(record) if watches else 0
            if watches and len(record.value or b"") + len(record.key or b"") > room:
                self._produce_large(producer, record, headers)
                topic = None  # another client may have replaced the topic's
                continue
            while True:
                try:
                    if record.partition is None and record.timestamp is None:
                        produce(topic, record.value, record.key, **headers)
                    else:
                        produce(topic, record.value, record.key, **headers, **self._target(record))
                except BufferError:
                    self._wait_for_room(producer)
                except KafkaException as raised:
                    # An earlier record ended the transaction, and its report has the cause.
                    if kafka_error(raised).code() in ENDED:
                        producer.poll(0)
                        raise
                    error = self._named(kafka_error(raised), record)
                    if not isinstance(error, KafkaRecordTooLarge):
                        raise error from raised
                    named = RefusedEvent(index=_index(batch, record), error=error)
                    raise RecordsRefused([named]) from raised
                else:
                    break

    def _produce_large(self, producer: Producer, record: Record, headers: dict[str, Any]) -> None:
        """Send a record alone that may be too large.

        No neighbour can then be refused with it, and no later record comes before it.
        """
        error: SinkError = self._oversize.error(record)
        # A failed record would abort the whole transaction, so exactly once trusts the estimate.
        if not self._once:
            self._drain()
            self._alone = True
            try:
                producer.produce(
                    record.topic, record.value, record.key, **headers, **self._target(record)
                )
                self._drain()
            except KafkaException as raised:
                error = self._named(kafka_error(raised), record)
                if self._oversize.stops or not isinstance(error, KafkaRecordTooLarge):
                    raise error from raised
            except SinkError as reported:
                error = reported
                if self._oversize.stops or not isinstance(error, KafkaRecordTooLarge):
                    raise
                self._undelivered = None
            else:
                return
            finally:
                self._alone = False
        if self._oversize.refuses:
            self._refused.append((record, error))
            return
        instead = self._oversize.instead_of(record)
        while instead is not None:
            producer = self._producer_of(instead.topic)
            try:
                producer.produce(instead.topic, instead.value, instead.key)
            except BufferError:
                self._wait_for_room(producer)
            else:
                return

    def _refuse_topic(self, batch: Batch, record: Record) -> None:
        """Leave out a record whose topic no broker can have. Raises: RecordsRefused."""
        name = repr(record.topic)
        error = KafkaTopicIllegal(f"Kafka allows no topic with the name {name}", topic=name)
        if not self._context.tolerant:
            raise RecordsRefused([RefusedEvent(index=_index(batch, record), error=error)])
        self._refused.append((record, error))

    def _target(self, record: Record) -> dict[str, Any]:
        """Return a record's partition and time as arguments."""
        target: dict[str, Any] = {}
        if record.partition is not None:
            self._placed.add(record.topic)
            target["partition"] = record.partition
        if record.timestamp is not None:
            target["timestamp"] = record.timestamp
        return target

    # --- waiting ------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Wait until no record is undelivered. Raises: SinkError, StopRequested."""
        for producer in self._producers():
            while producer.flush(STEP_S):
                self._check_wait()
        self._raise_undelivered()

    def _wait_for_room(self, producer: Producer) -> None:
        """Serve reports of a client whose queue is full. Raises: SinkError, StopRequested."""
        producer.poll(STEP_S)
        self._check_wait()
        self._context.may_write()

    def _check_wait(self) -> None:
        """Check whether to continue waiting. Raises: SinkError, StopRequested."""
        self._raise_undelivered()
        if not self._context.stopping():
            return
        unacknowledged, now = sum(map(len, self._producers())), time.monotonic()
        # Each delivered record starts the wait again: only a broker that accepts nothing ends it.
        if not self._stop_seen or unacknowledged < self._left_at_stop:
            self._stop_seen, self._left_at_stop = now, unacknowledged
        elif now - self._stop_seen >= self._properties.stop_wait_ms / 1000:
            log.warning(
                "the run ends with %d records that no broker has acknowledged", unacknowledged
            )
            raise StopRequested

    # --- failures -----------------------------------------------------------------------------

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        """Record a delivery report of librdkafka. Only failures are reported."""
        if error is None or error.code() in PURGED:
            return
        if self._undelivered is None:
            topic = message.topic() or ""
            size = len(message.key() or b"") + len(message.value() or b"")
            # The broker refuses the record with its neighbours.
            if not self._alone:
                size = max(size, int(str(self._producer_settings()["batch.size"])))
            self._undelivered = self._error(error, topic, size)
            # The batch fitted when it was sent: `open` asks for the limit that the topic has now.
            fitted = topic in self._topics.limits and not (self._once or self._alone)
            if fitted and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                text = f"topic {topic} accepts smaller batches than before: {error.str()}"
                self._undelivered = KafkaNotDelivered(text)

    def _fatal(self, raised: BaseException) -> SinkError:
        """Return and keep the error of a call that ended the producer."""
        # The first failed report has the cause; later errors only follow from it.
        self._failure = failure = self._undelivered or self._error(kafka_error(raised))
        return failure

    def _named(self, error: KafkaError, record: Record) -> SinkError:
        return self._error(error, record.topic, len(record.key or b"") + len(record.value or b""))

    def _error(self, error: KafkaError, topic: str = "", size: int = 0) -> SinkError:
        expired = False
        if self._transactions is not None:
            error, expired = self._transactions.reason(error), self._transactions.expired
        return self._clients.error(
            error, topic=topic, size=size, expired=expired, placed=topic in self._placed
        )

    def _raise_undelivered(self) -> None:
        if self._undelivered is not None:
            raise self._undelivered

    def _raise_failure(self) -> None:
        failure = self._failure
        if isinstance(failure, SinkError | StopRequested):
            raise failure
        if failure is not None:
            raise SinkError(
                f"Kafka takes and promises nothing more: it failed before ({failure!r})"
            ) from failure

    # --- settings -----------------------------------------------------------------------------

    def _new_producer(self, more: Mapping[str, object] = NO_SETTINGS) -> Producer:
        return self._clients.producer({**self._producer_settings(), **more})

    def _producer_settings(self) -> dict[str, object]:
        batch = BATCH_BYTES_ONCE if self._once else BATCH_BYTES
        made = {**DEFAULTS, "batch.size": batch, **self._clients.settings}
        # A queue that is smaller than a record would be full for ever.
        least = int(str(made["message.max.bytes"])) // 1024 + 1
        kilobytes = max(least, int(str(made["queue.buffering.max.kbytes"])))
        made |= {"queue.buffering.max.kbytes": kilobytes}
        made |= {"delivery.report.only.error": True, "on_delivery": self._reported}
        if self._once:
            made["transactional.id"] = self._clients.transactional_id
        elif not {"message.timeout.ms", "delivery.timeout.ms"} & set(made):
            made["message.timeout.ms"] = 0  # a record waits until the broker is back
        return made


def _index(batch: Batch, record: Record) -> int:
    return next(at for at, each in enumerate(batch.records or ()) if each is record)
