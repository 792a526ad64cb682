"""A real schema registry: subjects, ids, what it refuses, logins, TLS, and pipelines while it is away."""

import json
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.harness.command import run_program
from tests.harness.door import door
from tests.harness.meanwhile import in_background
from tests.harness.pipeline import WAIT_S, PipelineRig, until
from tests.harness.servers.postgres import Database
from tests.harness.servers.registry import Registry

from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.converter import ConverterContext
from waltap.errors import ConfigurationError, RetryVerdict
from waltap_formats.avro.converter import AvroConverter
from waltap_formats.properties import AvroProperties, ProtobufProperties
from waltap_formats.protobuf.converter import ProtobufConverter
from waltap_formats.registry import (
    RegistryLogin,
    RegistryUnavailable,
    SchemaIncompatible,
    SchemaInvalid,
    SchemaNotRegistered,
)

PATIENT = {
    "schema.registry.retry.timeout.ms": 0,
    "schema.registry.request.timeout.ms": 90_000,  # of a busy machine
}
ID = Field("id", Schema(kind=ConnectKind.INT32))


def row(name: str, *more: Field) -> Schema:
    return Schema(kind=ConnectKind.STRUCT, name=name, fields=(ID, *more))


def converter(
    url: str,
    record_part: str = "value",
    stopping: Callable[[], bool] = lambda: False,
    **more: object,
) -> AvroConverter:
    properties = AvroProperties.model_validate({"schema.registry.url": url, **PATIENT, **more})
    context = ConverterContext(record_part=record_part, stopping=stopping)  # type: ignore[arg-type]
    return AvroConverter(properties, context)


def written(url: str, topic: str, **more: Any) -> bytes:
    data = converter(url, **more).encoder(topic, row("door.Value"))({"id": 1})
    assert data is not None
    return data


def allow(registry: Registry, subject: str, compatibility: str) -> None:
    rule = f"{registry.url}/config/{subject}".rstrip("/")
    answer = httpx.put(rule, json={"compatibility": compatibility}, timeout=120)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("strategy", "record_part", "subject"),
    [
        ("TopicNameStrategy", "value", "shop-{0}-value"),
        ("TopicNameStrategy", "key", "shop-{0}-key"),
        ("RecordNameStrategy", "value", "shop.{0}.Value"),
        ("TopicRecordNameStrategy", "key", "shop-{0}-shop.{0}.Value"),
    ],
)
def test_subjects_are_named_by_the_strategy(registry, strategy, record_part, subject):
    unique = f"{strategy}_{record_part}"
    strategy = f"io.confluent.kafka.serializers.subject.{strategy}"
    data, again = (
        converter(
            registry.url, record_part, **{f"{record_part}.subject.name.strategy": strategy}
        ).encoder(f"shop-{unique}", row(f"shop.{unique}.Value"))({"id": 1})
        for _ in range(2)
    )
    assert data == again, "one schema has one id in every process"
    subjects = httpx.get(f"{registry.url}/subjects", timeout=120).json()
    assert [name for name in subjects if unique in name] == [subject.format(unique)]
    number = int.from_bytes(data[1:5], "big")
    assert (data[0], data[5:]) == (0, b"\x02")
    known = json.loads(
        httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=120).json()["schema"]
    )
    assert (known["namespace"], known["name"]) == (f"shop.{unique}", "Value")


def test_the_version_that_a_transitive_rule_refuses_is_named(registry):
    """The latest version lacks the column, so that it would take it in any type."""
    text, number = (
        Field("o", Schema(kind=kind, optional=True))
        for kind in (ConnectKind.STRING, ConnectKind.INT32)
    )
    for schema in (row("a.Value", text), row("a.Value")):
        converter(registry.url).encoder("transitive", schema)
    allow(registry, "transitive-value", "BACKWARD_TRANSITIVE")
    with pytest.raises(SchemaIncompatible, match=r"with version 1: o: .*string.*int"):
        converter(registry.url).encoder("transitive", row("a.Value", number))


def test_a_rule_for_all_subjects_refuses_until_the_remedy_lifts_it(registry):
    """Apicurio takes NONE of a subject for no rule of its own, so the global one still counts."""
    schemas = (row("a.Value"), row("a.Value", Field("more", Schema(kind=ConnectKind.INT32))))
    allow(registry, "", "BACKWARD")
    converter(registry.url).encoder("global", schemas[0])
    lifted = []
    while len(lifted) < 2:
        with pytest.raises(SchemaIncompatible) as refused:
            converter(registry.url).encoder("global", schemas[1])
        named = re.findall(rf"{registry.url}/config/?(\S*?)[, ]", refused.value.advice())
        lifted.append(named[len(lifted)])
        allow(registry, lifted[-1], "NONE")
    assert lifted == ["global-value", ""]
    assert converter(registry.url).encoder("global", schemas[1])({"id": 1, "more": 2})


def test_protobuf_that_is_not_compatible_is_refused_with_its_difference(registry):
    def encode(*more: Field) -> bytes | None:
        given = {"schema.registry.url": registry.url, **PATIENT}
        properties = ProtobufProperties.model_validate(given)
        made = ProtobufConverter(properties, ConverterContext(record_part="value"))
        return made.encoder("proto", row("my-shop.a.Value", *more))({"id": 1, "price": b"\x05"})

    price = Schema(
        kind=ConnectKind.BYTES,
        optional=True,
        name="org.apache.kafka.connect.data.Decimal",
        parameters=(("scale", "2"), ("connect.decimal.precision", "8")),
    )
    first = encode(Field("price", price))
    assert first[5:] == b"\x00\x08\x01\x12\x07\x0a\x01\x05\x10\x01\x18\x02"
    allow(registry, "proto-value", "BACKWARD")
    with pytest.raises(SchemaIncompatible) as refused:
        encode(Field("price", Schema(kind=ConnectKind.STRING)))
    reported = "proto-value is not compatible with version 1: the field Value.price was "
    assert f"{reported}confluent.type.Decimal and is string" in str(refused.value)


def test_a_schema_that_may_not_be_registered_is_an_error(registry):
    schema = row("by.hand.Value")
    closed = converter(registry.url, **{"auto.register.schemas": False})
    with pytest.raises(SchemaNotRegistered, match="by.hand-value"):
        closed.encoder("by.hand", schema)
    converter(registry.url).encoder("by.hand", schema)
    assert closed.encoder("by.hand", schema)({"id": 1})[5:] == b"\x02"
    latest = converter(registry.url, **{"use.latest.version": True})
    assert latest.encoder("by.hand", schema)({"id": 1})[5:] == b"\x02"


def test_a_registry_that_is_away_or_elsewhere_is_reported(registry):
    with pytest.raises(SchemaInvalid, match="ccompat"):
        converter(f"{registry.url}/elsewhere").encoder("t", row("a.Value"))
    nobody = "http://127.0.0.1:1"
    with pytest.raises(RegistryUnavailable) as away:
        written(nobody, "away")
    assert away.value.retry is RetryVerdict.RECONNECT
    assert nobody in str(away.value)
    assert written(f"{nobody},{registry.url}", "away")  # the second address answers


# --- logins, certificates, a door that is shut -----------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("Basic am9lOnMzY3IzdA==", {"basic.auth.user.info": "joe:s3cr3t"}),
        ("Basic am9lOnMzY3IzdA==", {"in the address": "joe:s3cr3t@"}),
        ("Basic am9lOnA6QHNz", {"in the address": "joe:p%3A%40ss@"}),
        ("Bearer t0k3n", {"bearer.auth.token": "t0k3n"}),
    ],
    ids=["basic", "basic in the address", "basic with escapes", "bearer"],
)
def test_who_has_the_login_comes_in_and_nobody_else(registry, asked, given):
    more = dict(given)
    with door(registry.url) as shut:
        shut.authorization = asked
        url = shut.url.replace("//", f"//{more.pop('in the address', '')}")
        assert written(url, "door", **more)[5:] == b"\x02"
        assert shut.passed
        with pytest.raises(RegistryLogin, match="door-value") as refused:
            written(shut.url, "door", **{"basic.auth.user.info": "joe:not-this"})
        assert refused.value.retry is RetryVerdict.NEVER
        assert "not-this" not in str(refused.value)


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Return a certificate of its own signature, and its key."""
    made, key = folder / f"{name}.crt", folder / f"{name}.key"
    run_program(
        *"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -addext subjectAltName=IP:127.0.0.1".split(),
        *("-subj", f"/CN={name}", "-keyout", key, "-out", made),
    )  # fmt: skip
    return made, key


def test_a_registry_is_asked_over_tls_by_a_client_that_it_knows(registry, tmp_path):
    ours, our_key = certificate(tmp_path, "client")
    theirs, their_key = certificate(tmp_path, "registry")
    trusted = {"schema.registry.ssl.truststore.location": str(theirs)}
    known = {
        "schema.registry.ssl.keystore.location": str(ours),
        "schema.registry.ssl.key.location": str(our_key),
    }
    with door(registry.url, theirs, their_key, clients=ours) as shut:
        assert written(shut.url, "tls", **trusted, **known)[5:] == b"\x02"
        with pytest.raises(RegistryUnavailable, match="(?i)certificate") as unknown:
            written(shut.url, "tls", **known)
        assert "schema.registry.ssl.truststore.location" in str(unknown.value)
        with pytest.raises(RegistryUnavailable):
            written(shut.url, "tls", **trusted)
        assert shut.passed == 1


def test_files_that_are_no_certificates_are_named(registry, tmp_path):
    ours, _ = certificate(tmp_path, "client")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    cases = {
        "schema.registry.ssl.truststore.location": (text, tmp_path / "nowhere.pem"),
        "schema.registry.ssl.keystore.location": (text, ours),  # the key is missing
    }
    cases["schema.registry.ssl.key.location"] = (text, ours)
    for name, files in cases.items():
        more = {"schema.registry.ssl.keystore.location": str(ours)} if "key.l" in name else {}
        for file in files:
            with pytest.raises(ConfigurationError, match=name) as refused:
                written("https://127.0.0.1:1", "tls", **more, **{name: str(file)})
            assert str(file) in str(refused.value)


@pytest.mark.parametrize("url", ["registry:8081", "ftp://registry", "http://", "https:///path"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        AvroProperties.model_validate({"schema.registry.url": url})


@pytest.mark.parametrize("status", [429, 503])
def test_a_registry_that_is_busy_is_asked_until_it_answers(registry, status):
    patient = {"schema.registry.retry.timeout.ms": 90_000}
    with door(registry.url) as shut:
        shut.answer = status, "the door is shut"
        found = in_background(partial(written, shut.url, "busy", **patient))
        until(lambda: shut.refused >= 3, "three tries")
        assert not found.done()
        shut.answer = None
        assert found.result(120)[5:] == b"\x02"


def test_a_slow_registry_is_reported_with_the_property_that_waits_longer(registry):
    gate = threading.Event()
    with door(registry.url) as shut:
        shut.before = lambda _method, _path: gate.wait(WAIT_S)
        with pytest.raises(RegistryUnavailable) as slow:
            written(shut.url, "slow", **PATIENT | {"schema.registry.request.timeout.ms": 300})
        gate.set()
        assert "schema.registry.request.timeout.ms" in slow.value.advice()
        assert written(shut.url, "slow")[5:] == b"\x02"


def test_answers_that_no_registry_gives_are_reported(registry):
    written(registry.url, "odd")
    allow(registry, "odd-value", "BACKWARD")
    more = row("door.Value", Field("more", Schema(kind=ConnectKind.INT32)))
    with door(registry.url) as shut:
        shut.refusal = lambda _status, text: ("text/html", text)
        shut.before = lambda *_request: setattr(shut, "answer", (200, "<html>a proxy</html>"))
        with pytest.raises(SchemaIncompatible):  # by the registry itself
            converter(shut.url).encoder("odd", more)
        for answer in (200, '{"id": 4294967296}'), (404, '{"error_code": []}'):
            shut.answer = answer
            with pytest.raises(SchemaInvalid):
                written(shut.url, "odd")


# --- pipelines ------------------------------------------------------------------------------------


def writing(form: str, database: Database, url: str, folder: Path) -> PipelineRig:
    """Return a pipeline of records whose values are in ``form``."""
    settings = {
        "value.converter": form,
        "key.converter": "json",
        "value.converter.schema.registry.url": url,
        "value.converter.schema.registry.retry.timeout.ms": 0,
        "snapshot.mode": "no_data",
        "topic.prefix": database.name,
    }
    made = PipelineRig(database, folder, settings)
    made.destination.takes_records = True
    return made


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_the_null_of_a_delete_has_no_bytes_and_no_schema(database, registry, tmp_path, form):
    """Of a union of null and the row, the schema of the next row would be no compatible version."""
    database.psql(
        "CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items VALUES (1)"
    )
    made = writing(form, database, registry.url, tmp_path)
    made.tables = {"transforms": [{"type": "ExtractNewRecordState"}]}
    with made.running() as run:
        database.psql("DELETE FROM items")
        run.until(lambda: len(made.destination.records) == 1, "the delete")
        subjects = httpx.get(f"{registry.url}/subjects", timeout=120).json()
        assert f"{database.name}.public.items-value" not in subjects
        database.psql("INSERT INTO items VALUES (2)")
        run.until(lambda: len(made.destination.records) == 2, "the insert")
    assert [record.value is None for record in made.destination.records] == [True, False]


def test_an_incompatible_schema_ends_the_run_until_it_is_allowed(database, registry, tmp_path):
    database.psql("CREATE TABLE items (id int PRIMARY KEY, name text)")
    form = "io.confluent.connect.avro.AvroConverter"
    made = writing(form, database, registry.url, tmp_path)
    with made.running() as run:
        database.psql("INSERT INTO items VALUES (1, 'one')")
        run.until(lambda: len(made.destination.records) == 1, "the first record")
    subject = f"{database.name}.public.items-value"
    allow(registry, subject, "BACKWARD")
    database.psql("ALTER TABLE items ALTER name TYPE int USING 0")
    database.psql("INSERT INTO items VALUES (2, 5)")
    lost = database.wal_end()
    with pytest.raises(SchemaIncompatible) as refused, made.running(ready=False) as run:
        until(lambda: run.ended, "the end")
    reported = str(refused.value)
    assert f"the new schema of {subject} is not compatible with version 1: " in reported
    assert "name" in reported
    assert made.slot_lsns()[0] < lost, "it was not delivered, and is not to be confirmed"
    assert len(made.destination.records) == 1
    allow(registry, subject, "NONE")
    with made.running() as run:
        run.until(lambda: len(made.destination.records) == 2, "the second record")


def test_json_lines_refuse_what_is_no_json(database, registry, tmp_path):
    from waltap.pipeline.engine.preflight import FormatUnfit

    settings = {
        "value.converter": "avro", "schema.registry.url": registry.url, "sink.type": "jsonl",
        "sink.path": str(tmp_path / "out.jsonl"),
    }  # fmt: skip
    with pytest.raises(FormatUnfit, match="the sink jsonl holds JSON, and the format is avro"):
        PipelineRig(database, tmp_path, settings).run()
