"""Bytes read one after the other, as Avro and Protobuf have them."""

import struct
from typing import Final

__all__ = ["WireReader", "WireUnreadable"]

LONGEST_NUMBER: Final = 10
MOST_EMPTY: Final = 100_000
"""How many items of no bytes a value may have."""


class WireUnreadable(ValueError):
    """Bytes do not fit the schema that they name, or it cannot be read."""


class WireReader:
    """A place in bytes. Every method raises Unreadable where they end too early."""

    __slots__ = ("_at", "_data", "_items")

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._items = data, 0, 0

    @property
    def left(self) -> int:
        """Return how many bytes follow."""
        return len(self._data) - self._at

    def claim(self, items: int) -> None:
        """Take note of ``items`` that are said to follow; they may have no bytes, so there is a bound."""
        self._items += items
        if self._items > len(self._data) + MOST_EMPTY:
            raise WireUnreadable(f"{items} items are claimed, and {self.left} bytes follow")

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        if not 0 <= size <= self.left:
            raise WireUnreadable(f"{size} bytes were expected, and {self.left} follow")
        self._at += size
        return self._data[self._at - size : self._at]

    def unsigned(self) -> int:
        """Return an integer of seven bits a byte."""
        value = shift = 0
        for _ in range(LONGEST_NUMBER):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise WireUnreadable("an integer has more than ten bytes")

    def zigzag(self) -> int:
        """Return an integer whose sign is its lowest bit."""
        value = self.unsigned()
        return value >> 1 ^ -(value & 1)

    def number(self, form: str) -> int | float:
        """Return a number of fixed size; ``form`` is struct's, little-endian."""
        found: int | float = struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]
        return found

    def text(self, size: int) -> str:
        """Return ``size`` bytes of UTF-8."""
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise WireUnreadable("a text is not UTF-8") from error
