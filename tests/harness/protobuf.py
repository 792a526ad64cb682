"""Messages read by Google's library, from the text of their schema."""

import re
from collections.abc import Callable
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)

from waltap_formats.protobuf.schema import WRAPPERS
from waltap_formats.schema_difference import Fields, read_text

FIELD = descriptor_pb2.FieldDescriptorProto
NUMBERS = {
    "confluent/type/decimal.proto": (
        "confluent.type",
        "Decimal",
        "bytes value uint32 precision int32 scale",
    ),
    "google/type/date.proto": ("google.type", "Date", "int32 year int32 month int32 day"),
    "google/type/timeofday.proto": (
        "google.type",
        "TimeOfDay",
        "int32 hours int32 minutes int32 seconds int32 nanos",
    ),
}
"""File → package, message and fields of types that Google's library does not bring."""


def protobuf_reader(text: str) -> Callable[[bytes], dict[str, Any]]:
    """Return what reads the file's first message to a dict of its fields; one that is not there has no
    entry where its presence is reported, else its default."""
    package, messages = read_text(text)
    assert 'syntax = "proto3";' in text
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for place, (package, name, fields) in NUMBERS.items():
        made = descriptor_pb2.FileDescriptorProto(name=place, package=package, syntax="proto3")
        message = made.message_type.add(name=name)
        words = iter(fields.split())
        for number, (kind, called) in enumerate(zip(words, words, strict=True), start=1):
            message.field.add(
                name=called, number=number, type=_primitive(kind), label=FIELD.LABEL_OPTIONAL
            )
        pool.Add(made)
    file = descriptor_pb2.FileDescriptorProto(
        name="t.proto",
        package=package.replace("-", "_"),
        syntax="proto3",
        dependency=re.findall(r'^import "(.+)";$', text, re.MULTILINE),
    )
    made_of: dict[tuple[str, ...], Any] = {}
    for path, fields in messages.items():
        outer = made_of.get(path[:-1])
        made = made_of[path] = (file.message_type if outer is None else outer.nested_type).add()
        _define(made, path[-1], fields)
    pool.Add(file)
    name = ".".join(filter(None, (file.package, next(iter(messages))[0])))
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    return lambda data: _plain(kind.FromString(data))


def _primitive(kind: str) -> Any:
    return getattr(FIELD, f"TYPE_{kind.upper()}") if kind in WRAPPERS else None


def _define(made: Any, called: str, fields: Fields) -> None:
    made.name = called
    for number, (name, word, kind) in fields.items():
        label = FIELD.LABEL_REPEATED if word == "repeated" else FIELD.LABEL_OPTIONAL
        field = made.field.add(name=name, number=number, label=label)
        primitive = _primitive(kind)
        if primitive is not None:
            field.type = primitive
        else:
            field.type_name = f".{kind}" if "." in kind else kind
        if word == "optional":
            field.proto3_optional = True
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{name}")


def _plain(message: Any) -> dict[str, Any]:
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        inner = field.message_type is not None
        if field.is_repeated:
            found[field.name] = [_plain(each) if inner else each for each in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _plain(value) if inner else value
    return found
