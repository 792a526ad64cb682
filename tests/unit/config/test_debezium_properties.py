"""Every property of Debezium's PostgreSQL connector 3.6, of its engine and of a Connect source connector
is implemented, accepted because it changes nothing, or refused with a reason."""

from typing import Literal

import pytest
from pydantic import ValidationError
from waltap.config.debezium_names import KNOWN_NAMES, Treatment
from waltap.config.layers import read_debezium
from waltap.config.property import Properties, declarations, declare
from waltap.config.resolve import Resolution, examine
from waltap.errors import ConfigurationError
from waltap.host import Host
from waltap.reference.properties import components

HOST = Host()
POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"

IMPLEMENTED = """
name connector.class plugin.name header.converter key.converter value.converter key.converter.schemas.enable
value.converter.schemas.enable offset.flush.interval.ms
database.hostname database.port database.user database.password database.dbname
database.query.timeout.ms database.initial.statements database.tcpKeepAlive database.sslmode
database.sslcert database.sslkey database.sslpassword database.sslrootcert
slot.name slot.drop.on.stop slot.failover slot.stream.params slot.max.retries slot.retry.delay.ms
offset.mismatch.strategy lsn.flush.mode xmin.fetch.interval.ms streaming.delay.ms publication.name publication.autocreate.mode publish.via.partition.root
replica.identity.autoset.values status.update.interval.ms message.prefix.include.list
message.prefix.exclude.list
topic.prefix schema.include.list schema.exclude.list table.include.list table.exclude.list
table.ignore.builtin column.include.list column.exclude.list skip.messages.without.change
skipped.operations tombstones.on.delete time.precision.mode decimal.handling.mode
interval.handling.mode hstore.handling.mode binary.handling.mode money.fraction.digits
include.unknown.datatypes unavailable.value.placeholder message.key.columns
column.propagate.source.type datatype.propagate.source.type schema.name.adjustment.mode
field.name.adjustment.mode schema.refresh.mode provide.transaction.metadata extended.headers.enabled
include.schema.comments event.converting.failure.handling.mode
topic.naming.strategy topic.delimiter topic.cache.size topic.heartbeat.prefix topic.heartbeat.name
topic.transaction topic.regex topic.replacement topic.key.enforce.uniqueness topic.key.field.name
topic.key.field.regex topic.key.field.replacement heartbeat.interval.ms heartbeat.action.query
snapshot.mode snapshot.mode.custom.name snapshot.isolation.mode snapshot.locking.mode
snapshot.locking.mode.custom.name snapshot.query.mode snapshot.query.mode.custom.name
snapshot.lock.timeout.ms snapshot.include.collection.list snapshot.select.statement.overrides
snapshot.fetch.size snapshot.max.threads snapshot.max.threads.multiplier
snapshot.tables.order.by.row.count snapshot.delay.ms incremental.snapshot.chunk.size
incremental.snapshot.watermarking.strategy signal.data.collection
max.batch.size errors.max.retries retriable.restart.connector.wait.ms
""".split()

WITH_A_MODE = """
snapshot.mode.configuration.based.snapshot.data snapshot.mode.configuration.based.start.stream
snapshot.mode.configuration.based.snapshot.on.data.error
""".split()
"""Declared by the snapshot mode that reads them."""

WITHOUT_EFFECT = """
tasks.max tasks.max.enforce config.action.reload group.id plugin.path
transaction.boundary transaction.boundary.interval.ms errors.log.enable errors.log.include.messages
errors.retry.timeout errors.retry.delay.max.ms topic.creation.enable topic.creation.default.partitions
offset.storage.file.filename offset.storage.topic offset.storage.partitions
offset.storage.replication.factor offset.flush.timeout.ms offset.commit.policy
offset.storage.redis.address record.processing.threads record.processing.order
record.processing.shutdown.timeout.ms record.processing.with.serial.consumer
task.management.timeout.ms internal.key.converter internal.value.converter
schema.history.internal.kafka.topic schema.history.internal producer.override.acks
connection.validation.timeout.ms database.autosave driver.autosave driver.prepareThreshold
include.schema.changes internal.create.slot.command.timeout lsn.flush.timeout.ms
lsn.flush.timeout.action query.fetch.size legacy.snapshot.max.threads
snapshot.mode.configuration.based.snapshot.schema
snapshot.mode.configuration.based.snapshot.on.schema.error
incremental.snapshot.allow.schema.changes signal.emit.failure.max.retries
signal.emit.failure.backoff.ms signal.file signal.kafka.topic signal.kafka.bootstrap.servers
signal.kafka.groupId signal.kafka.poll.timeout.ms signal.consumer.x
max.queue.size max.queue.size.in.bytes poll.interval.ms poll.dispatch.interval.ms queue.provider.type
executor.shutdown.timeout.ms custom.metric.tags statistics.metrics.enabled
internal.log.position.check.enable internal.advanced.metrics.enable
internal.snapshot.scan.all.columns.force internal.offset.activity.monitor.interval.ms
internal.custom.retriable.exception
""".split()

REFUSED = {
    "database.sslfactory": "a.B",
    "database.connection.factory.class": "a.B",
    "transaction.metadata.factory": "a.B",
    "sourceinfo.struct.maker": "a.B",
    "exactly.once.support": "required",
    "exactly.once.source.support": "enabled",
    "offset.storage": "io.debezium.storage.redis.offset.RedisOffsetBackingStore",
    "openlineage.integration.enabled": "true",
}
"""Value that would change what users get, and is refused with its reason; the default is accepted."""

HARMLESS = {
    "exactly.once.source.support": "PREPARING",
}


def examined(**more: str) -> Resolution:
    values = {
        "connector.class": POSTGRES,
        "topic.prefix": "t",
        "database.dbname": "d",
        "plugin.name": "pgoutput",
        "waltap.sink.type": "null",
        **more,
    }
    return examine(read_debezium(values, "c.properties"), HOST)


DEFAULTS = {
    "binary.handling.mode": "bytes",
    "database.port": "5432",
    "database.query.timeout.ms": "600000",
    "database.sslmode": "prefer",
    "database.tcpKeepAlive": "true",
    "decimal.handling.mode": "precise",
    "errors.max.retries": "-1",
    "event.converting.failure.handling.mode": "warn",
    "extended.headers.enabled": "true",
    "field.name.adjustment.mode": "none",
    "heartbeat.interval.ms": "0",
    "hstore.handling.mode": "json",
    "include.schema.comments": "false",
    "include.unknown.datatypes": "false",
    "incremental.snapshot.chunk.size": "1024",
    "incremental.snapshot.watermarking.strategy": "insert_insert",
    "interval.handling.mode": "numeric",
    "max.batch.size": "2048",
    "money.fraction.digits": "2",
    "offset.mismatch.strategy": "no_validation",
    "provide.transaction.metadata": "false",
    "publication.autocreate.mode": "all_tables",
    "publication.name": "dbz_publication",
    "publish.via.partition.root": "false",
    "retriable.restart.connector.wait.ms": "10000",
    "schema.name.adjustment.mode": "none",
    "schema.refresh.mode": "columns_diff",
    "skip.messages.without.change": "false",
    "skipped.operations": "t",
    "slot.drop.on.stop": "false",
    "slot.failover": "false",
    "slot.max.retries": "6",
    "slot.name": "debezium",
    "slot.retry.delay.ms": "10000",
    "snapshot.delay.ms": "0",
    "snapshot.fetch.size": "10240",
    "snapshot.isolation.mode": "serializable",
    "snapshot.lock.timeout.ms": "10000",
    "snapshot.locking.mode": "none",
    "lsn.flush.mode": "connector",
    "snapshot.max.threads": "1",
    "streaming.delay.ms": "0",
    "xmin.fetch.interval.ms": "0",
    "snapshot.mode.configuration.based.snapshot.data": "false",
    "snapshot.mode.configuration.based.snapshot.on.data.error": "false",
    "snapshot.mode.configuration.based.start.stream": "false",
    "status.update.interval.ms": "10000",
    "table.ignore.builtin": "true",
    "time.precision.mode": "adaptive",
    "tombstones.on.delete": "true",
    "topic.delimiter": ".",
    "topic.heartbeat.prefix": "__debezium-heartbeat",
    "topic.key.enforce.uniqueness": "true",
    "topic.key.field.name": "__dbz__physicalTableIdentifier",
    "topic.transaction": "transaction",
    "unavailable.value.placeholder": "__debezium_unavailable_value",
}
"""Default of Debezium 3.6, of properties that components of waltap declare."""


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_what_is_implemented_is_declared_and_explained(name: str) -> None:
    declared = {d.name for _, _, model in components(HOST) for d in declarations(model)}
    assert name in declared
    default = DEFAULTS.get(name, "")
    if default and not name.startswith(("database.hostname", "topic.prefix")):
        resolution = examined(**{name: default})
        assert name in {e.name for e in resolution.explained}
        assert name not in resolution.ignored


@pytest.mark.parametrize("name", WITH_A_MODE)
def test_what_belongs_to_a_snapshot_mode(name: str) -> None:
    resolution = examined(**{"snapshot.mode": "Configuration_Based", name: "TRUE"})
    assert name in {e.name for e in resolution.explained}


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_has_no_effect_is_accepted_at_any_value_and_noted(name: str) -> None:
    for value in ("1", "some.Thing"):
        resolution = examined(**{name: value})
        told = {*resolution.ignored, *(e.name for e in resolution.explained)}
        assert name in told
        assert resolution.reasons.get(name, "honoured")


@pytest.mark.parametrize(("name", "value"), REFUSED.items())
def test_a_value_that_would_change_what_users_get_is_refused_with_a_reason(
    name: str, value: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        examined(**{name: value})
    (problem,) = error.value.problems
    assert problem.property == name
    assert problem.value == value
    assert problem.what.startswith("is a property of Debezium's that waltap does not support: ")
    entry = KNOWN_NAMES.get(name)
    if entry is not None and entry.default:
        assert entry.default in (problem.allowed or "")
        assert name in examined(**{name: entry.default.upper()}).ignored


@pytest.mark.parametrize(("name", "value"), HARMLESS.items())
def test_a_value_that_changes_nothing_is_accepted(name: str, value: str) -> None:
    assert name in examined(**{name: value}).ignored


SUCCEEDED = [
    ("flush.lsn.source", "true", "lsn.flush.mode", "connector"),
    ("flush.lsn.source", "false", "lsn.flush.mode", "manual"),
    ("internal.slot.seek.to.known.offset.on.start", "TRUE", "offset.mismatch.strategy", "trust_offset"),
    ("internal.slot.seek.to.known.offset.on.start", "false", "offset.mismatch.strategy", "no_validation"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "value", "name", "meaning"), SUCCEEDED)
def test_a_deprecated_switch_means_what_succeeded_it(
    old: str, value: str, name: str, meaning: str
) -> None:
    resolution = examined(**{old: value})
    (explained,) = (each for each in resolution.explained if each.name == name)
    assert explained.value == meaning
    assert any(f"write {name}" in warning for warning in resolution.warnings)


CHANNELS = [
    ("signal.enabled.channels", "source,pigeon", "file, kafka, source"),
    ("notification.enabled.channels", "nowhere", "kafka, log, sink, webhook"),
]


@pytest.mark.parametrize(("name", "value", "known"), CHANNELS)
def test_a_channel_that_is_not_there_is_refused(name: str, value: str, known: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        examined(**{name: value})
    (problem,) = refused.value.problems
    assert (problem.property, problem.value) == (name, value.rpartition(",")[2])
    assert problem.allowed == f"a comma list of: {known}"


def test_channels_are_chosen_and_those_of_java_bring_nothing() -> None:
    profile = examined(
        **{
            "signal.enabled.channels": "source, in-process,JMX, File",
            "signal.file": "x.txt",
            "notification.enabled.channels": "log,jmx",
        }
    ).profile
    (file,), (log,) = profile.signal_channels, profile.notification_channels
    assert (file.spec.name, log.spec.name) == ("file", "log")
    assert file.properties.path.name == "x.txt"
    assert file.properties.path.is_absolute()


def test_defaults_agree_with_the_declarations() -> None:
    """What a component declares for a Debezium file is Debezium's default; of the connector that these
    are the defaults of."""
    different = {}
    for heading, _, model in components(HOST):
        if heading == "Connector `yugabyte`":
            continue
        for declaration in declarations(model):
            wanted = DEFAULTS.get(declaration.name)
            if wanted is None:
                continue
            default = declaration.default
            text = ",".join(default) if isinstance(default, tuple) else str(default)
            if text.casefold() != wanted.casefold():
                different[declaration.name] = (text, wanted)
    assert different == OURS


def test_no_name_that_a_component_declares_is_listed_again() -> None:
    """But for names that have no effect unless their component is chosen."""
    declared = {n for _, _, model in components(HOST) for d in declarations(model) for n in d.names}
    again = {n for n, e in KNOWN_NAMES.items() if n in declared}
    assert again == {
        *("signal.file", "bootstrap.servers", "topic.creation.enable", "signal.kafka.topic"),
        *("topic.creation.groups", "tasks.max"),
        *("offset.storage.topic", "offset.storage.replication.factor"),
        *("signal.kafka.bootstrap.servers", "signal.kafka.groupId", "signal.kafka.poll.timeout.ms"),
    }


def test_a_property_of_a_component_that_is_not_chosen_says_whose_it_is() -> None:
    name = "snapshot.mode.configuration.based.snapshot.data"
    with pytest.raises(ConfigurationError) as error:
        examined(**{name: "true"})
    (problem,) = error.value.problems
    assert problem.property == name
    assert "configuration_based" in problem.what
    assert name in examined(**{name: "false"}).ignored


OURS = {
    "max.batch.size": ("8192", "2048"),
    "schema.name.adjustment.mode": ("avro", "none"),
}
"""Defaults that differ on purpose: batches are not what Debezium polls; the converter of CloudEvents has a
property of its own by a name that the connector has, with Debezium's default for that converter."""

ENUMERATED = [
    pytest.param(declaration, id=f"{heading}:{declaration.name}")
    for heading, _, model in components(HOST)
    for declaration in declarations(model)
    if declaration.choices or declaration.words
]


@pytest.mark.parametrize("declaration", ENUMERATED)
def test_a_closed_set_knows_no_case(declaration) -> None:
    for choice in declaration.choices:
        assert declaration.chosen(f" {choice.swapcase()} ") == choice
    for word in declaration.words:
        assert declaration.chosen(word.upper()) == (word,)


@pytest.mark.parametrize(
    "given",
    [
        {"snapshot.mode": "INITIAL"},
        {"snapshot.mode": "Initial_Only"},
        {"plugin.name": "PGOUTPUT"},
        {"plugin.name": "DecoderBufs"},
        {"publication.autocreate.mode": "FILTERED"},
        {"decimal.handling.mode": "STRING"},
        {"skipped.operations": "T,D"},
        {"skipped.operations": "NONE"},
        {"topic.naming.strategy": "IO.DEBEZIUM.schema.schematopicnamingstrategy"},
        {"connector.class": POSTGRES.upper()},
        {"value.converter": "ORG.apache.kafka.connect.json.JSONConverter"},
        {"two.phase.policy": "PREPARE"},
        {"replica.identity.autoset.values": "public.t:full"},
        {"database.sslmode": "Verify-Full"},
    ],
    ids=str,
)
def test_enumerated_values_are_case_blind_in_a_file(given: dict[str, str]) -> None:
    assert examined(**given).profile


def test_a_number_may_stand_for_a_choice_that_is_a_text() -> None:
    """As TOML writes it; a truth value is no number."""

    class Some(Properties):
        version: Literal["1", "2"] = declare("version", default="2", summary="One of two.")

    assert Some.model_validate({"version": 1}).version == "1"
    for wrong in (3, True, 1.0):
        with pytest.raises(ValidationError):
            Some.model_validate({"version": wrong})
