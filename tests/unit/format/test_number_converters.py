"""Numbers as Kafka's serializers write them: each from Kafka's documented big-endian layout."""

from contextlib import nullcontext

import pytest
from tests.harness.examined import connector_file
from tests.harness.schemas import TEXT

from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.config.namespace import ValidationResult
from waltap.config.resolve import resolve, survey
from waltap.encoders.format.converter import ConverterContext, SchemaMismatch, ValueUnfit
from waltap.pipeline.engine.build import PipelineStages
from waltap.plugins.host import Host
from waltap.ports.specs import FormatSpec

JAVA = "org.apache.kafka.connect.converters."


@pytest.mark.parametrize(
    ("java", "kind", "value", "data"),
    [
        ("ShortConverter", ConnectKind.INT16, -2, "fffe"),
        ("IntegerConverter", ConnectKind.INT32, 258, "00000102"),
        ("LongConverter", ConnectKind.INT64, -1, "f" * 16),
        ("FloatConverter", ConnectKind.FLOAT32, 1.5, "3fc00000"),
        ("DoubleConverter", ConnectKind.FLOAT64, 1.5, "3ff8000000000000"),
        ("BooleanConverter", ConnectKind.BOOLEAN, True, "01"),
    ],
)
def test_a_value_is_big_endian_and_others_are_refused(java, kind, value, data):
    spec = Host().find(FormatSpec, JAVA + java)
    assert spec.converter is not None
    made = spec.converter(None, ConverterContext(record_part="key"))
    encode = made.encoder("t", Schema(kind=kind, optional=True))
    assert encode(value) == bytes.fromhex(data)
    assert encode(None) is None
    with pytest.raises(SchemaMismatch, match=kind.value) as refused:
        made.encoder("t", TEXT)("text")
    assert "ExtractField$Key" in refused.value.way


CONNECTOR = {"waltap.sink.type": "jsonl", "waltap.sink.path": "out"}
EXTRACTED = {
    "transforms": "x",
    "transforms.x.type": "org.apache.kafka.connect.transforms.ExtractField$Value",
    "transforms.x.field": "op",
}


@pytest.mark.parametrize("java", ["IntegerConverter", "ByteArrayConverter"])
def test_events_that_nothing_takes_a_field_out_of_are_refused_before_a_start(java):
    def found(**given: str) -> ValidationResult:
        named = {name.replace("__", "."): value for name, value in given.items()}
        return survey(connector_file(CONNECTOR | named), Host())

    (problem,) = found(value__converter=JAVA + java).problems
    assert problem.property == "value.converter"
    assert "ExtractField$Value" in problem.what
    assert not found(value__converter=JAVA + java, **EXTRACTED).problems
    keys = found(key__converter=JAVA + java)  # of tables without a key they are null
    assert not keys.problems
    assert any("ExtractField$Key" in each for each in keys.warnings)


def test_headers_that_their_format_cannot_write_are_refused_and_the_remedy_leaves_them_out(
    tmp_path,
):
    given = CONNECTOR | {
        "name": "p",
        "waltap.state.dir": str(tmp_path),
        "header.converter": f"{JAVA}IntegerConverter",
    }
    for remedy in ({}, {"extended.headers.enabled": "false"}):
        profile = resolve(connector_file(given | remedy), Host())
        with nullcontext() if remedy else pytest.raises(ValueUnfit, match="headers.enabled=false"):
            PipelineStages(profile, Host())
