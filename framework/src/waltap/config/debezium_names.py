"""What Debezium's PostgreSQL connector and Kafka Connect call things: names, defaults, old names.

Only what no component of waltap declares stands here; the rest is known from the declarations, also of
components that a profile does not choose. `Treatment.IGNORED`: it tunes or names a part that waltap does
not have (queues, workers, JMX), so that any value is accepted and nothing changes.
`Treatment.DEFAULT_ONLY`: waltap behaves as Debezium does with the default value; another value is refused
by name, not ignored, and with the reason where the name does not say it. ``harmless`` are further values
that change nothing.

Source: Debezium 3.6 documentation of the PostgreSQL connector, Kafka Connect 4 worker and source
connector configuration.
"""

import enum
import re
from dataclasses import dataclass

__all__ = [
    "KNOWN_FAMILIES",
    "KNOWN_NAMES",
    "OLD_NAMES",
    "OLD_VALUES",
    "Known",
    "Treatment",
    "known",
]


class Treatment(enum.Enum):
    """What becomes of a known property that no component of waltap declares."""

    IGNORED = "ignored"
    DEFAULT_ONLY = "default only"


@dataclass(frozen=True, slots=True)
class Known:
    """One known property: Debezium's default ("" where it has none) and what becomes of it.

    ``harmless``: other values that change nothing. ``why``: the reason why any other value is refused.
    """

    default: str
    treatment: Treatment = Treatment.DEFAULT_ONLY
    harmless: tuple[str, ...] = ()
    why: str = ""
    component: str = ""

    def accepts(self, value: object) -> bool:
        """Tell whether ``value`` changes nothing: ignored, empty, the default, or harmless."""
        if self.treatment is Treatment.IGNORED:
            return True
        text = str(value).strip().casefold()
        return text in {"", self.default.casefold(), *map(str.casefold, self.harmless)}

    @property
    def allowed(self) -> str | None:
        """Return in words which values are accepted, None when that is none."""
        values = [self.default, *self.harmless] if self.default else list(self.harmless)
        if not values:
            return None
        kind = "its default: " if len(values) == 1 else ""
        return f"leave it out, or {kind}{', '.join(values)}"


def _ignored(*names: str) -> dict[str, Known]:
    return {name: Known("", Treatment.IGNORED) for name in names}


KNOWN_NAMES: dict[str, Known] = {
    # 1. the Connect worker, its converters and its offset storage: waltap has its own
    **_ignored(
        "tasks.max",
        "key.converter.schemas.cache.size",
        "value.converter.schemas.cache.size",
        "errors.log.enable",
        "errors.log.include.messages",
        "errors.retry.timeout",
        "errors.retry.delay.max.ms",
        "errors.deadletterqueue.topic.name",
        "errors.deadletterqueue.topic.replication.factor",
        "errors.deadletterqueue.context.headers.enable",
        "config.action.reload",
        "exactly.once.support",
        "transaction.boundary",
        "transaction.boundary.interval.ms",
        "tasks.max.enforce",
        "offset.flush.timeout.ms",
        "internal.key.converter",
        "internal.value.converter",
        "record.processing.threads",
        "record.processing.shutdown.timeout.ms",
        "record.processing.order",
        "record.processing.with.serial.consumer",
        "task.management.timeout.ms",
        "offset.storage",
        "offset.storage.file.filename",
        "offset.storage.topic",
        "offset.storage.partitions",
        "offset.storage.replication.factor",
        "offset.commit.policy",
        "offsets.storage.topic",
        "bootstrap.servers",
        "group.id",
        "plugin.path",
        "topic.creation.enable",
    ),
    "errors.tolerance": Known("none", why="waltap leaves no record out because it failed"),
    "predicates": Known("", why="a transform says itself what it concerns"),
    # 2. connection
    **_ignored("connection.validation.timeout.ms", "database.autosave", "database.server.id"),
    "database.sslfactory": Known("", why="it names a Java class; libpq makes the TLS connection"),
    "database.connection.factory.class": Known("", why="it names a Java class"),
    # 3. replication
    **_ignored(
        "internal.create.slot.command.timeout",
        "lsn.flush.timeout.ms",
        "lsn.flush.timeout.action",
    ),
    # 4. capture and event shape
    "transaction.metadata.factory": Known(
        "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory",
        why="it names a Java class",
    ),
    "sourceinfo.struct.maker": Known(
        "io.debezium.connector.postgresql.PostgresSourceInfoStructMaker",
        why="it names a Java class",
    ),
    "converters": Known("", why="its classes are Java; a plugin's register_types adds types"),
    "post.processors": Known("", why="its classes are Java; a plugin adds a transform"),
    "event.processing.failure.handling.mode": Known("fail", why="waltap leaves no event out"),
    # 5. topics and heartbeat
    # 6. snapshot, signal, notification
    **_ignored(
        "query.fetch.size",
        "legacy.snapshot.max.threads",
        "incremental.snapshot.allow.schema.changes",
        "include.schema.changes",
        "snapshot.mode.configuration.based.snapshot.schema",
        "snapshot.mode.configuration.based.snapshot.on.schema.error",
        "signal.emit.failure.max.retries",
        "signal.emit.failure.backoff.ms",
        "signal.file",
        "signal.kafka.topic",
        "signal.kafka.bootstrap.servers",
        "signal.kafka.groupId",
        "signal.kafka.poll.timeout.ms",
    ),
    "snapshot.locking.mode.custom.name": Known("", why="it names a Java class"),
    "snapshot.query.mode": Known(
        "select_all", why="snapshot.select.statement.overrides gives a table another SELECT"
    ),
    "snapshot.query.mode.custom.name": Known("", why="it names a Java class"),
    # 7. run time
    **_ignored(
        "max.queue.size",
        "max.queue.size.in.bytes",
        "poll.interval.ms",
        "poll.dispatch.interval.ms",
        "queue.provider.type",
        "executor.shutdown.timeout.ms",
        "custom.metric.tags",
        "statistics.metrics.enabled",
        "custom.sanitize.pattern",
        "internal.log.position.check.enable",
        "internal.advanced.metrics.enable",
        "internal.snapshot.scan.all.columns.force",
        "internal.offset.activity.monitor.interval.ms",
        "internal.custom.retriable.exception",
        "guardrail.collections.max",
    ),
    "guardrail.collections.limit.action": Known(
        "warn", why="waltap does not stop because of many tables"
    ),
}

KNOWN_FAMILIES: tuple[tuple[re.Pattern[str], Known], ...] = (
    (re.compile(r"topic\.creation\..+"), Known("", Treatment.IGNORED)),
    (re.compile(r"snapshot\.max\.threads\.multiplier\..+"), Known("", Treatment.IGNORED)),
    (re.compile(r"signal\.consumer\..+"), Known("", Treatment.IGNORED)),
    (
        re.compile(
            r"(producer|consumer|admin|config\.storage|status\.storage|offset\.storage"
            r"|schema\.history\.internal|database\.history)(\..+)?"
        ),
        Known("", Treatment.IGNORED),
    ),
    (
        re.compile(r"(key|value)\.converter\..*schema\.registry\..+"),
        Known("", why="no format that the profile chooses asks a schema registry"),
    ),
    (re.compile(r"(header|key|value)\.converter\..+"), Known("false")),
    (
        re.compile(
            r"(driver|database)\.(prepareThreshold|preparedStatementCache\w+|defaultRowFetchSize"
            r"|loginTimeout|socketTimeout|reWriteBatchedInserts|autosave|binaryTransfer\w*"
            r"|adaptiveFetch\w*|logUnclosedConnections|loggerLevel|loggerFile|ApplicationName"
            r"|applicationName|connectTimeout|cancelSignalTimeout|tcpKeepAlive|disableColumnSanitiser)"
        ),
        Known("", Treatment.IGNORED),
    ),
    (re.compile(r"driver\..+"), Known("", why="libpq has no such parameter")),
    (re.compile(r"predicates\..+"), Known("", why="a transform says itself what it concerns")),
)

OLD_NAMES: dict[str, str] = {
    "database.server.name": "topic.prefix",
    "schema.whitelist": "schema.include.list",
    "schema.blacklist": "schema.exclude.list",
    "table.whitelist": "table.include.list",
    "table.blacklist": "table.exclude.list",
    "column.whitelist": "column.include.list",
    "column.blacklist": "column.exclude.list",
    "slot.drop_on_stop": "slot.drop.on.stop",
    "toasted.value.placeholder": "unavailable.value.placeholder",
    "sanitize.field.names": "field.name.adjustment.mode",
    "heartbeat.topics.prefix": "topic.heartbeat.prefix",
    "transaction.topic": "topic.transaction",
    "snapshot.custom.class": "snapshot.mode.custom.name",
    "flush.lsn.source": "lsn.flush.mode",
    "internal.slot.seek.to.known.offset.on.start": "offset.mismatch.strategy",
}
"""Names of older Debezium versions → the present name."""

OLD_VALUES: dict[tuple[str, str], str] = {
    ("snapshot.mode", "never"): "no_data",
    ("snapshot.mode", "exported"): "initial",
    ("field.name.adjustment.mode", "true"): "avro",
    ("field.name.adjustment.mode", "false"): "none",
    ("lsn.flush.mode", "true"): "connector",
    ("lsn.flush.mode", "false"): "manual",
    ("offset.mismatch.strategy", "true"): "trust_offset",
    ("offset.mismatch.strategy", "false"): "no_validation",
}
"""(present name, old value) → the present value."""


def known(name: str) -> Known | None:
    """Return what is known of ``name``, None for a name that neither system has."""
    entry = KNOWN_NAMES.get(name)
    if entry is not None:
        return entry
    return next((known for pattern, known in KNOWN_FAMILIES if pattern.fullmatch(name)), None)
