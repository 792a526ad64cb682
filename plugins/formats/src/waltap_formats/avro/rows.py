"""Avro directly from row images, by generated functions.

Each relation version has its functions, as in the JSON format. A value is a run of bytes that
change at different rates. The schema's id and the unions' branches change with the relation, most
of the source block with the transaction, and the LSN and the columns with each row. The general
case uses `waltap_formats.avro.binary`, with the same bytes.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from struct import Struct
from typing import Any, NamedTuple

from waltap.base.generated import define
from waltap.base.import_rules import np, pa
from waltap.changes.capture.source_type import root_type
from waltap.changes.decode.relation import TypeKind
from waltap.changes.decode.row_block import RowBlock, has_columns, texts_of
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.events.shape import ShapeColumn, TableShape, column_value
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.type_mapping import ColumnMapping
from waltap.encoders.format.converter import EventFrame, WriteCreates, WriteKeys, Written
from waltap.encoders.format.record_block import TextRows
from waltap.encoders.json.codec import MISFITS
from waltap.encoders.json.columns import offsets_of
from waltap_formats.avro.binary import avro_writer, integer_writer, long_bytes, value_branch
from waltap_formats.avro.columns import Pieces, column_writer, varints

# Fewer rows are not worth the conversion to columns.
FEWEST = 64
SMALL = 8192
# Limits of the caches of encoded texts: entries, characters of a text, and of an integer's text.
MAX_TEXTS, LONGEST_CACHED, SHORT = 16_384, 10, 5
FLOATS = {ConnectKind.FLOAT32: "f", ConnectKind.FLOAT64: "d"}
# Fields of the source block before, between and after the fields that contain the LSN.
SOURCE_BEFORE = ("version", "connector", "name", "ts_ms", "snapshot", "db")
SOURCE_BETWEEN = ("ts_us", "ts_ns", "schema", "table", "txId")
SOURCE_AFTER = ("xmin", "origin", "origin_lsn")


class _ColumnCode:
    """Collect expressions of columns, and their global names.

    ``part`` separates the names for keys and for values. Columns in ``shared`` are encoded once
    for both.
    """

    def __init__(
        self,
        shape: TableShape,
        *,
        read: bool,
        defaults: bool,
        part: str = "",
        shared: frozenset[int] = frozenset(),
    ) -> None:
        self._shape, self._read, self._defaults = shape, read, defaults
        self._part, self._shared = part, shared
        self._width = len(shape.plan.relation.columns)
        self.names: dict[str, Any] = {}
        self.used: set[int] = set()
        # The writers of whole columns, in the order of the expressions.
        self.columns: list[Callable[[RowBlock], Pieces]] = []

    def unpack(self, *others: "_ColumnCode") -> str:
        """Return the statement that binds the used columns' values."""
        used = self.used.union(*(other.used for other in others))
        if not used:
            return "pass"
        names = [f"v{index}" if index in used else "_" for index in range(self._width)]
        return f"{', '.join(names)}{',' if self._width == 1 else ''} = _values"

    def expression(self, column: ShapeColumn, schema: Schema) -> str:
        index, mapping, part = column.index, column.mapping, self._part
        write = avro_writer(schema, defaults=self._defaults, what=f"the field {column.field.name}")
        convert = column_value(column, read=self._read)
        # The stream never has a value of such a type, so its bytes are constant.
        if mapping.streamed_as_null and not self._read:
            constant = write(convert(None))
            self.columns.append(lambda _block: [constant])
            return repr(constant)
        self.used.add(index)
        other, value = f"_other{part}{index}", f"v{index}"
        self.names[other] = lambda value: write(convert(value))
        # Only the general way applies a mask.
        masked = column.transform is not None and column.transform.value is not None
        plain = None if masked else self._of_text(column, schema, value)
        if plain is None:
            made = f"{other}({value})"
        else:
            # Only a text takes the fast way; NULL, unchanged values and bytes take the general
            # one.
            made = f"({plain}) if {value}.__class__ is str else {other}({value})"
        self._add_column(column, schema, made, None if masked else self.names[other])
        if index not in self._shared:
            return made
        return f"same{index}" if part else f"(same{index} := {made})"

    def _add_column(
        self,
        column: ShapeColumn,
        schema: Schema,
        expression: str,
        other: Callable[[Any], bytes] | None,
    ) -> None:
        """Add the writer of a whole column; ``expression`` writes single values.

        ``other`` writes a value; None if no column of these may be written at once.
        """
        index, mapping, null = column.index, column.mapping, None
        if self._read and mapping.read is not None:
            mapping = mapping.read
        quick = None
        # An unknown label must be found.
        if other is not None and self._labels(column) is None:
            with contextlib.suppress(*MISFITS):  # null in a required field is a row's error
                null = other(None)
            quick = column_writer(mapping, schema.kind, value_branch(schema), null)
        names, by_value = self.names, f"by_value{self._part}{index}"
        source = f"def {by_value}(values):\n    return [{expression} for v{index} in values]\n"

        def write(block: RowBlock) -> Pieces:
            texts = block.columns[index]
            found = None if quick is None else quick(texts)
            if found is not None:
                return found
            if by_value not in names:
                define(source, f"Avro column {index} of {self._shape.plan.relation.name}", names)
            return [pa.array(names[by_value](texts_of(texts)), pa.binary())]

        self.columns.append(write)

    def _of_text(self, column: ShapeColumn, schema: Schema, value: str) -> str | None:
        """Return the expression of a text's bytes.

        None means that the general way is as good.
        """
        mapping, index = column.mapping, f"{self._part}{column.index}"
        if self._read and mapping.read is not None:
            mapping = mapping.read
        branch = value_branch(schema)
        labels = self._labels(column)
        # An enum's labels are known, so their bytes are prepared.
        if labels is not None:
            self.names[f"_labels{index}"] = {
                label: branch + long_bytes(len(label.encode())) + label.encode() for label in labels
            }
            return f"_labels{index}[{value}]"
        convert = f"_convert{index}"
        self.names[convert] = mapping.to_connect
        lengths = f"_lengths{branch.hex()}"
        match schema.kind:
            case ConnectKind.STRING:
                self.names[lengths], self.names["_encode"] = _lengths(branch), str.encode
                text = value if mapping.to_connect is str else f"{convert}({value})"
                return f"{lengths}[len(e := _encode({text}))] + e"
            case ConnectKind.BYTES:
                self.names[lengths] = _lengths(branch)
                return f"{lengths}[len(e := {convert}({value}))] + e"
            case ConnectKind.BOOLEAN:
                self.names[convert] = _EncodedTexts(
                    mapping.to_connect, lambda found: branch + (b"\x01" if found else b"\x00")
                )
                return f"{convert}[{value}]"
            case ConnectKind.FLOAT32 | ConnectKind.FLOAT64:
                pack = f"_pack_{schema.kind.value}{branch.hex()}"
                form = f"<{'B' if branch else ''}{FLOATS[schema.kind]}"
                self.names[pack] = Struct(form).pack
                first = f"{branch[0]}, " if branch else ""
                return f"{pack}({first}{convert}({value}))"
            case ConnectKind.INT8 | ConnectKind.INT16 | ConnectKind.INT32 | ConnectKind.INT64:
                return self._integer(mapping, schema.kind, branch, index, value)
        return None

    def _integer(
        self, mapping: ColumnMapping, kind: ConnectKind, branch: bytes, index: str, value: str
    ) -> str:
        write = f"_{kind.value}{branch.hex()}"
        plain = integer_writer(kind)
        self.names[write] = lambda number: branch + plain(number)
        convert, cache = f"_convert{index}", f"_cached{index}"
        if mapping.integers:
            self.names[cache] = _EncodedTexts(mapping.to_connect, self.names[write])
            return f"{cache}[{value}] if len({value}) < {SHORT} else {write}({convert}({value}))"
        if kind is ConnectKind.INT32:  # days, months: few texts
            self.names[cache] = _EncodedTexts(mapping.to_connect, self.names[write])
            return f"{cache}[{value}]"
        return f"{write}({convert}({value}))"

    def _labels(self, column: ShapeColumn) -> tuple[str, ...] | None:
        """Return the labels of an enum.

        An unknown label raises KeyError, and the type is then asked for again.
        """
        if column.mapping.converted:
            return None
        data_type = self._shape.plan.relation.columns[column.index].data_type
        root = None if data_type is None else root_type(data_type)
        return root.labels if root is not None and root.kind is TypeKind.ENUM else None


class _EncodedTexts(dict[str, bytes]):
    """Cache the bytes of the first short texts."""

    def __init__(self, convert: Callable[[str], Any], write: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._convert, self._write = convert, write

    def __missing__(self, text: str) -> bytes:
        found = self._write(self._convert(text))
        # A full cache stops growing, so that rare texts cannot fill the memory.
        if len(self) < MAX_TEXTS and len(text) <= LONGEST_CACHED:
            self[text] = found
        return found


_LENGTHS: dict[bytes, list[bytes]] = {}


def _lengths(branch: bytes) -> list[bytes]:
    if branch not in _LENGTHS:
        _LENGTHS[branch] = [branch + long_bytes(size) for size in range(SMALL)]
    return _LENGTHS[branch]


def _escaped(data: bytes) -> bytes:
    """Return ``data`` for use in a format with %."""
    return data.replace(b"%", b"%%")


def _width(shape: TableShape) -> int:
    return len(shape.keys) + (shape.plan.key_field is not None)


def _key_tail(shape: TableShape) -> bytes:
    """Return the bytes of the field that a key has beside its columns."""
    if shape.plan.key_field is None:
        return b""
    text = shape.plan.key_field[1].encode()
    return long_bytes(len(text)) + text


def _keys(shape: TableShape, code: _ColumnCode, *, read: bool) -> str:
    """Return the expression of a key's bytes."""
    parts = [
        code.expression(column, (column.read if read else column.field).schema)
        for column in shape.keys
    ]
    if shape.plan.key_field is not None:
        parts.append(repr(_key_tail(shape)))
    return f"_key_form % ({', '.join(parts)},)"


def key_writer(shape: TableShape, prefix: bytes, *, read: bool, defaults: bool) -> WriteKeys | None:
    """Return the writer of keys. None means that the shape needs the general way."""
    # Cells (``{value, set}``) have a structure that only the general way writes.
    if shape.plan.cell.members is not None:
        return None
    code = _ColumnCode(shape, read=read, defaults=defaults)
    parts = _keys(shape, code, read=read)
    source = f"""
def keys(_rows):
    out = []
    for _values in _rows:
        {code.unpack()}
        out.append({parts})
    return out
"""
    space = {**code.names, "_key_form": _escaped(prefix) + b"%b" * _width(shape)}
    define(source, f"Avro keys of {shape.plan.relation.name}", space)
    made: WriteKeys = space["keys"]
    return made


def create_writer(
    shape: TableShape,
    value: Schema,
    prefix: bytes,
    *,
    read: bool,
    defaults: bool,
    key_prefix: bytes | None = None,
) -> WriteCreates | None:
    """Return the writer of values that have only ``after``.

    With ``key_prefix`` it also writes keys. None means that the shape needs the general way.
    """
    # Cells (``{value, set}``) have a structure that only the general way writes.
    if shape.plan.cell.members is not None:
        return None
    # A key column often has the same bytes in key and value.
    shared = _shared(shape, read=read) if key_prefix is not None else frozenset[int]()
    code = _ColumnCode(shape, read=read, defaults=defaults, shared=shared)
    parts = "".join(
        f"{code.expression(column, (column.read if read else column.field).schema)}, "
        for column in shape.values
    )
    keys, add = _ColumnCode(shape, read=read, defaults=defaults, part="k", shared=shared), ""
    if key_prefix is not None:
        add = f"add_key({_keys(shape, keys, read=read)})"
    source = f"""
def creates(_rows, _tails):
    keys, values = [], []
    add_key, add = keys.append, values.append
    for _values, _tail in zip(_rows, _tails):
        {code.unpack(keys)}
        add(_form % ({parts} _tail))
        {add}
    return keys, values
"""
    opening = prefix + b"\x00\x02"
    space = {
        **code.names,
        **keys.names,
        "_form": _escaped(opening) + b"%b" * (len(shape.values) + 1),
        "_key_form": _escaped(key_prefix or b"") + b"%b" * _width(shape),
    }
    define(source, f"Avro values of {shape.plan.relation.name}", space)

    def columns(block: RowBlock, tail: Pieces) -> Written:
        found = [piece for column in code.columns for piece in column(block)]
        values = TextRows([opening, *found, *tail], len(block)).values()
        if key_prefix is None:
            return [], values
        found = [piece for column in keys.columns for piece in column(block)]
        return TextRows([key_prefix, *found, _key_tail(shape)], len(block)).values(), values

    write = _framed(space["creates"], columns, shape, value, defaults=defaults)
    if key_prefix is not None:
        return write
    # Another converter writes the keys.
    return lambda *given: (None, write(*given)[1])


def _shared(shape: TableShape, *, read: bool) -> frozenset[int]:
    """Return the columns with equal bytes in key and value.

    Only texts and integers are considered.
    """

    def form(column: ShapeColumn) -> Schema:
        return (column.read if read else column.field).schema

    written = {column.index: column for column in shape.values}
    return frozenset(
        key.index
        for key in shape.keys
        if key.index in written
        and key.mapping.to_connect in (int, str)
        and written[key.index].mapping.to_connect is key.mapping.to_connect
        and written[key.index].transform is None
        and form(written[key.index]) == form(key)
        and not written[key.index].mapping.streamed_as_null
        and key.mapping.read is None
    )


class _Tail(NamedTuple):
    """A value's bytes after its row, around the row's LSN, as text and as a number."""

    head: bytes
    lead: bytes
    middle: bytes
    after: bytes

    def of(self, lsn: int) -> bytes:
        sequence = self.lead + b'%d"]' % lsn
        size = long_bytes(len(sequence))
        return b"".join((self.head, size, sequence, self.middle, long_bytes(lsn), self.after))

    def pieces(self, lsns: Sequence[int]) -> Pieces:
        values = np.array(lsns, "i8")
        digits = pa.array(values).cast(pa.string()).cast(pa.binary())
        sizes = np.diff(offsets_of(digits))
        lengths = varints(sizes.astype("i8") + (len(self.lead) + 2))
        after = [b'"]' + self.middle, varints(values), self.after]
        return [self.head, lengths, self.lead, digits, *after]


def _framed(
    write: Callable[[Sequence[Tuple], Iterable[bytes]], Written],
    columns: Callable[[RowBlock, Pieces], Written],
    shape: TableShape,
    value: Schema,
    *,
    defaults: bool,
) -> WriteCreates:
    """Return the writer that supplies the bytes that rows share.

    ``write`` gets rows and the tail of each; ``columns`` gets many rows.
    """
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
        images: Sequence[Tuple], lsns: Sequence[int | None], op: str, frame: EventFrame
    ) -> Written:
        facts = {**frame.source, **names, "transaction": None, "op": op, **frame.stamps}

        def joined(writers: dict[str, Any], fields: Sequence[str]) -> bytes:
            return b"".join([writers[name](facts[name]) for name in fields])

        # The envelope and the source have time fields of the same names.
        facts |= {name: frame.source[name] for name in ("ts_ms", "ts_us", "ts_ns")}
        before = joined(source, SOURCE_BEFORE)
        between, after = joined(source, SOURCE_BETWEEN), joined(source, SOURCE_AFTER)
        facts |= frame.stamps
        after += joined(ends, tuple(ends))
        sequence = facts["sequence"]
        block = RowBlock.of(images) if len(images) >= FEWEST and has_columns() else None
        if sequence[-1] == ",":  # the LSN comes with each row
            lead, middle = sequence.encode() + b'"', between + b"\x02"
            tail = _Tail(before + b"\x02", lead, middle, after)
            if block is not None:
                return columns(block, tail.pieces(lsns))  # type: ignore[arg-type]
            return write(images, map(tail.of, lsns))  # type: ignore[arg-type]
        row_values = (
            source["sequence"](sequence) + between + source["lsn"](lsns[0] if lsns else None)
        )
        same = before + row_values + after
        return write(images, repeat(same)) if block is None else columns(block, [same])

    return creates
