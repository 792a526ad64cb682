"""Protobuf schemas of Connect schemas, and their text.

A struct is a message, named by the last part of its name; nested structs are defined inside it.
Fields are numbered from 1. The text equals the one that kafka-connect-protobuf-converter 7.0
registers, so that a topic written by the other product gets no new version. Source: results of
that converter.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from waltap.changes.mapping.connect_schema import (
    DATE,
    DECIMAL,
    TIME,
    TIMESTAMP,
    ConnectKind,
    Field,
    Schema,
)
from waltap.errors import ConfigurationError

PRIMITIVES = {
    ConnectKind.INT8: "int32",
    ConnectKind.INT16: "int32",
    ConnectKind.INT32: "int32",
    ConnectKind.INT64: "int64",
    ConnectKind.FLOAT32: "float",
    ConnectKind.FLOAT64: "double",
    ConnectKind.BOOLEAN: "bool",
    ConnectKind.STRING: "string",
    ConnectKind.BYTES: "bytes",
}
# Connect schema's name → its message and file.
LOGICAL = {
    DECIMAL: ("confluent.type.Decimal", "confluent/type/decimal.proto"),
    DATE: ("google.type.Date", "google/type/date.proto"),
    TIME: ("google.type.TimeOfDay", "google/type/timeofday.proto"),
    TIMESTAMP: ("google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
}

# Types with a message in google/protobuf/wrappers.proto, in its order: an index there is part of
# the wire form.
WRAPPERS = ("double", "float", "int64", "uint64", "int32", "uint32", "bool", "string", "bytes")

WRAPPERS_FILE = "google/protobuf/wrappers.proto"
SPELLED = {"int32": "Int32", "int64": "Int64", "uint32": "UInt32", "uint64": "UInt64"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def wrapper(kind: str) -> str:
    """Return the message that wraps a primitive type."""
    return f"{SPELLED.get(kind, kind.capitalize())}Value"


# The registered schema of values that are no structs.
WRAPPERS_TEXT = (
    'syntax = "proto3";\npackage google.protobuf;\n\n'
    'option java_package = "com.google.protobuf";\n'
    'option java_outer_classname = "WrappersProto";\n'
    "option java_multiple_files = true;\n"
    'option go_package = "google.golang.org/protobuf/types/known/wrapperspb";\n'
    "option cc_enable_arenas = true;\n"
    'option objc_class_prefix = "GPB";\n'
    'option csharp_namespace = "Google.Protobuf.WellKnownTypes";\n\n'
    + "".join(
        f'message {wrapper(kind)} {{\n  {kind} value = 1 [json_name = "value"];\n}}\n'
        for kind in WRAPPERS
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageField:
    """Describe a field of a message."""

    name: str
    number: int
    type: str
    # Empty, optional or repeated.
    label: str = ""
    # Connect's facts that Protobuf cannot express.
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, kw_only=True)
class MessageType:
    """Describe a message and the messages inside it."""

    name: str
    members: list[MessageField] = field(default_factory=list)
    messages: list["MessageType"] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtoFile:
    """Describe a file with one top-level message."""

    package: str
    imports: tuple[str, ...]
    message: MessageType

    @property
    def full_name(self) -> str:
        return f"{self.package}.{self.message.name}" if self.package else self.message.name

    def text(self) -> str:
        """Return the file as Confluent's library prints it."""
        lines = ['syntax = "proto3";']
        if self.package:
            lines.append(f"package {self.package};")
        if self.imports:
            lines += ["", *(f'import "{name}";' for name in self.imports)]
        return "\n".join([*lines, "", *_printed(self.message)]) + "\n"


def message_file(
    schema: Schema, *, optional: bool = False, wrappers: bool = False, scrub: bool = False
) -> ProtoFile:
    """Return the file of a struct schema.

    `ProtobufProperties` explains the options. Raises: ConfigurationError for names and shapes
    that Protobuf refuses.
    """
    assert schema.kind is ConnectKind.STRUCT
    return _ProtobufSchemaBuilder(optional=optional, wrappers=wrappers, scrub=scrub).file(schema)


class _ProtobufSchemaBuilder:
    """Build one file."""

    def __init__(self, *, optional: bool, wrappers: bool, scrub: bool) -> None:
        self._optional, self._wrappers, self._scrub = optional, wrappers, scrub
        # A dict keeps the order of first use, in which imports are printed.
        self._imports: dict[str, None] = {}
        self._unnamed = 0

    def file(self, schema: Schema) -> ProtoFile:
        *space, name = (self._scrubbed(part) for part in self._named(schema.name).split("."))
        message = self._message(_checked(name, "schema.name.adjustment.mode", "message"), schema)
        return ProtoFile(package=".".join(space), imports=tuple(self._imports), message=message)

    def _message(self, name: str, schema: Schema, *, entry: bool = False) -> MessageType:
        """Return the message of a struct.

        ``entry`` means a map's entry, whose fields have neither label nor parameters.
        """
        made, inside = MessageType(name=name), _NestedNames(name)
        for number, member in enumerate(schema.fields, start=1):
            called = _checked(self._scrubbed(member.name), "field.name.adjustment.mode", "field")
            if any(other.name == called for other in made.members):
                problem = f"two fields of {name} are called {called}"
                raise ConfigurationError.of("field.name.adjustment.mode", problem)
            found = self._member(called, number, member.schema, made, inside)
            if entry:
                label = "" if found.label == "optional" else found.label
                found = replace(found, label=label, parameters=())
            made.members.append(found)
        return made

    def _member(
        self, name: str, number: int, schema: Schema, within: MessageType, inside: "_NestedNames"
    ) -> MessageField:
        label, of = "", schema
        if schema.kind is ConnectKind.ARRAY:
            assert schema.items is not None
            label, of = "repeated", schema.items
            if of.kind is ConnectKind.ARRAY:
                problem = f"Protobuf has no arrays of arrays: the field {name} of {within.name}"
                raise ConfigurationError.of("value.converter", problem)
        elif schema.kind is ConnectKind.MAP:
            label = "repeated"
        elif self._optional and schema.optional:
            label = "optional"
        type_, parameters = self._type(name, of, within, inside)
        return MessageField(
            name=name, number=number, type=type_, label=label, parameters=parameters
        )

    def _type(
        self, name: str, schema: Schema, within: MessageType, inside: "_NestedNames"
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return a field's type and parameters.

        Messages that the type needs are defined in ``within``.
        """
        if schema.name in LOGICAL:
            made, import_path = LOGICAL[schema.name]
            self._imports[import_path] = None
            return made, _decimal(schema) if schema.name == DECIMAL else ()
        if schema.kind is ConnectKind.STRUCT:
            called = self._short(schema.name)
            # Confluent's converter adds Message where a field has the same name.
            called, known = inside.message_name(
                f"{called}Message" if called == name else called, schema
            )
            if not known:
                within.messages.append(self._message(called, schema))
            return called, ()
        if schema.kind is ConnectKind.MAP:
            assert schema.keys is not None
            assert schema.values is not None
            entry = "".join(
                part[:1].upper() + part[1:] for part in self._short(schema.name).split("_")
            )
            called, known = inside.message_name(f"{entry}Entry", schema)
            if not known:
                pair = Field("key", schema.keys), Field("value", schema.values)
                of = Schema(kind=ConnectKind.STRUCT, fields=pair)
                within.messages.append(self._message(called, of, entry=True))
            return called, ()
        kind = PRIMITIVES[schema.kind]
        small = schema.kind in {ConnectKind.INT8, ConnectKind.INT16}
        parameters = (("connect.type", schema.kind.value),) if small else ()
        if self._wrappers and schema.optional:
            self._imports[WRAPPERS_FILE] = None
            kind = f"google.protobuf.{wrapper(kind)}"
        return kind, parameters

    def _named(self, name: str | None) -> str:
        if name:
            return name
        self._unnamed += 1
        return f"ConnectDefault{self._unnamed}"

    def _short(self, name: str | None) -> str:
        short = self._scrubbed(self._named(name).rpartition(".")[2])
        return _checked(short, "schema.name.adjustment.mode", "message")

    def _scrubbed(self, name: str) -> str:
        """Return a name as Confluent's converter scrubs it."""
        if not self._scrub or not name or (_NAME.fullmatch(name) and name[0] != "_"):
            return name
        # As Java's URLEncoder.
        escaped = quote(name, safe="*-._").replace("~", "%7E").replace("%20", "+")
        if escaped[0].isdigit() or escaped[0] == "_":
            escaped = f"x{escaped}"
        return re.sub(r"[^A-Za-z0-9_]", "_", escaped)


class _NestedNames:
    """Assign names to messages inside one message.

    Another struct with a used name gets a number.
    """

    def __init__(self, outer: str) -> None:
        self._used: dict[str, object] = {outer: None}

    def message_name(self, name: str, schema: Schema) -> tuple[str, bool]:
        """Return the name of ``schema``, and whether it is defined."""
        number, chosen = 1, name
        of = schema.fields if schema.kind is ConnectKind.STRUCT else schema
        while chosen in self._used and self._used[chosen] != of:
            number += 1
            chosen = f"{name}{number}"
        known = chosen in self._used
        self._used[chosen] = of
        return chosen, known


def _decimal(schema: Schema) -> tuple[tuple[str, str], ...]:
    given = dict(schema.parameters)
    names = (("precision", "connect.decimal.precision"), ("scale", "scale"))
    return tuple((made, given[name]) for made, name in names if name in given)


def _checked(name: str, property_name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        problem = f'Protobuf takes no {what} "{name}"'
        allowed = "avro, avro_unicode, or scrub.invalid.names=true of the converter"
        raise ConfigurationError.of(property_name, problem, allowed=allowed)
    return name


# --- text ---------------------------------------------------------------------------------------------


def _printed(message: MessageType) -> Iterator[str]:
    if not message.members and not message.messages:
        yield f"message {message.name} {{}}"
        return
    yield f"message {message.name} {{"
    for member in message.members:
        for line in _member_lines(member):
            yield f"  {line}"
    if message.messages:
        yield ""
        for inner in message.messages:
            for line in _printed(inner):
                yield f"  {line}"
    yield "}"


def _member_lines(member: MessageField) -> Iterator[str]:
    label = f"{member.label} " if member.label else ""
    begin = f"{label}{member.type} {member.name} = {member.number}"
    if not member.parameters:
        # Confluent's library prints this option after optional fields.
        yield f"{begin} [deprecated = false];" if member.label == "optional" else f"{begin};"
        return
    meta = list(_meta_lines(member.parameters))
    if member.label == "optional":
        yield f"{begin} ["
        yield "  deprecated = false,"
        yield from (f"  {line}" for line in meta)
        yield "];"
        return
    yield f"{begin} [{meta[0]}"
    yield from meta[1:-1]
    yield f"{meta[-1]}];"


def _meta_lines(parameters: tuple[tuple[str, str], ...]) -> Iterator[str]:
    yield "(confluent.field_meta) = {"
    yield "  params: ["
    for index, (name, value) in enumerate(parameters):
        pair = [f'key: "{name}"', f'value: "{value}"']
        if name != "connect.type":  # the order of a Java hash map
            pair.reverse()
        yield "    {"
        yield f"      {pair[0]},"
        yield f"      {pair[1]}"
        yield "    }," if index + 1 < len(parameters) else "    }"
    yield "  ]"
    yield "}"
