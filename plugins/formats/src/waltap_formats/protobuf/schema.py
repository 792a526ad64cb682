"""Protobuf schemas of Connect schemas, and their text.

A struct is a message, named by the last part of its name; nested structs are defined inside it.
Fields are numbered from 1. The text equals the one that kafka-connect-protobuf-converter 7.0
registers, so that a topic written by the other product gets no new version. Source: results of
that converter.
"""

import re
from collections.abc import Iterator
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
from waltap_formats.properties import ProtobufProperties

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


# A field's type, its label (empty, optional or repeated), and Connect's facts that Protobuf cannot
# express.
FieldType = tuple[str, str, tuple[tuple[str, str], ...]]


class ProtobufFile:
    """Build the file of a struct schema, with one top-level message.

    Raises: ConfigurationError for names and shapes that Protobuf refuses.
    """

    def __init__(self, schema: Schema, options: ProtobufProperties) -> None:
        assert schema.kind is ConnectKind.STRUCT
        self._options = options
        # A dict keeps the order of first use, in which imports are printed.
        self._imports: dict[str, None] = {}
        self._unnamed = 0
        *space, name = (self._scrubbed(part) for part in self._named(schema.name).split("."))
        package = ".".join(space)
        self.full_name = f"{package}.{name}" if package else name
        message = self._message(_checked(name, "schema.name.adjustment.mode", "message"), schema)
        lines = ['syntax = "proto3";']
        if package:
            lines.append(f"package {package};")
        if self._imports:
            lines += ["", *(f'import "{name}";' for name in self._imports)]
        # The file as Confluent's library prints it.
        self.text = "\n".join([*lines, "", *message]) + "\n"

    def _message(self, name: str, schema: Schema, *, entry: bool = False) -> list[str]:
        """Return the lines of a struct's message.

        ``entry`` means a map's entry, whose fields have neither label nor parameters.
        """
        members, messages = list[str](), list[str]()
        names, used = set[str](), dict[str, object]({name: None})
        for number, member in enumerate(schema.fields, start=1):
            called = _checked(self._scrubbed(member.name), "field.name.adjustment.mode", "field")
            if called in names:
                problem = f"two fields of {name} are called {called}"
                raise ConfigurationError.of("field.name.adjustment.mode", problem)
            names.add(called)
            type_, label, parameters = self._member(called, member.schema, name, messages, used)
            if entry:
                label, parameters = "" if label == "optional" else label, ()
            members += _member_lines(f"{type_} {called} = {number}", label, parameters)
        if not members:
            return [f"message {name} {{}}"]
        inner = ["", *(f"  {line}" for line in messages)] if messages else []
        return [f"message {name} {{", *(f"  {line}" for line in members), *inner, "}"]

    def _member(
        self, name: str, schema: Schema, within: str, messages: list[str], used: dict[str, object]
    ) -> FieldType:
        label, of = "", schema
        if schema.kind is ConnectKind.ARRAY:
            assert schema.items is not None
            label, of = "repeated", schema.items
            if of.kind in (ConnectKind.ARRAY, ConnectKind.MAP):
                problem = (
                    f"Protobuf has no arrays of {of.kind.value}s: the field {name} of {within}"
                )
                raise ConfigurationError.of("value.converter", problem)
        elif schema.kind is ConnectKind.MAP:
            label = "repeated"
        elif self._options.optional and schema.optional:
            label = "optional"
        type_, parameters = self._type(name, of, messages, used)
        return type_, label, parameters

    def _type(
        self, name: str, schema: Schema, messages: list[str], used: dict[str, object]
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return a field's type and parameters.

        The lines of messages that the type needs are added to ``messages``, and their names to ``used``.
        """
        if schema.name in LOGICAL:
            made, import_path = LOGICAL[schema.name]
            self._imports[import_path] = None
            return made, _decimal(schema) if schema.name == DECIMAL else ()
        if schema.kind is ConnectKind.STRUCT:
            called = self._short(schema.name)
            # Confluent's converter adds Message where a field has the same name.
            called = f"{called}Message" if called == name else called
            called, known = _numbered(called, schema.fields, used)
            if not known:
                messages += self._message(called, schema)
            return called, ()
        if schema.kind is ConnectKind.MAP:
            assert schema.keys is not None
            assert schema.values is not None
            entry = self._short(schema.name)
            # As in Confluent's library, which leaves a name without an underscore as it is.
            if "_" in entry:
                entry = "".join(map(str.capitalize, entry.split("_")))
            called, known = _numbered(f"{entry}Entry", schema, used)
            if not known:
                pair = Field("key", schema.keys), Field("value", schema.values)
                of = Schema(kind=ConnectKind.STRUCT, fields=pair)
                messages += self._message(called, of, entry=True)
            return called, ()
        kind = PRIMITIVES[schema.kind]
        small = schema.kind in {ConnectKind.INT8, ConnectKind.INT16}
        parameters = (("connect.type", schema.kind.value),) if small else ()
        if self._options.wrappers and schema.optional:
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
        if not self._options.scrub or not name or (_NAME.fullmatch(name) and name[0] != "_"):
            return name
        # As Java's URLEncoder.
        escaped = quote(name, safe="*-._").replace("~", "%7E").replace("%20", "+")
        if escaped[0].isdigit() or escaped[0] == "_":
            escaped = f"x{escaped}"
        return re.sub(r"[^A-Za-z0-9_]", "_", escaped)


def _numbered(name: str, of: object, used: dict[str, object]) -> tuple[str, bool]:
    """Return the name of a message, and whether it is defined.

    Another message with a used name gets a number.
    """
    number, chosen = 1, name
    while chosen in used and used[chosen] != of:
        number += 1
        chosen = f"{name}{number}"
    known = chosen in used
    used[chosen] = of
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


def _member_lines(
    member: str, label: str, parameters: tuple[tuple[str, str], ...]
) -> Iterator[str]:
    begin = f"{label} {member}" if label else member
    if not parameters:
        # Confluent's library prints this option after optional fields.
        yield f"{begin} [deprecated = false];" if label == "optional" else f"{begin};"
        return
    meta = list(_meta_lines(parameters))
    if label == "optional":
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
