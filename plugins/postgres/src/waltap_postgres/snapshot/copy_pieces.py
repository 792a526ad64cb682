"""Rows of one query by COPY, in pieces."""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from waltap.decode.tuple_image import Tuple
from waltap.transactions.row_block import RowBlock
from waltap_postgres.connection import PostgresSession
from waltap_postgres.replication.copy_buffer import (
    BUFFER_BYTES,
    HEAD,
    SMALL_BUFFER_BYTES,
    HeadedRows,
)
from waltap_postgres.replication.transport import copy_out, copy_out_in_place
from waltap_postgres.snapshot.copy_block import copy_block, reads_blocks
from waltap_postgres.snapshot.copy_text import copy_rows

__all__ = [
    "AHEAD_BYTES",
    "BLOCK_ROWS",
    "PIECE_BYTES",
    "ahead",
    "copy_pieces",
    "pieces_of",
    "reordered",
]


# Read the next pieces in a thread while the caller delivers one.

# Bytes that wait or are with the caller while the thread makes more.
AHEAD_BYTES: Final = 2 << 20

T = TypeVar("T")


def ahead(make: Callable[[], Iterator[tuple[T, int]]], abandon: Callable[[], None]) -> Iterator[T]:
    """Yield the items of the iterator that ``make`` returns.

    The iterator runs in a thread and adds each item's size in bytes. The thread continues while at
    most `AHEAD_BYTES` wait or are with the caller, so that there are never two large pieces. Its
    error is raised here after its items. An early stop calls ``abandon``, which ends the thread's
    wait.
    """
    made = _ReadAheadQueue[T]()
    thread = threading.Thread(target=made.fill, args=(make,), name="waltap-snapshot", daemon=True)
    thread.start()
    try:
        yield from made.taken()
    finally:
        if made.leave():
            abandon()
        thread.join()


class _ReadAheadQueue(Generic[T]):
    """Pass items between the two threads."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[T, int]] = deque()
        self._changed = threading.Condition()
        self._size = 0
        self._ended = self._left = False
        self._error: BaseException | None = None

    def fill(self, make: Callable[[], Iterator[tuple[T, int]]]) -> None:
        """Run the iterator to its end, or until the caller stops."""
        error: BaseException | None = None
        try:
            for piece, size in make():
                if not self._add(piece, size):
                    break
        except BaseException as raised:  # noqa: BLE001 - raised again by `taken`
            error = raised
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def _add(self, piece: T, size: int) -> bool:
        """Add an item and wait for room; False after the caller's stop."""
        with self._changed:
            self._pieces.append((piece, size))
            self._size += size
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._left or self._size <= AHEAD_BYTES)
            return not self._left

    def taken(self) -> Iterator[T]:
        """Yield items as they arrive."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self._ended)
                if not self._pieces:
                    break
                piece, size = self._pieces.popleft()
            yield piece
            # Release its memory before the thread makes another.
            del piece
            with self._changed:
                self._size -= size
                self._changed.notify_all()
        if self._error is not None:
            raise self._error

    def leave(self) -> bool:
        """Stop the thread and return whether it was still running."""
        with self._changed:
            self._left = True
            self._pieces.clear()
            self._changed.notify_all()
            return not self._ended


# A piece ends after about so many bytes of COPY, even with few rows.
PIECE_BYTES: Final = 16 << 20

# From so many rows on a piece is a `RowBlock`: fewer are quicker as tuples, and need no pyarrow.
BLOCK_ROWS: Final = 1000

# Rows of a full buffer (`HeadedRows`) that are quicker as tuples.
FEW_ROWS: Final = 64

# A piece with BLOCK_ROWS ends after so many bytes of COPY. Its columns, values and lines need
# several times that memory, and twice as many rows are hardly quicker.
BLOCK_BYTES: Final = 512 << 10


def copy_pieces(
    session: PostgresSession, sql: str, width: int, most: int, *, reads_ahead: bool
) -> Iterator[Sequence[Tuple]]:
    """Yield the rows of the SELECT ``sql`` in pieces.

    A piece has at most ``most`` rows of ``width`` columns: a list of tuples, or a `RowBlock` if it
    is large. With ``reads_ahead`` a thread receives and splits rows while the caller works;
    meanwhile only that thread may use the session. After an early stop the connection is unusable.
    Raises: SourceError, ConnectionLost, StopRequested, DecodeError.
    """
    size = BUFFER_BYTES if reads_ahead else SMALL_BUFFER_BYTES

    def make() -> Iterator[tuple[Sequence[Tuple], int]]:
        copy = f"COPY ({sql}) TO STDOUT"
        if not reads_blocks():
            return pieces_of(copy_out(session, copy), width, most)
        return pieces_of(copy_out_in_place(session, copy, size), width, most)

    def abandon() -> None:
        with suppress(OSError), socket.socket(fileno=socket.dup(session.pgconn.socket)) as other:
            other.shutdown(socket.SHUT_RDWR)

    return ahead(make, abandon) if reads_ahead else (piece for piece, _ in make())


def pieces_of(
    portions: Iterator[HeadedRows | bytes], width: int, most: int
) -> Iterator[tuple[Sequence[Tuple], int]]:
    """Yield pieces and their sizes from the ``portions`` of a COPY.

    A portion may end anywhere. Raises: DecodeError, as `copy_rows`.
    """
    held: list[bytes] = []
    rows = size = offset = 0
    for portion in filter(len, portions):
        if isinstance(portion, HeadedRows):
            if held:
                yield from _pieces(held, width, most, rows, offset)
                offset, held, rows, size = offset + size, [], 0, 0
            yield from _headed_pieces(portion, width, most, offset)
            offset += portion.size - len(HEAD) * len(portion)
            continue
        rows, size = rows + portion.count(b"\n"), size + len(portion)
        held.append(portion)
        enough = BLOCK_BYTES if rows >= BLOCK_ROWS else PIECE_BYTES
        if rows >= most or (rows and size >= enough):
            whole = rows // most * most or rows
            rest = _cut(held, rows - whole)
            yield from _pieces(held, width, most, whole, offset)
            offset += size - len(rest)
            held, rows, size = [rest] if rest else [], rows - whole, len(rest)
    if held:
        yield from _pieces(held, width, most, rows, offset)


def _headed_pieces(
    found: HeadedRows, width: int, most: int, offset: int
) -> Iterator[tuple[Sequence[Tuple], int]]:
    """Yield a full buffer's rows: columns, or tuples if few."""
    rows: Sequence[Tuple] | None = None
    if len(found) >= FEW_ROWS <= most:
        rows = copy_block(found, width, len(found))
    if rows is None:
        rows = [row for some in copy_rows([found.plain()], width, offset) for row in some]
    yield from _sliced(rows, most, found.size)


def _sliced(rows: Sequence[Tuple], most: int, size: int) -> Iterator[tuple[Sequence[Tuple], int]]:
    if len(rows) <= most:
        yield rows, size
        return
    for start in range(0, len(rows), most):
        part = rows[start : start + most]
        yield part, size * len(part) // len(rows)


def _cut(held: list[bytes], rows: int) -> bytes:
    """Remove the last ``rows`` rows from ``held`` and return them.

    The start of an incomplete row after them is included.
    """
    data = b"".join(held) if len(held) > 1 else held[0]
    end = len(data)
    for _ in range(rows + 1):
        end = data.rfind(b"\n", 0, end)
    held[:] = [data[: end + 1]]
    return data[end + 1 :]


def _pieces(
    held: list[bytes], width: int, most: int, count: int, offset: int
) -> Iterator[tuple[Sequence[Tuple], int]]:
    data = held[0] if len(held) == 1 else b"".join(held)
    held.clear()
    size = len(data)
    rows: Sequence[Tuple] | None = None
    if count >= BLOCK_ROWS <= most and reads_blocks():
        rows = copy_block(data, width, count)
    if rows is None:
        rows = [row for some in copy_rows([data], width, offset) for row in some]
    del data
    yield from _sliced(rows, most, size)


def reordered(rows: Sequence[Tuple], places: Sequence[int | None]) -> Sequence[Tuple]:
    """Return ``rows`` with the columns of ``places``.

    A value is None where the place is None.
    """
    if isinstance(rows, RowBlock) and None not in places:
        return rows.chosen([place for place in places if place is not None])
    return [tuple(None if place is None else row[place] for place in places) for row in rows]
