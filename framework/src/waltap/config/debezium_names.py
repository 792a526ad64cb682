"""What Debezium's PostgreSQL connector and Kafka Connect call things: names, defaults, old names.

A name that a component of waltap declares is taken from that declaration; this table is asked
about all others. `Treatment.IGNORED`: it tunes or names a part that waltap does not have (queues,
workers, JMX), so that any value is accepted and nothing changes. `Treatment.DEFAULT_ONLY`: waltap
behaves as Debezium does with the default value; another value is refused by name, not ignored.

Source: Debezium 3.6 documentation of the PostgreSQL connector, Kafka Connect 4 worker and source
connector configuration.
"""

import enum
import re
from dataclasses import dataclass

__all__ = [
    "CONVERTERS",
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
    """One known property: Debezium's default ("" where it has none) and what becomes of it."""

    default: str
    treatment: Treatment = Treatment.DEFAULT_ONLY

    def accepts(self, value: object) -> bool:
        """Tell whether ``value`` changes nothing: ignored, empty, or what the default says."""
        if self.treatment is Treatment.IGNORED:
            return True
        text = str(value).strip().casefold()
        return text in {"", self.default.casefold()}


def _ignored(*names: str) -> dict[str, Known]:
    return {name: Known("", Treatment.IGNORED) for name in names}


KNOWN_NAMES: dict[str, Known] = {
    # 1. the Connect worker, its converters and its offset storage: waltap has its own
    **_ignored(
        "tasks.max",
        "header.converter",
        "key.converter.schemas.cache.size",
        "value.converter.schemas.cache.size",
        "errors.log.enable",
        "errors.log.include.messages",
        "errors.retry.timeout",
        "errors.retry.delay.max.ms",
        "config.action.reload",
        "exactly.once.support",
        "transaction.boundary",
        "offset.storage",
        "offset.storage.file.filename",
        "offset.storage.topic",
        "offset.storage.partitions",
        "offset.storage.replication.factor",
        "offset.commit.policy",
        "offset.flush.timeout.ms",
        "offsets.storage.topic",
        "bootstrap.servers",
        "group.id",
        "plugin.path",
        "topic.creation.enable",
    ),
    "errors.tolerance": Known("none"),
    "predicates": Known(""),
    # 2. connection
    **_ignored("connection.validation.timeout.ms"),
    "database.hostname": Known(""),
    "database.port": Known("5432"),
    "database.user": Known(""),
    "database.password": Known(""),
    "database.dbname": Known(""),
    "database.query.timeout.ms": Known("600000"),
    "database.initial.statements": Known(""),
    "database.tcpKeepAlive": Known("true"),
    "database.sslmode": Known("prefer"),
    "database.sslcert": Known(""),
    "database.sslkey": Known(""),
    "database.sslpassword": Known(""),
    "database.sslrootcert": Known(""),
    "database.sslfactory": Known(""),
    "database.connection.factory.class": Known(""),
    "read.only": Known("false"),
    # 3. replication
    **_ignored(
        "internal.create.slot.command.timeout",
        "lsn.flush.timeout.ms",
        "lsn.flush.timeout.action",
    ),
    "slot.name": Known("debezium"),
    "slot.drop.on.stop": Known("false"),
    "slot.failover": Known("false"),
    "slot.stream.params": Known(""),
    "slot.max.retries": Known("6"),
    "slot.retry.delay.ms": Known("10000"),
    "offset.mismatch.strategy": Known("no_validation"),
    "internal.slot.seek.to.known.offset.on.start": Known("false"),
    "publication.name": Known("dbz_publication"),
    "publication.autocreate.mode": Known("all_tables"),
    "publish.via.partition.root": Known("false"),
    "replica.identity.autoset.values": Known(""),
    "status.update.interval.ms": Known("10000"),
    "lsn.flush.mode": Known("connector"),
    "flush.lsn.source": Known("true"),
    "xmin.fetch.interval.ms": Known("0"),
    "message.prefix.include.list": Known(""),
    "message.prefix.exclude.list": Known(""),
    # 4. capture and event shape
    "topic.prefix": Known(""),
    "schema.include.list": Known(""),
    "schema.exclude.list": Known(""),
    "table.include.list": Known(""),
    "table.exclude.list": Known(""),
    "table.ignore.builtin": Known("true"),
    "column.include.list": Known(""),
    "column.exclude.list": Known(""),
    "skip.messages.without.change": Known("false"),
    "skipped.operations": Known("t"),
    "tombstones.on.delete": Known("true"),
    "time.precision.mode": Known("adaptive"),
    "decimal.handling.mode": Known("precise"),
    "interval.handling.mode": Known("numeric"),
    "hstore.handling.mode": Known("json"),
    "binary.handling.mode": Known("bytes"),
    "money.fraction.digits": Known("2"),
    "include.unknown.datatypes": Known("false"),
    "unavailable.value.placeholder": Known("__debezium_unavailable_value"),
    "message.key.columns": Known(""),
    "column.propagate.source.type": Known(""),
    "datatype.propagate.source.type": Known(""),
    "schema.name.adjustment.mode": Known("none"),
    "field.name.adjustment.mode": Known("none"),
    "schema.refresh.mode": Known("columns_diff"),
    "provide.transaction.metadata": Known("false"),
    "transaction.metadata.factory": Known(
        "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory"
    ),
    "sourceinfo.struct.maker": Known(
        "io.debezium.connector.postgresql.PostgresSourceInfoStructMaker"
    ),
    "extended.headers.enabled": Known("true"),
    "converters": Known(""),
    "post.processors": Known(""),
    "include.schema.comments": Known("false"),
    "event.processing.failure.handling.mode": Known("fail"),
    "event.converting.failure.handling.mode": Known("warn"),
    # 5. topics and heartbeat
    **_ignored("topic.cache.size"),
    "topic.delimiter": Known("."),
    "topic.heartbeat.prefix": Known("__debezium-heartbeat"),
    "topic.heartbeat.name": Known(""),
    "topic.transaction": Known("transaction"),
    "topic.regex": Known(""),
    "topic.replacement": Known(""),
    "topic.key.enforce.uniqueness": Known("true"),
    "topic.key.field.name": Known("__dbz__physicalTableIdentifier"),
    "topic.key.field.regex": Known(""),
    "topic.key.field.replacement": Known(""),
    "heartbeat.interval.ms": Known("0"),
    "heartbeat.action.query": Known(""),
    # 6. snapshot, signal, notification
    **_ignored(
        "query.fetch.size",
        "snapshot.max.threads.multiplier",
        "legacy.snapshot.max.threads",
        "incremental.snapshot.allow.schema.changes",
    ),
    "snapshot.mode.custom.name": Known(""),
    "snapshot.mode.configuration.based.snapshot.data": Known("false"),
    "snapshot.mode.configuration.based.snapshot.schema": Known("false"),
    "snapshot.mode.configuration.based.start.stream": Known("false"),
    "snapshot.mode.configuration.based.snapshot.on.schema.error": Known("false"),
    "snapshot.mode.configuration.based.snapshot.on.data.error": Known("false"),
    "snapshot.isolation.mode": Known("serializable"),
    "snapshot.locking.mode": Known("none"),
    "snapshot.locking.mode.custom.name": Known(""),
    "snapshot.lock.timeout.ms": Known("10000"),
    "snapshot.query.mode": Known("select_all"),
    "snapshot.query.mode.custom.name": Known(""),
    "snapshot.include.collection.list": Known(""),
    "snapshot.select.statement.overrides": Known(""),
    "snapshot.fetch.size": Known("10240"),
    "snapshot.max.threads": Known("1"),
    "snapshot.tables.order.by.row.count": Known("disabled"),
    "snapshot.delay.ms": Known("0"),
    "streaming.delay.ms": Known("0"),
    "incremental.snapshot.chunk.size": Known("1024"),
    "incremental.snapshot.watermarking.strategy": Known("insert_insert"),
    "signal.data.collection": Known(""),
    "signal.enabled.channels": Known("source"),
    "signal.poll.interval.ms": Known("5000"),
    "signal.emit.failure.max.retries": Known("0"),
    "signal.emit.failure.backoff.ms": Known("10000"),
    "signal.file": Known("file-signals.txt"),
    "signal.kafka.topic": Known(""),
    "signal.kafka.bootstrap.servers": Known(""),
    "signal.kafka.groupId": Known("kafka-signal"),
    "signal.kafka.poll.timeout.ms": Known("0"),
    "notification.enabled.channels": Known(""),
    "notification.sink.topic.name": Known(""),
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
    ),
    "max.batch.size": Known("2048"),
    "errors.max.retries": Known("-1"),
    "retriable.restart.connector.wait.ms": Known("10000"),
    "internal.custom.retriable.exception": Known(""),
    "guardrail.collections.max": Known("0"),
    "guardrail.collections.limit.action": Known("warn"),
}

KNOWN_FAMILIES: tuple[tuple[re.Pattern[str], Known], ...] = (
    (re.compile(r"topic\.creation\..+"), Known("", Treatment.IGNORED)),
    (re.compile(r"snapshot\.max\.threads\.multiplier\..+"), Known("", Treatment.IGNORED)),
    (re.compile(r"signal\.consumer\..+"), Known("", Treatment.IGNORED)),
    (
        re.compile(r"(producer|consumer|admin|config\.storage|status\.storage)\..+"),
        Known("", Treatment.IGNORED),
    ),
    (re.compile(r"(header|key|value)\.converter\..+"), Known("false")),
    (re.compile(r"column\.truncate\.to\.\d+\.chars"), Known("")),
    (re.compile(r"column\.mask\.with\.\d+\.chars"), Known("")),
    (re.compile(r"column\.mask\.hash\.(v2\.)?[^.]+\.with\.salt\..+"), Known("")),
    (re.compile(r"snapshot\.select\.statement\.overrides\..+"), Known("")),
    (re.compile(r"driver\..+"), Known("")),
    (re.compile(r"predicates\..+"), Known("")),
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
}
"""Names of older Debezium versions → the present name."""

OLD_VALUES: dict[tuple[str, str], str] = {
    ("snapshot.mode", "never"): "no_data",
    ("snapshot.mode", "exported"): "initial",
    ("field.name.adjustment.mode", "true"): "avro",
    ("field.name.adjustment.mode", "false"): "none",
}
"""(present name, old value) → the present value."""

CONVERTERS: dict[str, str] = {
    "org.apache.kafka.connect.json.JsonConverter": "json",
    "io.confluent.connect.avro.AvroConverter": "avro",
    "io.apicurio.registry.utils.converter.AvroConverter": "avro",
    "io.confluent.connect.protobuf.ProtobufConverter": "protobuf",
    "io.debezium.converters.CloudEventsConverter": "cloudevents",
}
"""Class of ``value.converter`` → name of the format."""


def known(name: str) -> Known | None:
    """Return what is known of ``name``, None for a name that neither system has."""
    entry = KNOWN_NAMES.get(name)
    if entry is not None:
        return entry
    return next((known for pattern, known in KNOWN_FAMILIES if pattern.fullmatch(name)), None)
