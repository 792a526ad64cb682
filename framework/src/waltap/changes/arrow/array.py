"""Make Arrow arrays of Python lists with few copies.

`pyarrow.array` copies a long text two to three times; one copy is enough.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["integer_array", "string_array"]

# Up to this number of values are joined here. pyarrow is quicker with more of them, and then no
# value is long.
FEW: Final = 64

# From this number of characters on, an array points into the text and does not copy it.
LONG: Final = 1 << 20


def string_array(values: Sequence[str | None]) -> "pa.Array":
    """Return ``values`` as an array of strings."""
    import pyarrow as pa

    if len(values) > FEW:
        return pa.array(values, pa.string())
    # Nulls have no bytes; the bitmap marks them.
    texts = ["" if value is None else value for value in values]
    whole = texts[0] if len(texts) == 1 else "".join(texts)
    # An ASCII character is one byte, so the sizes are known without encoding.
    if len(whole) >= LONG and whole.isascii():
        sizes, data = list(map(len, texts)), _shown(whole)
    else:
        encoded = [text.encode() for text in texts]
        sizes = list(map(len, encoded))
        data = pa.py_buffer(encoded[0] if len(encoded) == 1 else b"".join(encoded))
    offsets = pa.py_buffer(array("i", accumulate(sizes, initial=0)))
    validity, nulls = _validity(values)
    return pa.StringArray.from_buffers(len(values), offsets, data, validity, nulls)


def _shown(text: str) -> "pa.Buffer":
    """Return a buffer that points into an ASCII text.

    The buffer keeps the text alive.
    """
    # Python stores ASCII text as its UTF-8 bytes, so the pointer needs no encoding.
    import ctypes

    import pyarrow as pa

    utf8 = ctypes.pythonapi.PyUnicode_AsUTF8AndSize
    utf8.restype, utf8.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_void_p)
    return pa.foreign_buffer(utf8(text, None), len(text), base=text)


def _validity(values: Sequence[object]) -> "tuple[pa.Buffer | None, int]":
    """Return the null bitmap of ``values`` and the number of nulls.

    The bitmap is None if no value is null.
    """
    import pyarrow as pa

    nulls = sum(value is None for value in values)
    if not nulls:
        return None, 0
    # Arrow's bitmap starts at the lowest bit, hence the reversed order.
    bits = "".join("0" if value is None else "1" for value in reversed(values))
    return pa.py_buffer(int(bits, 2).to_bytes((len(bits) + 7) // 8, "little")), nulls


def integer_array(code: str, values: list[int], arrow_type: "pa.DataType") -> "pa.Array":
    """Return ``values`` as an array of machine integers.

    ``code`` is a type code of `array.array`.
    """
    import pyarrow as pa

    data = pa.py_buffer(array(code, values))
    return pa.Array.from_buffers(arrow_type, len(values), [None, data])
