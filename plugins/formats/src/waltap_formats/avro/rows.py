"""Avro straight from images: functions generated for a relation version, as the JSON format has them.

A value is a run of bytes whose parts change at different paces: the schema's id and the unions' branches
with the relation, most of the source block with the transaction, the LSN and the row with each row. Texts
become bytes by way of their types' JSON expressions, where those are quicker than Connect values are.
What is general goes through `waltap_formats.avro.binary`; the bytes are the same.
"""

from binascii import a2b_base64
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from waltap.capture.source_type import root_type
from waltap.decode.relation import TypeKind
from waltap.decode.tuple_image import Tuple
from waltap.events.shape import ShapeColumn, TableShape, column_value
from waltap.format.converter import WriteCreates, WriteKeys
from waltap.format.frame import Frame
from waltap.generated import define
from waltap.mapping.connect_schema import Kind, Schema
from waltap.mapping.type_mapping import ColumnMapping
from waltap_formats.avro.binary import avro_writer, integer_writer, long_bytes

__all__ = ["create_writer", "key_writer"]

SMALL = 8192
TEXTS_KEPT, LONGEST_KEPT = 16_384, 10
INTEGERS = {Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64}
FLOATS = {Kind.FLOAT32: Struct("<f"), Kind.FLOAT64: Struct("<d")}
SOURCE_BEFORE = ("version", "connector", "name", "ts_ms", "snapshot", "db")
SOURCE_BETWEEN = ("ts_us", "ts_ns", "schema", "table", "txId")
SOURCE_AFTER = ("xmin", "origin", "origin_lsn")


class _Code:
    """The expressions of some columns, and the globals they use."""

    def __init__(self, shape: TableShape, *, read: bool, defaults: bool) -> None:
        self._shape, self._read, self._defaults = shape, read, defaults
        self._width = len(shape.plan.relation.columns)
        self.names: dict[str, Any] = {}
        self.used: set[int] = set()

    def unpack(self) -> str:
        """Return the statement that binds the values of the columns that were asked for."""
        if not self.used:
            return "pass"
        names = [f"v{index}" if index in self.used else "_" for index in range(self._width)]
        return f"{', '.join(names)}{',' if self._width == 1 else ''} = _values"

    def expression(self, column: ShapeColumn, schema: Schema) -> str:
        """Return the expression of a column's bytes."""
        index, mapping = column.index, column.mapping
        write = avro_writer(schema, defaults=self._defaults, what=f"the field {column.field.name}")
        convert = column_value(column, read=self._read)
        if mapping.streamed_as_null and not self._read:
            return repr(write(convert(None)))
        self.used.add(index)
        self.names[f"_other{index}"] = lambda value: write(convert(value))
        value = f"v{index}"
        masked = column.transform is not None and column.transform.value is not None
        plain = None if masked else self._of_text(column, schema, value)
        if plain is None:
            return f"_other{index}({value})"
        return f"({plain}) if {value}.__class__ is str else _other{index}({value})"

    def _of_text(self, column: ShapeColumn, schema: Schema, value: str) -> str | None:
        """Return the expression of the bytes of a text; None: the general way is as good."""
        mapping, index = column.mapping, column.index
        if self._read and mapping.read is not None:
            mapping = mapping.read
        branch = b""
        if schema.optional:
            branch = b"\x02" if schema.default is None else b"\x00"
        labels = self._labels(column)
        if labels is not None:
            self.names[f"_labels{index}"] = {
                label: branch + long_bytes(len(label.encode())) + label.encode() for label in labels
            }
            return f"_labels{index}[{value}]"
        if schema.kind is Kind.STRING and mapping.to_connect is str:
            lengths = f"_lengths{branch.hex()}"
            self.names[lengths] = _lengths(branch)
            return f"{lengths}[len(e := {value}.encode())] + e"
        convert = f"_convert{index}"
        if schema.kind in INTEGERS and mapping.to_connect is int:
            self.names[convert] = _of_digits(schema.kind, branch)
            return f"{convert}[{value}]"
        if schema.kind is Kind.BOOLEAN:
            self.names[convert] = _Kept(
                mapping.to_connect, lambda found: branch + (b"\x01" if found else b"\x00")
            )
            return f"{convert}[{value}]"
        if schema.kind is Kind.INT32 and mapping.to_json is not None:  # days, months: few texts
            write = integer_writer(schema.kind)
            self.names[convert] = _Kept(mapping.to_json, lambda text: branch + write(int(text)))
            return f"{convert}[{value}]"
        if schema.kind in FLOATS:
            self.names[convert] = mapping.to_connect
            self.names[f"_{schema.kind.value}"] = FLOATS[schema.kind].pack
            return f"{branch!r} + _{schema.kind.value}({convert}({value}))"
        by_json = self._by_json(mapping, schema.kind, branch, index)
        if by_json is not None:
            return by_json
        optional = avro_writer(schema, defaults=self._defaults)
        if schema.kind in {Kind.STRUCT, Kind.ARRAY, Kind.MAP}:
            return None
        self.names[convert] = mapping.to_connect
        self.names[f"_write{index}"] = optional
        return f"_write{index}({convert}({value}))"

    def _by_json(self, mapping: ColumnMapping, kind: Kind, branch: bytes, index: int) -> str | None:
        """Return the expression of bytes made of the type's JSON; None: that does not help. JSON of
        another kind (null, for a misfit) raises ValueError."""
        write: Callable[[str], bytes]
        if kind in INTEGERS:
            name, write = (
                f"_digits_{kind.value}{branch.hex()}",
                _of_digits(kind, branch).of,
            )
        elif kind is Kind.STRING:
            name, write = f"_quoted{branch.hex()}", _quoted(branch)
        elif kind is Kind.BYTES:
            name, write = f"_base64{branch.hex()}", _base64(branch)
        else:
            return None
        inline = mapping.json_expression
        if inline is not None and not any(
            other.startswith("_") or self.names.get(other, given) is not given
            for other, given in inline.names.items()
        ):
            self.names.update(inline.names)
            source = inline.source(f"v{index}")
        elif mapping.to_json is not None:
            self.names[f"_json{index}"] = mapping.to_json
            source = f"_json{index}(v{index})"
        else:
            return None
        self.names.setdefault(name, write)
        return f"{name}({source})"

    def _labels(self, column: ShapeColumn) -> tuple[str, ...] | None:
        """Return the labels of an enum: another one raises, so that the type is asked for anew."""
        data_type = self._shape.plan.relation.columns[column.index].data_type
        root = None if data_type is None else root_type(data_type)
        return root.labels if root is not None and root.kind is TypeKind.ENUM else None


class _Kept(dict[str, bytes]):
    """Bytes of texts, those of the most usual ones kept."""

    def __init__(self, convert: Callable[[str], Any], write: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._convert, self._write = convert, write

    def __missing__(self, text: str) -> bytes:
        found = self._write(self._convert(text))
        if len(self) < TEXTS_KEPT and len(text) <= LONGEST_KEPT:
            self[text] = found
        return found

    def of(self, text: str) -> bytes:
        """Return the bytes of ``text``."""
        return self[text]


def _of_digits(kind: Kind, branch: bytes) -> _Kept:
    write = integer_writer(kind)
    return _Kept(int, lambda number: branch + write(number))


def _quoted(branch: bytes) -> Callable[[str], bytes]:
    lengths = _lengths(branch)

    def write(text: str) -> bytes:
        if text[0] != '"' or "\\" in text:
            raise ValueError("no plain text")
        data = text[1:-1].encode()
        return lengths[len(data)] + data

    return write


def _base64(branch: bytes) -> Callable[[str], bytes]:
    lengths = _lengths(branch)

    def write(text: str) -> bytes:
        if text[0] != '"':
            raise ValueError("no bytes")
        data = a2b_base64(text[1:-1])
        return lengths[len(data)] + data

    return write


_LENGTHS: dict[bytes, list[bytes]] = {}


def _lengths(branch: bytes) -> list[bytes]:
    if branch not in _LENGTHS:
        _LENGTHS[branch] = [branch + long_bytes(size) for size in range(SMALL)]
    return _LENGTHS[branch]


def key_writer(shape: TableShape, prefix: bytes, *, read: bool, defaults: bool) -> WriteKeys | None:
    """Return what writes keys; None for shapes that go the general way."""
    if shape.plan.cell.members is not None:
        return None
    code = _Code(shape, read=read, defaults=defaults)
    parts = [
        code.expression(column, (column.read if read else column.field).schema)
        for column in shape.keys
    ]
    if shape.plan.key_field is not None:
        text = shape.plan.key_field[1].encode()
        parts.append(repr(long_bytes(len(text)) + text))
    source = f"""
def keys(_rows):
    out = []
    for _values in _rows:
        {code.unpack()}
        out.append(_join((_prefix, {", ".join(parts)})))
    return out
"""
    space = {**code.names, "_join": b"".join, "_prefix": prefix}
    define(source, f"Avro keys of {shape.plan.relation.name}", space)
    made: WriteKeys = space["keys"]
    return made


def create_writer(
    shape: TableShape, value: Schema, prefix: bytes, *, read: bool, defaults: bool
) -> WriteCreates | None:
    """Return what writes values that have only ``after``; None for shapes that go the general way."""
    if shape.plan.cell.members is not None:
        return None
    code = _Code(shape, read=read, defaults=defaults)
    parts = [
        code.expression(column, (column.read if read else column.field).schema)
        for column in shape.values
    ]
    source = f"""
def creates(_rows, _lsns, _before, _between, _after, _lead, _digits):
    out = []
    high = -1
    for _values, _lsn in zip(_rows, _lsns):
        {code.unpack()}
        if _digits:
            text = b"%d" % _lsn
            lsn = _lsn << 1
            if lsn < 16384:
                number = _last[lsn]
            else:
                if lsn >> 14 != high:
                    high = lsn >> 14
                    rest = _unsigned(high)
                number = _more[lsn & 16383] + rest
            out.append(_join((
                _prefix, {"".join(f"{part}, " for part in parts)}
                _before, _lengths[len(text) + _digits], _lead, text, _between, number, _after)))
        else:
            out.append(_join((
                _prefix, {"".join(f"{part}, " for part in parts)}
                _before)))
    return out
"""
    from waltap_formats.avro import binary

    space = {
        **code.names,
        "_join": b"".join,
        "_prefix": prefix + b"\x00\x02",
        "_lengths": _lengths(b""),
        "_last": binary.LAST,
        "_more": binary.MORE,
        "_unsigned": binary.unsigned,
    }
    define(source, f"Avro values of {shape.plan.relation.name}", space)
    return _framed(space["creates"], shape, value, defaults=defaults)


def _framed(
    write: Callable[..., list[bytes]], shape: TableShape, value: Schema, *, defaults: bool
) -> WriteCreates:
    """Return ``write`` with the bytes that the rows of one part share."""
    top = {field.name: field.schema for field in value.fields}
    source = {
        field.name: avro_writer(field.schema, defaults=defaults) for field in top["source"].fields
    }
    ends = {
        name: avro_writer(top[name], defaults=defaults)
        for name in ("transaction", "op", "ts_ms", "ts_us", "ts_ns")
    }
    relation = shape.plan.relation
    names = {"schema": relation.schema, "table": relation.table}

    def creates(
        images: Sequence[Tuple], lsns: Sequence[int | None], op: str, frame: Frame
    ) -> list[bytes]:
        facts = {**frame.source, **names, "transaction": None, "op": op, **frame.stamps}

        def joined(writers: dict[str, Any], fields: Sequence[str]) -> bytes:
            return b"".join([writers[name](facts[name]) for name in fields])

        # the envelope's stamps and the source's have one name
        facts |= {name: frame.source[name] for name in ("ts_ms", "ts_us", "ts_ns")}
        before = joined(source, SOURCE_BEFORE)
        between, after = joined(source, SOURCE_BETWEEN), joined(source, SOURCE_AFTER)
        facts |= frame.stamps
        after += joined(ends, tuple(ends))
        sequence = facts["sequence"]
        if sequence[-1] == ",":  # the LSN comes with each row
            lead = sequence.encode() + b'"'
            return write(
                images,
                lsns,
                before + b"\x02",
                b'"]' + between + b"\x02",
                after,
                lead,
                len(lead) + 2,
            )
        whole = source["sequence"](sequence) + between + source["lsn"](lsns[0] if lsns else None)
        return write(images, lsns, before + whole + after, b"", b"", b"", 0)

    return creates
