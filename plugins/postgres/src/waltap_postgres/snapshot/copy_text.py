"""Conversion of COPY's text format to tuples.

The server writes no raw newline or tab inside a value, so lines and fields split at C speed; only
lines with a backslash need more work. This module does no I/O.

Source: PostgreSQL manual, COPY, "Text Format".
"""

import re
from collections.abc import Iterable, Iterator

from waltap.decode.tuple_image import Tuple
from waltap.errors import DecodeError

__all__ = ["copy_rows"]

ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}


def copy_rows(pieces: Iterable[bytes], width: int, offset: int = 0) -> Iterator[list[Tuple]]:
    """Yield lists of tuples from the pieces of a COPY TO STDOUT.

    A tuple has ``width`` values; a piece may end anywhere. Raises: DecodeError for a row of another
    width, bad UTF-8 or an unfinished last row. Its offset counts from the first byte of COPY's
    data; ``offset`` bytes of them came before.
    """
    rest, consumed = b"", offset
    for piece in pieces:
        data = rest + piece if rest else piece
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
    return DecodeError(
        "copy", lsn=0, offset=offset, expected=expected, found=found, payload=payload[:64]
    )
