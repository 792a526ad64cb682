"""Split the server's messages during COPY, without a socket.

libpq returns one CopyData message per call, at 2 µs each. A walsender sends one message per row. So
without TLS waltap reads the socket itself, in pieces of up to a megabyte, and finds the messages
here, all of a piece at once. Many frames stay where they are, as a `FrameBlock`.

Source: PostgreSQL manual, "Message Formats" and "Streaming Replication Protocol".
"""

from collections.abc import Callable, Sequence
from struct import Struct

from waltap.base.import_rules import np
from waltap.changes.decode.decoder import Frame
from waltap.changes.decode.frame_block import SPARE, FrameBlock
from waltap.changes.decode.row_block import has_columns
from waltap.errors import DecodeError

HEADER = Struct("!cI").unpack_from
XLOG_HEADER = Struct("!BIB").unpack_from
XLOG_PLACE = Struct("!xIxQ").unpack_from
# The end of WAL, and whether the server wants an answer; the server's clock is between them.
KEEPALIVE = Struct("!Q8xB").unpack_from
STATUS = Struct("!cIcQQQqB").pack

COPY_DATA, XLOG_DATA, PRIMARY_KEEPALIVE = ord("d"), ord("w"), ord("k")
# The headers of CopyData and of XLogData.
XLOG_PAYLOAD = 5 + 25
# The server cannot build a larger message: its StringInfo ends at 1 GB.
MAX_MESSAGE_BYTES = (1 << 30) + (1 << 16)

# From this size on a message is collected in one buffer of its own size.
LARGE_BYTES = 1 << 21

# So many frames of one buffer become a `FrameBlock`.
TOGETHER = 256

# So many bytes of a buffer are looked at together.
SCANNED_BYTES = 1 << 16


class CopyEnded(Exception):
    """Report that the server ended COPY, regularly or by the body of an ErrorResponse."""

    def __init__(self, error: bytes = b"") -> None:
        super().__init__("copy ended")
        parts = error.rstrip(b"\0").split(b"\0")
        # Letter → field of the error, none for a regular end.
        self.fields = {chr(p[0]): p[1:].decode("utf-8", "replace") for p in parts if p}


class _PartialMessage:
    """Join received data with an incomplete message, once per message."""

    __slots__ = ("_chunks", "_have", "_large", "_large_bytes", "_need")

    def __init__(self, large_bytes: int) -> None:
        self._large_bytes = large_bytes
        self._chunks: list[bytes] = []
        # A large message is collected in one buffer of its size. Its chunks, kept until the last
        # one, would need that memory twice, and memory that the allocator keeps a third time.
        self._large: bytearray | None = None
        self._have = self._need = 0

    def add(self, data: bytes) -> bytes | None:
        """Return the data to split, None while its message is incomplete.

        `take_large` returns a large message; then this returns only the data after it.
        """
        if self._large is not None:
            return self._add_large(self._large, data)
        if not self._chunks:
            return data
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:
            return None
        message = b"".join(self._chunks)
        self._chunks.clear()
        return message

    def _add_large(self, large: bytearray, data: bytes) -> bytes | None:
        had, self._have = self._have, min(self._have + len(data), self._need)
        large[had : self._have] = (
            data if self._have - had == len(data) else data[: self._have - had]
        )
        return data[self._have - had :] if self._have == self._need else None

    @property
    def missing(self) -> int:
        """Return the known missing bytes of a kept message, 0 for none."""
        return self._need - self._have if self._chunks or self._large is not None else 0

    def take_large(self) -> bytearray | None:
        """Return the large message that `add` has just completed.

        It includes its header; None without such a message.
        """
        large, self._large = self._large, None
        return large

    def keep(self, rest: bytes) -> None:
        if not rest:
            return
        # The length is unknown before the header is complete.
        self._have, self._need = len(rest), 5
        if len(rest) >= 5:
            size = HEADER(rest, 0)[1]
            if not 4 <= size <= MAX_MESSAGE_BYTES:
                raise DecodeError(
                    "replication protocol",
                    offset=1,
                    expected="a message length of 4 bytes to 1 GB",
                    found=str(size),
                    payload=rest,
                )
            self._need = 1 + size
            if size >= self._large_bytes:
                self._large = bytearray(self._need)
                self._large[: self._have] = rest
                return
        self._chunks = [rest]


class ReplicationSplitter:
    """Split a START_REPLICATION stream into frames and keepalives."""

    def __init__(self, *, large_bytes: int = LARGE_BYTES, together: int = TOGETHER) -> None:
        self._together = together
        # End of WAL in the last keepalive: the server has sent all our changes before it.
        self.wal_end = 0
        # Set when the server wants an answer now; the sender of the answer clears it.
        self.reply_requested = False
        self.started = False
        self._pieces = _PartialMessage(large_bytes)

    def split(self, data: bytes) -> Sequence[Frame]:
        """Return the frames that ``data`` completes.

        Raises: CopyEnded; DecodeError for bytes that are no such stream.
        """
        buffer = self._pieces.add(data)
        frames: list[Frame] = []
        if buffer is None:
            return frames
        large = self._pieces.take_large()
        if large is not None:
            if large[0] == COPY_DATA and large[5] == XLOG_DATA:
                lsn = int.from_bytes(large[6:14], "big")
                frames.append((lsn, bytes(memoryview(large)[XLOG_PAYLOAD:])))
            else:
                self._control(bytes(large[:1]), bytes(memoryview(large)[5:]), frames)
            # Release its memory before the rest is split.
            del large
        starts: list[int] = []
        append, size_all, at = starts.append, len(buffer), 0
        chain = self._chain(buffer)
        # The fast path: nearly all messages are XLogData.
        while at + XLOG_PAYLOAD <= size_all:
            if chain is not None:
                at = chain.follow(at, starts)
                if at + XLOG_PAYLOAD > size_all:
                    break
            tag, size, kind = XLOG_HEADER(buffer, at)
            end = at + 1 + size
            if end > size_all:
                break
            # The size covers its own field, the whole header of XLogData and a payload.
            if tag == COPY_DATA and kind == XLOG_DATA and size >= XLOG_PAYLOAD:
                append(at)
            else:
                self._control(buffer[at : at + 1], buffer[at + 5 : end], frames)
            at = end
        while at + 5 <= size_all:
            letter, size = HEADER(buffer, at)
            end = at + 1 + size
            if end > size_all:
                break
            self._control(letter, buffer[at + 5 : end], frames)
            at = end
        self._pieces.keep(buffer[at:])
        if not frames and len(starts) >= self._together and has_columns():
            return _block(buffer, starts)
        for start in starts:
            size, lsn = XLOG_PLACE(buffer, start)
            frames.append((lsn, buffer[start + XLOG_PAYLOAD : start + 1 + size]))
        return frames

    def _chain(self, buffer: bytes) -> "_MessageChain | None":
        """Return the offsets of many XLogData, else None."""
        if len(buffer) < self._together * XLOG_PAYLOAD or not has_columns():
            return None
        # The first message describes the others.
        if HEADER(buffer, 0)[1] * self._together > len(buffer):
            return None
        return _MessageChain(buffer)

    def data(self, payload: bytes, frames: list[Frame]) -> None:
        """Process one CopyData payload, as libpq returns it. Raises: DecodeError."""
        kind = payload[0] if payload else -1
        if kind == XLOG_DATA and len(payload) > 25:
            frames.append((int.from_bytes(payload[1:9], "big"), payload[25:]))
        elif kind == PRIMARY_KEEPALIVE and len(payload) == 18 and payload[17] <= 1:
            self.wal_end, reply = KEEPALIVE(payload, 1)
            self.reply_requested = self.reply_requested or bool(reply)
        else:
            raise DecodeError(
                "replication protocol",
                expected="XLogData (w, over 25 bytes) or a keepalive (k, 18 bytes)",
                found=f"{kind:#04x} with {len(payload)} bytes" if payload else "nothing",
                payload=payload,
            )

    def _control(self, letter: bytes, body: bytes, frames: list[Frame]) -> None:
        if letter == b"d":
            self.data(body, frames)
        elif letter == b"W":
            self.started = True
        elif letter == b"E":
            raise CopyEnded(body)
        elif letter in b"cCZ":
            raise CopyEnded
        elif letter not in b"NSA":
            raise DecodeError(
                "replication protocol",
                expected="a message of COPY BOTH mode",
                found=repr(letter),
                payload=body,
            )


class _MessageChain:
    """Follow the lengths of neighbouring XLogData messages in a buffer.

    Wherever the bytes look like such a message, the offset and the end that its length gives are
    known at once. Where each end is the next offset, no message needs a step of its own.
    """

    __slots__ = ("_apart", "_ends", "_offsets")

    def __init__(self, buffer: bytes) -> None:
        data, none = np.frombuffer(buffer, "u1"), np.empty(0, "i8")
        kinds, found = data[5 : 6 - XLOG_PAYLOAD], []
        # Small pieces: the system would make and take back a large array's memory each time.
        for start in range(0, len(kinds), SCANNED_BYTES):
            offsets = (kinds[start : start + SCANNED_BYTES] == XLOG_DATA).nonzero()[0] + start
            found.append(offsets[data[offsets] == COPY_DATA])
        offsets = np.concatenate(found)
        sizes = FrameBlock(buffer, none, none, none).numbers(offsets + 1, ">u4").astype("i8")
        ends = offsets + 1 + sizes
        sound = (sizes >= XLOG_PAYLOAD) & (ends <= len(buffer))
        self._offsets, self._ends = offsets[sound], ends[sound]
        self._apart = np.flatnonzero(self._ends[:-1] != self._offsets[1:])

    def follow(self, at: int, starts: list[int]) -> int:
        """Add the starts of the messages from ``at`` on; return their end."""
        offsets, ends, apart = self._offsets, self._ends, self._apart
        while True:
            first = int(offsets.searchsorted(at))
            if first == len(offsets) or offsets[first] != at:
                return at
            # Up to here each end is the next offset; another offset inside a message is text.
            step = int(apart.searchsorted(first))
            last = int(apart[step]) if step < len(apart) else len(offsets) - 1
            starts += offsets[first : last + 1].tolist()
            at = int(ends[last])


def _block(buffer: bytes, starts: list[int]) -> FrameBlock:
    """Return the frames of the XLogData messages at ``starts``."""
    at, none = np.array(starts), np.empty(0, "i8")
    offsets = FrameBlock(buffer, none, none, none)
    ends = at + 1 + offsets.numbers(at + 1, ">i4")
    # Behind the last message there is mostly a part of the next one.
    data = buffer if len(buffer) - int(ends[-1]) >= len(SPARE) else buffer + SPARE
    return FrameBlock(data, at + XLOG_PAYLOAD, ends, offsets.numbers(at + 6, ">u8"))


class CopySplitter:
    """Split the answer to a COPY … TO STDOUT into its data."""

    def __init__(self, *, large_bytes: int = LARGE_BYTES) -> None:
        self._pieces = _PartialMessage(large_bytes)
        self._error: bytes | None = None
        self.done = False

    @property
    def missing(self) -> int:
        """Return the known missing bytes of a message that has begun.

        0 means that none has begun.
        """
        return self._pieces.missing

    def split(self, data: bytes) -> list[bytes]:
        """Return the CopyData payloads that ``data`` completes.

        Sets ``done`` when the command is over. Raises: CopyEnded with the server's error.
        """
        buffer = self._pieces.add(data)
        payloads: list[bytes] = []
        if buffer is None:
            return payloads
        large = self._pieces.take_large()
        if large is not None:
            if large[0] == COPY_DATA:
                payloads.append(bytes(memoryview(large)[5:]))
            else:
                buffer = bytes(large) + buffer
            del large
        append: Callable[[bytes], None] = payloads.append
        size_all, at = len(buffer), 0
        while at + 5 <= size_all:
            letter, size = HEADER(buffer, at)
            end = at + 1 + size
            if end > size_all:
                break
            if letter == b"d":
                append(buffer[at + 5 : end])
            elif letter == b"E":
                # ReadyForQuery follows; only then is the connection usable again.
                self._error = buffer[at + 5 : end]
            elif letter == b"Z":
                self.done = True
                if self._error is not None:
                    raise CopyEnded(self._error)
            elif letter not in b"HcCNSA":
                raise DecodeError(
                    "copy protocol",
                    offset=at,
                    expected="a message of COPY OUT mode",
                    found=repr(letter),
                    payload=buffer[at:end],
                )
            at = end
        self._pieces.keep(buffer[at:])
        return payloads


def status_update(written: int, flushed: int, clock: int, *, reply: bool) -> bytes:
    """Return a standby status update as a CopyData message.

    ``clock`` is in µs since 2000-01-01 UTC. ``flushed`` advances a logical slot, and is sent as the
    applied position too.
    """
    return STATUS(b"d", 38, b"r", written, flushed, flushed, clock, int(reply))
