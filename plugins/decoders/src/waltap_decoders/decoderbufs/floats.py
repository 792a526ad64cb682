"""Floating-point numbers to the text that PostgreSQL prints (extra_float_digits above 0).

The digits are the fewest that give the number back. float8 goes to exponents from 1e+15 on and below
1e-4, float4 from 1e+06 on. Source: ryu's output as PostgreSQL bends it, src/common/d2s.c, f2s.c.
"""

import math
import struct
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache

__all__ = ["float4_text", "float8_text"]

_FLOAT = struct.Struct("<f")


def float8_text(value: float) -> str:
    """Return a double as PostgreSQL prints it."""
    if not math.isfinite(value):
        return _special(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    return _laid_out(sign, digits, int(exponent), 15)


def float4_text(value: float) -> str:
    """Return a single-precision number, given as a double, as PostgreSQL prints it."""
    if not math.isfinite(value):
        return _special(value)
    if not value:  # -0 and 0 are equal: a cache would mix them up
        return "-0" if math.copysign(1, value) < 0 else "0"
    return _float4_text(value)


@lru_cache(maxsize=65536)
def _float4_text(value: float) -> str:
    exact = Decimal(value)
    for precision in range(1, 10):
        near = [
            Context(prec=precision, rounding=rounding).plus(exact)
            for rounding in (ROUND_FLOOR, ROUND_CEILING)
        ]
        fitting = [number for number in near if _same(number, value)]
        if fitting:
            best = min(fitting, key=lambda number: abs(number - exact))
            sign, digits, exponent = best.as_tuple()
            return _laid_out(sign, digits, int(exponent), 6)
    message = f"{value!r} is no single-precision number"
    raise ValueError(message)


def _same(number: Decimal, value: float) -> bool:
    try:
        return bool(_FLOAT.unpack(_FLOAT.pack(float(number)))[0] == value)
    except OverflowError:
        return False


def _special(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _laid_out(sign: int, digits: tuple[int, ...], exponent: int, limit: int) -> str:
    """Return digits × 10^exponent, with an exponent where PostgreSQL writes one."""
    text = "".join(map(str, digits)).lstrip("0")
    minus = "-" if sign else ""
    if not text:
        return minus + "0"
    exponent += len(text) - len(text.rstrip("0"))
    text = text.rstrip("0")
    power = exponent + len(text) - 1
    if power < -4 or power >= limit:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{fraction}e{power:+03d}"
    if exponent >= 0:
        return f"{minus}{text}{'0' * exponent}"
    if power >= 0:
        return f"{minus}{text[: power + 1]}.{text[power + 1 :]}"
    return f"{minus}0.{'0' * (-power - 1)}{text}"
