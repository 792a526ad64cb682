"""Rows of text, of columns and of what is the same in every row, put together when they are asked for."""

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["TextRows"]

STEP_BYTES: Final = 2 << 20
"""About so much text is put together at a time: what stays in a processor's cache is quicker to make and
to write, and its memory is used again."""
MOST_ROWS: Final = 8192


class TextRows:
    """``count`` rows, each of them ``pieces`` one after the other: an Arrow array of strings gives each
    row its value, a text stands in all of them. No value is null. Immutable.
    """

    __slots__ = ("_count", "pieces")

    def __init__(self, pieces: "Sequence[pa.StringArray | str]", count: int) -> None:
        self.pieces, self._count = _merged(pieces) or ("",), count

    def __len__(self) -> int:
        return self._count

    def within(self, before: "Sequence[pa.StringArray | str]", after: str) -> "TextRows":
        """Return these rows with other pieces around them."""
        return TextRows([*before, *self.pieces, after], self._count)

    def array(self) -> "pa.StringArray":
        """Return the rows as one array."""
        import pyarrow as pa

        parts = [part for part, _ in self._steps()]
        if len(parts) == 1:
            return parts[0]
        return pa.concat_arrays(parts) if parts else pa.array([], pa.string())

    def texts(self) -> Iterator[memoryview]:
        """Yield the text of all rows, one after the other, some rows at a time."""
        for _, text in self._steps():
            yield memoryview(text)

    def _steps(self) -> "Iterator[tuple[pa.StringArray, pa.Buffer]]":
        """Yield arrays of some rows, each with the text of them all."""
        rows = self._rows_together()
        for start in range(0, self._count, rows):
            yield _joined(self.pieces, start, min(rows, self._count - start))

    def _rows_together(self) -> int:
        size = 0
        for piece in self.pieces:
            if isinstance(piece, str):
                size += len(piece) * self._count
            else:
                size += piece.nbytes
        steps = max(1, round(size / STEP_BYTES))
        return max(1, min(MOST_ROWS, -(-self._count // steps)))


def _merged(pieces: "Sequence[pa.StringArray | str]") -> "tuple[pa.StringArray | str, ...]":
    """Return ``pieces`` with texts that are neighbours as one."""
    merged: list[pa.StringArray | str] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        elif not isinstance(piece, str) or piece:
            merged.append(piece)
    return tuple(merged)


def _joined(
    pieces: "tuple[pa.StringArray | str, ...]", start: int, count: int
) -> "tuple[pa.StringArray, pa.Buffer]":
    """Return ``count`` rows from ``start`` on, as an array and as the text of them all.

    The values of all columns, then the constant texts, are one array; it is taken from in the order of
    rows. That costs half of `binary_join_element_wise`, which looks at every argument twice for each row.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [piece.slice(start, count) for piece in pieces if not isinstance(piece, str)]
    constants = [piece for piece in pieces if isinstance(piece, str)]
    flat = pa.concat_arrays([*columns, pa.array(constants, pa.string())])
    width, begins, at = len(pieces), np.empty(len(pieces), "i4"), len(columns) * count
    column = 0
    for place, piece in enumerate(pieces):
        if isinstance(piece, str):
            begins[place], at = at, at + 1
        else:
            begins[place], column = column, column + count
    varies = tuple(not isinstance(piece, str) for piece in pieces)
    places = np.add(_row_numbers(varies)[:count], begins).reshape(-1)
    taken = pc.take(flat, pa.array(places), boundscheck=False)
    _, ends, text = taken.buffers()
    text = text or pa.py_buffer(b"")
    bounds = np.frombuffer(ends, "<i4", count * width + 1)[::width].copy()
    array = pa.StringArray.from_buffers(count, pa.py_buffer(bounds), text)
    return array, text.slice(0, int(bounds[-1]))


@functools.lru_cache(maxsize=4)
def _row_numbers(varies: tuple[bool, ...]) -> "np.ndarray[Any, Any]":
    """Return for each row and piece the number of the row, where the piece varies, else 0."""
    import numpy as np

    rows = np.arange(MOST_ROWS, dtype="i4")[:, None]
    return np.where(np.array(varies, bool), rows, np.int32(0))
