"""Receive a COPY … TO STDOUT without copying each row.

A server sends one message per row. To copy each row out of its message costs as much as the rest of
the receiving. So this module finds all rows of a buffer at once, and proves by the messages' lengths
that they are rows. In text format a row ends with a newline and contains no other; each message's
header becomes an extra column of its row, which the splitter of rows drops. `binary_copy` finds the
rows of the binary format. It does no I/O.

Source: PostgreSQL manual, "Message Formats" and "COPY", "Text Format".
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from waltap.base.import_rules import np
from waltap_postgres.replication.wire import COPY_DATA, CopySplitter

if TYPE_CHECKING:
    BoundsOf = Callable[["np.ndarray[Any, Any]"], "np.ndarray[Any, Any] | None"]


BUFFER_BYTES: Final = 1 << 20
# Rendering text takes longest: a call for twice as many rows costs less than two.
TEXT_BUFFER_BYTES: Final = 2 << 20
# Of several connections together: the data that each has in flight is several times as large.
SHARED_BUFFER_BYTES: Final = 4 << 20
LEAST_BUFFER_BYTES: Final = 1 << 19
# Replaces the five bytes of a message's header before each row: a column of text.
HEAD: Final = b"....\t"

# A message whose row is only a newline.
_LEAST_MESSAGE: Final = 6
# The start of ReadyForQuery. No row has a zero byte, and no header has such a length.
_READY: Final = b"Z\0\0\0\5"


class HeadedRows:
    """Hold rows in a reused buffer, each behind a header.

    The rows are valid until the caller asks for the next ones.
    """

    __slots__ = ("bounds", "buffer")

    def __init__(self, buffer: bytearray, bounds: "np.ndarray[Any, Any]") -> None:
        # ``bounds`` has the start of each row in ``buffer``, and the end of the last row.
        self.buffer, self.bounds = buffer, bounds

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def size(self) -> int:
        """Return the number of bytes that the rows occupy."""
        return int(self.bounds[-1])

    def has(self, text: bytes) -> bool:
        return self.buffer.find(text, 0, self.size) >= 0

    def plain(self) -> bytes:
        """Return the rows without their heads."""
        at, buffer = self.bounds.tolist(), self.buffer
        return b"".join([buffer[a + len(HEAD) : b] for a, b in pairwise(at)])


class CopyBuffer:
    """Find the rows of received bytes, one buffer at a time.

    The receiver fills `room`, reports the count with `filled_by`, and asks for `rows`. Rows are
    `HeadedRows`, or bytes if they went through a `CopySplitter`. The splitter gets messages that
    are no row, rows larger than the buffer, and short answers. ``bounds_of`` returns the bounds of the
    rows at the start of the received bytes (`HeadedRows.bounds`), None without any.
    """

    def __init__(self, size: int = BUFFER_BYTES, bounds_of: "BoundsOf | None" = None) -> None:
        self._buffer, self._bounds_of = bytearray(size), bounds_of or text_bounds
        self._view = memoryview(self._buffer)
        self._have = 0
        self._splitter = CopySplitter()
        self._filled = False

    def room(self) -> memoryview:
        """Return the free part of the buffer."""
        return self._view[self._have :]

    def filled_by(self, count: int) -> None:
        """Count ``count`` bytes that the receiver wrote to `room`."""
        self._have += count

    @property
    def done(self) -> bool:
        """Return whether the command is over."""
        return self._splitter.done

    def rows(self) -> Iterator[HeadedRows | bytes]:
        """Yield the complete rows of a full buffer.

        Yields nothing before the buffer is full or the answer is over. Raises: CopyEnded,
        DecodeError, as `CopySplitter`.
        """
        # ReadyForQuery has six bytes and is the last message of an answer.
        ends = self._buffer.startswith(_READY, max(0, self._have - 6)) and self._have >= 6
        full = self._have == len(self._buffer)
        if not (ends or full or self._splitter.missing):
            return
        # The splitter gets an answer that is shorter than the buffer.
        if not self._filled and not full:
            yield from self._split(self._have)
            return
        self._filled = True
        while self._have:
            if missing := self._splitter.missing:
                yield from self._split(min(missing, self._have))
                continue
            bounds = self._bounds_of(np.frombuffer(self._buffer, "u1", self._have))
            if bounds is not None:
                found = HeadedRows(self._buffer, bounds)
                yield found
                self._keep(found.size)
                continue
            # The buffer begins with a message that is no row, or with a part of one.
            end = self._message()
            if end is None and self._have < len(self._buffer) and not ends:
                return
            yield from self._split(self._have if end is None else end)

    def _message(self) -> int | None:
        """Return the first message's length, None if it is incomplete."""
        if self._have < 5:
            return None
        size = 1 + int.from_bytes(self._buffer[1:5], "big")
        return size if size <= self._have else None

    def _split(self, size: int) -> Iterator[bytes]:
        """Yield the splitter's rows of the first ``size`` bytes."""
        data = bytes(self._view[:size])
        self._keep(size)
        payloads = self._splitter.split(data)
        if payloads:
            yield b"".join(payloads)

    def _keep(self, after: int) -> None:
        """Remove the first ``after`` bytes and move the rest."""
        rest = self._have - after
        self._view[:rest] = bytes(self._view[after : self._have])
        self._have = rest


def text_bounds(data: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any] | None":
    """Return the bounds of leading rows of text.

    It replaces their heads. Returns None without any.
    """
    behind = np.flatnonzero(data == ord("\n")) + 1
    bounds = np.concatenate(([0], behind))
    # A newline byte may be part of a header: no message is so short that one begins there.
    bounds = bounds[np.concatenate(([True], np.diff(bounds) >= _LEAST_MESSAGE))]
    at, after = bounds[:-1], bounds[1:]
    # A message that is no row, or whose length contradicts the newline, ends the rows.
    wrong = (data[at] != COPY_DATA) | (at + 1 + message_sizes(data, at) != after)
    count = int(wrong.argmax()) if wrong.any() else len(at)
    if not count:
        return None
    bounds = bounds[: count + 1]
    for offset, byte in enumerate(HEAD):
        data[bounds[:-1] + offset] = byte
    return bounds


def message_sizes(
    data: "np.ndarray[Any, Any]", at: "np.ndarray[Any, Any]"
) -> "np.ndarray[Any, Any]":
    """Return the lengths in the messages that begin at ``at``."""
    length: np.ndarray[Any, Any] = data[at + 1].astype("i8")
    for offset in range(2, 5):
        length = length << 8 | data[at + offset]
    return length
