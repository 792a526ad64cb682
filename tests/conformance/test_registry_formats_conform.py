"""Formats that ask a schema registry keep the kit's promises, with a real one."""

import io
import json
import math
from base64 import b64decode
from collections.abc import Callable, Mapping

import fastavro
import httpx
import pytest
from tests.harness.json_events import part, table
from tests.harness.protobuf import protobuf_reader
from tests.harness.servers.registry import Registry

from waltap.changes.decode.message import Insert, Update
from waltap.changes.decode.tuple_image import UNCHANGED
from waltap.encoders.format.converter import ConverterContext
from waltap_formats import registry as registry_client
from waltap_formats.plugin import register_formats
from waltap_formats.properties import (
    AvroProperties,
    CloudEventsProperties,
    JsonSchemaProperties,
    ProtobufProperties,
)
from waltap_testing.suites.format import FormatRig, FormatSuite
from waltap_testing.workload import ITEMS, NOW

SPECS = {spec.name: spec for spec in register_formats()}
PATIENT = {"schema.registry.request.timeout.ms": 60_000}
# a subject has schemas of one kind, so each suite has a topic prefix of its own
NAMES = {
    "field.name.adjustment.mode": "avro_unicode",
    "schema.name.adjustment.mode": "avro_unicode",
}


Read = Callable[[bytes], object]


def reader(registry: Registry, kind: str, make: Callable[[str], Read]) -> Read:
    """Return what reads bytes behind a schema's number, or the JSON of a header."""
    made: dict[int, Read] = {}

    def parse(data: bytes) -> object:
        if data[:1] != b"\0":
            return json.loads(data)  # a header
        number = int.from_bytes(data[1:5], "big")
        if number not in made:
            answer = httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=120).json()
            assert answer.get("schemaType", "AVRO") == kind
            made[number] = make(answer["schema"])
        return made[number](data[5:])

    return parse


def avro(text: str) -> Read:
    schema = fastavro.parse_schema(json.loads(text))

    def read(data: bytes) -> object:
        body = io.BytesIO(data)
        found = fastavro.schemaless_reader(body, schema)
        if body.read():
            raise ValueError("bytes are left")
        return found

    return read


def protobuf(text: str) -> Read:
    read = protobuf_reader(text)

    def first(data: bytes) -> object:
        assert data[:1] == b"\0"
        return read(data[1:])

    return first


def json_schema(text: str) -> Read:
    assert json.loads(text)
    return json.loads


class TestAvro(FormatSuite):
    @pytest.fixture
    def rig(self, registry) -> FormatRig:
        properties = AvroProperties.model_validate({"schema.registry.url": registry.url, **PATIENT})
        capture = {**NAMES, "topic.prefix": "avro"}
        parse = reader(registry, "AVRO", avro)
        return FormatRig(SPECS["avro"], properties, parse=parse, capture=capture)

    def test_a_default_that_json_has_no_number_for_does_not_stop_the_pipeline(self, rig):
        odd = table(
            "odd",
            "id int4 not null",
            "f float8 default 'NaN'::double precision",
            "g float4 not null default '-Infinity'::real",
            "h float8 default '1.5'::double precision",
        )
        inserts = Insert(odd, 0, ("1", "2.5", "3.5", None)), Insert(odd, 0, ("2", "NaN", "1", "2"))
        found = [
            rig.parse(record.value)["after"] for record in rig.build().render([part(*inserts)], NOW)
        ]
        assert [row["h"] for row in found] == [1.5, 2.0]
        assert (found[0]["f"], found[0]["g"]) == (2.5, 3.5)
        assert math.isnan(found[1]["f"])

    def test_an_added_column_with_such_a_default_is_compatible(self, rig, registry):
        subject, made = "avro.public.grown-value", rig.build()
        before = table("grown", "id int4 not null")
        (old,) = made.render([part(Insert(before, 0, ("1",)))], NOW)
        rule = httpx.put(
            f"{registry.url}/config/{subject}", json={"compatibility": "BACKWARD"}, timeout=120
        )
        assert rule.status_code == 200, rule.text
        after = table("grown", "id int4 not null", "f float8 default 'NaN'::double precision")
        rows = Insert(after, 0, ("2", "2.5")), Insert(after, 0, ("3", None))
        records = made.render([part(*rows)], NOW)
        first, null = [rig.parse(record.value)["after"]["f"] for record in records]
        assert first == 2.5
        assert math.isnan(null), "NULL is the default, as with any other"
        old_schema, new_schema = (
            httpx.get(
                f"{registry.url}/subjects/{subject}/versions/{version}/schema", timeout=120
            ).json()
            for version in (1, 2)
        )
        read = fastavro.schemaless_reader(io.BytesIO(old.value[5:]), old_schema, new_schema)
        assert read["after"] == {"id": 1, "f": None}


def test_ids_of_ever_more_schemas_take_bounded_memory(registry, monkeypatch):
    """Asking again for one that was forgotten gives the same id."""
    monkeypatch.setattr(registry_client, "MAX_IDS", 2)
    given = AvroProperties.model_validate({"schema.registry.url": registry.url, **PATIENT})
    client = registry_client.RegistryClient(given, ConverterContext(record_part="value"))
    schemas = [json.dumps({"type": "fixed", "name": "f", "size": n}) for n in range(1, 6)]

    def ids() -> list[int]:
        return [client.id_of(f"bounded-{s}", text, "AVRO") for s, text in enumerate(schemas)]

    assert ids() == ids()
    assert len(client._known) <= 2


class TestProtobuf(FormatSuite):
    nullable: Mapping[str, bool] = {"optional.for.nullables": True}

    @pytest.fixture
    def rig(self, registry) -> FormatRig:
        given = {"schema.registry.url": registry.url, "scrub.invalid.names": True, **self.nullable}
        properties = ProtobufProperties.model_validate({**given, **PATIENT})
        capture = {"topic.prefix": type(self).__name__}
        parse = reader(registry, "PROTOBUF", protobuf)
        return FormatRig(SPECS["protobuf"], properties, parse=parse, capture=capture)


class TestProtobufWithWrappers(TestProtobuf):
    nullable = {"wrapper.for.nullables": True}


class TestProtobufWithoutPresence(TestProtobuf):
    """As Confluent's converter writes it unless it is reported otherwise: null is the empty text."""

    nullable: Mapping[str, bool] = {}

    def test_null_and_unchanged_differ(self, rig):
        render = rig.build()
        null, unchanged, empty = (
            render.render([part(Update(ITEMS, 16, ("1", "2", value)))], NOW)[0].value
            for value in (None, UNCHANGED, "")
        )
        assert null == empty != unchanged


class TestJsonSchema(FormatSuite):
    @pytest.fixture
    def rig(self, registry) -> FormatRig:
        given = {"schema.registry.url": registry.url, **PATIENT}
        properties = JsonSchemaProperties.model_validate(given)
        parse, capture = reader(registry, "JSON", json_schema), {"topic.prefix": "json"}
        return FormatRig(SPECS["json-schema"], properties, parse=parse, capture=capture)


class TestCloudEventsInAvro(FormatSuite):
    @pytest.fixture
    def rig(self, registry) -> FormatRig:
        read = reader(registry, "AVRO", avro)

        def parse(data: bytes) -> object:
            found = read(data)
            if isinstance(found, dict) and "specversion" in found:
                inner = found["data"]
                found["data"] = read(inner if isinstance(inner, bytes) else b64decode(inner))
            return found

        given = {
            "avro.schema.registry.url": registry.url,
            "serializer.type": "avro",
            "data.serializer.type": "avro",
        }
        properties = CloudEventsProperties.model_validate(given)
        capture = {**NAMES, "topic.prefix": "cloud"}
        return FormatRig(SPECS["cloudevents"], properties, parse=parse, capture=capture)
