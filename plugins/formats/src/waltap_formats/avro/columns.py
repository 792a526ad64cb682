"""Avro's numbers for whole columns of text, by pyarrow and numpy.

The bytes equal the output of `waltap_formats.avro.rows`. If a value has an unusual form, the result is
None, and those functions write the column.
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
    for place, byte in enumerate(branch):
        out[:, place] = byte
    for place in range(widest):
        # The high bit of a byte means that another one follows.
        bits = left >> np.uint64(7 * place) & np.uint64(0x7F)
        out[:, before + place] = bits | np.where(place < width - 1, np.uint64(0x80), np.uint64(0))
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
        for place in np.flatnonzero(~numbers.is_valid().to_numpy(zero_copy_only=False)).tolist():
            found[place] = null
    return found
