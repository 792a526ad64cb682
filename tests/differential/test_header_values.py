"""Values of headers beside what Kafka Connect's converters of headers wrote of them."""

import json
from typing import Any

import pytest
from tests.differential.header_values import CONVERTERS, RECORDED, VALUES
from tests.differential.test_converters import read_schema

from waltap.changes.mapping.conversion import from_json
from waltap.encoders.format.converter import Converter, ConverterContext
from waltap.plugins.host import Host
from waltap.ports.specs import FormatSpec

LINES = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").split("\n") if line]
HOST = Host()


def ours(name: str) -> Converter:
    """Return our converter of the class that the name stands for."""
    java, config = CONVERTERS[name]
    spec = HOST.find(FormatSpec, java)
    assert isinstance(spec, FormatSpec) and spec.converter is not None
    declared = spec.converter_properties or spec.properties
    properties = None if declared is None else declared.model_validate(config)
    return spec.converter(properties, ConverterContext(record_part="header"))


@pytest.mark.parametrize("name", CONVERTERS)
def test_header_values_are_those_of_connects_converters(name: str) -> None:
    converter, wrong = ours(name), []
    lines = [line for line in LINES if line["converter"] == name]
    assert len(lines) == len(VALUES)
    for line in lines:
        schema: Any = read_schema(line["schema"])
        value = from_json(schema, json.dumps(line["payload"]))
        found = converter.encoder("", schema)(value)
        text = None if found is None else found.decode()
        if name.startswith("json") and text is not None:
            same = json.loads(text) == json.loads(line["text"])
        else:
            same = text == line["text"]
        if not same:
            wrong.append(f"{line['schema']} {line['payload']}: {text!r} is not {line['text']!r}")
    assert not wrong, "\n".join(wrong)
