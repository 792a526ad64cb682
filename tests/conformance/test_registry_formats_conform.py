"""Formats that ask a schema registry keep the kit's promises, with a real one."""

import io
import json
from base64 import b64decode
from collections.abc import Callable, Mapping

import fastavro
import httpx
import pytest
from tests.harness.json_events import part
from tests.harness.protobuf import protobuf_reader
from tests.harness.servers.registry import Registry

from waltap.decode.message import Update
from waltap.decode.tuple_image import UNCHANGED
from waltap.transactions.transaction import TransactionPart
from waltap_formats.avro.properties import AvroProperties
from waltap_formats.cloudevents.properties import CloudEventsProperties
from waltap_formats.json_schema.properties import JsonSchemaProperties
from waltap_formats.plugin import register_formats
from waltap_formats.protobuf.properties import ProtobufProperties
from waltap_testing.format_suite import NOW, FormatRig, FormatSuite
from waltap_testing.workload import ITEMS

SPECS = {spec.name: spec for spec in register_formats()}
PATIENT = {"schema.registry.request.timeout.ms": 60_000}
# a subject has schemas of one kind, so each suite has a topic prefix of its own
NAMES = {
    "field.name.adjustment.mode": "avro_unicode",
    "schema.name.adjustment.mode": "avro_unicode",
}


class TestAvro(FormatSuite):
    @pytest.fixture
    def rig(self, registry: Registry) -> FormatRig:
        schemas: dict[int, object] = {}

        def parse(data: bytes) -> object:
            if data[:1] != b"\0":
                return json.loads(data)  # a header
            number = int.from_bytes(data[1:5], "big")
            if number not in schemas:
                answer = httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=90)
                schemas[number] = fastavro.parse_schema(json.loads(answer.json()["schema"]))
            body = io.BytesIO(data[5:])
            found = fastavro.schemaless_reader(body, schemas[number])
            if body.read():
                raise ValueError("bytes are left")
            return found

        properties = AvroProperties.model_validate({"schema.registry.url": registry.url, **PATIENT})
        capture = {**NAMES, "topic.prefix": "avro"}
        return FormatRig(SPECS["avro"], properties, parse=parse, capture=capture)


class TestProtobuf(FormatSuite):
    nullable: Mapping[str, bool] = {"optional.for.nullables": True}

    @pytest.fixture
    def rig(self, registry: Registry) -> FormatRig:
        readers: dict[int, Callable[[bytes], object]] = {}

        def parse(data: bytes) -> object:
            if data[:1] != b"\0":
                return json.loads(data)  # a header
            number = int.from_bytes(data[1:5], "big")
            if number not in readers:
                answer = httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=90).json()
                assert answer["schemaType"] == "PROTOBUF"
                readers[number] = protobuf_reader(answer["schema"])
            assert data[5:6] == b"\0"
            return readers[number](data[6:])

        given = {"schema.registry.url": registry.url, "scrub.invalid.names": True, **self.nullable}
        properties = ProtobufProperties.model_validate({**given, **PATIENT})
        capture = {"topic.prefix": type(self).__name__}
        return FormatRig(SPECS["protobuf"], properties, parse=parse, capture=capture)


class TestProtobufWithWrappers(TestProtobuf):
    nullable = {"wrapper.for.nullables": True}


class TestProtobufWithoutPresence(TestProtobuf):
    """As Confluent's converter writes it unless it is told otherwise: null is the empty text."""

    nullable: Mapping[str, bool] = {}

    def test_null_and_unchanged_look_different(self, rig: FormatRig) -> None:
        render = rig.build()
        null, unchanged, empty = (
            render.render([part], NOW)[0].value
            for part in (changed(None), changed(UNCHANGED), changed(""))
        )
        assert null == empty != unchanged


def changed(value: object) -> TransactionPart:
    """Return a part with an update that sets a text to ``value``."""
    return part(Update(ITEMS, 16, ("1", "2", value)))  # type: ignore[arg-type]


class TestJsonSchema(FormatSuite):
    @pytest.fixture
    def rig(self, registry: Registry) -> FormatRig:
        known: set[int] = set()

        def parse(data: bytes) -> object:
            if data[:1] != b"\0":
                return json.loads(data)  # a header
            number = int.from_bytes(data[1:5], "big")
            if number not in known:
                answer = httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=90).json()
                assert answer["schemaType"] == "JSON"
                json.loads(answer["schema"])
                known.add(number)
            return json.loads(data[5:])

        properties = JsonSchemaProperties.model_validate(
            {"schema.registry.url": registry.url, **PATIENT}
        )
        capture = {"topic.prefix": "json"}
        return FormatRig(SPECS["json-schema"], properties, parse=parse, capture=capture)


class TestCloudEventsInAvro(FormatSuite):
    @pytest.fixture
    def rig(self, registry: Registry) -> FormatRig:
        schemas: dict[int, object] = {}

        def avro(data: bytes) -> object:
            number = int.from_bytes(data[1:5], "big")
            if number not in schemas:
                answer = httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=90)
                schemas[number] = fastavro.parse_schema(json.loads(answer.json()["schema"]))
            return fastavro.schemaless_reader(io.BytesIO(data[5:]), schemas[number])

        def parse(data: bytes) -> object:
            found = avro(data) if data[:1] == b"\0" else json.loads(data)
            if isinstance(found, dict) and "specversion" in found:
                inner = found["data"]
                found["data"] = avro(inner if isinstance(inner, bytes) else b64decode(inner))
            return found

        given = {
            "avro.schema.registry.url": registry.url,
            "serializer.type": "avro",
            "data.serializer.type": "avro",
        }
        properties = CloudEventsProperties.model_validate(given)
        capture = {**NAMES, "topic.prefix": "cloud"}
        return FormatRig(SPECS["cloudevents"], properties, parse=parse, capture=capture)
