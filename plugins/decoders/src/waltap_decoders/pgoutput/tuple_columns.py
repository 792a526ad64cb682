"""Split the tuples of many inserts into columns at once.

A tuple is a chain: the length of a value says where the next mark is. But the chains of many rows
can be followed together, one column after the other. numpy reads the marks and lengths of a column
in all rows, and one `take` of Arrow then copies the values out of the payloads, column by column.
That costs a fifth of the compiled readers' time.

It accepts what the compiled readers of `tuple_codec` accept. For anything else the result is None,
and the rows are read one by one.

Source: PostgreSQL manual, "Logical Replication Message Formats", TupleData.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from waltap.base.pandas_blocker import spare_pandas
from waltap.changes.decode.decoder import Frame
from waltap.changes.decode.message import InsertBlock
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.row_block import RowBlock
from waltap_decoders.pgoutput.tuple_codec import never_null

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


# From so many rows on, columns are cheaper than rows.
LEAST_ROWS: Final = 256

# Runs with more bytes are read row by row: the columns need as much memory again.
MOST_BYTES: Final = 16 << 20

# Message type, relation OID, tuple mark, number of columns.
HEAD_BYTES: Final = 8

_NULL, _TEXT = ord("n"), ord("t")

# Allows a mark at the very end to be read together with a length.
_PAD: Final = bytes(8)


def insert_runs(frames: Sequence[Frame], least: int) -> list[tuple[int, int]]:
    """Return start and end of each run of at least ``least`` inserts.

    The payloads of a run have the same first eight bytes.
    """
    found: list[tuple[int, int]] = []
    done, count = 0, len(frames)
    # Every run that is long enough fills one of these windows.
    window = max(1, least // 2)
    for start in range(0, count - window + 1, window):
        head = frames[start][1][:HEAD_BYTES]
        if start < done or head[:1] != b"I" or not _fills(frames, start, window, head):
            continue
        first, end = start, start + window
        while first > done and frames[first - 1][1][:HEAD_BYTES] == head:
            first -= 1
        while end < count and frames[end][1][:HEAD_BYTES] == head:
            end += 1
        if end - first >= least:
            found.append((first, end))
        done = end
    return found


def _fills(frames: Sequence[Frame], start: int, window: int, head: bytes) -> bool:
    """Return whether all payloads of a window begin with ``head``."""
    # A few looks tell for nearly all windows of mixed changes.
    for place in (window - 1, window // 2, window // 4):
        if frames[start + place][1][:HEAD_BYTES] != head:
            return False
    some = frames[start : start + window]
    return [data[:HEAD_BYTES] for _, data in some].count(head) == window


def insert_block(relation: Relation, frames: Sequence[Frame]) -> InsertBlock | None:
    """Return the inserts of a run into ``relation``, None if they need care."""
    size = sum([len(data) for _, data in frames])
    if not relation.columns or size > MOST_BYTES:
        return None
    import numpy as np

    sizes = np.fromiter([len(data) for _, data in frames], "i8", len(frames))
    ends = sizes.cumsum()
    data = b"".join([*[data for _, data in frames], _PAD])
    columns = _columns(data, ends - sizes + HEAD_BYTES, ends, never_null(relation))
    if columns is None:
        return None
    lsns = np.fromiter([lsn for lsn, _ in frames], "u8", len(frames))
    return InsertBlock(relation, lsns, RowBlock(columns, len(frames)))


def _columns(
    data: bytes,
    starts: "np.ndarray[Any, Any]",
    ends: "np.ndarray[Any, Any]",
    required: tuple[bool, ...],
) -> "list[pa.StringArray] | None":
    """Return the columns of the tuples from ``starts`` to ``ends`` in ``data``.

    ``required`` columns have no NULL. Returns None unless every tuple is sound.
    """
    import numpy as np

    count, width = len(starts), len(required)
    marks = np.frombuffer(data, "u1")
    # A length at every byte.
    lengths = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))
    # Start and end of each value, row by row: the offsets of a string array in which every second
    # string is a value, and the others are what is between two values.
    bounds = np.empty((count, 2 * width), "i4")
    nulls = np.zeros((width, count), bool)
    at = starts
    try:
        for column in range(width):
            mark, length = marks[at], lengths[at + 1].astype("i8")
            start = at + 5
            if not (mark == _TEXT).all():
                null = np.equal(mark, _NULL, out=nulls[column])
                if required[column] or not ((mark == _TEXT) | null).all():
                    return None
                start, length = np.where(null, at + 1, start), np.where(null, 0, length)
            at = start + length
            bounds[:, 2 * column], bounds[:, 2 * column + 1] = start, at
    except IndexError:  # a length that leads out of the data
        return None
    # No position of a row is behind its last one, so all are inside the row.
    if not np.array_equal(at, ends):
        return None
    return _taken(data, bounds, nulls)


def _taken(
    data: bytes, bounds: "np.ndarray[Any, Any]", nulls: "np.ndarray[Any, Any]"
) -> "list[pa.StringArray] | None":
    """Return the values at ``bounds`` as one array for each column.

    Returns None if a value is no text: PostgreSQL's is UTF-8 without NUL.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    spare_pandas()
    width, count = nulls.shape
    every = pa.StringArray.from_buffers(bounds.size - 1, pa.py_buffer(bounds), pa.py_buffer(data))
    places = np.arange(0, bounds.size, 2, dtype="i4").reshape(count, width).T.reshape(-1)
    absent = nulls.reshape(-1) if nulls.any() else None
    taken = pc.take(every, pa.array(places, mask=absent), boundscheck=False)
    _, offsets, text = taken.buffers()
    if text is not None and text.size:
        used = int(np.frombuffer(offsets, "i4", len(taken) + 1)[-1])
        characters = np.frombuffer(text, "u1", used)
        if used and not characters.min():
            return None
        if used and characters.max() > 127:
            try:
                taken.validate(full=True)
            except pa.ArrowInvalid:
                return None
    return [taken.slice(column * count, count) for column in range(width)]
