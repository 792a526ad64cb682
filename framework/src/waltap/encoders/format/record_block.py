"""Records of many rows of one table, stored as columns."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from waltap.base.import_rules import np, pa, pc
from waltap.changes.decode.row_block import LazySequence
from waltap.changes.events.event import Header, Record

Piece = Any
"""A text or array of texts; bytes or a binary array."""

_CONSTANT: Final = (str, bytes)

# About this much text is joined at a time. Text that stays in the processor's cache is faster to
# make and to write, and its memory is reused.
STEP_BYTES: Final = 2 << 20
MOST_ROWS: Final = 8192
# Rows whose indexes are computed from their numbers.
FIRST_ROWS: Final = 128


class TextRows:
    """Hold the ``pieces`` of ``count`` rows.

    A piece is an Arrow array of strings with one value for each row, or a text that all rows contain.
    No value is null. Rows of bytes have binary arrays and bytes. Immutable.
    """

    __slots__ = ("_count", "pieces")

    def __init__(self, pieces: "Sequence[Piece]", count: int) -> None:
        self.pieces, self._count = _merged(pieces) or ("",), count

    def __len__(self) -> int:
        return self._count

    def within(self, before: "Sequence[pa.StringArray | str]", after: str) -> "TextRows":
        return TextRows([*before, *self.pieces, after], self._count)

    def array(self) -> "pa.StringArray":
        """Return the rows as one array, of binary for rows of bytes."""
        parts = [part for part, _ in self._steps()]
        if len(parts) == 1:
            return parts[0]
        return pa.concat_arrays(parts) if parts else pa.array([], pa.string())

    def texts(self) -> Iterator[memoryview]:
        """Yield the joined text of some rows at a time."""
        for _, text in self._steps():
            yield memoryview(text)

    def values(self) -> list[bytes]:
        made: list[bytes] = []
        for array, _ in self._steps():
            made += array.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
        return made

    def _steps(self) -> "Iterator[tuple[pa.StringArray, pa.Buffer]]":
        """Yield arrays of some rows, each with its joined text."""
        rows = self._rows_together()
        for start in range(0, self._count, rows):
            yield _joined(self.pieces, start, min(rows, self._count - start))

    def _rows_together(self) -> int:
        size = 0
        for piece in self.pieces:
            if isinstance(piece, _CONSTANT):
                size += len(piece) * self._count
            else:
                size += piece.nbytes
        steps = max(1, round(size / STEP_BYTES))
        return max(1, min(MOST_ROWS, -(-self._count // steps)))


def _merged(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, _CONSTANT) and isinstance(last, _CONSTANT):
            merged[-1] = last + piece  # type: ignore[operator]  # of one kind
        elif not isinstance(piece, _CONSTANT) or piece:
            merged.append(piece)
    return tuple(merged)


def _joined(
    pieces: tuple[Piece, ...], start: int, count: int
) -> "tuple[pa.StringArray, pa.Buffer]":
    # One array has the values of all columns, then the constant texts; `take` reads it in the order
    # of rows. That costs half of `binary_join_element_wise`, which looks at every argument twice for
    # each row.
    columns = [piece.slice(start, count) for piece in pieces if not isinstance(piece, _CONSTANT)]
    constants = [piece for piece in pieces if isinstance(piece, _CONSTANT)]
    form = columns[0].type if columns else pa.scalar(constants[0]).type
    flat = pa.concat_arrays([*columns, pa.array(constants, form)])
    width, at = len(pieces), len(columns) * count
    begins, steps = np.empty(width, "i4"), np.zeros(width, "i4")
    column = 0
    for index, piece in enumerate(pieces):
        if isinstance(piece, _CONSTANT):
            begins[index], at = at, at + 1
        else:
            begins[index], column = column, column + count
            steps[index] = 1
    indexes = _indexes(begins, steps, count).reshape(-1)
    chosen = pc.take(flat, pa.array(indexes), boundscheck=False)
    _, ends, text = chosen.buffers()
    text = text or pa.py_buffer(b"")
    # A row ends where its last piece ends.
    bounds = np.frombuffer(ends, "<i4", count * width + 1)[::width].copy()
    array = pa.Array.from_buffers(form, count, [None, pa.py_buffer(bounds), text])
    return array, text.slice(0, int(bounds[-1]))


def _indexes(begins: Any, steps: Any, count: int) -> "np.ndarray[Any, Any]":
    """Return ``begins + row * steps`` for each of ``count`` rows."""
    made = np.empty((count, len(begins)), "i4")
    done = min(count, FIRST_ROWS)
    np.multiply(np.arange(done, dtype="i4")[:, None], steps, out=made[:done])
    made[:done] += begins
    # Later rows are earlier ones plus a constant: one pass, where the first rows take two.
    while done < count:
        more = min(done, count - done)
        np.add(made[:more], steps * done, out=made[done : done + more])
        done += more
    return made


class RecordBlock(LazySequence[Record]):
    """Hold records for one topic as Arrow arrays of UTF-8.

    No value is null. The block is also a sequence of records.

    ``chunks`` are pairs of keys and values in order; keys None means records without key. `TextRows` are
    texts that are not joined yet. Every record has ``headers``.
    """

    __slots__ = ("_count", "headers", "rows", "topic")

    def __init__(
        self,
        topic: str,
        chunks: "Sequence[tuple[pa.StringArray | TextRows | None, pa.StringArray | TextRows]]",
        headers: tuple[Header, ...],
    ) -> None:
        super().__init__()
        self.topic, self.headers = topic, headers
        # Keys and values that are not joined yet, in order.
        self.rows = [
            (keys if keys is None else _rows(keys), _rows(values)) for keys, values in chunks
        ]
        self._count = sum(len(values) for _, values in self.rows)

    @property
    def chunks(self) -> "Iterator[tuple[pa.StringArray | None, pa.StringArray]]":
        """Yield keys and values as arrays, in order.

        Keys None means records without key.
        """
        for keys, values in self.rows:
            yield None if keys is None else keys.array(), values.array()

    def lines(self, before: str, between: str, after: str) -> Iterator[memoryview]:
        """Yield the text of all records, some at a time.

        These texts surround each record's key (null without one) and value. Any thread may call this.
        """
        for keys, values in self.rows:
            key = ("null",) if keys is None else keys.pieces
            yield from values.within([before, *key, between], after).texts()

    def value_bytes(self) -> Iterator[int]:
        """Join keys and values, and yield the values' sizes in bytes."""
        for keys, values in self.rows:
            # The keys are joined for the side effect only.
            for _ in () if keys is None else keys.texts():
                pass
            yield from map(len, values.texts())

    def __len__(self) -> int:
        return self._count

    def _make(self) -> list[Record]:
        made: list[Record] = []
        topic, headers = self.topic, self.headers
        for keys, values in self.rows:
            all_values = values.values()
            all_keys = [None] * len(all_values) if keys is None else keys.values()
            made += [
                Record(topic, key, value, headers)
                for key, value in zip(all_keys, all_values, strict=True)
            ]
        return made


class MixedRecords(LazySequence[Record]):
    """Hold records, some in blocks, as lists and blocks."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Sequence[Sequence[Record]]) -> None:
        super().__init__()
        self.pieces = pieces

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def _make(self) -> list[Record]:
        return [record for piece in self.pieces for record in piece]


def pieces_of(records: Sequence[Record]) -> Sequence[Sequence[Record]]:
    """Return ``records`` as lists and blocks."""
    return records.pieces if isinstance(records, MixedRecords) else (records,)


def joined(pieces: Sequence[Sequence[Record]]) -> Sequence[Record]:
    """Return the records of ``pieces`` together.

    They are one `RecordBlock` if all are blocks of one topic and have the same headers.
    """
    full = [piece for piece in pieces if piece]
    blocks = [piece for piece in full if isinstance(piece, RecordBlock)]
    if not blocks:
        return [record for piece in full for record in piece]
    topic, headers = blocks[0].topic, blocks[0].headers
    if len(blocks) < len(full) or any((b.topic, b.headers) != (topic, headers) for b in blocks):
        return MixedRecords(full)
    return RecordBlock(topic, [chunk for block in blocks for chunk in block.rows], headers)


def _rows(texts: "pa.StringArray | TextRows") -> TextRows:
    return texts if isinstance(texts, TextRows) else TextRows([texts], len(texts))
