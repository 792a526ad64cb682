"""Translation of librdkafka's errors to waltap's."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata

from waltap.base.redaction import redacted
from waltap.errors import SinkError
from waltap_kafka.client_settings import client_settings, refused_setting
from waltap_kafka.errors import (
    KafkaFenced,
    KafkaNotDelivered,
    KafkaRecordTooLarge,
    KafkaRefused,
    KafkaTopicMissing,
    KafkaTopicUnusable,
    KafkaTransactionExpired,
    KafkaUnreachable,
)

log = logging.getLogger(__name__)


# How long a start waits for a broker before it fails with the reason.
REACH_S: Final = 15.0
STEP_S: Final = 0.25
# Topics that one error names.
NAMED: Final = 5
# librdkafka reports a broker that is away twice a second; the log gets one line a minute.
REPORT_AGAIN_S: Final = 60.0

# Waiting does not help against these: an operator must change settings or rights.
REFUSALS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SECURITY_DISABLED,
    }
)
# A reader that joins no group needs no right to one, and the client looks for its coordinator anyway.
GROUP_REFUSED: Final = KafkaError.GROUP_AUTHORIZATION_FAILED
AWAY: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._SSL,
        KafkaError._TIMED_OUT,
        KafkaError._DESTROY_BROKER,
    }
)
# Errors of a connection: librdkafka itself connects again.
LINKS: Final = AWAY | {KafkaError._AUTHENTICATION}
# Brief states of a broker that has just started, or of a new topic.
PASSING: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)


# Settings that producers and consumers share, besides TLS and SASL.
CONNECTION: Final = frozenset(
    {"bootstrap.servers", "security.protocol", "error_cb", "logger", "client.id", "client.rack"}
)
NO_SETTINGS: Final[Mapping[str, object]] = {}


class ClientWatch:
    """Record and log the errors that a client reports.

    librdkafka calls it from its own threads while a caller polls the client.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        # The last error of a connection; None while the broker answers.
        self.trouble: KafkaError | None = None
        self._reported_at = 0.0

    def settings(self) -> dict[str, object]:
        return {"error_cb": self._error, "logger": self}

    def log(self, level: int, template: str, *values: object) -> None:
        """Log a line that librdkafka would print."""
        log.debug(template, *values)

    def _error(self, error: KafkaError) -> None:
        code = error.code()
        if code not in LINKS:
            log.debug("%s: %s", self._what, error.str())
            return
        # the reason of a link comes before "all brokers are down", which has none
        if code != KafkaError._ALL_BROKERS_DOWN or self.trouble is None:
            self.trouble = error
        now = time.monotonic()
        if now - self._reported_at >= REPORT_AGAIN_S:
            self._reported_at = now
            log.warning("%s: %s; waiting for it", self._what, redacted(self.trouble.str()))

    def passed(self) -> None:
        """Record that the broker has answered."""
        if self._reported_at and self.trouble is not None:
            log.info("%s: the broker answers", self._what)
        self.trouble, self._reported_at = None, 0.0


def kafka_error(raised: Any) -> KafkaError:
    """Return the error that ``raised`` carries, or `KafkaError._FATAL`."""
    while isinstance(raised, SystemError):
        raised = raised.__cause__
    if raised is None:
        return KafkaError(KafkaError._FATAL, "the client had a fatal error")
    error = raised if isinstance(raised, KafkaError) else raised.args[0]
    assert isinstance(error, KafkaError)
    return error


def _checked(name: str) -> Any:
    call = getattr(Producer, name)

    def checked(self: Producer, *given: object, **named: object) -> Any:
        try:
            return call(self, *given, **named)
        except (KafkaError, SystemError) as raised:  # type: ignore[misc]
            error = kafka_error(raised)
        raise KafkaException(error)

    return checked


class CheckedProducer(Producer):
    """Raise each failure of a call that serves delivery reports as a KafkaException.

    The client raises a fatal error as a SystemError if it meets it before a report; else as a
    KafkaError, which is no exception to Python, so that only a clause of that name catches it.
    """

    flush, poll, purge = map(_checked, ("flush", "poll", "purge"))
    init_transactions, commit_transaction, abort_transaction = map(
        _checked, ("init_transactions", "commit_transaction", "abort_transaction")
    )


TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
# Another producer with the same transactional id has started, or the broker ended the transaction.
FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
)
MISSING: Final = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})
# The topic refuses the records as they are, so sending them again does not help.
UNFIT: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    }
)


class KafkaClients:
    """Create the clients of one sink, channel or store, and translate their errors."""

    def __init__(
        self,
        what: str,
        servers: str,
        given: Mapping[str, str],
        prefix: str,
        *,
        topic: str,
        transactional_id: str = "-",
        creates_topics: bool = False,
    ) -> None:
        """Translate the settings ``given`` with ``prefix``. Raises: ConfigurationError."""
        self._prefix, self._servers, self.transactional_id = prefix, servers, transactional_id
        # Named by the remedy for missing rights.
        self.position_topic = topic
        # The topic may be created, so an error for a missing one is retried.
        self._creates_topics = creates_topics
        # The topics that the user may not write to, for a refusal of a whole transaction.
        self.unwritable: Callable[[], list[str]] = list
        self.watch = ClientWatch(f"{what} at {servers}")
        self.settings: dict[str, object] = {
            "bootstrap.servers": servers,
            **client_settings(given, prefix),
            **self.watch.settings(),
        }

    @property
    def connection(self) -> dict[str, object]:
        """Return the settings of a producer that a consumer needs, too."""
        settings = self.settings.items()
        return {n: v for n, v in settings if n in CONNECTION or n.startswith(("sasl.", "ssl."))}

    def producer(
        self, fixed: Mapping[str, object], defaults: Mapping[str, object] = NO_SETTINGS
    ) -> Producer:
        """Return a producer; ``fixed`` overrides the given settings.

        Raises: ConfigurationError if librdkafka refuses a setting or its value.
        """
        made: Producer = self._made(CheckedProducer, {**defaults, **self.settings, **fixed})
        return made

    def consumer(
        self, fixed: Mapping[str, object], settings: Mapping[str, object] | None = None
    ) -> Consumer:
        """Return a consumer with all given settings, or with ``settings``.

        Raises: ConfigurationError.
        """
        given = self.settings if settings is None else settings
        made: Consumer = self._made(Consumer, {**given, **fixed})
        return made

    def admin(self, settings: Mapping[str, object] | None = None) -> AdminClient:
        """Return a client for topics. Raises: ConfigurationError."""
        made: AdminClient = self._made(AdminClient, self.settings if settings is None else settings)
        return made

    def _made(self, make: Callable[[dict[str, Any]], Any], settings: Mapping[str, object]) -> Any:
        try:
            return make(dict(settings))
        except KafkaException as raised:
            text = kafka_error(raised).str()
            raise refused_setting(redacted(text), self._prefix) from raised
        # confluent_kafka refuses values of a wrong type by itself, before librdkafka sees them.
        except (TypeError, ValueError) as error:
            raise refused_setting(redacted(str(error)), self._prefix) from error

    def reach(self, client: Any) -> ClusterMetadata:
        """Return the metadata of the cluster that ``client`` connects to.

        Raises: KafkaUnreachable, KafkaRefused.
        """
        deadline = time.monotonic() + REACH_S
        while True:
            try:
                found: ClusterMetadata = client.list_topics(timeout=STEP_S * 4)
            except KafkaException as raised:
                with suppress(KafkaException):  # a fatal one, which `watch` has recorded
                    client.poll(0)
                error = kafka_error(raised)
                trouble = self.watch.trouble or error
                # A refusal or a TLS error does not pass by waiting, so the start fails at once.
                refused = {trouble.code(), error.code()} & (REFUSALS | {KafkaError._SSL})
                if refused or time.monotonic() >= deadline:
                    raise self.refused(trouble) from raised
            else:
                self.watch.passed()
                return found

    # --- failures ---

    def refused(self, error: KafkaError, where: str = "") -> SinkError:
        text, servers = redacted(error.str()), self._servers
        if error.code() not in REFUSALS:
            return KafkaUnreachable(
                f"Kafka at {servers} cannot be reached: {text}", servers=servers
            )
        return KafkaRefused(
            f"{where}Kafka at {servers} refuses: {text}",
            servers=servers,
            positions=self.position_topic,
            transactional_id=self.transactional_id,
        )

    def error(
        self,
        error: KafkaError,
        *,
        topic: str = "",
        size: int = 0,
        expired: bool = False,
        placed: bool = True,
    ) -> SinkError:
        """Return the error for ``error``.

        ``topic`` and ``size`` (bytes) are the record's. ``expired`` means that the transaction was
        open for longer than the broker allows. Without ``placed`` no record named a partition, so a
        missing one was deleted with its topic.
        """
        code, text = error.code(), redacted(error.str())
        where = f"topic {topic}: " if topic else ""
        # The broker fences a producer whose transaction timed out by the same codes as one that was
        # replaced, and the client gives up records with their transaction.
        if expired and code in FENCED | {KafkaError._MSG_TIMED_OUT}:
            return KafkaTransactionExpired(f"{where}a transaction took too long: {text}")
        if code in FENCED:
            return KafkaFenced(
                f"another instance has taken over: {text}", transactional_id=self.transactional_id
            )
        if code in TOO_LARGE:
            problem = f"{where}{size} bytes of a record, or of its batch, are too large: {text}"
            return KafkaRecordTooLarge(problem, topic=topic or "TOPIC", bytes=size)
        if code in REFUSALS | AWAY:
            # The broker names none of a transaction's topics.
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED and not topic:
                names = self.unwritable()
                more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
                where = f"topic {', '.join(names[:NAMED])}{more}: " if names else ""
            return self.refused(error, where)
        missing = code in MISSING or (code == KafkaError._UNKNOWN_PARTITION and not placed)
        if missing and not self._creates_topics:
            return KafkaTopicMissing(f"{where}{text}", topic=topic)
        if code in UNFIT and not missing:
            return KafkaTopicUnusable(f"{where}{text}", topic=topic)
        return KafkaNotDelivered(f"{where}{text}")

    def failure(self, raised: KafkaException, topic: str) -> SinkError:
        """Return the error of a call; the trouble of the link explains it best."""
        return self.error(self.watch.trouble or kafka_error(raised), topic=topic)


def delivery_reports(
    producer: Producer, topic: str, value: bytes | None, key: Any, wait_s: float, **target: Any
) -> list[KafkaError | None]:
    """Send one record and return its delivery report.

    The list is empty if librdkafka has not decided after ``wait_s``.
    """
    reported: list[KafkaError | None] = []

    def report(error: KafkaError | None, _message: Message) -> None:
        reported.append(error)

    producer.produce(topic, value, key, on_delivery=report, **target)
    producer.flush(wait_s)
    return reported
