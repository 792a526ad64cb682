"""Arrow arrays of Python's lists: `pyarrow.array` copies a long text two to three times, where one copy
will do.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["integer_array", "string_array"]

FEW: Final = 64
"""Values that are joined here; more of them are quicker in pyarrow, and then none is long."""


def string_array(values: Sequence[str | None]) -> "pa.Array":
    """Return ``values`` as strings."""
    import pyarrow as pa

    if len(values) > FEW:
        return pa.array(values, pa.string())
    encoded = [b"" if value is None else value.encode() for value in values]
    sizes = map(len, encoded)
    offsets = pa.py_buffer(array("i", accumulate(sizes, initial=0)))
    validity, nulls = _validity(values)
    data = pa.py_buffer(encoded[0] if len(encoded) == 1 else b"".join(encoded))
    return pa.StringArray.from_buffers(len(values), offsets, data, validity, nulls)


def _validity(values: Sequence[object]) -> "tuple[pa.Buffer | None, int]":
    """Return the bitmap of ``values`` (None: no value is null), and how many are null."""
    import pyarrow as pa

    nulls = sum(value is None for value in values)
    if not nulls:
        return None, 0
    bits = "".join("0" if value is None else "1" for value in reversed(values))
    return pa.py_buffer(int(bits, 2).to_bytes((len(bits) + 7) // 8, "little")), nulls


def integer_array(code: str, values: list[int], arrow_type: "pa.DataType") -> "pa.Array":
    """Return ``values`` as an array of the machine integers ``code`` (that of `array.array`)."""
    import pyarrow as pa

    data = pa.py_buffer(array(code, values))
    return pa.Array.from_buffers(arrow_type, len(values), [None, data])
