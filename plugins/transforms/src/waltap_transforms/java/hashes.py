"""Java's ``hashCode`` for Connect values, and Debezium's MurmurHash3.

Source: the Java platform's documentation of ``hashCode`` in String, Integer, Long, Double, Boolean, List,
Map, ByteBuffer, BigDecimal; MurmurHash3's reference, with 64 bits of state and Debezium's seed 9001.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from waltap.changes.mapping.connect_schema import DECIMAL, ConnectKind, Schema, scale_of
from waltap.changes.mapping.java_number import string_hash
from waltap.encoders.format.record_transform import RecordUnfit
from waltap_transforms.java.dates import TEMPORAL, milliseconds

SEED = 9001
_32, _64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def java_hash(value: Any, schema: Schema) -> int:
    """Return ``hashCode`` of ``value`` as a signed 32-bit number.

    Raises: RecordUnfit for a struct, whose hash changes with every run of Java.
    """
    return _signed(_hash(value, schema))


def murmur_hash(value: Any, schema: Schema) -> int:
    """Return Debezium's MurmurHash3 as a signed 32-bit number. Raises: RecordUnfit."""
    if schema.kind is ConnectKind.STRING:
        # Java writes a lone surrogate as a question mark, too.
        data = value.encode("utf-8", "replace")
    else:
        # Debezium hashes the four bytes of hashCode for every other type.
        data = (_hash(value, schema) & _32).to_bytes(4, "little")
    return _signed(_murmur(data) >> 32)


def _hash(value: Any, schema: Schema) -> int:
    if schema.name == DECIMAL and schema.kind is ConnectKind.BYTES:
        unscaled = int.from_bytes(value, "big", signed=True)
        # BigDecimal.hashCode: 31 times the hash of the unscaled value, plus the scale.
        return 31 * _big(unscaled) + scale_of(schema)
    match schema.kind:
        case _ if schema.name in TEMPORAL:
            return _long(milliseconds(schema, value))
        case ConnectKind.INT8 | ConnectKind.INT16 | ConnectKind.INT32:
            return int(value)
        case ConnectKind.INT64:
            return _long(value)
        case ConnectKind.STRING:
            return string_hash(value)
        case ConnectKind.BOOLEAN:
            return 1231 if value else 1237
        case ConnectKind.FLOAT32:
            return _float(value)
        case ConnectKind.FLOAT64:
            return _double(value)
        case ConnectKind.BYTES:
            return _bytes(value)
        case ConnectKind.ARRAY:
            return _list(value, schema.items)
        case ConnectKind.MAP:
            return _map(value, schema)
        case _:
            raise RecordUnfit(
                f"a partition cannot be found by a {schema.kind.value}: name a field of it"
            )


def _signed(number: int) -> int:
    return ((number & _32) ^ 0x80000000) - 0x80000000


def _long(number: int) -> int:
    bits = number & _64
    return (bits ^ (bits >> 32)) & _32


def _double(number: float) -> int:
    # doubleToLongBits has one bit pattern for every NaN.
    if number != number:  # noqa: PLR0124 - all NaNs are one in Java
        return _long(0x7FF8000000000000)
    return _long(int.from_bytes(struct.pack(">d", number), "big"))


def _float(number: float) -> int:
    if number != number:  # noqa: PLR0124 - as above
        return 0x7FC00000
    return int.from_bytes(struct.pack(">f", number), "big")


def _big(number: int) -> int:
    # Java hashes the magnitude in words of 32 bits, the highest first, and then applies the sign.
    magnitude = abs(number)
    found = 0
    for (word,) in struct.iter_unpack(
        ">I", magnitude.to_bytes((magnitude.bit_length() + 31) // 32 * 4, "big")
    ):
        found = (31 * found + word) & _32
    return found if number >= 0 else -found


def _bytes(data: bytes) -> int:
    # ByteBuffer.hashCode starts with the last byte; bytes are signed.
    found = 1
    for (byte,) in struct.iter_unpack("b", data[::-1]):
        found = (31 * found + byte) & _32
    return found


def _list(values: Sequence[Any], items: Schema | None) -> int:
    assert items is not None
    found = 1
    for value in values:
        found = (31 * found + (0 if value is None else _hash(value, items))) & _32
    return found


def _map(values: Mapping[Any, Any], schema: Schema) -> int:
    assert schema.keys is not None
    assert schema.values is not None
    # Map.hashCode does not depend on the order of entries.
    return sum(
        _hash(key, schema.keys) ^ (0 if value is None else _hash(value, schema.values))
        for key, value in values.items()
    )


class _Murmur3State:
    """Hold the state of MurmurHash3 over 64-bit words."""

    def __init__(self) -> None:
        self.h1, self.h2 = 0x9368E53C2F6AF274 ^ SEED, 0x586DCD208F7CD3FD ^ SEED
        self.c1, self.c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F

    def mix(self, k1: int, k2: int) -> None:
        """Mix 16 bytes into the state."""
        k1 = _turned(k1 * self.c1 & _64, 23) * self.c2 & _64
        self.h1 = ((self.h1 ^ k1) + self.h2) & _64
        self.h2 = _turned(self.h2, 41)
        k2 = _turned(k2 * self.c2 & _64, 23) * self.c1 & _64
        self.h2 = ((self.h2 ^ k2) + self.h1) & _64
        self.h1 = (self.h1 * 3 + 0x52DCE729) & _64
        self.h2 = (self.h2 * 3 + 0x38495AB5) & _64
        self.c1 = (self.c1 * 5 + 0x7B7D159C) & _64
        self.c2 = (self.c2 * 5 + 0x6BCE6396) & _64


def _murmur(data: bytes) -> int:
    """Return the first 64 bits of the hash."""
    state, blocks_end = _Murmur3State(), len(data) // 16 * 16
    for at in range(0, blocks_end, 16):
        state.mix(
            int.from_bytes(data[at : at + 8], "little"),
            int.from_bytes(data[at + 8 : at + 16], "little"),
        )
    tail = data[blocks_end:]
    if tail:
        state.mix(_tail(tail[:8]), _tail(tail[8:]))
    h1, h2 = state.h1, state.h2 ^ len(data)
    h1 = (h1 + h2) & _64
    h2 = (h2 + h1) & _64
    h1, h2 = _final(h1), _final(h2)
    return (h1 + h2) & _64


def _tail(data: bytes) -> int:
    # Debezium extends the sign of each byte, unlike the reference.
    found = 0
    for at, (byte,) in enumerate(struct.iter_unpack("b", data)):
        found ^= (byte << (8 * at)) & _64
    return found


def _turned(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & _64


def _final(number: int) -> int:
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _64
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & _64
    return number ^ number >> 33
