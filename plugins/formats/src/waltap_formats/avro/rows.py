"""Avro directly from row images, by generated functions.

Each relation version has its functions, as in the JSON format. A value is a run of bytes that
change at different rates. The schema's id and the unions' branches change with the relation, most
of the source block with the transaction, and the LSN and the columns with each row. The general
case uses `waltap_formats.avro.binary`, with the same bytes.
"""

import contextlib
import importlib.util
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

from waltap.base.generated import define
from waltap.changes.capture.source_type import root_type
from waltap.changes.decode.relation import TypeKind
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.events.shape import ShapeColumn, TableShape, column_value
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.type_mapping import ColumnMapping
from waltap.encoders.format.converter import EventFrame, WriteCreates, WriteKeys, Written
from waltap.encoders.json.codec import MISFITS
from waltap_formats.avro.binary import (
    LAST,
    MORE,
    RANGES,
    avro_writer,
    integer_writer,
    long_bytes,
    unsigned,
)

if TYPE_CHECKING:
    import pyarrow as pa


# Avro's numbers for whole columns of text, by pyarrow and numpy.
#
# The bytes equal the output of `waltap_formats.avro.rows`. If a value has an unusual form, the
# result is None, and those functions write the column.

WriteColumn = Callable[[Sequence[Any]], list[bytes] | None]

# Fewer rows are not worth the conversion to pyarrow.
FEWEST = 64

# Other types of values mean unchanged or masked ones, which only the general way handles.
_PLAIN = ({str}, {str, type(None)})


def column_writer(
    mapping: ColumnMapping, kind: ConnectKind, branch: bytes, null: bytes | None
) -> WriteColumn | None:
    """Return the writer of a column of integers.

    ``branch`` precedes each number, and ``null`` is written for None. Return None if the column
    has no such writer.
    """
    if kind not in {ConnectKind.INT32, ConnectKind.INT64} or not _installed():
        return None
    quick = mapping.json_column
    whole = mapping.integers  # the cast refuses texts that are no numbers
    if not whole and (quick is None or quick.quoted or kind is not ConnectKind.INT64):
        return None
    limit = 1 << RANGES[kind]

    def write(values: Sequence[Any]) -> list[bytes] | None:
        if len(values) < FEWEST or set(map(type, values)) not in _PLAIN:
            return None
        # Imported late, since pyarrow and numpy are optional.
        import pyarrow as pa

        texts = pa.array(values, pa.string())
        # NULL in a required field is an error of its row.
        if texts.null_count and null is None:
            return None
        try:
            digits = texts if whole or quick is None else quick.convert(texts)
            numbers = None if digits is None else digits.cast(pa.int64())
        except pa.ArrowInvalid:
            return None
        return None if numbers is None else _varints(numbers, limit, branch, null)

    return write


def _installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("numpy", "pyarrow"))


def _varints(
    numbers: "pa.Int64Array", limit: int, branch: bytes, null: bytes | None
) -> list[bytes] | None:
    import numpy as np

    # The buffer's content under a NULL is undefined.
    plain = numbers.fill_null(0) if numbers.null_count else numbers
    values = np.frombuffer(plain.buffers()[1], "<i8", len(plain), 8 * plain.offset)
    low, high = int(values.min()), int(values.max())
    if not -limit <= low <= high < limit:
        return None
    # Zig-zag, then seven bits a byte, for all numbers at once.
    left = ((values << 1) ^ (values >> 63)).astype("u8")
    # Bytes of the longest number.
    widest = max(1, -(-int(left.max()).bit_length() // 7))
    width = np.ones(len(values), "i8")
    for more in range(1, widest):
        width += left >= np.uint64(1 << 7 * more)
    before = len(branch)
    out = np.empty((len(values), before + widest), "u1")
    for index, byte in enumerate(branch):
        out[:, index] = byte
    for index in range(widest):
        # The high bit of a byte means that another one follows.
        bits = left >> np.uint64(7 * index) & np.uint64(0x7F)
        out[:, before + index] = bits | np.where(index < width - 1, np.uint64(0x80), np.uint64(0))
    data, step = out.tobytes(), before + widest
    starts = range(0, len(data), step)
    # Numbers of one width need no computed ends.
    if int(width.min()) == widest:
        found = [data[start : start + step] for start in starts]
    else:
        ends = (np.arange(len(values)) * step + before + width).tolist()
        found = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    if numbers.null_count:
        assert null is not None
        for index in np.flatnonzero(~numbers.is_valid().to_numpy(zero_copy_only=False)).tolist():
            found[index] = null
    return found


SMALL = 8192
# Limits of the caches of encoded texts: entries, characters of a text, and of an integer's text.
TEXTS_KEPT, LONGEST_KEPT, SHORT = 16_384, 10, 5
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
        # Columns that may be encoded as a whole, with the expression of one value as fallback.
        self.columns: dict[int, str] = {}

    def unpack(self, *others: "_ColumnCode") -> str:
        """Return the statement that binds the used columns' values."""
        used = self.used.union(*(other.used for other in others))
        if not used:
            return "pass"
        names = [f"v{index}" if index in used else "_" for index in range(self._width)]
        return f"{', '.join(names)}{',' if self._width == 1 else ''} = _values"

    def expression(self, column: ShapeColumn, schema: Schema) -> str:
        """Return the expression of a column's bytes."""
        index, mapping, part = column.index, column.mapping, self._part
        if index in self._shared and part:
            return f"same{index}"
        write = avro_writer(schema, defaults=self._defaults, what=f"the field {column.field.name}")
        convert = column_value(column, read=self._read)
        # The stream never has a value of such a type, so its bytes are constant.
        if mapping.streamed_as_null and not self._read:
            return repr(write(convert(None)))
        self.used.add(index)
        other = f"_other{part}{index}"
        self.names[other] = lambda value: write(convert(value))
        value = f"v{index}"
        # Only the general way applies a mask.
        masked = column.transform is not None and column.transform.value is not None
        plain = None if masked else self._of_text(column, schema, value)
        if plain is None:
            made = f"{other}({value})"
        else:
            # Only a text takes the fast way; NULL, unchanged values and bytes take the general
            # one.
            made = f"({plain}) if {value}.__class__ is str else {other}({value})"
            if not part and self._as_column(column, schema, self.names[other]):
                self.columns[index] = made
                self.used.discard(index)
                made = f"b{index}"
        return f"(same{index} := {made})" if index in self._shared else made

    def _as_column(
        self, column: ShapeColumn, schema: Schema, other: Callable[[Any], bytes]
    ) -> bool:
        """Return whether a column may be encoded as a whole.

        If so, store its encoder.
        """
        mapping, null = column.mapping, None
        if self._read and mapping.read is not None:
            mapping = mapping.read
        with contextlib.suppress(*MISFITS):  # null in a required field is a row's error
            null = other(None)
        write = column_writer(mapping, schema.kind, _branch(schema), null)
        if write is not None:
            self.names[f"_column{column.index}"] = write
        return write is not None

    def functions(self) -> str:
        """Return the source of functions that encode whole columns."""
        return "".join(
            f"""
def column{index}(_rows):
    values = [row[{index}] for row in _rows]
    found = _column{index}(values)
    return found if found is not None else [{source} for v{index} in values]
"""
            for index, source in self.columns.items()
        )

    def loop(self, *others: str) -> str:
        """Return the head of the loop over rows.

        It also iterates ``others`` and the columns that were encoded as a whole.
        """
        names = ["_values", *others, *(f"b{index}" for index in self.columns)]
        of = ["_rows", *(f"{name}s" for name in others)]
        of += [f"column{index}(_rows)" for index in self.columns]
        return f"for {', '.join(names)}{',' if len(names) == 1 else ''} in zip({', '.join(of)}):"

    def _of_text(self, column: ShapeColumn, schema: Schema, value: str) -> str | None:
        """Return the expression of a text's bytes.

        None means that the general way is as good.
        """
        mapping, index = column.mapping, f"{self._part}{column.index}"
        if self._read and mapping.read is not None:
            mapping = mapping.read
        branch = _branch(schema)
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
        self.names[write] = quick_integer(kind, branch)
        convert, kept = f"_convert{index}", f"_kept{index}"
        if mapping.integers:
            self.names[kept] = _EncodedTexts(mapping.to_connect, self.names[write])
            return f"{kept}[{value}] if len({value}) < {SHORT} else {write}({convert}({value}))"
        if kind is ConnectKind.INT32:  # days, months: few texts
            self.names[kept] = _EncodedTexts(mapping.to_connect, self.names[write])
            return f"{kept}[{value}]"
        if kind is ConnectKind.INT64:  # a present time in microseconds has eight bytes
            self.names.update(_more=MORE, _last=LAST)
            self.names[f"_more{branch.hex()}"] = quick_tables(branch)[1]
            # Four pairs of seven bits, each looked up in a table.
            eight = (
                f"_more{branch.hex()}[n & 16383] + _more[n >> 14 & 16383] + _more[n >> 28 & 16383]"
                " + _last[n >> 42]"
            )
            found = f"(n := {convert}({value}) << 1)"
            return f"{eight} if {1 << 42} <= {found} < {1 << 56} else {write}(n >> 1)"
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


def _branch(schema: Schema) -> bytes:
    """Return the union branch of a value, or nothing."""
    if not schema.optional:
        return b""
    return b"\x02" if schema.default is None else b"\x00"


class _EncodedTexts(dict[str, bytes]):
    """Cache the bytes of the first short texts."""

    def __init__(self, convert: Callable[[str], Any], write: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._convert, self._write = convert, write

    def __missing__(self, text: str) -> bytes:
        found = self._write(self._convert(text))
        # A full cache stops growing, so that rare texts cannot fill the memory.
        if len(self) < TEXTS_KEPT and len(text) <= LONGEST_KEPT:
            self[text] = found
        return found


_QUICK: dict[bytes, tuple[list[bytes], list[bytes]]] = {}


def quick_tables(branch: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return `LAST` and `MORE`, each after a union's branch."""
    if not branch:
        return LAST, MORE
    if branch not in _QUICK:
        _QUICK[branch] = [branch + each for each in LAST], [branch + each for each in MORE]
    return _QUICK[branch]


def quick_integer(kind: ConnectKind, branch: bytes) -> Callable[[int], bytes]:
    """Return a fast writer of integers of ``kind``.

    It writes a union's branch first and has the results of `integer_writer`.
    """
    last, more = quick_tables(branch)
    careful = integer_writer(kind)
    # Four pairs of bytes hold 56 bits; longer numbers are rare.
    most = 1 << min(RANGES[kind] + 1, 56)

    def write(value: int) -> bytes:
        # Zig-zag: the sign becomes the lowest bit.
        number = value << 1 if value >= 0 else ~(value << 1)
        if number >= most:
            return branch + careful(value)
        if number < 0x4000:
            return last[number]
        if number < 0x1000_0000:
            return more[number & 0x3FFF] + LAST[number >> 14]
        if number < 0x400_0000_0000:
            return more[number & 0x3FFF] + MORE[number >> 14 & 0x3FFF] + LAST[number >> 28]
        return (
            more[number & 0x3FFF]
            + MORE[number >> 14 & 0x3FFF]
            + MORE[number >> 28 & 0x3FFF]
            + LAST[number >> 42]
        )

    return write


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


def _keys(shape: TableShape, code: _ColumnCode, *, read: bool) -> str:
    """Return the expression of a key's bytes."""
    parts = [
        code.expression(column, (column.read if read else column.field).schema)
        for column in shape.keys
    ]
    if shape.plan.key_field is not None:
        text = shape.plan.key_field[1].encode()
        parts.append(repr(long_bytes(len(text)) + text))
    return f"_key_form % ({', '.join(parts)},)"


def key_writer(shape: TableShape, prefix: bytes, *, read: bool, defaults: bool) -> WriteKeys | None:
    """Return the writer of keys.

    None means that the shape needs the general way.
    """
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
    source = f"""{code.functions()}
def creates(_rows, _lsns, _tail):
    keys, values = [], []
    add_key, add = keys.append, values.append
    low = high = 0
    {code.loop("_lsn")}
        {code.unpack(keys)}
        if not low <= _lsn < high:
            form, table, low, high = _tail(_lsn)
            form = _form + form
        add(form % ({parts} _lsn, table[_lsn << 1 & 16383]))
        {add}
    return keys, values

def alike(_rows, _tail):
    keys, values = [], []
    add_key, add = keys.append, values.append
    form = _form + b"%b"
    {code.loop()}
        {code.unpack(keys)}
        add(form % ({parts} _tail))
        {add}
    return keys, values
"""
    space = {
        **code.names,
        **keys.names,
        "_form": _escaped(prefix + b"\x00\x02") + b"%b" * len(shape.values),
        "_key_form": _escaped(key_prefix or b"") + b"%b" * _width(shape),
    }
    define(source, f"Avro values of {shape.plan.relation.name}", space)
    write = _framed(space["creates"], space["alike"], shape, value, defaults=defaults)
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
        and not key.mapping.streamed_as_null
        and key.mapping.read is None
    )


def _tails(
    head: bytes, lead: bytes, middle: bytes, after: bytes
) -> Callable[[int], tuple[bytes, list[bytes], int, int]]:
    """Return the function of an LSN's tail format.

    The tail is everything after the row. The function returns the format, a table of the first two
    bytes of the LSN as a number, and the LSN range in which both are valid. The format takes the
    LSN in decimal and an entry of the table.
    """

    def tail(lsn: int) -> tuple[bytes, list[bytes], int, int]:
        digits, high = len(str(lsn)), lsn >> 13
        size = long_bytes(len(lead) + digits + 2)
        rest = unsigned(high) + after if high else after
        form = _escaped(head + size + lead) + b'%d"]' + _escaped(middle) + b"%b" + _escaped(rest)
        # The format holds while the number of digits and the high bits stay the same.
        low = 0 if digits == 1 else 10 ** (digits - 1)
        span = max(low, high << 13), min(10**digits, (high + 1) << 13)
        return form, MORE if high else LAST, *span

    return tail


def _framed(
    write: Callable[..., Written],
    alike: Callable[..., Written],
    shape: TableShape,
    value: Schema,
    *,
    defaults: bool,
) -> WriteCreates:
    """Return the writer that supplies the bytes that rows share.

    ``write`` gets rows with an LSN each, and ``alike`` rows with one LSN.
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
        if sequence[-1] == ",":  # the LSN comes with each row
            tail = _tails(before + b"\x02", sequence.encode() + b'"', between + b"\x02", after)
            return write(images, lsns, tail)
        whole = source["sequence"](sequence) + between + source["lsn"](lsns[0] if lsns else None)
        return alike(images, before + whole + after)

    return creates
