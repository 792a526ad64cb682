"""Readers of Avro and Protobuf, beside the libraries that wrote the bytes."""

import io
import json
import random
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from waltap.reading.document import DocumentReader
from waltap_formats.avro.reader import avro_reader
from waltap_formats.protobuf.reader import protobuf_reader
from waltap_formats.wire import WireUnreadable

AVRO: dict[str, Any] = {
    "type": "record", "name": "Node", "namespace": "a.b", "fields": [
        {"name": "id", "type": "long"},
        {"name": "next", "type": ["null", "Node"]},
        {"name": "colour", "type": {"type": "enum", "name": "c.Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "other", "type": "c.Colour"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 3}},
        {"name": "ratio", "type": "double"}, {"name": "small", "type": "float"},
        {"name": "yes", "type": "boolean"}, {"name": "raw", "type": "bytes"}]}  # fmt: skip


def node(next_: Any) -> dict[str, Any]:
    return {
        "id": -(2**63), "next": next_, "colour": "BLUE", "other": "RED", "hash": b"abc",
        "tags": {"x": ["é", ""], "y": []}, "price": Decimal("-12345678901234567890123.456"),
        "ratio": 0.1, "small": 0.5, "yes": True, "raw": b"\x00\xff"}  # fmt: skip


def written() -> tuple[Any, bytes]:
    value, out = node(node(None)), io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(AVRO))), value)
    return value, out.getvalue()


PROTO = """syntax = "proto3";
package p.q;
import "other.proto";
message Outer {
  message Inner { sint64 depth = 1; Inner inner = 2; }
  enum Kind { NONE = 0; BIG = 1; LOW = -1; }
  int32 id = 1; optional string name = 2; repeated int32 packed = 3; repeated string texts = 4;
  map<string, Inner> named = 5; Inner inner = 6; Kind kind = 7; fixed64 wide = 8; double ratio = 9;
  bytes raw = 10; bool yes = 11; uint64 most = 12; r.Far far = 13; sfixed32 low = 14; float small = 15;
  oneof one { string left = 16; int64 right = 17; }
}
message Second { int32 id = 1; }
"""
OTHER = 'syntax = "proto3"; package r; message Far { int64 at = 1; }'


def messages() -> Any:
    """Return the classes of PROTO, defined by hand."""
    field = descriptor_pb2.FieldDescriptorProto
    other = descriptor_pb2.FileDescriptorProto(name="other.proto", package="r", syntax="proto3")
    far = other.message_type.add(name="Far")
    far.field.add(name="at", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    file = descriptor_pb2.FileDescriptorProto(
        name="t.proto", package="p.q", syntax="proto3", dependency=["other.proto"]
    )
    outer = file.message_type.add(name="Outer")
    inner = outer.nested_type.add(name="Inner")
    inner.field.add(name="depth", number=1, type=field.TYPE_SINT64, label=field.LABEL_OPTIONAL)
    inner.field.add(
        name="inner", number=2, type_name=".p.q.Outer.Inner", label=field.LABEL_OPTIONAL
    )
    entry = outer.nested_type.add(name="NamedEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type_name=".p.q.Outer.Inner", label=field.LABEL_OPTIONAL
    )
    kind = outer.enum_type.add(name="Kind")
    for label, number in (("NONE", 0), ("BIG", 1), ("LOW", -1)):
        kind.value.add(name=label, number=number)
    for number, (name, kind_name) in enumerate(
        [("id", "INT32"), ("name", "STRING"), ("packed", "INT32*"), ("texts", "STRING*"),
         ("named", ".p.q.Outer.NamedEntry*"), ("inner", ".p.q.Outer.Inner"), ("kind", ".p.q.Outer.Kind"),
         ("wide", "FIXED64"), ("ratio", "DOUBLE"), ("raw", "BYTES"), ("yes", "BOOL"), ("most", "UINT64"),
         ("far", ".r.Far"), ("low", "SFIXED32"), ("small", "FLOAT"), ("left", "STRING"),
         ("right", "INT64")], start=1,
    ):  # fmt: skip
        label = field.LABEL_REPEATED if kind_name.endswith("*") else field.LABEL_OPTIONAL
        made = outer.field.add(name=name, number=number, label=label)
        if kind_name.startswith("."):
            made.type_name = kind_name.rstrip("*")
        else:
            made.type = getattr(field, f"TYPE_{kind_name.rstrip('*')}")
    outer.oneof_decl.add(name="one")
    outer.field[15].oneof_index = outer.field[16].oneof_index = 0
    outer.oneof_decl.add(name="_name")
    outer.field[1].proto3_optional, outer.field[1].oneof_index = True, 1
    pool = descriptor_pool.DescriptorPool()
    pool.Add(other)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.q.Outer"))


def message() -> bytes:
    made = messages()(
        id=-5, name="", packed=[1, -1, 300], texts=["a", ""], kind=-1, wide=2**63, ratio=0.1,
        raw=b"\x00\xff", yes=True, most=2**64 - 1, low=-7, small=0.5, right=0)  # fmt: skip
    made.named["x"].depth = -3
    made.inner.inner.depth = 9
    made.far.at = -1
    return bytes(made.SerializeToString())


def test_avro_is_read_as_fastavro_wrote_it() -> None:
    value, data = written()
    assert avro_reader(AVRO)(data) == value


def test_avro_refers_to_other_schemas() -> None:
    known = {"a.b.Far": {"type": "record", "name": "Far", "namespace": "a.b",
                         "fields": [{"name": "id", "type": "int"}]}}  # fmt: skip
    schema = {"type": "record", "name": "R", "namespace": "a.b",
              "fields": [{"name": "far", "type": ["null", "Far"]}]}  # fmt: skip
    assert avro_reader(schema, known)(b"\x02\x06") == {"far": {"id": 3}}
    with pytest.raises(WireUnreadable, match="no type Far"):
        avro_reader(schema)


def test_protobuf_is_read_as_google_wrote_it() -> None:
    found = protobuf_reader(PROTO, [OTHER])(b"\x00" + message())
    assert found == {
        "id": -5, "name": "", "packed": [1, -1, 300], "texts": ["a", ""], "kind": "LOW", "wide": 2**63,
        "ratio": 0.1, "raw": b"\x00\xff", "yes": True, "most": 2**64 - 1, "low": -7, "small": 0.5,
        "right": 0, "named": {"x": {"depth": -3}}, "inner": {"depth": 0, "inner": {"depth": 9}},
        "far": {"at": -1}}  # fmt: skip


def test_the_place_of_a_message_is_read() -> None:
    read = protobuf_reader(PROTO, [OTHER])
    assert read(b"\x02\x02\x08\x07") == {"id": 7}
    assert read(b"\x04\x00\x00\x08\x07") == {"depth": -4}
    with pytest.raises(WireUnreadable, match="no message"):
        read(b"\x02\x08")


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_damage_is_unreadable_and_nothing_else(form: str) -> None:
    if form == "avro":
        data, read = written()[1], avro_reader(AVRO)
    else:
        data, read = b"\x00" + message(), protobuf_reader(PROTO, [OTHER])
    chance = random.Random(7)
    refused = 0
    for turn in range(3000):
        broken = bytearray(data[: turn % len(data)] if turn % 3 == 0 else data)
        for _ in range(turn % 4):
            if broken:
                broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            read(bytes(broken))
        except (ValueError, RecursionError, ArithmeticError):
            refused += 1
    assert refused > 100


def test_values_that_are_nested_without_end_are_told() -> None:
    schema = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    with pytest.raises((WireUnreadable, RecursionError)):
        avro_reader(schema)(b"\x02" * 100_000)


def test_any_bytes_are_a_document() -> None:
    documents, chance = DocumentReader(None), random.Random(11)
    for size in range(400):
        data = chance.randbytes(size)
        assert documents.of(data).form in ("bytes", "text", "json")
    assert documents.of(b"[" * 900 + b"]" * 900).form == "text"
