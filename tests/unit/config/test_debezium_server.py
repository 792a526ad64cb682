"""Debezium Server's application.properties are taken as they are."""

from pathlib import Path

import pytest

from waltap.config.layers import load, read_debezium
from waltap.config.resolve import Resolution, examine, survey
from waltap.errors import ConfigurationError, Problem
from waltap.host import Host

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


def given(text: str, **more: str) -> dict[str, str]:
    lines = (line.split("=", 1) for line in text.split() if line)
    return {**dict(lines), **more}  # type: ignore[arg-type]


def examined(values: dict[str, str], **options: str) -> Resolution:
    return examine(read_debezium(values, "application.properties"), HOST, **options)


def problems(values: dict[str, str]) -> list[Problem]:
    return list(survey(read_debezium(values, "application.properties"), HOST).problems)


def test_the_file_of_the_tutorial_runs(tmp_path: Path) -> None:
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
    assert "no Quarkus" in resolution.reasons["quarkus.log.console.json"]
    assert "waltap.state.dir" in resolution.reasons["offset.storage.file.filename"]


def test_formats_are_those_of_one_side_or_of_all() -> None:
    values = given(
        SERVER,
        **{
            "debezium.format.key": "simplestring",
            "debezium.format.value": "json",
            "debezium.format.schemas.enable": "true",
            "debezium.format.value.schemas.enable": "false",
        },
    )
    raw = read_debezium(values)
    assert raw.settings["key.converter"].value == "org.apache.kafka.connect.storage.StringConverter"
    assert raw.settings["value.converter.schemas.enable"].value == "false"
    assert raw.settings["key.converter.schemas.enable"].value == "true"
    assert raw.settings["header.converter.schemas.enable"].value == "true"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("debezium.source.tabel.include.list", "debezium.source.table.include.list"),
        ("debezium.sorce.slot.name", "debezium.source.slot.name"),
        ("slot.name", "debezium.source.slot.name"),
        ("debezium.sink.kafka.producr.acks", "debezium.sink.kafka.producer.NAME"),
        ("debezium.slot.name", "debezium.source.slot.name"),
    ],
)
def test_an_unknown_name_is_told_as_it_was_written(name: str, meant: str | None) -> None:
    (problem,) = problems(given(SERVER, **{name: "x"}))
    assert problem.property == name
    assert problem.nearest == meant


def test_a_wrong_value_is_told_under_its_name_in_the_file() -> None:
    (problem,) = problems(given(SERVER, **{"debezium.source.snapshot.fetch.size": "many"}))
    assert problem.property == "debezium.source.snapshot.fetch.size"


def test_all_that_is_wrong_is_in_one_list() -> None:
    wrong = {
        "debezium.sink.type": "pulsar",
        "debezium.source.connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "debezium.source.errors.tolerance": "most",
        "debezium.format.value": "protobff",
        "debezium.source.slot.nme": "x",
        "slot.name": "y",
    }
    found = {problem.property for problem in problems(given(SERVER, **wrong))}
    assert {"debezium.source.errors.tolerance", "slot.name", "debezium.source.slot.nme"} <= found
    assert {"debezium.source.connector.class", "debezium.format.value"} <= found
    assert "debezium.sink.type" in found


def test_settings_of_another_sink_have_no_effect_and_are_told() -> None:
    values = given(SERVER, **{"debezium.sink.redis.address": "r:1"})
    assert "debezium.sink.type is kafka" in examined(values).reasons["debezium.sink.redis.address"]


def test_expressions_are_filled_in_and_secrets_stay_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_SECRET", "geheim77")
    monkeypatch.setenv("DB_HOST_NAME", "db.example")
    values = given(
        SERVER,
        **{
            "debezium.source.database.password": "${PG_SECRET}",
            "debezium.source.database.hostname": "${db.host.name}",
            "debezium.source.database.dbname": "${NOT_SET_ANYWHERE:shop}",
            "debezium.source.slot.name": "${debezium.source.topic.prefix}",
        },
    )
    resolution = examined(values)
    properties = resolution.profile.connector.properties
    assert properties.password == "geheim77"
    assert properties.hostname == "db.example"
    assert properties.dbname == "shop"
    assert properties.slot_name == "tutorial"
    assert "geheim77" not in repr([each.value for each in resolution.explained])


def test_a_variable_that_is_not_set_is_told() -> None:
    values = given(SERVER, **{"debezium.source.database.password": "${NOT_SET_ANYWHERE}"})
    (problem,) = problems(values)
    assert problem.property == "debezium.source.database.password"
    assert "NOT_SET_ANYWHERE is not set" in problem.what


def test_expressions_that_name_each_other_end() -> None:
    values = given(
        SERVER,
        **{
            "debezium.source.slot.name": "${debezium.source.database.user}",
            "debezium.source.database.user": "${debezium.source.slot.name}",
        },
    )
    assert problems(values)


def test_settings_of_production_win_and_those_of_other_profiles_are_told() -> None:
    values = given(
        SERVER, **{"%prod.debezium.source.slot.name": "p", "%dev.debezium.source.slot.name": "d"}
    )
    resolution = examined(values)
    assert resolution.profile.connector.properties.slot_name == "p"
    assert "%dev.debezium.source.slot.name" in resolution.reasons


def test_transforms_keep_their_order_and_their_names() -> None:
    values = given(
        SERVER,
        **{
            "debezium.transforms": "b,a",
            "debezium.transforms.a.type": "route",
            "debezium.transforms.b.type": "nosuch",
        },
    )
    raw = read_debezium(values)
    assert [each["type"].value for each in raw.transforms] == ["nosuch", "route"]
    assert raw.transform_names == ["debezium.transforms.b.", "debezium.transforms.a."]
    assert "debezium.transforms.b.type" in {problem.property for problem in problems(values)}


def test_waltaps_own_property_of_a_sink_wins_wherever_it_stands() -> None:
    own = {"waltap.sink.producer.linger.ms": "77", "waltap.sink.bootstrap.servers": "own:1"}
    for values in (given(SERVER, **own), {**own, **given(SERVER)}):
        found = examined(values).profile.sink.properties
        assert found.producer["producer.linger.ms"] == "77"
        assert found.servers == "own:1"


def test_another_sink_may_be_given_and_waltaps_own_properties_too() -> None:
    values = given(SERVER, **{"waltap.state.dir": "/tmp/state"})
    profile = examined(values, sink="null").profile
    assert profile.sink.spec.name == "null"
    assert str(profile.engine.state_dir) == "/tmp/state"
    own = given(SERVER, **{"waltap.sink.type": "jsonl", "waltap.sink.path": "x.jsonl"})
    own = {name: value for name, value in own.items() if not name.startswith("debezium.sink")}
    assert examined(own).profile.sink.spec.name == "jsonl"


def test_no_sink_is_a_problem_that_says_how_to_name_one() -> None:
    values = {n: v for n, v in given(SERVER).items() if not n.startswith("debezium.sink")}
    with pytest.raises(ConfigurationError, match="where should the changes go"):
        examined(values)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("redis", {"address": "redis:6379", "user": "u", "password": "geheim", "batch.size": "9"}),
        ("nats-jetstream", {"url": "nats://nats:4222", "create-stream": "true"}),
        ("kinesis", {"region": "eu-central-1", "endpoint": "http://here", "null.key": "none"}),
    ],
)
def test_message_streams_have_the_names_of_debezium_server(
    kind: str, settings: dict[str, str]
) -> None:
    own = {f"debezium.sink.{kind}.{name}": value for name, value in settings.items()}
    values = {
        name: value for name, value in given(SERVER).items() if not name.startswith("debezium.sink")
    }
    sink = examined({**values, "debezium.sink.type": kind, **own}).profile.sink
    assert sink.spec.name == kind
    first = next(iter(settings))
    assert getattr(sink.properties, first) == settings[first]
