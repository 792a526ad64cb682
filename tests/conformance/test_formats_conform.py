"""Every format of ours keeps the kit's promises."""

import json
from dataclasses import replace

import pytest

import waltap.plugin
import waltap_formats.plugin
from waltap.encoders.format.conversion import joined
from waltap.encoders.json.converter import JsonConverterProperties
from waltap.encoders.json.properties import JsonProperties
from waltap_formats.plain import StringProperties
from waltap_formats.properties import CloudEventsProperties
from waltap_testing.suites.format import FormatRig, FormatSuite, every_part
from waltap_testing.workload import NOW

PLUGINS = waltap.plugin, waltap_formats.plugin
SPECS = {spec.name: spec for plugin in PLUGINS for spec in plugin.register_formats()}
WITHOUT_SCHEMAS = JsonProperties.model_validate(
    {"key.converter.schemas.enable": False, "value.converter.schemas.enable": False}
)


class TestJson(FormatSuite):
    @pytest.fixture(params=["schemas", "no schemas", "no tombstones", "extended headers"])
    def rig(self, request):
        capture = {
            "no tombstones": {"tombstones.on.delete": False},
            "extended headers": {"extended.headers.enabled": True},
        }.get(request.param, {})
        properties = JsonProperties() if request.param == "schemas" else WITHOUT_SCHEMAS
        return FormatRig(SPECS["json"], properties, parse=json.loads, capture=capture)


class TestString(FormatSuite):
    @pytest.fixture
    def rig(self):
        return FormatRig(
            SPECS["string"],
            StringProperties(),
            parse=lambda data: data.decode(),
            holds=lambda value, text: text in value,
        )


class TestCloudEvents(FormatSuite):
    @pytest.fixture(params=["schemas", "no schemas"])
    def rig(self, request):
        given = {"json.schemas.enable": request.param == "schemas"}
        properties = CloudEventsProperties.model_validate(given)
        return FormatRig(SPECS["cloudevents"], properties, parse=json.loads)


class TestCloudEventsInBinaryMode(FormatSuite):
    @pytest.fixture
    def rig(self):
        def parse(data):
            try:
                return json.loads(data)
            except json.JSONDecodeError:
                return data.decode()  # an attribute

        properties = CloudEventsProperties.model_validate({"content.mode": "binary"})
        return FormatRig(SPECS["cloudevents"], properties, parse=parse)


class TestJsonBesideAnother(FormatSuite):
    """JSON as converters write it: what the JSON format writes, byte by byte."""

    @pytest.fixture
    def rig(self):
        def make(properties, context):
            def side(given):
                return SPECS["json"].converter(properties, given)

            return joined(side, side, side)(properties, context)

        spec = replace(SPECS["json"], factory=make, properties=JsonConverterProperties)
        return FormatRig(spec, JsonConverterProperties(), parse=json.loads)

    @pytest.mark.parametrize("capture", [{}, {"provide.transaction.metadata": True}])
    def test_its_records_are_those_of_the_json_format(self, rig, capture):
        parts = every_part()
        rig = replace(rig, capture=capture)
        whole = FormatRig(SPECS["json"], JsonProperties(), parse=json.loads, capture=capture)
        assert rig.build().render(parts, NOW) == whole.build().render(parts, NOW)


def test_every_registered_format_is_tested_here_or_with_a_registry():
    here = {"json", "string", "simple-header", "cloudevents"}
    with_a_registry = {"avro", "json-schema", "protobuf"}
    refuses_rows = {"bytes", "short", "integer", "long", "float", "double", "boolean"}
    assert set(SPECS) == here | with_a_registry | refuses_rows
