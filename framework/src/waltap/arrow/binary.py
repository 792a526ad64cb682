"""Convert columns in PostgreSQL's send format to Arrow by numpy.

The functions read types of fixed width, and short numerics. They join the values of a column and
read them at once. ``None`` is null; a value of another width is malformed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waltap.arrow.out_of_range import ArrowMalformed, ArrowMisfit
from waltap.mapping.type_mapping import TypeOptions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Raw", "fixed", "masked", "numbers", "short_decimals", "uuid_texts"]

Raw = Sequence[bytes | None]


def numbers(values: Raw, layout: str) -> Any:
    """Return ``values`` as numpy numbers of ``layout``.

    A null becomes zero.
    """
    import numpy as np

    width = np.dtype(layout).itemsize
    joined = b"".join([bytes(width) if v is None else v for v in values])
    if len(joined) != width * len(values):
        raise ArrowMalformed(f"send format of {width} bytes")
    return np.frombuffer(joined, layout)


def _nulls(values: Raw) -> Any:
    """Return the null mask of ``values``; None without nulls."""
    import numpy as np

    if None not in values:
        return None
    return np.fromiter((v is None for v in values), bool, len(values))


def fixed(values: Raw, layout: str, native: str) -> "pa.Array":
    """Return ``values`` of type ``layout`` as an array of ``native``.

    Both are numpy types; PostgreSQL sends big-endian numbers, Arrow needs the machine's order.
    """
    import pyarrow as pa

    return pa.array(numbers(values, layout).astype(native), mask=_nulls(values))


def masked(values: Raw, numbers: Any, lost: Any, name: str, options: TypeOptions) -> "pa.Array":
    """Return ``numbers`` with nulls for null and out-of-range values.

    ``lost`` marks the numbers out of range.

    Raises: ArrowMisfit for them unless the policy is null.
    """
    import pyarrow as pa

    nulls = _nulls(values)
    if nulls is not None:
        # The number of a null is arbitrary, so it must not count as out of range.
        lost = lost & ~nulls
    if lost.any():
        reason = f"{name} infinite or out of range"
        if options.arrow_misfit != "null":
            raise ArrowMisfit(reason)
        options.arrow_misfits.add(reason, int(lost.sum()))
        nulls = lost if nulls is None else nulls | lost
    return pa.array(numbers, mask=nulls)


_HYPHENS = (8, 13, 18, 23)
_UUID_WIDTH = 36


def uuid_texts(values: Raw) -> "pa.Array":
    """Return UUIDs as texts of 36 characters each."""
    import numpy as np
    import pyarrow as pa

    if not values:
        return pa.array([], pa.string())
    octets = numbers(values, "V16").view("u1").reshape(-1, 16)
    # Each octet gives two hexadecimal digits, its high and its low half.
    halves = np.empty((len(values), 32), "u1")
    halves[:, 0::2], halves[:, 1::2] = octets >> 4, octets & 15
    letters = np.frombuffer(b"0123456789abcdef", "u1")[halves]
    text = np.full((len(values), _UUID_WIDTH), ord("-"), "u1")
    text[:, [n for n in range(_UUID_WIDTH) if n not in _HYPHENS]] = letters
    nulls = _nulls(values)
    sizes = np.full(len(values), _UUID_WIDTH)
    # A null has no characters in the data buffer.
    if nulls is not None:
        text, sizes = text[~nulls], np.where(nulls, 0, sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype("<i4")
    valid = None if nulls is None else pa.array(~nulls).buffers()[1]
    return pa.StringArray.from_buffers(
        len(values), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text)), valid
    )


_NUMERIC_HEAD = 4  # 16-bit words before the digits: count, weight, sign, scale
_NULL_NUMERIC = bytes(8)


def short_decimals(values: Raw, precision: int, scale: int) -> "pa.Array | None":
    """Return numerics of at most 18 digits as decimal128.

    The function adds base-10000 digits in 64-bit integers. It returns None where the text must be
    read: for special values, and for values with more digits than the column has.
    Source: ``numeric_send`` in PostgreSQL's numeric.c.
    """
    import numpy as np
    import pyarrow as pa

    # 18 digits always fit 64 bits; 19 may not.
    if precision > 18:
        return None
    present = [_NULL_NUMERIC if v is None else v for v in values]
    joined = b"".join(present)
    if len(joined) % 2:
        raise ArrowMalformed("numeric in send format")
    words = np.frombuffer(joined, ">i2").astype("i8")
    sizes = np.fromiter(map(len, present), "i8", len(present)) >> 1
    starts = np.cumsum(sizes) - sizes
    if len(words) != sizes.sum() or (sizes < _NUMERIC_HEAD).any():
        raise ArrowMalformed("numeric in send format")
    counts, weights, signs = words[starts], words[starts + 1], words[starts + 2] & 0xFFFF
    # Sign 0x8000 and above: NaN and infinities.
    if (signs & 0x8000).any() or (4 * weights + 4 > 20).any() or (sizes - 4 != counts).any():
        return None
    tens = 10 ** np.arange(15)
    total = np.zeros(len(present), "i8")
    for place in range(int(counts.max(initial=0))):
        held = counts > place
        digit = np.where(held, words[np.where(held, starts + 4 + place, 0)], 0)
        # The power of ten of this digit, once the value is an integer of unit 10**-scale.
        power = 4 * (weights - place) + scale
        if (digit[(power > 14) | (power < -4)] != 0).any():
            return None
        shrunk, rest = np.divmod(digit, tens[np.clip(-power, 0, 4)])
        # More digits behind the point than the column's scale.
        if rest.any():
            return None
        total += shrunk * tens[np.clip(power, 0, 14)]
    if (total >= 10**precision).any():
        return None
    total = np.where(signs == 0x4000, -total, total)
    # The upper 64 bits of a decimal128 repeat the sign.
    wide = np.empty((len(present), 2), "<i8")
    wide[:, 0], wide[:, 1] = total, total >> 63
    nulls = _nulls(values)
    valid = None if nulls is None else pa.array(~nulls).buffers()[1]
    return pa.Array.from_buffers(
        pa.decimal128(precision, scale), len(present), [valid, pa.py_buffer(wide)]
    )
