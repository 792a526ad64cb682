"""A checked cursor over one pgoutput message."""

from typing import Never

from waltap.errors import DecodeError

# 2000-01-01 UTC in microseconds since 1970: the zero of the wire's times.
PG_EPOCH_US = 946_684_800_000_000


class PayloadReader:
    """Read fields in order from ``data``.

    Every fault is a DecodeError at its byte offset.
    """

    __slots__ = ("at", "data", "decoder", "lsn", "what")

    def __init__(self, decoder: str, lsn: int, data: bytes, what: str) -> None:
        self.decoder, self.lsn, self.data, self.what, self.at = decoder, lsn, data, what, 1

    def fail(self, expected: str, found: str, offset: int | None = None) -> Never:
        """Raise the DecodeError for the field at ``offset``.

        The default is the cursor's offset.
        """
        raise DecodeError(
            self.decoder,
            lsn=self.lsn,
            offset=self.at if offset is None else offset,
            expected=f"{self.what}: {expected}",
            found=found,
            payload=self.data,
        )

    def number(self, size: int, name: str) -> int:
        """Read an unsigned big-endian integer of ``size`` bytes."""
        data = self.data
        remaining = len(data) - self.at
        if remaining < size:
            self.fail(f"{name} in {size} bytes", f"{remaining} left")
        start = self.at
        self.at = start + size
        return int.from_bytes(data[start : self.at], "big")

    def time(self, name: str) -> int:
        """Read a time as microseconds since 1970 UTC."""
        value = self.number(8, name)
        return (value - (1 << 64) if value >> 63 else value) + PG_EPOCH_US

    def no_flags(self) -> None:
        """Read a reserved flags byte, which must be 0."""
        value = self.number(1, "flags")
        if value:
            self.fail("flags 0", str(value), self.at - 1)

    def string(self, name: str) -> str:
        """Read a NUL-terminated UTF-8 string."""
        data, start = self.data, self.at
        end = data.find(0, start)
        if end < 0:
            self.fail(f"{name} ended by NUL", "no NUL up to the end")
        self.at = end + 1
        return self.text(start, end, name)

    def text(self, start: int, end: int, name: str) -> str:
        try:
            # A memoryview saves one copy of the value.
            return str(memoryview(self.data)[start:end], "utf-8")
        except UnicodeDecodeError as cause:
            offset = start + cause.start
            self.fail(f"{name} in UTF-8", f"byte 0x{self.data[offset]:02x}", offset)

    def end(self) -> None:
        """Check that no bytes are left."""
        remaining = len(self.data) - self.at
        if remaining:
            self.fail("the end of the message", f"{remaining} more bytes")
