"""Print floats and order maps' keys as Java 17 does.

Java writes Debezium's JSON. Before Java 19, ``Float.toString`` and ``Double.toString`` do not
give the shortest digits. They give ``1.4E-45`` where PostgreSQL prints ``1e-45``, and
``1.23456792E8`` where it prints ``1.2345679e+08``. Such digits of a float, read as a double, are
another number, so they matter to every comparison of events.

The digit generation below follows the description of Steele and White's fixed-format algorithm.
Java 17's documentation and behaviour show three peculiarities: at least two digits in exponent
form, whole numbers of up to 62 bits printed from the integer, and a symmetric stopping test. The
result was compared with a Java 17 on 300,000 floats and 100,000 doubles
(`tests/unit/types/test_types_java.py` keeps a sample).
"""

import math
import struct
from collections.abc import Iterable

_INTEGER_BITS = 62  # whole numbers below 2**63 take the integer path

# Keys are mostly names that repeat in every row.
_CACHED_KEYS = 65_536
_CACHED_KEY_LENGTH = 64  # longer keys are no names that come again


def float_text(value: float) -> str:
    """Return ``Float.toString(value)`` of Java 17.

    ``value`` is rounded to a float first.
    """
    (bits,) = struct.unpack(">i", struct.pack(">f", value))
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    return _text(value, exponent, fraction, fraction_bits=23, bias=127)


def double_text(value: float) -> str:
    """Return ``Double.toString(value)`` of Java 17."""
    (bits,) = struct.unpack(">q", struct.pack(">d", value))
    exponent, fraction = (bits >> 52) & 0x7FF, bits & 0xFFFFFFFFFFFFF
    return _text(value, exponent, fraction, fraction_bits=52, bias=1023)


def _text(value: float, exponent: int, fraction: int, *, fraction_bits: int, bias: int) -> str:
    """Print a number from its IEEE 754 fields.

    ``value`` only gives the sign and the special values.
    """
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if math.isinf(value):
        return sign + "Infinity"
    if exponent == 0 and fraction == 0:
        return sign + "0.0"
    if exponent == 0:  # subnormal: as many significant bits as are left
        significant = fraction.bit_length()
        power = 1 - bias - fraction_bits + significant - 1
    else:
        significant = fraction_bits + 1
        fraction |= 1 << fraction_bits
        power = exponent - bias
    digits, point = _digits(fraction, power, significant)
    return sign + _layout(digits, point)


def _layout(digits: str, point: int) -> str:
    """Place the decimal point of ``0.digits`` times ten to the ``point``."""
    # Java's documented range without an exponent is 10**-3 up to 10**7.
    if 0 < point < 8:
        integer = digits[:point].ljust(point, "0")
        return f"{integer}.{digits[point:] or '0'}"
    if -3 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    return f"{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def _digits(fraction: int, power: int, significant: int) -> tuple[str, int]:
    """Return the digits and the point's position of ``fraction``.

    The top bit of ``fraction`` weighs 2**power.
    """
    trailing = (fraction & -fraction).bit_length() - 1
    fraction >>= trailing
    width = fraction.bit_length()
    tiny = max(0, width - power - 1)  # bits right of the binary point
    if tiny == 0 and power <= _INTEGER_BITS:
        return _whole_digits(fraction << (power - width + 1), power - significant - 1)
    return _fraction_digits(fraction, width, tiny, power, significant)


def _whole_digits(number: int, spare_bits: int) -> tuple[str, int]:
    """Print a whole number in its significant digits.

    ``spare_bits`` are unused.
    """
    dropped = 0
    if spare_bits > 1:
        dropped = len(str(1 << spare_bits)) - 1
        number, rest = divmod(number, 10**dropped)
        if dropped and rest >= 10**dropped >> 1:
            number += 1
    text = str(number)
    return text.rstrip("0"), len(text) + dropped


def _fraction_digits(
    fraction: int, width: int, tiny: int, power: int, significant: int
) -> tuple[str, int]:
    """Generate digits until the rest is below half a unit."""
    exponent = _decimal_exponent(fraction, width, power)
    five_number, five_scale = max(0, -exponent), max(0, exponent)
    two_number = five_number + tiny + power
    two_scale = five_scale + tiny
    two_half = two_number - significant
    two_number -= width - 1
    common = min(two_number, two_scale)
    two_number, two_scale, two_half = (
        two_number - common,
        two_scale - common,
        two_half - common - (width == 1),  # a power of two: its lower neighbour is twice as near
    )
    if two_half < 0:
        two_number, two_scale, two_half = two_number - two_half, two_scale - two_half, 0
    number = (fraction * 5**five_number) << two_number
    scale = 5**five_scale << two_scale
    half = 5**five_number << two_half
    tens = 10 * scale
    room = _register(
        width + two_number + _five_bits(five_number), two_scale + 1 + _five_bits(five_scale + 1)
    )
    digits: list[int] = []
    digit, rest = divmod(number, scale)
    rest, half = 10 * rest, 10 * half
    low, high = _stop(rest, half, tens, room)
    if digit == 0 and not high:
        exponent -= 1  # the estimate was one too high
    else:
        digits.append(digit)
    if exponent < -3 or exponent >= 8:  # exponent form always shows a digit after the point
        low = high = False
    while not low and not high:
        digit, rest = divmod(rest, scale)
        rest, half = 10 * rest, 10 * half
        low, high = _stop(rest, half, tens, room)
        if room and _signed(half, room) <= 0:  # overflown: larger than any rest
            low = high = True
        digits.append(digit)
    text = "".join(map(str, digits))
    tie = 2 * rest - tens
    if high and (not low or tie > 0 or (tie == 0 and digits[-1] & 1)):
        rounded = str(int(text) + 1)
        if len(rounded) > len(text):
            exponent += 1
            rounded = rounded[:-1]
        text = rounded
    return text, exponent + 1


def _register(number_bits: int, scale_bits: int) -> int:
    """Return the size of the integers that Java computes with.

    It is 32, 64, or 0 for big integers.
    """
    most = max(number_bits, scale_bits)
    return 32 if most < 32 else 64 if most < 64 else 0


def _signed(number: int, room: int) -> int:
    """Return ``number`` as a machine integer of ``room`` bits holds it."""
    return (number + (1 << (room - 1))) % (1 << room) - (1 << (room - 1))


def _stop(rest: int, half: int, tens: int, room: int) -> tuple[bool, bool]:
    """Return whether the digits, or the next ones, are near."""
    if not room:
        # Java asks "at least" of big integers,
        return rest < half, rest + half >= tens
    # and "more than" of machine integers, whose sum may wrap to a negative number.
    return rest < _signed(half, room), _signed(rest + half, room) > tens


def _five_bits(power: int) -> int:
    """Return the size of 5**power by Java's table."""
    # The table is exact up to 26, then it has an upper bound.
    return (5**power).bit_length() if power <= 26 else 3 * power


def _decimal_exponent(fraction: int, width: int, power: int) -> int:
    """Estimate floor(log10) of the value; at most one too high."""
    mantissa = fraction / (1 << (width - 1))  # 1 <= mantissa < 2
    return math.floor((mantissa - 1.5) * 0.289529654 + 0.176091259 + power * 0.301029995663981)


def single(text: str) -> float:
    """Return the float that ``text`` names.

    Raises ValueError for a number beyond the largest float.
    """
    try:
        value: float = struct.unpack(">f", struct.pack(">f", float(text)))[0]
    except OverflowError as cause:
        raise ValueError("number beyond the largest float") from cause
    return value


def string_hash(text: str) -> int:
    """Return ``String.hashCode()`` as an unsigned 32-bit number."""
    code = 0
    # Java's strings are UTF-16: a character outside the BMP counts as two.
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code


class _JavaHashes(dict[str, int]):
    """Map a key to its spread Java hash. Emptied when full."""

    def __missing__(self, key: str) -> int:
        if len(self) >= _CACHED_KEYS:
            self.clear()
        code = string_hash(key)
        # HashMap folds the upper half of a hash into the low bits.
        code ^= code >> 16
        if len(key) <= _CACHED_KEY_LENGTH:
            self[key] = code
        return code


_SPREAD = _JavaHashes()


def java_order(keys: Iterable[str]) -> list[str]:
    """Return ``keys`` in the order of a ``java.util.HashMap``.

    ``keys`` are in order of insertion.
    """
    listed = list(keys)
    # A HashMap starts with 16 buckets and doubles them when three quarters full.
    buckets = 16
    while len(listed) > buckets * 3 // 4:
        buckets *= 2
    mask = buckets - 1
    # The low bits select the bucket. A stable sort keeps the order of insertion within one;
    # Java's order differs only in buckets that it turns into trees (eight keys and more in one of
    # 64).
    return sorted(listed, key=lambda key: _SPREAD[key] & mask)
