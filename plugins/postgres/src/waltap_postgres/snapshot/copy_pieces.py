"""Rows of one query by COPY, in pieces."""

import functools
import re
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from waltap.base.import_rules import np, pa, pc, spare_pandas
from waltap.changes.decode.row_block import RowBlock, has_columns
from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import DecodeError
from waltap_postgres.connection import PostgresSession
from waltap_postgres.replication.copy_buffer import (
    BUFFER_BYTES,
    HEAD,
    LEAST_BUFFER_BYTES,
    SHARED_BUFFER_BYTES,
    TEXT_BUFFER_BYTES,
    CopyBuffer,
    HeadedRows,
)
from waltap_postgres.replication.transport import copy_out, encrypted
from waltap_postgres.snapshot.binary_copy import BinaryRows, FieldReader

# Conversion of COPY's text format to tuples.
#
# The server writes no raw newline or tab inside a value, so lines and fields split at C speed;
# only lines with a backslash need more work. This module does no I/O.
#
# Source: PostgreSQL manual, COPY, "Text Format".

ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}


def copy_rows(
    pieces: Iterable[HeadedRows | bytes], width: int, offset: int = 0
) -> Iterator[list[Tuple]]:
    """Yield lists of tuples from the pieces of a COPY TO STDOUT.

    A tuple has ``width`` values; a piece may end anywhere. Raises: DecodeError for a row of another
    width, bad UTF-8 or an unfinished last row. Its offset counts from the first byte of COPY's
    data; ``offset`` bytes of them came before.
    """
    rest, consumed = b"", offset
    for piece in pieces:
        data = piece.plain() if isinstance(piece, HeadedRows) else piece
        data = rest + data if rest else data
        cut = data.rfind(b"\n") + 1
        rest = data[cut:]
        if cut:
            yield _rows(data[:cut], width, consumed)
            consumed += cut
    if rest:
        raise _damaged(
            consumed, "a newline at the end of the last row", "the end of the data", rest
        )


def _rows(block: bytes, width: int, offset: int) -> list[Tuple]:
    try:
        text = block.decode()
    except UnicodeDecodeError as error:
        raise _damaged(
            offset + error.start, "UTF-8", "other bytes", block[error.start :]
        ) from error
    lines = text.split("\n")
    lines.pop()
    if width == 0:
        return [()] * len(lines)
    rows: list[Tuple]
    if "\\" in text:
        rows = [_unescaped(line) if "\\" in line else tuple(line.split("\t")) for line in lines]
    else:
        rows = [tuple(line.split("\t")) for line in lines]
    for number, row in enumerate(rows):
        if len(row) != width:
            start = sum(len(line.encode()) + 1 for line in lines[:number])
            found = f"{len(row)} in row {number} of this piece"
            raise _damaged(offset + start, f"{width} columns", found, lines[number].encode())
    return rows


def _unescaped(line: str) -> Tuple:
    return tuple(
        None if field == "\\N" else ESCAPE.sub(_escape, field) if "\\" in field else field
        for field in line.split("\t")
    )


def _escape(match: "re.Match[str]") -> str:
    code = match[1]
    if code in ESCAPES:
        return ESCAPES[code]
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return chr(int(code[1:], 16)) if code[0] == "x" and len(code) > 1 else code


def _damaged(offset: int, expected: str, found: str, payload: bytes) -> DecodeError:
    return DecodeError("copy", offset=offset, expected=expected, found=found, payload=payload[:64])


# Conversion of COPY's text format to columns.
#
# It reads the same bytes as `copy_rows`, for thousands of rows: pyarrow splits them at C speed,
# without the interpreter's lock. Data that its CSV reader would read differently from PostgreSQL,
# or refuses, is read row by row instead. This module does no I/O.

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
# Offsets of an Arrow string array end at 2 GiB, and so does pyarrow's block.
MOST_BYTES: Final = 1 << 30

# Escapes that COPY TO writes besides a doubled backslash.
COLUMN_ESCAPES: Final = {f"\\{letter}": meant for letter, meant in ESCAPES.items() if meant != "\\"}

# Replaces a doubled backslash while other escapes are replaced.
_STAND_IN: Final = "\x01"


def copy_block(rows: HeadedRows | bytes, width: int, count: int) -> RowBlock | None:
    """Return ``rows`` as a block of ``count`` rows and ``width`` columns.

    None means that `copy_rows` must read them, or report their damage.
    """
    headed = isinstance(rows, HeadedRows)
    data = memoryview(rows.buffer)[: rows.size] if isinstance(rows, HeadedRows) else rows
    if not width or len(data) > MOST_BYTES or data[-1:] != b"\n":
        return None
    if data[:3] == BYTE_ORDER_MARK or _occurs(b"\r", rows):
        return None
    try:
        table = _reader(width, headed)(pa.BufferReader(pa.py_buffer(data)), len(data))
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if table.num_rows != count:
        return None
    columns = [_array(column) for column in table.columns]
    if _occurs(b"\\", rows):
        for index, column in enumerate(columns):
            plain = _unescaped_column(column)
            if plain is None:
                return None
            columns[index] = plain
    return RowBlock(columns, count)


def _occurs(text: bytes, rows: HeadedRows | bytes) -> bool:
    return rows.has(text) if isinstance(rows, HeadedRows) else text in rows


@functools.cache
def _reader(width: int, headed: bool) -> "Callable[[pa.BufferReader, int], pa.Table]":
    from pyarrow import csv

    spare_pandas()
    names = [str(number) for number in range(width)]
    heads = ["head"] if headed else []
    # An empty line is a value of a single column; with more columns it is damage and skipped, so
    # that the count of rows differs.
    parse = csv.ParseOptions(
        delimiter="\t", quote_char=False, escape_char=False, ignore_empty_lines=width > 1
    )
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        include_columns=names,
        null_values=["\\N"],
        strings_can_be_null=True,
    )

    def read(source: "pa.BufferReader", size: int) -> "pa.Table":
        options = csv.ReadOptions(
            use_threads=False, block_size=size + 1, column_names=[*heads, *names]
        )
        return csv.read_csv(
            source, read_options=options, parse_options=parse, convert_options=convert
        )

    return read


def _array(column: "pa.ChunkedArray") -> "pa.Array":
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _has(column: "pa.Array", text: str) -> bool:
    """Return whether a new column has the character ``text``."""
    data = column.buffers()[2]
    return data is not None and bool((np.frombuffer(data, "u1") == ord(text)).any())


def _unescaped_column(column: "pa.Array") -> "pa.Array | None":
    """Return ``column`` without escapes, None if one is unknown."""
    if not _has(column, "\\"):
        return column
    if _has(column, _STAND_IN):
        return None
    replace: Any = pc.replace_substring
    # From left to right, so that a doubled backslash before an n is no newline.
    column = replace(column, "\\\\", _STAND_IN)
    if _has(column, "\\"):
        for escape, meant in COLUMN_ESCAPES.items():
            if pc.any(pc.match_substring(column, escape)).as_py():
                column = replace(column, escape, meant)
        if _has(column, "\\"):
            return None
    return replace(column, _STAND_IN, "\\")


T = TypeVar("T")


def ahead(
    make: Callable[[], Iterator[tuple[T, int]]], abandon: Callable[[], None], most: int
) -> Iterator[T]:
    """Yield the items of the iterator that ``make`` returns.

    The iterator runs in a thread and adds each item's size in bytes. The thread continues while at
    most ``most`` bytes wait or are with the caller, so that there are never two large pieces. Its
    error is raised here after its items. An early stop calls ``abandon``, which ends the thread's
    wait.
    """
    made = _ReadAheadQueue[T](most)
    thread = threading.Thread(target=made.fill, args=(make,), name="waltap-snapshot", daemon=True)
    thread.start()
    try:
        yield from made.items()
    finally:
        if made.leave():
            abandon()
        thread.join()


class _ReadAheadQueue(Generic[T]):
    """Pass items between the two threads."""

    def __init__(self, most: int) -> None:
        self._pieces: deque[tuple[T, int]] = deque()
        self._most = most
        self._changed = threading.Condition()
        self._size = 0
        self._ended = self._abandoned = False
        self._error: BaseException | None = None

    def fill(self, make: Callable[[], Iterator[tuple[T, int]]]) -> None:
        """Run the iterator to its end, or until the caller stops."""
        error: BaseException | None = None
        try:
            for piece, size in make():
                if not self._add(piece, size):
                    break
        except BaseException as raised:  # noqa: BLE001 - raised again by `items`
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
            self._changed.wait_for(lambda: self._abandoned or self._size <= self._most)
            return not self._abandoned

    def items(self) -> Iterator[T]:
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
            self._abandoned = True
            self._pieces.clear()
            self._changed.notify_all()
            return not self._ended


# A piece ends after about so many bytes of COPY, even with few rows.
PIECE_BYTES: Final = 16 << 20

# From so many rows on a piece is a `RowBlock`: fewer are quicker as tuples.
BLOCK_ROWS: Final = 1000

# The same where no pyarrow is loaded: loading it takes as long as so many rows save.
LOADING_ROWS: Final = 20_000

# Rows of a full buffer (`HeadedRows`) that are quicker as tuples.
FEW_ROWS: Final = 64

# A piece with BLOCK_ROWS ends after so many bytes of COPY. Its columns, values and lines need
# several times that memory, and twice as many rows are hardly quicker.
BLOCK_BYTES: Final = 512 << 10


def copy_pieces(
    session: PostgresSession,
    sql: str,
    width: int,
    most: int,
    *,
    connections: int,
    readers: Sequence[FieldReader] | None = None,
) -> Iterator[Sequence[Tuple]]:
    """Yield the rows of the SELECT ``sql`` in pieces.

    A piece has at most ``most`` rows of ``width`` columns: a list of tuples, or a `RowBlock` if it
    is large. With ``readers`` of the columns, blocks have typed values. ``connections`` read at the
    same time; a single one has a thread that receives and splits rows while the caller works, and
    meanwhile only that thread may use the session. After an early stop the connection is unusable.
    Raises: SourceError, ConnectionLost, StopRequested, DecodeError.
    """
    if encrypted(session):
        readers = None
    size = BUFFER_BYTES if readers else TEXT_BUFFER_BYTES
    size = min(size, max(LEAST_BUFFER_BYTES, SHARED_BUFFER_BYTES // connections))

    def make() -> Iterator[tuple[Sequence[Tuple], int]]:
        copy = f"COPY ({sql}) TO STDOUT"
        if readers is None or not has_columns():
            buffer = CopyBuffer(size) if has_columns() else None
            return pieces_of(copy_out(session, copy, buffer), width, most)
        rows = BinaryRows(readers)
        buffer = CopyBuffer(size, rows.bounds)
        return rows.pieces(copy_out(session, f"{copy} (FORMAT binary)", buffer), most)

    def abandon() -> None:
        with suppress(OSError), socket.socket(fileno=socket.dup(session.pgconn.socket)) as other:
            other.shutdown(socket.SHUT_RDWR)

    if connections == 1:
        return ahead(make, abandon, 2 * size)
    return (piece for piece, _ in make())


def pieces_of(
    portions: Iterator[HeadedRows | bytes], width: int, most: int
) -> Iterator[tuple[Sequence[Tuple], int]]:
    """Yield pieces and their sizes from the ``portions`` of a COPY.

    A portion may end anywhere. Raises: DecodeError, as `copy_rows`.
    """
    buffered: list[bytes] = []
    rows = size = offset = 0
    for portion in filter(len, portions):
        if isinstance(portion, HeadedRows):
            if buffered:
                yield from _pieces(buffered, width, most, rows, offset)
                offset, buffered, rows, size = offset + size, [], 0, 0
            yield from _headed_pieces(portion, width, most, offset)
            offset += portion.size - len(HEAD) * len(portion)
            continue
        rows, size = rows + portion.count(b"\n"), size + len(portion)
        buffered.append(portion)
        enough = BLOCK_BYTES if rows >= BLOCK_ROWS else PIECE_BYTES
        if rows >= most or (rows and size >= enough):
            complete = rows // most * most or rows
            rest = _cut(buffered, rows - complete)
            yield from _pieces(buffered, width, most, complete, offset)
            offset += size - len(rest)
            buffered, rows, size = [rest] if rest else [], rows - complete, len(rest)
    if buffered:
        yield from _pieces(buffered, width, most, rows, offset)


def _headed_pieces(
    found: HeadedRows, width: int, most: int, offset: int
) -> Iterator[tuple[Sequence[Tuple], int]]:
    """Yield a full buffer's rows: columns, or tuples if few."""
    rows: Sequence[Tuple] | None = None
    if len(found) >= FEW_ROWS <= most:
        rows = copy_block(found, width, len(found))
    if rows is None:
        rows = [row for some in copy_rows([found], width, offset) for row in some]
    yield from _sliced(rows, most, found.size)


def _sliced(rows: Sequence[Tuple], most: int, size: int) -> Iterator[tuple[Sequence[Tuple], int]]:
    if len(rows) <= most:
        yield rows, size
        return
    for start in range(0, len(rows), most):
        part = rows[start : start + most]
        yield part, size * len(part) // len(rows)


def _cut(buffered: list[bytes], rows: int) -> bytes:
    """Remove the last ``rows`` rows from ``buffered`` and return them.

    The start of an incomplete row after them is included.
    """
    data = b"".join(buffered) if len(buffered) > 1 else buffered[0]
    end = len(data)
    for _ in range(rows + 1):
        end = data.rfind(b"\n", 0, end)
    buffered[:] = [data[: end + 1]]
    return data[end + 1 :]


def _pieces(
    buffered: list[bytes], width: int, most: int, count: int, offset: int
) -> Iterator[tuple[Sequence[Tuple], int]]:
    data = buffered[0] if len(buffered) == 1 else b"".join(buffered)
    buffered.clear()
    size = len(data)
    rows: Sequence[Tuple] | None = None
    least = BLOCK_ROWS if "pyarrow" in sys.modules else LOADING_ROWS
    if count >= least and most >= BLOCK_ROWS and has_columns():
        rows = copy_block(data, width, count)
    if rows is None:
        rows = [row for some in copy_rows([data], width, offset) for row in some]
    del data
    yield from _sliced(rows, most, size)


def reordered(rows: Sequence[Tuple], indexes: Sequence[int | None]) -> Sequence[Tuple]:
    """Return ``rows`` with the columns of ``indexes``.

    A value is None where the index is None.
    """
    if isinstance(rows, RowBlock) and None not in indexes:
        return rows.chosen([index for index in indexes if index is not None])
    return [tuple(None if index is None else row[index] for index in indexes) for row in rows]
