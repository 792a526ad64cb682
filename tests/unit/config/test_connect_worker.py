"""What a Connect worker is reported Kafka is what the Kafka sink is reported."""

import pytest
from tests.harness.examined import connector_file, examine

from waltap.cli.profile_source import any_sink
from waltap.config.namespace import ValidationResult
from waltap.config.resolve import survey
from waltap.errors import PropertyProblem
from waltap.plugins.host import Host

HOST = Host()
WORKER = {"bootstrap.servers": "b1:9092,b2:9092", "group.id": "connect", "plugin.path": "/plugins"}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
AVRO = "io.confluent.connect.avro.AvroConverter"


def examined(given: dict[str, str], sink: str | None = None) -> ValidationResult:
    return examine(connector_file(given), HOST, sink=sink)


def problems(given: dict[str, str], sink: str | None = None) -> list[PropertyProblem]:
    return list(survey(connector_file(given), HOST, sink=sink).problems)


def test_a_file_with_brokers_and_no_sink_goes_to_kafka():
    settings = {
        "producer.linger.ms": "7",
        "producer.acks": "all",
        "producer.override.linger.ms": "9",
        "topic.creation.default.partitions": "3",
        "topic.creation.enable": "false",
        "consumer.fetch.min.bytes": "1",
    }
    resolution = examined(WORKER | settings)
    sink = resolution.profile.sink
    assert sink.spec.name == "kafka"
    assert sink.properties.servers == "b1:9092,b2:9092"
    assert sink.properties.producer == {"producer.linger.ms": "9", "producer.acks": "all"}
    assert sink.properties.settings_of("default") == {"partitions": "3"}
    assert not sink.properties.creation
    assert {"group.id", "plugin.path", "consumer.fetch.min.bytes"} == set(resolution.ignored)


def test_what_the_sink_was_reported_by_its_own_name_wins_and_the_connectors_own_is_taken():
    sink = examined({"producer.override.linger.ms": "9"}, sink="kafka:h:1").profile.sink
    assert sink.properties.servers == "h:1"
    assert sink.properties.producer == {"producer.linger.ms": "9"}
    own = {"waltap.sink.type": "kafka", "waltap.sink.bootstrap.servers": "mine:1"}
    assert examined(WORKER | own).profile.sink.properties.servers == "mine:1"


@pytest.mark.parametrize(
    "asked", [{"exactly.once.support": "Required"}, {"exactly.once.source.support": "enabled"}]
)
def test_exactly_once_is_asked_of_what_can_and_refused_where_it_cannot(asked):
    assert examined(WORKER | asked).profile.sink.properties.guarantee == "exactly_once"
    for sink in ("changelog:x", "spark:x"):
        assert examined(asked, sink=sink).profile
    for sink in ("jsonl:x", "null", "terminal"):
        (problem,) = problems(WORKER | asked, sink=sink)
        assert problem.property == next(iter(asked))
        assert "cannot write data and position together" in problem.what
    own = {"waltap.sink.type": "kafka", "waltap.sink.delivery.guarantee": "at_least_once"}
    (problem,) = problems(WORKER | own | asked)
    assert problem.property == next(iter(asked))
    assert "waltap.sink.delivery.guarantee=at_least_once" in problem.what
    raw = connector_file(asked)  # a command that writes nowhere
    assert examine(raw, HOST, sink=any_sink(raw)).profile.sink.spec.name == "terminal"


def test_what_a_worker_says_of_security_holds_for_the_producer_unless_that_has_its_own():
    secured = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": JAAS,
        "ssl.client.auth": "required",
        "producer.sasl.mechanism": "SCRAM-SHA-256",
    }
    resolution = examined(WORKER | secured)
    assert resolution.profile.sink.properties.producer == {
        "producer.security.protocol": "SASL_SSL",
        "producer.sasl.mechanism": "SCRAM-SHA-256",
        "producer.sasl.jaas.config": JAAS,
    }
    assert "ssl.client.auth" in resolution.ignored


def test_names_of_the_sanitize_pattern_are_hidden(monkeypatch):
    values = {"custom.sanitize.pattern": ".*include.*", "table.include.list": "public.verborgen"}
    shown = {each.name: each.value for each in examined(WORKER | values).explained}
    assert shown["table.include.list"] == "***"
    monkeypatch.setenv("SECRET", "x")
    short = {"database.password": "${env:SECRET}", "snapshot.max.threads": "many"}
    (problem,) = problems(WORKER | short)
    assert "***" not in str(problem), "a short secret garbles no message"
    assert "snapshot.max.threads" in str(problem)


AWS = "software.amazon.msk.auth.iam"
CHANNELS = {
    "signal.enabled.channels": "source,kafka",
    "signal.kafka.bootstrap.servers": "h:1",
    "signal.consumer.ssl.truststore.location": "/etc/trust.jks",
    "notification.enabled.channels": "kafka",
    "notification.kafka.bootstrap.servers": "h:1",
    "notification.kafka.topic": "reported",
    "notification.producer.acks": "1",
}
APICURIO = {
    f"{side}.converter{rest}": value
    for side in ("key", "value")
    for rest, value in (
        ("", "io.apicurio.registry.utils.converter.AvroConverter"),
        (".apicurio.registry.url", "http://registry:8080/apis/registry/v2"),
    )
}
REFUSED = [
    (
        {
            "key.converter": "org.apache.kafka.connect.converters.NoConverter",
            "value.converter": AVRO,
        },
        {"key.converter": "NoConverter", "value.converter.schema.registry.url": ""},
    ),
    ({"topic.creation.small.partitions": "3"}, {"": "small is not in topic.creation.groups"}),
    ({"topic.creation.enable": "perhaps"}, {"topic.creation.enable": ""}),
    ({"custom.sanitize.pattern": "("}, {"custom.sanitize.pattern": ""}),
    ({"producer.override.ssl.truststore.location": "/t.jks"}, {"": "ssl.truststore.location"}),
    ({"producer.ssl.keystore.location": "/keys.jks"}, {"ssl.keystore.location": ""}),
    (
        {"producer.sasl.client.callback.handler.class": f"{AWS}.Handler"},
        {"sasl.client.callback.handler.class": ""},
    ),
    ({"sasl.jaas.config": f"{AWS}.IAMLoginModule required;"}, {"sasl.jaas.config": ""}),
    (
        CHANNELS,
        {"signal.consumer.ssl.truststore.location": "", "notification.producer.acks": ""},
    ),
    (
        {
            "value.converter": AVRO,
            "schema.registry.url": "http://registry:8081",
            "value.converter.schema.registry.ssl.truststore.password": "secret",
            "value.converter.schema.registry.ssl.keystore.type": "JKS",
            "value.converter.proxy.host": "proxy",
        },
        {
            "value.converter.schema.registry.ssl.truststore.password": "PEM files, which have no",
            "value.converter.schema.registry.ssl.keystore.type": "from PEM files",
            "value.converter.proxy.host": "HTTPS_PROXY",
        },
    ),
    (
        APICURIO,
        {
            "key.converter": f"{AVRO} … schema.registry.url",
            "key.converter.apicurio.registry.url": "schema.registry.url",
            "value.converter": f"{AVRO} … schema.registry.url",
            "value.converter.apicurio.registry.url": "schema.registry.url",
        },
    ),
]


@pytest.mark.parametrize(("given", "reported"), REFUSED, ids=lambda value: next(iter(value)))
def test_what_the_clients_do_not_take_is_refused_by_its_name(given, reported):
    found = problems(WORKER | given)
    assert len(found) == len(reported)
    for name, words in reported.items():
        (problem,) = [p for p in found if p.property in {name, f"producer.{name}"} or not name]
        assert all(word in str(problem) for word in words.split(" … "))
