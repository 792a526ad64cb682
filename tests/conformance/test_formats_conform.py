"""Every format of ours keeps the kit's promises."""

import json

import pytest

import waltap.plugin
from waltap.json.properties import JsonProperties
from waltap_testing.format_suite import FormatRig, FormatSuite

SPECS = {spec.name: spec for spec in waltap.plugin.register_formats()}
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


def test_every_registered_format_is_here():
    assert set(SPECS) == {"json"}
