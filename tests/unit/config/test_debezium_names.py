"""Every property of Debezium's PostgreSQL connector 3.6, of its engine and of a Connect source connector is
implemented, accepted because it changes nothing, or refused with a reason. What Debezium declares was recorded."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import ValidationError
from tests.harness.examined import POSTGRES, connector_file, examine

from waltap.base.property import Properties, PropertyDeclaration, declarations, declare
from waltap.cli.reference.properties import components
from waltap.config.debezium import OLD_NAMES, debezium_names, known
from waltap.config.layers import load, read_debezium, read_tables
from waltap.config.namespace import ValidationResult
from waltap.config.resolve import survey
from waltap.errors import ConfigurationError, PropertyProblem
from waltap.plugins.host import Host

PEER = Path(__file__).parents[2] / "differential"
RECORDED = json.loads((PEER / "debezium_properties.json").read_text())
NAMES = {name for group in RECORDED.values() for name in group}
PATTERNS = {
    "column.mask.hash.([^.]+).with.salt.(.+)": "column.mask.hash.SHA-256.with.salt.S",
    "column.mask.with.(d+).chars": "column.mask.with.3.chars",
    "column.truncate.to.(d+).chars": "column.truncate.to.3.chars",
}
"""How Debezium declares families of its own → one member."""
DEFAULTS = {
    name: default.strip("[]")
    for group in ("connect", "fields", "connector")
    for name, default in RECORDED[group].items()
    if default not in (None, "", "[]") and name not in PATTERNS
}
OURS = {
    "max.batch.size": "8192",
    "schema.name.adjustment.mode": "avro",
    "offset.flush.interval.ms": "1000",
    "custom.sanitize.pattern": "None",
}
"""Defaults that differ on purpose: batches are not what Debezium polls; the converter of CloudEvents has a
property of its own by a name that the connector has; an offset is stored soon; secrets are known by what they are."""

KNOWN_NAMES = debezium_names().known
HOST = Host()
DECLARED = [
    (heading, declaration)
    for heading, _, model in components(HOST)
    for declaration in declarations(model)
]
SINGLE = {name for _, declaration in DECLARED for name in declaration.names}
FAMILIES = [declaration.family for _, declaration in DECLARED if declaration.family]
MAPPED_NAMES = {
    re.split(r"[.=](?:NAME|required|enabled)", n)[0]
    for k in debezium_names().mapped
    for n in k.split(", ")
}


def examined(given: dict[str, str]) -> ValidationResult:
    return examine(connector_file({"waltap.sink.type": "null", **given}), HOST)


def refused(given: dict[str, str]) -> PropertyProblem:
    with pytest.raises(ConfigurationError) as error:
        examined(given)
    (problem,) = error.value.problems
    return problem


def test_something_becomes_of_every_property():
    assert len(NAMES) > 170
    for name in NAMES:
        member = PATTERNS.get(name, name)
        declared = member in SINGLE or any(family.fullmatch(member) for family in FAMILIES)
        entry = known(member)
        assert declared or entry or member in {*OLD_NAMES, *MAPPED_NAMES}, name
        if not declared and entry is not None:
            assert entry.why or member in MAPPED_NAMES, f"{name}: nobody says why"


def test_a_file_with_every_default_runs():
    """And each of its properties is honoured, or reported to have no effect, with the reason."""
    resolution = examined(DEFAULTS | {"connector.class": POSTGRES, "topic.prefix": "t"})
    honoured = {each.name for each in resolution.explained}
    for name in DEFAULTS:
        now = OLD_NAMES.get(name, name)
        assert now in honoured or resolution.ignored.get(now) or now in MAPPED_NAMES, name
        if now in SINGLE and now not in KNOWN_NAMES and "configuration.based" not in now:
            assert now in honoured, name
            assert now not in resolution.ignored, name


def test_defaults_are_those_of_debezium_but_for_ours():
    different = {}
    for heading, declaration in DECLARED:
        wanted = DEFAULTS.get(declaration.name)
        if wanted is None or heading == "Connector `yugabyte`":
            continue
        default = declaration.default
        text = ",".join(default) if isinstance(default, tuple) else str(default)
        if text.casefold() != wanted.casefold():
            different[declaration.name] = text
    assert different == OURS


WORKLOADS = {
    frozenset(re.findall(r"^([^#=\n]+)=", path.read_text(), re.MULTILINE)): path
    for path in sorted((PEER / "corpora").rglob("*.properties"))
}
"""The properties that a workload sets → one workload with them."""


@pytest.mark.parametrize("path", WORKLOADS.values(), ids=lambda p: f"{p.parent.name}")
def test_a_file_that_debezium_runs_is_taken_and_nothing_in_it_is_without_effect(path):
    resolution = examine(load(path), HOST, sink="null")
    assert (resolution.ignored, resolution.warnings) == ({}, [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metadata.source": "id:header"}, "must be value or header"),
        ({"metadata.source": "value,subject:header"}, "no such word: subject:header"),
        ({"metadata.source": "value,value"}, "must be value or header"),
        (
            {
                "metadata.source": "value,traceparent:generate",
                "opentelemetry.tracing.attributes.enable": "true",
            },
            "needs traceparent:header",
        ),
    ],
)
def test_cloud_events_say_which_headers_they_cannot_read(given, said):
    kind = "io.debezium.converters.CloudEventsConverter"
    named = {f"value.converter.{name}": value for name, value in given.items()}
    assert said in refused({"value.converter": kind, "key.converter": "json", **named}).what


OUTBOX = {
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "value.converter": "io.debezium.converters.BinaryDataConverter",
    "value.converter.schemas.enable": "true",
}
"""Debezium's documentation has this, with a delegate for heartbeats."""


def test_bytes_have_a_delegate_for_what_is_none():
    delegate = "value.converter.delegate.converter.type"
    given = {delegate: "org.apache.kafka.connect.json.JsonConverter"}
    given[f"{delegate}.schemas.enable"] = "false"
    honoured = {each.name for each in examined(OUTBOX | given).explained}
    assert set(given) <= honoured
    problem = refused(OUTBOX | {delegate: "io.confluent.connect.avro.AvroConverter"})
    assert (problem.property, "must be json" in problem.what) == (delegate, True)


def test_what_belongs_to_a_snapshot_mode_is_its_own():
    mode = "snapshot.mode.configuration.based"
    names = [f"{mode}.{end}" for end in ("snapshot.data", "start.stream", "snapshot.on.data.error")]
    resolution = examined({"snapshot.mode": "Configuration_Based"} | dict.fromkeys(names, "TRUE"))
    assert set(names) <= {each.name for each in resolution.explained}
    problem = refused({names[0]: "true"})
    assert problem.property == names[0]
    assert "configuration_based" in problem.what
    assert names[0] in examined({names[0]: "false"}).ignored


OF_FAMILIES = (
    "topic.creation.default.partitions", "offset.storage.redis.address", "schema.history.internal",
    "schema.history.internal.kafka.topic", "producer.override.acks", "database.autosave",
    "driver.autosave", "driver.prepareThreshold", "signal.consumer.x",
)  # fmt: skip


def test_what_has_no_effect_is_accepted_at_any_value_and_noted():
    ignored = [n for n, e in KNOWN_NAMES.items() if e.ignored]
    resolution = examined(dict.fromkeys((*ignored, *OF_FAMILIES), "some.Thing"))
    honoured = {each.name for each in resolution.explained}
    for name in (*ignored, *OF_FAMILIES):
        assert resolution.ignored.get(name) or name in honoured, name
    assert {KNOWN_NAMES[name].default for name in ignored} == {""}, "nothing is compared with it"


@pytest.mark.parametrize("name", [n for n, e in KNOWN_NAMES.items() if not e.ignored])
def test_a_value_that_would_change_what_users_get_is_refused_with_a_reason(name):
    entry = KNOWN_NAMES[name]
    value = {"exactly.once.support": "required", "exactly.once.source.support": "enabled"}
    problem = refused({name: value.get(name, "a.B")})
    assert (problem.property, problem.value) == (name, value.get(name, "a.B"))
    assert problem.what.startswith("is a property of Debezium's that waltap does not support: ")
    assert entry.default in (problem.allowed or "")
    for accepted in filter(None, (entry.default.upper(), *entry.harmless)):
        assert name in examined({name: accepted}).ignored


OLD_MEANINGS = {
    "sanitize.field.names": "true",
    "snapshot.custom.class": "mine",
    "slot.drop_on_stop": "false",
    "truncate.handling.mode": "skip",
    "flush.lsn.source": "true",
    "internal.slot.seek.to.known.offset.on.start": "true",
}


@pytest.mark.parametrize(("old", "new"), sorted(OLD_NAMES.items()))
def test_old_names_are_accepted_with_a_warning_that_names_the_new(old, new):
    values = {"connector.class": POSTGRES, "topic.prefix": "t", "database.dbname": "d"}
    values |= {"database.hostname": "h", "slot.name": "s", "waltap.sink.type": "null"}
    values.pop(new, None)
    raw = read_debezium(values | {old: OLD_MEANINGS.get(old, "x")})
    warnings = examine(raw, HOST).warnings
    assert f"{old} is an old name: write {new}" in warnings


SEEK = "internal.slot.seek.to.known.offset.on.start"


@pytest.mark.parametrize(
    ("old", "value", "name", "meaning"),
    [
        ("flush.lsn.source", "true", "lsn.flush.mode", "connector"),
        ("flush.lsn.source", "false", "lsn.flush.mode", "manual"),
        (SEEK, "TRUE", "offset.mismatch.strategy", "trust_offset"),
        (SEEK, "false", "offset.mismatch.strategy", "no_validation"),
        ("truncate.handling.mode", "include", "skipped.operations", "none"),
        ("truncate.handling.mode", "skip", "skipped.operations", "t"),
    ],
)
def test_a_deprecated_switch_means_what_succeeded_it(old, value, name, meaning):
    resolution = examined({old: value})
    assert {each.name: each.value for each in resolution.explained}[name] == meaning
    assert any(f"write {name}" in warning for warning in resolution.warnings)


def test_channels_are_chosen_and_those_that_are_not_there_are_refused():
    for name, value, there in (
        ("signal.enabled.channels", "source,pigeon", "file, kafka, source"),
        ("notification.enabled.channels", "nowhere", "kafka, log, sink, webhook"),
    ):
        problem = refused({name: value})
        assert (problem.property, problem.value) == (name, value.rpartition(",")[2])
        assert problem.allowed == f"a comma list of: {there}"
    given = {"signal.enabled.channels": "source, in-process,JMX, File", "signal.file": "x.txt"}
    profile = examined(given | {"notification.enabled.channels": "log,jmx"}).profile
    (file,), (log,) = profile.signal_channels, profile.notification_channels
    assert (file.spec.name, log.spec.name) == ("file", "log")
    assert (file.properties.path.name, file.properties.path.is_absolute()) == ("x.txt", True)


def test_no_name_that_a_component_declares_is_listed_again():
    """But for names that have no effect unless their component is chosen."""
    assert KNOWN_NAMES.keys() & SINGLE == {
        *("signal.file", "bootstrap.servers", "topic.creation.enable", "signal.kafka.topic"),
        *("topic.creation.groups", "tasks.max"),
        *("offset.storage.topic", "offset.storage.replication.factor"),
        *("signal.kafka.bootstrap.servers", "signal.kafka.groupId", "signal.kafka.poll.timeout.ms"),
    }
    assert not [name for name in KNOWN_NAMES if name.startswith("waltap.")]


def test_a_closed_set_knows_no_case():
    for _, declaration in DECLARED:
        for choice in declaration.choices:
            assert declaration.chosen(f" {choice.swapcase()} ") == choice
        for word in declaration.words:
            assert declaration.chosen(word.upper()) == (word,)
    for given in (
        {
            "snapshot.mode": "Initial_Only",
            "plugin.name": "DecoderBufs",
            "skipped.operations": "T,D",
        },
        {"snapshot.mode": "INITIAL", "plugin.name": "PGOUTPUT", "skipped.operations": "NONE"},
        {"publication.autocreate.mode": "FILTERED", "decimal.handling.mode": "STRING"},
        {"topic.naming.strategy": "IO.DEBEZIUM.schema.schematopicnamingstrategy"},
        {"connector.class": POSTGRES.upper(), "database.sslmode": "Verify-Full"},
        {"value.converter": "ORG.apache.kafka.connect.json.JSONConverter"},
        {"two.phase.policy": "PREPARE", "replica.identity.autoset.values": "public.t:full"},
    ):
        assert examined(given).profile


def test_a_number_may_stand_for_a_choice_that_is_a_text():
    """As TOML writes it; a truth value is no number."""

    class Some(Properties):
        version: Literal["1", "2"] = declare("version", default="2", summary="One of two.")

    assert Some.model_validate({"version": 1}).version == "1"
    for wrong in (3, True, 1.0):
        with pytest.raises(ValidationError):
            Some.model_validate({"version": wrong})


# --- what a component declares of a property is what a profile is held to: a table that the declarations give


SOURCE = {"type": "postgres", "database.dbname": "d"}
ALWAYS = ("Pipeline", "Engine", "Capture", "Connector `postgres`", "Decoder `pgoutput`")


def cases() -> Iterator[tuple[str, str, PropertyDeclaration]]:
    """Give every property that is one of a closed set, or has a type or bounds, with where it is written."""
    for heading, _, model in components(HOST):
        kind, _, name = heading.replace("`", "").partition(" ")
        if heading not in ALWAYS and kind != "Sink":
            continue
        for declaration in declarations(model):
            if declaration.family is None and (declaration.choices or declaration.info.metadata):
                yield heading, (name if kind == "Sink" else ""), declaration


def bad_values(declaration: PropertyDeclaration) -> list[Any]:
    """Return values that the type or a bound of the property excludes."""
    if declaration.choices:
        return ["no-such-choice"]
    found: list[Any] = []
    for check in declaration.info.metadata:
        found += [check.ge - 1] if getattr(check, "ge", None) is not None else []
        found += [check.gt] if getattr(check, "gt", None) is not None else []
        found += [check.le + 1] if getattr(check, "le", None) is not None else []
    return [*found, "many"] if found else []


def test_a_value_that_a_property_does_not_take_is_refused_by_name_with_what_it_takes():
    tried: dict[tuple[str, str, int], dict[PropertyDeclaration, Any]] = {}
    for heading, sink, declaration in cases():
        for number, value in enumerate(bad_values(declaration)):
            tried.setdefault((heading, sink, number), {})[declaration] = value
    assert sum(map(len, tried.values())) > 150
    for (_, sink, _), values in tried.items():
        given = {declaration.name: value for declaration, value in values.items()}
        place = {"source": SOURCE, "sink": {"type": sink, **given}}
        if not sink:
            place = {"source": SOURCE | given, "sink": {"type": "null"}}
        found = survey(read_tables(place, "p.toml"), HOST)
        for declaration, value in values.items():
            name = f"sink.{declaration.name}" if sink else declaration.name
            reported = [each for each in found.problems if each.property == name]
            assert [each.allowed for each in reported] == [declaration.allowed], (name, value)
