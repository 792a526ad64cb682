"""Formats that ask a schema registry keep the kit's promises, with a real one."""

import io
import json

import fastavro
import httpx
import pytest

from tests.servers.registry import Registry
from waltap_formats.avro.properties import AvroProperties
from waltap_formats.plugin import register_formats
from waltap_testing.format_suite import FormatRig, FormatSuite

SPECS = {spec.name: spec for spec in register_formats()}
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
                answer = httpx.get(f"{registry.url}/schemas/ids/{number}")
                schemas[number] = fastavro.parse_schema(json.loads(answer.json()["schema"]))
            body = io.BytesIO(data[5:])
            found = fastavro.schemaless_reader(body, schemas[number])
            if body.read():
                raise ValueError("bytes are left")
            return found

        properties = AvroProperties.model_validate({"schema.registry.url": registry.url})
        return FormatRig(SPECS["avro"], properties, parse=parse, capture=NAMES)
