"""Numbers as Kafka's serializers write them: each from Kafka's documented big-endian layout."""

from typing import Any

import pytest
from tests.harness.schemas import TEXT

from waltap.format.converter import ConverterContext
from waltap.format.schema_mismatch import SchemaMismatch
from waltap.host import Host
from waltap.mapping.connect_schema import ConnectKind, Schema
from waltap.specs import FormatSpec

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
def test_a_value_is_big_endian_and_others_are_refused(
    java: str, kind: ConnectKind, value: Any, data: str
) -> None:
    spec = Host().find(FormatSpec, JAVA + java)
    assert spec.converter is not None
    made = spec.converter(None, ConverterContext(side="key"))
    encode = made.encoder("t", Schema(kind=kind, optional=True))
    assert encode(value) == bytes.fromhex(data)
    assert encode(None) is None
    with pytest.raises(SchemaMismatch, match=kind.value):
        made.encoder("t", TEXT)("text")
