"""Casting, parsing and printing of numbers as in Java.

Values have Connect's types: int, float, bool, str, and Decimal for java.math.BigDecimal.
"""

import math
import re
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

from waltap.changes.mapping.connect_schema import ConnectKind

BITS = {ConnectKind.INT8: 8, ConnectKind.INT16: 16, ConnectKind.INT32: 32, ConnectKind.INT64: 64}
# Python's int() and float() also accept underscores, blanks and digits of other scripts; these
# patterns admit only the texts that Java accepts.
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEX_FLOAT = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)
_BIG_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,10})?")
# Java's String.trim removes every character up to the blank.
BLANKS = "".join(map(chr, range(33)))
# More digits than any number of PostgreSQL has; a larger shift would only cost memory.
LONGEST_SHIFT = 200_000
# Below and above these, every float is 0 or infinite, so rounding twice makes no difference.
SMALLEST, LARGEST = 1e-46, 3.5e38
# From this number on, the nearest float is infinite.
_LARGEST_SINGLE = Fraction(2**128 - 2**103)


def decimal_bytes(number: Decimal, scale: int) -> bytes:
    """Return the unscaled value of ``number``.

    Raises: ValueError if ``number`` has more digits than ``scale`` allows.
    """
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    unscaled, shift = int("".join(map(str, digits))), exponent + scale
    # A short text such as 1e999999999 must not make a number of a billion digits.
    if shift > LONGEST_SHIFT:
        raise ValueError("too long a number")
    if shift >= 0:
        unscaled *= int(10**shift)
    elif -shift < LONGEST_SHIFT and unscaled % 10**-shift == 0:
        unscaled //= 10**-shift
    elif unscaled:
        raise ValueError("more digits after the point than the schema has")
    unscaled = -unscaled if sign else unscaled
    # BigInteger.toByteArray: the fewest bytes with room for the sign bit.
    return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)


def big_decimal(text: str) -> Decimal:
    """Parse ``text`` as Java's BigDecimal does. Raises: ValueError."""
    if not _BIG_DECIMAL.fullmatch(text):
        raise ValueError("not a number")
    return Decimal(text)


def to_integer(value: Any, bits: int) -> int:
    """Cast ``value`` to an integer of ``bits`` bits.

    Raises: ValueError for a text that is not such a number.
    """
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            raise ValueError("not a whole number")
        number = int(value)
        if number != _wrapped(number, bits):
            raise ValueError("out of range")
        return number
    if isinstance(value, float):
        # Java narrows a float to int or long first, which saturates; then byte and short wrap.
        return _wrapped(_integer(value, 64 if bits == 64 else 32), bits)
    if isinstance(value, Decimal) and not 0 <= value.adjusted() < LONGEST_SHIFT:
        return 0  # a fraction, or a number whose lower bits are all 0
    return _wrapped(int(value), bits)


def _integer(value: float, bits: int) -> int:
    if math.isnan(value):
        return 0  # as in Java; int() would raise
    most = (1 << (bits - 1)) - 1
    if math.isinf(value):
        return most if value > 0 else -most - 1
    return max(-most - 1, min(most, int(value)))


def _wrapped(number: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


def to_double(value: Any) -> float:
    """Cast ``value`` to a double. Raises: ValueError for a text that is not a number."""
    if isinstance(value, str):
        return _double_read(value)
    try:
        return float(value)
    except OverflowError:
        # Java rounds a number beyond the range to infinity.
        return math.copysign(math.inf, value)


def to_single(value: Any) -> float:
    """Cast ``value`` to a single-precision float.

    Raises: ValueError for a text that is not a number.
    """
    read = to_double(value)
    if isinstance(value, float) or not SMALLEST < abs(read) < LARGEST:
        return single(read)
    if isinstance(value, str):
        value = value.strip(BLANKS)
        if _HEX_FLOAT.fullmatch(value):
            return single(read)
        value = value.rstrip("fFdD")
    # Rounding by way of a double would round twice; Java rounds the decimal digits once.
    return _nearest(Fraction(value))


def _double_read(text: str) -> float:
    """Parse ``text`` as Java's Double.parseDouble does.

    Control characters and blanks around the number are ignored.
    """
    plain = text.strip(BLANKS)
    if _HEX_FLOAT.fullmatch(plain):
        # The letters d and f are also hexadecimal digits: only one after the exponent is a suffix.
        return float.fromhex(
            plain.rstrip("fFdD") if plain[-1] in "fFdD" and "p" in plain.lower() else plain
        )
    if not _FLOAT.fullmatch(plain):
        raise ValueError("not a number")
    return float(plain if plain.endswith(("NaN", "Infinity")) else plain.rstrip("fFdD"))


def single(value: float) -> float:
    """Round a double to the nearest single."""
    try:
        (found,) = struct.unpack(">f", struct.pack(">f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return found  # type: ignore[no-any-return]


def _nearest(number: Fraction) -> float:
    """Round ``number`` to the nearest single, only once."""
    if abs(number) >= _LARGEST_SINGLE:
        return -math.inf if number < 0 else math.inf
    (bits,) = struct.unpack(">I", struct.pack(">f", single(float(abs(number)))))
    # Rounding twice errs by at most one place, so the result or a neighbour is right. Ties go to even.
    around = [b for b in (bits - 1, bits, bits + 1) if 0 <= b < 0x7F800000]
    found = min(around, key=lambda b: (abs(Fraction(_of_bits(b)) - abs(number)), b & 1))
    return -_of_bits(found) if number < 0 else _of_bits(found)


def _of_bits(bits: int) -> float:
    (found,) = struct.unpack(">f", struct.pack(">I", bits))
    return found  # type: ignore[no-any-return]
