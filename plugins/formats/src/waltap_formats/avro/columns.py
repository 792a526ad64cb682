"""Avro bytes of whole columns of PostgreSQL's text, by pyarrow and numpy.

A column becomes pieces, which `waltap.encoders.format.record_block.TextRows` joins row by row. Their
bytes equal the output of `waltap_formats.avro.binary`. The result is None for a column with a value
of an unusual form, which the caller then writes value by value.
"""

from collections.abc import Callable
from typing import Any, Final

from waltap.base.import_rules import np, pa, pc
from waltap.changes.mapping.connect_schema import ConnectKind
from waltap.changes.mapping.java_number import single
from waltap.changes.mapping.type_mapping import ColumnMapping, JsonColumn
from waltap.encoders.json.columns import BOOLEANS, QUOTED, integers_of, offsets_of, two_complements
from waltap_formats.avro.binary import RANGES

Pieces = list[Any]
"""Binary arrays with a value for each row, and bytes that all rows contain."""

WriteColumn = Callable[["pa.StringArray"], Pieces | None]

# Form in Avro, and the `to_connect` that Arrow's cast replaces.
_FLOATS: Final = {ConnectKind.FLOAT32: ("<f4", single), ConnectKind.FLOAT64: ("<f8", float)}


def column_writer(
    mapping: ColumnMapping, kind: ConnectKind, branch: bytes, null: bytes | None
) -> WriteColumn | None:
    """Return the writer of a column's pieces.

    ``branch`` precedes each value, and ``null`` is written for NULL; None means that NULL is an error
    of its row. Return None if the column has no such writer.
    """
    convert = _converter(mapping, kind, branch)
    if convert is None:
        return None

    def write(texts: "pa.StringArray") -> Pieces | None:
        if texts.null_count and null is None:
            return None
        return convert(texts, null or b"")

    return write


def _converter(
    mapping: ColumnMapping, kind: ConnectKind, branch: bytes
) -> "Callable[[pa.StringArray, bytes], Pieces | None] | None":
    quick = mapping.json_column
    match kind:
        case ConnectKind.STRING if mapping.to_connect is str:
            return lambda texts, null: texts_in_avro(texts, branch, null)
        case ConnectKind.STRING if quick is not None and quick.quoted and quick is not QUOTED:
            return lambda texts, null: _iso_texts(quick, texts, branch, null)
        case ConnectKind.BOOLEAN if quick is BOOLEANS:
            return lambda texts, null: _booleans(texts, branch, null)
        case ConnectKind.FLOAT32 | ConnectKind.FLOAT64 if mapping.to_connect is _FLOATS[kind][1]:
            return lambda texts, null: _floats(texts, kind, branch, null)
    if quick is None or quick.numbers is None:
        return None
    of = quick.numbers
    if kind in RANGES:
        limit = 1 << RANGES[kind]
        return lambda texts, null: _numbers(of(texts), texts, limit, branch, null)
    if kind is ConnectKind.BYTES:
        return lambda texts, null: _unscaled(of(texts), texts, branch, null)
    return None


def texts_in_avro(texts: "pa.StringArray", branch: bytes, null: bytes) -> Pieces:
    """Return each text after its length. NULL is ``null``."""
    plain = texts.fill_null("") if texts.null_count else texts
    sizes = np.diff(offsets_of(plain))
    return [_varints(sizes.astype("i8"), branch, texts, null), plain.cast(pa.binary())]


def _iso_texts(
    quick: JsonColumn, texts: "pa.StringArray", branch: bytes, null: bytes
) -> Pieces | None:
    found = quick.convert(texts)
    # JSON without escapes is the text itself.
    if found is None or pc.any(pc.match_substring(found, "\\"), min_count=0).as_py():
        return None
    return texts_in_avro(found, branch, null)


def _booleans(texts: "pa.StringArray", branch: bytes, null: bytes) -> Pieces | None:
    true = pc.equal(texts, "t")
    if not pc.all(pc.or_(true, pc.equal(texts, "f")), min_count=0).as_py():
        return None
    values = true.fill_null(False).to_numpy(zero_copy_only=False)
    return [_arrays(branch, values.astype("u1")[:, None], None, texts, null)]


def _floats(
    texts: "pa.StringArray", kind: ConnectKind, branch: bytes, null: bytes
) -> Pieces | None:
    try:
        numbers = texts.fill_null("0").cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    values = numbers.to_numpy()
    # NaN has one form, and `to_connect` refuses what is too large.
    if not np.isfinite(values).all():
        return None
    form, _ = _FLOATS[kind]
    if kind is ConnectKind.FLOAT32 and (np.abs(values) > np.finfo("f4").max).any():
        return None
    data = values.astype(form).view("u1").reshape(len(values), -1)
    return [_arrays(branch, data, None, texts, null)]


def _numbers(
    numbers: "pa.Int64Array | None", texts: "pa.StringArray", limit: int, branch: bytes, null: bytes
) -> Pieces | None:
    values = None if numbers is None else _values(numbers)
    if values is None or not -limit <= int(values.min()) <= int(values.max()) < limit:
        return None
    return [_varints(values, branch, texts, null)]


def _unscaled(
    numbers: "pa.Int64Array | None", texts: "pa.StringArray", branch: bytes, null: bytes
) -> Pieces | None:
    """Return each number as a length and its two's complement in the fewest bytes."""
    if numbers is None:
        return None
    size, shifted = two_complements(_values(numbers))
    out = np.empty((len(size), 9), "u1")
    out[:, 0] = size * 2  # a length's zig-zag form
    out[:, 1:] = shifted.astype(">u8").view("u1").reshape(-1, 8)
    return [_arrays(branch, out, size + 1, texts, null)]


def _values(numbers: "pa.Int64Array") -> Any:
    # The buffer's content under a NULL is undefined.
    return integers_of(numbers.fill_null(0) if numbers.null_count else numbers)


def varints(values: Any) -> "pa.BinaryArray":
    """Return 64-bit integers in Avro's form."""
    return _varints(values, b"", None, b"")


def _varints(
    values: Any, branch: bytes, texts: "pa.StringArray | None", null: bytes
) -> "pa.BinaryArray":
    # Zig-zag, then seven bits a byte, for all numbers at once.
    zigzags = ((values << 1) ^ (values >> 63)).astype("u8")
    widest = max(1, -(-int(zigzags.max()).bit_length() // 7))
    width = np.ones(len(values), "i8")
    for more in range(1, widest):
        width += zigzags >= np.uint64(1 << 7 * more)
    out = np.empty((len(values), widest), "u1")
    for index in range(widest):
        # The high bit of a byte means that another one follows.
        bits = zigzags >> np.uint64(7 * index) & np.uint64(0x7F)
        out[:, index] = bits | ((index < width - 1).astype("u1") << 7)
    return _arrays(branch, out, None if int(width.min()) == widest else width, texts, null)


def _arrays(
    branch: bytes, data: Any, widths: Any, texts: "pa.StringArray | None", null: bytes
) -> "pa.BinaryArray":
    """Return the rows of ``data``, a matrix of bytes, after ``branch``.

    Each row has as many bytes as ``widths`` says, or all of them. ``null`` replaces the rows where
    ``texts`` has NULL.
    """
    count, before = len(data), len(branch)
    nulls = texts.null_count if texts is not None else 0
    most = max(before + data.shape[1], len(null) if nulls else 0)
    out = np.zeros((count, most), "u1")
    out[:, :before] = np.frombuffer(branch, "u1")
    out[:, before : before + data.shape[1]] = data
    ends = np.full(count, before + data.shape[1]) if widths is None else before + widths
    if nulls and texts is not None:
        absent = texts.is_null().to_numpy(zero_copy_only=False)
        out[absent, : len(null)] = np.frombuffer(null, "u1")
        ends[absent] = len(null)
    if (ends != most).any():
        out = out[np.arange(most) < ends[:, None]]
    offsets = np.zeros(count + 1, "<i4")
    np.cumsum(ends, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(out))]
    )
