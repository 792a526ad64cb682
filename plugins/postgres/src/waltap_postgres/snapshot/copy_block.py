"""COPY's text format to columns. Sans-IO.

The same bytes as `copy_text` reads, for rows by the thousand: pyarrow splits them at C speed, without the
interpreter's lock. What its reader of CSV would take otherwise than PostgreSQL means it is not given to
it: such data, and whatever it refuses, is read row by row.
"""

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from waltap.transactions.row_block import RowBlock

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["copy_block", "reads_blocks"]

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
MOST_BYTES: Final = 1 << 30
"""Offsets of an Arrow string array end at 2 GiB, and so does pyarrow's block."""

ESCAPES: Final = {
    r"\b": "\b",
    r"\f": "\f",
    r"\n": "\n",
    r"\r": "\r",
    r"\t": "\t",
    r"\v": "\v",
}
"""What COPY TO writes besides a doubled backslash."""

_STAND_IN: Final = "\x01"


@functools.cache
def reads_blocks() -> bool:
    """Tell whether the libraries are there. They are imported with the first block."""
    return find_spec("pyarrow") is not None and find_spec("numpy") is not None


def copy_block(data: bytes, width: int, count: int) -> RowBlock | None:
    """Return the ``count`` rows of ``width`` columns that ``data`` has; None where `copy_text` must read
    them, or say what is wrong with them."""
    if not width or len(data) > MOST_BYTES or not data.endswith(b"\n"):
        return None
    if data.startswith(BYTE_ORDER_MARK) or b"\r" in data:
        return None
    import pyarrow as pa

    try:
        table = _reader(width)(pa.BufferReader(data), len(data))
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if table.num_rows != count:
        return None
    columns = [_array(column) for column in table.columns]
    if data.find(b"\\") >= 0:
        for index, column in enumerate(columns):
            plain = _unescaped(column)
            if plain is None:
                return None
            columns[index] = plain
    del table
    pa.default_memory_pool().release_unused()  # what a thread leaves behind, others do not use
    return RowBlock(columns, count)


@functools.cache
def _reader(width: int) -> "Callable[[pa.BufferReader, int], pa.Table]":
    import pyarrow as pa
    from pyarrow import csv

    names = [str(number) for number in range(width)]
    # An empty line is a value of a single column; elsewhere it is damage, and taken for nothing.
    parse = csv.ParseOptions(
        delimiter="\t", quote_char=False, escape_char=False, ignore_empty_lines=width > 1
    )
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=["\\N"],
        strings_can_be_null=True,
    )

    def read(source: "pa.BufferReader", size: int) -> "pa.Table":
        options = csv.ReadOptions(use_threads=False, block_size=size + 1, column_names=names)
        return csv.read_csv(
            source, read_options=options, parse_options=parse, convert_options=convert
        )

    return read


def _array(column: "pa.ChunkedArray") -> "pa.Array":
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _has(column: "pa.Array", text: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring(column, text)).as_py())


def _unescaped(column: "pa.Array") -> "pa.Array | None":
    """Return ``column`` with escapes replaced by what they stand for; None where some are not known."""
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
            if _has(column, escape):
                column = replace(column, escape, meant)
        if _has(column, "\\"):
            return None
    return replace(column, _STAND_IN, "\\")
