"""Whole columns of text as Avro's numbers, without the interpreter, where pyarrow and numpy are installed.

They are what the functions of `waltap_formats.avro.rows` write value by value, or None where a value is
not of the usual form: then those write the column.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from waltap.mapping.connect_schema import ConnectKind
from waltap.mapping.type_mapping import ColumnMapping
from waltap_formats.avro.binary import RANGES

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["WriteColumn", "column_writer"]

WriteColumn = Callable[[Sequence[Any]], list[bytes] | None]

FEWEST = 64
"""Rows from which on a column is written at once."""

_PLAIN = ({str}, {str, type(None)})


def column_writer(
    mapping: ColumnMapping, kind: ConnectKind, branch: bytes, null: bytes | None
) -> WriteColumn | None:
    """Return what writes columns of whole numbers behind a union's branch, and ``null`` for None; None
    where there is no such way."""
    if kind not in {ConnectKind.INT32, ConnectKind.INT64} or not _installed():
        return None
    quick = mapping.json_column
    whole = mapping.to_connect is int  # the cast refuses what is no number
    if not whole and (quick is None or quick.quoted or kind is not ConnectKind.INT64):
        return None
    limit = 1 << RANGES[kind]

    def write(values: Sequence[Any]) -> list[bytes] | None:
        if len(values) < FEWEST or set(map(type, values)) not in _PLAIN:
            return None
        import pyarrow as pa

        texts = pa.array(values, pa.string())
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

    plain = numbers.fill_null(0) if numbers.null_count else numbers
    values = np.frombuffer(plain.buffers()[1], "<i8", len(plain), 8 * plain.offset)
    low, high = int(values.min()), int(values.max())
    if not -limit <= low <= high < limit:
        return None
    left = ((values << 1) ^ (values >> 63)).astype("u8")
    widest = max(1, -(-int(left.max()).bit_length() // 7))
    width = np.ones(len(values), "i8")
    for more in range(1, widest):
        width += left >= np.uint64(1 << 7 * more)
    before = len(branch)
    out = np.empty((len(values), before + widest), "u1")
    for place, byte in enumerate(branch):
        out[:, place] = byte
    for place in range(widest):
        bits = left >> np.uint64(7 * place) & np.uint64(0x7F)
        out[:, before + place] = bits | np.where(place < width - 1, np.uint64(0x80), np.uint64(0))
    data, step = out.tobytes(), before + widest
    starts = range(0, len(data), step)
    if int(width.min()) == widest:
        found = [data[start : start + step] for start in starts]
    else:
        ends = (np.arange(len(values)) * step + before + width).tolist()
        found = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    if numbers.null_count:
        assert null is not None
        for place in np.flatnonzero(~numbers.is_valid().to_numpy(zero_copy_only=False)).tolist():
            found[place] = null
    return found
