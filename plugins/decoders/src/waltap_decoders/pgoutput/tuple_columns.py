"""Split the tuples of many inserts into columns at once.

A tuple is a chain: the length of a value says where the next tag is. But the chains of many rows
can be followed together, one column after the other. numpy reads the tags and lengths of a column
in all rows, and one `take` of Arrow then copies the values out of the payloads, column by column.
That costs a fifth of the compiled readers' time. The begins and commits of neighbouring
transactions of one insert are read together, too. In segments of a streamed transaction, the ends
of segments between inserts are left out.

It accepts what the compiled readers of `tuple_codec` accept. For anything else the result is None,
and the frames are read one by one.

Source: PostgreSQL manual, "Logical Replication Message Formats", TupleData.
"""

import enum
from typing import Any, Final, NamedTuple

from waltap.base.import_rules import np, pa, pc, spare_pandas
from waltap.changes.decode.frame_block import FrameBlock
from waltap.changes.decode.message import InsertBlock, TransactionBlock
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.row_block import RowBlock, is_text
from waltap_decoders.pgoutput.payload import PG_EPOCH_US
from waltap_decoders.pgoutput.tuple_codec import never_null

# From so many rows on, columns are cheaper than rows.
LEAST_ROWS: Final = 256
# In a segment even few are, since they wait in a buffer, which joins them again.
LEAST_IN_SEGMENT: Final = 48

# Lists of frames with more bytes are read row by row: the columns need as much memory again.
MOST_BYTES: Final = 16 << 20

# Message type, relation OID, tuple tag, number of columns. In a segment of a streamed transaction
# an xid follows the message type.
HEAD_BYTES: Final = 8
SEGMENT_HEAD_BYTES: Final = 12

# A begin has commit LSN, time and xid; a commit has flags, commit LSN, end LSN and time.
BEGIN_BYTES: Final = 21
COMMIT_BYTES: Final = 26
# Stream Start has an xid and a flag.
_START_BYTES: Final = 6

_NULL, _TEXT = ord("n"), ord("t")
_BEGIN, _INSERT, _COMMIT = ord("B"), ord("I"), ord("C")
_START, _STOP = ord("S"), ord("E")

# A transaction of one insert has so many frames.
_FRAMES: Final = 3


class RunKind(enum.Enum):
    """Name the kinds of runs."""

    INSERTS = "inserts into one relation"
    TRANSACTIONS = "transactions of one such insert each"
    SEGMENTS = "inserts into one relation by one subtransaction, and ends of segments between them"


class Run(NamedTuple):
    """Name frames that are read together."""

    start: int
    end: int
    kind: RunKind


def runs(block: FrameBlock, least: int, *, segment: bool = False) -> list[Run]:
    """Return the runs of at least ``least`` inserts in ``block``, in order.

    The payloads of a run's inserts have the same head. ``segment``: the first frame is in a
    segment of a streamed transaction.
    """
    count = len(block)
    heads = block.numbers(block.starts, ">u8")
    kinds, sizes = heads >> np.uint64(56), block.ends - block.starts
    if segment or (kinds == _START).any():
        return _segment_runs(block, kinds, least, segment=segment)
    bounds = np.concatenate(([0], np.flatnonzero(heads[1:] != heads[:-1]) + 1, [count]))
    long = np.flatnonzero((np.diff(bounds) >= least) & (kinds[bounds[:-1]] == _INSERT))
    found = [Run(int(bounds[at]), int(bounds[at + 1]), RunKind.INSERTS) for at in long]
    begins = (kinds[:-2] == _BEGIN) & (sizes[:-2] == BEGIN_BYTES) & (kinds[1:-1] == _INSERT)
    begins &= (kinds[2:] == _COMMIT) & (sizes[2:] == COMMIT_BYTES)
    starts = np.flatnonzero(begins)
    if len(starts) >= least:
        apart = np.diff(starts) != _FRAMES
        apart |= np.diff(heads[starts + 1]) != 0
        bounds = np.concatenate(([0], np.flatnonzero(apart) + 1, [len(starts)]))
        for at in np.flatnonzero(np.diff(bounds) >= least):
            last = int(starts[bounds[at + 1] - 1])
            found.append(Run(int(starts[bounds[at]]), last + _FRAMES, RunKind.TRANSACTIONS))
        found.sort(key=lambda run: run.start)
    return found


def _segment_runs(
    block: FrameBlock, kinds: "np.ndarray[Any, Any]", least: int, *, segment: bool
) -> list[Run]:
    """Return the runs of frames that are inside and outside segments."""
    heads = block.numbers(block.starts, ">u8")
    # In a segment, the next four bytes belong to the head, too.
    steps = (kinds == _START).astype("i4") - (kinds == _STOP)
    inside = steps.cumsum() + segment > 0
    rest = np.where(inside, block.numbers(block.starts + 8, ">u4"), 0)
    # A stop and a start between two inserts that belong together are no bound.
    apart = (heads[1:] != heads[:-1]) | (rest[1:] != rest[:-1]) | (inside[1:] != inside[:-1])
    stops = np.flatnonzero((kinds[1:-2] == _STOP) & (kinds[2:-1] == _START)) + 1
    before, after = stops - 1, stops + 2
    joined = (kinds[before] == _INSERT) & (heads[before] == heads[after])
    joined &= inside[before] & (rest[before] == rest[after])
    for within in range(_FRAMES):
        apart[before[joined] + within] = False
    bounds = np.concatenate(([0], np.flatnonzero(apart) + 1, [len(block)]))
    inserts = np.concatenate(([0], (kinds == _INSERT).cumsum()))
    long = np.flatnonzero(np.diff(inserts[bounds]) >= least)
    return [
        Run(
            int(bounds[at]),
            int(bounds[at + 1]),
            RunKind.SEGMENTS if inside[bounds[at]] else RunKind.INSERTS,
        )
        for at in long
    ]


def segment_inserts(frames: FrameBlock, xid: int) -> FrameBlock | None:
    """Return the inserts of a run in segments of the transaction ``xid``.

    None if a segment is not a later one of this transaction, or holds other messages.
    """
    heads = frames.numbers(frames.starts, ">u8")
    kinds, sizes = heads >> 56, frames.ends - frames.starts
    inserts, starts = kinds == _INSERT, kinds == _START
    if inserts.all():
        return frames
    if (sizes[kinds == _STOP] != 1).any() or (sizes[starts] != _START_BYTES).any():
        return None
    # An xid, and 0: the segment is not the first one.
    if (heads[starts] >> 16 != _START << 40 | xid << 8).any():
        return None
    return frames.part(inserts)


def insert_block(
    relation: Relation, frames: FrameBlock, *, segment: bool = False
) -> InsertBlock | None:
    """Return a run's inserts, None if they need care."""
    if not relation.columns:
        return None
    starts = frames.starts + (SEGMENT_HEAD_BYTES if segment else HEAD_BYTES)
    columns = _columns(frames, starts, frames.ends, never_null(relation))
    if columns is None:
        return None
    xid = int.from_bytes(frames.payload(0)[1:5], "big") if segment else 0
    return InsertBlock(relation, frames.lsns, RowBlock(columns, len(frames)), xid)


def transaction_block(
    relation: Relation, frames: FrameBlock, last_end: int
) -> TransactionBlock | None:
    """Return the transactions of a run, each of an insert into ``relation``.

    Returns None if they need care. ``last_end`` is the end of the transaction before the run.
    """
    inserts = frames.part(slice(1, None, _FRAMES))
    begins, commits = frames.starts[::_FRAMES], frames.starts[2::_FRAMES]
    commit_lsns, ends = frames.numbers(begins + 1, ">u8"), frames.numbers(commits + 10, ">u8")
    times = frames.numbers(commits + 18, ">i8")
    same = (
        (frames.numbers(commits + 1, ">u1") == 0)
        & (frames.numbers(commits + 2, ">u8") == commit_lsns)
        & (frames.numbers(begins + 9, ">i8") == times)
        & (commit_lsns <= ends)
        & (commit_lsns > 0)
    )
    # Ends must not fall: the careful reader names the fault of any other commit.
    if not same.all() or int(ends[0]) < last_end or (ends[1:] < ends[:-1]).any():
        return None
    block = insert_block(relation, inserts)
    if block is None:
        return None
    return TransactionBlock(
        block,
        (frames.lsns[::_FRAMES], frames.lsns[2::_FRAMES]),
        xids=frames.numbers(begins + 17, ">u4").astype("i8"),
        commit_lsns=commit_lsns,
        end_lsns=ends,
        commit_ts=times + PG_EPOCH_US,
    )


def _columns(
    frames: FrameBlock,
    starts: "np.ndarray[Any, Any]",
    ends: "np.ndarray[Any, Any]",
    required: tuple[bool, ...],
) -> "list[pa.StringArray] | None":
    """Return the columns of the tuples from ``starts`` to ``ends``.

    ``required`` columns have no NULL. Returns None unless every tuple is sound.
    """
    count, width, data = len(starts), len(required), frames.data
    tags = np.frombuffer(data, "u1")
    # Start and end of each value, row by row: the offsets of a string array in which every second
    # string is a value, and the others are what is between two values.
    bounds = np.empty((count, 2 * width), "i4")
    nulls = np.zeros((width, count), bool)
    at = starts
    try:
        for column in range(width):
            tag, length = tags[at], frames.numbers(at + 1, ">u4").astype("i8")
            start = at + 5
            if not (tag == _TEXT).all():
                null = np.equal(tag, _NULL, out=nulls[column])
                if required[column] or not ((tag == _TEXT) | null).all():
                    return None
                start, length = np.where(null, at + 1, start), np.where(null, 0, length)
            at = start + length
            bounds[:, 2 * column], bounds[:, 2 * column + 1] = start, at
    except IndexError:  # a length that leads out of the data
        return None
    # No position of a row is behind its last one, so all are inside the row.
    if not np.array_equal(at, ends):
        return None
    return _column_arrays(data, bounds, nulls)


def _column_arrays(
    data: bytes, bounds: "np.ndarray[Any, Any]", nulls: "np.ndarray[Any, Any]"
) -> "list[pa.StringArray] | None":
    """Return the values at ``bounds`` as one array for each column.

    Returns None if a value is no text: PostgreSQL's is UTF-8 without NUL.
    """
    spare_pandas()
    width, count = nulls.shape
    every = pa.StringArray.from_buffers(bounds.size - 1, pa.py_buffer(bounds), pa.py_buffer(data))
    indexes = np.arange(0, bounds.size, 2, dtype="i4").reshape(count, width).T.reshape(-1)
    absent = nulls.reshape(-1) if nulls.any() else None
    values = pc.take(every, pa.array(indexes, mask=absent), boundscheck=False)
    if not is_text(values):
        return None
    return [values.slice(column * count, count) for column in range(width)]
