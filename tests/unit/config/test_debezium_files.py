"""Debezium Server's application.properties and files of a Connect worker are taken as they are, with their transforms."""

import pytest
from tests.harness.examined import connector_file, examine

from waltap.cli.profile_source import any_sink
from waltap.config.layers import RawProfile, load, read_debezium
from waltap.config.namespace import ValidationResult
from waltap.config.profile import TransformUse
from waltap.config.resolve import resolve, survey
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


def test_keys_are_json_where_the_server_names_the_format_of_values_alone():
    given = {"debezium.format.value": "cloudevents", "debezium.format.key.schemas.enable": "false"}
    resolution = examined(TUTORIAL | given)
    assert resolution.profile.format.spec.name == "json and cloudevents"
    assert "key.converter.schemas.enable" in {each.name for each in resolution.explained}


def test_a_property_of_events_is_none_of_a_converter():
    given = {"debezium.format.value": "cloudevents"}
    given["debezium.source.schema.name.adjustment.mode"] = "avro_unicode"
    found = {each.name: each.value for each in examined(TUTORIAL | given).explained}
    assert found["schema.name.adjustment.mode"] == "avro_unicode"
    assert found["value.converter.schema.name.adjustment.mode"] == "avro"


@pytest.mark.parametrize("parts", [("value",), ("key", "value")])
def test_parts_that_are_json_ignore_what_all_formats_are_given(parts):
    given = {f"debezium.format.{part}": "avro" for part in parts}
    given["debezium.format.schema.registry.url"] = "http://h"
    found = {each.name: each.value for each in examined(TUTORIAL | given).explained}
    addresses = {name for name, value in found.items() if value == "http://h"}
    assert addresses == {f"{part}.converter.schema.registry.url" for part in parts}
    (problem,) = problems({"debezium.format.schema.registry.url": "http://h"})[:1]
    assert problem.property == "debezium.format.schema.registry.url"


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
        "debezium.source.database.dbname": "${NOT_SET_ANYWHERE:${NOT_SET:sh}op}",
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
    for name, value in (("MY_SINK", "Kafka"), ("MY_STEPS", "a"), ("MY_FORM", "avro")):
        monkeypatch.setenv(name, value)
    given = {
        "debezium.sink.type": "${MY_SINK:redis}",
        "debezium.format.key": "${MY_FORM}",
        "debezium.format.key.schema.registry.url": "http://h",
        "debezium.transforms": "${MY_STEPS}",
        "debezium.transforms.a.type": "io.debezium.transforms.ExtractNewRecordState",
    }
    profile = examined(TUTORIAL | given).profile
    assert (profile.sink.spec.name, profile.sink.properties.servers) == ("kafka", "broker:9092")
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


# --- what a Connect worker is reported Kafka is what the Kafka sink is reported -------------------


WORKER = {"bootstrap.servers": "b1:9092,b2:9092", "group.id": "connect", "plugin.path": "/plugins"}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
AVRO = "io.confluent.connect.avro.AvroConverter"


def examined_worker(given: dict[str, str], sink: str | None = None) -> ValidationResult:
    return examine(connector_file(given), HOST, sink=sink)


def problems_of_worker(given: dict[str, str], sink: str | None = None) -> list[PropertyProblem]:
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
    resolution = examined_worker(WORKER | settings)
    sink = resolution.profile.sink
    assert sink.spec.name == "kafka"
    assert sink.properties.servers == "b1:9092,b2:9092"
    assert sink.properties.producer == {"producer.linger.ms": "9", "producer.acks": "all"}
    assert sink.properties.settings_of("default") == {"partitions": "3"}
    assert not sink.properties.creation
    assert {"group.id", "plugin.path", "consumer.fetch.min.bytes"} == set(resolution.ignored)


def test_what_the_sink_was_reported_by_its_own_name_wins_and_the_connectors_own_is_taken():
    sink = examined_worker({"producer.override.linger.ms": "9"}, sink="kafka:h:1").profile.sink
    assert sink.properties.servers == "h:1"
    assert sink.properties.producer == {"producer.linger.ms": "9"}
    own = {"waltap.sink.type": "kafka", "waltap.sink.bootstrap.servers": "mine:1"}
    assert examined_worker(WORKER | own).profile.sink.properties.servers == "mine:1"


@pytest.mark.parametrize(
    "asked", [{"exactly.once.support": "Required"}, {"exactly.once.source.support": "enabled"}]
)
def test_exactly_once_is_asked_of_what_can_and_refused_where_it_cannot(asked):
    assert examined_worker(WORKER | asked).profile.sink.properties.guarantee == "exactly_once"
    for sink in ("changelog:x", "spark:x"):
        assert examined_worker(asked, sink=sink).profile
    for sink in ("jsonl:x", "null", "terminal"):
        (problem,) = problems_of_worker(WORKER | asked, sink=sink)
        assert problem.property == next(iter(asked))
        assert "cannot write data and position together" in problem.what
    several = {
        "waltap.sinks": "a,b",
        "waltap.sinks.a.type": "kafka",
        "waltap.sinks.b.type": "kafka",
    }
    both = examined_worker(WORKER | asked | several)
    assert {b.sink.properties.guarantee for b in both.profile.branches} == {"exactly_once"}
    assert "bootstrap.servers" not in both.ignored
    (problem,) = problems_of_worker(WORKER | asked | several | {"waltap.sinks.b.type": "null"})
    assert problem.property == next(iter(asked))
    own = {"waltap.sink.type": "kafka", "waltap.sink.delivery.guarantee": "at_least_once"}
    (problem,) = problems_of_worker(WORKER | own | asked)
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
    resolution = examined_worker(WORKER | secured)
    assert resolution.profile.sink.properties.producer == {
        "producer.security.protocol": "SASL_SSL",
        "producer.sasl.mechanism": "SCRAM-SHA-256",
        "producer.sasl.jaas.config": JAAS,
    }
    assert "ssl.client.auth" in resolution.ignored


def test_names_of_the_sanitize_pattern_are_hidden(monkeypatch):
    values = {"custom.sanitize.pattern": ".*include.*", "table.include.list": "public.verborgen"}
    shown = {each.name: each.value for each in examined_worker(WORKER | values).explained}
    assert shown["table.include.list"] == "***"
    monkeypatch.setenv("SECRET", "x")
    short = {"database.password": "${env:SECRET}", "snapshot.max.threads": "many"}
    (problem,) = problems_of_worker(WORKER | short)
    assert "***" not in str(problem), "a short secret garbles no message"
    assert "snapshot.max.threads" in str(problem)


def test_choices_may_be_placeholders(monkeypatch):
    kafka = "org.apache.kafka.connect.transforms."
    given = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "custom.sanitize.pattern": ".*include.*",
        "exactly.once.support": "required",
        "snapshot.query.mode": "custom",
        "snapshot.query.mode.custom.name": "no_data",
        "predicates.is.type": f"{kafka}predicates.RecordIsTombstone",
        "transforms.drop.type": f"{kafka}Filter",
        "transforms.drop.predicate": "is",
        "transforms.drop.negate": "true",
    }
    for number, value in enumerate(given.values()):
        monkeypatch.setenv(f"WALTAP_TEST_{number}", value)
    filled = {name: f"${{env:WALTAP_TEST_{number}}}" for number, name in enumerate(given)}
    lists = {"predicates": "is", "transforms": "drop", "table.include.list": "public.verborgen"}
    resolution = examined_worker(WORKER | lists | filled)
    assert not resolution.problems
    profile = resolution.profile
    assert profile.snapshot_query.spec.name == "no_data"
    assert profile.sink.properties.guarantee == "exactly_once"
    assert profile.transforms[0].negate
    shown = {each.name: each.value for each in resolution.explained}
    assert shown["table.include.list"] == "***"


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
    found = problems_of_worker(WORKER | given)
    assert len(found) == len(reported)
    for name, words in reported.items():
        (problem,) = [p for p in found if p.property in {name, f"producer.{name}"} or not name]
        assert all(word in str(problem) for word in words.split(" … "))


# --- transforms and predicates: names, order, and every way to get them wrong ---------------------


CONNECT = "org.apache.kafka.connect.transforms"
ROUTER = f"{CONNECT}.RegexRouter"
UNWRAP = "io.debezium.transforms.ExtractNewRecordState"


def connector(text: str) -> RawProfile:
    given = f"waltap.sink.type=null {text}"
    return connector_file(dict(each.split("=", 1) for each in given.split()))  # type: ignore[misc]


def found(text: str) -> ValidationResult:
    return survey(connector(text), HOST)


def used(text: str) -> tuple[TransformUse, ...]:
    return tuple(resolve(connector(text), HOST).transforms)


def test_a_connectors_transforms_are_resolved_in_their_order_with_predicates():
    first, second = used(
        f"transforms=drop,route transforms.drop.type={ROUTER} transforms.drop.regex=x"
        " transforms.drop.replacement=y transforms.route.type=RegexRouter"
        " transforms.route.regex=(.*) transforms.route.replacement=z.$1"
        " transforms.route.predicate=mine transforms.route.negate=TRUE predicates=mine,dead"
        f" predicates.mine.type={CONNECT}.predicates.TopicNameMatches predicates.mine.pattern=s\\..*"
        " predicates.dead.type=RecordIsTombstone"
    )
    assert (first.label, first.predicate, first.negate) == ("drop (regex-router)", None, False)
    assert (second.label, second.negate) == ("route (regex-router)", True)
    assert second.predicate is not None
    assert second.predicate.spec.name == "TopicNameMatches"
    assert second.properties.replacement == "z.$1"


ROUTED = f"transforms=a transforms.a.type={ROUTER} transforms.a.regex=x transforms.a.replacement=y "
WRONG = [
    (f"{ROUTED}transforms.a.type={ROUTER.replace('Regex', 'Regx')}", f"did you mean {ROUTER}?"),
    (f"{ROUTED}transforms.a.type=a.b.C", "allowed: "),
    (f"{ROUTED}transforms.a.predicate=p", "no predicate has this name"),
    (
        f"{ROUTED}transforms.a.predicate=dea predicates=dead predicates.dead.type=RecordIsTombstone",
        "did you mean dead?",
    ),
    (f"{ROUTED}transforms.a.negate=true", "needs transforms.a.predicate"),
    (f"{ROUTED}transforms.a.negate=maybe", "is no truth value"),
    (f"{ROUTED}transforms.a.regex=(", "not a regular expression"),
    (f"{ROUTED}transforms.a.replacement=$1", "not a replacement"),
    (f"{ROUTED}transforms=a,a", "names a twice"),
    (f"{ROUTED}predicates=p", "predicates.p.type"),
    (f"{ROUTED}predicates=p predicates.p.type=TopicNameMatch", "TopicNameMatches"),
    (
        f"{ROUTED}predicates=p predicates.p.type=HasHeaderKey predicates.p.nme=x",
        "predicates.p.nme",
    ),
    (
        f"{ROUTED}predicates=p predicates.p.type=TopicNameMatches predicates.p.pattern=(",
        "not a regular expression",
    ),
    (
        "transforms=r transforms.r.type=route transforms.r.regex=x transforms.r.replacement=y"
        " transforms.r.predicate=p",
        "predicates look at records, and route works on changes",
    ),
    (
        f"{ROUTED}transforms=a,f transforms.f.type=fields transforms.f.exclude=x",
        "comes after a (regex-router), which works on records",
    ),
    ("transforms=a transforms.a.type=a.b.C", "regex-router"),
    ("transforms=a transforms.a.type=a.b.C", "filter"),
]


@pytest.mark.parametrize(("given", "expected"), WRONG)
def test_what_is_wrong_is_named(given, expected):
    assert expected in "\n".join(map(str, found(given).problems))


@pytest.mark.parametrize("type_", [UNWRAP, "io.debezium.transforms.UnwrapFromEnvelope"])
def test_older_names_of_unwrap_mean_what_they_meant(type_):
    begins = f"transforms=u transforms.u.type={type_}"
    drop, handling = "transforms.u.drop.tombstones", "transforms.u.delete.handling.mode"
    for given, mode in (
        ("", "tombstone"),
        (f"{drop}=true", "drop"),
        (f"{drop}=false", "tombstone"),
        (f"{handling}=rewrite", "rewrite"),
        (f"{handling}=rewrite {drop}=false", "rewrite-with-tombstone"),
        (f"{handling}=none", "tombstone"),
        (f"{drop}=true transforms.u.delete.tombstone.handling.mode=rewrite", "rewrite"),
    ):
        (use,) = used(f"{begins} {given}")
        assert use.properties.mode == mode, given
        warned = [each for each in found(f"{begins} {given}").warnings if "old name" in each]
        older = {name for name in (drop, handling) if f"{name}=" in given}
        assert {each.split()[0] for each in warned} == older, given
        assert all("write delete.tombstone.handling.mode" in each for each in warned)
    (use,) = used(
        f"{begins} transforms.u.operation.header=true transforms.u.add.source.fields=table,lsn"
        " transforms.u.add.fields=op"
    )
    assert use.properties.headers == ("op",)
    assert use.properties.fields == ("op", "source.table:table", "source.lsn:lsn")


def test_what_a_transform_does_not_know_is_a_warning_in_a_connectors_file():
    one = found(
        f"transforms=u transforms.u.type={UNWRAP} transforms.u.add.feilds=op transforms.u.whatever=1"
    )
    assert not one.problems
    assert any("add.feilds is not known" in each and "add.fields?" in each for each in one.warnings)
    assert any("transforms.u.whatever is not known" in each for each in one.warnings)
