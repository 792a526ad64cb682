"""Checked reading of frames as `RowMessage`.

protobuf keeps the last of two members of a oneof. It hides fields of a wrong wire type and unknown
enum values among the unknown fields. Both are silent, so a damaged value would become NULL. The
plugin writes each message in only one way: the message read, without its unknown fields, must
serialise to the same bytes. If it does not, a careful reader walks the wire format. It names the
fault, or finds only fields of a newer plugin.

Source: protobuf's encoding guide; pg_logicaldec.proto of decoderbufs.
"""

from typing import Never

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Error as ProtobufError

from waltap.changes.decode.decoder import Frame
from waltap.errors import DecodeError
from waltap_decoders.decoderbufs.row_message_pb2 import RowMessage

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE_NAMES = {_VARINT: "varint", _FIXED64: "fixed64", _BYTES: "bytes", _FIXED32: "fixed32"}

# Types of fields with another wire type than varint.
_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_STRING: _BYTES,
    FieldDescriptor.TYPE_BYTES: _BYTES,
    FieldDescriptor.TYPE_MESSAGE: _BYTES,
}
_REPEATED = frozenset(("new_tuple", "old_tuple", "new_typeinfo"))
_REQUIRED = frozenset(("x", "y", "modifier", "value_optional"))
_RANGES = {
    "transaction_id": (0, (1 << 32) - 1),
    "op": (0, 4),
    "datum_int32": (-(1 << 31), (1 << 31) - 1),
    "datum_bool": (0, 1),
    "datum_missing": (0, 1),
    "value_optional": (0, 1),
}


def read(frame: Frame, codec: str | None = None) -> RowMessage:
    """Read a frame as a message.

    ``codec`` is the encoding of its text; None means UTF-8. Raises: DecodeError.
    """
    data = frame[1]
    try:
        message = RowMessage.FromString(data)
        message.DiscardUnknownFields()
        plain = message.SerializeToString() == data
    except (ProtobufError, UnicodeDecodeError) as error:
        examine(frame)
        fail(frame, "a RowMessage", str(error))
    # The op of an unset field is -1, so a negative one needs the careful reader, too.
    if not plain or message.op < 0:
        examine(frame)
    if not message.HasField("op"):
        fail_at(frame, len(data), "field 4 op", "none")
    if codec is not None:
        try:
            _convert(message, codec)
        except UnicodeDecodeError as error:
            fail(frame, f"text in {codec}", str(error))
    return message


def _convert(message: RowMessage, codec: str) -> None:
    """Decode the text fields of ``message`` by ``codec``.

    protobuf decoded each one as UTF-8 where its bytes allowed that.
    """

    def text(value: str | bytes) -> str:
        return (value.encode() if isinstance(value, str) else value).decode(codec)

    if message.table:
        message.table = text(message.table)
    for info in message.new_typeinfo:
        info.modifier = text(info.modifier)
    for datums in (message.new_tuple, message.old_tuple):
        for datum in datums:
            datum.column_name = text(datum.column_name)
            if datum.WhichOneof("datum") == "datum_string":
                datum.datum_string = text(datum.datum_string)


def is_text(frame: Frame, value: str) -> str:
    """Return a string field of the message in a frame.

    protobuf returns a string that is not UTF-8 as bytes. Raises: DecodeError.
    """
    if value.__class__ is not str:
        examine(frame)
    return value


def examine(frame: Frame) -> None:
    """Raise the DecodeError for the first fault of a frame, if any."""
    _WireWalk(frame).message(0, len(frame[1]), RowMessage.DESCRIPTOR, "")


def fail(frame: Frame, expected: str, found: str, near: bytes = b"") -> Never:
    """Raise a DecodeError at the first occurrence of ``near``."""
    fail_at(frame, max(frame[1].find(near), 0), expected, found)


def fail_at(frame: Frame, offset: int, expected: str, found: str) -> Never:
    """Raise a DecodeError."""
    lsn, data = frame
    raise DecodeError(
        "decoderbufs", lsn=lsn, offset=offset, expected=expected, found=found, payload=data
    )


class _WireWalk:
    """Walk the wire format of one frame, field by field."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._data = frame, frame[1]

    def message(self, at: int, end: int, kind: Descriptor, path: str) -> None:
        seen: dict[str, int] = {}
        while at < end:
            start = at
            key, at = self._varint(at, end, f"{path}field key")
            number, wire = key >> 3, key & 7
            if number == 0:
                self._fail(start, f"{path}a field number from 1 on", "0")
            if wire not in _WIRE_NAMES:
                self._fail(start, f"{path}wire type 0, 1, 2 or 5", str(wire))
            # The library looks at the lower 32 bits; larger numbers are no field's.
            field = kind.fields_by_number.get(number) if number < 1 << 29 else None
            wanted = _WIRE_TYPES.get(field.type, _VARINT) if field else wire
            if field and wire != wanted:
                expected = f"{path}{field.name} as {_WIRE_NAMES[wanted]}"
                self._fail(start, expected, _WIRE_NAMES[wire])
            at = self._field(at, end, field, wire, path)
            # A field of a newer plugin: its wire format was checked, its meaning is unknown.
            if field is None:
                continue
            name = field.name
            index = seen.get(name, 0)
            if index and name not in _REPEATED:
                self._fail(start, f"{path}{name} once", "it again")
            seen[name] = index + 1
            # Two members of the oneof: protobuf would silently keep the last.
            members = [other for other in seen if other.startswith("datum_")]
            if len(members) > 1:
                self._fail(start, f"{path}one datum", " and ".join(members))
        for name in kind.fields_by_name:
            if name in _REQUIRED and name not in seen:
                self._fail(end, f"{path}{name}", "none")

    def _field(self, at: int, end: int, field: FieldDescriptor | None, wire: int, path: str) -> int:
        name = field.name if field else "unknown field"
        label = f"{path}{name}"
        if wire == _VARINT:
            start = at
            value, at = self._varint(at, end, label)
            low, high = _RANGES.get(name, (-(1 << 63), (1 << 64) - 1))
            signed = value - (1 << 64) if low < 0 and value >> 63 else value
            if not low <= signed <= high:
                self._fail(start, f"{label} from {low} to {high}", str(signed))
            return at
        size, start = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0), at
        if wire == _BYTES:
            size, at = self._varint(at, end, f"{label} length")
        if size > end - at:
            self._fail(start, f"{label} of {size} bytes", f"{end - at} left")
        stop = at + size
        if field and field.message_type:
            self.message(at, stop, field.message_type, f"{label}: ")
        elif field and field.type == FieldDescriptor.TYPE_STRING:
            try:
                self._data[at:stop].decode()
            except UnicodeDecodeError as error:
                offset = at + error.start
                self._fail(offset, f"{label} in UTF-8", f"byte 0x{self._data[offset]:02x}")
        return stop

    def _varint(self, at: int, end: int, label: str) -> tuple[int, int]:
        value, start = 0, at
        # A varint of 64 bits has at most 10 bytes.
        for shift in range(0, 70, 7):
            if at >= end:
                self._fail(start, f"{label} ended", "an unfinished varint")
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    self._fail(start, f"{label} in 64 bits", "more")
                return value, at
        return self._fail(start, f"{label} in 10 bytes", "more")

    def _fail(self, offset: int, expected: str, found: str) -> Never:
        fail_at(self._frame, offset, expected, found)
