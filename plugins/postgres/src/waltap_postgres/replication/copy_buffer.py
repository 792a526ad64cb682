"""The answer to a COPY … TO STDOUT in text format, its rows left where they were received. Sans-IO.

A server sends a message per row. To take the rows out of their messages one by one costs as much as all
else that is done to receive them. But every row ends with a newline, and no other newline is in it: so
where messages begin is looked for in a buffer at a time, and proven by their lengths. Their headers then
become a column of their own, which whoever splits the rows leaves out.

Source: PostgreSQL manual, "Message Formats" and "COPY", "Text Format".
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from waltap_postgres.replication.wire import COPY_DATA, CopySplitter

if TYPE_CHECKING:
    import numpy as np

__all__ = ["BUFFER_BYTES", "HEAD", "SMALL_BUFFER_BYTES", "CopyBuffer", "HeadedRows"]

BUFFER_BYTES: Final = 1 << 20
SMALL_BUFFER_BYTES: Final = 1 << 18
"""That of one of several connections: what each has on its way is several times as much."""
HEAD: Final = b"....\t"
"""What stands before each row in place of its message's header: a column of text."""

_LEAST_MESSAGE: Final = 6
"""A row that is a newline."""
_READY: Final = b"Z\0\0\0\5"
"""How ReadyForQuery begins. No row has a zero byte, and no header has such a length."""


class HeadedRows:
    """Rows in a buffer that is used again: they are there until the next ones are asked for.

    ``buffer`` begins with them, one after the other, `HEAD` before each; ``bounds`` is where each begins,
    and where the last ends.
    """

    __slots__ = ("bounds", "buffer")

    def __init__(self, buffer: bytearray, bounds: "np.ndarray[Any, Any]") -> None:
        self.buffer, self.bounds = buffer, bounds

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def size(self) -> int:
        """Return how many bytes of the buffer they take."""
        return int(self.bounds[-1])

    def has(self, text: bytes) -> bool:
        """Tell whether ``text`` occurs in them."""
        return self.buffer.find(text, 0, self.size) >= 0

    def plain(self) -> bytes:
        """Return the rows without heads."""
        at, buffer = self.bounds.tolist(), self.buffer
        return b"".join([buffer[a + len(HEAD) : b] for a, b in pairwise(at)])


class CopyBuffer:
    """Takes what was received, and gives rows by the buffer: `HeadedRows`, or bytes where they came
    through a `CopySplitter`: that gets what is no row, a row that no buffer holds, and a short answer.

    Whoever receives fills `room`, says how much it was (`took`), and asks for `rows`.
    """

    def __init__(self, size: int = BUFFER_BYTES) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._have = 0
        self._splitter = CopySplitter()
        self._filled = False

    def room(self) -> memoryview:
        """Return where the next bytes are to be put."""
        return self._view[self._have :]

    def took(self, count: int) -> None:
        """Note that ``count`` bytes were put there."""
        self._have += count

    @property
    def done(self) -> bool:
        """Tell whether the command is over."""
        return self._splitter.done

    def rows(self) -> Iterator[HeadedRows | bytes]:
        """Yield the rows that are complete, when the buffer is full or the answer over; else nothing.

        Raises: CopyEnded, DecodeError, as `CopySplitter`.
        """
        ends = self._buffer.startswith(_READY, max(0, self._have - 6)) and self._have >= 6
        full = self._have == len(self._buffer)
        if not (ends or full or self._splitter.missing):
            return
        if not self._filled and not full:
            yield from self._split(self._have)
            return
        self._filled = True
        while self._have:
            if missing := self._splitter.missing:
                yield from self._split(min(missing, self._have))
                continue
            found = self._found()
            if found is not None:
                yield found
                self._keep(found.size)
                continue
            whole = self._message()
            if whole is None and self._have < len(self._buffer) and not ends:
                return
            yield from self._split(self._have if whole is None else whole)

    def _message(self) -> int | None:
        """Return how long the first message is; None: it is not there to its end."""
        if self._have < 5:
            return None
        size = 1 + int.from_bytes(self._buffer[1:5], "big")
        return size if size <= self._have else None

    def _split(self, size: int) -> Iterator[bytes]:
        """Yield what the splitter finds in the first ``size`` bytes."""
        data = bytes(self._view[:size])
        self._keep(size)
        payloads = self._splitter.split(data)
        if payloads:
            yield b"".join(payloads)

    def _keep(self, after: int) -> None:
        """Let go of the first ``after`` bytes."""
        rest = self._have - after
        self._view[:rest] = bytes(self._view[after : self._have])
        self._have = rest

    def _found(self) -> HeadedRows | None:
        """Return the rows that the buffer begins with; None where that is something else."""
        import numpy as np

        data = np.frombuffer(self._buffer, "u1", self._have)
        behind = np.flatnonzero(data == ord("\n")) + 1
        bounds = np.concatenate(([0], behind))
        # a newline within a header: no message is so short that another begins there
        bounds = bounds[np.concatenate(([True], np.diff(bounds) >= _LEAST_MESSAGE))]
        at, after = bounds[:-1], bounds[1:]
        length = data[at + 1].astype("i8")
        for place in range(2, 5):
            length = length << 8 | data[at + place]
        wrong = (data[at] != COPY_DATA) | (at + 1 + length != after)
        count = int(wrong.argmax()) if wrong.any() else len(at)
        if not count:
            return None
        bounds = bounds[: count + 1]
        for place, byte in enumerate(HEAD):
            data[bounds[:-1] + place] = byte
        return HeadedRows(self._buffer, bounds)
