"""What a Connect worker is told of Kafka is what the Kafka sink is told."""

import pytest

from waltap.cli.profile_source import any_sink
from waltap.config.layers import read_debezium
from waltap.config.resolve import Resolution, examine, survey
from waltap.errors import Problem
from waltap.host import Host

HOST = Host()
CONNECTOR = {
    "name": "shop",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "shop",
    "database.dbname": "d",
    "plugin.name": "pgoutput",
}
WORKER = {"bootstrap.servers": "b1:9092,b2:9092", "group.id": "connect", "plugin.path": "/plugins"}


def examined(*tables: dict[str, str], sink: str | None = None) -> Resolution:
    values = {name: value for table in (CONNECTOR, *tables) for name, value in table.items()}
    return examine(read_debezium(values, "c.properties"), HOST, sink=sink)


def problems(*tables: dict[str, str], sink: str | None = None) -> list[Problem]:
    values = {name: value for table in (CONNECTOR, *tables) for name, value in table.items()}
    return list(survey(read_debezium(values, "c.properties"), HOST, sink=sink).problems)


def test_a_file_with_brokers_and_no_sink_goes_to_kafka() -> None:
    resolution = examined(
        WORKER,
        {
            "producer.linger.ms": "7",
            "producer.acks": "all",
            "producer.override.linger.ms": "9",
            "topic.creation.default.partitions": "3",
            "topic.creation.enable": "false",
            "consumer.fetch.min.bytes": "1",
        },
    )
    sink = resolution.profile.sink
    assert sink.spec.name == "kafka"
    assert sink.properties.servers == "b1:9092,b2:9092"
    assert sink.properties.producer == {"producer.linger.ms": "9", "producer.acks": "all"}
    assert sink.properties.settings_of("default") == {"partitions": "3"}
    assert not sink.properties.creation
    assert {"group.id", "plugin.path", "consumer.fetch.min.bytes"} == set(resolution.ignored)


def test_the_connectors_own_settings_are_taken_with_a_sink_that_is_given_apart() -> None:
    sink = examined({"producer.override.linger.ms": "9"}, sink="kafka:h:1").profile.sink
    assert sink.properties.servers == "h:1"
    assert sink.properties.producer == {"producer.linger.ms": "9"}


def test_what_the_sink_was_told_by_its_own_name_wins() -> None:
    own = {"waltap.sink.type": "kafka", "waltap.sink.bootstrap.servers": "mine:1"}
    assert examined(WORKER, own).profile.sink.properties.servers == "mine:1"


def test_for_another_sink_they_have_no_effect_and_are_told() -> None:
    own = {"waltap.sink.type": "jsonl", "waltap.sink.path": "x"}
    resolution = examined(WORKER, own, {"producer.linger.ms": "9"})
    assert resolution.profile.sink.spec.name == "jsonl"
    for name in ("bootstrap.servers", "producer.linger.ms"):
        assert resolution.reasons[name] == "it is Kafka's, and the profile's sink is another"


ASKED = [{"exactly.once.support": "Required"}, {"exactly.once.source.support": "enabled"}]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_exactly_once_is_asked_of_kafka_and_of_sinks_that_always_are(asked: dict[str, str]) -> None:
    assert examined(WORKER, asked).profile.sink.properties.guarantee == "exactly_once"
    for sink in ("changelog:x", "spark:x"):
        assert examined(asked, sink=sink).profile


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("sink", ["jsonl:x", "null", "terminal"])
def test_exactly_once_is_refused_where_the_sink_cannot(asked: dict[str, str], sink: str) -> None:
    (problem,) = problems(WORKER, asked, sink=sink)
    assert problem.property == next(iter(asked))
    assert "cannot write data and position together" in problem.what


def test_exactly_once_contradicts_another_guarantee() -> None:
    own = {"waltap.sink.type": "kafka", "waltap.sink.delivery.guarantee": "at_least_once"}
    (problem,) = problems(WORKER, own, ASKED[0])
    assert problem.property == "exactly.once.support"
    assert "waltap.sink.delivery.guarantee=at_least_once" in problem.what


def test_a_setting_that_the_client_does_not_have_is_told_by_its_name() -> None:
    (problem,) = problems(WORKER, {"topic.creation.small.partitions": "3"})
    assert "small is not in topic.creation.groups" in problem.what
    names = {problem.property for problem in problems(WORKER, {"topic.creation.enable": "perhaps"})}
    assert names == {"topic.creation.enable"}


def test_names_of_the_sanitize_pattern_are_hidden() -> None:
    values = {"custom.sanitize.pattern": ".*include.*", "table.include.list": "public.verborgen"}
    resolution = examined(WORKER, values)
    shown = {each.name: each.value for each in resolution.explained}
    assert shown["table.include.list"] == "***"
    (problem,) = problems(WORKER, {"custom.sanitize.pattern": "("})
    assert problem.property == "custom.sanitize.pattern"


JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
SECURED = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": JAAS,
    "ssl.client.auth": "required",
}


def test_what_a_worker_says_of_security_holds_for_the_producer_unless_that_has_its_own() -> None:
    resolution = examined(WORKER, SECURED, {"producer.sasl.mechanism": "SCRAM-SHA-256"})
    assert resolution.profile.sink.properties.producer == {
        "producer.security.protocol": "SASL_SSL",
        "producer.sasl.mechanism": "SCRAM-SHA-256",
        "producer.sasl.jaas.config": JAAS,
    }
    assert "ssl.client.auth" in resolution.ignored


@pytest.mark.parametrize("count", ["1", "8"])
def test_a_number_of_tasks_is_accepted_and_has_no_effect(count: str) -> None:
    assert "tasks.max" in examined(WORKER, {"tasks.max": count}).reasons


def test_a_short_secret_garbles_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    (problem,) = problems(
        WORKER, {"database.password": "${env:SECRET}", "snapshot.max.threads": "many"}
    )
    assert "***" not in str(problem)
    assert "snapshot.max.threads" in str(problem)


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_a_command_that_writes_nowhere_does_not_judge_the_promise(asked: dict[str, str]) -> None:
    raw = read_debezium(CONNECTOR | asked, "c.properties")
    assert examine(raw, HOST, sink=any_sink(raw)).profile.sink.spec.name == "terminal"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer.override.ssl.truststore.location", "/etc/trust.jks"),
        ("producer.ssl.keystore.location", "/etc/keys.jks"),
        ("producer.sasl.client.callback.handler.class", "software.amazon.msk.auth.iam.Handler"),
        ("sasl.jaas.config", "software.amazon.msk.auth.iam.IAMLoginModule required;"),
    ],
)
def test_what_a_start_refuses_of_the_client_is_refused_with_the_file(name: str, value: str) -> None:
    (problem,) = problems(WORKER, {name: value})
    assert name.endswith(problem.property.removeprefix("producer."))


def test_what_the_clients_of_channels_have_no_equivalent_for_is_named() -> None:
    channels = {
        "signal.enabled.channels": "source,kafka",
        "signal.kafka.bootstrap.servers": "h:1",
        "signal.consumer.ssl.truststore.location": "/etc/trust.jks",
        "notification.enabled.channels": "kafka",
        "notification.kafka.bootstrap.servers": "h:1",
        "notification.kafka.topic": "told",
        "notification.producer.acks": "1",
    }
    names = {problem.property for problem in problems(WORKER, channels)}
    assert names == {"signal.consumer.ssl.truststore.location", "notification.producer.acks"}


def test_the_converters_of_apicurio_are_named_each_with_what_takes_their_place() -> None:
    apicurio = {
        f"{side}.converter{rest}": value
        for side in ("key", "value")
        for rest, value in (
            ("", "io.apicurio.registry.utils.converter.AvroConverter"),
            (".apicurio.registry.url", "http://registry:8080/apis/registry/v2"),
        )
    }
    found = {problem.property: problem for problem in problems(WORKER, apicurio)}
    assert set(found) == set(apicurio)
    for name, problem in found.items():
        assert "schema.registry.url" in str(problem), name
    for side in ("key", "value"):
        assert "io.confluent.connect.avro.AvroConverter" in str(found[f"{side}.converter"])


@pytest.mark.parametrize("support", ["true", "false"])
def test_enhanced_avro_support_is_taken_as_it_is(support: str) -> None:
    converter = {"value.converter": "io.confluent.connect.avro.AvroConverter"}
    given = {
        "schema.registry.url": "http://registry:8081",
        "value.converter.enhanced.avro.schema.support": support,
    }
    assert examined(WORKER, converter, given).profile


def test_a_format_that_there_is_not_hides_no_problem_of_another_sides() -> None:
    found = problems(
        WORKER,
        {
            "key.converter": "org.apache.kafka.connect.converters.NoConverter",
            "value.converter": "io.confluent.connect.avro.AvroConverter",
        },
    )
    assert [each.property for each in found] == [
        "key.converter",
        "value.converter.schema.registry.url",
    ]
