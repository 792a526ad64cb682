"""What Debezium's PostgreSQL connector and Kafka Connect call things: names, defaults, old names.

Only what no component of waltap declares stands here; the rest is known from the declarations, also of
components that a profile does not choose. `PropertyTreatment.IGNORED`: it tunes or names a part
that waltap does
not have (queues, workers, JMX), so that any value is accepted and nothing changes; ``why`` says so.
`PropertyTreatment.DEFAULT_ONLY`: waltap behaves as Debezium does with the default value; another
value is refused
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
    "MAPPED",
    "OLD_NAMES",
    "OLD_VALUES",
    "KnownProperty",
    "PropertyTreatment",
    "format_instead",
    "known",
    "present",
]


class PropertyTreatment(enum.Enum):
    """What becomes of a known property that no component of waltap declares."""

    IGNORED = "ignored"
    DEFAULT_ONLY = "default only"


@dataclass(frozen=True, slots=True)
class KnownProperty:
    """One known property: Debezium's default ("" where it has none) and what becomes of it.

    ``harmless``: other values that change nothing. ``why``: the reason why any other value is refused.
    """

    default: str
    treatment: PropertyTreatment = PropertyTreatment.DEFAULT_ONLY
    harmless: tuple[str, ...] = ()
    why: str = ""
    component: str = ""

    def accepts(self, value: object) -> bool:
        """Tell whether ``value`` changes nothing: ignored, empty, the default, or harmless."""
        if self.treatment is PropertyTreatment.IGNORED:
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


def _ignored(why: str, *names: str) -> dict[str, KnownProperty]:
    return {name: KnownProperty("", PropertyTreatment.IGNORED, why=why) for name in names}


WORKER = "waltap is one process for one pipeline: there is no Connect worker to set up"
RETRIES = (
    "errors.max.retries and retriable.restart.connector.wait.ms say how often, for every failure"
)
JAVA_QUEUE = (
    "there is no queue between two threads: nothing is read from the database before the sink has taken "
    "what came before, and max.batch.size bounds that"
)
OWN_OFFSETS = (
    "the position is kept in waltap.state.dir, or with waltap.offset.store=kafka in offset.storage.topic; "
    "`waltap offsets import` takes over Debezium's"
)
ANOTHER_SINK = "it is Kafka's, and the profile's sink is another"
JMX = "there is no JMX; Engine.status() and the log tell the same"
OPEN_LINEAGE = "waltap sends nothing to OpenLineage"

KNOWN_NAMES: dict[str, KnownProperty] = {
    # 1. the Connect worker, its converters and its offset storage: waltap has its own
    **_ignored(
        "the connector runs one task whatever it says, in Debezium too; snapshot.max.threads reads tables "
        "side by side",
        "tasks.max",
    ),
    **_ignored(
        WORKER,
        "tasks.max.enforce",
        "config.action.reload",
        "group.id",
        "plugin.path",
        "plugin.discovery",
        "rest.port",
        "rest.host.name",
        "listeners",
        "offset.flush.timeout.ms",
        "internal.key.converter",
        "internal.value.converter",
        "task.shutdown.graceful.timeout.ms",
    ),
    **_ignored(
        "schemas are kept per version of a table, as long as it has that version",
        "key.converter.schemas.cache.size",
        "value.converter.schemas.cache.size",
    ),
    **_ignored(
        "an event that fails is told by its error, which names it; one that is left out, in the log",
        "errors.log.enable",
        "errors.log.include.messages",
    ),
    **_ignored(
        RETRIES,
        "errors.retry.timeout",
        "errors.retry.delay.max.ms",
        "errors.retry.delay.initial.ms",
    ),
    **_ignored(
        "a dead letter has all that is known of its event in its value, and its topic is made as the sink "
        "makes others",
        "errors.deadletterqueue.topic.replication.factor",
        "errors.deadletterqueue.context.headers.enable",
    ),
    "exactly.once.support": KnownProperty(
        "requested", why="the profile's sink cannot write data and position together"
    ),
    "exactly.once.source.support": KnownProperty(
        "disabled",
        harmless=("preparing",),
        why="the profile's sink cannot write data and position together",
    ),
    **_ignored(
        "a Kafka transaction of the sink ends where one of the database does",
        "transaction.boundary",
        "transaction.boundary.interval.ms",
    ),
    **_ignored(
        "records are made by one thread, in the order of the database",
        "record.processing.threads",
        "record.processing.shutdown.timeout.ms",
        "record.processing.order",
        "record.processing.with.serial.consumer",
        "task.management.timeout.ms",
        "internal.task.management.timeout.ms",
        "debezium.embedded.shutdown.pause.before.interrupt.ms",
    ),
    "offset.storage": KnownProperty(
        "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        harmless=(
            "org.apache.kafka.connect.storage.KafkaOffsetBackingStore",
            "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
            "io.debezium.storage.file.offset.FileOffsetBackingStore",
        ),
        why=f"it is a Java class; {OWN_OFFSETS}",
    ),
    **_ignored(
        OWN_OFFSETS,
        "offset.storage.file.filename",
        "offset.storage.topic",
        "offset.storage.partitions",
        "offset.storage.replication.factor",
        "offsets.storage.topic",
    ),
    **_ignored(
        "a position is stored as soon as a flush of the sink made it durable: offset.flush.interval.ms",
        "offset.commit.policy",
    ),
    **_ignored(ANOTHER_SINK, "bootstrap.servers", "topic.creation.enable", "topic.creation.groups"),
    **_ignored(
        "waltap is one installation: its plugins have one version each",
        "connector.plugin.version",
        "key.converter.plugin.version",
        "value.converter.plugin.version",
        "header.converter.plugin.version",
    ),
    # 2. connection
    **_ignored(
        "a connection is given up after 15 s, and tried again: driver.connect_timeout sets another time",
        "connection.validation.timeout.ms",
        "database.connection.timeout.ms",
    ),
    **_ignored("it is MySQL's", "database.server.id"),
    "database.sslfactory": KnownProperty(
        "",
        why="it names a Java class; libpq makes the TLS connection, and database.sslmode, sslrootcert, "
        "sslcert and sslkey say how",
    ),
    "database.connection.factory.class": KnownProperty(
        "",
        why="it names a Java class; a plugin's hook choose_password gives the password of each connection",
    ),
    # 3. replication
    **_ignored(
        "the making of a slot is waited for as long as the server works on it, and told every few seconds",
        "internal.create.slot.command.timeout",
    ),
    **_ignored(
        "a confirmation is one message that is sent and not waited for",
        "lsn.flush.timeout.ms",
        "lsn.flush.timeout.action",
    ),
    # 4. capture and event shape
    "transaction.metadata.factory": KnownProperty(
        "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory",
        why="it names a Java class; a transform of events changes transaction blocks",
    ),
    "source.struct.version": KnownProperty(
        "v2",
        why="v1 is the source block of Debezium before 0.10; its connectors of 2.0 and later have none",
    ),
    "sourceinfo.struct.maker": KnownProperty(
        "io.debezium.connector.postgresql.PostgresSourceInfoStructMaker",
        why="it names a Java class; a transform of events changes source blocks",
    ),
    **_ignored(
        "what is known of tables is kept in memory, and is small",
        "memory.management.schemas.class",
        "memory.management.tables.class",
    ),
    # 5. topics and heartbeat
    # 6. snapshot, signal, notification
    **_ignored(
        "queries of the catalogue are small, and read whole; snapshot.fetch.size is that of tables",
        "query.fetch.size",
    ),
    **_ignored(
        "snapshot.max.threads shares tables, and ranges of them, in one way only",
        "legacy.snapshot.max.threads",
        "internal.legacy.snapshot.max.threads",
    ),
    **_ignored(
        "a table may change while an incremental snapshot reads it",
        "incremental.snapshot.allow.schema.changes",
    ),
    **_ignored(
        "PostgreSQL's connector writes no schema changes, in Debezium neither",
        "include.schema.changes",
        "snapshot.mode.configuration.based.snapshot.schema",
        "snapshot.mode.configuration.based.snapshot.on.schema.error",
    ),
    **_ignored(
        "a watermark that cannot be written ends the connection, which is made again",
        "signal.emit.failure.max.retries",
        "signal.emit.failure.backoff.ms",
    ),
    **_ignored(
        "signal.enabled.channels does not name its channel",
        "signal.file",
        "signal.kafka.topic",
        "signal.kafka.bootstrap.servers",
        "signal.kafka.groupId",
        "signal.kafka.poll.timeout.ms",
    ),
    # 7. run time
    **_ignored(
        JAVA_QUEUE,
        "max.queue.size",
        "max.queue.size.in.bytes",
        "poll.interval.ms",
        "poll.dispatch.interval.ms",
        "queue.provider.type",
    ),
    **_ignored(
        "a stop ends every wait at once, and lets the sink finish what it has",
        "executor.shutdown.timeout.ms",
    ),
    **_ignored(
        JMX, "custom.metric.tags", "statistics.metrics.enabled", "internal.advanced.metrics.enable"
    ),
    **_ignored(
        "every start compares the stored position with the slot",
        "internal.log.position.check.enable",
        "internal.offset.activity.monitor.interval.ms",
    ),
    **_ignored(
        "a snapshot reads the columns that are captured", "internal.snapshot.scan.all.columns.force"
    ),
    **_ignored(
        "each error of the server says by its SQLSTATE whether it may pass",
        "internal.custom.retriable.exception",
    ),
    **_ignored(
        "it is of other databases: a pipeline reads database.dbname",
        "database.include.list",
        "database.exclude.list",
    ),
    "openlineage.integration.enabled": KnownProperty("false", why=OPEN_LINEAGE),
    **_ignored(
        OPEN_LINEAGE,
        "openlineage.integration.config.file.path",
        "openlineage.integration.dataset.kafka.bootstrap.servers",
        "openlineage.integration.job.description",
        "openlineage.integration.job.namespace",
        "openlineage.integration.job.owners",
        "openlineage.integration.job.tags",
    ),
}

KNOWN_FAMILIES: tuple[tuple[re.Pattern[str], KnownProperty], ...] = (
    (
        re.compile(r"topic\.creation\..+|producer\..+"),
        KnownProperty("", PropertyTreatment.IGNORED, why=ANOTHER_SINK),
    ),
    (
        re.compile(r"snapshot\.max\.threads\.multiplier\..+"),
        KnownProperty("", PropertyTreatment.IGNORED, why="snapshot.max.threads is 1"),
    ),
    (
        re.compile(r"signal\.consumer\..+"),
        KnownProperty(
            "", PropertyTreatment.IGNORED, why="signal.enabled.channels does not name its channel"
        ),
    ),
    (
        re.compile(r"offset\.storage\.(redis|jdbc|s3|azure|rocketmq|configmap)\..+"),
        KnownProperty("", PropertyTreatment.IGNORED, why=OWN_OFFSETS),
    ),
    (
        re.compile(
            r"(consumer|admin|config\.storage|status\.storage|offset\.storage|rest|listeners"
            r"|config\.providers|ssl|sasl|security|metrics|metric|scheduled\.rebalance|heartbeat\.kafka"
            r"|schema\.history\.internal|database\.history)(\..+)?"
        ),
        KnownProperty("", PropertyTreatment.IGNORED, why=WORKER),
    ),
    (
        re.compile(r"(key|value)\.converter\..*schema\.registry\..+"),
        KnownProperty("", why="no format that the profile chooses asks a schema registry"),
    ),
    (
        re.compile(r"(header|key|value)\.converter\.apicurio\..+"),
        KnownProperty(
            "",
            why="it is for Apicurio's own interface; that of Confluent, which Apicurio has too, takes "
            "SIDE.converter.schema.registry.url=http://HOST:PORT/apis/ccompat/v7, auto.register.schemas, "
            "use.latest.version",
        ),
    ),
    (re.compile(r"(header|key|value)\.converter\..+"), KnownProperty("false")),
)

MAPPED: dict[str, str] = {
    "bootstrap.servers": "the sink `kafka` with that `bootstrap.servers`, where no other sink is given",
    "producer.NAME, producer.override.NAME": "`producer.NAME` of the sink `kafka`; the second wins",
    "topic.creation.NAME": "the same of the sink `kafka`",
    "exactly.once.support=required, exactly.once.source.support=enabled": "`delivery.guarantee="
    "exactly_once` of the sink `kafka`; nothing for one that always is; refused for others",
    "transforms, transforms.NAME.SETTING": "the transforms, in that order",
    "converters, NAME.SETTING": "the converters of columns, in that order",
    "predicates, predicates.NAME.SETTING": "the predicates of transforms",
    "post.processors, post.processors.NAME.SETTING": "transforms, before the others",
    "debezium.source.NAME": "`NAME`",
    "debezium.sink.type": "the sink",
    "debezium.sink.TYPE.NAME": "`NAME` of the sink",
    "debezium.format.key, debezium.format.value, debezium.format.header": "`key.converter` and its like",
    "debezium.format.key.NAME and its like": "`key.converter.NAME` and its like",
    "debezium.format.NAME": "`NAME` of all three converters",
    "debezium.transforms.NAME, debezium.predicates.NAME": "the same without `debezium.`",
    "quarkus.NAME, %PROFILE.NAME": "nothing: waltap has no Quarkus; `%prod.NAME` is taken as `NAME`",
}
"""What a connector's file, its worker's, or Debezium Server's says → what it becomes, in words."""

OLD_NAMES: dict[str, str] = {
    "database.server.name": "topic.prefix",
    "schema.whitelist": "schema.include.list",
    "schema.blacklist": "schema.exclude.list",
    "table.whitelist": "table.include.list",
    "table.blacklist": "table.exclude.list",
    "column.whitelist": "column.include.list",
    "column.blacklist": "column.exclude.list",
    "slot.drop_on_stop": "slot.drop.on.stop",
    "truncate.handling.mode": "skipped.operations",
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
    ("event.processing.failure.handling.mode", "ignore"): "skip",
    ("skipped.operations", "include"): "none",
    ("skipped.operations", "skip"): "t",
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


_FORMAT_INSTEAD = (
    "io.confluent.connect.{}Converter, with schema.registry.url=http://HOST:PORT/apis/ccompat/v7 of the "
    "same registry; consumers then read Confluent's bytes"
)
OLD_FORMATS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (
        re.compile(rf"io\.apicurio\..*{kind}Converter", re.IGNORECASE),
        _FORMAT_INSTEAD.format(confluent),
    )
    for kind, confluent in (
        ("Avro", "avro.Avro"),
        ("Json", "json.JsonSchema"),
        ("Protobuf", "protobuf.Protobuf"),
    )
)
"""Class of a converter that waltap does not have → what to write in its place."""


def format_instead(name: str) -> str | None:
    """Return what to write in the place of a converter's class, None where nothing is known of it."""
    return next((text for pattern, text in OLD_FORMATS if pattern.fullmatch(name.strip())), None)


def known(name: str) -> KnownProperty | None:
    """Return what is known of ``name``, None for a name that neither system has."""
    entry = KNOWN_NAMES.get(name)
    if entry is not None:
        return entry
    return next((known for pattern, known in KNOWN_FAMILIES if pattern.fullmatch(name)), None)


def present(name: str, value: object) -> object:
    """Return what an old value of Debezium's is called now; any other as it is."""
    return OLD_VALUES.get((name, str(value).strip().lower()), value)
