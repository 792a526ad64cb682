"""Integers of variable length, as Avro and Protobuf have them."""

__all__ = ["LAST", "MORE", "unsigned"]

# Tables of two bytes: one look-up replaces two rounds of shifts. In MORE further bytes follow, in
# LAST none.
_STEP = 1 << 14
MORE = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(_STEP)]
LAST = [
    bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))
    for value in range(_STEP)
]


def unsigned(value: int) -> bytes:
    """Return an integer that is not negative.

    It has seven bits per byte, the lowest first.
    """
    if value < 0x4000:
        return LAST[value]
    if value < 0x10000000:
        return MORE[value & 0x3FFF] + LAST[value >> 14]
    out = MORE[value & 0x3FFF] + MORE[value >> 14 & 0x3FFF]
    value >>= 28
    while value >= 0x4000:
        out += MORE[value & 0x3FFF]
        value >>= 14
    return out + LAST[value]
