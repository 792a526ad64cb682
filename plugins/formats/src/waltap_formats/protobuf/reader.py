"""Reading of Protobuf messages by the text of their schema.

The results are plain documents. Source: Protobuf's encoding.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from waltap_formats.avro.reader import scaled
from waltap_formats.protobuf.schema import WRAPPERS_FILE, WRAPPERS_TEXT, MessageField
from waltap_formats.protobuf.text import NotProto, ReadFile, ReadMessage, read_text
from waltap_formats.wire import WireReader, WireUnreadable

__all__ = ["protobuf_reader"]

# Files that registries do not store, since every library has them.
BUILT_IN: Final = {
    WRAPPERS_FILE: WRAPPERS_TEXT,
    "google/protobuf/timestamp.proto": 'syntax="proto3";package google.protobuf;'
    "message Timestamp{int64 seconds=1;int32 nanos=2;}",
    "google/protobuf/duration.proto": 'syntax="proto3";package google.protobuf;'
    "message Duration{int64 seconds=1;int32 nanos=2;}",
    "google/protobuf/empty.proto": 'syntax="proto3";package google.protobuf;message Empty{}',
    "google/protobuf/any.proto": 'syntax="proto3";package google.protobuf;'
    "message Any{string type_url=1;bytes value=2;}",
    "google/type/date.proto": 'syntax="proto3";package google.type;'
    "message Date{int32 year=1;int32 month=2;int32 day=3;}",
    "google/type/timeofday.proto": 'syntax="proto3";package google.type;'
    "message TimeOfDay{int32 hours=1;int32 minutes=2;int32 seconds=3;int32 nanos=4;}",
    "confluent/type/decimal.proto": 'syntax="proto3";package confluent.type;'
    "message Decimal{bytes value=1;uint32 precision=2;int32 scale=3;}",
}

DECIMAL: Final = "confluent.type.Decimal"
WRAPPER: Final = "google.protobuf."
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
# Limit of nested messages: damaged bytes must not exhaust the stack.
DEEPEST: Final = 100


def _signed(wire: WireReader, bits: int) -> int:
    # A negative int32 arrives with 64 bits, of which the low ones count.
    value = wire.unsigned() & (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


# Type → wire type, reader, default.
SCALARS: Final[dict[str, tuple[int, Callable[[WireReader], Any], Any]]] = {
    "int32": (VARINT, lambda wire: _signed(wire, 32), 0),
    "int64": (VARINT, lambda wire: _signed(wire, 64), 0),
    "uint32": (VARINT, WireReader.unsigned, 0),
    "uint64": (VARINT, WireReader.unsigned, 0),
    "sint32": (VARINT, WireReader.zigzag, 0),
    "sint64": (VARINT, WireReader.zigzag, 0),
    "bool": (VARINT, lambda wire: wire.unsigned() != 0, False),
    "fixed32": (FIXED32, lambda wire: wire.number("I"), 0),
    "sfixed32": (FIXED32, lambda wire: wire.number("i"), 0),
    "float": (FIXED32, lambda wire: wire.number("f"), 0.0),
    "fixed64": (FIXED64, lambda wire: wire.number("Q"), 0),
    "sfixed64": (FIXED64, lambda wire: wire.number("q"), 0),
    "double": (FIXED64, lambda wire: wire.number("d"), 0.0),
    "string": (LENGTH, lambda wire: wire.text(wire.unsigned()), ""),
    "bytes": (LENGTH, lambda wire: wire.take(wire.unsigned()), b""),
}


def protobuf_reader(text: str, imported: Iterable[str] = ()) -> Callable[[bytes], Any]:
    """Return the reader of the bytes after a schema's id.

    These are the message's index in the file, and the message. ``imported`` has the texts of
    imported files, except the well-known ones. Compiling and reading raise WireUnreadable.
    """
    try:
        file = read_text(text)
        files = [file, *(read_text(each) for each in (*imported, *BUILT_IN.values()))]
    except NotProto as error:
        raise WireUnreadable(f"the schema cannot be read: {error}") from error
    types = _TypeIndex(files)

    def read(data: bytes) -> Any:
        wire = WireReader(data)
        count = wire.zigzag()
        # A count of 0 is short for the first message.
        path = [wire.zigzag() for _ in range(min(count, DEEPEST))] if count > 0 else [0]
        found, name = None, file.package
        within: list[Any] = list(file.messages)
        for place in path:
            if not 0 <= place < len(within):
                raise WireUnreadable(f"the schema has no message {path}")
            found = within[place]
            name = ".".join(filter(None, (name, found.name)))
            within = found.messages
        assert found is not None
        return types.plain(name, types.message(wire, name, found, 0))

    return read


class _TypeIndex:
    """Hold all messages and enums of some files, by full name."""

    def __init__(self, files: Iterable[ReadFile]) -> None:
        self._messages: dict[str, tuple[ReadMessage, bool]] = {}
        self._enums: dict[str, Mapping[int, str]] = {}
        for file in files:
            self._add(file.package, file.messages, file.enums, proto3=file.proto3)

    def _add(
        self,
        space: str,
        messages: Iterable[Any],
        enums: Mapping[str, Mapping[int, str]],
        *,
        proto3: bool,
    ) -> None:
        for name, labels in enums.items():
            self._enums.setdefault(_full(space, name), labels)
        for message in messages:
            name = _full(space, message.name)
            # The schema's own file comes first and wins over well-known types.
            self._messages.setdefault(name, (message, proto3))
            self._add(name, message.messages, message.enums, proto3=proto3)

    def message(
        self, wire: WireReader, name: str, message: ReadMessage, depth: int
    ) -> dict[str, Any]:
        """Read the rest of ``wire`` as a message's fields."""
        if depth > DEEPEST:
            raise WireUnreadable("messages are nested too deeply")
        members = {member.number: member for member in message.members}
        found: dict[str, Any] = {}
        while wire.left:
            tag = wire.unsigned()
            member, kind = members.get(tag >> 3), tag & 7
            if member is None:
                # A field of a newer version of the schema.
                _pass_over(wire, kind)
                continue
            self._take(wire, kind, member, name, found, depth)
        return {
            member.name: found.get(member.name, self._absent(member, message, name))
            for member in message.members
            if member.name in found or self._absent(member, message, name) is not None
        }

    def plain(self, name: str, value: dict[str, Any]) -> Any:
        """Return the value that a well-known message represents."""
        if name == DECIMAL:
            unscaled = int.from_bytes(value.get("value", b""), "big", signed=True)
            return scaled(unscaled, value.get("scale", 0))
        if name.startswith(WRAPPER) and name.endswith("Value") and value.keys() == {"value"}:
            return value["value"]
        return value

    def _take(
        self,
        wire: WireReader,
        kind: int,
        member: MessageField,
        name: str,
        found: dict[str, Any],
        depth: int,
    ) -> None:
        known = SCALARS.get(member.type)
        full = "" if known else self._find(member.type, name)
        if full in self._enums:
            labels = self._enums[full]
            # A label that the schema does not know remains a number.
            known = VARINT, lambda wire: labels.get(n := _signed(wire, 32), n), None
        repeated = member.label == "repeated"
        if known is not None:
            wanted, read, _ = known
            if kind == LENGTH != wanted and repeated:  # packed: one length for all numbers
                part = WireReader(wire.take(wire.unsigned()))
                while part.left:
                    found.setdefault(member.name, []).append(read(part))
                return
            if kind != wanted:
                raise WireUnreadable(f"the field {member.name} is no {member.type}")
            value = read(wire)
        else:
            if kind != LENGTH:
                raise WireUnreadable(f"the field {member.name} is no message")
            message = self._messages[full][0]
            part = WireReader(wire.take(wire.unsigned()))
            fields = self.message(part, full, message, depth + 1)
            # Each entry of a map is a message of its own on the wire.
            if message.entry:
                found.setdefault(member.name, {})[str(fields.get("key"))] = fields.get("value")
                return
            value = self.plain(full, fields)
        if repeated:
            found.setdefault(member.name, []).append(value)
        else:
            found[member.name] = value

    def _absent(self, member: MessageField, message: ReadMessage, name: str) -> Any:
        """Return the value of a missing field.

        None means that the schema distinguishes missing from zero.
        """
        if member.label == "repeated":
            return {} if self._is_map(member, name) else []
        proto3 = name not in self._messages or self._messages[name][1]
        told = member.label or member.name in message.chosen
        if member.type in SCALARS and not told and proto3:
            return SCALARS[member.type][2]
        return None

    def _is_map(self, member: MessageField, name: str) -> bool:
        if member.type in SCALARS:
            return False
        full = self._find(member.type, name)
        return full in self._messages and self._messages[full][0].entry

    def _find(self, kind: str, within: str) -> str:
        """Return the full name of a type inside a message.

        Raises: WireUnreadable.
        """
        if kind.startswith("."):
            kind, within = kind[1:], ""
        while True:
            full = _full(within, kind)
            if full in self._messages or full in self._enums:
                return full
            if not within:
                raise WireUnreadable(f"the schema has no type {kind}")
            # Protobuf searches from the innermost scope outwards.
            within = within.rpartition(".")[0]


def _pass_over(wire: WireReader, kind: int) -> None:
    match kind:
        case 0:
            wire.unsigned()
        case 1:
            wire.take(8)
        case 2:
            wire.take(wire.unsigned())
        case 5:
            wire.take(4)
        case _:
            raise WireUnreadable(f"a field of wire type {kind}")


def _full(space: str, name: str) -> str:
    return f"{space}.{name}" if space else name
