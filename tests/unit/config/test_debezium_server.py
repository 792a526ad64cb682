"""Debezium Server's application.properties are taken as they are."""

import pytest
from tests.harness.examined import examine

from waltap.config.layers import load, read_debezium
from waltap.config.namespace import ValidationResult
from waltap.config.resolve import survey
from waltap.errors import ConfigurationError, PropertyProblem
from waltap.plugins.host import Host

HOST = Host()
SERVER = """
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers=broker:9092
debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.linger.ms=5
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.offset.storage.file.filename=data/offsets.dat
debezium.source.offset.flush.interval.ms=0
debezium.source.database.hostname=localhost
debezium.source.database.port=5432
debezium.source.database.user=postgres
debezium.source.database.password=geheim99
debezium.source.database.dbname=postgres
debezium.source.topic.prefix=tutorial
debezium.source.table.include.list=inventory.customers
debezium.source.plugin.name=pgoutput
quarkus.log.console.json=false
"""
TUTORIAL: dict[str, str] = dict(line.split("=", 1) for line in SERVER.split())  # type: ignore[misc]
NO_SINK = {n: v for n, v in TUTORIAL.items() if not n.startswith("debezium.sink")}


def examined(values: dict[str, str], **options: str) -> ValidationResult:
    return examine(read_debezium(values, "application.properties"), HOST, **options)


def problems(more: dict[str, str]) -> list[PropertyProblem]:
    raw = read_debezium(TUTORIAL | more, "application.properties")
    return list(survey(raw, HOST).problems)


def test_the_file_of_the_tutorial_runs(tmp_path):
    path = tmp_path / "application.properties"
    path.write_text(SERVER)
    resolution = examine(load(path), HOST)
    profile = resolution.profile
    assert (profile.connector.spec.name, profile.sink.spec.name) == ("postgres", "kafka")
    assert profile.capture.topic_prefix == "tutorial"
    assert profile.connector.properties.hostname == "localhost"
    assert profile.sink.properties.servers == "broker:9092"
    assert profile.sink.properties.producer["producer.linger.ms"] == "5"
    assert profile.engine.flush_interval_ms == 0
    assert profile.debezium
    assert "no Quarkus" in resolution.ignored["quarkus.log.console.json"]
    assert "waltap.state.dir" in resolution.ignored["offset.storage.file.filename"]


def test_formats_are_those_of_one_side_or_of_all():
    given = {
        "debezium.format.key": "simplestring",
        "debezium.format.value": "json",
        "debezium.format.schemas.enable": "true",
        "debezium.format.value.schemas.enable": "false",
    }
    found = {n: s.value for n, s in read_debezium(TUTORIAL | given).settings.items()}
    assert found["key.converter"] == "org.apache.kafka.connect.storage.StringConverter"
    assert found["value.converter.schemas.enable"] == "false"
    assert found["key.converter.schemas.enable"] == "true"
    assert found["header.converter.schemas.enable"] == "true"


@pytest.mark.parametrize(
    ("name", "value", "nearest", "words"),
    [
        ("debezium.source.tabel.include.list", "x", "debezium.source.table.include.list", ""),
        ("debezium.sorce.slot.name", "x", "debezium.source.slot.name", ""),
        ("slot.name", "x", "debezium.source.slot.name", ""),
        ("debezium.sink.kafka.producr.acks", "x", "debezium.sink.kafka.producer.NAME", ""),
        ("debezium.slot.name", "x", "debezium.source.slot.name", ""),
        ("debezium.source.snapshot.fetch.size", "many", None, "whole number"),
        (
            "debezium.source.database.password",
            "${NOT_SET_ANYWHERE}",
            None,
            "ANYWHERE, which is not set",
        ),
    ],
)
def test_a_mistake_is_reported_under_its_name_in_the_file(name, value, nearest, words):
    (problem,) = problems({name: value})
    assert (problem.property, problem.nearest) == (name, nearest)
    assert words in str(problem)


def test_expressions_are_filled_in_and_secrets_stay_secret(monkeypatch):
    monkeypatch.setenv("PG_SECRET", "geheim77")
    monkeypatch.setenv("DB_HOST_NAME", "db.example")
    given = {
        "debezium.source.database.password": "${PG_SECRET}",
        "debezium.source.database.hostname": "${db.host.name}",
        "debezium.source.database.dbname": "${NOT_SET_ANYWHERE:shop}",
        "debezium.source.slot.name": "${debezium.source.topic.prefix}",
    }
    resolution = examined(TUTORIAL | given)
    found = resolution.profile.connector.properties
    assert (found.password, found.hostname) == ("geheim77", "db.example")
    assert (found.dbname, found.slot_name) == ("shop", "tutorial")
    assert "geheim77" not in repr([each.value for each in resolution.explained])
    circle = {
        "debezium.source.slot.name": "${debezium.source.database.user}",
        "debezium.source.database.user": "${debezium.source.slot.name}",
    }
    assert problems(circle)


def test_a_variable_may_hold_the_name_of_a_part(monkeypatch):
    for name, value in (("MY_SINK", "kafka"), ("MY_STEPS", "a"), ("MY_FORM", "avro")):
        monkeypatch.setenv(name, value)
    given = {
        "debezium.sink.type": "${MY_SINK:redis}",
        "debezium.format.key": "${MY_FORM}",
        "debezium.format.key.schema.registry.url": "http://h",
        "debezium.transforms": "${MY_STEPS}",
        "debezium.transforms.a.type": "io.debezium.transforms.ExtractNewRecordState",
    }
    profile = examined(TUTORIAL | given).profile
    assert profile.sink.spec.name == "kafka"
    assert [use.spec.name for use in profile.transforms] == ["extract-new-record-state"]
    (problem,) = problems({"debezium.transforms": "${NOT_SET_ANYWHERE}"})
    assert problem.property == "debezium.transforms"
    assert "ANYWHERE, which is not set" in str(problem)


def test_what_holds_elsewhere_has_no_effect_and_is_reported():
    given = {
        "debezium.sink.redis.address": "r:1",
        "%prod.debezium.source.slot.name": "p",
        "%dev.debezium.source.slot.name": "d",
    }
    resolution = examined(TUTORIAL | given)
    assert "debezium.sink.type is kafka" in resolution.ignored["debezium.sink.redis.address"]
    assert "%dev.debezium.source.slot.name" in resolution.ignored
    assert resolution.profile.connector.properties.slot_name == "p"


def test_waltaps_own_properties_win_wherever_they_stand():
    own = {"waltap.sink.producer.linger.ms": "77", "waltap.sink.bootstrap.servers": "own:1"}
    for values in ({**TUTORIAL, **own}, {**own, **TUTORIAL}):
        found = examined(values).profile.sink.properties
        assert found.producer["producer.linger.ms"] == "77"
        assert found.servers == "own:1"
    profile = examined(TUTORIAL | {"waltap.state.dir": "/tmp/state"}, sink="null").profile
    assert (profile.sink.spec.name, str(profile.engine.state_dir)) == ("null", "/tmp/state")
    jsonl = {"waltap.sink.type": "jsonl", "waltap.sink.path": "x.jsonl"}
    assert examined(NO_SINK | jsonl).profile.sink.spec.name == "jsonl"
    with pytest.raises(ConfigurationError, match="where should the changes go"):
        examined(NO_SINK)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("redis", {"address": "redis:6379", "user": "u", "password": "geheim", "batch.size": "9"}),
        ("nats-jetstream", {"url": "nats://nats:4222", "create-stream": "true"}),
        ("kinesis", {"region": "eu-central-1", "endpoint": "http://here", "null.key": "none"}),
    ],
)
def test_message_streams_have_the_names_of_debezium_server(kind, settings):
    own = {f"debezium.sink.{kind}.{name}": value for name, value in settings.items()}
    sink = examined(NO_SINK | {"debezium.sink.type": kind} | own).profile.sink
    assert sink.spec.name == kind
    first = next(iter(settings))
    assert getattr(sink.properties, first) == settings[first]
