"""Print floating-point numbers as PostgreSQL does, in the shortest digits."""

import math
import struct
from decimal import Decimal

__all__ = ["pg_double_text", "pg_float_text", "single"]


def single(text: str) -> float:
    """Return the float that ``text`` names.

    Raises ValueError for a number beyond the largest float.
    """
    try:
        value: float = struct.unpack(">f", struct.pack(">f", float(text)))[0]
    except OverflowError as cause:
        msg = "number beyond the largest float"
        raise ValueError(msg) from cause
    return value


def _layout(digits: str, exponent: int, limit: int) -> str:
    """Write d.ddd × 10**exponent: fixed from -4 up to ``limit``, as PostgreSQL."""
    if -4 <= exponent < limit:
        if exponent < 0:
            return f"0.{'0' * (-exponent - 1)}{digits}"
        whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
        return f"{whole}.{fraction}" if fraction else whole
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _split(text: str) -> tuple[str, int]:
    """Return digits and decimal exponent of a ``%e``-style number.

    The digits have no outer zeros.
    """
    mantissa, _, exponent = text.partition("e")
    return mantissa.replace(".", "").rstrip("0") or "0", int(exponent)


def _special_text(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    return None


def pg_double_text(value: float) -> str:
    """Return ``value`` as PostgreSQL 12 and later print a double."""
    text = repr(value)
    if "e" not in text and "n" not in text and len(text) < 16:
        # at most 13 digits: no exponent in either notation
        return text[:-2] if text[-2:] == ".0" else text
    special = _special_text(value)
    if special is not None:
        return special
    digits, exponent = _shortest(abs(value))
    return ("-" if value < 0 else "") + _layout(digits, exponent, 15)


def _shortest(value: float) -> tuple[str, int]:
    """Return the shortest digits and the exponent of a positive double."""
    text = repr(value)
    # PostgreSQL wants digits strictly between the neighbours' midpoints; Python accepts a
    # midpoint itself (1e23). Only whole numbers from 2**53 on can have midpoints that short.
    if value >= 2.0**53:
        below = int(math.nextafter(value, 0.0))
        above = math.nextafter(value, math.inf)
        around = below, int(value), 2 * int(value) - below if math.isinf(above) else int(above)
        places = 0
        while not _inside(text, around):
            text = f"{value:.{places}e}"
            places += 1
    if "e" in text:
        return _split(text)
    whole, _, fraction = text.partition(".")
    digits = (whole + fraction).lstrip("0")
    exponent = len(whole) - 1 if whole != "0" else -1 - (len(fraction) - len(fraction.lstrip("0")))
    return digits.rstrip("0") or "0", exponent


def _inside(text: str, around: tuple[int, int, int]) -> bool:
    """Return whether ``text`` is strictly between both neighbours' midpoints."""
    below, number, above = around
    return below + number < 2 * int(Decimal(text)) < number + above


def pg_float_text(value: float) -> str:
    """Return ``value`` as PostgreSQL 12 and later print a float.

    ``value`` is exactly a float.
    """
    special = _special_text(value)
    if special is not None:
        return special
    size = abs(value)
    # Six digits of a normal float always identify a decimal of six digits; nine always a float.
    for places in range(5 if size >= 2**-126 else 0, 9):
        text = f"{size:.{places}e}"
        if _means(text, size):
            break
        # Above a power of two floats are twice as far apart as below it: the nearest text may lie
        # outside while the next one up is inside.
        step = Decimal(1).scaleb(int(text.partition("e")[2]) - places)
        text = f"{Decimal(text) + step:.{places}e}"
        if _means(text, size):
            break
    digits, exponent = _split(text)
    return ("-" if value < 0 else "") + _layout(digits, exponent, 6)


def _means(text: str, size: float) -> bool:
    """Return whether ``text`` is strictly nearest to the float ``size``."""
    try:
        # As in `_shortest`: only whole numbers from 2**24 on can have midpoints that short.
        return single(text) == size and (size < 2**24 or _inside(text, _around(size)))
    except ValueError:  # rounds beyond the largest float
        return False


def _around(value: float) -> tuple[int, int, int]:
    """Return a whole positive float between its neighbours.

    The largest float has none above it.
    """
    (bits,) = struct.unpack(">i", struct.pack(">f", value))
    below, above = (struct.unpack(">f", struct.pack(">i", bits + n))[0] for n in (-1, 1))
    step = value - below
    return int(below), int(value), int(value + step if math.isinf(above) else above)
