"""Conversion of COPY's text format to columns.

It reads the same bytes as `copy_text`, for thousands of rows: pyarrow splits them at C speed, without
the interpreter's lock. Data that its CSV reader would read differently from PostgreSQL, or refuses,
is read row by row instead. This module does no I/O.
"""

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from waltap.pandas_blocker import spare_pandas
from waltap.transactions.row_block import RowBlock
from waltap_postgres.replication.copy_buffer import HeadedRows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["copy_block", "reads_blocks"]

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
# Offsets of an Arrow string array end at 2 GiB, and so does pyarrow's block.
MOST_BYTES: Final = 1 << 30

# Escapes that COPY TO writes besides a doubled backslash.
ESCAPES: Final = {
    r"\b": "\b",
    r"\f": "\f",
    r"\n": "\n",
    r"\r": "\r",
    r"\t": "\t",
    r"\v": "\v",
}

# Replaces a doubled backslash while other escapes are replaced.
_STAND_IN: Final = "\x01"


@functools.cache
def reads_blocks() -> bool:
    """Return whether the libraries are installed.

    The first block imports them.
    """
    return find_spec("pyarrow") is not None and find_spec("numpy") is not None


def copy_block(rows: HeadedRows | bytes, width: int, count: int) -> RowBlock | None:
    """Return ``rows`` as a block of ``count`` rows and ``width`` columns.

    None means that `copy_text` must read them, or report their damage.
    """
    headed = isinstance(rows, HeadedRows)
    data = memoryview(rows.buffer)[: rows.size] if isinstance(rows, HeadedRows) else rows
    if not width or len(data) > MOST_BYTES or data[-1:] != b"\n":
        return None
    if data[:3] == BYTE_ORDER_MARK or _occurs(b"\r", rows):
        return None
    import pyarrow as pa

    try:
        table = _reader(width, headed)(pa.BufferReader(pa.py_buffer(data)), len(data))
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if table.num_rows != count:
        return None
    columns = [_array(column) for column in table.columns]
    if _occurs(b"\\", rows):
        for index, column in enumerate(columns):
            plain = _unescaped(column)
            if plain is None:
                return None
            columns[index] = plain
    return RowBlock(columns, count)


def _occurs(text: bytes, rows: HeadedRows | bytes) -> bool:
    return rows.has(text) if isinstance(rows, HeadedRows) else text in rows


@functools.cache
def _reader(width: int, headed: bool) -> "Callable[[pa.BufferReader, int], pa.Table]":
    import pyarrow as pa
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
    import numpy as np

    data = column.buffers()[2]
    return data is not None and bool((np.frombuffer(data, "u1") == ord(text)).any())


def _occurs_in(column: "pa.Array", text: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring(column, text)).as_py())


def _unescaped(column: "pa.Array") -> "pa.Array | None":
    """Return ``column`` without escapes, None if one is unknown."""
    import pyarrow.compute as pc

    if not _has(column, "\\"):
        return column
    if _has(column, _STAND_IN):
        return None
    replace: Any = pc.replace_substring
    # From left to right, so that a doubled backslash before an n is no newline.
    column = replace(column, "\\\\", _STAND_IN)
    if _has(column, "\\"):
        for escape, meant in ESCAPES.items():
            if _occurs_in(column, escape):
                column = replace(column, escape, meant)
        if _has(column, "\\"):
            return None
    return replace(column, _STAND_IN, "\\")
