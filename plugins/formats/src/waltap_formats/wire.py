"""Sequential reading of bytes, for Avro and Protobuf."""

import struct
from typing import Final

__all__ = ["WireReader", "WireUnreadable"]

# Ten bytes of seven bits hold 64 bits.
LONGEST_NUMBER: Final = 10
# Limit of items without bytes in one value.
MOST_EMPTY: Final = 100_000


class WireUnreadable(ValueError):
    """Refuse bytes that do not fit their schema.

    An unreadable schema has the same error.
    """


class WireReader:
    """Read bytes in order.

    Every method raises WireUnreadable where the bytes end too early.
    """

    __slots__ = ("_at", "_data", "_items")

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._items = data, 0, 0

    @property
    def left(self) -> int:
        """Return the number of bytes left."""
        return len(self._data) - self._at

    def claim(self, items: int) -> None:
        """Check a number of announced items."""
        # Items may have no bytes, so the bytes left do not bound their number.
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
        """Read an integer of seven bits per byte."""
        value = shift = 0
        for _ in range(LONGEST_NUMBER):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise WireUnreadable("an integer has more than ten bytes")

    def zigzag(self) -> int:
        """Read an integer whose lowest bit is its sign."""
        value = self.unsigned()
        return value >> 1 ^ -(value & 1)

    def number(self, form: str) -> int | float:
        """Read a number of fixed size.

        ``form`` is struct's, little-endian.
        """
        found: int | float = struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]
        return found

    def text(self, size: int) -> str:
        """Read ``size`` bytes of UTF-8."""
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise WireUnreadable("a text is not UTF-8") from error
